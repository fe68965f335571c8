package relock_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// What is a lock, and does it keep the promises of package locktest over every kind of store?

func TestALockLetsOneInAtATime(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one, two := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		section, err := one.Lock(t.Context())
		require.NoError(t, err)
		waiting := w.Begin(t.Context(), two.Lock)
		require.True(t, waiting.Waits())
		_, err = two.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)

		require.NoError(t, one.Unlock(section))
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
		require.NoError(t, two.Unlock(waiting.Section())) // the waiter has got the lock by the Unlock
		w.RequireFree("a")
	})
}

func TestACallInsideOfASectionEntersAgain(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		outer, err := l.Lock(t.Context())
		require.NoError(t, err)
		inner, err := l.Lock(outer)
		require.NoError(t, err)
		require.Equal(t, 2, l.Count(inner))
		require.NoError(t, l.Unlock(inner))
		require.True(t, l.Held(outer))
		require.NoError(t, l.Unlock(outer))
		w.RequireFree("a")
	})
}

func TestALostLockEndsItsSection(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		w.Store.Lose("a") // as a server does that restarts empty
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
	h := overMemory(func(s *mem.Store) store.Store { return s }, relock.WithLocalPass(0, 0))
	h.Without[locktest.FIFO] = "the calls of one client come before others, for a while"
	h.Without[locktest.Names] = "the store knows the hold that has got the lock from it"
	h.Run(t)
}
