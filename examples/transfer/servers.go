package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

// servers are a Redis server for the locks, and an empty database.
type servers struct {
	redis    *redis.Options
	prefix   string // of the keys in Redis
	source   string // of the database
	cleanups []func()
}

// openServers finds the Redis server of a URL, or starts an embedded one, and makes a database. The
// caller closes the servers also after an error.
func openServers(redisURL string) (*servers, error) {
	s := &servers{prefix: "relock-transfer:" + rand.Text()[:8] + ":"}
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return s, err
	}
	s.redis, s.cleanups = options, append(s.cleanups, end)
	dir, err := os.MkdirTemp("", "relock-transfer-")
	if err != nil {
		return s, err
	}
	s.cleanups = append(s.cleanups, func() { _ = os.RemoveAll(dir) })
	// Writers wait for each other, up to 10 s. The file need not outlive a power failure.
	s.source = "file:" + filepath.Join(dir, "example.db") +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	return s, nil
}

// close closes all connections, and removes what the example has left in the database.
func (s *servers) close() {
	for _, cleanup := range slices.Backward(s.cleanups) {
		cleanup()
	}
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
	db, err := sql.Open("sqlite", s.source)
	if err != nil {
		return nil, nil, err
	}
	s.cleanups = append(s.cleanups, func() { db.Close() })
	db.SetMaxOpenConns(20) // several instances share what the server allows
	db.SetMaxIdleConns(20)
	return db, locks, db.PingContext(ctx)
}
