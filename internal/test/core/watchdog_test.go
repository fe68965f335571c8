package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

// When are leases renewed?

func TestALeaseIsRenewedEveryThirdOfItsTTL(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 30 * time.Second
		var r stage.Recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		begun := time.Now()
		stage.Pass(10*ttl + time.Second)
		renewals := stage.TimesOf[event.Renewed](&r)
		require.Len(t, renewals, 30)
		for i, at := range renewals {
			require.Equal(t, time.Duration(i+1)*ttl/3, at.Sub(begun))
		}
		for _, e := range stage.EventsOf[event.Renewed](&r) {
			require.Equal(t, event.Renewed{Locks: 1}, e)
		}
		require.Equal(t, 31, m.Link.Sent())
		w.Leave(section, l)
		m.Link.Reset()
		stage.Pass(time.Hour)
		require.Zero(t, m.Link.Sent(), "nothing is renewed after Unlock")
	})
}

func TestReentryAndInnerExitRenewTheLeaseOnTheirWay(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		for range 10 { // something every 9 s, so the watchdog has nothing to do
			stage.Pass(9 * time.Second)
			inner := w.Enter(section, l)
			require.Equal(t, ttl, w.Lease("a"))
			require.Equal(t, ttl-stage.Margin(ttl), l.Remaining(section))
			stage.Pass(9 * time.Second)
			w.Leave(inner, l)
			require.Equal(t, ttl, w.Lease("a"))
			require.Equal(t, ttl-stage.Margin(ttl), l.Remaining(section))
		}
		require.Zero(t, m.Link.Sent(stage.CmdRenew))
	})
}

func TestAHoldSurvivesAnOutageThatEndsBeforeItsDeadline(t *testing.T) {
	for name, outage := range stage.Outages {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl = 30 * time.Second
				var r stage.Recorder
				var log stage.Logbook
				m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				stage.Pass(25 * time.Second) // the last renewal was 5 s ago
				end := outage(m.Link)
				m.Link.Reset()
				stage.Pass(23 * time.Second)
				require.NoError(t, section.Err(), "the deadline is 1.7 s away")
				require.Less(t, m.Link.Sent(), 60, "no hot loop")
				end.End()
				stage.Pass(1500 * time.Millisecond)
				require.Greater(t, l.Remaining(section), 15*time.Second, "an attempt came in time")
				stage.Pass(10 * ttl)
				require.NoError(t, section.Err())
				failed := 0
				for _, e := range stage.EventsOf[event.Renewed](&r) {
					require.Equal(t, 1, e.Locks)
					require.Equal(t, e.Failed == 1, e.Err != nil)
					failed += e.Failed
				}
				require.Positive(t, failed)
				warnings := log.About("renewal not confirmed")
				require.Len(t, warnings, failed)
				require.Equal(t, slog.LevelWarn, warnings[0].Level)
				require.Empty(t, stage.EventsOf[event.Lost](&r))
				w.Leave(section, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestAttemptsOfARenewalHaveGrowingPauses(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		w.Enter(t.Context(), m.NewLock("a"))
		for range 2 { // the pauses begin anew after a success
			before := len(stage.TimesOf[event.Renewed](&r))
			failing := m.Link.On(stage.Refuse(stage.ErrBroken))
			stage.Pass(relock.DefaultTTL/3 + 4*time.Second)
			times := stage.TimesOf[event.Renewed](&r)[before:]
			require.Greater(t, len(times), 8)
			var pauses []time.Duration
			for i, at := range times[1:9] {
				pauses = append(pauses, at.Sub(times[i])/time.Millisecond)
			}
			require.Equal(t, []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000}, pauses, "in milliseconds")
			failing.End()
			stage.Pass(2 * time.Second)
		}
	})
}

func TestAShortLeaseInABatchWithALongOneIsRetriedInTime(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const long, short = 3 * time.Second, 100 * time.Millisecond
		m := w.NewClient()
		w.Enter(t.Context(), m.NewLock("a", relock.WithTTL(long)))
		stage.Pass(long/3 - short/3 + time.Millisecond) // the long one is due a millisecond before the short one
		section := w.Enter(t.Context(), m.NewLock("b", relock.WithTTL(short)))
		silent := m.Link.Once(stage.Silence, stage.CmdRenew)
		stage.Pass(time.Second)
		require.EqualValues(t, 1, silent.Hits.Load())
		require.NoError(t, section.Err())
	})
}

func TestALeaseHasOneRenewalInFlight(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var inFlight, most, sent atomic.Int64
		m := w.NewClient()
		l := m.NewLock("a")
		m.Link.On(func(_ context.Context, _ *stage.Fault, run func() error) error {
			sent.Add(1)
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			<-time.After(100 * time.Millisecond)
			return run()
		}, stage.CmdRenew)
		outer := w.Enter(t.Context(), l)
		m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdEnter)
		for range 100 { // each of these makes the store be asked about the count
			_, err := l.Lock(outer)
			require.ErrorIs(t, err, stage.ErrBroken)
			stage.Pass(10 * time.Millisecond)
		}
		require.EqualValues(t, 1, most.Load())
		require.LessOrEqual(t, sent.Load(), int64(11))
		require.NoError(t, outer.Err())
	})
}

func TestARenewalThatOutlastsItsHoldIsNoSuccess(t *testing.T) {
	for name, end := range map[string]func(w *stage.World, l *relock.Lock, section context.Context){
		"lost": func(w *stage.World, _ *relock.Lock, section context.Context) {
			w.LostBecause(section, event.LossExpired)
		},
		"unlocked": func(w *stage.World, l *relock.Lock, section context.Context) {
			stage.Pass(relock.DefaultTTL/3 + time.Second)
			require.Error(w.T, l.Unlock(section))
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				var log stage.Logbook
				m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				m.Link.Cut()
				end(w, l, section)
				again := len(log.About("trying again"))
				stage.Pass(time.Minute)
				require.Len(t, log.About("trying again"), again, "no attempt for a hold that is over")
				renewed := stage.EventsOf[event.Renewed](&r)
				require.NotEmpty(t, renewed)
				for _, e := range renewed {
					require.Equal(t, 1, e.Locks)
					require.Equal(t, 1, e.Failed)
					require.Error(t, e.Err)
				}
			})
		})
	}
}

func TestRemainingIsNeverMoreThanTheLeaseInTheStore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		for range 20 {
			owner := w.Enter(t.Context(), other)
			slow := m.Link.On(stage.Delay(rand.N(time.Second/2), rand.N(time.Second/2)))
			a := w.Start(t.Context(), l) // with a late grant too
			stage.Pass(rand.N(3 * ttl))
			w.Leave(owner, other)
			section := a.Section()
			for range 20 {
				remaining, lease := l.Remaining(section), w.Lease("a")
				require.Positive(t, remaining)
				require.LessOrEqual(t, remaining, lease-stage.Margin(ttl))
				slow.End()
				slow = m.Link.On(stage.Delay(rand.N(time.Second/5), rand.N(time.Second/5)))
				stage.Pass(rand.N(ttl))
			}
			w.Leave(section, l)
			slow.End()
		}
	})
}

func TestASectionSurvivesASlowLink(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		for _, part := range []time.Duration{20, 10, 8, 7, 5, 4} {
			t.Run(fmt.Sprintf("%s, a round trip of a %dth", ttl, part), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m := w.NewClient(relock.WithTTL(ttl))
					m.Link.On(stage.Delay(ttl/part/2, ttl/part/2))
					l := m.NewLock("a")
					section := w.Enter(t.Context(), l)
					stage.Pass(20 * ttl)
					require.NoError(t, section.Err())
					w.Leave(section, l)
				})
			})
		}
	}
}

func TestAHoldWithoutWorkIsRenewedOnceSomebodyEntersAgain(t *testing.T) {
	const ttl = 30 * time.Second
	for name, options := range map[string][]relock.Option{
		"in the store": nil,
		"locally":      {relock.WithLocalReentry()},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(append(options, relock.WithTTL(ttl))...)
				m.Link.On(stage.Delay(time.Millisecond, time.Millisecond))
				l := m.NewLock("a")
				request, cancel := context.WithCancel(t.Context())
				outer := w.Enter(request, l)
				cancel()
				stage.Pass(ttl / 2) // the watchdog has seen that
				require.Zero(t, m.Link.Sent(stage.CmdRenew))
				inner := w.Enter(context.WithoutCancel(outer), l)
				require.Equal(t, 2, l.Count(inner))
				stage.Pass(10 * ttl)
				require.True(t, l.Held(inner))
				w.Leave(inner, l)
				w.Leave(outer, l)
			})
		})
	}
}

// Many leases.

func TestTenThousandLeasesTakeOneGoroutineAndFewRoundTrips(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const n, ttl = 10_000, 30 * time.Second
		var r stage.Recorder
		m := w.NewClient(relock.WithTTL(ttl), relock.WithHooks(event.Hooks{Renewed: r.Hooks().Renewed, Lost: r.Hooks().Lost}))
		sections := make([]context.Context, n)
		for i := range sections {
			section, err := m.NewLock(fmt.Sprint(i)).Lock(t.Context())
			require.NoError(t, err)
			sections[i] = section
		}
		require.Equal(t, 1, stage.Goroutines("(*watchdog).run"))
		require.Less(t, stage.Goroutines("relock.(*"), 10, "none for each lock")
		m.Link.Reset()
		stage.Pass(ttl / 3)
		require.Equal(t, n/1000, m.Link.Sent(stage.CmdRenew), "a thousand a round trip")
		renewed := 0
		for _, e := range stage.EventsOf[event.Renewed](&r) {
			require.NoError(t, e.Err)
			renewed += e.Locks
		}
		require.Equal(t, n, renewed)
		require.Empty(t, stage.EventsOf[event.Lost](&r))
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestLeasesThatBeganAtDifferentTimesAreRenewedTogether(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const n, ttl = 300, 30 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		var sections []context.Context
		for i := range n {
			sections = append(sections, w.Enter(t.Context(), m.NewLock(fmt.Sprint(i))))
			stage.Pass(ttl / n)
		}
		stage.Pass(ttl)
		m.Link.Reset()
		stage.Pass(10 * ttl)
		require.Less(t, m.Link.Sent(stage.CmdRenew), 10*3*10, "a lease goes up to a tenth of its interval early")
		for _, section := range sections {
			require.NoError(t, section.Err())
		}
	})
}

func TestTheWatchdogStartsWithTheFirstHoldAndOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		_, err := l.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, stage.Goroutines("go-relock/relock.(*"))
		for range 5 {
			section := w.Enter(t.Context(), l)
			require.Equal(t, 1, stage.Goroutines("(*watchdog).run"))
			stage.Pass(time.Hour)
			require.NoError(t, section.Err())
			w.Leave(section, l)
		}
		require.NoError(t, m.Close())
		require.Zero(t, stage.Goroutines("go-relock/relock.(*"))
	})
}

// heldUp is a store whose Watch holds up the watchdog, which calls it, for as long as a process
// would be paused. Answers come in meanwhile.
type heldUp struct {
	*stage.Link
	pause time.Duration
}

func (s heldUp) Watch(client string, doubt func(store.ID)) (stop func()) {
	<-time.After(s.pause)
	return s.Link.Watch(client, doubt)
}

// late runs a command at once, and answers after d, whatever becomes of its context.
func late(d time.Duration) stage.Action {
	return func(_ context.Context, _ *stage.Fault, run func() error) error {
		err := run()
		<-time.After(d)
		return err
	}
}

// After a pause of the process an answer may be noted before the watchdog sees the deadline. Another
// hold may have had the lock by then.
func TestAnAnswerBehindTheDeadlineDoesNotReviveAHold(t *testing.T) {
	const ttl = 10 * time.Second
	for name, claim := range map[string]struct {
		lease func(time.Duration) relock.Option
		call  func(l *relock.Lock, inner context.Context) error
	}{
		"of a nested Lock": {relock.WithTTL, func(l *relock.Lock, inner context.Context) error {
			return stage.ErrorOf(l.Lock(context.WithoutCancel(inner)))
		}},
		"of an inner Unlock": {relock.WithTTL, func(l *relock.Lock, inner context.Context) error {
			return l.Unlock(inner)
		}},
		"of an Extend": {relock.WithFixedLease, func(l *relock.Lock, inner context.Context) error {
			return l.Extend(context.WithoutCancel(inner), ttl)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				link := stage.NewLink(w.Store)
				c, err := relock.Open(heldUp{link, 2 * ttl}, claim.lease(ttl))
				require.NoError(t, err)
				defer c.Close()
				l := c.NewLock("a")
				outer := w.Enter(t.Context(), l)
				inner := w.Enter(outer, l)
				outside := context.WithoutCancel(outer)
				stage.Pass(ttl - time.Second)
				require.Zero(t, link.Sent(stage.CmdRenew), "the watchdog is held up")
				require.NoError(t, outer.Err())
				link.Once(late(2*time.Second), stage.CmdEnter)
				answer := make(chan error, 1)
				go func() { answer <- claim.call(l, inner) }()
				stage.Pass(time.Second)
				require.False(t, l.Held(outside), "the deadline has passed")
				stage.Pass(2 * time.Second)
				err = <-answer
				require.False(t, l.Held(outside), "and stays passed: %v", err)
				require.Zero(t, l.Remaining(outside))
				if name != "of an inner Unlock" {
					require.ErrorIs(t, err, relock.ErrLockLost)
				}
				stage.Pass(2 * ttl)
				require.ErrorIs(t, context.Cause(outer), relock.ErrLockLost)
				require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
				w.RequireFree("a")
			})
		})
	}
}

// replicated is a store with replicas, which confirm what a command has done unless they are away.
type replicated struct {
	*mem.Store
	away   atomic.Bool
	rounds atomic.Int32 // renewals of leases that need no confirmation, beside others that do
}

func (r *replicated) Check(a store.Claim) (store.Claim, error) {
	acks := a.Acks
	a.Acks = store.Acks{}
	a, err := r.Store.Check(a)
	a.Acks = acks
	return a, err
}

func (r *replicated) confirmed(l store.Lease, err error) error {
	if err == nil && l.Acks != (store.Acks{}) && r.away.Load() {
		<-time.After(l.Acks.Timeout)
		return store.Unsure(store.ErrNotReplicated)
	}
	return err
}

func (r *replicated) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	entered, err := r.Store.Enter(ctx, l, count)
	return entered, r.confirmed(l, err)
}

func (r *replicated) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := r.Store.Renew(ctx, renewals)
	for i, renewal := range renewals {
		errs[i] = r.confirmed(renewal.Lease, errs[i])
		if renewal.Lease.Acks != renewals[0].Lease.Acks {
			r.rounds.Add(1)
		}
	}
	return errs
}

func TestWithAcksOnlyAConfirmedRenewalMovesTheDeadline(t *testing.T) {
	const ttl, timeout = 30 * time.Second, time.Second
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &replicated{Store: w.Store}
		c, err := relock.Open(s, relock.WithTTL(ttl))
		require.NoError(t, err)
		defer c.Close()
		acked, plain := c.NewLock("a", relock.WithReplicaAcks(1, timeout)), c.NewLock("b")
		section, other := w.Enter(t.Context(), acked), w.Enter(t.Context(), plain)
		stage.Pass(2*ttl + ttl/2)
		require.NoError(t, section.Err())
		deadline := acked.Remaining(section)

		s.away.Store(true)
		stage.Pass(ttl / 2)
		require.Equal(t, deadline-ttl/2, acked.Remaining(section), "two renewals have failed")
		w.Leave(w.Enter(section, acked), acked)
		require.Equal(t, deadline-ttl/2, acked.Remaining(section), "nor do an entry and an exit")
		require.Greater(t, w.Lease("a"), acked.Remaining(section), "the server itself keeps the lock for longer")
		s.away.Store(false)
		stage.Pass(ttl / 3)
		require.NoError(t, section.Err(), "the replicas are back in time")
		require.Greater(t, acked.Remaining(section), ttl/2)

		s.away.Store(true)
		begun := time.Now()
		deadline = acked.Remaining(section)
		<-section.Done()
		require.Equal(t, deadline, time.Since(begun))
		require.Equal(t, event.LossExpired, w.Lost(section))
		require.NoError(t, other.Err(), "a lock without acks waits for no replica")
		require.Zero(t, s.rounds.Load(), "its renewals go beside those that wait")
		w.Leave(other, plain)
		require.ErrorIs(t, acked.Unlock(section), relock.ErrLockLost)
	})
}

func TestAnExtensionWithoutItsAcksLeavesTheDeadline(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &replicated{Store: w.Store}
		c, err := relock.Open(s, relock.WithFixedLease(10*time.Second))
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a", relock.WithReplicaAcks(1, time.Second))
		section := w.Enter(t.Context(), l)
		deadline := l.Remaining(section)
		s.away.Store(true)
		require.ErrorIs(t, l.Extend(section, time.Minute), relock.ErrNotReplicated)
		require.Equal(t, deadline-time.Second, l.Remaining(section))
		s.away.Store(false)
		require.NoError(t, l.Extend(section, time.Minute))
		require.Greater(t, l.Remaining(section), 50*time.Second)
		w.Leave(section, l)
	})
}
