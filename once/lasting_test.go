package once_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/once"
)

// What does a schedule outlast? (In fake time.)

// schedule is a process that calls Every, until end.
type schedule struct {
	*stage.EmbeddedPeer
	once  *once.Once
	end   context.CancelFunc
	ended chan error

	mu   sync.Mutex
	runs []once.Tick
}

func newSchedule(t *testing.T, w *stage.Embedded, options ...once.Option) *schedule {
	t.Helper()
	// While go-redis dials again it has a mutex, and time does not pass for others who want it.
	rdb, net := w.NewRedis(func(o *redis.Options) { o.DialerRetries = 1 })
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	s := &schedule{EmbeddedPeer: &stage.EmbeddedPeer{Client: locks, Net: net}, ended: make(chan error, 1)}
	s.once, err = once.New(s.Client, options...)
	require.NoError(t, err)
	t.Cleanup(s.close)
	return s
}

// close ends the process.
func (s *schedule) close() {
	_ = s.once.Close()
	_ = s.Close()
}

// every begins the calls of work in each period.
func (s *schedule) every(t *testing.T, period time.Duration, work func(once.Tick), options ...once.EveryOption) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	s.end = end
	go func() {
		s.ended <- once.Every(ctx, s.once, "job", period, func(_ context.Context, tick once.Tick) {
			s.mu.Lock()
			s.runs = append(s.runs, tick)
			s.mu.Unlock()
			work(tick)
		}, options...)
	}()
	stage.Settle()
}

// lose ends the connections to Redis, until its network is healed.
func (s *schedule) lose() {
	s.Net.Refuse()
	s.Net.Cut()
}

// take returns the runs since the last look.
func (s *schedule) take() []once.Tick {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

// requireGoesOn says that Every has not ended, and ends it.
func (s *schedule) requireGoesOn(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.ended:
		require.NoError(t, err, "Every has ended")
	default:
	}
	s.end()
	require.ErrorIs(t, <-s.ended, context.Canceled)
}

// requireEachOnce says that each period has a run, and only one that was not interrupted.
func requireEachOnce(t *testing.T, period time.Duration, runs []once.Tick) {
	t.Helper()
	for i, tick := range runs[1:] {
		after := period
		if tick.Interrupted {
			after = 0
		}
		require.Equal(t, after, tick.Period.Sub(runs[i].Period), "%v", runs)
	}
}

func nothing(once.Tick) {}

func TestAStopEndsASchedule(t *testing.T) {
	for name, cause := range map[string]error{
		"by itself":                           nil,
		"with the loss of another lock":       &relock.LostError{Name: "leader", Reason: event.LossExpired},
		"with the error of another operation": relock.ErrUnavailable,
	} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				s := newSchedule(t, w)
				stop, shutDown := context.WithCancelCause(t.Context())
				ctx := relock.WithStop(t.Context(), stop)
				ended := make(chan error, 1)
				go func() {
					ended <- once.Every(ctx, s.once, "job", time.Minute, func(context.Context, once.Tick) {})
				}()
				stage.Pass(time.Hour)
				require.Empty(t, ended)
				shutDown(cause)
				stage.Settle()
				require.Len(t, ended, 1, "and not at the end of the period")
				require.ErrorIs(t, <-ended, context.Cause(stop))
			})
		})
	}
}

func TestEveryOutlastsAnOutageAtTheEndOfARun(t *testing.T) {
	const period = 5 * time.Minute
	for _, outage := range []time.Duration{time.Second, 12 * time.Second, 15 * time.Second, 2 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				s := newSchedule(t, w)
				var first sync.Once
				s.every(t, period, func(once.Tick) {
					first.Do(func() {
						s.lose()
						time.AfterFunc(outage, s.Net.Heal)
					})
				})
				stage.Pass(4 * period)
				runs := s.take()
				require.GreaterOrEqual(t, len(runs), 5)
				requireEachOnce(t, period, runs)
				s.requireGoesOn(t)
			})
		})
	}
}

func TestEveryOutlastsAReplicaThatIsAway(t *testing.T) {
	const period = time.Minute
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		s := newSchedule(t, w, once.WithLockOptions(relock.WithReplicaAcks(1, 100*time.Millisecond)))
		replica := s.Net.On(redistest.Named("WAIT"), redistest.Answer(":1"))
		s.every(t, period, nothing)
		require.Len(t, s.take(), 1)
		replica.Remove()
		stage.Pass(2 * period)
		require.Empty(t, s.take(), "nothing runs without the confirmation")
		s.Net.On(redistest.Named("WAIT"), redistest.Answer(":1"))
		stage.Pass(3 * period)
		runs := s.take()
		require.GreaterOrEqual(t, len(runs), 3)
		requireEachOnce(t, period, runs)
		s.requireGoesOn(t)
	})
}

func TestEveryOutlastsTheLossOfItsLock(t *testing.T) {
	const period = time.Minute
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		s := newSchedule(t, w)
		var first sync.Once
		s.every(t, period, func(once.Tick) {
			first.Do(func() {
				for _, key := range w.Redis.Keys() {
					if strings.HasSuffix(key, "}") {
						w.Redis.Del(key)
					}
				}
			})
		})
		stage.Pass(3 * period)
		runs := s.take()
		require.GreaterOrEqual(t, len(runs), 3)
		requireEachOnce(t, period, runs)
		s.requireGoesOn(t)
	})
}

func TestEveryOutlastsAQueueThatIsFull(t *testing.T) {
	const period = time.Minute
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		crowd := make([]*schedule, 5)
		for i := range crowd {
			crowd[i] = newSchedule(t, w, once.WithLockOptions(relock.WithMaxWaiters(1)))
			crowd[i].every(t, period, nothing)
		}
		for range 3 {
			stage.Pass(period)
			for _, s := range crowd {
				s.lose()
			}
			clock := w.NewClient().NewLock("once:job@" + period.String())
			stage.Pass(period)
			section, err := clock.Lock(t.Context()) // all meet it when they come back
			require.NoError(t, err)
			for _, s := range crowd {
				s.Net.Heal()
			}
			stage.Pass(5 * time.Second)
			require.NoError(t, clock.Unlock(section))
		}
		stage.Pass(period)
		for _, s := range crowd {
			s.requireGoesOn(t)
		}
	})
}

func TestPeriodsWithoutAnybodyAreCaughtUp(t *testing.T) {
	for _, period := range []time.Duration{time.Second, time.Minute, 24 * time.Hour} {
		for _, away := range []int{4, 10, 50} {
			t.Run(fmt.Sprint(away, " of ", period), func(t *testing.T) {
				stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
					const most = 3
					s := newSchedule(t, w)
					s.every(t, period, nothing, once.CatchUp(most))
					require.Len(t, s.take(), 1, "nothing from before the first call")
					s.requireGoesOn(t)
					s.close()
					stage.Pass(time.Duration(away) * period)
					s = newSchedule(t, w)
					s.every(t, period, nothing, once.CatchUp(most))
					runs := s.take()
					require.Len(t, runs, most+1)
					requireEachOnce(t, period, runs)
					s.requireGoesOn(t)
				})
			})
		}
	}
}

func TestNoPeriodRunsAgainWithAShortRetention(t *testing.T) {
	const period, most = time.Minute, 5
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		s := newSchedule(t, w, once.WithRetention(time.Second))
		s.every(t, period, nothing, once.CatchUp(most))
		stage.Pass(10 * period)
		runs := s.take()
		require.Len(t, runs, 11)
		requireEachOnce(t, period, runs)
		s.requireGoesOn(t)
	})
}
