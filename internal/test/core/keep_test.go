package core_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
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
	"github.com/go-relock/relock/ticket"
)

// How does a client keep a lock that nobody else wants?

const keptFor = 10 * time.Second

// keeping returns a client that keeps the lock a, and has left a section of it just now.
func keeping(w *stage.World, options ...relock.Option) (*stage.Member, *relock.Lock) {
	w.T.Helper()
	m := w.NewClient(append([]relock.Option{relock.WithKeep(keptFor)}, options...)...)
	l := m.NewLock("a")
	w.Leave(w.Enter(w.T.Context(), l), l)
	m.Link.Reset()
	return m, l
}

// kept is a world with a client that keeps the lock a.
type kept struct {
	*stage.World
	m        *stage.Member
	l, other *relock.Lock   // of m, and of a client without the option
	hooks    stage.Recorder // of m
	book     stage.Logbook  // the errors of m
}

func onKept(t *testing.T, test func(k *kept), options ...relock.Option) {
	t.Helper()
	stage.Fake(t, func(_ *testing.T, w *stage.World) {
		k := &kept{World: w, other: w.NewClient().NewLock("a")}
		k.book.Least = slog.LevelError
		k.m, k.l = keeping(w, append(options, relock.WithHooks(k.hooks.Hooks()), relock.WithLogger(k.book.Logger()))...)
		test(k)
	})
}

// eachKept runs a test for each case, in a world of its own.
func eachKept[C any](t *testing.T, cases map[string]C, test func(k *kept, c C), options ...relock.Option) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { onKept(t, func(k *kept) { test(k, c) }, options...) })
	}
}

type story = func(k *kept)

func (k *kept) enter(l *relock.Lock) context.Context { return k.Enter(k.T.Context(), l) }
func (k *kept) start(l *relock.Lock) *stage.Attempt  { return k.Start(k.T.Context(), l) }
func (k *kept) begin(f stage.Locking) *stage.Attempt { return k.Begin(k.T.Context(), f) }
func (k *kept) visit(l *relock.Lock)                 { k.Leave(k.enter(l), l) }

// visits is a number of sections of a millisecond, and their order.
type visits struct {
	all   sync.WaitGroup
	order []string
}

func (v *visits) start(t *testing.T, name string, l *relock.Lock) {
	v.all.Go(func() {
		require.NoError(t, l.Do(t.Context(), func(context.Context) error {
			v.order = append(v.order, name)
			<-time.After(time.Millisecond)
			return nil
		}))
	})
	stage.Settle()
}

func TestALockThatIsKeptIsTakenAgainWithoutACommand(t *testing.T) {
	onKept(t, func(k *kept) {
		look := func(l *relock.Lock, kept bool) relock.Holder {
			state, err := l.State(k.T.Context())
			require.NoError(k.T, err)
			require.True(k.T, state.Locked())
			require.Equal(k.T, kept, state.Kept)
			return state.Holder
		}
		owner, last := k.Owner("a"), int64(0)
		for range 5 {
			section := k.enter(k.l)
			require.Equal(k.T, 1, k.l.Count(section))
			require.Equal(k.T, stage.HolderOf(k.T, section), look(k.l, false))
			token, err := k.l.Token(section)
			require.NoError(k.T, err)
			require.Greater(k.T, token, last)
			last = token
			k.Leave(section, k.l)
			require.False(k.T, k.l.Held(section))
			require.ErrorIs(k.T, k.l.Unlock(section), relock.ErrNotHeld)
			look(k.l, true)
			look(k.other, false)
			k.visit(k.l)
			require.Equal(k.T, owner, k.Owner("a"), "for the store it is one hold throughout")
		}
		require.Equal(k.T, 5, k.m.Link.Sent(stage.CmdToken))
		require.Equal(k.T, 15, k.m.Link.Sent())
	})
}

func TestALockIsKeptForItsTimeAndReleasedWithOneCommand(t *testing.T) {
	onKept(t, func(k *kept) {
		stage.Pass(keptFor - time.Millisecond)
		require.NotEmpty(k.T, k.Owner("a"), "the watchdog renews the lease")
		require.Equal(k.T, 4, k.m.Link.Sent())
		require.Equal(k.T, 4, k.m.Link.Sent(stage.CmdRenew))
		k.m.Link.Reset()
		stage.Pass(time.Millisecond)
		require.Empty(k.T, k.Owner("a"))
		stage.Pass(time.Hour)
		require.Equal(k.T, 1, k.m.Link.Sent(), "nothing is left over")
		require.Equal(k.T, 1, k.m.Link.Sent(stage.CmdRelease))
	}, relock.WithTTL(7*time.Second))
}

// Whoever cannot ask waits for the time of the keep, and a section.
func TestALockIsKeptForItsTimeAtMostWhileItIsUsed(t *testing.T) {
	eachKept(t, map[string]int{"not at all": 0, "now and then": 1, "all the time": 3}, func(k *kept, users int) {
		c, err := relock.Open(struct{ store.Store }{stage.NewLink(k.Store)}) // asks nobody
		require.NoError(k.T, err)
		defer func() { require.NoError(k.T, c.Close()) }()
		waiting := k.start(c.NewLock("a"))
		ctx, cancel := context.WithCancel(k.T.Context())
		var all sync.WaitGroup
		for range users {
			all.Go(func() {
				for k.l.Do(ctx, func(ctx context.Context) error { <-time.After(time.Second / 2); return ctx.Err() }) == nil {
					<-time.After(time.Second / 2)
				}
			})
		}
		require.LessOrEqual(k.T, waiting.Took(), keptFor+time.Second)
		cancel()
		waiting.Leave()
		all.Wait()
	})
}

func TestALockIsKeptForLongerThanItsLongestHold(t *testing.T) {
	onKept(t, func(k *kept) {
		stage.Pass(time.Hour - time.Second)
		k.m.Link.Reset()
		section := k.enter(k.l)
		require.Zero(k.T, k.m.Link.Sent())
		require.Equal(k.T, event.LossMaxHold, k.Lost(section))
	}, relock.WithKeep(time.Hour), relock.WithTTL(time.Second), relock.WithMaxHold(2*time.Second))
}

func TestEachSectionOfAKeptLockHasItsEvents(t *testing.T) {
	onKept(t, func(k *kept) {
		stage.Pass(time.Second)
		k.visit(k.l)
		stage.Pass(keptFor)
		k.visit(k.l)
		require.NoError(k.T, k.m.Close())
		events := slices.DeleteFunc(k.hooks.Kinds(), func(kind string) bool { return kind == "Renewed" })
		require.Equal(k.T, slices.Repeat([]string{"AcquireStarted", "AcquireFinished", "Released"}, 3), events, "none of the time between")
		ends := stage.EventsOf[event.Released](&k.hooks)
		for _, e := range ends {
			require.Zero(k.T, e.Held)
		}
		require.NotEqual(k.T, ends[0].Holder, ends[1].Holder)
	})
}

func TestCloseFreesAllKeptLocksWithFewCommands(t *testing.T) {
	onKept(t, func(k *kept) {
		for i := range 3000 {
			k.visit(k.m.NewLock(fmt.Sprint(i)))
		}
		k.m.Link.Reset()
		require.NoError(k.T, k.m.Close())
		for i := range 3000 {
			require.True(k.T, k.Free(fmt.Sprint(i)))
		}
		require.LessOrEqual(k.T, k.m.Link.Sent(), 30)
	})
}

func TestALossOfAKeptLockIsTheLossOfNoSection(t *testing.T) {
	eachKept(t, map[string]story{
		"the store loses it": func(k *kept) { k.Store.Lose("a") },
		"it is forced":       func(k *kept) { require.NoError(k.T, k.other.ForceUnlock(k.T.Context())) },
		"no renewal is confirmed": func(k *kept) {
			k.m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
			stage.Pass(3 * time.Second)
			k.m.Link.Heal()
		},
		"the next renewal finds it": func(k *kept) {
			k.m.Link.Deaf()
			k.Store.Lose("a")
			stage.Pass(time.Second)
		},
	}, func(k *kept, lose story) {
		stage.Pass(time.Second)
		lose(k)
		stage.Settle()
		k.RequireFree("a")
		require.Empty(k.T, stage.EventsOf[event.Lost](&k.hooks))
		for _, e := range stage.EventsOf[event.Renewed](&k.hooks) {
			require.Zero(k.T, e.Lost)
		}
		require.Empty(k.T, k.book.About(""))
		section := k.enter(k.other)
		_, err := k.l.TryLock(k.T.Context())
		require.ErrorIs(k.T, err, relock.ErrLocked)
		require.NoError(k.T, section.Err())
	}, relock.WithTTL(3*time.Second))
}

func TestALossThatAnUnlockDidNotFindIsInTheLog(t *testing.T) {
	eachKept(t, map[string]bool{"in the last section": true, "long after it": false}, func(k *kept, isIn bool) {
		k.book.Least = slog.LevelWarn
		stage.Pass(time.Minute) // the store has confirmed the last section
		section := context.Context(nil)
		if isIn {
			section = k.enter(k.l)
		}
		k.m.Link.Deaf()
		k.Store.Lose("a") // as by a command of an operator, or a failover
		k.visit(k.other)
		stage.Pass(time.Second)
		if isIn {
			require.NoError(k.T, section.Err(), "two were in")
			k.Leave(section, k.l)
		}
		stage.Pass(time.Minute)
		require.Equal(k.T, isIn, len(k.book.About("a lock was lost while it was kept")) == 1)
	}, relock.WithKeep(time.Hour))
}

func TestALockIsKeptOnlyWhereTheNextSectionMayHaveItsLease(t *testing.T) {
	eachKept(t, map[string]func(k *kept, section context.Context){
		"its ticket may be used": func(k *kept, section context.Context) {
			_, err := ticket.ToResume(section, k.l)
			require.NoError(k.T, err)
		},
		"the lease is half over": func(k *kept, _ context.Context) {
			k.m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
			stage.Pass(16 * time.Second)
		},
		"the count is in doubt": func(k *kept, section context.Context) {
			inner := k.Enter(section, k.l)
			k.m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdEnter, stage.CmdRenew)
			require.ErrorIs(k.T, k.l.Unlock(inner), stage.ErrBroken)
			stage.Settle()
		},
		"the longest hold is nearly over": func(*kept, context.Context) { stage.Pass(50 * time.Second) },
		"the client is closed":            func(k *kept, _ context.Context) { require.NoError(k.T, k.m.Close()) },
	}, func(k *kept, trouble func(k *kept, section context.Context)) {
		section := k.enter(k.l)
		trouble(k, section)
		k.Leave(section, k.l)
		require.True(k.T, k.Free("a"), "at once")
	}, relock.WithMaxHold(time.Minute))
}

// Whoever is refused asks, and the section in progress frees the lock at its end.

func TestSomebodyElseGetsAKeptLockAtOnceOrAtTheEndOfTheSection(t *testing.T) {
	onKept(t, func(k *kept) {
		waiting := k.start(k.other)
		require.Zero(k.T, waiting.Took())
		require.Equal(k.T, 1, k.m.Link.Sent(stage.CmdRelease))
		waiting.Leave()
		section := k.enter(k.l)
		waiting = k.start(k.other)
		stage.Pass(time.Second)
		require.True(k.T, waiting.Waits())
		require.NoError(k.T, section.Err())
		next := k.start(k.l)
		k.Leave(section, k.l)
		require.False(k.T, waiting.Waits())
		require.Equal(k.T, 2, k.m.Link.Sent(stage.CmdRelease))
		require.True(k.T, next.Waits())
		waiting.Leave()
		next.Leave()
		require.True(k.T, k.Free("a"), "as it came out of the queue")
	})
}

func TestTheFirstSectionOfALockIsAskedForAtItsGrant(t *testing.T) {
	onKept(t, func(k *kept) {
		k.visit(k.other)
		k.m.Link.Once(stage.Delay(0, time.Second), stage.CmdWait)
		entering, waiting := k.start(k.l), k.start(k.other) // the answer is on its way
		section := entering.Section()
		require.True(k.T, waiting.Waits())
		k.Leave(section, k.l)
		require.False(k.T, waiting.Waits())
		waiting.Leave()
	})
}

func TestAReleaseWithASlowAnswerHoldsUpNobodyOfItsClient(t *testing.T) {
	onKept(t, func(k *kept) {
		section := k.enter(k.l)
		k.m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
		stage.Pass(16 * time.Second) // half of the lease is over, so that the lock is not kept
		k.m.Link.Heal()
		next := k.start(k.l)
		k.m.Link.Once(stage.Mute, stage.CmdRelease)
		unlocking, left := k.Begin(section, stage.Unlock(k.l)), time.Now()
		next.Section()
		require.Less(k.T, next.Ended.Sub(left), time.Second)
		next.Leave()
		k.m.Link.Heal()
		_, _ = unlocking.Result()
	})
}

func TestACallWithoutAnAnswerHoldsUpNobodyOfItsClient(t *testing.T) {
	onKept(t, func(k *kept) {
		k.visit(k.other)
		k.m.Link.Once(stage.Delay(time.Minute, 0), stage.CmdWait) // sent on a connection that is dead
		head, second := k.start(k.l), k.start(k.l)
		require.True(k.T, second.Comes(3*time.Second), "the lock is free")
		second.Leave()
		head.Leave()
	})
}

func TestALockThatIsBeingFreedIsNotTaken(t *testing.T) {
	onKept(t, func(k *kept) {
		owner := k.Owner("a")
		k.m.Link.Once(stage.Delay(time.Second, 0), stage.CmdRelease)
		stage.Pass(keptFor)
		next := k.start(k.l)
		require.Equal(k.T, time.Second, next.Took())
		require.NotEqual(k.T, owner, k.Owner("a"))
		next.Leave()
	})
}

// endedContext does something as the library asks for a value after the end of the context.
type endedContext struct {
	context.Context
	do func()
}

func (c *endedContext) Value(key any) any {
	if c.Err() != nil {
		c.do()
	}
	return c.Context.Value(key)
}

func TestALeaseIsNotPassedToACallThatHasEnded(t *testing.T) {
	onKept(t, func(k *kept) {
		k.visit(k.other)
		k.m.Link.Once(stage.Delay(0, time.Second), stage.CmdWait)
		first, isLeft := k.start(k.l), false
		ctx, cancel := context.WithCancel(k.T.Context())
		leave := sync.OnceFunc(func() { isLeft = true; first.Leave() })
		second := k.Start(&endedContext{ctx, leave}, k.l)
		section := first.Section()
		cancel()
		require.Error(k.T, second.Failure())
		require.True(k.T, isLeft, "while the call was about to end")
		require.ErrorIs(k.T, k.l.Unlock(section), relock.ErrNotHeld)
		next := k.start(k.other)
		require.Less(k.T, next.Took(), time.Second)
		next.Leave()
	})
}

// A hold that had to ask twice has an ID that nobody asks.
func TestALockWhoseFirstLeaseWasOverIsNotKept(t *testing.T) {
	onKept(t, func(k *kept) {
		k.visit(k.other)
		k.m.Link.Once(stage.Delay(0, time.Minute), stage.CmdWait)
		k.visit(k.l)
		require.True(k.T, k.Free("a"))
	})
}

// A call that does not wait tries for a moment.

func TestATryLockElsewhereGetsAKeptLock(t *testing.T) {
	eachKept(t, map[string]func(m *stage.Member) stage.Locking{
		"TryLock":               func(m *stage.Member) stage.Locking { return m.NewLock("a").TryLock },
		"TryLockFor":            func(m *stage.Member) stage.Locking { return stage.TryFor(m.NewLock("a"), time.Millisecond) },
		"all of one":            func(m *stage.Member) stage.Locking { return m.NewLocks([]string{"a"}).TryLock },
		"all of two":            func(m *stage.Member) stage.Locking { return m.NewLocks([]string{"b", "a"}).TryLock },
		"all of two, both kept": func(m *stage.Member) stage.Locking { return m.NewLocks([]string{"a", "c"}).TryLock },
	}, func(k *kept, lock func(m *stage.Member) stage.Locking) {
		k.visit(k.m.NewLock("c"))
		a := k.begin(lock(k.NewClient()))
		stage.Keep(k.T, a.Section())
		require.LessOrEqual(k.T, a.Took(), 20*time.Millisecond)
	})
}

func TestATryLockBesideASectionOfAKeptLock(t *testing.T) {
	eachKept(t, map[string]story{
		"of another client asks, and does not wait for the end": func(k *kept) {
			section, m := k.enter(k.l), k.NewClient()
			a := k.begin(m.NewLock("a").TryLock)
			stage.RequireRefusedBy(k.T, "a", a.Failure())
			require.Equal(k.T, 10*time.Millisecond, a.Took())
			require.Equal(k.T, 1, m.Link.Sent(stage.CmdWant))
			require.Equal(k.T, 3, m.Link.Sent())
			require.NoError(k.T, section.Err())
			k.Leave(section, k.l)
			require.True(k.T, k.Free("a"), "as somebody has asked")
		},
		"of the same client asks the store": func(k *kept) {
			section := k.enter(k.l)
			a := k.begin(k.l.TryLock)
			stage.RequireRefusedBy(k.T, "a", a.Failure())
			require.Zero(k.T, a.Took())
			require.Equal(k.T, 1, k.m.Link.Sent())
			k.Leave(section, k.l)
			k.m.Link.Reset()
			section, err := k.l.TryLock(k.T.Context())
			require.NoError(k.T, err)
			k.Leave(section, k.l)
			k.visit(k.l)
			require.Zero(k.T, k.m.Link.Sent(), "a TryLock takes a kept lock, too, and lets it be kept")
		},
		"that fails holds up no call behind it": func(k *kept) {
			section, mine := k.enter(k.l), k.NewClient(relock.WithKeep(keptFor)).NewLock("a")
			tried := k.begin(mine.TryLock)
			stage.Pass(5 * time.Millisecond)
			first, second := k.start(mine), k.start(k.other)
			stage.Pass(time.Second)
			require.Error(k.T, tried.Failure())
			k.Leave(section, k.l)
			first.Section()
			require.True(k.T, second.Waits(), "the order is that of the calls")
			first.Leave()
			second.Leave()
		},
	}, func(k *kept, s story) { s(k) })
}

// Calls that cannot have the lease of a kept lock get one of their own.

func TestOtherCallsOfTheClientGetAKeptLock(t *testing.T) {
	type call struct {
		lock  func(m *stage.Member) stage.Locking
		lease time.Duration
	}
	eachKept(t, map[string]call{
		"without the option":     {func(m *stage.Member) stage.Locking { return m.NewLock("a", relock.WithKeep(0)).Lock }, 30 * time.Second},
		"a try without it":       {func(m *stage.Member) stage.Locking { return m.NewLock("a", relock.WithKeep(0)).TryLock }, 30 * time.Second},
		"several without it":     {func(m *stage.Member) stage.Locking { return m.NewLocks([]string{"a", "b"}, relock.WithKeep(0)).TryLock }, 30 * time.Second},
		"another TTL":            {func(m *stage.Member) stage.Locking { return m.NewLock("a", relock.WithTTL(20*time.Second)).Lock }, 20 * time.Second},
		"a try with another TTL": {func(m *stage.Member) stage.Locking { return m.NewLock("a", relock.WithTTL(20*time.Second)).TryLock }, 20 * time.Second},
		"another delay":          {func(m *stage.Member) stage.Locking { return m.NewLock("a", relock.WithLockDelay(time.Second)).Lock }, 31 * time.Second},
		"a leader":               {func(m *stage.Member) stage.Locking { return m.NewLock("a").Internal().Lead }, 30 * time.Second},
	}, func(k *kept, c call) {
		owner := k.Owner("a")
		a := k.begin(c.lock(k.m))
		section := a.Section()
		stage.Keep(k.T, section)
		require.NotEqual(k.T, owner, k.Owner("a"))
		require.LessOrEqual(k.T, a.Took(), 10*time.Millisecond)
		require.NoError(k.T, section.Err())
		k.RequireCount("a", 1)
		require.Equal(k.T, c.lease, k.Lease("a"))
	})
}

func TestAnOptionThatCannotBeKeptIsRefused(t *testing.T) {
	onKept(t, func(k *kept) {
		for _, l := range []*relock.Lock{
			k.m.NewLock("a", relock.WithKeep(-1)),
			k.m.NewLock("a", relock.WithKeep(relock.MaxTTL+1)),
			k.m.NewLock("a", relock.WithFixedLease(time.Second)),
			k.m.NewLock("a", relock.WithMaxWaiters(1)),
			k.m.NewSemaphore("a", 2),
			k.m.NewRWLock("a").Writer(),
			k.m.NewRWLock("a").RLocker(),
		} {
			stage.RequireInvalid(k.T, k.m, l)
		}
		require.NoError(k.T, k.m.NewSemaphore("a", 2, relock.WithKeep(0)).Err())
		for _, s := range []store.Store{struct{ store.Store }{mem.New()}, &racing{Link: stage.NewLink(k.Store)}} {
			_, err := relock.Open(s, relock.WithKeep(time.Second))
			require.ErrorIs(k.T, err, relock.ErrInvalid)
			require.ErrorIs(k.T, err, errors.ErrUnsupported)
			c, err := relock.Open(s)
			require.NoError(k.T, err)
			require.ErrorIs(k.T, c.NewLock("a", relock.WithKeep(time.Second)).Err(), errors.ErrUnsupported)
			require.NoError(k.T, c.Close())
		}
	})
}

func TestAKeptLeaseThatIsHalfOverIsNotTaken(t *testing.T) {
	onKept(t, func(k *kept) {
		k.m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
		stage.Pass(16 * time.Second)
		owner := k.Owner("a")
		require.NotEmpty(k.T, owner)
		section := k.enter(k.l)
		require.NotEqual(k.T, owner, k.Owner("a"))
		require.Greater(k.T, k.l.Remaining(section), 25*time.Second)
		k.Leave(section, k.l)
	}, relock.WithKeep(time.Hour))
}

func TestAllOfKeptLocksTakesThemWithoutACommand(t *testing.T) {
	onKept(t, func(k *kept) {
		all := k.m.NewLocks([]string{"a", "b", "c"})
		for range 3 {
			require.NoError(k.T, all.Unlock(k.EnterAll(k.T.Context(), all)))
		}
		require.Equal(k.T, 2, k.m.Link.Sent())
	})
}

// The calls of a client wait in its line only while nobody else has asked.

func TestCallsInTheLineQueueInTheStoreOnceSomebodyElseWaits(t *testing.T) {
	onKept(t, func(k *kept) {
		section := k.enter(k.l)
		var v visits
		for _, name := range []string{"own 1", "own 2", "own 3", "own 4"} {
			v.start(k.T, name, k.l)
		}
		require.Zero(k.T, k.Waiters("a"))
		v.start(k.T, "other", k.other)
		require.Equal(k.T, 5, k.Waiters("a"))
		v.start(k.T, "own 5", k.l)
		v.start(k.T, "last", k.other)
		require.Equal(k.T, 7, k.Waiters("a"))
		k.Leave(section, k.l)
		v.all.Wait()
		slices.Sort(v.order[1:5]) // they go to the queue together
		require.Equal(k.T, []string{"other", "own 1", "own 2", "own 3", "own 4", "own 5", "last"}, v.order)
		k.RequireFree("a")
		k.visit(k.l) // nobody has called meanwhile, and the line forms anew
		k.m.Link.Reset()
		for i := range 20 {
			v.start(k.T, fmt.Sprintf("%02d", i), k.l)
		}
		v.all.Wait()
		require.IsIncreasing(k.T, v.order[7:])
		require.Len(k.T, v.order[7:], 20)
		require.Zero(k.T, k.m.Link.Sent(), "the lease was passed on")
	})
}

func TestTheOrderIsThatOfAllBehindALockThatIsNotKept(t *testing.T) {
	eachKept(t, map[string]func(k *kept) *relock.Lock{
		"of another client":            func(k *kept) *relock.Lock { return k.other },
		"of a call without the option": func(k *kept) *relock.Lock { return k.m.NewLock("a", relock.WithKeep(0)) },
	}, func(k *kept, lock func(k *kept) *relock.Lock) {
		var v visits
		before := lock(k)
		section := k.enter(before)
		v.start(k.T, "own 1", k.l)
		stage.Pass(2 * time.Second)
		v.start(k.T, "own 2", k.l)
		v.start(k.T, "other", k.other)
		v.start(k.T, "own 3", k.l)
		require.Equal(k.T, 4, k.Waiters("a"))
		k.Leave(section, before)
		v.all.Wait()
		require.Equal(k.T, []string{"own 1", "own 2", "other", "own 3"}, v.order)
		require.Zero(k.T, k.m.Link.Sent(stage.CmdWant), "nobody keeps the lock")
	})
}

func TestACallWithoutTheOptionComesBeforeTheLine(t *testing.T) {
	onKept(t, func(k *kept) {
		var v visits
		section := k.enter(k.l)
		v.start(k.T, "in the line", k.l)
		v.start(k.T, "without", k.m.NewLock("a", relock.WithKeep(0)))
		v.start(k.T, "behind both", k.l)
		k.Leave(section, k.l)
		v.all.Wait()
		require.Equal(k.T, []string{"without", "in the line", "behind both"}, v.order)
	})
}

func TestACallInTheLineOfAKeptLock(t *testing.T) {
	eachKept(t, map[string]story{
		"says who has the lock when it ends": func(k *kept) {
			section := k.enter(k.l)
			first, second := k.begin(stage.TryFor(k.l, time.Second)), k.start(k.l)
			var refusal *relock.LockedError
			require.ErrorAs(k.T, first.Failure(), &refusal)
			require.Equal(k.T, stage.HolderOf(k.T, section), refusal.Holder)
			for i, e := range stage.EventsOf[event.Queued](&k.hooks) {
				require.Equal(k.T, i, e.Position)
			}
			require.Positive(k.T, refusal.TTL)
			require.Equal(k.T, time.Second, first.Took())
			k.Leave(section, k.l)
			second.Leave()
			require.Zero(k.T, k.m.Link.Sent())
		},
		"is refused by the section of a head that has asked": func(k *kept) {
			k.visit(k.other)
			k.m.Link.Once(stage.Delay(0, time.Millisecond), stage.CmdWait)
			first, second := k.start(k.l), k.begin(stage.TryFor(k.l, time.Second))
			first.Section()
			require.NotErrorIs(k.T, second.Failure(), relock.ErrUnavailable)
			stage.RequireRefusedBy(k.T, "a", second.Err)
			first.Leave()
		},
		"asks the store after the end of a head without an answer": func(k *kept) {
			k.visit(k.other)
			k.m.Link.Cut()
			head, next := k.begin(stage.TryFor(k.l, time.Second)), k.start(k.l)
			require.Error(k.T, head.Failure())
			k.m.Link.Heal()
			next.Leave()
			require.Less(k.T, next.Took(), 3*time.Second)
		},
		"with another TTL gets the lock in its turn": func(k *kept) {
			section, long := k.enter(k.l), k.m.NewLock("a", relock.WithTTL(time.Minute))
			first, second := k.start(long), k.start(k.l)
			k.Leave(section, k.l)
			require.Greater(k.T, long.Remaining(first.Section()), 50*time.Second)
			require.True(k.T, second.Waits())
			first.Leave()
			require.Less(k.T, k.l.Remaining(second.Section()), 50*time.Second)
			second.Leave()
		},
		"finds a circle of waits behind a head that asks": func(k *kept) {
			k.visit(k.other)
			b := k.m.NewLock("b")
			inB := k.enter(b)
			k.m.Link.Once(stage.Delay(0, 10*time.Millisecond), stage.CmdWait)
			head, second := k.start(k.l), k.Start(inB, k.l)
			inA := head.Section()
			require.ErrorIs(k.T, k.Start(inA, b).Failure(), relock.ErrDeadlock, "it began last")
			k.Leave(inA, k.l)
			k.Leave(second.Section(), k.l)
			k.Leave(inB, b)
		},
	}, func(k *kept, s story) { s(k) })
}

// Somebody takes the lock away.

func TestNobodyEntersAKeptLockBesideAnotherAfterAForceUnlock(t *testing.T) {
	type force struct{ isIn, isOwn bool }
	eachKept(t, map[string]force{"": {}, "of a section": {isIn: true}, "by its client": {isOwn: true}, "of a section, by its client": {true, true}},
		func(k *kept, f force) {
			stage.Pass(time.Millisecond) // no watch has begun
			section, by := context.Context(nil), k.other
			if f.isIn {
				section = k.enter(k.l)
			}
			if f.isOwn {
				by = k.l
			}
			require.NoError(k.T, by.ForceUnlock(k.T.Context()))
			theirs, err := k.other.TryLock(k.T.Context())
			require.NoError(k.T, err)
			if f.isIn {
				require.ErrorIs(k.T, k.l.Unlock(section), relock.ErrLockLost)
			}
			_, err = k.l.TryLock(k.T.Context())
			require.ErrorIs(k.T, err, relock.ErrLocked)
			k.Leave(theirs, k.other)
		})
}

func TestAForceUnlockOfAKeptLockSparesALaterSection(t *testing.T) {
	onKept(t, func(k *kept) {
		m := k.NewClient()
		m.Link.Once(stage.Delay(time.Second, 0), stage.CmdBreak)
		forcing := k.begin(func(ctx context.Context) (context.Context, error) { return ctx, m.NewLock("a").ForceUnlock(ctx) })
		section := k.enter(k.l) // has begun after the operator has looked
		require.NoError(k.T, forcing.Failure())
		stage.Settle()
		require.NoError(k.T, section.Err())
		k.Leave(section, k.l)
	})
}

func TestASilentMessageHoldsUpNoForceUnlockAndNoTryLock(t *testing.T) {
	onKept(t, func(k *kept) {
		m := k.NewClient()
		m.Link.On(stage.Silence, stage.CmdWant)
		a := k.begin(m.NewLock("a").TryLock)
		stage.RequireRefusedBy(k.T, "a", a.Failure())
		require.LessOrEqual(k.T, a.Took(), 500*time.Millisecond)
		require.NoError(k.T, m.NewLock("a").ForceUnlock(k.T.Context()))
		require.True(k.T, k.Free("a"))
	})
}

// A request may be lost, late, or for another lock.

// changing is a store that changes what it gives.
type changing struct {
	*mem.Store
	waits  atomic.Int32
	wanted func(store.ID)
	change func(s *changing, l *store.Lease)
}

func (s *changing) WatchWanted(_ string, wanted func(store.ID)) func() {
	s.wanted = wanted
	return func() {}
}

func (s *changing) Wait(ctx context.Context, a store.Claim, p func(store.Progress)) (store.Lease, error) {
	s.waits.Add(1)
	l, err := s.Store.Wait(ctx, a, p)
	s.change(s, &l)
	return l, err
}

// onChanging runs a test of a client that keeps its locks in such a store.
func onChanging(t *testing.T, change func(s *changing, l *store.Lease), test func(t *testing.T, s *changing, l *relock.Lock)) {
	t.Helper()
	stage.Fake(t, func(t *testing.T, _ *stage.World) {
		s := &changing{Store: mem.New(), change: change}
		c, err := relock.Open(s, relock.WithKeep(keptFor))
		require.NoError(t, err)
		test(t, s, c.NewLock("a"))
		require.NoError(t, c.Close())
	})
}

func TestALeaseThatSomebodyMayWaitForIsNotKept(t *testing.T) {
	for name, change := range map[string]func(s *changing, l *store.Lease){
		"requests may have been lost":              func(s *changing, _ *store.Lease) { s.wanted("") },
		"an earlier attempt may have queued":       func(_ *changing, l *store.Lease) { l.Unsure = true },
		"it came out of the queue, and in silence": func(_ *changing, l *store.Lease) { l.Woken = store.WakeRecheck },
	} {
		t.Run(name, func(t *testing.T) {
			onChanging(t, change, func(t *testing.T, _ *changing, l *relock.Lock) {
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				state, err := l.State(t.Context())
				require.NoError(t, err)
				require.False(t, state.Locked())
			})
		})
	}
}

func TestALineGoesOnAfterARequestMayHaveBeenLost(t *testing.T) {
	onChanging(t, func(*changing, *store.Lease) {}, func(t *testing.T, s *changing, l *relock.Lock) {
		var v visits
		for i := range 9 {
			v.start(t, fmt.Sprint(i), l)
		}
		s.wanted("")
		v.all.Wait()
		require.IsIncreasing(t, v.order)
		require.EqualValues(t, 2, s.waits.Load(), "once more")
		s.wanted("")
		stage.Settle()
		require.NoError(t, stage.ErrorOf(s.Try(t.Context(), store.Claim{Name: "a", ID: "x:1", TTL: time.Minute, Limit: 1})), "nobody keeps it")
	})
}

func TestNobodyAsksForALockThatIsNotKept(t *testing.T) {
	onKept(t, func(k *kept) {
		other, third := k.NewClient(), k.NewClient()
		section := k.enter(k.l)
		theirs, mine := k.start(other.NewLock("a")), k.start(k.l)
		k.Leave(section, k.l)
		theirs.Leave()
		mine.Section()
		last := k.start(third.NewLock("a"))
		require.True(k.T, last.Waits())
		require.Equal(k.T, 1, other.Link.Sent(stage.CmdWant))
		mine.Leave()
		last.Section()
		require.Zero(k.T, k.begin(k.l.TryLock).Took())
		require.Zero(k.T, k.m.Link.Sent(stage.CmdWant)+third.Link.Sent(stage.CmdWant))
		last.Leave()
	})
}

// traffic checks exclusion, and that nobody waits for long beside a free lock.
type traffic struct {
	mu          sync.Mutex
	waiting, in int
	idle        time.Time     // since when somebody waits and nobody is in; zero: not so
	worst       time.Duration // of idle
	most        int           // that were in at once
}

func (o *traffic) note(waiting, in int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting, o.in = o.waiting+waiting, o.in+in
	o.most = max(o.most, o.in)
	switch idle := o.waiting > 0 && o.in == 0; {
	case idle && o.idle.IsZero():
		o.idle = time.Now()
	case !idle && !o.idle.IsZero():
		o.worst = max(o.worst, time.Since(o.idle))
		o.idle = time.Time{}
	}
}

func atMost(most int) time.Duration { return time.Duration(rand.IntN(most)) * time.Microsecond }

// visit locks and unlocks. waits is 1 for a call that waits, and 0 for one that does not.
func (o *traffic) visit(ctx context.Context, l *relock.Lock, lock stage.Locking, waits int) error {
	o.note(waits, 0)
	section, err := lock(ctx)
	if err != nil {
		o.note(-waits, 0)
		return err
	}
	o.note(-waits, 1)
	<-time.After(time.Duration(waits) * atMost(4000))
	o.note(0, -1)
	_ = l.Unlock(section)
	return nil
}

func TestManyCallsOfFourClientsShareAKeptLock(t *testing.T) {
	eachKept(t, map[string]bool{"": false, "in trouble": true}, func(k *kept, trouble bool) {
		var o traffic
		var all sync.WaitGroup
		begun := time.Now()
		slow := func(ctx context.Context, f *stage.Fault, run func() error) error {
			if trouble && rand.IntN(20) == 0 {
				return stage.LoseAnswer(stage.ErrBroken)(ctx, f, run)
			}
			return stage.Delay(atMost(3000), atMost(3000))(ctx, f, run)
		}
		for i := range 4 {
			m := k.NewClient(relock.WithKeep(keptFor))
			m.Link.On(slow, stage.CmdTry, stage.CmdRelease, stage.CmdWant, stage.CmdRenew, stage.CmdForget, stage.CmdEnter)
			locks := []*relock.Lock{m.NewLock("a")}
			if trouble {
				locks = append(locks, locks[0], m.NewLock("a", relock.WithTTL(5*time.Second)), m.NewLock("a", relock.WithKeep(0)))
				time.AfterFunc(time.Duration(i+1)*5*time.Second, func() { go func() { _ = m.Close() }() })
			}
			for range 3 {
				all.Go(func() {
					for time.Since(begun) < 20*time.Second {
						l, ctx, cancel := locks[rand.IntN(len(locks))], k.T.Context(), func() {}
						if trouble && rand.IntN(3) == 0 {
							ctx, cancel = context.WithTimeout(ctx, atMost(20_000))
						}
						err := o.visit(ctx, l, l.Lock, 1)
						cancel()
						if errors.Is(err, relock.ErrClosed) {
							return
						}
						_ = o.visit(k.T.Context(), l, l.TryLock, 0)
						<-time.After(atMost([]int{4000, 2_000_000}[rand.IntN(10)/9]))
					}
				})
			}
		}
		all.Wait()
		require.Equal(k.T, 1, o.most)
		require.Less(k.T, o.worst, 150*time.Millisecond)
		stage.Pass(keptFor + time.Second)
		k.RequireFree("a")
	})
}

func TestAWaiterAsksForAKeptLockOnceInALease(t *testing.T) {
	cases := map[string]func(k *kept) *stage.Attempt{
		"its request has failed": func(k *kept) *stage.Attempt {
			far := k.NewClient()
			far.Link.Once(stage.Refuse(store.Unavailable(stage.ErrBroken)), stage.CmdWant)
			return k.Start(k.T.Context(), far.NewLock("a"))
		},
		"those before it are gone, and have not asked": func(k *kept) *stage.Attempt {
			gone := k.NewClient()
			gone.Link.On(stage.Delay(10*time.Millisecond, 0), stage.CmdWant)
			for range 4 {
				k.Start(k.T.Context(), gone.NewLock("a"))
			}
			waiting := k.Start(k.T.Context(), k.other)
			require.NoError(k.T, gone.Close())
			return waiting
		},
	}
	eachKept(t, cases, func(k *kept, start func(k *kept) *stage.Attempt) {
		waiting := start(k)
		require.LessOrEqual(k.T, waiting.Took(), relock.DefaultTTL+time.Second)
		waiting.Leave()
	}, relock.WithKeep(time.Hour))
}

func TestATicketOfAKeptLockIsServedBeforeTheLine(t *testing.T) {
	onKept(t, func(k *kept) {
		far := k.NewClient(relock.WithKeep(keptFor)).NewLock("a")
		section := k.Enter(k.T.Context(), k.l)
		first, second := k.Start(k.T.Context(), k.l), k.Start(k.T.Context(), k.l)
		tk, err := ticket.HandOff(section, k.l)
		require.NoError(k.T, err)
		theirs, err := ticket.Accept(k.T.Context(), far, tk)
		require.NoError(k.T, err)
		require.True(k.T, first.Waits())
		k.Leave(theirs, far)
		first.Leave()
		second.Leave()

		section = k.Enter(k.T.Context(), k.l)
		tk, err = ticket.Lend(section, k.l)
		require.NoError(k.T, err)
		theirs, err = ticket.Borrow(k.T.Context(), far, tk)
		require.NoError(k.T, err)
		first = k.Start(k.T.Context(), k.l)
		k.Leave(section, k.l)
		require.True(k.T, first.Waits(), "the loan is open")
		k.Leave(theirs, far)
		first.Leave()
		stage.Pass(keptFor)
		k.RequireFree("a")
	})
}
