package relocksql_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// pool returns a store over a pool of so many connections. 0: the pool has no limit.
func (d *database) pool(t testing.TB, connections int, options ...relocksql.Option) *relocksql.Store {
	t.Helper()
	db := d.open(t, d.through)
	db.SetMaxOpenConns(connections)
	s, err := relocksql.New(db, d.dialect, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// holdUp locks the row of a name until release.
func (d *rig) holdUp(s *relocksql.Store, name string) (release func()) {
	d.Helper()
	tx, err := d.db.BeginTx(d.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.NoError(d, err)
	require.NoError(d, s.LockTx(d.Context(), tx, name))
	return func() { require.NoError(d, tx.Rollback()) }
}

// 200 calls wait for a name whose row is locked. A section of another lock goes on, and a third lock
// is taken and freed.
func TestCallersOfAHeldUpNameCostNoOtherLock(t *testing.T) {
	const ttl, callers = 3 * time.Second, 200
	for _, connections := range []int{1, 2, 10, 0} {
		t.Run(fmt.Sprint(connections, " connections"), func(t *testing.T) {
			servers(t, func(d *rig) {
				s := d.pool(d.T, connections)
				defer d.holdUp(s, "orders")()
				c, err := relock.Open(s, relock.WithTTL(ttl))
				require.NoError(d, err)
				defer c.Close()
				other := c.NewLock("other")
				section, err := other.Lock(d.Context())
				require.NoError(d, err)
				ctx, cancel := context.WithTimeout(d.Context(), 3*ttl)
				defer cancel()
				var group sync.WaitGroup
				for range callers {
					group.Go(func() {
						if _, err := c.NewLock("orders").Lock(ctx); err == nil {
							d.Error("a call gets the lock of the transaction")
						}
					})
				}
				pairs := 0
				for ctx.Err() == nil {
					if c.NewLock("third").Do(ctx, func(context.Context) error { return nil }) == nil {
						pairs++
					}
				}
				group.Wait()
				require.NoError(d, context.Cause(section))
				require.NoError(d, other.Unlock(section))
				require.Positive(d, pairs)
			})
		})
	}
}

// The row of one name is locked, and its holds are released and forgotten.
func TestReleasesOfAHeldUpNameCostNoOtherRelease(t *testing.T) {
	servers(t, func(d *rig) {
		s := d.pool(d.T, 4)
		other, third := holds.Take(d, s, named("other")), holds.Take(d, s, named("third"))
		var held []store.Lease
		var unwanted []store.Claim
		for range 20 {
			a := claim(time.Minute)
			a.Kind, a.Limit = store.ReadWrite, store.Unlimited
			held, unwanted = append(held, holds.Take(d, s, a)), append(unwanted, a)
		}
		tx, err := d.db.BeginTx(d.Context(), nil)
		require.NoError(d, err)
		var kind int
		require.NoError(d, tx.QueryRowContext(d.Context(),
			"SELECT kind FROM relock_locks WHERE name = 'orders' FOR UPDATE").Scan(&kind))
		ctx, cancel := context.WithCancel(d.Context())
		var group sync.WaitGroup
		defer func() {
			cancel()
			group.Wait()
			require.NoError(d, tx.Rollback())
		}()
		for _, l := range held {
			group.Go(func() { _ = s.Release(ctx, l) })
		}
		group.Go(func() { s.Forget(ctx, append(unwanted, third.Claim)) })
		<-time.After(200 * time.Millisecond)
		begun := time.Now()
		require.NoError(d, s.Release(d.Context(), other))
		require.Eventually(d, func() bool {
			return d.count(d, "SELECT count(*) FROM relock_holds WHERE name = 'third'") == 0
		}, longestAttempt, time.Millisecond)
		require.Less(d, time.Since(begun), longestAttempt)
	})
}

// New callers of a name have all turns of claims, for as long as two waiters are granted the lock.
func TestTheFirstWaitersDoNotAskBehindNewCallers(t *testing.T) {
	onEach(t, func(d *rig) {
		s := d.store(d.T)
		owner := holds.Take(d, d.past(d), claim(2*time.Second)) // which nobody renews
		first, second := holds.Wait(d, s, claim(time.Minute)), holds.Wait(d, s, claim(time.Minute))
		leave, err := s.FillAsks(d.Context(), owner.Name)
		require.NoError(d, err)
		defer leave()
		l := first.Get(d)
		<-time.After(100 * time.Millisecond) // the second one asks, too, at the end of the lease
		require.NoError(d, s.Release(d.Context(), l))
		require.NoError(d, s.Release(d.Context(), second.Get(d)))
	})
}

// An attempt that gives up leaves its wait for the row to MariaDB, with a connection.
func TestAWaitForARowInMariaDBEndsWithItsAttempt(t *testing.T) {
	d := &rig{t, mariadb(t)}
	s := d.pool(t, 4)
	var claims, others atomic.Int64
	d.proxy.Watch(func(up bool, data []byte) bool {
		switch {
		case !up || !bytes.Contains(data, []byte("FOR UPDATE")):
		case bytes.Contains(data, []byte("WAIT 1 ")):
			claims.Add(1)
		default:
			others.Add(1)
		}
		return false
	})
	const ttl = 1500 * time.Millisecond // its attempts last for half a second
	_, err := s.Try(t.Context(), claim(ttl))
	require.NoError(t, err)
	d.proxy.Watch(nil)
	require.Positive(t, claims.Load())
	require.Zero(t, others.Load())
}

// longestAttempt is the time for which a command of a hold with a TTL of a minute keeps its connection.
const longestAttempt = 10 * time.Second

func named(name string) store.Claim {
	a := claim(time.Minute)
	a.Name = name
	return a
}

// The waiters of a store keep their places for longer than the lease of a place, with few packets.
func TestOneWaiterKeepsThePlacesOfAllWaitersOfItsName(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s, other := d.store(t), d.past(t)
		l := holds.Take(t, other, claim(time.Minute))
		var line []*holds.Waiter
		for range 40 {
			line = append(line, holds.Wait(t, s, claim(time.Minute)))
		}
		var packets atomic.Int64
		if d.listens {
			d.proxy.Watch(func(up bool, _ []byte) bool {
				if up {
					packets.Add(1)
				}
				return false
			})
		}
		<-time.After(18 * time.Second)
		if d.listens {
			t.Logf("%d packets in 18 s", packets.Load())
			require.Less(t, packets.Load(), int64(400), "each waiter asks for itself") // 5 waiters, 7 times, 8 statements
		}
		require.Equal(t, len(line), d.count(t, "SELECT count(*) FROM relock_holds WHERE state = 0"))
		const beats = "SELECT max(changes) FROM relock_holds WHERE state = 0"
		before := d.count(t, beats)
		require.Eventually(t, func() bool { return d.count(t, beats) > before }, 10*time.Second, time.Millisecond,
			"a beat is over, and does not meet the first grant")
		told := 0
		for _, w := range line {
			sent := packets.Load()
			require.NoError(t, other.Release(t.Context(), l))
			l = w.Get(t)
			if l.Woken == store.WakeGrant {
				told++
			} else if d.listens { // a waiter has asked by itself meanwhile
				require.Greater(t, packets.Load(), sent)
			}
		}
		require.Greater(t, told, len(line)/2)
		require.NoError(t, other.Release(t.Context(), l))
	})
}

func TestWaitersWhosePlacesAreLostQueueAgain(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s := d.store(t)
		l := holds.Take(t, s, claim(time.Minute))
		var line []*holds.Waiter
		for range 12 {
			line = append(line, holds.Wait(t, s, claim(time.Minute)))
		}
		require.Eventually(t, func() bool {
			_, err := d.db.ExecContext(t.Context(), "DELETE FROM relock_holds WHERE state = 0")
			return err == nil
		}, 10*time.Second, time.Millisecond)
		require.Eventually(t, func() bool {
			return d.count(t, "SELECT count(*) FROM relock_holds WHERE state = 0") == len(line)
		}, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, s.Release(t.Context(), l))
		var group sync.WaitGroup
		for _, w := range line { // in any order
			group.Go(func() {
				<-w.Done
				if err := errors.Join(w.Err, s.Release(t.Context(), w.Lease)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	})
}

// The Listener hears nothing. The waiters behind the first ones, which ask by themselves, hear of
// their grants from the transactions of the others.
func TestAWaiterHearsOfALostGrantFromTheNextAsk(t *testing.T) {
	t.Parallel()
	d := postgres(t, false)
	s, other := d.store(t, relocksql.WithListener(deaf{})), d.past(t)
	l := holds.Take(t, other, claim(time.Minute))
	var line []*holds.Waiter
	for range 7 {
		line = append(line, holds.Wait(t, s, claim(time.Minute)))
	}
	for _, w := range line {
		require.NoError(t, other.Release(t.Context(), l))
		l = w.GetWithin(t, 10*time.Second)
	}
	require.NoError(t, other.Release(t.Context(), l))
}

// mute is a Listener that never connects, and so lets no waiter ask again.
type mute struct{}

func (mute) Listen(ctx context.Context, _ string, _ func(), _ func(string)) error {
	<-ctx.Done()
	return ctx.Err()
}

// The transaction that sees the grant takes the hold out.
func TestAGrantThatIsTakenBackIsNotBelieved(t *testing.T) {
	t.Parallel()
	d := postgres(t, false)
	s, other := d.store(t, relocksql.WithListener(mute{})), d.past(t)
	l := holds.Take(t, other, claim(time.Minute))
	a := claim(time.Minute)
	w := holds.Wait(t, s, a)
	require.NoError(t, other.Release(t.Context(), l))
	require.NoError(t, s.Break(t.Context(), a))
	l = w.GetWithin(t, 10*time.Second)
	state, err := other.Look(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, l.ID, state.Owner)
	require.NoError(t, s.Release(t.Context(), l))
}

// The packets to the server are the statements, as each statement is one packet.
func TestCommandsSendFewStatements(t *testing.T) {
	want := map[string]map[string]int64{
		"PostgreSQL": {"pair": 10, "queue": 7, "hand-over": 6, "renewal": 1},
		"MariaDB":    {"pair": 12, "queue": 8, "hand-over": 7, "renewal": 1},
	}
	servers(t, func(d *rig) {
		t := d.T
		if d.dialect == relocksql.Postgres {
			d.through += "&default_query_exec_mode=exec"
		}
		s := d.pool(t, 10, relocksql.WithPoll(5*time.Second, 5*time.Second)) // polls would be counted
		require.NoError(t, s.Release(t.Context(), holds.Take(t, s, claim(time.Minute))))
		count := func(do func()) int64 {
			var packets atomic.Int64
			d.proxy.Watch(func(up bool, _ []byte) bool {
				if up {
					packets.Add(1)
				}
				return false
			})
			do()
			d.proxy.Watch(nil)
			return packets.Load()
		}
		got := map[string]int64{}
		var l store.Lease
		got["pair"] = count(func() {
			l = holds.Take(t, s, claim(time.Minute))
			require.NoError(t, s.Release(t.Context(), l))
		})
		l = holds.Take(t, s, claim(time.Minute))
		got["renewal"] = count(func() {
			require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: time.Minute, Count: 1}})[0])
		})
		var w *holds.Waiter
		got["queue"] = count(func() { w = holds.Wait(t, s, claim(time.Minute)) })
		got["hand-over"] = count(func() {
			require.NoError(t, s.Release(t.Context(), l))
			l = w.Get(t)
		})
		require.NoError(t, s.Release(t.Context(), l))
		require.Equal(t, want[d.kind], got)
	})
}

// PostgreSQL has no statistics of a table whose rows come and go.
func TestACommandReadsOneRowOfManyOfItsName(t *testing.T) {
	t.Parallel()
	d := postgres(t, false)
	s := d.past(t)
	_, err := d.db.ExecContext(t.Context(), `INSERT INTO relock_holds (name, id, state, arrival, quota, around, kept_until, keep,
		entries, changes, inbox) SELECT 'line'::bytea, n::text::bytea, 0, n, 1, ''::bytea, 1e17, 1, 1, 0, '' FROM generate_series(1, 500) AS n
		UNION ALL SELECT 'in'::bytea, n::text::bytea, 2, n, 1, ''::bytea, 1e17, 1, 1, 0, '' FROM generate_series(1, 500) AS n`)
	require.NoError(t, err)
	for _, name := range []string{"line", "in"} {
		for statement, args := range s.OneRow(name, "2") {
			rows, err := d.db.QueryContext(t.Context(), "EXPLAIN (ANALYZE) "+statement, args...)
			require.NoError(t, err)
			plan := ""
			for rows.Next() {
				var line string
				require.NoError(t, rows.Scan(&line))
				plan += line + "\n"
			}
			require.NoError(t, errors.Join(rows.Err(), rows.Close()))
			require.NotRegexp(t, `Rows Removed by Filter: \d{2}`, plan)
		}
	}
}
