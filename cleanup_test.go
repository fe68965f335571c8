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

// giveUp begins a call whose command is kept, or lost, and ends its context.
func (w *world) giveUp(ctx context.Context, lock locking) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := w.begin(ctx, lock)
	require.True(w.t, a.waits())
	cancel()
	require.ErrorIs(w.t, a.failure(), context.Canceled)
	require.Equal(w.t, ctx, a.ctx, "the context comes back as it was")
	require.Zero(w.t, a.took(), "the call returns promptly")
}

// forgets records the times at which a link sends Forget, beginning with 0.
type forgets struct {
	mu    sync.Mutex
	times []time.Time
}

func (f *forgets) record(k *link, next action) *fault {
	return k.on(func(ctx context.Context, fault *fault, run func() error) error {
		f.mu.Lock()
		f.times = append(f.times, time.Now())
		f.mu.Unlock()
		return next(ctx, fault, run)
	}, cmdForget)
}

func (f *forgets) all() []time.Duration {
	settle()
	f.mu.Lock()
	defer f.mu.Unlock()
	var since []time.Duration
	for _, at := range f.times {
		since = append(since, at.Sub(f.times[0]))
	}
	return since
}

func answer(_ context.Context, _ *fault, run func() error) error { return run() }

const ms = time.Millisecond

func TestCleanupRepeatsWhatIsConfirmedForOneLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape()
		var f forgets
		f.record(m.link, answer)
		tape.keep(cmdWait)
		w.giveUp(t.Context(), m.NewLock("a").Lock)
		pass(time.Hour)
		require.Equal(t, []time.Duration{0, 50 * ms, 250 * ms, 1050 * ms, 4250 * ms, 17050 * ms, 30 * time.Second}, f.all())
		require.Zero(t, goroutines("(*cleanup)"), "the goroutine ends")
	})
}

func TestCleanupRepeatsWhatIsNotConfirmedUntilItIs(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		m, tape := w.NewTape(relock.WithLogger(log.logger()))
		var f forgets
		refused := f.record(m.link, refuse(errBroken))
		tape.keep(cmdWait)
		w.giveUp(t.Context(), m.NewLock("a").Lock)
		pass(10 * time.Second)
		require.Equal(t, []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 3150 * ms, 5150 * ms, 7150 * ms, 9150 * ms}, f.all())
		refused.end()
		m.link.reset()
		pass(time.Hour)
		require.Equal(t, 7, m.link.sent(cmdForget), "again after the confirmation, for what is left of the lease")
		require.Empty(t, log.about("could not confirm"))
	})
}

func TestCleanupStopsAMinuteAfterTheLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log, own logbook
		m, tape := w.NewTape(relock.WithLogger(log.logger()))
		var f forgets
		f.record(m.link, refuse(errBroken))
		tape.keep(cmdWait)
		w.giveUp(t.Context(), m.NewLock("a", relock.WithTTL(10*time.Second), relock.WithLogger(own.logger())).Lock)
		pass(time.Hour)
		times := f.all()
		require.InDelta(t, 70*time.Second, times[len(times)-1], float64(2*time.Second))
		require.Zero(t, goroutines("(*cleanup)"))
		require.Empty(t, log.about("could not confirm"))
		lines := own.about("could not confirm")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelWarn, lines[0].level)
		require.Equal(t, "a", lines[0].attrs["lock"])
		require.Equal(t, errBroken, lines[0].attrs["error"])
	})
}

func TestCleanupOfManyAsksTakesFewRoundTrips(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const n = 1000
		m := w.NewClient()
		silent := m.link.cut()
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*attempt
		for i := range n {
			calls = append(calls, w.start(ctx, m.NewLock(fmt.Sprint(i))))
		}
		cancel()
		for _, a := range calls {
			require.ErrorIs(t, a.failure(), context.Canceled)
		}
		silent.end()
		m.link.reset()
		pass(time.Minute)
		require.LessOrEqual(t, m.link.sent(cmdForget), 10*(n/256+1))
		require.Zero(t, goroutines("(*cleanup)"))
	})
}

func TestCleanupTakesBackAnUnlockWithoutAnAnswer(t *testing.T) {
	for ttl, limit := range map[time.Duration]time.Duration{
		relock.DefaultTTL: 10 * time.Second,
		2 * time.Second:   2*time.Second - margin(2*time.Second),
	} {
		t.Run(ttl.String(), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				silent := m.link.cut()
				call := w.begin(section, unlock(l))
				require.ErrorIs(t, call.failure(), context.DeadlineExceeded)
				require.ErrorContains(t, call.err, fmt.Sprintf("free within %s", ttl))
				require.NotErrorIs(t, call.err, relock.ErrLockLost)
				require.Equal(t, limit, call.took())
				require.Equal(t, relock.ErrReleased, context.Cause(section))
				require.False(t, l.Held(section))
				require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
				silent.end()
				pass(2 * time.Second)
				w.requireFree("a")
			})
		})
	}
}

func TestTheTimeLimitOfUnlockIsItsOwn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := w.enter(request, l)
		m.link.on(delay(2*time.Second, 2*time.Second), cmdRelease)
		cancel()
		call := w.begin(section, unlock(l))
		require.NoError(t, call.failure())
		require.Equal(t, 4*time.Second, call.took())
		w.requireFree("a")
	})
}
