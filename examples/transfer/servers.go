package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
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

// servers are a Redis server for the locks, and an empty database.
type servers struct {
	dialect fence.Dialect // of the database

	redis    *redis.Options
	prefix   string // of the keys in Redis
	open     func() (*sql.DB, error)
	cleanups []func()
}

// openServers finds the servers of the URLs. An empty URL stands for an embedded server. The caller
// closes the servers also after an error.
func openServers(ctx context.Context, redisURL, databaseURL string) (*servers, error) {
	id := strings.ToLower(rand.Text()[:8])
	s := &servers{prefix: "relock-transfer:" + id + ":"}
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return s, err
	}
	s.redis, s.cleanups = options, append(s.cleanups, end)
	if databaseURL == "" {
		return s, s.openSQLite()
	}
	return s, s.openPostgres(ctx, databaseURL, "relock_transfer_"+id)
}

// close closes all connections, and removes what the example has left in the database.
func (s *servers) close() {
	for _, cleanup := range slices.Backward(s.cleanups) {
		cleanup()
	}
}

func (s *servers) openSQLite() error {
	dir, err := os.MkdirTemp("", "relock-transfer-")
	if err != nil {
		return err
	}
	s.cleanups = append(s.cleanups, func() { _ = os.RemoveAll(dir) })
	// Writers wait for each other, up to 10 s. The file need not outlive a power failure.
	source := "file:" + filepath.Join(dir, "example.db") +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	s.dialect, s.open = fence.SQLite, func() (*sql.DB, error) { return sql.Open("sqlite", source) }
	return nil
}

// openPostgres makes a schema, in which each later connection finds and creates its tables.
func (s *servers) openPostgres(ctx context.Context, url, schema string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil { // the error may have a password
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
	s.dialect, s.open = fence.Postgres, func() (*sql.DB, error) { return stdlib.OpenDB(*inside), nil }
	return nil
}

// connect makes the connections of an instance to both servers.
func (s *servers) connect(ctx context.Context) (*sql.DB, *relock.Client, error) {
	rdb := redis.NewClient(s.redis)
	s.cleanups = append(s.cleanups, func() { rdb.Close() })
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, nil, fmt.Errorf("redis at %s: %w", s.redis.Addr, err)
	}
	locks, err := relock.New(rdb, relock.WithPrefix(s.prefix))
	if err != nil {
		return nil, nil, err
	}
	s.cleanups = append(s.cleanups, func() { locks.Close() })
	db, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	s.cleanups = append(s.cleanups, func() { db.Close() })
	db.SetMaxOpenConns(20) // several instances share what the server allows
	db.SetMaxIdleConns(20)
	return db, locks, db.PingContext(ctx)
}
