package relock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// How does a client pass a lock on within itself?

// This file is about WithLocalPass, and about stores whose waiters race.

// passing returns a client, a section whose lock can be passed on, and calls that stand in the line
// behind it.
func passing(t *testing.T, w *world, n int, options ...relock.Option) (*member, *relock.Lock, context.Context, []*attempt) {
	t.Helper()
	m := w.NewClient(options...)
	l := m.NewLock("a")
	section := w.enter(t.Context(), l)
	var waiting []*attempt
	for range n {
		waiting = append(waiting, w.start(t.Context(), l))
	}
	m.link.reset()
	return m, l, section, waiting
}

// handOn unlocks a section, and returns the section of the call that has the lock then.
func handOn(t *testing.T, l *relock.Lock, section context.Context, next *attempt) context.Context { //nolint:revive // t comes first
	t.Helper()
	require.True(t, next.waits())
	require.NoError(t, l.Unlock(section))
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	entered := next.section()
	keep(t, entered)
	require.Equal(t, 1, l.Count(entered))
	return entered
}

func TestLinePassesALockOnInOrderWithoutAskingTheStore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, 0))
		owner, first := w.owner("a"), holderOf(t, section)
		for _, next := range waiting {
			section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
			require.NotEqual(t, first, holderOf(t, section))
		}
		require.Zero(t, m.link.sent(), "nobody was asked")
		require.Equal(t, owner, w.owner("a"), "for the store it is one hold throughout")
		_, err := w.NewClient().NewLock("a").TryLock(t.Context())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, first, refusal.Holder, "the holder that has got the lock from the store")
		w.leave(section, l)
		require.Equal(t, 1, m.link.sent())
		w.requireFree("a")
	})
}

func TestLineDrawsATokenForEachHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, 0))
		last := int64(0)
		for _, next := range append(waiting, nil) {
			for range 2 {
				token, err := l.Token(section)
				require.NoError(t, err)
				require.Equal(t, last+1, token)
			}
			last++
			if next != nil {
				section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
			}
		}
		w.leave(section, l)
	})
}

func TestLineOvertakesOthersNoLongerThanLocalPassSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		option relock.Option
		each   time.Duration // how long a section lasts
		passes int           // that others see
	}{
		{"passes", relock.WithLocalPass(3, time.Hour), time.Second, 3},
		{"time", relock.WithLocalPass(100, 10*ms), 3 * ms, 3}, // at 3, 6 and 9 ms
		{"sections longer than the limit", relock.WithLocalPass(100, 10*ms), 10 * ms, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				_, l, section, waiting := passing(t, w, c.passes+2, c.option)
				other := w.NewClient().NewLock("a")
				remote := w.start(t.Context(), other)
				for _, next := range waiting[:c.passes] {
					pass(c.each)
					section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
					require.True(t, remote.waits())
				}
				pass(c.each)
				w.leave(section, l)
				theirs := remote.section()
				rest := waiting[c.passes:]
				require.True(t, rest[0].waits())
				require.Equal(t, 1, w.waiters("a"), "one waits in the store, for all in the line")
				w.leave(theirs, other)
				section = handOn(t, l, rest[0].section(), rest[1]) // and the lock can be passed on again
				w.leave(section, l)
				w.requireFree("a")
			})
		})
	}
}

func TestLineGoesOnWhenAWaiterGivesUpAtAnyPlace(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, 0))
		holder := holderOf(t, section)
		ctx, cancel := context.WithCancel(t.Context())
		one, two := w.start(ctx, l), w.begin(t.Context(), tryFor(l, time.Second))
		last := w.start(t.Context(), l)
		cancel()
		require.ErrorIs(t, one.failure(), context.Canceled)
		require.ErrorIs(t, one.err, relock.ErrLocked)
		require.Zero(t, one.took())
		var refusal *relock.LockedError
		require.ErrorAs(t, two.failure(), &refusal)
		require.Equal(t, time.Second, two.took())
		require.Equal(t, "a", refusal.Name)
		require.Equal(t, holder, refusal.Holder)
		require.Equal(t, relock.DefaultTTL-margin(relock.DefaultTTL)-time.Second, refusal.TTL)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "a call that does not wait is not put into the line")
		w.leave(section, l) // the limit is over
		for _, next := range append(waiting, last) {
			require.NoError(t, l.Unlock(next.section()))
		}
		w.requireFree("a")
	})
}

func TestLineAsksAgainWhenItsLeadGivesUp(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := w.enter(t.Context(), other)
		l := w.NewClient(relock.WithLocalPass(0, 0)).NewLock("a")
		ctx, cancel := context.WithCancel(t.Context())
		head, next := w.start(ctx, l), w.begin(t.Context(), tryFor(l, time.Minute))
		require.Equal(t, 1, w.waiters("a"))
		cancel()
		require.ErrorIs(t, head.failure(), context.Canceled)
		require.True(t, next.waits())
		require.Equal(t, 1, w.waiters("a"))
		w.leave(theirs, other)
		require.NoError(t, l.Unlock(next.section()))
		w.requireFree("a")
	})
}

func TestLineGoesOnWhenALockIsLost(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, w *world, m *member){
		"the store loses it": func(_ *testing.T, w *world, _ *member) { pass(time.Second); w.Lose("a") },
		"no renewal is confirmed": func(_ *testing.T, w *world, m *member) {
			m.link.on(refuse(errBroken), cmdRenew)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
				section = handOn(t, l, section, waiting[0])
				lose(t, w, m)
				_, cause := w.ends(section)
				require.ErrorIs(t, cause, relock.ErrLockLost)
				next := waiting[1].section()
				require.NoError(t, next.Err())
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				w.leave(next, l)
				w.requireFree("a")
			})
		})
	}
}

func TestLineReportsALockThatIsTakenDuringAPass(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, time.Hour))
		pass(time.Second)
		m.link.on(delay(ms, ms), cmdRenew)
		w.Lose("a") // the store is asked about the hold
		settle()
		section = handOn(t, l, section, waiting[0])
		require.Equal(t, 4*ms, w.lostBecause(section, relock.LossTaken))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestLineRenewsALockThatWasPassedOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0), relock.WithTTL(3*time.Second))
		section = handOn(t, l, section, waiting[0])
		for range 100 {
			pass(time.Second)
			require.NoError(t, section.Err())
			require.GreaterOrEqual(t, w.lease("a"), 2*time.Second)
		}
		require.Equal(t, 100, m.link.sent())
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestLineDoesNotPassOnALeaseThatIsHalfOver(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(3*time.Second))
		owner := w.owner("a")
		broken := m.link.on(refuse(errBroken), cmdRenew) // until the exit: a renewal in flight would end with the trouble
		pass(1600 * ms)
		w.leave(section, l)
		broken.end()
		next := waiting[0].section()
		require.NotEqual(t, owner, w.owner("a"))
		require.Greater(t, l.Remaining(next), 2*time.Second, "the next hold has a lease of its own")
		w.leave(next, l)
	})
}

func TestLineDoesNotPassOnALockWhoseCountMayBeWrong(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
		owner := w.owner("a")
		inner := w.enter(section, l)
		broken := m.link.on(refuse(errBroken), cmdRelease, cmdRenew)
		require.ErrorIs(t, l.Unlock(inner), errBroken)
		settle()
		broken.end()
		w.leave(section, l)
		section = waiting[0].section()
		require.NotEqual(t, owner, w.owner("a"))
		w.requireCount("a", 1)
		section = handOn(t, l, section, waiting[1])
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestNestedEntriesOfASectionThatWasPassedTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(0, 0))
		for _, next := range waiting {
			inner := w.enter(section, l)
			w.requireCount("a", 2)
			w.leave(inner, l)
			section = handOn(t, l, section, next) //nolint:fatcontext // they do not nest
			w.requireCount("a", 1)
		}
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestAnUnlockedEntryStaysUnlockedWhoeverHasTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0))
		next := handOn(t, l, section, waiting[0])
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		require.False(t, l.Held(section))
		require.True(t, l.Held(next))
		again := w.start(context.WithoutCancel(section), l) // stands in the line like any other
		require.NoError(t, l.Unlock(handOn(t, l, next, again)))
		w.requireFree("a")
	})
}

func TestACallThatEndsAsItIsCalledHoldsUpNobody(t *testing.T) {
	for name, test := range map[string]struct {
		silent bool
		passes int
	}{
		"it is passed the lock":                      {false, 10},
		"it leads the line":                          {false, 1},
		"it is passed the lock, and nothing arrives": {true, 10},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(test.passes, time.Hour))
				section = handOn(t, l, section, waiting[0])
				ctx, cancel := context.WithCancel(t.Context())
				one := w.begin(ctx, func(ctx context.Context) (context.Context, error) {
					ctx, err := l.Lock(ctx)
					if err == nil {
						err = l.Unlock(ctx)
					}
					return ctx, err
				})
				two := w.start(t.Context(), l)
				if test.silent {
					defer m.link.cut().end()
				}
				go cancel()
				err := l.Unlock(section)
				if !test.silent {
					require.NoError(t, err)
				}
				if err := one.failure(); err != nil && !test.silent {
					require.ErrorIs(t, err, context.Canceled)
				}
				m.link.heal()
				require.NoError(t, l.Unlock(two.section()))
				pass(relock.DefaultTTL)
				w.requireFree("a")
			})
		})
	}
}

func TestALockIsPassedOnlyBetweenCallsThatWantTheSame(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0))
		short := m.NewLock("a", relock.WithTTL(3*time.Second))
		third := w.start(t.Context(), short)
		fixed := m.NewLock("a", relock.WithFixedLease(3*time.Second)) // takes the option back
		fourth := w.start(t.Context(), fixed)
		section = handOn(t, l, section, waiting[0])
		w.leave(section, l)
		require.Equal(t, 3*time.Second-margin(3*time.Second), fixed.Remaining(fourth.section()), "first in the store's queue")
		require.NoError(t, fixed.Unlock(fourth.ctx))
		require.Equal(t, 3*time.Second-margin(3*time.Second), short.Remaining(third.section()))
		require.NoError(t, short.Unlock(third.ctx))
		w.requireFree("a")
	})
}

func TestWithLocalPassMaxHoldIsThatOfEachHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl, most = 3 * time.Second, 6 * time.Second
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(ttl), relock.WithMaxHold(most))
		pass(2 * time.Second)
		section = handOn(t, l, section, waiting[0])
		took := w.lostBecause(section, relock.LossMaxHold)
		require.LessOrEqual(t, took, most)
		require.Greater(t, took, most-100*ms)
	})
}

func TestWithLocalPassCloseEndsTheLine(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, waiting := passing(t, w, 3, relock.WithLocalPass(0, 0))
		section = handOn(t, l, section, waiting[0])
		require.NoError(t, m.Close())
		require.ErrorIs(t, context.Cause(section), relock.ErrClosed)
		for _, a := range waiting[1:] {
			require.ErrorIs(t, a.failure(), relock.ErrClosed)
		}
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestWithLocalPassHooksTellOfEachHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m, l, section, waiting := passing(t, w, 2, relock.WithLocalPass(1, 0), relock.WithHooks(r.Hooks()))
		holder := holderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		section = handOn(t, l, section, waiting[0])
		released := eventsOf[relock.Released](&r)
		require.Equal(t, []relock.Released{{Mode: relock.ModeExclusive, Name: "a", Holder: holder, Token: token, TTL: relock.DefaultTTL, MaxDepth: 1}}, released)
		w.leave(section, l)
		section = waiting[1].section()
		finished := eventsOf[relock.AcquireFinished](&r)
		require.Len(t, finished, 3)
		require.Equal(t, relock.WakeNone, finished[0].Wake)
		require.Zero(t, finished[0].Owner, "the lock was free")
		for _, event := range finished[1:] { // the last one has asked the store, which was free
			require.Equal(t, relock.WakePass, event.Wake)
			require.True(t, event.Waited)
			require.True(t, event.Queued)
			require.NotZero(t, event.Owner)
		}
		w.leave(section, l)
		require.Equal(t, []relock.Queued{
			{Mode: relock.ModeExclusive, Name: "a", Holder: finished[1].Holder, Owner: holder, Position: 0},
			{Mode: relock.ModeExclusive, Name: "a", Holder: finished[2].Holder, Owner: holder, Position: 1},
		}, eventsOf[relock.Queued](&r))
		require.NoError(t, m.Close())
	})
}

func TestACallThatGivesUpInTheLineIsToldWhatItsLeadWasTold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		other := w.NewClient().NewLock("a")
		theirs := w.enter(t.Context(), other)
		holder := holderOf(t, theirs)
		var r recorder
		m := w.NewClient(relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		slow := m.link.on(delay(ms, 0)) // so that all are in the line before the store has said anything
		var waiting []*attempt
		for range 5 {
			waiting = append(waiting, w.begin(t.Context(), tryFor(l, time.Second)))
		}
		for _, a := range waiting {
			var refusal *relock.LockedError
			require.ErrorAs(t, a.failure(), &refusal)
			require.Equal(t, holder, refusal.Holder)
		}
		slow.end()
		var positions []int
		for _, event := range eventsOf[relock.Queued](&r) {
			positions = append(positions, event.Position)
		}
		require.ElementsMatch(t, []int{0, 1, 2, 3, 4}, positions) // the head waits, too

		// A new head without an answer knows nobody, and the holder of whom the head before was
		// told has gone.
		first := w.start(t.Context(), l)
		w.leave(theirs, other)
		section := first.section()
		head := w.start(t.Context(), l)
		m.link.on(delay(2*time.Second, 0), cmdWait)
		pass(11 * ms)
		w.leave(section, l)
		late := w.begin(t.Context(), tryFor(l, time.Second))
		require.ErrorIs(t, late.failure(), context.DeadlineExceeded)
		require.NotErrorIs(t, late.err, relock.ErrLocked)
		require.NoError(t, l.Unlock(head.section()))
	})
}

func TestACallThatGivesUpInTheLineIsToldWhoHasTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, l, section, _ := passing(t, w, 0, relock.WithLocalPass(0, 0))
		holder := holderOf(t, section)
		refused := w.begin(t.Context(), tryFor(l, time.Second))
		var refusal *relock.LockedError
		require.ErrorAs(t, refused.failure(), &refusal)
		require.Equal(t, holder, refusal.Holder)
		head, behind := w.start(t.Context(), l), w.begin(t.Context(), tryFor(l, time.Second))
		m.link.on(delay(2*time.Second, 0), cmdWait)
		pass(500 * ms)
		w.leave(section, l) // the limit is over, and the head asks
		require.ErrorAs(t, behind.failure(), &refusal)
		require.Equal(t, holder, refusal.Holder)
		require.NoError(t, l.Unlock(head.section()))
	})
}

// racing is a store whose waiters race.
type racing struct {
	*link

	mu            sync.Mutex
	most, waiting int
}

func (*racing) Races() bool { return true }

func (s *racing) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	s.mu.Lock()
	s.waiting++
	s.most = max(s.most, s.waiting)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	return s.link.Wait(ctx, a, progress)
}

func TestOneCallOfAClientRacesAndTheOthersWaitBehindIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		s := &racing{link: newLink(w.Store)}
		c, err := relock.Open(s)
		require.NoError(t, err)
		l, other := c.NewLock("a"), w.NewClient().NewLock("a")
		owner := w.enter(t.Context(), other)
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				require.NoError(t, l.Do(t.Context(), func(context.Context) error {
					order = append(order, i)
					<-time.After(ms)
					return nil
				}))
			})
			settle()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.start(ctx, l)
		cancel()
		require.ErrorIs(t, gone.failure(), context.Canceled)
		w.leave(owner, other)
		all.Wait()
		require.Equal(t, 1, s.most)
		require.IsIncreasing(t, order)
		require.NoError(t, c.Close())
		w.requireFree("a")
	})
}

// drawing is a store that draws a token with each hold.
type drawing struct {
	*mem.Store
	tokens atomic.Int64
}

// Wait implements store.Store.
func (d *drawing) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	l, err := d.Store.Wait(ctx, a, progress)
	l.Token = d.tokens.Add(1)
	return l, err
}

func TestALeaseWithATokenIsNotPassedOn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c, err := relock.Open(&drawing{Store: w.Store}, relock.WithLocalPass(0, time.Hour))
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a")
		last := int64(0)
		section := w.enter(t.Context(), l)
		for range 3 {
			waiting := w.start(t.Context(), l)
			token, err := l.Token(section)
			require.NoError(t, err)
			require.Greater(t, token, last)
			last = token
			w.leave(section, l)
			section = waiting.section() //nolint:fatcontext // the next section
		}
		w.leave(section, l)
	})
}
