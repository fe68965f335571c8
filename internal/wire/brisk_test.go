package wire

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// quick is a rig whose server has answered at once, and a context that can end.
func quick(t *testing.T, mod ...func(*redis.Options)) (*rig, context.Context) {
	t.Helper()
	r := newRig(t, append(mod, func(o *redis.Options) { o.ContextTimeoutEnabled = true })...)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	redistest.Eventually(t, ample, func() bool { r.do(ctx, r.call("0")); return r.wire.quick.Load() }, "an answer within %s", quickAnswer)
	r.faults.Reset()
	return r, ctx
}

func TestAStallCostsABriskCallOneRepeatOfWhichNobodyIsTold(t *testing.T) {
	for name, action := range map[string]redistest.Action{"before Redis": redistest.Stall(), "behind Redis": redistest.DropReply(redistest.Silence)} {
		t.Run(name, func(t *testing.T) {
			r, ctx := quick(t)
			c := r.tries(1)
			c.Repeat = func(elapsed time.Duration) []any {
				require.GreaterOrEqual(t, elapsed, briskLimit)
				return []any{"later"}
			}
			stalled := r.faults.Once(scripts, action)
			begun := time.Now()
			a, err := r.wire.Do(ctx, c)
			require.NoError(t, err, "a brisk send is no try")
			require.Equal(t, 1, stalled.Hits())
			require.GreaterOrEqual(t, time.Since(begun), briskLimit)
			require.True(t, a.Unsure)
			require.GreaterOrEqual(t, a.Sent.Sub(a.First), briskLimit, "the lease counts from the first send")
			require.Equal(t, "later", r.value(0))
			require.Zero(t, r.retries())
		})
	}
}

func TestTheEndOfABriskCallIsNoticedSoon(t *testing.T) {
	r, ctx := quick(t)
	ctx, cancel := context.WithCancel(ctx)
	stalled := r.faults.On(scripts, redistest.Stall())
	go func() { stalled.WaitHits(t, 1); cancel() }()
	begun := time.Now()
	a, err := r.wire.Do(ctx, r.call("x"))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrGivenUp)
	require.True(t, a.Unsure)
	require.Less(t, time.Since(begun), time.Second, "and not the three seconds of go-redis")
	require.False(t, r.wire.quick.Load())
}

// TestWhatMayNotBeRepeatedIsNotSentBriskly has an answer that takes four times the limit of a brisk
// send.
func TestWhatMayNotBeRepeatedIsNotSentBriskly(t *testing.T) {
	late := func(t *testing.T, change func(*Call)) (hits int) {
		t.Helper()
		r, ctx := quick(t)
		c := r.call("x")
		change(c)
		rule := r.faults.On(scripts, redistest.Before(func([]string) {
			select {
			case <-time.After(4 * briskLimit):
			case <-t.Context().Done():
			}
		}))
		r.do(ctx, c)
		return rule.Hits()
	}
	require.Equal(t, 2, late(t, func(*Call) {}), "the fault is there")
	require.Equal(t, 1, late(t, func(c *Call) { c.NoRepeat = true }))
}

func TestASlowServerIsSentNothingBriskly(t *testing.T) {
	r, ctx := quick(t)
	r.faults.Delay(briskLimit + quickAnswer)
	r.do(ctx, r.call("x"))
	require.False(t, r.wire.isBrisk(ctx, r.call("x")))
	r.wire.quick.Store(true)
	require.True(t, r.wire.isBrisk(ctx, r.call("x")))
	for name, d := range map[string]time.Duration{"patience": briskLimit, "deadline": briskLimit / 2} {
		c, near := r.call("x"), ctx
		if name == "patience" {
			c.Patience = d
		} else {
			var cancel context.CancelFunc
			near, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		require.False(t, r.wire.isBrisk(near, c), name)
	}
}
