package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// When is a hold that nobody wants taken back, and for how long?

// forgets records the times at which a link sends Forget, beginning with 0.
type forgets struct {
	mu    sync.Mutex
	times []time.Time
}

func (f *forgets) record(k *stage.Link, next stage.Action) *stage.Fault {
	return k.On(func(ctx context.Context, fault *stage.Fault, run func() error) error {
		f.mu.Lock()
		f.times = append(f.times, time.Now())
		f.mu.Unlock()
		return next(ctx, fault, run)
	}, stage.CmdForget)
}

func (f *forgets) all() []time.Duration {
	stage.Settle()
	f.mu.Lock()
	defer f.mu.Unlock()
	var since []time.Duration
	for _, at := range f.times {
		since = append(since, at.Sub(f.times[0]))
	}
	return since
}

func answer(_ context.Context, _ *stage.Fault, run func() error) error { return run() }

func TestCleanupRepeatsWhatIsConfirmedForOneLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape()
		var f forgets
		f.record(m.Link, answer)
		tape.Keep(stage.CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		stage.Pass(time.Hour)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, 1050 * time.Millisecond, 4250 * time.Millisecond, 17050 * time.Millisecond, 30 * time.Second}, f.all())
		require.Zero(t, stage.Goroutines("(*cleanup)"), "the goroutine ends")
	})
}

func TestCleanupRepeatsWhatIsNotConfirmedUntilItIs(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		m, tape := w.NewTape(relock.WithLogger(log.Logger()))
		var f forgets
		refused := f.record(m.Link, stage.Refuse(stage.ErrBroken))
		tape.Keep(stage.CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		stage.Pass(10 * time.Second)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond, 750 * time.Millisecond, 1550 * time.Millisecond, 3150 * time.Millisecond, 5150 * time.Millisecond, 7150 * time.Millisecond, 9150 * time.Millisecond}, f.all())
		refused.End()
		m.Link.Reset()
		stage.Pass(time.Hour)
		require.Equal(t, 7, m.Link.Sent(stage.CmdForget), "again after the confirmation, for what is left of the lease")
		require.Empty(t, log.About("could not confirm"))
	})
}

func TestCleanupStopsAMinuteAfterTheLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log, own stage.Logbook
		m, tape := w.NewTape(relock.WithLogger(log.Logger()))
		var f forgets
		f.record(m.Link, stage.Refuse(stage.ErrBroken))
		tape.Keep(stage.CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a", relock.WithTTL(10*time.Second), relock.WithLogger(own.Logger())).Lock)
		stage.Pass(time.Hour)
		times := f.all()
		require.InDelta(t, 70*time.Second, times[len(times)-1], float64(2*time.Second))
		require.Zero(t, stage.Goroutines("(*cleanup)"))
		require.Empty(t, log.About("could not confirm"))
		lines := own.About("could not confirm")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelWarn, lines[0].Level)
		require.Equal(t, "a", lines[0].Attrs["lock"])
		require.Equal(t, stage.ErrBroken, lines[0].Attrs["error"])
	})
}

func TestCleanupOfManyClaimsTakesFewRoundTrips(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const n = 1000
		m := w.NewClient()
		silent := m.Link.Cut()
		ctx, cancel := context.WithCancel(t.Context())
		var calls []*stage.Attempt
		for i := range n {
			calls = append(calls, w.Start(ctx, m.NewLock(fmt.Sprint(i))))
		}
		cancel()
		for _, a := range calls {
			require.ErrorIs(t, a.Failure(), context.Canceled)
		}
		silent.End()
		m.Link.Reset()
		stage.Pass(time.Minute)
		require.LessOrEqual(t, m.Link.Sent(stage.CmdForget), 10*(n/256+1))
		require.Zero(t, stage.Goroutines("(*cleanup)"))
	})
}

func TestCleanupTakesBackAnUnlockWithoutAnAnswer(t *testing.T) {
	for ttl, limit := range map[time.Duration]time.Duration{
		relock.DefaultTTL: 10 * time.Second,
		2 * time.Second:   2*time.Second - stage.Margin(2*time.Second),
	} {
		t.Run(ttl.String(), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(ttl))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				silent := m.Link.Cut()
				call := w.Begin(section, stage.Unlock(l))
				require.ErrorIs(t, call.Failure(), context.DeadlineExceeded)
				require.ErrorContains(t, call.Err, fmt.Sprintf("free within %s", ttl))
				require.NotErrorIs(t, call.Err, relock.ErrLockLost)
				require.Equal(t, limit, call.Took())
				require.Equal(t, relock.ErrReleased, context.Cause(section))
				require.False(t, l.Held(section))
				require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
				silent.End()
				stage.Pass(2 * time.Second)
				w.RequireFree("a")
			})
		})
	}
}

func TestTheTimeLimitOfUnlockIsItsOwn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := w.Enter(request, l)
		m.Link.On(stage.Delay(2*time.Second, 2*time.Second), stage.CmdRelease)
		cancel()
		call := w.Begin(section, stage.Unlock(l))
		require.NoError(t, call.Failure())
		require.Equal(t, 4*time.Second, call.Took())
		w.RequireFree("a")
	})
}

// forgetful is a store that notes the holds that are to be forgotten.
type forgetful struct {
	store.Store
	mu  sync.Mutex
	ids map[store.ID]bool
}

func (s *forgetful) Forget(ctx context.Context, claims []store.Claim) []error {
	s.mu.Lock()
	for _, a := range claims {
		s.ids[a.ID] = true
	}
	s.mu.Unlock()
	return s.Store.Forget(ctx, claims)
}

// Wait has every wait that gives up ask for cleanup, as Redis does of a wait with a place in its
// queue.
func (s *forgetful) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := s.Store.Wait(ctx, a, progress)
	return l, store.Unsure(err)
}

func TestCleanupKeepsFewOfManyCallsThatHaveGivenUp(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &forgetful{Store: w.Store, ids: map[store.ID]bool{}}
		c, err := relock.Open(s, relock.WithTTL(relock.MaxTTL))
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		section := w.Enter(t.Context(), w.NewClient().NewLock("a"))
		for range 6000 {
			_, err := c.NewLock("a").TryLockFor(t.Context(), time.Millisecond)
			require.ErrorIs(t, err, relock.ErrLocked)
		}
		stage.Pass(time.Minute)
		s.mu.Lock()
		clear(s.ids)
		s.mu.Unlock()
		stage.Pass(relock.MaxTTL - time.Hour)
		require.NoError(t, section.Err())
		require.Positive(t, len(s.ids)) // without thousands of IDs in the message
		require.LessOrEqual(t, len(s.ids), 4096+256)
	})
}

// deaf is a store that takes commands, and whose answers are lost.
type deaf struct {
	*mem.Store
	mu    sync.Mutex
	ids   map[store.ID]bool
	tries int
}

func (s *deaf) Try(context.Context, store.Claim) (store.Lease, error) {
	return store.Lease{}, store.Unsure(store.Unavailable(stage.ErrBroken))
}

func (s *deaf) Forget(_ context.Context, claims []store.Claim) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries += len(claims)
	for _, a := range claims {
		s.ids[a.ID] = true
	}
	return slices.Repeat([]error{store.Unavailable(stage.ErrBroken)}, len(claims))
}

// giveUp makes calls that give up at a deaf store, lets time pass, and returns how often
// a claim was to be forgotten.
func giveUp(t *testing.T, w *stage.World, calls int, then time.Duration) (s *deaf, log *stage.Logbook, tries int) {
	t.Helper()
	s, log = &deaf{Store: w.Store, ids: map[store.ID]bool{}}, new(stage.Logbook)
	c, err := relock.Open(s, relock.WithTTL(relock.MaxTTL), relock.WithLogger(log.Logger()))
	require.NoError(t, err)
	l := c.NewLock("a")
	for range calls {
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrUnavailable)
	}
	stage.Pass(then)
	tries = s.tries
	require.NoError(t, c.Close())
	return s, log, tries
}

func TestCleanupKeepsABoundedNumberOfClaimsOfASilentStore(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s, log, _ := giveUp(t, w, 1<<16+1000, time.Nanosecond)
		require.LessOrEqual(t, len(s.ids), 1<<16+256) // a batch is in flight
		log.RequireOne(t, "too many calls have given up", slog.LevelWarn, "lock", "pending")
	})
}

func TestCleanupOfManyClaimsTriesASilentStoreSeldom(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const calls = 10_240
		s, _, tries := giveUp(t, w, calls, 10*time.Minute)
		require.Equal(t, calls, len(s.ids)) // without thousands of IDs in the message
		require.LessOrEqual(t, tries, 45*calls, "each claim once in 20 s, and not in 2 s")
		require.GreaterOrEqual(t, tries, 30*calls)
	})
}
