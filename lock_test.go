package relock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// What is a lock, and does it keep the promises of package locktest?

// Read this file first. Locks are kept in memory here, as by a server, and each client stands for a
// process. The tests run in bubbles of testing/synctest: time stands still while anything can run,
// and jumps to the next timer when nothing can. Tests that need faults or exact times have the
// words of internal/test/stage.

// newClient returns a client, as a process of its own has it.
func newClient(t *testing.T, s store.Store, options ...relock.Option) *relock.Client {
	t.Helper()
	c, err := relock.Open(s, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestALockLetsOneInAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New()
		one, two := newClient(t, s).NewLock("a"), newClient(t, s).NewLock("a")
		section, err := one.Lock(t.Context()) // the context of the section that the lock guards
		require.NoError(t, err)

		_, err = two.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		entered := make(chan context.Context)
		go func() {
			section, _ := two.Lock(t.Context()) // waits
			entered <- section
		}()
		synctest.Wait() // until nothing goes on
		state, err := one.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)

		require.NoError(t, one.Unlock(section))
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased, "the section is over")
		section = <-entered // by the Unlock
		require.NoError(t, two.Unlock(section))
		state, err = one.State(t.Context())
		require.NoError(t, err)
		require.False(t, state.Locked())
	})
}

func TestACallInsideOfASectionEntersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newClient(t, mem.New()).NewLock("a")
		outer, err := l.Lock(t.Context())
		require.NoError(t, err)
		inner, err := l.Lock(outer) // the context says who calls
		require.NoError(t, err)
		require.Equal(t, 2, l.Count(inner))

		require.NoError(t, l.Unlock(inner))
		require.True(t, l.Held(outer))
		require.NoError(t, l.Unlock(outer))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrNotHeld)
	})
}

func TestALockLastsAsLongAsItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New()
		mortal, other := newClient(t, s), newClient(t, s).NewLock("a")
		section, err := mortal.NewLock("a").Lock(t.Context())
		require.NoError(t, err)
		<-time.After(time.Hour) // renewals keep the lock
		require.NoError(t, section.Err())
		_, err = other.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)

		require.NoError(t, mortal.Close()) // ends renewals, as a crash does
		begun := time.Now()
		section, err = other.Lock(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(begun), relock.DefaultTTL)
		require.NoError(t, other.Unlock(section))
	})
}

func TestALostLockEndsItsSection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mem.New()
		l := newClient(t, s).NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		s.Lose("a") // as a server does that restarts empty
		<-section.Done()
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

// overMemory is the harness of a store in memory, inside of wrap. All clients have these options.
func overMemory(wrap func(*mem.Store) store.Store, options ...relock.Option) locktest.Harness {
	return locktest.Harness{
		Around: synctest.Test,
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			s := mem.New()
			return locktest.Server{
				NewClient: func(more ...relock.Option) *relock.Client {
					t.Helper()
					c, err := relock.Open(wrap(s), append(options, more...)...)
					require.NoError(t, err)
					return c
				},
				Lose: s.Lose,
			}
		},
		Without: map[locktest.Promise]string{locktest.Acks: "memory has no replicas"},
	}
}

func TestLocksInMemoryKeepThePromises(t *testing.T) {
	overMemory(func(s *mem.Store) store.Store { return s }).Run(t)
}

// raced is a store in memory that wants the waiters of a client behind each other.
type raced struct{ *mem.Store }

func (raced) Races() bool { return true }

func TestLocksOfARacingStoreKeepThePromises(t *testing.T) {
	h := overMemory(func(s *mem.Store) store.Store { return raced{s} })
	h.Without[locktest.FIFO] = "one waiter of each client asks, and the next one asks behind all others"
	h.Run(t)
}

func TestLocksOfClientsThatPassThemOnKeepThePromises(t *testing.T) {
	h := overMemory(func(s *mem.Store) store.Store {
		l := stage.NewLink(s)
		l.Passes = true
		return l
	})
	h.Without[locktest.FIFO] = "this store passes leases on to any wait of the client"
	h.Without[locktest.Names] = "the store knows the hold that has got the lock from it"
	h.Run(t)
}

func TestNoLineIsLeftOfALockThatWasKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, mem.New(), relock.WithKeep(time.Second))
		l := c.NewLock("a")
		for range 3 {
			require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		}
		require.Equal(t, 2, c.Lines(), "the line, and its head")
		<-time.After(time.Second)
		synctest.Wait()
		require.Zero(t, c.Lines())
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { <-time.After(time.Minute); return nil }))
		require.Zero(t, c.Lines(), "the time was over")
	})
}
