package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
)

// When does a fixed lease end?

// extending returns Extend, for begin.
func extending(l *relock.Lock, d time.Duration) stage.Locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Extend(ctx, d) }
}

func TestExtendMovesTheEndAndNeverShortens(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const lease = time.Minute
		l := w.NewClient(relock.WithFixedLease(lease)).NewLock("a")
		section := w.Enter(t.Context(), l)
		stage.Pass(lease / 2)
		require.NoError(t, l.Extend(section, lease))
		require.Equal(t, lease, w.Lease("a"))
		require.Equal(t, lease-stage.Margin(lease), l.Remaining(section))
		require.NoError(t, l.Extend(section, time.Second))
		require.Equal(t, lease, w.Lease("a"))
		require.Equal(t, lease-stage.Margin(lease), l.Remaining(section))
		require.NoError(t, l.Extend(section, time.Hour))
		require.Equal(t, time.Hour, w.Lease("a"))
		require.Equal(t, time.Hour-stage.Margin(time.Hour), w.LostBecause(section, event.LossExpired))
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Extend(section, lease), relock.ErrNotHeld)
		w.RequireFree("a")
	})
}

func TestALateExtendDoesNotShortenALaterOne(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		tape.Keep(stage.CmdEnter)
		ctx, cancel := context.WithTimeout(section, time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Extend(ctx, time.Second), context.DeadlineExceeded)
		require.NoError(t, l.Extend(section, time.Hour))
		require.Equal(t, 1, tape.Play())
		require.Equal(t, time.Hour, w.Lease("a"))
		w.Leave(section, l)
	})
}

func TestAnUnlockAfterExtendCountsOnTheLongestLease(t *testing.T) {
	t.Run("that the store has confirmed", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient(relock.WithFixedLease(5 * time.Second))
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			require.NoError(t, l.Extend(section, time.Hour))
			m.Link.Cut()
			require.ErrorContains(t, l.Unlock(section), "free within 1h0m0s")
			stage.Pass(30 * time.Minute)
			require.False(t, w.Free("a"))
			m.Link.Heal()
			stage.Pass(5 * time.Second)
			w.RequireFree("a")
		})
	})
	t.Run("that the store may run yet", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewClient(relock.WithFixedLease(time.Minute))
			l := m.NewLock("a")
			section := w.Enter(t.Context(), l)
			m.Link.Cut()
			for _, d := range []time.Duration{time.Hour, time.Second} {
				ctx, cancel := context.WithTimeout(section, 5*time.Second)
				require.ErrorIs(t, l.Extend(ctx, d), context.DeadlineExceeded)
				cancel()
			}
			require.ErrorContains(t, l.Unlock(section), "free within 1h0m3")
			m.Link.Heal()
			stage.Pass(5 * time.Second)
			w.RequireFree("a")
		})
	})
}

func TestAnExtendThatIsRefusedHasAskedForNoLease(t *testing.T) {
	for name, refused := range map[string]func(w *stage.World, m *stage.Member, l *relock.Lock, section context.Context){
		"its entry is left": func(w *stage.World, _ *stage.Member, l *relock.Lock, section context.Context) {
			inner := w.Enter(section, l)
			w.Leave(inner, l)
			require.ErrorIs(w.T, l.Extend(inner, time.Hour), relock.ErrNotHeld)
		},
		"its context is done": func(w *stage.World, _ *stage.Member, l *relock.Lock, section context.Context) {
			ctx, cancel := context.WithCancel(section)
			cancel()
			require.ErrorIs(w.T, l.Extend(ctx, time.Hour), context.Canceled)
		},
		"its client is closed": func(w *stage.World, m *stage.Member, l *relock.Lock, section context.Context) {
			require.NoError(w.T, m.Close())
			for _, ctx := range []context.Context{section, context.WithoutCancel(section)} {
				require.ErrorIs(w.T, l.Extend(ctx, time.Hour), relock.ErrClosed)
			}
		},
		"its length is wrong": func(w *stage.World, _ *stage.Member, l *relock.Lock, section context.Context) {
			for _, d := range []time.Duration{-1, 0, relock.MinTTL - time.Millisecond, time.Second + 1, relock.MaxTTL + time.Millisecond} {
				require.ErrorIs(w.T, l.Extend(section, d), relock.ErrInvalid)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithFixedLease(5 * time.Second))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				refused(w, m, l, section)
				require.Equal(t, 5*time.Second, w.Lease("a"))
				m.Link.Cut()
				require.ErrorContains(t, l.Unlock(section), "free within 5s at the latest")
				stage.Pass(5 * time.Second)
				w.RequireFree("a")
			})
		})
	}
}

func TestExtendOfALockThatIsGoneIsErrLockLostAtOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithFixedLease(time.Minute), relock.WithHooks(r.Hooks()))
		m.Link.Deaf()
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		require.NoError(t, l.ForceUnlock(t.Context()))
		m.Link.Once(stage.Delay(time.Second, 0), stage.CmdEnter)
		late := w.Begin(context.WithoutCancel(section), extending(l, time.Minute))
		require.ErrorIs(t, l.Extend(section, time.Minute), relock.ErrLockLost)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.ErrorIs(t, late.Failure(), relock.ErrLockLost, "whoever has found out")
		require.Len(t, stage.EventsOf[event.Lost](&r), 1)
		w.RequireFree("a")
	})
}

func TestACommandThatMeetsAnUnlockIsNoLoss(t *testing.T) {
	calls := map[string]struct {
		verb stage.Command
		call func(l *relock.Lock) stage.Locking
	}{
		"Extend": {stage.CmdEnter, func(l *relock.Lock) stage.Locking { return extending(l, time.Hour) }},
		"Token": {stage.CmdToken, func(l *relock.Lock) stage.Locking {
			return func(ctx context.Context) (context.Context, error) { _, err := l.Token(ctx); return ctx, err }
		}},
		"Lock":   {stage.CmdEnter, func(l *relock.Lock) stage.Locking { return l.Lock }},
		"Unlock": {stage.CmdEnter, stage.Unlock},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithFixedLease(time.Minute), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				inner := w.Enter(outer, l)
				m.Link.Once(stage.Delay(time.Second, 0), c.verb)
				call := w.Begin(context.WithoutCancel(inner), c.call(l)) // reaches the store when the lock is free
				if name != "Unlock" {
					w.Leave(inner, l)
				}
				m.Link.Once(stage.Delay(0, 2*time.Second), stage.CmdRelease)
				last := w.Begin(outer, stage.Unlock(l))
				require.NoError(t, last.Failure())
				err := call.Failure()
				require.NotErrorIs(t, err, relock.ErrLockLost)
				require.Equal(t, name == "Unlock", err == nil)
				require.Empty(t, stage.EventsOf[event.Lost](&r))
				require.Len(t, stage.EventsOf[event.Released](&r), 1)
				w.RequireFree("a")
			})
		})
	}
}

func TestExtendOfAnInnerEntryThatIsUnlockedMeanwhileIsErrNotHeld(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithFixedLease(time.Minute))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		m.Link.Once(stage.Delay(time.Second, 0), stage.CmdEnter)
		late := w.Begin(context.WithoutCancel(inner), extending(l, time.Hour))
		w.Leave(inner, l)
		require.ErrorIs(t, late.Failure(), relock.ErrNotHeld)
		require.NoError(t, outer.Err())
		require.Equal(t, time.Hour-stage.Margin(time.Hour)-time.Second, l.Remaining(outer), "the lease is extended all the same")
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestExtendWhoseAnswerComesAfterTheLossSaysSo(t *testing.T) {
	const lease = time.Minute
	for name, late := range map[string]time.Duration{"at the deadline": lease/2 - stage.Margin(lease), "later": lease} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithFixedLease(lease))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				stage.Pass(lease / 2)
				m.Link.Once(stage.Delay(0, late), stage.CmdEnter)
				detached := context.WithoutCancel(section) // or the end of the section would end the call
				require.ErrorIs(t, l.Extend(detached, time.Hour), relock.ErrLockLost)
				require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
				w.RequireFree("a") // though the store had extended it
				require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			})
		})
	}
}

func TestExtendWithoutAnAnswerEndsWithItsContextOrTheLease(t *testing.T) {
	const lease = time.Minute
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithFixedLease(lease))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		m.Link.Cut()
		ctx, cancel := context.WithTimeout(section, 10*time.Second)
		defer cancel()
		call := w.Begin(ctx, extending(l, time.Hour))
		require.ErrorIs(t, call.Failure(), context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, call.Took())
		require.NotErrorIs(t, call.Err, relock.ErrLockLost)
		require.Equal(t, 50*time.Second-stage.Margin(lease), l.Remaining(section), "count on the shorter")
		call = w.Begin(context.WithoutCancel(section), extending(l, time.Hour))
		require.ErrorIs(t, call.Failure(), relock.ErrLockLost)
		require.Equal(t, 50*time.Second-stage.Margin(lease), call.Took())
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAFixedLeaseThatIsGoneIsFoundOutByTheCorrectionOfACount(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithFixedLease(time.Hour))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		silent := m.Link.Cut()
		require.Error(t, l.Unlock(inner))
		w.Store.Lose("a")
		silent.End()
		require.LessOrEqual(t, w.LostBecause(outer, event.LossTaken), 5*time.Second)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}
