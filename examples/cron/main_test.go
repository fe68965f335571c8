package main

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
)

func requirePlot(t *testing.T, redisURL string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, redisURL), "%s", &out)
	for _, want := range []string{
		`[ABC] leads from tick 1\n`,
		`[ABC] dies in tick 5, after the report is sent\n(.*\n)*.*[ABC] leads from tick 5\n(.*\n)*.*tick 5 was interrupted, and asks: was it sent\? true\n`,
		`[ABC] loses its lock in tick 12, before the report is sent\n(.*\n)*.*[ABC] leads from tick 12\n(.*\n)*.*was it sent\? false\n`,
		`22 ticks, each done once, in order`,
	} {
		require.Regexp(t, want, out.String())
	}
}

func TestEveryTickIsDoneOnceOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	requirePlot(t, redistest.Start(t).URL())
}

func TestTheStoryIsToldWithoutAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	requirePlot(t, "")
}

// instancesOn returns instances whose job sends a report.
func instancesOn(t *testing.T, o *outbox, names ...string) []*instance {
	t.Helper()
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	var all []*instance
	for _, name := range names {
		in, err := newInstance(server.Options(), "test:", name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, in.close()) })
		in.job = func(_ context.Context, a once.Attempt, tick time.Time) error {
			if !a.Interrupted || !o.has(tick) { // the attempt before may have sent it
				o.send(tick, in.name)
			}
			return nil
		}
		all = append(all, in)
	}
	return all
}

func TestWithoutALeaderEachTickIsDoneOnceToo(t *testing.T) {
	const ticks = 50
	o := &outbox{}
	all := instancesOn(t, o, "A", "B", "C")
	start := time.Now().Truncate(interval)
	var wg sync.WaitGroup
	for _, in := range all {
		for i := range ticks {
			wg.Go(func() {
				err := in.tick(t.Context(), start.Add(time.Duration(i)*interval))
				for range 100 {
					if err == nil { // a busy server may have no answer in time: a tick may be tried again
						return
					}
					err = in.tick(t.Context(), start.Add(time.Duration(i)*interval))
				}
				t.Errorf("%s, tick %d: %v", in.name, i, err)
			})
		}
	}
	wg.Wait()
	require.Len(t, o.sent, ticks)
	for i := range ticks {
		require.True(t, o.has(start.Add(time.Duration(i)*interval)), "tick %d", i)
	}
}

func TestALateLeaderDoesNotSetTheScheduleBack(t *testing.T) {
	all := instancesOn(t, &outbox{}, "A", "B")
	a, b := all[0], all[1]
	now := time.Now().Truncate(interval)
	late, err := a.leader.Lock(t.Context())
	require.NoError(t, err)
	defer a.leader.Unlock(late)
	require.NoError(t, b.leader.ForceUnlock(t.Context()))
	require.NoError(t, b.leader.Do(t.Context(), func(ctx context.Context) error { return b.note(ctx, now) }))
	require.ErrorIs(t, a.note(late, now.Add(-interval)), relock.ErrLockLost)
	last, err := b.last(t.Context())
	require.NoError(t, err)
	require.True(t, last.Equal(now))
}

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer interrupt()
	require.Equal(t, context.DeadlineExceeded, run(ctx, io.Discard, ""))
}
