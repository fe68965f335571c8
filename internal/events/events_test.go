package events_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/events"
)

// limit is how long these tests let Close wait.
const limit = 5 * time.Second

// bubble runs a test in fake time with a Worker that is closed at the end.
func bubble(t *testing.T, test func(t *testing.T, w *events.Worker, log *bytes.Buffer, drops func() []int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		var dropped []int
		w := events.New(slog.New(slog.NewTextHandler(&log, nil)), func(n int) {
			mu.Lock()
			defer mu.Unlock()
			dropped = append(dropped, n)
		})
		test(t, w, &log, func() []int {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(dropped)
		})
		w.Close(limit)
	})
}

func TestCallsRunInOrderInOneGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, _ *bytes.Buffer, _ func() []int) {
		var ran []int
		for i := range 100 {
			w.Emit(func() { <-time.After(time.Millisecond); ran = append(ran, i) })
		}
		start := time.Now()
		w.Close(limit)
		require.Equal(t, 100*time.Millisecond, time.Since(start), "Close waits for all calls before it")
		require.Len(t, ran, 100)
		require.True(t, slices.IsSorted(ran))
	})
}

func TestEmitNeverBlocks(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, _ *bytes.Buffer, _ func() []int) {
		w.Emit(func() { <-time.After(time.Second) })
		start := time.Now()
		for range 3 * events.Backlog {
			w.Emit(func() {})
		}
		require.Zero(t, time.Since(start))
	})
}

func TestAWorkerWithoutCallsHasNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a goroutine that is left over fails the bubble
		events.New(nil, nil)
	})
	bubble(t, func(t *testing.T, w *events.Worker, _ *bytes.Buffer, _ func() []int) {
		start := time.Now()
		w.Close(limit)
		require.Zero(t, time.Since(start))
	})
}

func TestCallsAfterCloseAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, log *bytes.Buffer, drops func() []int) {
		w.Close(limit)
		w.Emit(func() { t.Error("a call after Close has run") })
		w.Log(slog.New(slog.NewTextHandler(log, nil)), slog.LevelError, "late")
		w.Close(limit)
		synctest.Wait()
		require.Empty(t, log.String())
		require.Empty(t, drops())
	})
}

func TestCloseWaitsNoLongerThanItsLimit(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, _ *bytes.Buffer, _ func() []int) {
		end := make(chan struct{})
		w.Emit(func() { <-end })
		for range 2 {
			start := time.Now()
			w.Close(limit)
			require.Equal(t, limit, time.Since(start))
		}
		close(end)
		start := time.Now()
		w.Close(limit)
		require.Zero(t, time.Since(start))
	})
}

func TestACallThatEndsBadlyHoldsUpNobody(t *testing.T) {
	for name, test := range map[string]struct {
		end func()
		log string
	}{
		"panic":  {func() { panic("oops") }, `level=ERROR msg="relock: a hook panicked" panic=oops`},
		"Goexit": {runtime.Goexit, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *events.Worker, log *bytes.Buffer, drops func() []int) {
				ran := 0
				for range 5 {
					w.Emit(test.end)
					w.Emit(func() { ran++ })
				}
				w.Close(limit)
				require.Equal(t, 5, ran)
				require.Equal(t, test.log != "", strings.Count(log.String(), test.log) == 5, log.String())
				require.Empty(t, drops())
			})
		})
	}
}

func TestCallsBeyondTheBacklogAreDroppedAndCounted(t *testing.T) {
	const more = 100
	bubble(t, func(t *testing.T, w *events.Worker, log *bytes.Buffer, drops func() []int) {
		blocked := make(chan struct{})
		ran := 0
		w.Emit(func() { <-blocked })
		synctest.Wait() // the goroutine has the first call, and the queue is empty
		for range events.Backlog + more {
			w.Emit(func() {
				ran++
				require.Empty(t, drops(), "a drop is told after all calls from before the drop")
			})
		}
		close(blocked)
		w.Close(limit)
		require.Equal(t, events.Backlog, ran)
		require.Equal(t, []int{more}, drops())
		require.Contains(t, log.String(), `level=WARN msg="relock: events dropped, as too many waited for the hooks" events=100`)
	})
}

func TestDropsAreToldWhileTheOverloadLasts(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, _ *bytes.Buffer, drops func() []int) {
		const all = 7 * events.Backlog
		ran := 0
		for range all {
			w.Emit(func() { <-time.After(2 * time.Millisecond); ran++ })
			<-time.After(time.Millisecond)
		}
		synctest.Wait()
		require.Len(t, drops(), 2, "once for each backlog that has run, and not for each drop")
		w.Close(time.Hour)
		dropped := 0
		for _, n := range drops() {
			dropped += n
		}
		require.Equal(t, all, ran+dropped)
	})
}

func TestWhoIsToldOfDropsMayEndBadly(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("oops") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told, ran := 0, 0
				w := events.New(nil, func(int) { told++; end() })
				block := make(chan struct{})
				w.Emit(func() { <-block })
				synctest.Wait() // the goroutine has the first call, and the queue is empty
				for range 2 * events.Backlog {
					w.Emit(func() { ran++ })
				}
				close(block)
				synctest.Wait()
				w.Emit(func() { ran++ })
				w.Close(limit)
				require.Equal(t, 1, told)
				require.GreaterOrEqual(t, ran, events.Backlog)
			})
		})
	}
}

// handler is a slog.Handler with code of its user's in both methods.
type handler struct{ enabled, handle func() }

func (h handler) Enabled(context.Context, slog.Level) bool  { h.enabled(); return true }
func (h handler) Handle(context.Context, slog.Record) error { h.handle(); return nil }
func (h handler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h handler) WithGroup(string) slog.Handler             { return h }

func TestALoggerThatEndsBadlyHoldsUpNobody(t *testing.T) {
	quiet := func() {}
	oops := func() { panic("oops") }
	for name, h := range map[string]handler{
		"Enabled panics": {oops, quiet},
		"Handle panics":  {quiet, oops},
		"Enabled exits":  {runtime.Goexit, quiet},
		"Handle exits":   {quiet, runtime.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := slog.New(h)
				w := events.New(l, nil)
				var ran atomic.Int64
				for range 3 {
					w.Log(l, slog.LevelInfo, "a record")
					w.Emit(func() { ran.Add(1) })
					w.Emit(oops) // is logged, by the same logger
				}
				w.Close(limit)
				require.EqualValues(t, 3, ran.Load())
			})
		})
	}
}

func TestLogLeavesTheLevelToTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T, w *events.Worker, log *bytes.Buffer, _ func() []int) {
		l := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		w.Log(l, slog.LevelInfo, "too little")
		w.Log(l, slog.LevelWarn, "enough", slog.Int("n", 1))
		w.Log(nil, slog.LevelError, "to nobody")
		w.Close(limit)
		require.NotContains(t, log.String(), "too little")
		require.NotContains(t, log.String(), "nobody")
		require.Contains(t, log.String(), "msg=enough n=1")
	})
}
