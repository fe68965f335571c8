package relock_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// When is a hold reported as leaked?

// forget locks, and drops the section without Unlock.
//
//go:noinline
func forget(t *testing.T, ctx context.Context, l *relock.Lock) relock.Holder { //nolint:revive // t comes first in a test helper
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return holderOf(t, section)
}

// forgetNested enters a lock twice, one entry inside the other, and drops both sections.
//
//go:noinline
func forgetNested(t *testing.T, l *relock.Lock) {
	t.Helper()
	section, err := l.Lock(context.Background())
	require.NoError(t, err)
	forget(t, section, l)
}

// collect gives the garbage collector time to find what was dropped. Fake time stands still.
func collect() {
	for range 10 {
		runtime.GC()
		settle()
	}
}

// awaitLeaks lets the watchdog look again and again, until it has reported so many leaks.
func awaitLeaks(t *testing.T, n int, reported func() int) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if pass(relock.DefaultTTL / 3); reported() >= n {
			break
		}
	}
	require.Equal(t, n, reported())
}

// leaksOf counts the leaks that a recorder knows of.
func leaksOf(r *recorder) func() int { return func() int { return len(eventsOf[relock.Leaked](r)) } }

func TestALeakedHoldIsReportedAndItsLeaseRunsOut(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var log logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		kept := w.enter(t.Context(), m.NewLock("b"))
		holder := forget(t, t.Context(), m.NewLock("a"))
		begun := time.Now()
		waiting := w.start(t.Context(), w.NewClient().NewLock("a"))
		awaitLeaks(t, 1, leaksOf(&r))
		require.Equal(t, relock.Leaked{Mode: relock.ModeExclusive, Name: "a", Holder: holder, Held: time.Since(begun)}, eventsOf[relock.Leaked](&r)[0])
		lines := log.about("leaked")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].level)
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String()}, lines[0].attrs)
		reported := time.Now()
		waiting.section()
		require.LessOrEqual(t, waiting.ended.Sub(reported), relock.DefaultTTL)
		lost := eventsOf[relock.Lost](&r)
		require.Len(t, lost, 1)
		require.Equal(t, relock.LossLeaked, lost[0].Reason)
		require.True(t, m.NewLock("b").Held(kept))
	})
}

func TestALeakIsReportedAlsoWhereNothingIsRenewed(t *testing.T) {
	for name, option := range map[string]relock.Option{
		"fixed lease":    relock.WithFixedLease(30 * time.Second),
		"the least hold": relock.WithMaxHold(30 * time.Second),
		"a longer one":   relock.WithMaxHold(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				l := w.NewClient(option, relock.WithHooks(r.Hooks())).NewLock("a")
				forget(t, t.Context(), l)
				collect()
				pass(time.Minute)
				require.Len(t, eventsOf[relock.Leaked](&r), 1)
				require.Len(t, eventsOf[relock.Lost](&r), 1)
				w.requireFree("a")
			})
		})
	}
}

func TestALeakOfOneEntryDoesNotEndTheOthers(t *testing.T) {
	for name, options := range map[string][]relock.Option{"in the store": nil, "locally": {relock.WithLocalReentry()}} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				l := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...).NewLock("a")
				outer := w.enter(t.Context(), l)
				forget(t, outer, l)
				awaitLeaks(t, 1, leaksOf(&r))
				pass(time.Hour)
				require.True(t, l.Held(outer))
				require.Len(t, eventsOf[relock.Leaked](&r), 1, "once")
				// The last Unlock cannot free the lock, as an entry is still open. The end of the
				// lease does.
				w.leave(outer, l)
				require.False(t, w.free("a"))
				pass(relock.DefaultTTL)
				w.requireFree("a")
				require.Equal(t, relock.LossLeaked, eventsOf[relock.Lost](&r)[0].Reason)
			})
		})
	}
}

func TestALossOfASectionWithWorkIsNoLeakThoughAnEntryWasDropped(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		forget(t, outer, l)
		awaitLeaks(t, 1, leaksOf(&r))
		m.link.cut()
		w.lostBecause(outer, relock.LossExpired)
		require.Len(t, eventsOf[relock.Leaked](&r), 1)
	})
}

func TestEachEntryThatIsDroppedIsReported(t *testing.T) {
	for name, drop := range map[string]func(t *testing.T, l *relock.Lock){
		"one inside the other": forgetNested,
		"two locks":            func(t *testing.T, l *relock.Lock) { t.Helper(); forget(t, context.Background(), l) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var leaked atomic.Int64 // and no event of an acquire, which has the context of its caller
				c := w.NewClient(relock.WithHooks(relock.Hooks{Leaked: func(relock.Leaked) { leaked.Add(1) }}))
				drop(t, c.NewLock("a"))
				if name == "two locks" {
					drop(t, c.NewLock("b"))
				}
				awaitLeaks(t, 2, func() int { return int(leaked.Load()) })
				pass(relock.DefaultTTL)
				w.requireFree("a", "b")
			})
		})
	}
}

func TestALeakIsReportedWhoeverFindsTheLossFirst(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.link.deaf()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		forget(t, outer, l)
		collect()
		require.Empty(t, eventsOf[relock.Leaked](&r), "the watchdog has not looked since")
		w.Lose("a")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		pass(time.Hour)
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.Len(t, eventsOf[relock.Leaked](&r), 1)
	})
}

func TestALeakIsReportedByCloseIfTheWatchdogHasNotLooked(t *testing.T) {
	for name, options := range map[string][]relock.Option{"": nil, "with release": {relock.WithReleaseOnClose()}} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...)
				holder := forget(t, t.Context(), m.NewLock("a"))
				collect()
				require.Empty(t, eventsOf[relock.Leaked](&r), "the watchdog has not looked since")
				require.NoError(t, m.Close())
				leaks := eventsOf[relock.Leaked](&r)
				require.Len(t, leaks, 1)
				require.Equal(t, holder, leaks[0].Holder)
				require.Len(t, eventsOf[relock.Closed](&r), 1)
			})
		})
	}
}

func TestASectionInUseIsNoLeak(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		derived, cancel := context.WithCancel(section) // only this refers to the section from now on
		defer cancel()
		for range 5 {
			runtime.GC()
			pass(relock.DefaultTTL)
		}
		require.Empty(t, eventsOf[relock.Leaked](&r))
		require.True(t, l.Held(derived))
		w.leave(derived, l)
	})
}

func TestNothingIsALeakThatHasEnded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *world, l *relock.Lock){
		"unlocked": func(t *testing.T, _ *world, l *relock.Lock) {
			t.Helper()
			section, err := l.Lock(context.Background())
			require.NoError(t, err)
			require.NoError(t, l.Unlock(section))
		},
		"lost": func(t *testing.T, w *world, l *relock.Lock) {
			t.Helper()
			section, err := l.Lock(context.Background())
			require.NoError(t, err)
			pass(time.Second)
			w.Lose("a")
			w.lostBecause(section, relock.LossTaken)
		},
		"refused": func(t *testing.T, w *world, l *relock.Lock) {
			t.Helper()
			keep := w.NewClient().NewLock("a")
			section := w.enter(t.Context(), keep)
			_, err := l.TryLock(context.Background())
			require.ErrorIs(t, err, relock.ErrLocked)
			w.leave(section, keep)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var leaked atomic.Int64
				c := w.NewClient(relock.WithHooks(relock.Hooks{Leaked: func(relock.Leaked) { leaked.Add(1) }}))
				end(t, w, c.NewLock("a"))
				kept := w.enter(t.Context(), c.NewLock("b")) // so that the watchdog goes on to look
				for range 2 {
					collect()
					pass(relock.DefaultTTL)
				}
				require.NoError(t, kept.Err())
				require.Zero(t, leaked.Load())
			})
		})
	}
}

// The entry that a call has made when the call is refused is nobody's, and is collected at once.
func TestALossIsReportedThoughTheEntryOfARefusedCallIsCollected(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a", relock.WithFixedLease(10*time.Second))
		outer := w.enter(t.Context(), l)
		m.link.once(delay(0, 20*time.Second), cmdEnter)
		nested := w.start(context.WithoutCancel(outer), l)
		require.ErrorIs(t, nested.failure(), relock.ErrLockLost)
		collect()
		require.ErrorIs(t, context.Cause(outer), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		w.requireFree("a")
	})
}
