package core_test

import (
	"context"
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

// How does a client pass a lock on within itself?

// This file is about WithLocalPass, and about stores whose waiters race.

// handOn unlocks a section, and returns the section of the call that has the lock then.
func handOn(t *testing.T, l *relock.Lock, section context.Context, next *stage.Attempt) context.Context {
	t.Helper()
	require.True(t, next.Waits())
	require.NoError(t, l.Unlock(section))
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	entered := next.Section()
	stage.Keep(t, entered)
	require.Equal(t, 1, l.Count(entered))
	return entered
}

func TestLinePassesALockOnInOrderWithoutAskingTheStore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 3, relock.WithLocalPass(0, 0))
		owner, first := w.Owner("a"), stage.HolderOf(t, section)
		for _, next := range waiting {
			section = handOn(t, l, section, next)
			require.NotEqual(t, first, stage.HolderOf(t, section))
		}
		require.Zero(t, m.Link.Sent(), "nobody was asked")
		require.Equal(t, owner, w.Owner("a"), "for the store it is one hold throughout")
		_, err := w.NewClient().NewLock("a").TryLock(t.Context())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, first, refusal.Holder, "the holder that has got the lock from the store")
		w.Leave(section, l)
		require.Equal(t, 1, m.Link.Sent())
		w.RequireFree("a")
	})
}

func TestLineDrawsATokenForEachHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 3, relock.WithLocalPass(0, 0))
		last := int64(0)
		for _, next := range append(waiting, nil) {
			for range 2 {
				token, err := l.Token(section)
				require.NoError(t, err)
				require.Equal(t, last+1, token)
			}
			last++
			if next != nil {
				section = handOn(t, l, section, next)
			}
		}
		w.Leave(section, l)
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
		{"time", relock.WithLocalPass(100, 10*time.Millisecond), 3 * time.Millisecond, 3}, // at 3, 6 and 9 ms
		{"sections longer than the limit", relock.WithLocalPass(100, 10*time.Millisecond), 10 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				_, l, section, waiting := stage.Passing(t, w, c.passes+2, c.option)
				other := w.NewClient().NewLock("a")
				remote := w.Start(t.Context(), other)
				for _, next := range waiting[:c.passes] {
					stage.Pass(c.each)
					section = handOn(t, l, section, next)
					require.True(t, remote.Waits())
				}
				stage.Pass(c.each)
				w.Leave(section, l)
				theirs := remote.Section()
				rest := waiting[c.passes:]
				require.True(t, rest[0].Waits())
				require.Equal(t, 1, w.Waiters("a"), "one waits in the store, for all in the line")
				w.Leave(theirs, other)
				section = handOn(t, l, rest[0].Section(), rest[1]) // and the lock can be passed on again
				w.Leave(section, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestLineGoesOnWhenAWaiterGivesUpAtAnyPlace(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 2, relock.WithLocalPass(0, 0))
		holder := stage.HolderOf(t, section)
		ctx, cancel := context.WithCancel(t.Context())
		one, two := w.Start(ctx, l), w.Begin(t.Context(), stage.TryFor(l, time.Second))
		last := w.Start(t.Context(), l)
		cancel()
		require.ErrorIs(t, one.Failure(), context.Canceled)
		require.ErrorIs(t, one.Err, relock.ErrLocked)
		require.Zero(t, one.Took())
		var refusal *relock.LockedError
		require.ErrorAs(t, two.Failure(), &refusal)
		require.Equal(t, time.Second, two.Took())
		require.Equal(t, "a", refusal.Name)
		require.Equal(t, holder, refusal.Holder)
		require.Equal(t, relock.DefaultTTL-stage.Margin(relock.DefaultTTL)-time.Second, refusal.TTL)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "a call that does not wait is not put into the line")
		w.Leave(section, l) // the limit is over
		for _, next := range append(waiting, last) {
			require.NoError(t, l.Unlock(next.Section()))
		}
		w.RequireFree("a")
	})
}

func TestLineAsksAgainWhenItsLeadGivesUp(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient().NewLock("a")
		theirs := w.Enter(t.Context(), other)
		l := w.NewClient(relock.WithLocalPass(0, 0)).NewLock("a")
		ctx, cancel := context.WithCancel(t.Context())
		head, next := w.Start(ctx, l), w.Begin(t.Context(), stage.TryFor(l, time.Minute))
		require.Equal(t, 1, w.Waiters("a"))
		cancel()
		require.ErrorIs(t, head.Failure(), context.Canceled)
		require.True(t, next.Waits())
		require.Equal(t, 1, w.Waiters("a"))
		w.Leave(theirs, other)
		require.NoError(t, l.Unlock(next.Section()))
		w.RequireFree("a")
	})
}

func TestLineGoesOnWhenALockIsLost(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, w *stage.World, m *stage.Member){
		"the store loses it": func(_ *testing.T, w *stage.World, _ *stage.Member) { stage.Pass(time.Second); w.Store.Lose("a") },
		"no renewal is confirmed": func(_ *testing.T, w *stage.World, m *stage.Member) {
			m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, l, section, waiting := stage.Passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
				section = handOn(t, l, section, waiting[0])
				lose(t, w, m)
				_, cause := w.Ends(section)
				require.ErrorIs(t, cause, relock.ErrLockLost)
				next := waiting[1].Section()
				require.NoError(t, next.Err())
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
				w.Leave(next, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestLineReportsALockThatIsTakenDuringAPass(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, time.Hour))
		stage.Pass(time.Second)
		m.Link.On(stage.Delay(time.Millisecond, time.Millisecond), stage.CmdRenew)
		w.Store.Lose("a") // the store is asked about the hold
		stage.Settle()
		section = handOn(t, l, section, waiting[0])
		require.Equal(t, 4*time.Millisecond, w.LostBecause(section, event.LossTaken))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestLineRenewsALockThatWasPassedOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, 0), relock.WithTTL(3*time.Second))
		section = handOn(t, l, section, waiting[0])
		for range 100 {
			stage.Pass(time.Second)
			require.NoError(t, section.Err())
			require.GreaterOrEqual(t, w.Lease("a"), 2*time.Second)
		}
		require.Equal(t, 100, m.Link.Sent())
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestLineDoesNotPassOnALeaseThatIsHalfOver(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(3*time.Second))
		owner := w.Owner("a")
		broken := m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew) // until the exit: a renewal in flight would end with the trouble
		stage.Pass(1600 * time.Millisecond)
		w.Leave(section, l)
		broken.End()
		next := waiting[0].Section()
		require.NotEqual(t, owner, w.Owner("a"))
		require.Greater(t, l.Remaining(next), 2*time.Second, "the next hold has a lease of its own")
		w.Leave(next, l)
	})
}

func TestLineDoesNotPassOnALockWhoseCountMayBeWrong(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 2, relock.WithLocalPass(0, time.Hour))
		owner := w.Owner("a")
		inner := w.Enter(section, l)
		broken := m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdEnter, stage.CmdRenew)
		require.ErrorIs(t, l.Unlock(inner), stage.ErrBroken)
		stage.Settle()
		broken.End()
		w.Leave(section, l)
		section = waiting[0].Section()
		require.NotEqual(t, owner, w.Owner("a"))
		w.RequireCount("a", 1)
		section = handOn(t, l, section, waiting[1])
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestNestedEntriesOfASectionThatWasPassedTheLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 2, relock.WithLocalPass(0, 0))
		for _, next := range waiting {
			inner := w.Enter(section, l)
			w.RequireCount("a", 2)
			w.Leave(inner, l)
			section = handOn(t, l, section, next)
			w.RequireCount("a", 1)
		}
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestAnUnlockedEntryStaysUnlockedWhoeverHasTheLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, 0))
		next := handOn(t, l, section, waiting[0])
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		require.False(t, l.Held(section))
		require.True(t, l.Held(next))
		again := w.Start(context.WithoutCancel(section), l) // stands in the line like any other
		require.NoError(t, l.Unlock(handOn(t, l, next, again)))
		w.RequireFree("a")
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
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(test.passes, time.Hour))
				section = handOn(t, l, section, waiting[0])
				ctx, cancel := context.WithCancel(t.Context())
				one := w.Begin(ctx, func(ctx context.Context) (context.Context, error) {
					ctx, err := l.Lock(ctx)
					if err == nil {
						err = l.Unlock(ctx)
					}
					return ctx, err
				})
				two := w.Start(t.Context(), l)
				if test.silent {
					defer m.Link.Cut().End()
				}
				go cancel()
				err := l.Unlock(section)
				if !test.silent {
					require.NoError(t, err)
				}
				if err := one.Failure(); err != nil && !test.silent {
					require.ErrorIs(t, err, context.Canceled)
				}
				m.Link.Heal()
				require.NoError(t, l.Unlock(two.Section()))
				stage.Pass(relock.DefaultTTL)
				w.RequireFree("a")
			})
		})
	}
}

func TestALockIsPassedOnlyBetweenCallsThatWantTheSame(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, 0))
		short := m.NewLock("a", relock.WithTTL(3*time.Second))
		third := w.Start(t.Context(), short)
		fixed := m.NewLock("a", relock.WithFixedLease(3*time.Second)) // takes the option back
		fourth := w.Start(t.Context(), fixed)
		section = handOn(t, l, section, waiting[0])
		w.Leave(section, l)
		require.Equal(t, 3*time.Second-stage.Margin(3*time.Second), fixed.Remaining(fourth.Section()), "first in the store's queue")
		require.NoError(t, fixed.Unlock(fourth.Ctx))
		require.Equal(t, 3*time.Second-stage.Margin(3*time.Second), short.Remaining(third.Section()))
		require.NoError(t, short.Unlock(third.Ctx))
		w.RequireFree("a")
	})
}

func TestWithLocalPassMaxHoldIsThatOfEachHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl, most = 3 * time.Second, 6 * time.Second
		_, l, section, waiting := stage.Passing(t, w, 1, relock.WithLocalPass(0, time.Hour), relock.WithTTL(ttl), relock.WithMaxHold(most))
		stage.Pass(2 * time.Second)
		section = handOn(t, l, section, waiting[0])
		took := w.LostBecause(section, event.LossMaxHold)
		require.LessOrEqual(t, took, most)
		require.Greater(t, took, most-100*time.Millisecond)
	})
}

func TestWithLocalPassCloseEndsTheLine(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 3, relock.WithLocalPass(0, 0))
		section = handOn(t, l, section, waiting[0])
		require.NoError(t, m.Close())
		require.ErrorIs(t, context.Cause(section), relock.ErrClosed)
		for _, a := range waiting[1:] {
			require.ErrorIs(t, a.Failure(), relock.ErrClosed)
		}
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestWithLocalPassHooksTellOfEachHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m, l, section, waiting := stage.Passing(t, w, 2, relock.WithLocalPass(1, 0), relock.WithHooks(r.Hooks()))
		holder := stage.HolderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		section = handOn(t, l, section, waiting[0])
		released := stage.EventsOf[event.Released](&r)
		require.Equal(t, []event.Released{{Mode: event.ModeExclusive, Name: "a", Holder: holder, Token: token, TTL: relock.DefaultTTL, MaxDepth: 1}}, released)
		w.Leave(section, l)
		section = waiting[1].Section()
		finished := stage.EventsOf[event.AcquireFinished](&r)
		require.Len(t, finished, 3)
		require.Equal(t, event.WakeNone, finished[0].Wake)
		require.Zero(t, finished[0].Owner, "the lock was free")
		for _, e := range finished[1:] { // the last one has asked the store, which was free
			require.Equal(t, event.WakePass, e.Wake)
			require.True(t, e.Waited)
			require.True(t, e.Queued)
			require.NotZero(t, e.Owner)
		}
		w.Leave(section, l)
		require.Equal(t, []event.Queued{
			{Mode: event.ModeExclusive, Name: "a", Holder: finished[1].Holder, Owner: holder, Position: 0},
			{Mode: event.ModeExclusive, Name: "a", Holder: finished[2].Holder, Owner: holder, Position: 1},
		}, stage.EventsOf[event.Queued](&r))
		require.NoError(t, m.Close())
	})
}

func TestACallThatGivesUpInTheLineIsToldWhatItsLeadWasTold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient().NewLock("a")
		theirs := w.Enter(t.Context(), other)
		holder := stage.HolderOf(t, theirs)
		var r stage.Recorder
		m := w.NewClient(relock.WithLocalPass(0, 0), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		slow := m.Link.On(stage.Delay(time.Millisecond, 0)) // so that all are in the line before the store has said anything
		var waiting []*stage.Attempt
		for range 5 {
			waiting = append(waiting, w.Begin(t.Context(), stage.TryFor(l, time.Second)))
		}
		for _, a := range waiting {
			var refusal *relock.LockedError
			require.ErrorAs(t, a.Failure(), &refusal)
			require.Equal(t, holder, refusal.Holder)
		}
		slow.End()
		var positions []int
		for _, e := range stage.EventsOf[event.Queued](&r) {
			positions = append(positions, e.Position)
		}
		require.ElementsMatch(t, []int{0, 1, 2, 3, 4}, positions) // the head waits, too

		// A new head without an answer knows nobody, and the holder of whom the head before was
		// told has gone.
		first := w.Start(t.Context(), l)
		w.Leave(theirs, other)
		section := first.Section()
		head := w.Start(t.Context(), l)
		m.Link.On(stage.Delay(2*time.Second, 0), stage.CmdWait)
		stage.Pass(11 * time.Millisecond)
		w.Leave(section, l)
		late := w.Begin(t.Context(), stage.TryFor(l, time.Second))
		require.ErrorIs(t, late.Failure(), context.DeadlineExceeded)
		require.NotErrorIs(t, late.Err, relock.ErrLocked)
		require.NoError(t, l.Unlock(head.Section()))
	})
}

func TestACallThatGivesUpInTheLineIsToldWhoHasTheLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, _ := stage.Passing(t, w, 0, relock.WithLocalPass(0, 0))
		holder := stage.HolderOf(t, section)
		refused := w.Begin(t.Context(), stage.TryFor(l, time.Second))
		var refusal *relock.LockedError
		require.ErrorAs(t, refused.Failure(), &refusal)
		require.Equal(t, holder, refusal.Holder)
		head, behind := w.Start(t.Context(), l), w.Begin(t.Context(), stage.TryFor(l, time.Second))
		m.Link.On(stage.Delay(2*time.Second, 0), stage.CmdWait)
		stage.Pass(500 * time.Millisecond)
		w.Leave(section, l) // the limit is over, and the head asks
		require.ErrorAs(t, behind.Failure(), &refusal)
		require.Equal(t, holder, refusal.Holder)
		require.NoError(t, l.Unlock(head.Section()))
	})
}

// racing is a store whose waiters race.
type racing struct {
	*stage.Link

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
	return s.Link.Wait(ctx, a, progress)
}

func TestOneCallOfAClientRacesAndTheOthersWaitBehindIt(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &racing{Link: stage.NewLink(w.Store)}
		c, err := relock.Open(s)
		require.NoError(t, err)
		l, other := c.NewLock("a"), w.NewClient().NewLock("a")
		owner := w.Enter(t.Context(), other)
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				require.NoError(t, l.Do(t.Context(), func(context.Context) error {
					order = append(order, i)
					<-time.After(time.Millisecond)
					return nil
				}))
			})
			stage.Settle()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.Start(ctx, l)
		cancel()
		require.ErrorIs(t, gone.Failure(), context.Canceled)
		w.Leave(owner, other)
		all.Wait()
		require.Equal(t, 1, s.most)
		require.IsIncreasing(t, order)
		require.NoError(t, c.Close())
		w.RequireFree("a")
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
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c, err := relock.Open(&drawing{Store: w.Store}, relock.WithLocalPass(0, time.Hour))
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a")
		last := int64(0)
		section := w.Enter(t.Context(), l)
		for range 3 {
			waiting := w.Start(t.Context(), l)
			token, err := l.Token(section)
			require.NoError(t, err)
			require.Greater(t, token, last)
			last = token
			w.Leave(section, l)
			section = waiting.Section()
		}
		w.Leave(section, l)
	})
}
