package relocksql_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// servers runs a test on the databases with a server.
func servers(t *testing.T, test func(d *rig)) {
	t.Helper()
	onEach(t, func(d *rig) {
		t := d.T
		if d.proxy == nil {
			t.Log("NOT TESTED: SQLite has no connection to cut")
			return
		}
		test(d)
	})
}

// cutFrom makes the proxy lose the n-th packet of the server, and all packets behind it. lost says
// whether a packet was lost.
func (d *database) cutFrom(n int) (lost func() bool) {
	var packets atomic.Int64
	d.proxy.Watch(func(request bool, _ []byte) bool { return !request && packets.Add(1) > int64(n) })
	return func() bool { return packets.Load() > int64(n) }
}

// A wait that has joined the queue without an answer, and was granted the lock, does not say that the
// lock was free: others may wait behind it.
func TestAWaitThatHasJoinedWithoutAnAnswerFoundNoFreeLock(t *testing.T) {
	servers(t, func(d *rig) {
		t := d.T
		s, past := d.store(t), d.past(t)
		joined := 0
		for n, done := 0, false; !done; n++ {
			a := claim(time.Minute)
			owner := holds.Take(t, past, a)
			a.ID = claim(time.Minute).ID
			lost := d.cutFrom(n)
			got := make(chan store.Lease, 1)
			go func() {
				l, _ := s.Wait(t.Context(), a, func(store.Progress) {})
				got <- l
			}()
			var state store.State
			require.Eventually(t, func() bool {
				var err error
				state, err = past.Look(t.Context(), a)
				return err == nil && (state.Waiters > 0 || lost())
			}, time.Minute, time.Millisecond)
			done = !lost()
			require.NoError(t, past.Release(t.Context(), owner))
			d.proxy.Watch(nil)
			d.proxy.Cut()
			l := <-got
			require.Equal(t, a.ID, l.ID)
			if state.Waiters > 0 {
				joined++
				require.NotEqual(t, store.WakeNone, l.Woken, "behind %d packets", n)
			}
			require.NoError(t, past.Release(t.Context(), l))
		}
		require.Positive(t, joined)
	})
}

// Each command loses its connection behind each packet of the server, for ever. A command whose
// error is not unsure must not have run.
func TestACommandThatLosesItsConnectionAnywhereSaysSo(t *testing.T) {
	servers(t, func(d *rig) {
		t := d.T
		s, past := d.store(t), d.past(t)
		for name, call := range map[string]func(ctx context.Context, l store.Lease, a store.Claim) error{
			"Try": func(ctx context.Context, _ store.Lease, a store.Claim) error { _, err := s.Try(ctx, a); return err },
			"Enter": func(ctx context.Context, l store.Lease, _ store.Claim) error {
				_, err := s.Enter(ctx, l, 2)
				return err
			},
			"Release": func(ctx context.Context, l store.Lease, _ store.Claim) error { return s.Release(ctx, l) },
			"Renew": func(ctx context.Context, l store.Lease, _ store.Claim) error {
				return s.Renew(ctx, []store.Renewal{{Lease: l, TTL: time.Minute, Count: 2}})[0]
			},
			"Forget": func(ctx context.Context, l store.Lease, _ store.Claim) error {
				return s.Forget(ctx, []store.Claim{l.Claim})[0]
			},
		} {
			for n := 0; ; n++ {
				a, l := claim(time.Minute), store.Lease{}
				if name != "Try" {
					l = holds.Take(t, past, claim(time.Minute))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				lost := d.cutFrom(n)
				err := call(ctx, l, a)
				cancel()
				d.proxy.Watch(nil)
				d.proxy.Cut()
				state, lookErr := past.Look(t.Context(), a)
				require.NoError(t, lookErr)
				switch {
				case err == nil || errors.Is(err, store.ErrUnsure):
				case errors.Is(err, store.ErrGone):
					t.Fatalf("%s behind %d packets loses its own effect: %v", name, n, err)
				default:
					require.Equal(t, l.ID, state.Owner, "%s behind %d packets has run: %v", name, n, err)
				}
				require.NoError(t, errors.Join(past.Forget(t.Context(), []store.Claim{a, l.Claim})...))
				if err == nil && !lost() {
					require.Positive(t, n)
					break
				}
			}
		}
	})
}

// past returns a store past the proxy.
func (d *database) past(t testing.TB) *relocksql.Store {
	t.Helper()
	s, err := relocksql.New(d.db, d.dialect)
	require.NoError(t, err)
	return s
}

// loseCommit makes the proxy lose the next reply to a COMMIT, and send last in its place.
func (d *database) loseCommit(t testing.TB, last []byte) {
	t.Helper()
	var seen, done atomic.Bool
	d.proxy.Farewell(last)
	d.proxy.Watch(func(request bool, data []byte) bool {
		if request && bytes.Contains(data, []byte("COMMIT")) && !bytes.Contains(data, []byte("READ COMMITTED")) {
			seen.Store(true)
		}
		return !request && seen.Load() && done.CompareAndSwap(false, true)
	})
	t.Cleanup(func() { require.True(t, done.Load(), "no reply was lost") })
}

// shutdowns are the last words of servers that end a session.
var shutdowns = map[string][]byte{
	"PostgreSQL": []byte("E\x00\x00\x00\x29SFATAL\x00VFATAL\x00C57P01\x00Mshutting down\x00\x00"),
	"MariaDB":    []byte("\x16\x00\x00\x01\xff\x1d\x04#08S01shutting down"),
}

// A reply is lost once, and the command finds its own effect when it tries again. A server that ends
// a session may say so in the place of the reply.
func TestACommandAfterALostReplyHasTheEffectOfOne(t *testing.T) {
	servers(t, func(d *rig) {
		t := d.T
		s, past := d.store(t), d.past(t)
		for _, last := range [][]byte{nil, shutdowns[d.kind]} {
			d.loseCommit(t, last)
			l := holds.Take(t, s, claim(time.Minute))
			state, err := past.Look(t.Context(), l.Claim)
			require.NoError(t, err)
			require.Equal(t, l.ID, state.Owner)
			require.Equal(t, 1, state.Count)
			d.loseCommit(t, last)
			err = s.Release(t.Context(), l)
			require.ErrorIs(t, err, store.ErrGone)
			require.ErrorIs(t, err, store.ErrUnsure)
			d.proxy.Watch(nil)
			require.Zero(t, d.alive(t))
		}
	})
}

// The row of a name is made by another client, and deleted by a cleanup, while a call makes the row.
func TestAHoldHasTheRowOfItsName(t *testing.T) {
	d := postgres(t, false)
	d.through += "&default_query_exec_mode=exec" // each packet has the text of its statement
	s := d.store(t)
	var made, deleted atomic.Bool
	d.proxy.Watch(func(up bool, data []byte) bool {
		switch {
		case up && bytes.Contains(data, []byte("INSERT INTO relock_locks")) && made.CompareAndSwap(false, true):
			_, err := d.db.ExecContext(t.Context(), "INSERT INTO relock_locks VALUES ('orders', 0, 0, 0, 0)")
			return err != nil
		case up && made.Load() && bytes.Contains(data, []byte("FROM relock_locks")) && deleted.CompareAndSwap(false, true):
			_, err := d.db.ExecContext(t.Context(), "DELETE FROM relock_locks")
			return err != nil
		}
		return false
	})
	l := holds.Take(t, s, claim(time.Minute))
	require.True(t, deleted.Load())
	require.Equal(t, 1, d.count(t, "SELECT count(*) FROM relock_locks"), "two holds can enter without the row")
	require.NoError(t, s.Release(t.Context(), l))
}

func TestAWaiterOutlivesItsConnections(t *testing.T) {
	servers(t, func(d *rig) {
		t := d.T
		s, past := d.store(t), d.past(t)
		l := holds.Take(t, past, claim(time.Minute))
		w := holds.Wait(t, s, claim(time.Minute))
		if d.listens {
			require.Eventually(t, func() bool {
				return d.count(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()") > 0
			}, 10*time.Second, 10*time.Millisecond)
		}
		d.proxy.Cut()
		require.NoError(t, past.Release(t.Context(), l))
		l = w.GetWithin(t, 10*time.Second)
		require.NoError(t, s.Release(t.Context(), l))
	})
}

// The network is silent while the lock is handed over, so the notification is lost.
func TestAWaiterFindsItsGrantAfterASilence(t *testing.T) {
	servers(t, func(d *rig) {
		t := d.T
		s, past := d.store(t), d.past(t)
		l := holds.Take(t, past, claim(time.Minute))
		w := holds.Wait(t, s, claim(time.Minute))
		d.proxy.Stall()
		require.NoError(t, past.Release(t.Context(), l))
		<-time.After(300 * time.Millisecond)
		d.proxy.Cut()
		d.proxy.Resume()
		l = w.GetWithin(t, 10*time.Second)
		require.NoError(t, s.Release(t.Context(), l))
	})
}

// A process stops inside a transaction. PostgreSQL ends the transaction, so the lock serves the
// others.
func TestAStoppedTransactionDoesNotHoldUpTheLock(t *testing.T) {
	t.Parallel()
	d := postgres(t, false)
	s, past := d.store(t), d.past(t)
	l := holds.Take(t, past, claim(time.Minute))
	var stopped atomic.Bool
	d.proxy.Watch(func(up bool, data []byte) bool {
		if up && bytes.Contains(data, []byte("relock_holds")) && stopped.CompareAndSwap(false, true) {
			d.proxy.Stall() // the row of the name is locked
		}
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _, _ = s.Try(ctx, claim(time.Minute)) }()
	require.Eventually(t, stopped.Load, 30*time.Second, time.Millisecond)
	d.proxy.Stall()
	begun := time.Now()
	require.NoError(t, past.Release(t.Context(), l))
	require.Less(t, time.Since(begun), bound.Of(15*time.Second))
	cancel()
	<-done
}

// A hand-over sends as many packets to the server with 64 waiters as with one.
func TestAHandOverCostsTheSameForAnyNumberOfWaiters(t *testing.T) {
	d := postgres(t, true)
	s := d.store(t)
	packets := func(waiters int) int64 {
		l := holds.Take(t, s, claim(time.Minute))
		var line []*holds.Waiter
		for range waiters + 10 {
			line = append(line, holds.Wait(t, s, claim(time.Minute)))
		}
		fewest := int64(1000) // a waiter may renew its place in between
		for _, w := range line[:10] {
			var up atomic.Int64
			d.proxy.Watch(func(to bool, _ []byte) bool {
				if to {
					up.Add(1)
				}
				return false
			})
			require.NoError(t, s.Release(t.Context(), l))
			l = w.Get(t)
			fewest = min(fewest, up.Load())
		}
		d.proxy.Watch(nil)
		for _, w := range line[10:] {
			require.NoError(t, s.Release(t.Context(), l))
			l = w.Get(t)
		}
		require.NoError(t, s.Release(t.Context(), l))
		return fewest
	}
	packets(1) // prepares the statements
	one, many := packets(1), packets(64)
	t.Logf("packets of a hand-over: %d with one waiter, %d with 64", one, many)
	require.LessOrEqual(t, many, one+1)
}
