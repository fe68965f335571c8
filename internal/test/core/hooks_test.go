package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/ticket"
)

// What do events say, and does each hold have one end?

// hooks_calls_test.go asks how hooks are called, and internal/test/redis tests the events that only
// a Redis server causes.

// traceKey is the key of a value that the contexts of events carry.
type traceKey struct{}

// lastAcquire returns the last acquire of lock "a" and checks that its two events agree. The
// caller's context, the start and the TTL are the same in each, and are left out.
func lastAcquire(t *testing.T, r *stage.Recorder) event.AcquireFinished {
	t.Helper()
	started, finished := stage.EventsOf[event.AcquireStarted](r), stage.EventsOf[event.AcquireFinished](r)
	require.Len(t, started, len(finished))
	s, f := started[len(started)-1], finished[len(finished)-1]
	require.Equal(t, "a", s.Name)
	require.Equal(t, "a", f.Name)
	require.Equal(t, s.Start, f.Start)
	require.Equal(t, "trace", s.Context.Value(traceKey{}))
	require.Equal(t, "trace", f.Context.Value(traceKey{}))
	require.Equal(t, relock.DefaultTTL, f.TTL)
	f.Context, f.Start, f.TTL = nil, time.Time{}, 0
	return f
}

func TestAcquireEventsSayWhatHappened(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		ctx := context.WithValue(t.Context(), traceKey{}, "trace")

		section := w.Enter(ctx, l)
		holder := stage.HolderOf(t, section)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: holder, Outcome: event.OutcomeAcquired, Depth: 1,
		}, lastAcquire(t, &r))

		inner := w.Enter(section, l)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: holder, Outcome: event.OutcomeAcquired, Reentrant: true, Depth: 2,
		}, lastAcquire(t, &r))
		w.Leave(inner, l)

		_, err := l.TryLock(ctx)
		e := lastAcquire(t, &r)
		require.NotEqual(t, holder, e.Holder)
		require.NotZero(t, e.Holder)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: e.Holder, Outcome: event.OutcomeLocked, Owner: holder, Err: err,
		}, e)

		_, err = l.TryLockFor(ctx, time.Second)
		e = lastAcquire(t, &r)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: e.Holder, Outcome: event.OutcomeLocked,
			Owner: holder, Waited: true, Queued: true, Duration: time.Second, Err: err,
		}, e)

		waiting := w.Start(ctx, l)
		stage.Pass(2 * time.Second)
		w.Leave(section, l)
		section = waiting.Section()
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: stage.HolderOf(t, section), Outcome: event.OutcomeAcquired,
			Owner: holder, Waited: true, Queued: true,
			Wake: event.WakeGrant, Duration: 2 * time.Second, Depth: 1,
		}, lastAcquire(t, &r))
	})
}

func TestAcquireStartedSaysWhetherTheCallWaitsAndWhatIsAround(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		a, b, none := m.NewLock("a"), m.NewRWLock("b"), func(context.Context) error { return nil }
		outer := w.Enter(t.Context(), a)
		given, err := ticket.ToResume(outer, a)
		require.NoError(t, err)
		section := w.Enter(outer, b.RLocker())
		e := event.AcquireStarted{Context: section}
		require.Equal(t, []event.Section{
			{Name: "b", Mode: event.ModeShared, Client: m.ID(), Key: b.Key()},
			{Name: "a", Mode: event.ModeExclusive, Client: m.ID(), Key: a.Key()},
		}, slices.Collect(relock.Around(e.Context)))
		require.NoError(t, errors.Join(
			b.Do(section, none),
			b.DoFor(section, time.Second, none),
			relock.All(m.NewLock("c"), m.NewLock("d")).Do(section, none),
			b.DoFor(section, 0, none),
			relock.All(m.NewLock("c"), m.NewLock("d")).DoFor(section, 0, none),
		))
		_, err = ticket.Accept(t.Context(), m.NewLock("a"), given)
		require.NoError(t, err)
		var waits []string
		for _, e := range stage.EventsOf[event.AcquireStarted](&r) {
			require.Equal(t, m.ID(), e.Client)
			require.Equal(t, m.NewLock(e.Name).Key(), e.Key)
			waits = append(waits, fmt.Sprint(e.Name, e.Waits))
		}
		require.Equal(t, []string{
			"atrue", "btrue", "btrue", "btrue", "ctrue", "dtrue", "bfalse", "cfalse", "dfalse", "afalse",
		}, waits)
	})
}

func TestAcquireEventsSayWhyACallFailed(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		ctx := context.WithValue(t.Context(), traceKey{}, "trace")

		section := w.Enter(ctx, l)
		holder := stage.HolderOf(t, section)
		w.Store.Lose("a")
		for range 2 { // the first call finds the loss, and the second one an ended context
			_, err := l.Lock(section)
			require.ErrorIs(t, err, relock.ErrLockLost)
			require.Equal(t, event.OutcomeLost, lastAcquire(t, &r).Outcome)
			require.Equal(t, err, lastAcquire(t, &r).Err)
			require.True(t, lastAcquire(t, &r).Reentrant)
			require.Equal(t, holder, lastAcquire(t, &r).Holder)
		}

		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err := l.Lock(cancelled)
		e := lastAcquire(t, &r)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: e.Holder, Outcome: event.OutcomeCanceled, Err: err,
		}, e)

		m.Link.Once(stage.Refuse(stage.ErrOdd))
		_, err = l.Lock(ctx)
		e = lastAcquire(t, &r)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: e.Holder, Outcome: event.OutcomeError, Err: err,
		}, e)

		owner := stage.HolderOf(t, w.Enter(t.Context(), w.NewClient().NewLock("a")))
		waiting := w.Start(ctx, l)
		require.NoError(t, m.Close())
		err = waiting.Failure()
		e = lastAcquire(t, &r)
		require.Equal(t, event.AcquireFinished{
			Mode: event.ModeExclusive, Name: "a", Holder: e.Holder, Outcome: event.OutcomeClosed,
			Owner: owner, Waited: true, Queued: true, Err: err,
		}, e, "Close waits for the event")
	})
}

func TestTheTTLOfANestedEntryIsThatOfItsHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		short, long := m.NewLock("a", relock.WithTTL(time.Minute)), m.NewLock("a", relock.WithTTL(time.Hour))
		outer := w.Enter(t.Context(), short)
		inner := w.Enter(outer, long)
		_, err := long.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		w.Leave(inner, long)
		w.Leave(outer, short)
		var told []time.Duration
		for _, e := range stage.EventsOf[event.AcquireFinished](&r) {
			told = append(told, e.TTL)
		}
		require.Equal(t, []time.Duration{time.Minute, time.Minute, time.Hour}, told, "the last one would have had an hour")
		require.Equal(t, time.Minute, stage.EventsOf[event.Released](&r)[0].TTL)
	})
}

func TestANestedCallThatFailsIsAnAttemptAtReentry(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		cancelled, cancel := context.WithCancel(section)
		cancel()
		_, err := l.Lock(cancelled)
		require.ErrorIs(t, err, context.Canceled)
		silent := m.Link.Cut(stage.CmdEnter)
		_, err = l.TryLockFor(section, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		silent.End()
		stage.Settle()
		w.Leave(section, l)
		_, err = l.Lock(section)
		require.ErrorIs(t, err, relock.ErrReleased)

		var reentrant []bool
		for _, e := range stage.EventsOf[event.AcquireFinished](&r) {
			reentrant = append(reentrant, e.Reentrant)
		}
		require.Equal(t, []bool{false, true, true, false}, reentrant, "the last call found nothing to enter again")
	})
}

func TestTheQueuedEventSaysWhoHasTheLockAndHowManyAreBefore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section := w.Enter(t.Context(), l)
		owner := stage.HolderOf(t, section)
		var waiting []*stage.Attempt
		for range 4 {
			waiting = append(waiting, w.Start(t.Context(), l))
		}
		stage.Pass(5 * time.Minute)
		queued := stage.EventsOf[event.Queued](&r)
		require.Len(t, queued, 4, "once for each wait")
		w.Leave(section, l)
		for i, a := range waiting {
			section := a.Section()
			require.Equal(t, event.Queued{Mode: event.ModeExclusive, Name: "a", Holder: stage.HolderOf(t, section), Owner: owner, Position: i}, queued[i])
			w.Leave(section, l)
		}
	})
}

func TestTheReleasedEventTellsOfTheWholeHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		one := w.Enter(t.Context(), l)
		holder := stage.HolderOf(t, one)
		stage.Pass(time.Minute)
		two := w.Enter(one, l)
		three := w.Enter(two, l)
		token, err := l.Token(three)
		require.NoError(t, err)
		w.Leave(three, l)
		w.Leave(two, l)
		stage.Pass(time.Minute)
		require.Empty(t, stage.EventsOf[event.Released](&r))
		w.Leave(one, l)
		require.Equal(t, []event.Released{{Mode: event.ModeExclusive,
			Name: "a", Holder: holder, Token: token, TTL: relock.DefaultTTL, Held: 2 * time.Minute, MaxDepth: 3,
		}}, stage.EventsOf[event.Released](&r))

		section := w.Enter(t.Context(), l)
		m.Link.Once(stage.Refuse(stage.ErrOdd), stage.CmdRelease)
		require.ErrorIs(t, l.Unlock(section), stage.ErrOdd)
		released := stage.EventsOf[event.Released](&r)
		require.Len(t, released, 2)
		require.ErrorIs(t, released[1].Err, stage.ErrOdd)
		require.Equal(t, 1, released[1].MaxDepth)
		require.Zero(t, released[1].Token, "none was drawn")
	})
}

func TestTheLostEventTellsOfTheWholeHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a", relock.WithFixedLease(time.Minute))
		section := w.Enter(t.Context(), l)
		holder := stage.HolderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		require.NoError(t, l.Unlock(w.Enter(section, l)))
		held, cause := w.Ends(section)
		require.Equal(t, &relock.LostError{Name: "a", Holder: holder, Token: token, Reason: event.LossExpired}, cause)
		require.Equal(t, []event.Lost{{Mode: event.ModeExclusive,
			Name: "a", Holder: holder, Token: token, TTL: time.Minute, Reason: event.LossExpired, Held: held, MaxDepth: 2,
		}}, stage.EventsOf[event.Lost](&r))
	})
}

func TestTheRenewedEventCountsWhatBecameOfEachLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		for _, name := range []string{"a", "b", "c"} {
			w.Enter(t.Context(), m.NewLock(name))
		}
		stage.Pass(relock.DefaultTTL / 3)
		require.Equal(t, []event.Renewed{{Locks: 3}}, stage.EventsOf[event.Renewed](&r))

		m.Link.Once(stage.Refuse(stage.ErrOdd), stage.CmdRenew)
		stage.Pass(relock.DefaultTTL/3 + time.Second)
		events := stage.EventsOf[event.Renewed](&r)
		require.Len(t, events, 3)
		require.Equal(t, event.Renewed{Locks: 3, Failed: 3, Err: stage.ErrOdd}, events[1])
		require.Equal(t, event.Renewed{Locks: 3}, events[2], "tried again soon")

		w.Store.Lose("b")
		stage.Settle()
		stage.Pass(relock.DefaultTTL / 3)
		lost := 0
		for _, e := range stage.EventsOf[event.Renewed](&r) {
			lost += e.Lost
		}
		require.Equal(t, 1, lost)
	})
}

func TestTheClosedEventTellsOfEachHoldThatIsOpenAtClose(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a", relock.WithTTL(time.Hour))
		section := w.Enter(t.Context(), l)
		require.NoError(t, l.Unlock(w.Enter(section, l)))
		require.NoError(t, m.NewLock("b").Do(t.Context(), func(context.Context) error { return nil }))
		holder := stage.HolderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		waiting := w.Start(t.Context(), l) // it holds nothing
		stage.Pass(time.Minute)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.Equal(t, []event.Closed{{Mode: event.ModeExclusive,
			Name: "a", Holder: holder, Token: token, TTL: time.Hour, Held: time.Minute, MaxDepth: 2,
		}}, stage.EventsOf[event.Closed](&r))
	})
}

// The one end of each hold.

// endsOf returns how the holds of a lock ended, for each holder that got it.
func endsOf(r *stage.Recorder, name string) map[relock.Holder][]string {
	ends := make(map[relock.Holder][]string)
	note := func(of string, holder relock.Holder, end ...string) {
		if of == name {
			ends[holder] = append(ends[holder], end...)
		}
	}
	for _, e := range r.All() {
		switch e := e.(type) {
		case event.AcquireFinished:
			if e.Outcome == event.OutcomeAcquired {
				note(e.Name, e.Holder)
			}
		case event.Released:
			note(e.Name, e.Holder, "Released")
		case event.Lost:
			note(e.Name, e.Holder, "Lost")
		case event.Closed:
			note(e.Name, e.Holder, "Closed")
		}
	}
	return ends
}

func TestAHoldWhoseClientIsClosedHasOneEnd(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock){
		"its Unlock is on the way": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			section := w.Enter(t.Context(), l)
			m.Link.On(stage.Delay(0, time.Second), stage.CmdRelease)
			unlocking := w.Begin(section, stage.Unlock(l))
			require.NoError(t, m.Close())
			_ = unlocking.Section()
		},
		"it is unlocked while Close waits for something else": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			_ = w.Enter(t.Context(), w.NewClient().NewLock("b"))
			waiting := w.Start(t.Context(), m.NewLock("b"))
			m.Link.On(stage.Delay(0, 10*time.Millisecond), stage.CmdForget, stage.CmdRelease)
			do := w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
				return ctx, l.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
			})
			require.NoError(t, m.Close())
			_ = do.Section()
			require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		},
		"its renewal finds it lost": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock) {
			_ = w.Enter(t.Context(), l)
			stage.Pass(time.Second) // from now on the store is watched
			renewal := m.Link.On(stage.Delay(0, 2*time.Second), stage.CmdRenew)
			w.Store.Lose("a")
			stage.Pass(time.Second)
			require.Positive(t, renewal.Hits.Load())
			require.NoError(t, m.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				do(t, w, m, m.NewLock("a"))
				stage.Pass(time.Minute)
				holds := endsOf(&r, "a")
				require.Len(t, holds, 1)
				for _, ends := range holds {
					require.Equal(t, []string{"Closed"}, ends)
				}
			})
		})
	}
}

func TestAHoldWhoseLastExitMeetsItsDeadlineHasOneEnd(t *testing.T) {
	for range 20 { // what happens at the same instant does so in any order
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			var r stage.Recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithTTL(2*time.Second))
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			silent := m.Link.Cut()
			require.NotErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			silent.End()
			stage.Pass(4 * time.Second)
			require.Len(t, stage.EventsOf[event.Released](&r), 1)
			require.Empty(t, stage.EventsOf[event.Lost](&r))
			w.RequireFree("a")
		})
	}
}

func TestAHoldThatIsLostDuringItsLastUnlockHasOneEnd(t *testing.T) {
	for name, test := range map[string]struct {
		release stage.Action
		end     string
	}{
		"the release finds the loss": {stage.Delay(time.Second, 0), "Lost"},
		"the release is refused":     {stage.Refuse(stage.ErrOdd), "Released"},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				stage.Pass(time.Second) // from now on the store is watched
				m.Link.Once(test.release, stage.CmdRelease)
				exit := w.Begin(section, stage.Unlock(l))
				w.Store.Lose("a")
				require.Error(t, exit.Failure())
				stage.Pass(time.Minute)
				for _, ends := range endsOf(&r, "a") {
					require.Equal(t, []string{test.end}, ends)
				}
			})
		})
	}
}

func TestALossAfterCloseIsTheErrorOfItsUnlockOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		var log stage.Logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		require.NoError(t, m.Close())
		w.Store.Lose("a")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		stage.Settle()
		require.Empty(t, stage.EventsOf[event.Lost](&r))
		require.Empty(t, log.About("lost"))
	})
}
