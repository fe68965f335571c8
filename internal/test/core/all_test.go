package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
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

func TestLocksAreTakenOnceAndInOneOrder(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		a, b, rw := m.NewLock("a"), m.NewLock("b"), m.NewRWLock("rw")
		for _, l := range []*relock.Locks{
			relock.All(rw, b, a, b),
			relock.All(rw.RLocker(), relock.All(b, a), rw),
			relock.All(rw, relock.All(a), m.NewLocks([]string{"b", "a"}), rw.RLocker()),
		} {
			require.NoError(t, l.Err())
			require.Equal(t, []string{"a", "b", "rw"}, l.Names())
			section := w.EnterAll(t.Context(), l)
			require.Equal(t, 1, a.Count(section))
			_, err := w.NewClient().NewRWLock("rw").TryRLock(t.Context())
			require.ErrorIs(t, err, relock.ErrLocked, "for writing")
			require.NoError(t, l.Unlock(section))
			w.RequireFree("a", "b", "rw")
		}
		require.Equal(t, []string{"Z", "a", "z", "ä"}, m.NewLocks([]string{"ä", "z", "a", "Z"}).Names(), "by bytes")
		read := relock.All(a, rw.RLocker())
		section := w.EnterAll(t.Context(), read)
		require.NoError(t, w.NewClient().NewRWLock("rw").RDo(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, read.Unlock(section))
		one, three := m.NewSemaphore("s", 1), m.NewSemaphore("s", 3)
		section = w.EnterAll(t.Context(), relock.All(three, one))
		_, err := three.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "the smallest number of permits counts")
		require.NoError(t, relock.All(one).Unlock(section))
	})
}

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

func TestLocksOfTwoClientsAreTakenTogether(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		one, two := w.NewClient(), w.NewClient()
		l := relock.All(two.NewLock("a"), one.NewLock("b"), two.NewLock("c"))
		require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
			require.True(t, one.NewLock("b").Held(ctx))
			require.True(t, two.NewLock("c").Held(ctx))
			return nil
		}))
		w.RequireFree("a", "b", "c")
	})
}

func TestLocksThatAreHeldAreEnteredDeeper(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		b, l := m.NewLock("b"), m.NewLocks([]string{"a", "b", "c"})
		outer := w.Enter(t.Context(), b)
		section := w.EnterAll(outer, l)
		w.RequireCount("a", 1)
		w.RequireCount("b", 2)
		again := w.EnterAll(section, l)
		w.RequireCount("a", 2)
		w.RequireCount("b", 3)
		require.NoError(t, l.Unlock(again))
		require.NoError(t, context.Cause(section))
		require.NoError(t, l.Unlock(section))
		w.RequireFree("a", "c")
		w.RequireCount("b", 1)
		require.True(t, b.Held(outer))
		w.Leave(outer, b)
	})
}

func TestTryLockOfLocksChangesNothingWhereOneIsTaken(t *testing.T) {
	for name, options := range map[string][]relock.Option{"in one step": nil, "one by one": {relock.WithLocalPass(0, 0)}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				other := w.NewClient().NewLock("b")
				section := w.Enter(t.Context(), other)
				m := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...)
				ended, err := m.NewLocks([]string{"c", "b", "a"}).TryLock(t.Context())
				stage.RequireRefusedBy(t, "b", err)
				require.Equal(t, stage.HolderOf(t, section), err.(*relock.LockedError).Holder)
				require.ErrorIs(t, context.Cause(ended), err, "the context has ended")
				w.RequireFree("a", "c")
				require.Equal(t, "b", stage.EventsOf[event.AcquireFinished](&r)[len(stage.EventsOf[event.AcquireFinished](&r))-1].Name)
				if name == "in one step" {
					require.Equal(t, []string{"AcquireStarted", "AcquireFinished"}, r.Kinds())
					require.Equal(t, 1, m.Link.Sent())
				}
				w.Leave(section, other)
			})
		})
	}
}

func TestTryLockOfLocksDoesNotOvertakeWaiters(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := w.NewClient().NewLock("b")
		section := w.Enter(t.Context(), b)
		waiter := w.Start(t.Context(), w.NewClient().NewLock("b"))
		l := w.NewClient().NewLocks([]string{"a", "b"})
		waiting := w.Begin(t.Context(), l.Lock)
		w.Leave(section, b)
		waiter.Leave()
		require.NoError(t, l.Unlock(waiting.Section()))
	})
}

func TestTheWaitIsForAllLocksTogether(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient()
		a, b := other.NewLock("a"), other.NewLock("b")
		inA, inB := w.Enter(t.Context(), a), w.Enter(t.Context(), b)
		l := w.NewClient().NewLocks([]string{"a", "b", "c"})
		waiting := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, 10*time.Second) })
		stage.Pass(6 * time.Second)
		w.Leave(inA, a)
		_, err := waiting.Result()
		stage.RequireRefusedBy(t, "b", err)
		require.Equal(t, 10*time.Second, waiting.Took())
		w.RequireFree("a", "c")
		w.Leave(inB, b)
		ran := false
		require.NoError(t, l.DoFor(t.Context(), time.Second, func(context.Context) error { ran = true; return nil }))
		require.True(t, ran)
		inB = w.Enter(t.Context(), b)
		err = l.DoFor(t.Context(), 0, func(context.Context) error { panic("not entered") })
		require.True(t, relock.NotEntered(err))
		w.Leave(inB, b)
	})
}

func TestTheLossOfOneLockEndsTheSection(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			l := w.NewClient().NewLocks([]string{"a", "b", "c"})
			section := w.EnterAll(t.Context(), l)
			w.Store.Lose(name)
			require.Equal(t, event.LossTaken, w.Lost(section))
			err := l.Unlock(section)
			var lost *relock.LostError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, name, lost.Name)
			w.RequireFree("a", "b", "c")
			require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		})
	}
}

func TestUnlockOfLocksLeavesTheNearestSectionOfTheseLocks(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		ab, abc, b := m.NewLocks([]string{"a", "b"}), m.NewLocks([]string{"a", "b", "c"}), m.NewLock("b")
		require.ErrorIs(t, ab.Unlock(t.Context()), relock.ErrNotHeld)
		outer := w.EnterAll(t.Context(), ab)
		require.ErrorIs(t, abc.Unlock(outer), relock.ErrNotHeld)
		inner := w.EnterAll(outer, abc)
		deepest := w.Enter(inner, b)
		w.RequireCount("b", 3)

		require.NoError(t, m.NewLocks([]string{"b", "a"}).Unlock(deepest), "a section around the nested ones")
		for _, section := range []context.Context{outer, inner, deepest} {
			require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
		}
		w.RequireCount("b", 2)
		err := ab.Unlock(deepest)
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.EqualError(t, err, `relock: unlock "a, b": not held by this context (use the one that Lock returned, before its Unlock)`)
		require.NoError(t, abc.Unlock(deepest))
		require.NoError(t, b.Unlock(deepest))
		w.RequireFree("a", "b", "c")
	})
}

func TestALockThatWasUnlockedByItselfIsNotUnlockedAgain(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b", "c"})
		section := w.EnterAll(t.Context(), l)
		require.NoError(t, m.NewLock("b").Unlock(section))
		w.RequireFree("b")
		err := l.Unlock(section)
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.ErrorContains(t, err, `"b"`)
		w.RequireFree("a", "c")
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

func TestCloseEndsWaitsAndSectionsOfLocks(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, other := w.NewClient(), w.NewClient().NewLock("d")
		section := w.Enter(t.Context(), other)
		ab, cd := m.NewLocks([]string{"a", "b"}), m.NewLocks([]string{"c", "d"})
		mine := w.EnterAll(t.Context(), ab)
		waiting := w.Begin(t.Context(), cd.Lock)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.ErrorIs(t, context.Cause(mine), relock.ErrClosed)
		_, err := cd.Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		require.NoError(t, ab.Unlock(mine))
		w.Leave(section, other)
		stage.Pass(time.Second)
		w.RequireFree("a", "b", "c", "d")
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

func TestRandomSetsOfLocksExcludeEachOtherWithoutADeadlock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c := stage.NewPickers(12)
		var all sync.WaitGroup
		clients := []*stage.Member{w.NewClient(), w.NewClient(), w.NewClient(relock.WithLocalPass(0, 0))}
		for g := range 32 {
			all.Go(func() {
				for c.Rounds.Add(1) <= 2000 {
					c.Round(t, clients[g%3].Client, 8, func() { <-time.After(time.Duration(rand.IntN(3)) * time.Millisecond) })
				}
			})
		}
		all.Wait()
		w.RequireFree(c.Names...)
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
	last, err := memory.Try(t.Context(), store.Ask{Name: "n999", ID: "other:1:1", TTL: time.Hour, Limit: 1})
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
