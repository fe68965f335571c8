// Package stage gives the examples of this module their servers: a Redis server for the locks, and
// a database. Without an address both are embedded, and nothing has to be installed.
package stage

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/fence"
)

// URLs say which servers an example uses. An empty URL stands for an embedded server.
type URLs struct {
	Redis    string // such as redis://localhost:6379
	Database string // such as postgres://localhost/test, of PostgreSQL
}

// Stage is what an example plays on: a Redis server and an empty database.
type Stage struct {
	Dialect fence.Dialect // of the database

	redis    *redis.Options
	prefix   string // of the keys in Redis
	open     func() (*sql.DB, error)
	cleanups []func()
}

// Instance is what one instance of a service has: its own connections to both servers.
type Instance struct {
	DB    *sql.DB
	Locks *relock.Client
}

// Main is the main function of the example: it runs tell with the URLs in REDIS_URL and
// DATABASE_URL, and exits with 1 if anything is not as told.
func Main(name string, tell func(context.Context, io.Writer, *Stage) error) {
	stage.Main(name, func(ctx context.Context, out io.Writer, redisURL string) error {
		return Run(ctx, out, name, URLs{Redis: redisURL, Database: os.Getenv("DATABASE_URL")}, tell)
	})
}

// Run opens a stage, runs tell on it, closes all connections, and removes what tell has left in the
// database. An interrupt is reported in place of the error of the call that it ended.
func Run(
	ctx context.Context, out io.Writer, name string, urls URLs, tell func(context.Context, io.Writer, *Stage) error,
) error {
	s := &Stage{prefix: "relock-" + name + ":" + rand.Text()[:8] + ":"}
	defer s.close()
	err := s.openRedis(urls.Redis)
	if err == nil {
		err = s.openDatabase(ctx, name, urls.Database)
	}
	if err == nil {
		err = tell(ctx, out, s)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *Stage) close() {
	for _, cleanup := range slices.Backward(s.cleanups) {
		cleanup()
	}
}

// openRedis starts an embedded server if the URL is empty.
func (s *Stage) openRedis(url string) error {
	options, end, err := stage.Redis(url)
	if err != nil {
		return err
	}
	s.redis = options
	s.cleanups = append(s.cleanups, end)
	return nil
}

// openDatabase makes an empty database: a file of SQLite if the URL is empty, and otherwise a
// schema of PostgreSQL.
func (s *Stage) openDatabase(ctx context.Context, name, url string) error {
	if url != "" {
		s.Dialect = fence.Postgres
		return s.openPostgres(ctx, "relock_"+name+"_"+strings.ToLower(rand.Text()[:8]), url)
	}
	s.Dialect = fence.SQLite
	dir, err := os.MkdirTemp("", "relock-"+name+"-")
	if err != nil {
		return err
	}
	s.cleanups = append(s.cleanups, func() { _ = os.RemoveAll(dir) })
	// Writers wait for each other, up to 10 s. The file need not outlive a power failure.
	source := "file:" + filepath.Join(dir, "example.db") +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	s.open = func() (*sql.DB, error) { return sql.Open("sqlite", source) }
	return nil
}

// openPostgres makes a schema, in which each later connection finds and creates its tables.
func (s *Stage) openPostgres(ctx context.Context, schema, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return errors.New("DATABASE_URL cannot be read: it must be such as postgres://localhost/test")
	}
	db := stdlib.OpenDB(*config)
	s.cleanups = append(s.cleanups, func() {
		// The context of the example may have ended by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
		db.Close()
	})
	if _, err := db.ExecContext(ctx, `CREATE SCHEMA `+schema); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	inside := config.Copy()
	inside.RuntimeParams["search_path"] = schema
	s.open = func() (*sql.DB, error) { return stdlib.OpenDB(*inside), nil }
	return nil
}

// NewInstance connects an instance of a service. Run closes its connections.
func (s *Stage) NewInstance(ctx context.Context) (in Instance, err error) {
	rdb := redis.NewClient(s.redis)
	s.cleanups = append(s.cleanups, func() { rdb.Close() })
	if err := rdb.Ping(ctx).Err(); err != nil {
		return in, fmt.Errorf("redis at %s: %w", s.redis.Addr, err)
	}
	if in.Locks, err = relock.New(rdb, relock.WithPrefix(s.prefix)); err != nil {
		return in, err
	}
	s.cleanups = append(s.cleanups, func() { in.Locks.Close() })
	if in.DB, err = s.open(); err != nil {
		return in, err
	}
	s.cleanups = append(s.cleanups, func() { in.DB.Close() })
	in.DB.SetMaxOpenConns(20) // several instances share what the server allows
	in.DB.SetMaxIdleConns(20)
	return in, in.DB.PingContext(ctx)
}
