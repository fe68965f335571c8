package relocksql_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	relocksql "github.com/go-relock/relock/sql"
	"github.com/go-relock/relock/sql/pglisten"
	"github.com/go-relock/relock/store"
)

// locking locks, and returns a function that unlocks.
type locking func(ctx context.Context) (unlock func() error, err error)

// subject is a way to lock that is measured.
type subject struct {
	name string
	lock locking
}

// subjects are two stores that take turns, and the session locks of its database.
func subjects(b *testing.B) (all []subject) {
	b.Helper()
	for name, newDatabase := range map[string]func(testing.TB) *database{
		"PostgreSQL": func(t testing.TB) *database { t.Helper(); return postgres(t, true) },
		"MariaDB":    mariadb,
		"SQLite":     sqlite,
	} {
		d := newDatabase(b)
		db := d.open(b, d.source)
		db.SetMaxOpenConns(90)
		db.SetMaxIdleConns(90)
		stores := [2]*relocksql.Store{newStore(b, d, db), newStore(b, d, db)}
		var calls atomic.Int64
		all = append(all, subject{name + "/relock", func(ctx context.Context) (func() error, error) {
			s := stores[calls.Add(1)%2]
			l, err := s.Wait(ctx, ask(time.Minute), func(store.Progress) {})
			return func() error { return s.Release(ctx, l, 0) }, err
		}})
		switch name {
		case "PostgreSQL":
			all = append(all, subject{name + "/pg_advisory_lock", session(db, "SELECT pg_advisory_lock(42)", "SELECT pg_advisory_unlock(42)")})
		case "MariaDB":
			all = append(all, subject{name + "/GET_LOCK", session(db, "SELECT GET_LOCK('orders', 600)", "SELECT RELEASE_LOCK('orders')")})
		}
	}
	return all
}

func newStore(b testing.TB, d *database, db *sql.DB) *relocksql.Store {
	b.Helper()
	var options []relocksql.Option
	if d.listens {
		options = append(options, relocksql.WithListener(pglisten.New(d.source)))
	}
	s, err := relocksql.New(db, d.dialect, options...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

// session locks in a session of its own.
func session(db *sql.DB, lock, unlock string) locking {
	return func(ctx context.Context) (func() error, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, err
		}
		_, err = conn.ExecContext(ctx, lock)
		return func() error {
			_, err := conn.ExecContext(ctx, unlock)
			_ = conn.Close()
			return err
		}, err
	}
}

// BenchmarkPair locks and unlocks a free lock.
func BenchmarkPair(b *testing.B) {
	for _, s := range subjects(b) {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				unlock, err := s.lock(b.Context())
				require.NoError(b, err)
				require.NoError(b, unlock())
			}
		})
	}
}

// BenchmarkHandOver passes a lock on in a ring of goroutines that wait all the time.
func BenchmarkHandOver(b *testing.B) {
	for _, s := range subjects(b) {
		for _, waiting := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", s.name, waiting), func(b *testing.B) {
				var group sync.WaitGroup
				turns := make(chan struct{}, b.N)
				for range b.N {
					turns <- struct{}{}
				}
				close(turns)
				b.ResetTimer()
				for range waiting + 1 {
					group.Go(func() {
						for range turns {
							unlock, err := s.lock(b.Context())
							if err == nil {
								err = unlock()
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
			})
		}
	}
}
