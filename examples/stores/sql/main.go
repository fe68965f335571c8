// Sql keeps a lock in a SQL database. Three instances of a service write invoices into one book
// under the lock, see package invoices.
//
//	go run ./store/sql
//
// uses a file of SQLite, and no server. With DATABASE_URL=postgres://localhost/test in front the
// lock is in that database of PostgreSQL, which keeps the two tables of the store. The exit code is
// 1 if anything is not as told.
package main

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/examples/stores/invoices"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
)

func main() {
	stage.Main("sql", func(ctx context.Context, out io.Writer, _ string) error {
		return run(ctx, out, os.Getenv("DATABASE_URL"))
	})
}

// database is where the locks are.
type database struct {
	driver, source string
	dialect        relocksql.Dialect
	options        []relocksql.Option
}

func run(ctx context.Context, out io.Writer, url string) error {
	d := database{driver: "pgx", source: url, dialect: relocksql.Postgres}
	if url == "" {
		dir, err := os.MkdirTemp("", "relock-sql-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		d.driver, d.dialect = "sqlite", relocksql.SQLite
		d.source = "file:" + filepath.Join(dir, "locks.db") + "?_pragma=busy_timeout(50)&_pragma=journal_mode(WAL)"
	} else {
		if _, err := pgx.ParseConfig(url); err != nil { // the error may have a password
			return errors.New("DATABASE_URL cannot be read: it must be such as postgres://localhost/test")
		}
		d.options = append(d.options, relocksql.WithListener(pglisten.New(url))) // wakes waiters; without it they poll
	}
	if err := d.create(ctx); err != nil {
		return err
	}
	return invoices.Write(ctx, out, d.open)
}

// create makes the tables, as a migration of the service would.
func (d *database) create(ctx context.Context) error {
	db, err := sql.Open(d.driver, d.source)
	if err != nil {
		return err
	}
	return errors.Join(relocksql.Create(ctx, db, d.dialect), db.Close())
}

// open connects an instance to the database, with a pool for its locks alone: renewals do not wait
// behind the queries of the service.
func (d *database) open(context.Context) (locks *relock.Client, end func(), err error) {
	db, err := sql.Open(d.driver, d.source)
	if err != nil {
		return nil, nil, err
	}
	s, err := relocksql.New(db, d.dialect, d.options...)
	if err == nil {
		locks, err = relock.Open(s)
	}
	if err != nil {
		_ = db.Close()
		return nil, nil, err
	}
	return locks, func() {
		_ = locks.Close() // first, as the client uses the store
		_ = s.Close()     // and the store uses the pool
		_ = db.Close()
	}, nil
}
