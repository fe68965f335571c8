package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// When does a fixed lease end?

// extending returns Extend, for begin.
func extending(l *relock.Lock, d time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Extend(ctx, d) }
}

func TestWithFixedLeaseEndsThenAndNothingRenewsIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const lease = time.Minute
		m := w.NewClient(relock.WithFixedLease(lease))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		waiting := w.start(t.Context(), w.NewClient().NewLock("a"))
		require.Equal(t, lease-margin(lease), l.Remaining(section))
		pass(lease / 2)
		inner := w.enter(section, l) // re-entry and inner exit leave the lease alone
		pass(lease / 4)
		w.leave(inner, l)
		require.Equal(t, lease/4, w.lease("a"))
		require.Equal(t, lease/4-margin(lease), l.Remaining(section))
		require.Equal(t, lease/4-margin(lease), w.lostBecause(section, relock.LossExpired))
		waiting.section()
		require.GreaterOrEqual(t, waiting.took(), lease-margin(lease))
		require.LessOrEqual(t, waiting.took(), lease)
		require.Zero(t, m.link.sent(cmdRenew))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestExtendMovesTheEndAndNeverShortens(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const lease = time.Minute
		l := w.NewClient(relock.WithFixedLease(lease)).NewLock("a")
		section := w.enter(t.Context(), l)
		pass(lease / 2)
		require.NoError(t, l.Extend(section, lease))
		require.Equal(t, lease, w.lease("a"))
		require.Equal(t, lease-margin(lease), l.Remaining(section))
		require.NoError(t, l.Extend(section, time.Second))
		require.Equal(t, lease, w.lease("a"))
		require.Equal(t, lease-margin(lease), l.Remaining(section))
		require.NoError(t, l.Extend(section, time.Hour))
		require.Equal(t, time.Hour, w.lease("a"))
		require.Equal(t, time.Hour-margin(time.Hour), w.lostBecause(section, relock.LossExpired))
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrNotHeld)
		w.requireFree("a")
	})
}

func TestALateExtendDoesNotShortenALaterOne(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		tape.keep(cmdEnter)
		ctx, cancel := context.WithTimeout(section, time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Extend(ctx, time.Second), context.DeadlineExceeded)
		require.NoError(t, l.Extend(section, time.Hour))
		require.Equal(t, 1, tape.play())
		require.Equal(t, time.Hour, w.lease("a"))
		w.leave(section, l)
	})
}

func TestAnUnlockAfterExtendCountsOnTheLongestLease(t *testing.T) {
	t.Run("that the store has confirmed", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(relock.WithFixedLease(5 * time.Second))
			l := m.NewLock("a")
			section := w.enter(t.Context(), l)
			require.NoError(t, l.Extend(section, time.Hour))
			m.link.cut()
			require.ErrorContains(t, l.Unlock(section), "free within 1h0m0s")
			pass(30 * time.Minute)
			require.False(t, w.free("a"))
			m.link.heal()
			pass(5 * time.Second)
			w.requireFree("a")
		})
	})
	t.Run("that the store may run yet", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient(relock.WithFixedLease(time.Minute))
			l := m.NewLock("a")
			section := w.enter(t.Context(), l)
			m.link.cut()
			for _, d := range []time.Duration{time.Hour, time.Second} {
				ctx, cancel := context.WithTimeout(section, 5*time.Second)
				require.ErrorIs(t, l.Extend(ctx, d), context.DeadlineExceeded)
				cancel()
			}
			require.ErrorContains(t, l.Unlock(section), "free within 1h0m3")
			m.link.heal()
			pass(5 * time.Second)
			w.requireFree("a")
		})
	})
}

func TestAnExtendThatIsRefusedHasAskedForNoLease(t *testing.T) {
	for name, refused := range map[string]func(w *world, m *member, l *relock.Lock, section context.Context){
		"its entry is left": func(w *world, _ *member, l *relock.Lock, section context.Context) {
			w.t.Helper()
			inner := w.enter(section, l)
			w.leave(inner, l)
			require.ErrorIs(w.t, l.Extend(inner, time.Hour), relock.ErrNotHeld)
		},
		"its context is done": func(w *world, _ *member, l *relock.Lock, section context.Context) {
			w.t.Helper()
			ctx, cancel := context.WithCancel(section)
			cancel()
			require.ErrorIs(w.t, l.Extend(ctx, time.Hour), context.Canceled)
		},
		"its client is closed": func(w *world, m *member, l *relock.Lock, section context.Context) {
			w.t.Helper()
			require.NoError(w.t, m.Close())
			for _, ctx := range []context.Context{section, context.WithoutCancel(section)} {
				require.ErrorIs(w.t, l.Extend(ctx, time.Hour), relock.ErrClosed)
			}
		},
		"its length is wrong": func(w *world, _ *member, l *relock.Lock, section context.Context) {
			w.t.Helper()
			for _, d := range []time.Duration{-1, 0, relock.MinTTL - time.Millisecond, time.Second + 1, relock.MaxTTL + time.Millisecond} {
				require.ErrorIs(w.t, l.Extend(section, d), relock.ErrInvalid)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithFixedLease(5 * time.Second))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				refused(w, m, l, section)
				require.Equal(t, 5*time.Second, w.lease("a"))
				m.link.cut()
				require.ErrorContains(t, l.Unlock(section), "free within 5s at the latest")
				pass(5 * time.Second)
				w.requireFree("a")
			})
		})
	}
}

func TestExtendOfALockThatIsGoneIsErrLockLostAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithFixedLease(time.Minute), relock.WithHooks(r.Hooks()))
		m.link.deaf()
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		require.NoError(t, l.ForceUnlock(t.Context()))
		m.link.once(delay(time.Second, 0), cmdEnter)
		late := w.begin(context.WithoutCancel(section), extending(l, time.Minute))
		require.ErrorIs(t, l.Extend(section, time.Minute), relock.ErrLockLost)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.ErrorIs(t, late.failure(), relock.ErrLockLost, "whoever has found out")
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		w.requireFree("a")
	})
}

func TestACommandThatMeetsAnUnlockIsNoLoss(t *testing.T) {
	calls := map[string]struct {
		verb command
		call func(l *relock.Lock) locking
	}{
		"Extend": {cmdEnter, func(l *relock.Lock) locking { return extending(l, time.Hour) }},
		"Token": {cmdToken, func(l *relock.Lock) locking {
			return func(ctx context.Context) (context.Context, error) { _, err := l.Token(ctx); return ctx, err }
		}},
		"Lock":   {cmdEnter, func(l *relock.Lock) locking { return l.Lock }},
		"Unlock": {cmdRelease, unlock},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithFixedLease(time.Minute), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				outer := w.enter(t.Context(), l)
				inner := w.enter(outer, l)
				m.link.once(delay(time.Second, 0), c.verb)
				call := w.begin(context.WithoutCancel(inner), c.call(l)) // reaches the store when the lock is free
				m.link.once(delay(0, 2*time.Second), cmdRelease)
				if name != "Unlock" {
					w.leave(inner, l)
					m.link.once(delay(0, 2*time.Second), cmdRelease)
				}
				last := w.begin(outer, unlock(l))
				require.NoError(t, last.failure())
				err := call.failure()
				require.NotErrorIs(t, err, relock.ErrLockLost)
				require.Equal(t, name == "Unlock", err == nil)
				require.Empty(t, eventsOf[relock.Lost](&r))
				require.Len(t, eventsOf[relock.Released](&r), 1)
				w.requireFree("a")
			})
		})
	}
}

func TestExtendOfAnInnerEntryThatIsUnlockedMeanwhileIsErrNotHeld(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		m.link.once(delay(time.Second, 0), cmdEnter)
		late := w.begin(context.WithoutCancel(inner), extending(l, time.Hour))
		w.leave(inner, l)
		require.ErrorIs(t, late.failure(), relock.ErrNotHeld)
		require.NoError(t, outer.Err())
		require.Equal(t, time.Hour-margin(time.Hour)-time.Second, l.Remaining(outer), "the lease is extended all the same")
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestExtendWhoseAnswerComesAfterTheLossSaysSo(t *testing.T) {
	const lease = time.Minute
	for name, late := range map[string]time.Duration{"at the deadline": lease/2 - margin(lease), "later": lease} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithFixedLease(lease))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				pass(lease / 2)
				m.link.once(delay(0, late), cmdEnter)
				detached := context.WithoutCancel(section) // or the end of the section would end the call
				require.ErrorIs(t, l.Extend(detached, time.Hour), relock.ErrLockLost)
				require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
				w.requireFree("a") // though the store had extended it
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			})
		})
	}
}

func TestExtendWithoutAnAnswerEndsWithItsContextOrTheLease(t *testing.T) {
	const lease = time.Minute
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(lease))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		m.link.cut()
		ctx, cancel := context.WithTimeout(section, 10*time.Second)
		defer cancel()
		call := w.begin(ctx, extending(l, time.Hour))
		require.ErrorIs(t, call.failure(), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, call.took())
		require.NotErrorIs(t, call.err, relock.ErrLockLost)
		require.Equal(t, 50*time.Second-margin(lease), l.Remaining(section), "count on the shorter")
		call = w.begin(context.WithoutCancel(section), extending(l, time.Hour))
		require.ErrorIs(t, call.failure(), relock.ErrLockLost)
		require.Equal(t, 50*time.Second-margin(lease), call.took())
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestExtendOfALockThatTheWatchdogKeepsIsErrInvalid(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), l)
		require.EqualError(t, l.Extend(section, time.Hour),
			`relock: invalid: Extend of "a": it is for a lock that was taken WithFixedLease; the watchdog renews this one (TTL 30s)`)
		require.Equal(t, relock.DefaultTTL, w.lease("a"))
		w.leave(section, l)
	})
}

func TestAFixedLeaseThatIsGoneIsFoundOutByTheCorrectionOfACount(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Hour))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		silent := m.link.cut()
		require.Error(t, l.Unlock(inner))
		w.Lose("a")
		silent.end()
		require.LessOrEqual(t, w.lostBecause(outer, relock.LossTaken), 5*time.Second)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}
