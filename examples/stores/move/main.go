// Move moves the locks of a running service from Redis to a SQL database, and back. Six processes
// work under one lock all the time, and get each new release one after the other, as in a rolling
// deployment:
//
//  1. the lock is in Redis
//  2. the lock is in both: in Redis first, and inside of its section in the database
//  3. the lock is in the database
//
// Any two releases that run side by side share a lock, so that nobody is ever in beside another. The
// next release comes when all processes have the last one. Each lock has tokens of its
// own, and the guarded resource remembers the largest of each, so that every token grows.
//
//	go run ./move
//
// needs no server. REDIS_URL and DATABASE_URL, such as postgres://localhost/test, name servers of
// yours. The exit code is 1 if two processes were in at once, or a token did not grow.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	relocksql "github.com/go-relock/relock/store/sql"
)

func main() {
	stage.Main("move", func(ctx context.Context, out io.Writer, redisURL string) error {
		return run(ctx, out, redisURL, os.Getenv("DATABASE_URL"), 20)
	})
}

const (
	processes = 6
	lockName  = "ledger"
)

// in is a lock in one of the stores.
type in struct {
	store string
	*relock.Lock
}

// process is one process of the service.
type process struct {
	release         atomic.Int64
	redis, database in
	ledger          *ledger
}

// write does one piece of work, under the locks of the release.
func (p *process) write(ctx context.Context) error {
	switch p.release.Load() {
	case 1:
		return p.redis.Do(ctx, func(ctx context.Context) error { return p.ledger.add(ctx, p.redis) })
	case 2: // in this order in every process
		return p.redis.Do(ctx, func(ctx context.Context) error {
			return p.database.Do(ctx, func(ctx context.Context) error { return p.ledger.add(ctx, p.redis, p.database) })
		})
	default:
		return p.database.Do(ctx, func(ctx context.Context) error { return p.ledger.add(ctx, p.database) })
	}
}

// ledger is the guarded resource. A real one has a row for the tokens of each store, see package fence.
type ledger struct {
	inside atomic.Int64
	mu     sync.Mutex
	tokens map[string]int64 // the largest of each store
	lines  map[string]int   // by the stores whose locks were taken
}

// add writes a line, if the token of each lock is larger than all before.
func (l *ledger) add(ctx context.Context, locks ...in) error {
	if l.inside.Add(1) > 1 {
		return errors.New("two processes are in at once")
	}
	defer l.inside.Add(-1)
	under := ""
	for _, lock := range locks {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		if err := l.check(lock.store, token); err != nil {
			return err
		}
		under += " " + lock.store
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[under]++
	return nil
}

func (l *ledger) check(store string, token int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token <= l.tokens[store] {
		return fmt.Errorf("token %d of %s after %d", token, store, l.tokens[store])
	}
	l.tokens[store] = token
	return nil
}

// count returns the number of lines.
func (l *ledger) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lines := range l.lines {
		n += lines
	}
	return n
}

// run has the processes write some lines under each release.
func run(ctx context.Context, out io.Writer, redisURL, databaseURL string, lines int) (err error) {
	stores, end, err := open(ctx, redisURL, databaseURL)
	if err != nil {
		return err
	}
	defer end()
	l := &ledger{tokens: map[string]int64{}, lines: map[string]int{}}
	service, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	var fleet []*process
	for range processes {
		inRedis, inDatabase, closeBoth, err := stores.join()
		if err != nil {
			stop(err)
			return err
		}
		p := &process{redis: in{"Redis", inRedis.NewLock(lockName)}, database: in{"database", inDatabase.NewLock(lockName)}, ledger: l}
		p.release.Store(1)
		fleet = append(fleet, p)
		all.Go(func() {
			defer closeBoth()
			for service.Err() == nil {
				if err := p.write(service); err != nil && service.Err() == nil {
					stop(err)
				}
			}
		})
	}
	for _, release := range []int64{1, 2, 3, 2, 1} {
		for _, p := range fleet { // one after the other, and the others work on
			p.release.Store(release)
			if err := l.grows(service, lines); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "release %d is everywhere, %d lines so far\n", release, l.count())
	}
	stop(errDone)
	all.Wait()
	for _, under := range []string{" Redis", " Redis database", " database"} {
		fmt.Fprintf(out, "%d lines under the locks of%s\n", l.lines[under], under)
	}
	fmt.Fprintln(out, "never two at once, and every token grew")
	return nil
}

var errDone = errors.New("done")

// grows waits for some more lines. A process that has got a release writes at most one line of the
// one before, so each step has lines of both.
func (l *ledger) grows(ctx context.Context, lines int) error {
	for want, end := l.count()+lines, time.Now().Add(time.Minute); l.count() < want; time.Sleep(time.Millisecond) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("nobody writes")
		}
	}
	return nil
}

// stores are the two places of locks.
type stores struct {
	redis          *redis.Options
	driver, source string
	dialect        relocksql.Dialect
}

func open(ctx context.Context, redisURL, databaseURL string) (s *stores, end func(), err error) {
	s = &stores{driver: "pgx", source: databaseURL, dialect: relocksql.Postgres}
	var endRedis func()
	if s.redis, endRedis, err = stage.Redis(redisURL); err != nil {
		return nil, nil, err
	}
	end = endRedis
	if databaseURL == "" {
		dir, err := os.MkdirTemp("", "relock-move-")
		if err != nil {
			endRedis()
			return nil, nil, err
		}
		end = func() { endRedis(); _ = os.RemoveAll(dir) }
		s.driver, s.dialect = "sqlite", relocksql.SQLite
		s.source = "file:" + filepath.Join(dir, "locks.db") + "?_pragma=busy_timeout(50)&_pragma=journal_mode(WAL)"
	}
	db, err := sql.Open(s.driver, s.source)
	if err == nil {
		err = errors.Join(relocksql.Create(ctx, db, s.dialect), db.Close())
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// join connects a process to both.
func (s *stores) join() (inRedis, inDatabase *relock.Client, end func(), err error) {
	rdb := redis.NewClient(s.redis)
	db, err := sql.Open(s.driver, s.source)
	if err != nil {
		return nil, nil, nil, errors.Join(err, rdb.Close())
	}
	tables, err := relocksql.New(db, s.dialect)
	if err == nil {
		inRedis, err = relock.New(rdb)
	}
	if err == nil {
		inDatabase, err = relock.Open(tables)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, db.Close(), rdb.Close())
	}
	return inRedis, inDatabase, func() {
		_ = inDatabase.Close()
		_ = inRedis.Close()
		_ = tables.Close()
		_ = db.Close()
		_ = rdb.Close()
	}, nil
}
