package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// Which calls does a stop end, and which ones go on?

func TestAStopEndsWaitsAndLeavesSectionsAlone(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		stop, shutDown := context.WithCancelCause(t.Context())
		ctx := relock.WithStop(t.Context(), stop)
		m := w.NewClient()
		l, other := m.NewLock("a"), m.NewLock("b")
		section := w.enter(ctx, l)
		busy := w.enter(t.Context(), other)
		inside := w.start(section, other)
		waits := map[string]*attempt{
			"Lock": w.begin(ctx, l.Lock), "TryLockFor": w.begin(ctx, tryFor(l, time.Hour)),
			"Lead": w.begin(ctx, func(ctx context.Context) (context.Context, error) { return ctx, l.Lead(ctx, nothing) }),
			"All":  w.begin(ctx, relock.All(l, m.NewLock("c")).Lock),
		}
		twoOf := w.begin(ctx, relock.All(m.NewLock("0"), l).Lock) // takes the first one
		pass(time.Minute)
		shutDown(errOdd)
		waits["All, for its second lock"] = twoOf
		for name, a := range waits {
			err := a.failure()
			require.ErrorIs(t, err, errOdd, name)
			require.ErrorIs(t, err, relock.ErrLocked, name)
			require.Equal(t, time.Minute, a.took(), name)
		}

		pass(time.Minute)
		require.NoError(t, section.Err(), "sections go on, and their leases are renewed")
		w.leave(w.enter(section, l), l)
		require.True(t, inside.waits(), "a call inside of a section goes on")
		w.leave(busy, other)
		inside.leave()
		w.leave(section, l)
		w.requireFree("a", "b", "c")
	})
}

func TestAfterAStopNoCallGetsALock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		stop, shutDown := context.WithCancel(t.Context())
		shutDown()
		ctx := relock.WithStop(t.Context(), stop)
		m := w.NewClient()
		l := m.NewLock("a")
		for name, err := range map[string]error{
			"Lock": last(l.Lock(ctx)), "TryLock": last(l.TryLock(ctx)), "TryLockFor": last(l.TryLockFor(ctx, time.Hour)), "Do": l.Do(ctx, nothing),
			"Lead": l.Lead(ctx, nothing), "All": last(relock.All(l, m.NewLock("b")).Lock(ctx)), "TryAll": last(relock.All(l, m.NewLock("b")).TryLock(ctx)),
		} {
			require.ErrorIs(t, err, context.Canceled, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s has asked nobody", name)
			require.ErrorContains(t, err, "stopped", name)
		}
		w.requireFree("a", "b")
		_, err := l.State(ctx)
		require.NoError(t, err, "a look is no lock")
		w.leave(w.enter(relock.WithStop(ctx, t.Context()), l), l) // the later stop counts
	})
}

func TestAStopEndsTheCampaignsOfALeaderWithoutAStore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		stop, shutDown := context.WithCancel(t.Context())
		m := w.NewClient()
		m.link.on(refuse(store.Unavailable(errOdd)), cmdWait)
		leading := w.begin(relock.WithStop(t.Context(), stop), func(ctx context.Context) (context.Context, error) {
			return ctx, m.NewLock("a").Lead(ctx, nothing)
		})
		pass(time.Minute + time.Second)
		require.True(t, leading.waits())
		shutDown()
		require.ErrorIs(t, leading.failure(), context.Canceled)
		require.Equal(t, time.Minute+time.Second, leading.took())
	})
}

func nothing(context.Context) error { return nil }

func TestAStopInAnOutageIsACanceledCall(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		stop, shutDown := context.WithCancel(t.Context())
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.link.cut()
		waiting := w.begin(relock.WithStop(t.Context(), stop), m.NewLock("a").Lock)
		shutDown()
		err := waiting.failure()
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, relock.OutcomeCanceled, eventsOf[relock.AcquireFinished](&r)[0].Outcome)
		m.link.heal()
	})
}

func TestAStopNeedsContexts(t *testing.T) {
	var none context.Context
	require.Panics(t, func() { relock.WithStop(none, t.Context()) })
	require.Panics(t, func() { relock.WithStop(t.Context(), none) })
}
