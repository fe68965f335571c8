package core_test

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
)

// When is a hold reported as leaked?

// forget locks, and drops the section without Unlock.
//
//go:noinline
func forget(t *testing.T, ctx context.Context, l *relock.Lock) relock.Holder {
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return stage.HolderOf(t, section)
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
		stage.Settle()
	}
}

func TestALeakedHoldIsReportedAndItsLeaseRunsOut(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		var log stage.Logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
		kept := w.Enter(t.Context(), m.NewLock("b"))
		holder := forget(t, t.Context(), m.NewLock("a"))
		begun := time.Now()
		waiting := w.Start(t.Context(), w.NewClient().NewLock("a"))
		stage.AwaitLeaks(t, 1, stage.LeaksOf(&r))
		require.Equal(t, event.Leaked{Mode: event.ModeExclusive, Name: "a", Holder: holder, Held: time.Since(begun)}, stage.EventsOf[event.Leaked](&r)[0])
		lines := log.About("leaked")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].Level)
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String()}, lines[0].Attrs)
		reported := time.Now()
		waiting.Section()
		require.LessOrEqual(t, waiting.Ended.Sub(reported), relock.DefaultTTL)
		lost := stage.EventsOf[event.Lost](&r)
		require.Len(t, lost, 1)
		require.Equal(t, event.LossLeaked, lost[0].Reason)
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
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				l := w.NewClient(option, relock.WithHooks(r.Hooks())).NewLock("a")
				forget(t, t.Context(), l)
				collect()
				stage.Pass(time.Minute)
				require.Len(t, stage.EventsOf[event.Leaked](&r), 1)
				require.Len(t, stage.EventsOf[event.Lost](&r), 1)
				w.RequireFree("a")
			})
		})
	}
}

func TestALeakOfOneEntryDoesNotEndTheOthers(t *testing.T) {
	for name, options := range map[string][]relock.Option{"in the store": nil, "locally": {relock.WithLocalReentry()}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				l := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...).NewLock("a")
				outer := w.Enter(t.Context(), l)
				forget(t, outer, l)
				stage.AwaitLeaks(t, 1, stage.LeaksOf(&r))
				stage.Pass(time.Hour)
				require.True(t, l.Held(outer))
				require.Len(t, stage.EventsOf[event.Leaked](&r), 1, "once")
				// The last Unlock cannot free the lock, as an entry is still open. The end of the
				// lease does.
				w.Leave(outer, l)
				require.False(t, w.Free("a"))
				stage.Pass(relock.DefaultTTL)
				w.RequireFree("a")
				require.Equal(t, event.LossLeaked, stage.EventsOf[event.Lost](&r)[0].Reason)
			})
		})
	}
}

func TestALossOfASectionWithWorkIsNoLeakThoughAnEntryWasDropped(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		forget(t, outer, l)
		stage.AwaitLeaks(t, 1, stage.LeaksOf(&r))
		m.Link.Cut()
		w.LostBecause(outer, event.LossExpired)
		require.Len(t, stage.EventsOf[event.Leaked](&r), 1)
	})
}

func TestEachEntryThatIsDroppedIsReported(t *testing.T) {
	for name, drop := range map[string]func(t *testing.T, l *relock.Lock){
		"one inside the other": forgetNested,
		"two locks":            func(t *testing.T, l *relock.Lock) { t.Helper(); forget(t, context.Background(), l) },
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var leaked atomic.Int64 // and no event of an acquire, which has the context of its caller
				c := w.NewClient(relock.WithHooks(event.Hooks{Leaked: func(event.Leaked) { leaked.Add(1) }}))
				drop(t, c.NewLock("a"))
				if name == "two locks" {
					drop(t, c.NewLock("b"))
				}
				stage.AwaitLeaks(t, 2, func() int { return int(leaked.Load()) })
				stage.Pass(relock.DefaultTTL)
				w.RequireFree("a", "b")
			})
		})
	}
}

func TestALeakIsReportedWhoeverFindsTheLossFirst(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.Link.Deaf()
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		forget(t, outer, l)
		collect()
		require.Empty(t, stage.EventsOf[event.Leaked](&r), "the watchdog has not looked since")
		w.Store.Lose("a")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		stage.Pass(time.Hour)
		require.Len(t, stage.EventsOf[event.Lost](&r), 1)
		require.Len(t, stage.EventsOf[event.Leaked](&r), 1)
	})
}

func TestALeakIsReportedByCloseIfTheWatchdogHasNotLooked(t *testing.T) {
	for name, options := range map[string][]relock.Option{"": nil, "with release": {relock.WithReleaseOnClose()}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(append(options, relock.WithHooks(r.Hooks()))...)
				holder := forget(t, t.Context(), m.NewLock("a"))
				collect()
				require.Empty(t, stage.EventsOf[event.Leaked](&r), "the watchdog has not looked since")
				require.NoError(t, m.Close())
				leaks := stage.EventsOf[event.Leaked](&r)
				require.Len(t, leaks, 1)
				require.Equal(t, holder, leaks[0].Holder)
				require.Len(t, stage.EventsOf[event.Closed](&r), 1)
			})
		})
	}
}

func TestASectionInUseIsNoLeak(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		derived, cancel := context.WithCancel(section) // only this refers to the section from now on
		defer cancel()
		for range 5 {
			runtime.GC()
			stage.Pass(relock.DefaultTTL)
		}
		require.Empty(t, stage.EventsOf[event.Leaked](&r))
		require.True(t, l.Held(derived))
		w.Leave(derived, l)
	})
}

func TestNothingIsALeakThatHasEnded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *stage.World, l *relock.Lock){
		"unlocked": func(t *testing.T, _ *stage.World, l *relock.Lock) {
			section, err := l.Lock(context.Background())
			require.NoError(t, err)
			require.NoError(t, l.Unlock(section))
		},
		"lost": func(t *testing.T, w *stage.World, l *relock.Lock) {
			section, err := l.Lock(context.Background())
			require.NoError(t, err)
			stage.Pass(time.Second)
			w.Store.Lose("a")
			w.LostBecause(section, event.LossTaken)
		},
		"refused": func(t *testing.T, w *stage.World, l *relock.Lock) {
			keep := w.NewClient().NewLock("a")
			section := w.Enter(t.Context(), keep)
			_, err := l.TryLock(context.Background())
			require.ErrorIs(t, err, relock.ErrLocked)
			w.Leave(section, keep)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var leaked atomic.Int64
				c := w.NewClient(relock.WithHooks(event.Hooks{Leaked: func(event.Leaked) { leaked.Add(1) }}))
				end(t, w, c.NewLock("a"))
				kept := w.Enter(t.Context(), c.NewLock("b")) // so that the watchdog goes on to look
				for range 2 {
					collect()
					stage.Pass(relock.DefaultTTL)
				}
				require.NoError(t, kept.Err())
				require.Zero(t, leaked.Load())
			})
		})
	}
}

// The entry that a call has made when the call is refused is nobody's, and is collected at once.
func TestALossIsReportedThoughTheEntryOfARefusedCallIsCollected(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a", relock.WithFixedLease(10*time.Second))
		outer := w.Enter(t.Context(), l)
		m.Link.Once(stage.Delay(0, 20*time.Second), stage.CmdEnter)
		nested := w.Start(context.WithoutCancel(outer), l)
		require.ErrorIs(t, nested.Failure(), relock.ErrLockLost)
		collect()
		require.ErrorIs(t, context.Cause(outer), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		w.RequireFree("a")
	})
}

// slowValue is a caller's context whose third value and all later ones take time. The first two
// come before the section of a nested call is made.
type slowValue struct {
	context.Context
	asked atomic.Int64
	slow  func(n int64)
}

func (c *slowValue) Value(key any) any {
	c.slow(c.asked.Add(1))
	return c.Context.Value(key)
}

// A section that is never entered is unreachable before its context is cancelled, and the collector
// may run in between. What the collector finds runs outside of every call, so a panic there would
// end this process.
func TestASectionThatIsNeverEnteredIsNoLeak(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var leaked atomic.Int64
		c := w.NewClient(relock.WithLocalReentry(), relock.WithHooks(event.Hooks{Leaked: func(event.Leaked) { leaked.Add(1) }}))
		l := c.NewLock("a")
		outer, err := l.Lock(t.Context())
		require.NoError(t, err)
		inner, cancel := context.WithCancel(context.WithoutCancel(outer))
		defer cancel()
		ctx := &slowValue{Context: inner, slow: func(n int64) {
			if n == 3 {
				require.NoError(t, l.Unlock(outer))
			} else if n > 3 {
				collect()
			}
		}}
		_, err = l.Lock(ctx)
		require.ErrorIs(t, err, relock.ErrReleased)
		collect()
		require.Greater(t, ctx.asked.Load(), int64(3), "the section was made")
		require.Zero(t, leaked.Load())
	})
}
