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
)

// How is a lease passed on within a client? The store of these tests passes on what it can; which
// waits those are, and what the server knows, is tested with each store.

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

func TestALockIsPassedOnInOrderWithoutAskingTheStore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 3)
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

func TestEachHoldThatIsPassedALockDrawsItsToken(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 3)
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

func TestThoseBehindALockThatIsLostAreServed(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, w *stage.World, m *stage.Member){
		"the store loses it": func(_ *testing.T, w *stage.World, _ *stage.Member) { stage.Pass(time.Second); w.Store.Lose("a") },
		"no renewal is confirmed": func(_ *testing.T, w *stage.World, m *stage.Member) {
			m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdRenew)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, l, section, waiting := stage.Passing(t, w, 2)
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

func TestALossThatIsKnownAfterAPassIsALossOfTheNextHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1)
		m.Link.On(func(context.Context, *stage.Fault, func() error) error {
			<-time.After(time.Millisecond)
			return store.ErrGone
		}, stage.CmdRenew)
		m.Link.Once(stage.Refuse(stage.ErrBroken), stage.CmdEnter)
		_, err := l.TryLock(section)
		require.ErrorIs(t, err, stage.ErrBroken) // a renewal is in flight
		section = handOn(t, l, section, waiting[0])
		require.Equal(t, 2*time.Millisecond, w.LostBecause(section, event.LossTaken), "at the end of the renewal, and of the next one")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestALockThatWasPassedOnIsRenewed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithTTL(3*time.Second))
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

func TestALeaseThatIsHalfOverIsNotPassedOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithTTL(3*time.Second))
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

func TestALockWhoseCountMayBeWrongIsNotPassedOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 2)
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
		_, l, section, waiting := stage.Passing(t, w, 2)
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
		_, l, section, waiting := stage.Passing(t, w, 1)
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
				m, l, section, waiting := stage.Passing(t, w, 1)
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
		const ttl = 3 * time.Second
		m, l, section, waiting := stage.Passing(t, w, 1)
		short, fixed := m.NewLock("a", relock.WithTTL(ttl)), m.NewLock("a", relock.WithFixedLease(ttl))
		third, fourth := w.Start(t.Context(), short), w.Start(t.Context(), fixed)
		section = handOn(t, l, section, waiting[0])
		m.Link.Reset()
		w.Leave(section, l)
		require.Equal(t, ttl-stage.Margin(ttl), short.Remaining(third.Section()))
		require.Equal(t, 1, m.Link.Sent(stage.CmdRelease))
		stage.Pass(time.Second)
		require.NoError(t, short.Unlock(third.Ctx))
		require.Equal(t, ttl-stage.Margin(ttl), fixed.Remaining(fourth.Section()), "a fixed lease begins with its hold")
		require.Equal(t, 1, m.Link.Sent(stage.CmdRelease), "it was passed on")
		require.NoError(t, fixed.Unlock(fourth.Ctx))
		w.RequireFree("a")
	})
}

func TestWithMaxHoldEachHoldThatIsPassedALockHasAllOfIt(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl, most = 3 * time.Second, 6 * time.Second
		_, l, section, waiting := stage.Passing(t, w, 1, relock.WithTTL(ttl), relock.WithMaxHold(most))
		stage.Pass(2 * time.Second)
		section = handOn(t, l, section, waiting[0])
		took := w.LostBecause(section, event.LossMaxHold)
		require.LessOrEqual(t, took, most)
		require.Greater(t, took, most-100*time.Millisecond)
	})
}

func TestHooksTellOfEachHoldThatIsPassedALock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m, l, section, waiting := stage.Passing(t, w, 2, relock.WithHooks(r.Hooks()))
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

// doubting is a store that doubts a lease while it is passed on.
type doubting struct {
	*stage.Link
	doubt func(store.ID)
	when  func(pass func()) // runs the doubt beside the pass
}

// Watch implements store.Watcher.
func (s *doubting) Watch(client string, doubt func(store.ID)) (stop func()) {
	s.doubt = doubt
	end := s.Link.Watch(client, doubt)
	return func() { s.doubt = nil; end() }
}

// Pass implements store.Passing.
func (s *doubting) Pass(l store.Lease) (passed bool) {
	s.when(func() { passed = s.Link.Pass(l) })
	return passed
}

func TestADoubtAboutALeaseThatIsBeingPassedOnReachesTheNextHold(t *testing.T) {
	for _, id := range []bool{true, false} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("of this hold %t, before the pass %t", id, before), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					s := &doubting{Link: stage.NewLink(w.Store)}
					s.Passes = true
					c, err := relock.Open(s)
					require.NoError(t, err)
					defer c.Close()
					l := c.NewLock("a")
					section := w.Enter(t.Context(), l)
					stage.Pass(time.Second) // the client watches for ends
					owner := store.ID(w.Owner("a"))
					if !id {
						owner = ""
					}
					s.when = func(pass func()) {
						if before {
							s.doubt(owner)
						}
						pass()
						if !before {
							s.doubt(owner)
						}
					}
					next := w.Start(t.Context(), l)
					s.Reset()
					w.Leave(section, l)
					section = next.Section()
					require.Equal(t, 1, s.Sent(stage.CmdRenew), "the store is asked about the lease")
					require.Zero(t, s.Sent(stage.CmdRelease))
					w.Leave(section, l)
				})
			})
		}
	}
}

func TestAPassToACallThatDoesNotBeginLeavesNothing(t *testing.T) {
	for range 20 {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			s := &doubting{Link: stage.NewLink(w.Store)}
			s.Passes = true
			c, err := relock.Open(s)
			require.NoError(t, err)
			defer c.Close()
			l, other := c.NewLock("a"), w.NewClient().NewLock("a")
			section := w.Enter(t.Context(), l)
			stage.Pass(time.Second)
			require.NotNil(t, s.doubt)
			ctx, cancel := context.WithCancel(t.Context())
			s.when = func(pass func()) { pass(); cancel() }
			gone := w.Start(ctx, l)
			w.Leave(section, l)
			if _, err := gone.Result(); err == nil {
				gone.Leave()
			}
			begun := time.Now()
			w.Leave(w.Enter(t.Context(), other), other)
			require.Less(t, time.Since(begun), time.Second, "nobody sleeps for a lease")
			stage.Pass(time.Minute)
			require.Nil(t, s.doubt, "the client has no hold to watch for")
		})
	}
}

func TestAFixedLeaseThatIsHalfOverIsNotPassedOn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const d = 10 * time.Second
		m, l, section, waiting := stage.Passing(t, w, 2, relock.WithFixedLease(d))
		stage.Pass(d * 2 / 5)
		section = handOn(t, l, section, waiting[0])
		require.Equal(t, 1, m.Link.Sent(stage.CmdEnter), "the next hold has a whole lease")
		stage.Pass(d * 3 / 5)
		m.Link.Reset()
		w.Leave(section, l)
		require.Equal(t, 1, m.Link.Sent(stage.CmdRelease))
		w.Leave(waiting[1].Section(), l)
	})
}

// watching counts the watches of a store.
type watching struct {
	*stage.Link
	open atomic.Int32
}

// Watch implements store.Watcher.
func (s *watching) Watch(client string, doubt func(store.ID)) (stop func()) {
	end := s.Link.Watch(client, doubt)
	s.open.Add(1)
	return func() { s.open.Add(-1); end() }
}

func TestALeaseThatIsPassedOnForLongIsWatched(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &watching{Link: stage.NewLink(w.Store)}
		s.Passes = true
		c, err := relock.Open(s)
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a")
		section := w.Enter(t.Context(), l)
		for range 10 {
			next := w.Start(t.Context(), l)
			stage.Pass(100 * time.Millisecond)
			w.Leave(section, l)
			section = next.Section()
		}
		require.EqualValues(t, 1, s.open.Load())
		require.NoError(t, c.NewLock("a").ForceUnlock(t.Context()))
		took, cause := w.Ends(section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.Less(t, took, 10*time.Millisecond)
		stage.Pass(time.Minute)
		require.Zero(t, s.open.Load())
	})
}

// Half of a fixed lease is no whole one, so the next hold asks for more, and hears that the lease is gone.
func TestAHoldWhoseLeaseIsGoneAsItIsPassedOnLeavesTheTable(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &watching{Link: stage.NewLink(w.Store)}
		s.Passes = true
		c, err := relock.Open(s)
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a", relock.WithFixedLease(10*time.Second))
		section := w.Enter(t.Context(), l)
		stage.Pass(2 * time.Second)
		require.EqualValues(t, 1, s.open.Load())
		next := w.Start(t.Context(), l)
		s.Once(func(context.Context, *stage.Fault, func() error) error { return store.ErrGone }, stage.CmdEnter)
		w.Leave(section, l)
		section = next.Section()
		require.Greater(t, l.Remaining(section), 9*time.Second, "a lease of its own")
		w.Leave(section, l)
		stage.Pass(time.Minute)
		require.Zero(t, s.open.Load(), "no hold is left to watch for")
		w.RequireFree("a")
	})
}

// unsure is a store with an early command of each hold that may run yet.
type unsure struct{ *stage.Link }

// Wait implements store.Store.
func (s *unsure) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Link.Wait(ctx, a, progress)
	l.Unsure = true
	return l, err
}

func TestAHoldThatMayBeLeftIsForgottenBehindThoseItIsPassedTo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &unsure{stage.NewLink(w.Store)}
		s.Passes = true
		c, err := relock.Open(s)
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a")
		section := w.Enter(t.Context(), l)
		next := w.Start(t.Context(), l)
		w.Leave(section, l)
		section = next.Section()
		stage.Pass(time.Second)
		require.NoError(t, section.Err())
		w.Leave(section, l)
		stage.Pass(time.Second)
		require.Positive(t, s.Sent(stage.CmdForget))
	})
}

// The call has left the section that it began in, and so is in no circle with the next hold, which has
// the same ID for the store.
func TestACallThatOutlivesASectionOfARunIsInNoDeadlock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, l, section, waiting := stage.Passing(t, w, 1)
		other := w.NewClient()
		theirs := w.Enter(t.Context(), other.NewLock("b"))
		nested := w.Start(context.WithoutCancel(section), m.NewLock("b"))
		section = handOn(t, l, section, waiting[0])
		across := w.Start(theirs, other.NewLock("a"))
		stage.Pass(10 * time.Second)
		require.True(t, nested.Waits())
		require.True(t, across.Waits())
		w.Leave(section, l)
		w.Leave(across.Section(), other.NewLock("a"))
		w.Leave(theirs, other.NewLock("b"))
		w.Leave(nested.Section(), m.NewLock("b"))
	})
}
