package stage

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// InRedisson returns options with the one of Redisson's layout before them.
func InRedisson(options ...relock.Option) []relock.Option {
	return append([]relock.Option{relock.WithRedissonLayout()}, options...)
}

// LuaRedisson is the script that asks for a lock.
const LuaRedisson = "redisson/acquire"

// ForRedisson makes an arena ready for Redisson's layout: every call is one command, and counters
// are no leftovers.
func (w *Arena) ForRedisson() *Arena {
	w.T.Helper()
	for _, name := range []string{LuaRedisson, "redisson/release"} {
		require.NoError(w.T, w.Plain.ScriptLoad(w.T.Context(), LuaSource(w.T, name)).Err())
	}
	w.T.Cleanup(func() {
		for _, key := range redistest.Keys(w.T, w.Plain) {
			if strings.HasPrefix(key, "redisson_lock_token:") {
				require.NoError(w.T, w.Plain.Del(context.Background(), key).Err())
			}
		}
	})
	return w
}

// JavaHolder is a thread of a Redisson client.
const JavaHolder = "f47ac10b-58cc-4372-a567-0e02b2c3d479:42"

// JavaTryLock is one attempt of RLock.tryLock, with the effects of Redisson's script as in
// internal/redisstore/testdata/vectors.json.
func (w *Arena) JavaTryLock(name string) bool {
	w.T.Helper()
	const text = `
		if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
			redis.call('hincrby', KEYS[1], ARGV[2], 1)
			redis.call('pexpire', KEYS[1], ARGV[1])
			return 1
		end
		return 0`
	n, err := w.Plain.Eval(context.Background(), text, []string{name}, relock.DefaultTTL.Milliseconds(), JavaHolder).Int()
	require.NoError(w.T, err)
	return n == 1
}

// JavaLock takes a free lock as Redisson does.
func (w *Arena) JavaLock(name string) {
	w.T.Helper()
	require.True(w.T, w.JavaTryLock(name))
}

// JavaUnlock is the last unlock of RLock.
func (w *Arena) JavaUnlock(name string) {
	w.T.Helper()
	ctx := context.Background()
	pipe := w.Plain.TxPipeline()
	there := pipe.HExists(ctx, name, JavaHolder)
	pipe.Del(ctx, name)
	pipe.Publish(ctx, ChannelOf(name), "0")
	_, err := pipe.Exec(ctx)
	require.NoError(w.T, err)
	require.True(w.T, there.Val(), "it had the lock")
}

// ChannelOf is Redisson's channel of a lock.
func ChannelOf(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock__channel:" + name
}

// AwaitEars waits until so many connections listen to the channel of a lock.
func (w *Arena) AwaitEars(name string, n int) {
	w.T.Helper()
	redistest.Eventually(w.T, w.Limit, func() bool {
		got, err := w.Plain.PubSubNumSub(context.Background(), ChannelOf(name)).Result()
		return err == nil && got[ChannelOf(name)] == int64(n)
	}, "%d listen to %q", n, name)
}

// Answers counts the calls of acquire that Redis has answered from now on. The second call of a
// waiter is the one behind its subscription: from then on only a message or the end of the lease
// wakes the waiter.
func (w *Arena) Answers(p *Peer) func() int {
	w.T.Helper()
	var n atomic.Int64
	p.Faults.On(w.Script(LuaRedisson), redistest.After(func([]string, string) { n.Add(1) }))
	return func() int { return int(n.Load()) }
}

// AwaitAsks waits until acquire was called n times.
func (w *Arena) AwaitAsks(claims func() int, n int) {
	w.T.Helper()
	redistest.Eventually(w.T, w.Limit, func() bool { return claims() >= n }, "%d calls of acquire", n)
}

// RedissonACL is all that a Redis user needs, beside the names of its locks and
// &redisson_lock__channel:*. docs/MIGRATION.md shows the list.
var RedissonACL = []string{
	"evalsha", "eval", "subscribe", "unsubscribe", "ping",
	"del", "exists", "hdel", "hexists", "hget", "hgetall", "hset", "pexpire", "pttl", "publish",
}

// RedissonFencingACL is for fenced locks, with ~redisson_lock_token:*.
var RedissonFencingACL = []string{"get", "incr"}
