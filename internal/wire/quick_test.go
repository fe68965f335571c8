package wire

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

func keepDeadlines(o *redis.Options) { o.ContextTimeoutEnabled = true }

// newQuickRig makes a rig whose server has answered at once, and a context that can end.
func newQuickRig(t *testing.T, mod ...func(*redis.Options)) (*rig, context.Context) {
	t.Helper()
	r := newRig(t, mod...)
	life, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	redistest.Eventually(t, ample, func() bool { r.do(t.Context(), r.call("0")); return r.wire.quick.is.Load() }, "an answer within %s", quickAnswer)
	r.faults.Reset()
	ctx := lifetime.EndingWith(t.Context(), life)
	t.Cleanup(ctx.Stop)
	return r, ctx
}

func TestAStallCostsAQuickAttemptOneRepeatThatIsNoTry(t *testing.T) {
	for name, action := range map[string]redistest.Action{"before Redis": redistest.Stall(), "behind Redis": redistest.DropReply(redistest.Silence)} {
		for who, options := range map[string]func(*redis.Options){"by a goroutine": func(*redis.Options) {}, "by the caller": keepDeadlines} {
			t.Run(name+", sent "+who, func(t *testing.T) {
				r, ctx := newQuickRig(t, options)
				c := r.tries(1)
				c.Repeat = func(_ []any, elapsed time.Duration) []any {
					require.GreaterOrEqual(t, elapsed, quickLimit)
					return []any{"later"}
				}
				stalled := r.faults.Once(scripts, action)
				begun := time.Now()
				a, err := r.wire.Do(ctx, c)
				require.NoError(t, err, "a quick attempt is no try")
				require.Equal(t, 1, stalled.Hits())
				require.GreaterOrEqual(t, time.Since(begun), quickLimit)
				require.Less(t, time.Since(begun), bound.Of(time.Second), "and not the time of go-redis")
				require.True(t, a.Unsure)
				require.GreaterOrEqual(t, a.Sent.Sub(a.First), quickLimit, "the lease counts from the first send")
				require.Equal(t, "later", r.value(0))
				require.Zero(t, r.retries())
			})
		}
	}
}

func TestTheEndOfAQuickCallIsNoticedSoon(t *testing.T) {
	r, ctx := newQuickRig(t, keepDeadlines)
	life, cancel := context.WithCancel(ctx)
	ending := lifetime.EndingWith(t.Context(), life)
	defer ending.Stop()
	stalled := r.faults.On(scripts, redistest.Stall())
	go func() { stalled.WaitHits(t, 1); cancel() }()
	begun := time.Now()
	a, err := r.wire.Do(ending, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrGivenUp)
	require.True(t, a.Unsure)
	require.Less(t, time.Since(begun), bound.Of(time.Second), "and not the three seconds of go-redis")
	require.False(t, r.wire.quick.is.Load())
}

// The moment of a quick attempt ends just before the context of its call.
func TestACallEndsWithItsContextRightBehindAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*quickLimit+time.Millisecond)
		defer cancel()
		begun := time.Now()
		l := &lone{flight: flight{ctx: ctx, since: begun, done: make(chan struct{})}}
		moment, end := context.WithTimeout(t.Context(), 2*quickLimit)
		defer end()
		l.brief.moment = moment
		require.ErrorIs(t, (&Wire{start: begun}).awaitQuick(ctx, l).err, ErrGivenUp)
		require.Equal(t, 2*quickLimit+time.Millisecond, time.Since(begun))
	})
}

// TestWhatMayNotBeRepeatedIsNotGivenUp has an answer that takes four times the limit of a quick
// attempt.
func TestWhatMayNotBeRepeatedIsNotGivenUp(t *testing.T) {
	late := func(t *testing.T, change func(*Call)) (hits int) {
		t.Helper()
		r, ctx := newQuickRig(t)
		c := r.call("x")
		change(c)
		rule := r.faults.On(scripts, redistest.Before(func([]string) {
			select {
			case <-time.After(4 * quickLimit):
			case <-t.Context().Done():
			}
		}))
		r.do(ctx, c)
		return rule.Hits()
	}
	redistest.Eventually(t, time.Minute, func() bool { // a busy machine may have every attempt wait
		return late(t, func(*Call) {}) == 2
	}, "the fault is there")
	require.Equal(t, 1, late(t, func(c *Call) { c.NoRepeat = true }))
}

func TestNoAttemptAtASlowServerIsQuick(t *testing.T) {
	r, ctx := newQuickRig(t, keepDeadlines)
	r.faults.Delay(quickLimit + quickAnswer)
	r.do(ctx, r.call("x"))
	require.False(t, r.wire.isInTime(ctx, r.call("x"), &progress{}))
	r.wire.quick.is.Store(true)
	require.True(t, r.wire.isInTime(ctx, r.call("x"), &progress{}))
	for name, d := range map[string]time.Duration{"patience": quickLimit, "deadline": quickLimit / 2} {
		c, near := r.call("x"), ctx
		if name == "patience" {
			c.Patience = d
		} else {
			var cancel context.CancelFunc
			near, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		require.False(t, r.wire.isInTime(near, c, &progress{}), name)
	}
}

// TestACallEndsInTimeThoughAQuickAttemptHasNoConnection has a server that has just answered, and is
// behind a partition now, and a pool whose only connection is in use.
func TestACallEndsInTimeThoughAQuickAttemptHasNoConnection(t *testing.T) {
	const wait = 200 * time.Millisecond
	life, end := context.WithCancel(context.Background())
	defer end()
	for name, begin := range map[string]func(context.Context) *lifetime.Ending{
		"until": func(ctx context.Context) *lifetime.Ending { return lifetime.Until(ctx, time.Now().Add(wait)) },
		"after": func(ctx context.Context) *lifetime.Ending { return lifetime.EndingAfter(ctx, life, wait, io.EOF) },
		"with": func(ctx context.Context) *lifetime.Ending {
			closed, cancel := context.WithCancel(ctx)
			time.AfterFunc(wait, cancel)
			return lifetime.EndingWith(ctx, closed)
		},
	} {
		for _, keeps := range []bool{false, true} {
			for _, dials := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, deadlines kept %v, dials %v", name, keeps, dials), func(t *testing.T) {
					r := newRig(t, func(o *redis.Options) {
						o.PoolSize, o.MaxActiveConns, o.PoolTimeout, o.DialTimeout = 1, 1, time.Minute, time.Minute
						o.ReadTimeout, o.ContextTimeoutEnabled = 100*time.Millisecond, keeps
					})
					r.do(t.Context(), r.call("0"))
					taken := r.rdb.Conn()
					require.NoError(t, taken.Ping(t.Context()).Err())
					if dials {
						r.faults.Partition()
						_ = taken.Ping(t.Context()) // the connection is broken
						require.NoError(t, taken.Close())
					} else {
						defer taken.Close()
					}
					r.wire.quick.is.Store(true)
					ctx := begin(t.Context())
					defer ctx.Stop()
					begun := time.Now()
					_, err := r.wire.Do(ctx, r.call("x"))
					require.Error(t, err)
					require.Error(t, ctx.Err())
					require.Less(t, time.Since(begun), bound.Of(wait+10*quickLimit))
					r.faults.Heal()
				})
			}
		}
	}
}

// A quick attempt that had no connection is not unsure: nothing was sent.
func TestAQuickAttemptWithoutAConnectionHasNotRun(t *testing.T) {
	r, ctx := newQuickRig(t, func(o *redis.Options) { o.PoolSize, o.MaxActiveConns, o.PoolTimeout = 1, 1, time.Minute })
	taken := r.rdb.Conn()
	require.NoError(t, taken.Ping(t.Context()).Err())
	time.AfterFunc(8*quickLimit, func() { _ = taken.Close() })
	begun := time.Now()
	a, err := r.wire.Do(ctx, r.call("x"))
	require.NoError(t, err)
	require.Greater(t, time.Since(begun), 4*quickLimit)
	require.False(t, a.Unsure)
	require.Equal(t, a.Sent, a.First)
}

func TestNoTimerIsLeftAfterWait(t *testing.T) {
	r, ctx := newQuickRig(t)
	r.do(ctx, r.call("x"))
	moment := r.wire.quick.moments.At(time.Now())
	r.wire.Wait()
	require.ErrorIs(t, moment.Err(), context.Canceled)
}
