package relock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// What if a lease is nearly over when it begins?

// staleGrants is a link whose grants count from the beginning of the wait, as a message does not
// say when the store gave the lock.
type staleGrants struct{ *link }

func (s staleGrants) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	begun := time.Now()
	l, err := s.link.Wait(ctx, a, progress)
	l.Sent = begun
	return l, err
}

// NewStale returns a Client whose grants count from the beginning of the wait.
func (w *world) NewStale(options ...relock.Option) *member {
	w.t.Helper()
	m := &member{link: newLink(w.Store)}
	var err error
	m.Client, err = relock.Open(staleGrants{m.link}, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, m.Close()) })
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
			fake(t, func(t *testing.T, w *world) {
				owner := w.NewClient(relock.WithTTL(time.Hour)).NewLock("a")
				section := w.enter(t.Context(), owner)
				m := w.NewStale(relock.WithTTL(ttl))
				m.link.on(silence, cmdRenew) // a lease that is half over is renewed at once
				l := m.NewLock("a")
				waiting := w.start(t.Context(), l)
				pass(c.waited)
				w.leave(section, owner)
				granted := waiting.section()
				require.Equal(t, c.left, l.Remaining(granted))
				require.Equal(t, c.asked, m.link.sent(cmdEnter))
				require.Equal(t, ttl, w.lease("a"))
				w.leave(granted, l)
				pass(ttl)
				w.requireFree("a")
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
			fake(t, func(t *testing.T, w *world) {
				owner := w.NewClient().NewLock("a")
				section := w.enter(t.Context(), owner)
				l := w.NewStale(relock.WithFixedLease(lease)).NewLock("a")
				waiting := w.start(t.Context(), l)
				pass(waited)
				w.leave(section, owner)
				require.Equal(t, left, l.Remaining(waiting.section()))
			})
		})
	}
}

func TestALeaseThatIsOverBeforeItBeginsIsAskedForAsAnother(t *testing.T) {
	const ttl = 10 * time.Second
	for name, slow := range map[string]func(m *member){
		"the answer is late": func(m *member) { m.link.once(delay(0, 2*ttl), cmdWait) },
		"the store loses it": func(m *member) { m.link.once(delay(0, ttl*2/3), cmdWait); m.link.once(delay(ttl, 0), cmdEnter) },
		"the answer that makes it whole is late": func(m *member) {
			m.link.once(delay(0, ttl*2/3), cmdWait)
			m.link.once(delay(0, 2*ttl), cmdEnter)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewStale(relock.WithTTL(ttl))
				slow(m)
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				require.Equal(t, 2, m.link.sent(cmdWait))
				require.Equal(t, ttl-margin(ttl), l.Remaining(section))
				w.requireCount("a", 1)
				pass(5 * ttl)
				require.True(t, l.Held(section), "what is taken back is the hold before")
				w.leave(section, l)
				w.requireFree("a")
			})
		})
	}
}

func TestTryLockGivesUpOnLeasesThatAreOverBeforeTheyBegin(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		m.link.on(delay(ttl, ttl), cmdTry)
		l := m.NewLock("a")
		_, err := l.TryLock(t.Context())
		require.ErrorContains(t, err, "3 times the answer took longer than the lease of 1s lasts")
		require.NotErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, 3, m.link.sent(cmdTry))
		pass(ttl)
		w.requireFree("a")
	})
}

func TestALockWhoseFirstLeaseIsNotMadeWholeLeavesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		m.link.on(delay(0, ttl*2/3), cmdTry)
		m.link.on(refuse(errBroken), cmdEnter)
		_, err := m.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, errBroken)
		w.requireFree("a")
	})
}

// A grant and the end of the caller's context may come at the same instant.
func TestACallWhoseContextIsDoneHasNotEntered(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		owner, l := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		entered := 0
		for range 200 {
			section := w.enter(t.Context(), owner)
			ctx, cancel := context.WithCancel(t.Context())
			waiting := w.start(ctx, l)
			go cancel()
			w.leave(section, owner)
			mine, err := waiting.result()
			if err == nil {
				entered++
				w.leave(mine, l)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, ctx, mine)
			}
			w.requireFree("a")
		}
		t.Log(entered, "of 200 have entered")
	})
	t.Run("the answer comes when the context is done", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient()
			l := m.NewLock("a")
			var stop context.CancelFunc
			m.link.on(func(_ context.Context, _ *fault, run func() error) error {
				defer stop()
				return run()
			}, cmdWait, cmdTry)
			for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
				ctx, cancel := context.WithCancel(t.Context())
				stop = cancel
				_, err := lock(ctx)
				require.ErrorIs(t, err, context.Canceled)
				w.requireFree("a")
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
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(c.ttl), relock.WithMaxHold(c.maxHold))
				l, other := m.NewLock("a"), w.NewClient().NewLock("a")
				for range 2 { // each hold has the whole time
					section := w.enter(t.Context(), l)
					waiting := w.start(t.Context(), other)
					m.link.reset()
					took := w.lostBecause(section, relock.LossMaxHold)
					require.LessOrEqual(t, took, c.maxHold)
					require.GreaterOrEqual(t, took, c.maxHold-margin(c.ttl)-relock.MinTTL)
					require.Less(t, m.link.sent(), 20+4*int(c.maxHold/c.ttl), "no hot loop towards the end")
					next := waiting.section()
					require.GreaterOrEqual(t, waiting.took(), took, "not before the section has ended")
					require.LessOrEqual(t, waiting.took(), c.maxHold)
					require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
					w.leave(next, other)
				}
			})
		})
	}
}

func TestALossWithMaxHoldSaysWhetherItWasTheLimit(t *testing.T) {
	const ttl, maxHold = 30 * time.Second, time.Minute
	for name, test := range map[string]struct {
		silent time.Duration // from then on
		reason relock.LossReason
	}{
		"an outage long before": {5 * time.Second, relock.LossExpired},
		"an outage at the end":  {maxHold - 5*time.Second, relock.LossMaxHold},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				section := w.enter(t.Context(), m.NewLock("a"))
				pass(test.silent)
				m.link.cut()
				w.lostBecause(section, test.reason)
			})
		})
	}
	for limit, reason := range map[time.Duration]relock.LossReason{ttl: relock.LossMaxHold, 2 * ttl: relock.LossExpired} {
		t.Run(fmt.Sprintf("Unlock finds it, limit %s", limit), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(limit))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				require.NoError(t, m.Close()) // so that no watchdog finds the loss before
				pass(2 * limit)
				var lost *relock.LostError
				require.ErrorAs(t, l.Unlock(section), &lost)
				require.Equal(t, reason, lost.Reason)
			})
		})
	}
}

func TestWithMaxHoldIsNotMovedByReentryOrInnerExit(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl, maxHold = 30 * time.Second, time.Minute
		l := w.NewClient(relock.WithTTL(ttl), relock.WithMaxHold(maxHold)).NewLock("a")
		section := w.enter(t.Context(), l)
		waiting := w.start(t.Context(), w.NewClient().NewLock("a"))
		for section.Err() == nil {
			pass(4 * time.Second)
			inner, err := l.Lock(section)
			if err == nil {
				pass(time.Second)
				_ = l.Unlock(inner)
			}
		}
		waiting.section()
		require.LessOrEqual(t, waiting.took(), maxHold)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
	})
}

// A command that waits for the store asks for what was left of the longest hold when the command
// was first sent.
func TestWithMaxHoldIsNotMovedByACommandThatComesLate(t *testing.T) {
	for name, call := range map[string]func(l *relock.Lock, section, inner context.Context) locking{
		"re-entry": func(l *relock.Lock, section, _ context.Context) locking {
			return func(context.Context) (context.Context, error) { return l.Lock(section) }
		},
		"inner exit": func(l *relock.Lock, _, inner context.Context) locking {
			return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(inner) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				const ttl, maxHold = 30 * time.Second, 40 * time.Second
				c, err := relock.Open(w.Store, relock.WithTTL(ttl), relock.WithMaxHold(maxHold))
				require.NoError(t, err)
				defer c.Close()
				l := c.NewLock("a")
				section := w.enter(t.Context(), l)
				waiting := w.start(t.Context(), w.NewClient().NewLock("a"))
				inner := w.enter(section, l)
				pass(maxHold - 20*time.Second)
				restore := w.Interrupt(nil)
				nested := w.begin(t.Context(), call(l, section, inner))
				pass(8 * time.Second)
				require.True(t, nested.waits())
				restore()
				nested.section()
				w.lostBecause(section, relock.LossMaxHold)
				waiting.section()
				require.LessOrEqual(t, waiting.took(), maxHold)
			})
		})
	}
}

// WithFixedLease and Extend.

func TestAWaiterThatAsksAgainAfterALateGrantSaysSo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m, owner := w.NewClient(relock.WithHooks(r.Hooks())), w.NewClient().NewLock("a")
		section := w.enter(t.Context(), owner)
		m.link.once(delay(0, 2*relock.DefaultTTL), cmdWait)
		waiter := w.start(t.Context(), m.NewLock("a"))
		w.leave(section, owner)
		waiter.leave()
		finished := eventsOf[relock.AcquireFinished](&r)[0]
		require.True(t, finished.Queued)
		require.Equal(t, relock.WakeRecheck, finished.Wake)
	})
}
