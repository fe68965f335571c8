package wire

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/test/redistest"
)

// hook is a hook of the go-redis client that does something with the next script calls.
type hook struct {
	left atomic.Int32
	do   func(next func() error) error
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" || h.left.Add(-1) < 0 {
			return next(ctx, cmd)
		}
		return h.do(func() error { return next(ctx, cmd) })
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "evalsha" || h.left.Add(-1) < 0 {
			return next(ctx, cmds)
		}
		err := h.do(func() error { return next(ctx, cmds) })
		for _, cmd := range cmds {
			if isContextEnd(err) {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// hooked is a rig with a hook that does do once.
func hooked(t *testing.T, do func(next func() error) error) *rig {
	t.Helper()
	r := newRig(t)
	h := &hook{do: do}
	h.left.Store(1)
	r.rdb.AddHook(h)
	return r
}

// idle fails the test unless all slots are free soon.
func (r *rig) idle() {
	r.Helper()
	b := &r.wire.batcher
	redistest.Eventually(r, ample, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.sends == 0 && b.lenLocked() == 0
	}, "all slots are free")
}

func TestAHookThatPanicsIsAnErrorOfTheCall(t *testing.T) {
	for name, after := range map[string]bool{"before it is sent": false, "after Redis has run it": true} {
		t.Run(name, func(t *testing.T) {
			angry := func(next func() error) error {
				if after {
					_ = next()
				}
				panic("a hook")
			}
			for name, ctx := range waysOut(t) {
				t.Run(name, func(t *testing.T) {
					r := hooked(t, angry)
					a, err := r.wire.Do(ctx, r.call("x"))
					require.ErrorIs(t, err, errHook)
					require.ErrorContains(t, err, ": a hook")
					require.True(t, a.Unsure)
					require.False(t, Refused(err))
					require.Zero(t, r.retries())
					r.idle()
				})
			}
			t.Run("in a batch", func(t *testing.T) {
				r := hooked(t, angry)
				for _, f := range r.batch(2) {
					require.ErrorIs(t, f.err, errHook)
				}
			})
			t.Run("many", func(t *testing.T) {
				r := hooked(t, angry)
				require.ErrorIs(t, r.wire.All(t.Context(), setScript, nil, units(r, 1))[0].Err, errHook)
			})
		})
	}
}

func TestAHookThatEndsItsGoroutineLeavesNobodyWaiting(t *testing.T) {
	exit := func(func() error) error { runtime.Goexit(); return nil }
	t.Run("sent by the caller", func(t *testing.T) {
		r := hooked(t, exit)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = r.wire.Do(context.Background(), r.call("x"))
			t.Error("the goroutine goes on")
		}()
		<-ended
		r.idle()
	})
	t.Run("sent by another goroutine", func(t *testing.T) {
		r := hooked(t, exit)
		a, err := r.wire.Do(t.Context(), r.call("x"))
		require.ErrorIs(t, err, errHook)
		require.True(t, a.Unsure)
		r.idle()
	})
	t.Run("many", func(t *testing.T) {
		r := hooked(t, exit)
		require.ErrorIs(t, r.wire.All(t.Context(), setScript, nil, units(r, 1))[0].Err, errHook)
		r.wire.Wait()
	})
}

func TestTheEndOfAHooksOwnContextDoesNotSayThatACommandWasNotSent(t *testing.T) {
	hasty := func(next func() error) error {
		_ = next()
		return context.DeadlineExceeded
	}
	for name, ctx := range waysOut(t) {
		t.Run(name, func(t *testing.T) {
			r := hooked(t, hasty)
			a := r.do(ctx, r.call("x"))
			require.Equal(t, "x", a.Reply)
			require.True(t, a.Unsure, "the first attempt has run")
		})
	}
	t.Run("with WAIT", func(t *testing.T) {
		r := hooked(t, hasty)
		c := r.tries(1)
		c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
		a, err := r.wire.Do(t.Context(), c)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, a.Unsure)
	})
	t.Run("in a batch", func(t *testing.T) {
		r := hooked(t, hasty)
		for _, f := range r.batch(2) {
			require.Equal(t, unknown, judge(f.err))
		}
	})
}

func TestAPipelineThatIsNotSentTellsEachOfItsCommandsWhy(t *testing.T) {
	const loading = serverError("LOADING Redis is loading the dataset in memory")
	open := errors.New("the circuit is open")
	for name, says := range map[string]error{"Redis, while a connection is made": loading, "a hook": open} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []string{"with WAIT", "many", "a batch"} {
				r := hooked(t, func(func() error) error { return open })
				if says == loading { // one of two
					r = newRig(t, func(o *redis.Options) {
						o.OnConnect = func(context.Context, *redis.Conn) error { return loading }
					})
				}
				switch way {
				case "with WAIT":
					c := r.tries(1)
					c.Acks = attempts.Acks{Replicas: 1, Timeout: time.Millisecond}
					a, err := r.wire.Do(t.Context(), c)
					require.ErrorIs(t, err, says)
					require.Equal(t, judge(says) == unknown, a.Unsure)
				case "many":
					for _, result := range r.wire.All(t.Context(), setScript, nil, units(r, 2*maxUnits)) {
						require.ErrorIs(t, result.Err, says)
					}
				default:
					for _, f := range r.batch(maxUnits + 1) {
						require.ErrorIs(t, f.err, says)
					}
				}
			}
		})
	}
}

// ending sends a command with a context that ends soon, in each way, also with a go-redis that
// looks at its deadline. The connection is there; with taken, somebody else has it.
func ending(t *testing.T, taken bool, check func(t *testing.T, err error, sent int)) {
	t.Helper()
	const soon = 100 * time.Millisecond
	for _, enabled := range []bool{false, true} {
		for _, name := range []string{"deadline", "cancelled"} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %v", name, enabled), func(t *testing.T) {
				r := newRig(t, func(o *redis.Options) {
					o.PoolSize, o.ContextTimeoutEnabled, o.ReadTimeout = 1, enabled, 500*time.Millisecond
				})
				held := r.faults.On(scripts, redistest.Hold())
				conn := r.rdb.Conn()
				require.NoError(t, conn.Ping(t.Context()).Err())
				if taken {
					defer conn.Close()
				} else {
					require.NoError(t, conn.Close())
				}
				ctx, cancel := context.WithCancel(t.Context())
				if name == "deadline" {
					ctx, cancel = context.WithTimeout(t.Context(), soon)
				} else {
					time.AfterFunc(soon, cancel)
				}
				defer cancel()
				c := &scriptCall{spec: &spec{script: setScript}, flights: []*flight{{unit: r.unit(0, "x")}}}
				r.wire.exchange(ctx, []*scriptCall{c})
				check(t, c.err, held.Hits())
			})
		}
	}
}

func TestGoRedisReturnsABareContextErrorForWhatItNeverSent(t *testing.T) {
	t.Run("no connection", func(t *testing.T) {
		ending(t, true, func(t *testing.T, err error, sent int) {
			t.Helper()
			require.Zero(t, sent)
			require.Equal(t, unsent, judge(err), "%v", err)
		})
	})
	t.Run("on the wire", func(t *testing.T) {
		ending(t, false, func(t *testing.T, err error, sent int) {
			t.Helper()
			require.Equal(t, 1, sent)
			require.Equal(t, unknown, judge(err), "%v", err)
		})
	})
}
