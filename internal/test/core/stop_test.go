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

// Which calls does a stop end, and which ones go on?

func TestAStopEndsWaitsAndLeavesSectionsAlone(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		stop, shutDown := context.WithCancelCause(t.Context())
		ctx := relock.WithStop(t.Context(), stop)
		m := w.NewClient()
		l, other := m.NewLock("a"), m.NewLock("b")
		section := w.Enter(ctx, l)
		busy := w.Enter(t.Context(), other)
		inside := w.Start(section, other)
		waits := map[string]*stage.Attempt{
			"Lock": w.Begin(ctx, l.Lock), "TryLockFor": w.Begin(ctx, stage.TryFor(l, time.Hour)),
			"All": w.Begin(ctx, relock.All(l, m.NewLock("c")).Lock),
		}
		twoOf := w.Begin(ctx, relock.All(m.NewLock("0"), l).Lock) // takes the first one
		stage.Pass(time.Minute)
		shutDown(stage.ErrOdd)
		waits["All, for its second lock"] = twoOf
		for name, a := range waits {
			err := a.Failure()
			require.ErrorIs(t, err, stage.ErrOdd, name)
			require.ErrorIs(t, err, relock.ErrLocked, name)
			require.Equal(t, time.Minute, a.Took(), name)
		}

		stage.Pass(time.Minute)
		require.NoError(t, section.Err(), "sections go on, and their leases are renewed")
		w.Leave(w.Enter(section, l), l)
		require.True(t, inside.Waits(), "a call inside of a section goes on")
		w.Leave(busy, other)
		inside.Leave()
		w.Leave(section, l)
		w.RequireFree("a", "b", "c")
	})
}

func TestAfterAStopNoCallGetsALock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		stop, shutDown := context.WithCancel(t.Context())
		shutDown()
		ctx := relock.WithStop(t.Context(), stop)
		m := w.NewClient()
		l := m.NewLock("a")
		for name, err := range map[string]error{
			"Lock": stage.ErrorOf(l.Lock(ctx)), "TryLock": stage.ErrorOf(l.TryLock(ctx)), "TryLockFor": stage.ErrorOf(l.TryLockFor(ctx, time.Hour)), "Do": l.Do(ctx, nothing),
			"All": stage.ErrorOf(relock.All(l, m.NewLock("b")).Lock(ctx)), "TryAll": stage.ErrorOf(relock.All(l, m.NewLock("b")).TryLock(ctx)),
		} {
			require.ErrorIs(t, err, context.Canceled, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s has asked nobody", name)
			require.ErrorContains(t, err, "stopped", name)
		}
		w.RequireFree("a", "b")
		_, err := l.State(ctx)
		require.NoError(t, err, "a look is no lock")
		w.Leave(w.Enter(relock.WithStop(ctx, t.Context()), l), l) // the later stop counts
	})
}

func nothing(context.Context) error { return nil }

func TestAStopInAnOutageIsACanceledCall(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		stop, shutDown := context.WithCancel(t.Context())
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.Link.Cut()
		waiting := w.Begin(relock.WithStop(t.Context(), stop), m.NewLock("a").Lock)
		shutDown()
		err := waiting.Failure()
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, event.OutcomeCanceled, stage.EventsOf[event.AcquireFinished](&r)[0].Outcome)
		m.Link.Heal()
	})
}

func TestAStopNeedsContexts(t *testing.T) {
	var none context.Context
	require.Panics(t, func() { relock.WithStop(none, t.Context()) })
	require.Panics(t, func() { relock.WithStop(t.Context(), none) })
}
