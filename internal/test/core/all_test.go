package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// Are several locks entered and left together, or not at all?

// foreign is a Locker of another package.
type foreign struct{ relock.Locker }

func TestLocksThatCannotBeTakenTogetherAreRefused(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, other := w.NewClient(), w.NewClient()
		a := m.NewLock("a")
		for text, l := range map[string]*relock.Locks{
			"no lock is given":                 relock.All(),
			"no lock is given; give one":       m.NewLocks(nil),
			"a lock is nil; each must be":      relock.All(a, nil),
			"a lock is nil":                    relock.All((*relock.Lock)(nil), a),
			"is a core_test.foreign; each":     relock.All(a, foreign{a}),
			"not made by Client.NewLock":       relock.All(a, new(relock.Lock)),
			"not made by Client.NewLock ":      relock.All(a, new(relock.RWLock)),
			"the lock name is empty":           m.NewLocks([]string{"a", ""}),
			"two clients have a lock \"a\"":    relock.All(a, other.NewLock("a")),
			"\"a\" is a mutex and a semaphore": relock.All(a, m.NewSemaphore("a", 2)),
			"this Locks was not made by All":   new(relock.Locks),
			"was not made by All":              nil,
			"made by All or Client.NewLocks":   relock.All(a, new(relock.Locks)),
		} {
			_, lock := l.Lock(t.Context())
			_, try := l.TryLock(t.Context())
			_, tryFor := l.TryLockFor(t.Context(), time.Second)
			_, tokens := l.Tokens(t.Context())
			for _, err := range []error{l.Err(), lock, try, tryFor, tokens, l.Unlock(t.Context())} {
				require.ErrorIs(t, err, relock.ErrInvalid)
				if text != "not made by Client.NewLock " && text != "the lock name is empty" {
					require.ErrorContains(t, err, text)
				}
			}
			require.Empty(t, l.Names())
		}
		require.NoError(t, relock.All(a, other.NewLock("b")).Err())
		ab := m.NewLocks([]string{"a", "b"})
		_, err := ab.TryLockFor(t.Context(), -1)
		require.ErrorContains(t, err, "the wait must be 0")
		_, err = ab.Lock(nil) //lint:ignore SA1012 a nil context is refused
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.ErrorIs(t, ab.Unlock(nil), relock.ErrInvalid) //lint:ignore SA1012 a nil context is refused
		require.Zero(t, m.Link.Sent())
	})
}

func TestFreeMutexesAreTakenAndFreedInOneStep(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"c", "a", "b"})
		section := w.EnterAll(t.Context(), l)
		require.Equal(t, 1, m.Link.Sent())
		require.Equal(t, 1, m.Link.Sent(stage.CmdTryAll))
		holder := stage.HolderOf(t, section)
		for _, name := range l.Names() {
			require.True(t, m.NewLock(name).Held(section))
			w.RequireOwner(name, section)
		}
		require.NoError(t, l.Unlock(section))
		require.Equal(t, 2, m.Link.Sent())
		require.Equal(t, 1, m.Link.Sent(stage.CmdReleaseAll))
		w.RequireFree("a", "b", "c")
		var names []string
		for _, e := range stage.EventsOf[event.AcquireFinished](&r) {
			require.Equal(t, event.OutcomeAcquired, e.Outcome)
			require.Equal(t, holder, e.Holder)
			names = append(names, e.Name)
		}
		require.Equal(t, []string{"a", "b", "c"}, names)
		require.Len(t, stage.EventsOf[event.AcquireStarted](&r), 3)
		require.Len(t, stage.EventsOf[event.Released](&r), 3)
	})
}

func TestLocksWaitInOneQueueAfterTheOther(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient()
		a, b, rw := other.NewLock("a"), other.NewLock("b"), other.NewRWLock("rw")
		inA, inRW := w.Enter(t.Context(), a), w.Enter(t.Context(), rw.RLocker())
		m := w.NewClient()
		l := relock.All(m.NewRWLock("rw"), m.NewLock("b"), m.NewLock("a"))
		waiting := w.Begin(t.Context(), l.Lock)
		require.Equal(t, 1, w.Waiters("a"))
		require.True(t, w.Free("b"), "b comes after a")

		stage.Pass(time.Second)
		w.Leave(inA, a)
		require.True(t, waiting.Waits())
		state, err := rw.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		_, err = b.TryLock(t.Context())
		stage.RequireRefusedBy(t, "b", err)

		stage.Pass(relock.DefaultTTL) // the locks that it has are renewed
		w.Leave(inRW, rw.RLocker())
		section := waiting.Section()
		w.RequireOwner("a", section)
		require.NoError(t, l.Unlock(section))
		w.RequireFree("a", "b", "rw")
	})
}

func TestAContextOfASectionOfLocksIsInsideOfThem(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		section := w.EnterAll(t.Context(), l)
		require.ErrorIs(t, l.Unlock(relock.WithoutHolder(section)), relock.ErrNotHeld)
		_, err := l.TryLock(relock.WithoutHolder(section))
		require.ErrorIs(t, err, relock.ErrLocked)
		child := relock.WithSection(t.Context(), section)
		inner, err := l.TryLock(child)
		require.NoError(t, err)
		require.NoError(t, l.Unlock(inner))
		tokens, err := l.Tokens(child)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"a": 1, "b": 1}, tokens)
		require.NoError(t, l.Unlock(child))
		tokens, err = l.Tokens(section)
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.Nil(t, tokens)
	})
}

func TestAWaitForTheSecondLockThatEndsGivesTheFirstOneBack(t *testing.T) {
	for _, silent := range []bool{false, true} {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			b := w.NewClient().NewLock("b")
			section := w.Enter(t.Context(), b)
			m := w.NewClient()
			ctx, cancel := context.WithCancel(t.Context())
			waiting := w.Begin(ctx, m.NewLocks([]string{"a", "b", "c"}).Lock)
			require.Equal(t, 1, w.Waiters("b"))
			if silent {
				m.Link.Cut()
			}
			stage.Pass(time.Second)
			begun := time.Now()
			cancel()
			ended, err := waiting.Result()
			require.ErrorIs(t, context.Cause(ended), err, "the context has ended")
			require.ErrorIs(t, err, context.Canceled)
			stage.RequireRefusedBy(t, "b", err)
			require.LessOrEqual(t, time.Since(begun), 50*time.Millisecond)
			if silent {
				stage.Pass(time.Second)
				m.Link.Heal()
				stage.Pass(5 * time.Second)
			}
			w.RequireFree("a", "c")
			w.Leave(section, b)
			w.RequireFree("b")
		})
	}
}

func TestALostReplyToTheOneStepLeavesNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.Link.Once(stage.LoseAnswer(relock.ErrUnavailable), stage.CmdTryAll)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnavailable)
		stage.Pass(5 * time.Second)
		w.RequireFree("a", "b")

		m.Link.Once(stage.LoseAnswer(relock.ErrUnavailable), stage.CmdTryAll)
		section := w.EnterAll(t.Context(), l)
		m.Link.Once(stage.LoseAnswer(relock.ErrUnavailable), stage.CmdReleaseAll)
		require.ErrorIs(t, l.Unlock(section), relock.ErrUnavailable)
		stage.Pass(5 * time.Second)
		w.RequireFree("a", "b")

		m.Link.Once(stage.SendTwice, stage.CmdTryAll)
		section = w.EnterAll(t.Context(), l)
		w.RequireCount("a", 1)
		require.NoError(t, l.Unlock(section))
	})
}

// The store has let the call in to all locks, and the first of them is not entered.
func TestLocksOfWhichTheFirstIsNotEnteredAreAllGivenBack(t *testing.T) {
	for name, fault := range map[string]func(m *stage.Member, cancel func()){
		"the context has ended": func(m *stage.Member, cancel func()) {
			m.Link.Once(func(_ context.Context, _ *stage.Fault, run func() error) error {
				defer cancel()
				return run()
			}, stage.CmdTryAll)
		},
		"its lease is not made whole": func(m *stage.Member, _ func()) {
			m.Link.Once(stage.Delay(0, relock.DefaultTTL*2/3), stage.CmdTryAll)
			m.Link.Once(stage.Refuse(stage.ErrBroken), stage.CmdEnter)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				fault(m, cancel)
				_, err := m.NewLocks([]string{"a", "b", "c"}).Lock(ctx)
				require.Error(t, err)
				stage.Pass(time.Second)
				w.RequireFree("a", "b", "c")
			})
		})
	}
}

func TestALateReplyToTheOneStepIsALeaseThatIsRenewed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.Link.Once(stage.Delay(0, relock.DefaultTTL*3/4), stage.CmdTryAll)
		section := w.EnterAll(t.Context(), l)
		require.Greater(t, m.NewLock("b").Remaining(section), relock.DefaultTTL*9/10)
		require.NoError(t, l.Unlock(section))

		m.Link.Once(stage.Delay(0, 2*relock.DefaultTTL), stage.CmdTryAll) // the holds are gone
		section = w.EnterAll(t.Context(), l)
		require.NoError(t, l.Unlock(section))
		stage.Pass(5 * time.Second)
		w.RequireFree("a", "b")
	})
}

func TestLocksOfAnotherKindAreNamed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient().NewRWLock("b")
		section := w.Enter(t.Context(), other.RLocker())
		_, err := w.NewClient().NewLocks([]string{"a", "b"}).TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrKind)
		var failed *relock.OpError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "b", failed.Name)
		w.RequireFree("a")
		w.Leave(section, other.RLocker())
	})
}

// dropAll locks, and drops the section without Unlock.
//
//go:noinline
func dropAll(t *testing.T, l *relock.Locks) {
	t.Helper()
	_, err := l.Lock(context.Background())
	require.NoError(t, err)
}

func TestALeakOfASectionOfLocksIsALeakOfEachLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"a", "b", "c"})
		dropAll(t, l)
		stage.AwaitLeaks(t, 3, stage.LeaksOf(&r))
		var leaked []string // perhaps in several renewals: the garbage collector calls one cleanup after another
		for _, e := range stage.EventsOf[event.Leaked](&r) {
			leaked = append(leaked, e.Name)
		}
		require.ElementsMatch(t, l.Names(), leaked)
		next := w.NewClient().NewLocks(l.Names())
		require.NoError(t, next.Unlock(w.EnterAll(t.Context(), next)))
	})
}

func TestACrashBetweenTwoLocksCostsALease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := w.NewClient().NewLock("b")
		section := w.Enter(t.Context(), b)
		crashed := w.NewClient()
		waiting := w.Begin(t.Context(), crashed.NewLocks([]string{"a", "b"}).Lock)
		require.Equal(t, 1, w.Waiters("b"))
		crashed.Link.Cut() // and nothing of it arrives any more
		w.Leave(section, b)
		begun := time.Now()
		l := w.NewClient().NewLocks([]string{"a", "b"})
		next := w.Begin(t.Context(), l.Lock).Section()
		require.LessOrEqual(t, time.Since(begun), relock.DefaultTTL)
		require.NoError(t, l.Unlock(next))
		crashed.Link.Heal()
		require.NoError(t, crashed.Close())
		_, _ = waiting.Result()
		stage.Pass(5 * time.Second)
		w.RequireFree("a", "b")
	})
}

// TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter takes a and a read inside of a write. The
// Unlock of the writer ends the entry of a, and the read goes on by itself: the section of both
// must not.
func TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c, other := w.OpenClient(), w.OpenClient()
		rw, l := c.NewRWLock("z"), c.NewLock("a")
		writer := w.Enter(t.Context(), rw.Writer())
		both := relock.All(l, rw.RLocker())
		section, err := both.Lock(writer)
		require.NoError(t, err)
		w.Leave(writer, rw.Writer())
		wait := w.Start(t.Context(), other.NewLock("a"))
		_, cause := w.Ends(section)
		require.ErrorIs(t, cause, relock.ErrReleased)
		require.True(t, wait.Waits(), "the section ends before somebody else has the lock")
		require.NoError(t, both.Unlock(section))
		wait.Leave()
	})
}

// lateReleases counts the releases that reach a store after a moment.
type lateReleases struct {
	store.Store
	over  atomic.Bool
	count atomic.Int64
}

func (s *lateReleases) Release(ctx context.Context, l store.Lease) error {
	if s.over.Load() {
		s.count.Add(1)
	}
	return s.Store.Release(ctx, l)
}

// TestCloseWaitsForLocksThatAreGivenBack closes a client whose call waits for the last of many
// locks. The call gives the others back, and Close must not return before that.
func TestCloseWaitsForLocksThatAreGivenBack(t *testing.T) {
	memory := mem.New()
	last, err := memory.Try(t.Context(), store.Claim{Name: "n999", ID: "other:1:1", TTL: time.Hour, Limit: 1})
	require.NoError(t, err)
	names := []string{"n999"}
	for i := range 300 {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	for range 5 {
		s := &lateReleases{Store: memory}
		queued := make(chan struct{}, 1)
		c, err := relock.Open(s, relock.WithHooks(event.Hooks{Queued: func(event.Queued) { queued <- struct{}{} }}))
		require.NoError(t, err)
		failed := make(chan error, 1)
		go func() {
			_, err := c.NewLocks(names).Lock(t.Context())
			failed <- err
		}()
		<-queued
		require.NoError(t, c.Close())
		s.over.Store(true)
		require.ErrorIs(t, <-failed, relock.ErrClosed)
		require.Zero(t, s.count.Load(), "releases after Close")
	}
	require.NoError(t, memory.Release(t.Context(), last))
}
