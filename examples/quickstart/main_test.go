package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// plot is the story without what differs from run to run.
var plot = []string{
	`buyer [1-4] takes one of 100$`,
	`buyer [1-4] takes one of 99$`,
	`buyer [1-4] takes one of 98$`,
	`buyer [1-4] takes one of 97$`,
	`A locks again inside of its section, and is in: count 2$`,
	`B tries: relock: "stock:42" is locked by A/\S+; its lease has \S+ left and may be renewed$`,
	`A has worked for 4s with a lease of 3s, and has the lock: true$`,
	`B has waited, and is in$`,
	`A has lost the lock, and hears of it: relock: "stock:42" lost by A/\S+: .*`,
}

func requirePlot(t *testing.T, output string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	require.Len(t, lines, len(plot), "%s", output)
	for i, want := range plot {
		require.Regexp(t, want, lines[i], "line %d of:\n%s", i+1, output)
	}
}

func TestTheStoryIsToldInFakeTime(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		rdb, _ := w.NewRedis()
		var out bytes.Buffer
		require.NoError(t, tell(t.Context(), log.New(&out, "", 0), rdb.Options()), "%s", &out)
		requirePlot(t, out.String())
	})
}

func TestTheStoryIsToldWithoutAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""), "%s", &out)
	requirePlot(t, out.String())
}

func TestTheStoryIsToldOnAServerWhereItLeavesNothing(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, server.URL()), "%s", &out)
	requirePlot(t, out.String())
	require.Empty(t, redistest.Keys(t, server.Client()))
	require.Empty(t, redistest.Subscriptions(t, server.Client()))
}

func TestAServerThatIsNotThereIsAnErrorThatNamesIt(t *testing.T) {
	redistest.Eventually(t, time.Minute, func() bool { // a busy machine has no answer in time, sometimes
		err := run(t.Context(), io.Discard, "redis://127.0.0.1:1?max_retries=-1")
		require.Error(t, err)
		return strings.Contains(err.Error(), "127.0.0.1:1")
	}, "the error names the server")
	require.ErrorContains(t, run(t.Context(), io.Discard, "127.0.0.1:6379"), "REDIS_URL")
}

func TestAnInterruptEndsTheStoryAndIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	for _, line := range []string{"takes one of 100", "B tries"} { // others wait behind these lines
		ctx, interrupt := context.WithCancelCause(t.Context())
		cause := errors.New("interrupted")
		require.Equal(t, cause, run(ctx, writerFunc(func(text []byte) (int, error) {
			if bytes.Contains(text, []byte(line)) {
				interrupt(cause)
			}
			return len(text), nil
		}), ""))
	}
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
