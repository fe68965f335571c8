package relock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// Are several locks entered and left together, or not at all?

// enterAll locks, and fails the test if that fails.
func (s *stage) enterAll(ctx context.Context, l *relock.Locks) context.Context {
	s.t.Helper()
	section := s.begin(ctx, l.Lock).section()
	keep(s.t, section)
	return section
}

// refusedBy fails unless err is the refusal of the lock.
func refusedBy(t *testing.T, name string, err error) {
	t.Helper()
	var refusal *relock.LockedError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, name, refusal.Name)
}

// foreign is a Locker of another package.
type foreign struct{ relock.Locker }

func TestLocksAreTakenOnceAndInOneOrder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		a, b, rw := m.NewLock("a"), m.NewLock("b"), m.NewRWLock("rw")
		for _, l := range []*relock.Locks{
			relock.All(rw, b, a, b),
			relock.All(rw.RLocker(), relock.All(b, a), rw),
			relock.All(rw, relock.All(a), m.NewLocks([]string{"b", "a"}), rw.RLocker()),
		} {
			require.NoError(t, l.Err())
			require.Equal(t, []string{"a", "b", "rw"}, l.Names())
			section := w.enterAll(t.Context(), l)
			require.Equal(t, 1, a.Count(section))
			_, err := w.NewClient().NewRWLock("rw").TryRLock(t.Context())
			require.ErrorIs(t, err, relock.ErrLocked, "for writing")
			require.NoError(t, l.Unlock(section))
			w.requireFree("a", "b", "rw")
		}
		require.Equal(t, []string{"Z", "a", "z", "ä"}, m.NewLocks([]string{"ä", "z", "a", "Z"}).Names(), "by bytes")
		read := relock.All(a, rw.RLocker())
		section := w.enterAll(t.Context(), read)
		require.NoError(t, w.NewClient().NewRWLock("rw").RDo(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, read.Unlock(section))
		one, three := m.NewSemaphore("s", 1), m.NewSemaphore("s", 3)
		section = w.enterAll(t.Context(), relock.All(three, one))
		_, err := three.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "the smallest number of permits counts")
		require.NoError(t, relock.All(one).Unlock(section))
	})
}

func TestLocksThatCannotBeTakenTogetherAreRefused(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, other := w.NewClient(), w.NewClient()
		a := m.NewLock("a")
		for text, l := range map[string]*relock.Locks{
			"no lock is given":                 relock.All(),
			"no lock is given; give one":       m.NewLocks(nil),
			"a lock is nil; each must be":      relock.All(a, nil),
			"a lock is nil":                    relock.All((*relock.Lock)(nil), a),
			"is a relock_test.foreign; each":   relock.All(a, foreign{a}),
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
		_, err = ab.Lock(nil) //nolint:staticcheck // a nil context is refused
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.ErrorIs(t, ab.Unlock(nil), relock.ErrInvalid) //nolint:staticcheck // as above
		require.Zero(t, m.link.sent())
	})
}

func TestFreeMutexesAreTakenAndFreedInOneStep(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"c", "a", "b"})
		section := w.enterAll(t.Context(), l)
		require.Equal(t, 1, m.link.sent())
		require.Equal(t, 1, m.link.sent(cmdTryAll))
		holder := holderOf(t, section)
		for _, name := range l.Names() {
			require.True(t, m.NewLock(name).Held(section))
			w.requireOwner(name, section)
		}
		require.NoError(t, l.Unlock(section))
		require.Equal(t, 2, m.link.sent())
		require.Equal(t, 1, m.link.sent(cmdReleaseAll))
		w.requireFree("a", "b", "c")
		var names []string
		for _, e := range eventsOf[relock.AcquireFinished](&r) {
			require.Equal(t, relock.OutcomeAcquired, e.Outcome)
			require.Equal(t, holder, e.Holder)
			names = append(names, e.Name)
		}
		require.Equal(t, []string{"a", "b", "c"}, names)
		require.Len(t, eventsOf[relock.AcquireStarted](&r), 3)
		require.Len(t, eventsOf[relock.Released](&r), 3)
	})
}

func TestLocksWaitInOneQueueAfterTheOther(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient()
		a, b, rw := other.NewLock("a"), other.NewLock("b"), other.NewRWLock("rw")
		inA, inRW := w.enter(t.Context(), a), w.enter(t.Context(), rw.RLocker())
		m := w.NewClient()
		l := relock.All(m.NewRWLock("rw"), m.NewLock("b"), m.NewLock("a"))
		waiting := w.begin(t.Context(), l.Lock)
		require.Equal(t, 1, w.waiters("a"))
		require.True(t, w.free("b"), "b comes after a")

		pass(time.Second)
		w.leave(inA, a)
		require.True(t, waiting.waits())
		state, err := rw.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		_, err = b.TryLock(t.Context())
		refusedBy(t, "b", err)

		pass(relock.DefaultTTL) // the locks that it has are renewed
		w.leave(inRW, rw.RLocker())
		section := waiting.section()
		w.requireOwner("a", section)
		require.NoError(t, l.Unlock(section))
		w.requireFree("a", "b", "rw")
	})
}

func TestLocksOfTwoClientsAreTakenTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one, two := w.NewClient(), w.NewClient()
		l := relock.All(two.NewLock("a"), one.NewLock("b"), two.NewLock("c"))
		require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
			require.True(t, one.NewLock("b").Held(ctx))
			require.True(t, two.NewLock("c").Held(ctx))
			return nil
		}))
		w.requireFree("a", "b", "c")
	})
}

func TestLocksThatAreHeldAreEnteredDeeper(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		b, l := m.NewLock("b"), m.NewLocks([]string{"a", "b", "c"})
		outer := w.enter(t.Context(), b)
		section := w.enterAll(outer, l)
		w.requireCount("a", 1)
		w.requireCount("b", 2)
		again := w.enterAll(section, l)
		w.requireCount("a", 2)
		w.requireCount("b", 3)
		require.NoError(t, l.Unlock(again))
		require.NoError(t, context.Cause(section))
		require.NoError(t, l.Unlock(section))
		w.requireFree("a", "c")
		w.requireCount("b", 1)
		require.True(t, b.Held(outer))
		w.leave(outer, b)
	})
}

func TestTryLockOfLocksChangesNothingWhereOneIsTaken(t *testing.T) {
	for name, options := range map[string][]relock.Option{"in one step": nil, "one by one": {relock.WithLocalPass(0, 0)}} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				other := w.NewClient().NewLock("b")
				section := w.enter(t.Context(), other)
				m := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...)
				ctx := context.WithValue(t.Context(), t, t)
				same, err := m.NewLocks([]string{"c", "b", "a"}).TryLock(ctx)
				refusedBy(t, "b", err)
				require.Equal(t, holderOf(t, section), err.(*relock.LockedError).Holder) //nolint:errorlint // as it is
				require.Same(t, ctx, same, "the caller's own context")
				w.requireFree("a", "c")
				require.Equal(t, "b", eventsOf[relock.AcquireFinished](&r)[len(eventsOf[relock.AcquireFinished](&r))-1].Name)
				if name == "in one step" {
					require.Equal(t, []string{"AcquireStarted", "AcquireFinished"}, r.kinds())
					require.Equal(t, 1, m.link.sent())
				}
				w.leave(section, other)
			})
		})
	}
}

func TestTryLockOfLocksDoesNotOvertakeWaiters(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		b := w.NewClient().NewLock("b")
		section := w.enter(t.Context(), b)
		waiter := w.start(t.Context(), w.NewClient().NewLock("b"))
		l := w.NewClient().NewLocks([]string{"a", "b"})
		waiting := w.begin(t.Context(), l.Lock)
		w.leave(section, b)
		waiter.leave()
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

func TestTheWaitIsForAllLocksTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient()
		a, b := other.NewLock("a"), other.NewLock("b")
		inA, inB := w.enter(t.Context(), a), w.enter(t.Context(), b)
		l := w.NewClient().NewLocks([]string{"a", "b", "c"})
		waiting := w.begin(t.Context(), func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, 10*time.Second) })
		pass(6 * time.Second)
		w.leave(inA, a)
		_, err := waiting.result()
		refusedBy(t, "b", err)
		require.Equal(t, 10*time.Second, waiting.took())
		w.requireFree("a", "c")
		w.leave(inB, b)
		ran := false
		require.NoError(t, l.DoFor(t.Context(), time.Second, func(context.Context) error { ran = true; return nil }))
		require.True(t, ran)
		inB = w.enter(t.Context(), b)
		err = l.DoFor(t.Context(), 0, func(context.Context) error { panic("not entered") })
		require.True(t, relock.NotEntered(err))
		w.leave(inB, b)
	})
}

func TestTheLossOfOneLockEndsTheSection(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		fake(t, func(t *testing.T, w *world) {
			l := w.NewClient().NewLocks([]string{"a", "b", "c"})
			section := w.enterAll(t.Context(), l)
			w.Lose(name)
			require.Equal(t, relock.LossTaken, w.lost(section))
			err := l.Unlock(section)
			var lost *relock.LostError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, name, lost.Name)
			w.requireFree("a", "b", "c")
			require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		})
	}
}

func TestUnlockOfLocksLeavesTheNearestSectionOfTheseLocks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		ab, abc, b := m.NewLocks([]string{"a", "b"}), m.NewLocks([]string{"a", "b", "c"}), m.NewLock("b")
		require.ErrorIs(t, ab.Unlock(t.Context()), relock.ErrNotHeld)
		outer := w.enterAll(t.Context(), ab)
		require.ErrorIs(t, abc.Unlock(outer), relock.ErrNotHeld)
		inner := w.enterAll(outer, abc)
		deepest := w.enter(inner, b)
		w.requireCount("b", 3)

		require.NoError(t, m.NewLocks([]string{"b", "a"}).Unlock(deepest), "a section around the nested ones")
		for _, section := range []context.Context{outer, inner, deepest} {
			require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
		}
		w.requireCount("b", 2)
		err := ab.Unlock(deepest)
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.EqualError(t, err, `relock: unlock "a, b": relock: not held by this context`)
		require.NoError(t, abc.Unlock(deepest))
		require.NoError(t, b.Unlock(deepest))
		w.requireFree("a", "b", "c")
	})
}

func TestALockThatWasUnlockedByItselfIsNotUnlockedAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b", "c"})
		section := w.enterAll(t.Context(), l)
		require.NoError(t, m.NewLock("b").Unlock(section))
		w.requireFree("b")
		err := l.Unlock(section)
		require.ErrorIs(t, err, relock.ErrNotHeld)
		require.ErrorContains(t, err, `"b"`)
		w.requireFree("a", "c")
	})
}

func TestAContextOfASectionOfLocksIsInsideOfThem(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		section := w.enterAll(t.Context(), l)
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
		fake(t, func(t *testing.T, w *world) {
			b := w.NewClient().NewLock("b")
			section := w.enter(t.Context(), b)
			m := w.NewClient()
			ctx, cancel := context.WithCancel(t.Context())
			waiting := w.begin(ctx, m.NewLocks([]string{"a", "b", "c"}).Lock)
			require.Equal(t, 1, w.waiters("b"))
			if silent {
				m.link.cut()
			}
			pass(time.Second)
			begun := time.Now()
			cancel()
			same, err := waiting.result()
			require.Same(t, ctx, same, "the caller's own context")
			require.ErrorIs(t, err, context.Canceled)
			refusedBy(t, "b", err)
			require.LessOrEqual(t, time.Since(begun), 50*ms)
			if silent {
				pass(time.Second)
				m.link.heal()
				pass(5 * time.Second)
			}
			w.requireFree("a", "c")
			w.leave(section, b)
			w.requireFree("b")
		})
	}
}

func TestALostReplyToTheOneStepLeavesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.link.once(loseAnswer(relock.ErrUnavailable), cmdTryAll)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnavailable)
		pass(5 * time.Second)
		w.requireFree("a", "b")

		m.link.once(loseAnswer(relock.ErrUnavailable), cmdTryAll)
		section := w.enterAll(t.Context(), l)
		m.link.once(loseAnswer(relock.ErrUnavailable), cmdReleaseAll)
		require.ErrorIs(t, l.Unlock(section), relock.ErrUnavailable)
		pass(5 * time.Second)
		w.requireFree("a", "b")

		m.link.once(sendTwice, cmdTryAll)
		section = w.enterAll(t.Context(), l)
		w.requireCount("a", 1)
		require.NoError(t, l.Unlock(section))
	})
}

func TestALateReplyToTheOneStepIsALeaseThatIsRenewed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.link.once(delay(0, relock.DefaultTTL*3/4), cmdTryAll)
		section := w.enterAll(t.Context(), l)
		require.Greater(t, m.NewLock("b").Remaining(section), relock.DefaultTTL*9/10)
		require.NoError(t, l.Unlock(section))

		m.link.once(delay(0, 2*relock.DefaultTTL), cmdTryAll) // the holds are gone
		section = w.enterAll(t.Context(), l)
		require.NoError(t, l.Unlock(section))
		pass(5 * time.Second)
		w.requireFree("a", "b")
	})
}

func TestLocksOfAnotherKindAreNamed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewRWLock("b")
		section := w.enter(t.Context(), other.RLocker())
		_, err := w.NewClient().NewLocks([]string{"a", "b"}).TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrKind)
		var failed *relock.OpError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "b", failed.Name)
		w.requireFree("a")
		w.leave(section, other.RLocker())
	})
}

func TestCloseEndsWaitsAndSectionsOfLocks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, other := w.NewClient(), w.NewClient().NewLock("d")
		section := w.enter(t.Context(), other)
		ab, cd := m.NewLocks([]string{"a", "b"}), m.NewLocks([]string{"c", "d"})
		mine := w.enterAll(t.Context(), ab)
		waiting := w.begin(t.Context(), cd.Lock)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		require.ErrorIs(t, context.Cause(mine), relock.ErrClosed)
		_, err := cd.Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		require.NoError(t, ab.Unlock(mine))
		w.leave(section, other)
		pass(time.Second)
		w.requireFree("a", "b", "c", "d")
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
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"a", "b", "c"})
		dropAll(t, l)
		awaitLeaks(t, 3, leaksOf(&r))
		times := timesOf[relock.Leaked](&r)
		require.Equal(t, times[0], times[2], "all at once")
		next := w.NewClient().NewLocks(l.Names())
		require.NoError(t, next.Unlock(w.enterAll(t.Context(), next)))
	})
}

func TestACrashBetweenTwoLocksCostsALease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		b := w.NewClient().NewLock("b")
		section := w.enter(t.Context(), b)
		crashed := w.NewClient()
		waiting := w.begin(t.Context(), crashed.NewLocks([]string{"a", "b"}).Lock)
		require.Equal(t, 1, w.waiters("b"))
		crashed.link.cut() // and nothing of it arrives any more
		w.leave(section, b)
		begun := time.Now()
		l := w.NewClient().NewLocks([]string{"a", "b"})
		next := w.begin(t.Context(), l.Lock).section()
		require.LessOrEqual(t, time.Since(begun), relock.DefaultTTL)
		require.NoError(t, l.Unlock(next))
		crashed.link.heal()
		require.NoError(t, crashed.Close())
		_, _ = waiting.result()
		pass(5 * time.Second)
		w.requireFree("a", "b")
	})
}

// pickers take random sets of locks, and fails the test if two are in one lock.
type pickers struct {
	names  []string
	inside []atomic.Int32
	rounds atomic.Int64
}

func newPickers(names int) *pickers {
	c := &pickers{inside: make([]atomic.Int32, names)}
	for i := range names {
		c.names = append(c.names, fmt.Sprint("n", i))
	}
	return c
}

// round takes some locks in any order of names, works, and leaves them.
func (c *pickers) round(t *testing.T, client *relock.Client, size int, work func()) {
	t.Helper()
	picked := rand.Perm(len(c.names))[:size]
	var names []string
	for _, i := range picked {
		names = append(names, c.names[i])
	}
	err := client.NewLocks(names).Do(t.Context(), func(context.Context) error {
		for _, i := range picked {
			if n := c.inside[i].Add(1); n != 1 {
				t.Errorf("%d are in %q", n, c.names[i])
			}
		}
		work()
		for _, i := range picked {
			c.inside[i].Add(-1)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestRandomSetsOfLocksExcludeEachOtherWithoutADeadlock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := newPickers(12)
		var all sync.WaitGroup
		clients := []*member{w.NewClient(), w.NewClient(), w.NewClient(relock.WithLocalPass(0, 0))}
		for g := range 32 {
			all.Go(func() {
				for c.rounds.Add(1) <= 2000 {
					c.round(t, clients[g%3].Client, 8, func() { <-time.After(time.Duration(rand.IntN(3)) * ms) })
				}
			})
		}
		all.Wait()
		w.requireFree(c.names...)
	})
}

// onTen returns the names of ten locks.
func onTen() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprint("ten", i))
	}
	return names
}

func TestTenLocksInRedisCostTwoCommands(t *testing.T) {
	w := onShared(t)
	l := w.peer().NewLocks(onTen())
	section := w.enterAll(t.Context(), l) // connects
	require.NoError(t, l.Unlock(section))
	before := w.calls()
	section = w.enterAll(t.Context(), l)
	for _, name := range l.Names() {
		w.requireOwner(name, section)
		require.InDelta(t, relock.DefaultTTL, w.lease(name), float64(time.Second))
	}
	require.NoError(t, l.Unlock(section))
	after := w.calls()
	require.Equal(t, 2, after["evalsha"]-before["evalsha"])
	w.requireFree(l.Names()...)
}

func TestTryLockOfLocksInRedisNamesTheTakenOne(t *testing.T) {
	w := onShared(t)
	p, other := w.peer(), w.peer()
	section := w.enter(t.Context(), other.NewLock("ten7"))
	l := p.NewLocks(onTen())
	_, err := l.TryLock(t.Context())
	refusedBy(t, "ten7", err)
	require.Equal(t, []string{baseKey("ten7")}, redistest.Keys(t, w.plain))
	waiting := w.begin(t.Context(), l.Lock)
	w.awaitWaiters("ten7", 1)
	w.leave(section, other.NewLock("ten7"))
	require.NoError(t, l.Unlock(waiting.section()))
}

func TestALostReplyToTheOneStepInRedisIsAskedForAgain(t *testing.T) {
	for name, kind := range breaks {
		t.Run(name, func(t *testing.T) {
			w := onShared(t)
			p := w.peer()
			p.connect(t, 2)
			l := p.NewLocks(onTen())
			p.faults.Once(w.script(luaAll), redistest.DropReply(kind))
			section, err := l.TryLock(t.Context())
			require.NoError(t, err)
			keep(t, section)
			for _, name := range l.Names() {
				w.requireCount(name, 1)
				require.LessOrEqual(t, w.lease(name), relock.DefaultTTL)
			}
			p.faults.Once(w.script(luaRelease), redistest.DropReply(kind))
			require.NoError(t, l.Unlock(section))
			w.requireFree(l.Names()...)
		})
	}
}

func TestLocksBehindDeadWaitersAreTaken(t *testing.T) {
	w := onShared(t)
	key := baseKey("ten3") + ":queue"
	var dead []redis.Z
	for i := range 150 {
		dead = append(dead, redis.Z{Score: float64(i + 1), Member: fmt.Sprintf("dead:1:%d|30000", i)})
	}
	require.NoError(t, w.plain.ZAdd(t.Context(), key, dead...).Err())
	require.NoError(t, w.plain.PExpire(t.Context(), key, time.Minute).Err())
	l := w.peer().NewLocks(onTen())
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Unlock(section))
	require.Empty(t, redistest.Keys(t, w.plain))
}

func TestMoreLocksThanOneScriptTakes(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprint("many", i))
	}
	one := w.counter(p, luaAll)
	require.NoError(t, p.NewLocks(names[:256]).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
	require.NoError(t, p.NewLocks(names).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
}

func TestLocksOnACluster(t *testing.T) {
	w := onCluster(t)
	w.loadScripts()
	p := w.peer()
	one, each := w.counter(p, luaAll), w.counter(p, luaAcquire)
	spread := w.oneForEachMaster()
	section := w.enterAll(t.Context(), p.NewLocks(spread))
	require.Equal(t, []int{0, 3}, []int{one(), each()}, "different slots")
	require.NoError(t, p.NewLocks(spread).Unlock(section))

	tagged := []string{"{user:7}:cart", "{user:7}:stock", "{user:7}"}
	section = w.enterAll(t.Context(), p.NewLocks(tagged))
	require.Equal(t, []int{1, 3}, []int{one(), each()}, "one slot")
	_, err := w.peer().NewLocks(append(slices.Clone(spread), tagged[1])).TryLock(t.Context())
	refusedBy(t, tagged[1], err)
	require.NoError(t, p.NewLocks(tagged).Unlock(section))
}

func TestLocksOfASlotThatMoves(t *testing.T) {
	w := onCluster(t)
	p := w.peer()
	spread := w.oneForEachMaster()
	names := []string{"{" + spread[0] + "}:a", "{" + spread[0] + "}:b", "{" + spread[0] + "}:c"}
	l := p.NewLocks(names)
	held := w.enterAll(t.Context(), p.NewLocks(names[:1]))
	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	_, err := l.TryLock(relock.WithoutHolder(held))
	require.Error(t, err) // the held key is here, and the others are nowhere
	waiting := w.begin(t.Context(), l.Lock)
	move.MoveKeys(baseKey(names[0]))
	move.Finish()
	require.NoError(t, p.NewLocks(names[:1]).Unlock(held))
	require.NoError(t, l.Unlock(waiting.section()))
}

func TestRandomSetsOfLocksInRedis(t *testing.T) {
	w := onShared(t)
	c := newPickers(12)
	peers := []*peer{w.peer(), w.peer()}
	var all sync.WaitGroup
	for g := range 32 {
		all.Go(func() {
			for c.rounds.Add(1) <= 500 {
				c.round(t, peers[g%2].Client, 4+g%5, func() {})
			}
		})
	}
	all.Wait()
	w.requireFree(c.names...)
}

// TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter takes a and a read inside of a write. The
// Unlock of the writer ends the entry of a, and the read goes on by itself: the section of both must
// not.
func TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c, other := w.openClient(), w.openClient()
		rw, l := c.NewRWLock("z"), c.NewLock("a")
		writer := w.enter(t.Context(), rw.Writer())
		both := relock.All(l, rw.RLocker())
		section, err := both.Lock(writer)
		require.NoError(t, err)
		w.leave(writer, rw.Writer())
		wait := w.start(t.Context(), other.NewLock("a"))
		_, cause := w.ends(section)
		require.ErrorIs(t, cause, relock.ErrReleased)
		require.True(t, wait.waits(), "the section ends before somebody else has the lock")
		require.NoError(t, both.Unlock(section))
		wait.leave()
	})
}

// lateReleases counts the releases that reach a store after a moment.
type lateReleases struct {
	store.Store
	over  atomic.Bool
	count atomic.Int64
}

func (s *lateReleases) Release(ctx context.Context, l store.Lease, count int) error {
	if s.over.Load() {
		s.count.Add(1)
	}
	return s.Store.Release(ctx, l, count)
}

// TestCloseWaitsForLocksThatAreGivenBack closes a client whose call waits for the last of many locks.
// The call gives the others back, and Close must not return before that.
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
		c, err := relock.Open(s, relock.WithHooks(relock.Hooks{Queued: func(relock.Queued) { queued <- struct{}{} }}))
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
	require.NoError(t, memory.Release(t.Context(), last, 0))
}
