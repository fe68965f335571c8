package stage

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

// A Recorder notes the events of hooks, in order, and their times.
type Recorder struct {
	mu     sync.Mutex
	events []recorded
}

type recorded struct {
	at    time.Time
	event any // the argument of the hook
}

// Hooks returns the hooks that record.
func (r *Recorder) Hooks() event.Hooks {
	return event.Hooks{
		AcquireStarted:  func(e event.AcquireStarted) { r.Add(e) },
		AcquireFinished: func(e event.AcquireFinished) { r.Add(e) },
		Queued:          func(e event.Queued) { r.Add(e) },
		Released:        func(e event.Released) { r.Add(e) },
		Renewed:         func(e event.Renewed) { r.Add(e) },
		Lost:            func(e event.Lost) { r.Add(e) },
		Leaked:          func(e event.Leaked) { r.Add(e) },
		Reconnected:     func(e event.Reconnected) { r.Add(e) },
		Retried:         func(e event.Retried) { r.Add(e) },
		Wanted:          func(e event.Wanted) { r.Add(e) },
		Closed:          func(e event.Closed) { r.Add(e) },
		Dropped:         func(e event.Dropped) { r.Add(e) },
	}
}

// Add notes an event.
func (r *Recorder) Add(e any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, recorded{time.Now(), e})
}

// All returns the events so far, in order.
func (r *Recorder) All() []any {
	Settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	events := make([]any, len(r.events))
	for i, e := range r.events {
		events[i] = e.event
	}
	return events
}

// Kinds is All without the fields: "AcquireStarted", "AcquireFinished", ...
func (r *Recorder) Kinds() []string {
	var kinds []string
	for _, e := range r.All() {
		kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", e), "event."))
	}
	return kinds
}

// EventsOf returns the events of one kind, in order.
func EventsOf[E any](r *Recorder) []E {
	var events []E
	for _, e := range r.All() {
		if e, ok := e.(E); ok {
			events = append(events, e)
		}
	}
	return events
}

// TimesOf returns the times of the events of one kind, in order.
func TimesOf[E any](r *Recorder) []time.Time {
	Settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	var times []time.Time
	for _, e := range r.events {
		if _, ok := e.event.(E); ok {
			times = append(times, e.at)
		}
	}
	return times
}

// Story runs the library through everything that calls a hook in fake time.
func Story(t *testing.T, w *World, m *Member) {
	t.Helper()
	begun := time.Now()
	l := m.NewLock("a")
	outer := w.Enter(t.Context(), l)
	inner := w.Enter(outer, l)
	waiting := w.Start(t.Context(), l)
	_, err := l.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	w.Leave(inner, l)
	Pass(relock.DefaultTTL)
	require.NoError(t, outer.Err())
	w.Leave(outer, l)
	next := waiting.Section()
	require.Equal(t, relock.DefaultTTL, time.Since(begun))
	w.Store.Lose("a")
	took, cause := w.Ends(next)
	require.LessOrEqual(t, took, relock.DefaultTTL/3)
	require.ErrorIs(t, cause, relock.ErrLockLost)
	require.ErrorIs(t, l.Unlock(next), relock.ErrLockLost)
}

// Each makes every hook call f.
func Each(f func()) event.Hooks {
	return event.Hooks{
		AcquireStarted:  func(event.AcquireStarted) { f() },
		AcquireFinished: func(event.AcquireFinished) { f() },
		Queued:          func(event.Queued) { f() },
		Released:        func(event.Released) { f() },
		Renewed:         func(event.Renewed) { f() },
		Lost:            func(event.Lost) { f() },
		Leaked:          func(event.Leaked) { f() },
		Reconnected:     func(event.Reconnected) { f() },
		Retried:         func(event.Retried) { f() },
		Wanted:          func(event.Wanted) { f() },
		Closed:          func(event.Closed) { f() },
		Dropped:         func(event.Dropped) { f() },
	}
}

// AwaitLeaks lets the watchdog look again and again, until it has reported so many leaks.
func AwaitLeaks(t *testing.T, n int, reported func() int) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if Pass(relock.DefaultTTL / 3); reported() >= n {
			break
		}
	}
	require.Equal(t, n, reported())
}

// LeaksOf counts the leaks that a recorder knows of.
func LeaksOf(r *Recorder) func() int { return func() int { return len(EventsOf[event.Leaked](r)) } }

// DropSection locks, and drops the section.
func DropSection(t *testing.T, ctx context.Context, l *relock.Lock) {
	t.Helper()
	_, err := l.Lock(ctx)
	require.NoError(t, err)
}
