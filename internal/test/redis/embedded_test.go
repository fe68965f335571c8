package redis_test

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

// What does a client do on the embedded server that users have in their tests?

// frames notes the functions of the library behind the first command that go-redis is asked to
// send.
type frames struct {
	once  sync.Once
	found []string
}

func (f *frames) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *frames) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.once.Do(func() {
			pcs := make([]uintptr, 64)
			for stack := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)]); ; {
				frame, more := stack.Next()
				_, name, ours := strings.Cut(frame.Function, "go-relock/relock")
				if ours && !strings.HasSuffix(frame.File, "_test.go") {
					f.found = append(f.found, name)
				}
				if !more {
					return
				}
			}
		})
		return next(ctx, cmd)
	}
}

func (f *frames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestFromLockToGoRedisAreNineCalls counts the functions below Lock on the way to the command that
// takes a lock. The way never climbs: from this package to the store, and from there to the wire.
// Under a context that can end, sendBehind starts a goroutine, which calls exchange.
func TestFromLockToGoRedisAreNineCalls(t *testing.T) {
	way := func(ctx context.Context) []string {
		rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
		defer rdb.Close()
		var f frames
		rdb.AddHook(&f)
		c, err := relock.New(rdb)
		require.NoError(t, err)
		defer c.Close()
		l := c.NewLock("a")
		section, err := l.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, l.Unlock(section))
		slices.Reverse(f.found)
		return f.found
	}
	found := way(context.Background())
	require.Equal(t, ".(*Lock).Lock", found[0])
	require.LessOrEqual(t, len(found)-1, 9, "%v", found)
	floors := []string{".", "/internal/redisstore.", "/internal/wire."}
	floorOf := func(name string) int {
		return slices.IndexFunc(floors, func(floor string) bool { return strings.HasPrefix(name, floor) })
	}
	require.True(t, slices.IsSortedFunc(found, func(a, b string) int { return floorOf(a) - floorOf(b) }), "%v", found)
	const wire = "/internal/wire.(*Wire)."
	require.Equal(t, []string{wire + "attempt", wire + "exchange"}, found[len(found)-2:])

	found = slices.DeleteFunc(way(t.Context()), func(name string) bool { return floorOf(name) != 2 })
	require.Equal(t, []string{wire + "sendAlone", wire + "exchange"}, found)
}

func TestRedisStoreRefusesOptionsOfTheClient(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	for what, option := range map[string]relock.Option{
		"WithTTL": relock.WithTTL(relock.DefaultTTL), "WithMaxWaiters": relock.WithMaxWaiters(0), "WithOwner": relock.WithOwner("a"), "WithHooks": relock.WithHooks(event.Hooks{}),
		"WithFixedLease": relock.WithFixedLease(time.Second),
	} {
		_, err := relock.RedisStore(rdb, relock.WithPrefix("app:"), option)
		require.ErrorIs(t, err, relock.ErrInvalid, what)
		require.ErrorContains(t, err, what+" is for New", what)
	}
	for _, options := range [][]relock.Option{
		nil, {{}, relock.WithPrefix("app:"), relock.WithRestartDelay(time.Second)}, {relock.WithRedissonFencing()},
	} {
		s, err := relock.RedisStore(rdb, options...)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
}
