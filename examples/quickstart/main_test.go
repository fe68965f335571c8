package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// plot is the story without what differs from run to run.
var plot = []string{
	`-- {2}.* at 127\.0\.0\.1:\d+; `,
	``,
	`Nine goroutines on three instances want one lock`,
	`[ABC][123]  in after .*, takes one of 100, token \d+`,
	`[ABC][123]  in after .*, takes one of 99, token \d+`,
	`[ABC][123]  in after .*, takes one of 98, token \d+`,
	`[ABC][123]  in after .*, takes one of 97, token \d+`,
	`[ABC][123]  in after .*, takes one of 96, token \d+`,
	`[ABC][123]  in after .*, takes one of 95, token \d+`,
	`[ABC][123]  in after .*, takes one of 94, token \d+`,
	`[ABC][123]  in after .*, takes one of 93, token \d+`,
	`[ABC][123]  in after .*, takes one of 92, token \d+`,
	`--  91 left: no update was lost`,
	``,
	`A nested call enters at once`,
	`A   placeOrder has the lock: count 1, token \d+`,
	`A     reserve locks it again: count 2, same token \d+`,
	`A   reserve is back and placeOrder still has the lock: count 1`,
	`A   placeOrder is done: free`,
	``,
	`A section that outlasts its TTL, and one that waits for it`,
	`A   in; its lease is 1s, its work will take 2\.2s`,
	`B   TryLock says: relock: "stock:42" is locked by shop@A/\S+; its lease has \S+ left and may be renewed$`,
	`B   TryLockFor\(100ms\) has waited and says the same`,
	`B   Lock waits`,
	`--  State: count 1, lease ends in \S+, 1 waiting`,
	`A   done after 2\.\d+s and still the holder: the watchdog has renewed the lease \d+ times, \S+ are left`,
	`A   unlocks`,
	`B   granted after 2\.\d+s, .* after A began to unlock$`,
	``,
	`A lock that is lost`,
	`C   in, token \d+; works`,
	`--  an operator takes the lock away`,
	`C   its work ends .* later with: relock: "stock:42" lost by .*`,
	`C   Unlock says so too`,
	`B   in, token \d+: storage that remembers it refuses a late write of C with \d+`,
	``,
	`The end`,
	`--  the clients are closed`,
	`--  all that is left in Redis is relock-quickstart:\w+:\{stock:42\}:token, which expires in 24h0m0s`,
}

func requirePlot(t *testing.T, output string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	require.Len(t, lines, len(plot), "%s", output)
	for i, want := range plot {
		require.Regexp(t, want, lines[i], "line %d of:\n%s", i+1, output)
	}
}

func TestTheStoryIsToldWithoutAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, ""), "%s", &out)
	requirePlot(t, out.String())
}

func TestTheStoryIsTheSameOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, server.URL()), "%s", &out)
	requirePlot(t, out.String())

	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	require.Len(t, redistest.Keys(t, rdb), 1)
	require.Empty(t, redistest.Subscriptions(t, rdb))
}

func TestAServerThatIsNotThereIsAnErrorThatNamesIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.ErrorContains(t, run(ctx, &bytes.Buffer{}, "redis://127.0.0.1:1?max_retries=-1"), "127.0.0.1:1")
	require.ErrorContains(t, run(ctx, &bytes.Buffer{}, "127.0.0.1:6379"), "REDIS_URL")
}

func TestAnInterruptEndsTheStoryWithItsCause(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("Lock waits")) { // one holds the lock, one is about to wait
			cancel()
		}
		return out.Write(line)
	}), "")
	require.ErrorIs(t, err, context.Canceled, "%s", &out)
}

func TestAnInterruptIsToldOnceHoweverManyWait(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithCancelCause(t.Context())
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("in after")) { // one has been in, the others want to
			interrupt(errors.New("interrupted"))
		}
		return len(line), nil
	}), "")
	require.EqualError(t, err, "Nine goroutines on three instances want one lock: interrupted")
}

func TestAnInterruptAtTheBeginningLeavesNothing(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	require.Error(t, run(ctx, io.Discard, ""))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAURLThatCannotBeReadIsNotRepeatedAsItMayHaveAPassword(t *testing.T) {
	for _, url := range []string{"redis://user:secret@localhost:port", "redis://user:secret/1@localhost", "http://user:secret@localhost"} {
		err := run(t.Context(), io.Discard, url)
		require.ErrorContains(t, err, "REDIS_URL")
		require.NotContains(t, err.Error(), "secret")
	}
}
