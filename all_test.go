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

// EnterAll locks, and fails the test if that fails.
func (s *Stage) EnterAll(ctx context.Context, l *relock.Locks) context.Context {
	s.T.Helper()
	section := s.Begin(ctx, l.Lock).Section()
	Keep(s.T, section)
	return section
}

// RequireRefusedBy fails unless err is the refusal of the lock.
func RequireRefusedBy(t *testing.T, name string, err error) {
	t.Helper()
	var refusal *relock.LockedError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, name, refusal.Name)
}

// foreign is a Locker of another package.
type foreign struct{ relock.Locker }

func TestLocksAreTakenOnceAndInOneOrder(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
	Fake(t, func(t *testing.T, w *World) {
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
		require.Zero(t, m.Link.Sent())
	})
}

func TestFreeMutexesAreTakenAndFreedInOneStep(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		var r Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"c", "a", "b"})
		section := w.EnterAll(t.Context(), l)
		require.Equal(t, 1, m.Link.Sent())
		require.Equal(t, 1, m.Link.Sent(CmdTryAll))
		holder := HolderOf(t, section)
		for _, name := range l.Names() {
			require.True(t, m.NewLock(name).Held(section))
			w.RequireOwner(name, section)
		}
		require.NoError(t, l.Unlock(section))
		require.Equal(t, 2, m.Link.Sent())
		require.Equal(t, 1, m.Link.Sent(CmdReleaseAll))
		w.RequireFree("a", "b", "c")
		var names []string
		for _, e := range EventsOf[relock.AcquireFinished](&r) {
			require.Equal(t, relock.OutcomeAcquired, e.Outcome)
			require.Equal(t, holder, e.Holder)
			names = append(names, e.Name)
		}
		require.Equal(t, []string{"a", "b", "c"}, names)
		require.Len(t, EventsOf[relock.AcquireStarted](&r), 3)
		require.Len(t, EventsOf[relock.Released](&r), 3)
	})
}

func TestLocksWaitInOneQueueAfterTheOther(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		other := w.NewClient()
		a, b, rw := other.NewLock("a"), other.NewLock("b"), other.NewRWLock("rw")
		inA, inRW := w.Enter(t.Context(), a), w.Enter(t.Context(), rw.RLocker())
		m := w.NewClient()
		l := relock.All(m.NewRWLock("rw"), m.NewLock("b"), m.NewLock("a"))
		waiting := w.Begin(t.Context(), l.Lock)
		require.Equal(t, 1, w.Waiters("a"))
		require.True(t, w.Free("b"), "b comes after a")

		Pass(time.Second)
		w.Leave(inA, a)
		require.True(t, waiting.Waits())
		state, err := rw.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		_, err = b.TryLock(t.Context())
		RequireRefusedBy(t, "b", err)

		Pass(relock.DefaultTTL) // the locks that it has are renewed
		w.Leave(inRW, rw.RLocker())
		section := waiting.Section()
		w.RequireOwner("a", section)
		require.NoError(t, l.Unlock(section))
		w.RequireFree("a", "b", "rw")
	})
}

func TestLocksOfTwoClientsAreTakenTogether(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
	Fake(t, func(t *testing.T, w *World) {
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
			Fake(t, func(t *testing.T, w *World) {
				var r Recorder
				other := w.NewClient().NewLock("b")
				section := w.Enter(t.Context(), other)
				m := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...)
				ctx := context.WithValue(t.Context(), t, t)
				same, err := m.NewLocks([]string{"c", "b", "a"}).TryLock(ctx)
				RequireRefusedBy(t, "b", err)
				require.Equal(t, HolderOf(t, section), err.(*relock.LockedError).Holder) //nolint:errorlint // as it is
				require.Same(t, ctx, same, "the caller's own context")
				w.RequireFree("a", "c")
				require.Equal(t, "b", EventsOf[relock.AcquireFinished](&r)[len(EventsOf[relock.AcquireFinished](&r))-1].Name)
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
	Fake(t, func(t *testing.T, w *World) {
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
	Fake(t, func(t *testing.T, w *World) {
		other := w.NewClient()
		a, b := other.NewLock("a"), other.NewLock("b")
		inA, inB := w.Enter(t.Context(), a), w.Enter(t.Context(), b)
		l := w.NewClient().NewLocks([]string{"a", "b", "c"})
		waiting := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, 10*time.Second) })
		Pass(6 * time.Second)
		w.Leave(inA, a)
		_, err := waiting.Result()
		RequireRefusedBy(t, "b", err)
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
		Fake(t, func(t *testing.T, w *World) {
			l := w.NewClient().NewLocks([]string{"a", "b", "c"})
			section := w.EnterAll(t.Context(), l)
			w.Store.Lose(name)
			require.Equal(t, relock.LossTaken, w.Lost(section))
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
	Fake(t, func(t *testing.T, w *World) {
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
		require.EqualError(t, err, `relock: unlock "a, b": relock: not held by this context`)
		require.NoError(t, abc.Unlock(deepest))
		require.NoError(t, b.Unlock(deepest))
		w.RequireFree("a", "b", "c")
	})
}

func TestALockThatWasUnlockedByItselfIsNotUnlockedAgain(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
	Fake(t, func(t *testing.T, w *World) {
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
		Fake(t, func(t *testing.T, w *World) {
			b := w.NewClient().NewLock("b")
			section := w.Enter(t.Context(), b)
			m := w.NewClient()
			ctx, cancel := context.WithCancel(t.Context())
			waiting := w.Begin(ctx, m.NewLocks([]string{"a", "b", "c"}).Lock)
			require.Equal(t, 1, w.Waiters("b"))
			if silent {
				m.Link.Cut()
			}
			Pass(time.Second)
			begun := time.Now()
			cancel()
			same, err := waiting.Result()
			require.Same(t, ctx, same, "the caller's own context")
			require.ErrorIs(t, err, context.Canceled)
			RequireRefusedBy(t, "b", err)
			require.LessOrEqual(t, time.Since(begun), 50*time.Millisecond)
			if silent {
				Pass(time.Second)
				m.Link.Heal()
				Pass(5 * time.Second)
			}
			w.RequireFree("a", "c")
			w.Leave(section, b)
			w.RequireFree("b")
		})
	}
}

func TestALostReplyToTheOneStepLeavesNothing(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.Link.Once(LoseAnswer(relock.ErrUnavailable), CmdTryAll)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnavailable)
		Pass(5 * time.Second)
		w.RequireFree("a", "b")

		m.Link.Once(LoseAnswer(relock.ErrUnavailable), CmdTryAll)
		section := w.EnterAll(t.Context(), l)
		m.Link.Once(LoseAnswer(relock.ErrUnavailable), CmdReleaseAll)
		require.ErrorIs(t, l.Unlock(section), relock.ErrUnavailable)
		Pass(5 * time.Second)
		w.RequireFree("a", "b")

		m.Link.Once(SendTwice, CmdTryAll)
		section = w.EnterAll(t.Context(), l)
		w.RequireCount("a", 1)
		require.NoError(t, l.Unlock(section))
	})
}

func TestALateReplyToTheOneStepIsALeaseThatIsRenewed(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m := w.NewClient()
		l := m.NewLocks([]string{"a", "b"})
		m.Link.Once(Delay(0, relock.DefaultTTL*3/4), CmdTryAll)
		section := w.EnterAll(t.Context(), l)
		require.Greater(t, m.NewLock("b").Remaining(section), relock.DefaultTTL*9/10)
		require.NoError(t, l.Unlock(section))

		m.Link.Once(Delay(0, 2*relock.DefaultTTL), CmdTryAll) // the holds are gone
		section = w.EnterAll(t.Context(), l)
		require.NoError(t, l.Unlock(section))
		Pass(5 * time.Second)
		w.RequireFree("a", "b")
	})
}

func TestLocksOfAnotherKindAreNamed(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
	Fake(t, func(t *testing.T, w *World) {
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
		Pass(time.Second)
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
	Fake(t, func(t *testing.T, w *World) {
		var r Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLocks([]string{"a", "b", "c"})
		dropAll(t, l)
		AwaitLeaks(t, 3, LeaksOf(&r))
		times := TimesOf[relock.Leaked](&r)
		require.Equal(t, times[0], times[2], "all at once")
		next := w.NewClient().NewLocks(l.Names())
		require.NoError(t, next.Unlock(w.EnterAll(t.Context(), next)))
	})
}

func TestACrashBetweenTwoLocksCostsALease(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
		Pass(5 * time.Second)
		w.RequireFree("a", "b")
	})
}

// Pickers take random sets of locks, and fails the test if two are in one lock.
type Pickers struct {
	Names  []string
	inside []atomic.Int32
	Rounds atomic.Int64
}

func NewPickers(names int) *Pickers {
	c := &Pickers{inside: make([]atomic.Int32, names)}
	for i := range names {
		c.Names = append(c.Names, fmt.Sprint("n", i))
	}
	return c
}

// Round takes some locks in any order of names, works, and leaves them.
func (c *Pickers) Round(t *testing.T, client *relock.Client, size int, work func()) {
	t.Helper()
	picked := rand.Perm(len(c.Names))[:size]
	var names []string
	for _, i := range picked {
		names = append(names, c.Names[i])
	}
	err := client.NewLocks(names).Do(t.Context(), func(context.Context) error {
		for _, i := range picked {
			if n := c.inside[i].Add(1); n != 1 {
				t.Errorf("%d are in %q", n, c.Names[i])
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
	Fake(t, func(t *testing.T, w *World) {
		c := NewPickers(12)
		var all sync.WaitGroup
		clients := []*Member{w.NewClient(), w.NewClient(), w.NewClient(relock.WithLocalPass(0, 0))}
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

// onTen returns the names of ten locks.
func onTen() (names []string) {
	for i := range 10 {
		names = append(names, fmt.Sprint("ten", i))
	}
	return names
}

func TestTenLocksInRedisCostTwoCommands(t *testing.T) {
	w := OnShared(t)
	l := w.Peer().NewLocks(onTen())
	section := w.EnterAll(t.Context(), l) // connects
	require.NoError(t, l.Unlock(section))
	before := w.Calls()
	section = w.EnterAll(t.Context(), l)
	for _, name := range l.Names() {
		w.RequireOwner(name, section)
		require.InDelta(t, relock.DefaultTTL, w.Lease(name), float64(time.Second))
	}
	require.NoError(t, l.Unlock(section))
	after := w.Calls()
	require.Equal(t, 2, after["evalsha"]-before["evalsha"])
	w.RequireFree(l.Names()...)
}

func TestTryLockOfLocksInRedisNamesTheTakenOne(t *testing.T) {
	w := OnShared(t)
	p, other := w.Peer(), w.Peer()
	section := w.Enter(t.Context(), other.NewLock("ten7"))
	l := p.NewLocks(onTen())
	_, err := l.TryLock(t.Context())
	RequireRefusedBy(t, "ten7", err)
	require.Equal(t, []string{BaseKey("ten7")}, redistest.Keys(t, w.Plain))
	waiting := w.Begin(t.Context(), l.Lock)
	w.AwaitWaiters("ten7", 1)
	w.Leave(section, other.NewLock("ten7"))
	require.NoError(t, l.Unlock(waiting.Section()))
}

func TestALostReplyToTheOneStepInRedisIsAskedForAgain(t *testing.T) {
	for name, kind := range Breaks {
		t.Run(name, func(t *testing.T) {
			w := OnShared(t)
			p := w.Peer()
			p.Connect(t, 2)
			l := p.NewLocks(onTen())
			p.Faults.Once(w.Script(LuaAll), redistest.DropReply(kind))
			section, err := l.TryLock(t.Context())
			require.NoError(t, err)
			Keep(t, section)
			for _, name := range l.Names() {
				w.RequireCount(name, 1)
				require.LessOrEqual(t, w.Lease(name), relock.DefaultTTL)
			}
			p.Faults.Once(w.Script(LuaRelease), redistest.DropReply(kind))
			require.NoError(t, l.Unlock(section))
			w.RequireFree(l.Names()...)
		})
	}
}

func TestLocksBehindDeadWaitersAreTaken(t *testing.T) {
	w := OnShared(t)
	key := BaseKey("ten3") + ":queue"
	var dead []redis.Z
	for i := range 150 {
		dead = append(dead, redis.Z{Score: float64(i + 1), Member: fmt.Sprintf("dead:1:%d|30000", i)})
	}
	require.NoError(t, w.Plain.ZAdd(t.Context(), key, dead...).Err())
	require.NoError(t, w.Plain.PExpire(t.Context(), key, time.Minute).Err())
	l := w.Peer().NewLocks(onTen())
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Unlock(section))
	require.Empty(t, redistest.Keys(t, w.Plain))
}

func TestMoreLocksThanOneScriptTakes(t *testing.T) {
	w := OnShared(t)
	p := w.Peer()
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprint("many", i))
	}
	one := w.Counter(p, LuaAll)
	require.NoError(t, p.NewLocks(names[:256]).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
	require.NoError(t, p.NewLocks(names).Do(t.Context(), func(context.Context) error { return nil }))
	require.Equal(t, 1, one())
}

func TestLocksOnACluster(t *testing.T) {
	w := OnCluster(t)
	w.LoadScripts()
	p := w.Peer()
	one, each := w.Counter(p, LuaAll), w.Counter(p, LuaAcquire)
	spread := w.OneForEachMaster()
	section := w.EnterAll(t.Context(), p.NewLocks(spread))
	require.Equal(t, []int{0, 3}, []int{one(), each()}, "different slots")
	require.NoError(t, p.NewLocks(spread).Unlock(section))

	tagged := []string{"{user:7}:cart", "{user:7}:stock", "{user:7}"}
	section = w.EnterAll(t.Context(), p.NewLocks(tagged))
	require.Equal(t, []int{1, 3}, []int{one(), each()}, "one slot")
	_, err := w.Peer().NewLocks(append(slices.Clone(spread), tagged[1])).TryLock(t.Context())
	RequireRefusedBy(t, tagged[1], err)
	require.NoError(t, p.NewLocks(tagged).Unlock(section))
}

func TestLocksOfASlotThatMoves(t *testing.T) {
	w := OnCluster(t)
	p := w.Peer()
	spread := w.OneForEachMaster()
	names := []string{"{" + spread[0] + "}:a", "{" + spread[0] + "}:b", "{" + spread[0] + "}:c"}
	l := p.NewLocks(names)
	held := w.EnterAll(t.Context(), p.NewLocks(names[:1]))
	move := w.Cluster.BeginMove(spread[0], w.Cluster.MasterFor(spread[1]))
	_, err := l.TryLock(relock.WithoutHolder(held))
	require.Error(t, err) // the held key is here, and the others are nowhere
	waiting := w.Begin(t.Context(), l.Lock)
	move.MoveKeys(BaseKey(names[0]))
	move.Finish()
	require.NoError(t, p.NewLocks(names[:1]).Unlock(held))
	require.NoError(t, l.Unlock(waiting.Section()))
}

func TestRandomSetsOfLocksInRedis(t *testing.T) {
	w := OnShared(t)
	c := NewPickers(12)
	peers := []*Peer{w.Peer(), w.Peer()}
	var all sync.WaitGroup
	for g := range 32 {
		all.Go(func() {
			for c.Rounds.Add(1) <= 500 {
				c.Round(t, peers[g%2].Client, 4+g%5, func() {})
			}
		})
	}
	all.Wait()
	w.RequireFree(c.Names...)
}

// TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter takes a and a read inside of a write. The
// Unlock of the writer ends the entry of a, and the read goes on by itself: the section of both must
// not.
func TestTheLossOfALockIsToldToAReaderThatOutlivesItsWriter(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
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
