package events_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
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
