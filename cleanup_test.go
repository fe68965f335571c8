package relock_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// When is a hold that nobody wants taken back, and for how long?

// GiveUp begins a call whose command is kept, or lost, and ends its context.
func (w *World) GiveUp(ctx context.Context, lock Locking) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := w.Begin(ctx, lock)
	require.True(w.T, a.Waits())
	cancel()
	require.ErrorIs(w.T, a.Failure(), context.Canceled)
	require.Equal(w.T, ctx, a.Ctx, "the context comes back as it was")
	require.Zero(w.T, a.Took(), "the call returns promptly")
}

// forgets records the times at which a link sends Forget, beginning with 0.
type forgets struct {
	mu    sync.Mutex
	times []time.Time
}

func (f *forgets) record(k *Link, next Action) *Fault {
	return k.On(func(ctx context.Context, fault *Fault, run func() error) error {
		f.mu.Lock()
		f.times = append(f.times, time.Now())
		f.mu.Unlock()
		return next(ctx, fault, run)
	}, CmdForget)
}

func (f *forgets) all() []time.Duration {
	Settle()
	f.mu.Lock()
	defer f.mu.Unlock()
	var since []time.Duration
	for _, at := range f.times {
		since = append(since, at.Sub(f.times[0]))
	}
	return since
}

func answer(_ context.Context, _ *Fault, run func() error) error { return run() }

const ms = time.Millisecond

func TestCleanupRepeatsWhatIsConfirmedForOneLease(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m, tape := w.NewTape()
		var f forgets
		f.record(m.Link, answer)
		tape.Keep(CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		Pass(time.Hour)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, 1050 * time.Millisecond, 4250 * time.Millisecond, 17050 * time.Millisecond, 30 * time.Second}, f.all())
		require.Zero(t, Goroutines("(*cleanup)"), "the goroutine ends")
	})
}

func TestCleanupRepeatsWhatIsNotConfirmedUntilItIs(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		var log Logbook
		m, tape := w.NewTape(relock.WithLogger(log.Logger()))
		var f forgets
		refused := f.record(m.Link, Refuse(ErrBroken))
		tape.Keep(CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		Pass(10 * time.Second)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond, 750 * time.Millisecond, 1550 * time.Millisecond, 3150 * time.Millisecond, 5150 * time.Millisecond, 7150 * time.Millisecond, 9150 * time.Millisecond}, f.all())
		refused.End()
		m.Link.Reset()
		Pass(time.Hour)
		require.Equal(t, 7, m.Link.Sent(CmdForget), "again after the confirmation, for what is left of the lease")
		require.Empty(t, log.About("could not confirm"))
	})
}

func TestCleanupStopsAMinuteAfterTheLease(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		var log, own Logbook
		m, tape := w.NewTape(relock.WithLogger(log.Logger()))
		var f forgets
		f.record(m.Link, Refuse(ErrBroken))
		tape.Keep(CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a", relock.WithTTL(10*time.Second), relock.WithLogger(own.Logger())).Lock)
		Pass(time.Hour)
		times := f.all()
		require.InDelta(t, 70*time.Second, times[len(times)-1], float64(2*time.Second))
		require.Zero(t, Goroutines("(*cleanup)"))
		require.Empty(t, log.About("could not confirm"))
		lines := own.About("could not confirm")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelWarn, lines[0].Level)
		require.Equal(t, "a", lines[0].Attrs["lock"])
		require.Equal(t, ErrBroken, lines[0].Attrs["error"])
	})
}

func TestCleanupOfManyAsksTakesFewRoundTrips(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		const n = 1000
		m := w.NewClient()
		silent := m.Link.Cut()
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*Attempt
		for i := range n {
			calls = append(calls, w.Start(ctx, m.NewLock(fmt.Sprint(i))))
		}
		cancel()
		for _, a := range calls {
			require.ErrorIs(t, a.Failure(), context.Canceled)
		}
		silent.End()
		m.Link.Reset()
		Pass(time.Minute)
		require.LessOrEqual(t, m.Link.Sent(CmdForget), 10*(n/256+1))
		require.Zero(t, Goroutines("(*cleanup)"))
	})
}

func TestCleanupTakesBackAnUnlockWithoutAnAnswer(t *testing.T) {
	for ttl, limit := range map[time.Duration]time.Duration{
		relock.DefaultTTL: 10 * time.Second,
		2 * time.Second:   2*time.Second - Margin(2*time.Second),
	} {
		t.Run(ttl.String(), func(t *testing.T) {
			Fake(t, func(t *testing.T, w *World) {
				m := w.NewClient(relock.WithTTL(ttl))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				silent := m.Link.Cut()
				call := w.Begin(section, Unlock(l))
				require.ErrorIs(t, call.Failure(), context.DeadlineExceeded)
				require.ErrorContains(t, call.Err, fmt.Sprintf("free within %s", ttl))
				require.NotErrorIs(t, call.Err, relock.ErrLockLost)
				require.Equal(t, limit, call.Took())
				require.Equal(t, relock.ErrReleased, context.Cause(section))
				require.False(t, l.Held(section))
				require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
				silent.End()
				Pass(2 * time.Second)
				w.RequireFree("a")
			})
		})
	}
}

func TestTheTimeLimitOfUnlockIsItsOwn(t *testing.T) {
	Fake(t, func(t *testing.T, w *World) {
		m := w.NewClient()
		l := m.NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := w.Enter(request, l)
		m.Link.On(Delay(2*time.Second, 2*time.Second), CmdRelease)
		cancel()
		call := w.Begin(section, Unlock(l))
		require.NoError(t, call.Failure())
		require.Equal(t, 4*time.Second, call.Took())
		w.RequireFree("a")
	})
}
