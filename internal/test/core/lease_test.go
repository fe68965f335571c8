package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// What if a lease is nearly over when it begins?

// staleGrants is a link whose grants count from the beginning of the wait, as a message does not
// say when the store gave the lock.
type staleGrants struct{ *stage.Link }

func (s staleGrants) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	begun := time.Now()
	l, err := s.Link.Wait(ctx, a, progress)
	l.Sent = begun
	return l, err
}

// newStale returns a Client whose grants count from the beginning of the wait.
func newStale(w *stage.World, options ...relock.Option) *stage.Member {
	w.T.Helper()
	m := &stage.Member{Link: stage.NewLink(w.Store)}
	var err error
	m.Client, err = relock.Open(staleGrants{m.Link}, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() { require.NoError(w.T, m.Close()) })
	return m
}

// The first lease.

func TestALeaseThatComesBackNearlyOverIsMadeWhole(t *testing.T) {
	const ttl = 30 * time.Second
	const most = ttl/2 - margin30
	for _, c := range []struct {
		name         string
		waited, left time.Duration
		asked        int
	}{
		{"half of it", most, ttl / 2, 0},
		{"less than half of it", most + 1, ttl - margin30, 1},
		{"less than nothing", 3 * ttl, ttl - margin30, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				owner := w.NewClient(relock.WithTTL(time.Hour)).NewLock("a")
				section := w.Enter(t.Context(), owner)
				m := newStale(w, relock.WithTTL(ttl))
				m.Link.On(stage.Silence, stage.CmdRenew) // a lease that is half over is renewed at once
				l := m.NewLock("a")
				waiting := w.Start(t.Context(), l)
				stage.Pass(c.waited)
				w.Leave(section, owner)
				granted := waiting.Section()
				require.Equal(t, c.left, l.Remaining(granted))
				require.Equal(t, c.asked, m.Link.Sent(stage.CmdEnter))
				require.Equal(t, ttl, w.Lease("a"))
				w.Leave(granted, l)
				stage.Pass(ttl)
				w.RequireFree("a")
			})
		})
	}
}

// margin30 is the margin of a lease of 30 s.
const margin30 = 302 * time.Millisecond

func TestAFixedLeaseBeginsWithNineTenthsOfItAtLeast(t *testing.T) {
	const lease = 30 * time.Second
	for waited, left := range map[time.Duration]time.Duration{
		lease/10 - margin30:     lease - lease/10,
		lease/10 - margin30 + 1: lease - margin30,
	} {
		t.Run(waited.String(), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				owner := w.NewClient().NewLock("a")
				section := w.Enter(t.Context(), owner)
				l := newStale(w, relock.WithFixedLease(lease)).NewLock("a")
				waiting := w.Start(t.Context(), l)
				stage.Pass(waited)
				w.Leave(section, owner)
				require.Equal(t, left, l.Remaining(waiting.Section()))
			})
		})
	}
}

func TestALeaseThatIsOverBeforeItBeginsIsAskedForAsAnother(t *testing.T) {
	const ttl = 10 * time.Second
	for name, slow := range map[string]func(m *stage.Member){
		"the answer is late": func(m *stage.Member) { m.Link.Once(stage.Delay(0, 2*ttl), stage.CmdWait) },
		"the store loses it": func(m *stage.Member) {
			m.Link.Once(stage.Delay(0, ttl*2/3), stage.CmdWait)
			m.Link.Once(stage.Delay(ttl, 0), stage.CmdEnter)
		},
		"the answer that makes it whole is late": func(m *stage.Member) {
			m.Link.Once(stage.Delay(0, ttl*2/3), stage.CmdWait)
			m.Link.Once(stage.Delay(0, 2*ttl), stage.CmdEnter)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := newStale(w, relock.WithTTL(ttl))
				slow(m)
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				require.Equal(t, 2, m.Link.Sent(stage.CmdWait))
				require.Equal(t, ttl-stage.Margin(ttl), l.Remaining(section))
				w.RequireCount("a", 1)
				stage.Pass(5 * ttl)
				require.True(t, l.Held(section), "what is taken back is the hold before")
				w.Leave(section, l)
				w.RequireFree("a")
			})
		})
	}
}

// spent is a store whose grants are over when they come, as a quorum's are that nobody confirms.
type spent struct{ *stage.Link }

func (s spent) Wait(ctx context.Context, a store.Claim, _ func(store.Progress)) (store.Lease, error) {
	if ctx.Err() != nil {
		return store.Lease{}, ctx.Err()
	}
	return store.Lease{Claim: a}, nil
}

func TestACallWhoseGrantsAreOverAsksAgainWithGrowingPauses(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		link := stage.NewLink(w.Store)
		c, err := relock.Open(spent{link})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		_, err = c.NewLock("a").TryLockFor(t.Context(), time.Minute)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 120, link.Sent(stage.CmdEnter), 10)
	})
}

func TestTryLockGivesUpOnLeasesThatAreOverBeforeTheyBegin(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 100 * time.Millisecond
		m := w.NewClient(relock.WithTTL(ttl))
		m.Link.On(stage.Delay(ttl, ttl), stage.CmdTry)
		l := m.NewLock("a")
		_, err := l.TryLock(t.Context())
		require.ErrorContains(t, err, "3 times the answer took longer than the lease of 100ms lasts")
		require.NotErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, 3, m.Link.Sent(stage.CmdTry))
		stage.Pass(ttl)
		w.RequireFree("a")
	})
}

func TestALockWhoseFirstLeaseIsNotMadeWholeLeavesNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 2 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		m.Link.On(stage.Delay(0, ttl*2/3), stage.CmdTry)
		m.Link.On(stage.Refuse(stage.ErrBroken), stage.CmdEnter)
		_, err := m.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, stage.ErrBroken)
		w.RequireFree("a")
	})
}

// A grant and the end of the caller's context may come at the same instant.
func TestACallWhoseContextIsDoneHasNotEntered(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		owner, l := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		entered := 0
		for range 200 {
			section := w.Enter(t.Context(), owner)
			ctx, cancel := context.WithCancel(t.Context())
			waiting := w.Start(ctx, l)
			go cancel()
			w.Leave(section, owner)
			mine, err := waiting.Result()
			if err == nil {
				entered++
				w.Leave(mine, l)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, context.Cause(mine), err)
			}
			w.RequireFree("a")
		}
		t.Log(entered, "of 200 have entered")
	})
	t.Run("the answer comes when the context is done", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient()
			l := m.NewLock("a")
			var stop context.CancelFunc
			m.Link.On(func(_ context.Context, _ *stage.Fault, run func() error) error {
				defer stop()
				return run()
			}, stage.CmdWait, stage.CmdTry)
			for _, lock := range []stage.Locking{l.Lock, l.TryLock, stage.TryFor(l, time.Minute)} {
				ctx, cancel := context.WithCancel(t.Context())
				stop = cancel
				_, err := lock(ctx)
				require.ErrorIs(t, err, context.Canceled)
				w.RequireFree("a")
			}
		})
	})
}

// WithMaxHold.

func TestWithMaxHoldEndsTheHoldThen(t *testing.T) {
	for _, c := range []struct{ ttl, maxHold time.Duration }{
		{30 * time.Second, 30 * time.Second},
		{30 * time.Second, 30*time.Second + time.Millisecond},
		{30 * time.Second, 40 * time.Second},
		{30 * time.Second, time.Hour},
		{100 * time.Millisecond, 150 * time.Millisecond},
		{100 * time.Millisecond, time.Second},
		{10 * time.Millisecond, 25 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(c.ttl, " ", c.maxHold), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(c.ttl), relock.WithMaxHold(c.maxHold))
				l, other := m.NewLock("a"), w.NewClient().NewLock("a")
				for range 2 { // each hold has the whole time
					section := w.Enter(t.Context(), l)
					waiting := w.Start(t.Context(), other)
					m.Link.Reset()
					took := w.LostBecause(section, event.LossMaxHold)
					require.LessOrEqual(t, took, c.maxHold)
					require.GreaterOrEqual(t, took, c.maxHold-stage.Margin(c.ttl)-relock.MinTTL)
					require.Less(t, m.Link.Sent(), 20+4*int(c.maxHold/c.ttl), "no hot loop towards the end")
					next := waiting.Section()
					require.GreaterOrEqual(t, waiting.Took(), took, "not before the section has ended")
					require.LessOrEqual(t, waiting.Took(), c.maxHold)
					require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
					w.Leave(next, other)
				}
			})
		})
	}
}

func TestALossWithMaxHoldSaysWhetherItWasTheLimit(t *testing.T) {
	const ttl, maxHold = 30 * time.Second, time.Minute
	for name, test := range map[string]struct {
		silent time.Duration // from then on
		reason event.LossReason
	}{
		"an outage long before": {5 * time.Second, event.LossExpired},
		"an outage at the end":  {maxHold - 5*time.Second, event.LossMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				section := w.Enter(t.Context(), m.NewLock("a"))
				stage.Pass(test.silent)
				m.Link.Cut()
				w.LostBecause(section, test.reason)
			})
		})
	}
	for limit, reason := range map[time.Duration]event.LossReason{ttl: event.LossMaxHold, 2 * ttl: event.LossExpired} {
		t.Run(fmt.Sprintf("Unlock finds it, limit %s", limit), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(limit))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				require.NoError(t, m.Close()) // so that no watchdog finds the loss before
				stage.Pass(2 * limit)
				var lost *relock.LostError
				require.ErrorAs(t, l.Unlock(section), &lost)
				require.Equal(t, reason, lost.Reason)
			})
		})
	}
}

// A command that waits for the store asks for what was left of the longest hold when the command
// was first sent.
func TestWithMaxHoldIsNotMovedByACommandThatComesLate(t *testing.T) {
	for name, call := range map[string]func(l *relock.Lock, section, inner context.Context) stage.Locking{
		"re-entry": func(l *relock.Lock, section, _ context.Context) stage.Locking {
			return func(context.Context) (context.Context, error) { return l.Lock(section) }
		},
		"inner exit": func(l *relock.Lock, _, inner context.Context) stage.Locking {
			return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(inner) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl, maxHold = 30 * time.Second, 40 * time.Second
				c, err := relock.Open(w.Store, relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				require.NoError(t, err)
				defer c.Close()
				l := c.NewLock("a")
				section := w.Enter(t.Context(), l)
				waiting := w.Start(t.Context(), w.NewClient().NewLock("a"))
				inner := w.Enter(section, l)
				stage.Pass(maxHold - 20*time.Second)
				restore := w.Store.Interrupt(nil)
				nested := w.Begin(t.Context(), call(l, section, inner))
				stage.Pass(8 * time.Second)
				require.True(t, nested.Waits())
				restore()
				nested.Section()
				w.LostBecause(section, event.LossMaxHold)
				waiting.Section()
				require.LessOrEqual(t, waiting.Took(), maxHold)
			})
		})
	}
}

// WithFixedLease and Extend.

func TestAWaiterThatAsksAgainAfterALateGrantSaysSo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m, owner := w.NewClient(relock.WithHooks(r.Hooks())), w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), owner)
		m.Link.Once(stage.Delay(0, 2*relock.DefaultTTL), stage.CmdWait)
		waiter := w.Start(t.Context(), m.NewLock("a"))
		w.Leave(section, owner)
		waiter.Leave()
		finished := stage.EventsOf[event.AcquireFinished](&r)[0]
		require.True(t, finished.Queued)
		require.Equal(t, event.WakeRecheck, finished.Wake)
	})
}
