// Package events runs callbacks of the user, and log calls, away from the code with the events.
package events

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
)

// Backlog is the largest number of waiting calls.
const Backlog = 4096

// Worker runs calls one after another, in order, in one goroutine that starts with the first call.
// A call that is slow, blocks or panics holds up only later calls. Calls beyond the backlog are
// dropped, and the number of dropped calls is reported.
type Worker struct {
	queue  chan func()
	logger *slog.Logger
	onDrop func(dropped int)

	// Used by the goroutine only.
	missed int // dropped calls that are not reported yet
	before int // calls to run before the report

	mu      sync.Mutex
	dropped int // calls that the goroutine has not moved to missed
	started bool
	closed  bool
	done    chan struct{}
}

// New returns a Worker. onDrop may be nil, and runs like any other call.
func New(logger *slog.Logger, onDrop func(dropped int)) *Worker {
	return &Worker{
		queue: make(chan func(), Backlog), logger: logger, onDrop: onDrop, done: make(chan struct{}),
	}
}

// Emit hands one call to the goroutine, and never blocks.
func (w *Worker) Emit(call func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if !w.started {
		w.started = true
		go w.run()
	}
	select {
	case w.queue <- call:
	default:
		w.dropped++
	}
}

// Log emits a log record, or nothing if l is nil. Log does not ask the handler for its level:
// Enabled is code of the user too, so the goroutine calls Enabled, as a part of LogAttrs.
func (w *Worker) Log(l *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	if l != nil {
		w.Emit(func() { l.LogAttrs(context.Background(), level, msg, attrs...) })
	}
}

// Survive runs a call of the user's code in the goroutine of its caller, and logs a panic to l.
func (w *Worker) Survive(l *slog.Logger, call func()) {
	defer func() {
		if r := recover(); r != nil {
			w.Panicked(l, "relock: a hook panicked", r)
		}
	}()
	call()
}

// Panicked logs the reason of a panic, with the stack of the goroutine.
func (w *Worker) Panicked(l *slog.Logger, msg string, reason any) {
	w.Log(l, slog.LevelError, msg, slog.Any("panic", reason), slog.String("stack", string(debug.Stack())))
}

// run ends after Close, when all earlier calls have run.
func (w *Worker) run() {
	ended := false
	defer func() {
		if ended {
			close(w.done)
		} else {
			go w.run() // a call has ended the goroutine, as the FailNow of a test does
		}
	}()
	for {
		w.reportDropped()
		call, more := <-w.queue
		if !more {
			break
		}
		w.before--
		w.call(call)
	}
	ended = true
}

// reportDropped reports dropped calls when all calls from before the drop have run, as the receiver
// forgets what these calls have reported. An overload is reported about once for each backlog.
func (w *Worker) reportDropped() {
	for {
		if w.missed == 0 {
			w.mu.Lock()
			w.missed, w.before, w.dropped = w.dropped, len(w.queue), 0
			w.mu.Unlock()
		}
		if w.missed == 0 || w.before > 0 {
			return
		}
		missed := w.missed
		w.missed = 0
		if w.logger != nil {
			w.call(func() {
				w.logger.Warn("relock: events dropped, as too many waited for the hooks", "events", missed)
			})
		}
		if w.onDrop != nil {
			w.call(func() { w.onDrop(missed) })
		}
	}
}

// call runs one call, and survives a panic of the user's code.
func (w *Worker) call(call func()) {
	defer func() {
		if r := recover(); r != nil && w.logger != nil {
			defer func() { _ = recover() }() // the logger may be what panics
			w.logger.Error("relock: a hook panicked", "panic", r, "stack", string(debug.Stack()))
		}
	}()
	call()
}

// Close drops later calls, and waits for earlier calls, at most for limit.
func (w *Worker) Close(limit time.Duration) {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.queue)
		if !w.started {
			close(w.done)
		}
	}
	w.mu.Unlock()
	lifetime.Sleep(w.done, limit)
}
