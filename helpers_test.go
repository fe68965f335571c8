package relock_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// This file and link_test.go are the vocabulary of the tests in fake time.

// A world is a store in memory and a clock in a testing/synctest bubble. Time stands still while
// anything in the world can run, and jumps to the next timer when nothing can. Commands take no
// time, so tests ask for exact times.
//
// The end of a test closes all clients of its world. A goroutine that is left over fails the test.
type world struct {
	*mem.Store
	t *testing.T
}

// worldEnd is the time at which a world ends by force. A test that waits for ever would spin
// through fake time.
const worldEnd = 10 * 365 * 24 * time.Hour

// fake runs a test in a world of its own.
func fake(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		end := time.AfterFunc(worldEnd, func() {
			debug.SetTraceback("all")
			panic(t.Name() + " waits for something that never comes")
		})
		t.Cleanup(func() { end.Stop() })
		t.Cleanup(func() { require.Zero(t, goroutines("go-relock/relock.(*"), "goroutines of the library") })
		test(t, &world{Store: mem.New(), t: t})
	})
}

// pass lets time pass, and lets everything happen that is due.
func pass(d time.Duration) {
	<-time.After(d)
	settle()
}

// settle lets everything happen that can happen without time passing.
func settle() { synctest.Wait() }

// member is a process, as a store sees processes: a Client with a link of its own.
type member struct {
	*relock.Client
	link *link
}

// NewClient returns a Client as a process of its own would have it.
func (w *world) NewClient(options ...relock.Option) *member {
	w.t.Helper()
	m := &member{link: newLink(w.Store)}
	var err error
	m.Client, err = relock.Open(m.link, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		m.link.heal()
		require.NoError(w.t, m.Close())
	})
	return m
}

// look reads a lock in the store.
func (w *world) look(name string) store.State {
	w.t.Helper()
	state, err := w.Look(context.Background(), name)
	require.NoError(w.t, err)
	return state
}

// owner returns the hold that has the lock in the store; empty if nobody has the lock.
func (w *world) owner(name string) string { return string(w.look(name).Owner) }

// count returns the count of the hold that has the lock in the store.
func (w *world) count(name string) int { return w.look(name).Count }

// lease returns what is left of a lock's lease in the store; 0 if the lock is free.
func (w *world) lease(name string) time.Duration { return w.look(name).TTL }

// waiters returns how many holds queue for a lock in the store.
func (w *world) waiters(name string) int { return w.look(name).Waiters }

// free says whether nobody has the lock in the store, and nobody waits.
func (w *world) free(name string) bool { return w.owner(name) == "" && w.waiters(name) == 0 }

// requireFree fails unless nobody has the lock in the store, and nobody waits.
func (w *world) requireFree(names ...string) {
	w.t.Helper()
	settle()
	for _, name := range names {
		require.Empty(w.t, w.owner(name), "the owner of %s", name)
		require.Zero(w.t, w.waiters(name), "the waiters of %s", name)
	}
}

// attempt is a call of Lock, or the like, in a goroutine of its own.
type attempt struct {
	t     *testing.T
	begun time.Time
	done  chan struct{}

	// Set when done is closed.
	ctx   context.Context
	err   error
	ended time.Time
}

// locking is Lock or TryLock, or TryLockFor with its wait bound to it.
type locking func(context.Context) (context.Context, error)

// begin starts a call, and returns when the call has ended or waits for something.
func begin(t *testing.T, ctx context.Context, lock locking) *attempt { //nolint:revive // t comes first in a test helper
	t.Helper()
	a := &attempt{t: t, begun: time.Now(), done: make(chan struct{})}
	t.Cleanup(func() { runtime.KeepAlive(a) }) // as keep
	go func() {
		defer close(a.done)
		a.ctx, a.err = lock(ctx)
		a.ended = time.Now()
	}()
	settle()
	return a
}

// tryFor returns TryLockFor with its wait.
func tryFor(l *relock.Lock, wait time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// unlock returns Unlock, for begin.
func unlock(l *relock.Lock) locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) }
}

// waits says whether the call has not returned yet.
func (a *attempt) waits() bool {
	settle()
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// patience is how long a test waits for a thing that should happen.
const patience = 2 * time.Hour

func (a *attempt) await() {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		require.FailNow(a.t, "the call does not return")
	}
}

// result waits until the call returns.
func (a *attempt) result() (context.Context, error) {
	a.t.Helper()
	a.await()
	return a.ctx, a.err
}

// failure waits until the call returns, and returns its error.
func (a *attempt) failure() error {
	a.t.Helper()
	a.await()
	return a.err
}

// section waits until the call has entered.
func (a *attempt) section() context.Context {
	a.t.Helper()
	require.NoError(a.t, a.failure())
	return a.ctx
}

// took returns how long the call lasted.
func (a *attempt) took() time.Duration {
	a.t.Helper()
	a.await()
	return a.ended.Sub(a.begun)
}

// enter locks.
func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context { //nolint:revive // t comes first in a test helper
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	keep(t, section)
	return section
}

// keep refers to a section until its test ends. A section that the test does not mention any more
// would be a leak, and not be renewed.
func keep(t *testing.T, section context.Context) { //nolint:revive // t comes first in a test helper
	t.Helper()
	t.Cleanup(func() { runtime.KeepAlive(section) })
}

// ends waits until a context ends, and returns how long that took, and the cause.
func ends(t *testing.T, ctx context.Context) (time.Duration, error) { //nolint:revive // t comes first in a test helper
	t.Helper()
	begun := time.Now()
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		require.FailNow(t, "the context does not end")
	}
	return time.Since(begun), context.Cause(ctx)
}

// holderOf returns the holder of a section.
func holderOf(t *testing.T, section context.Context) relock.Holder { //nolint:revive // t comes first in a test helper
	t.Helper()
	holder, ok := relock.HolderFrom(section)
	require.True(t, ok, "the context is in no open section")
	return holder
}

// margin is by how much the deadline of a lease is earlier than its end.
func margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// goroutines counts the goroutines of this bubble with a function in their stack, once all have run
// as far as they can.
func goroutines(function string) int {
	settle()
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	count, bubble := 0, ""
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		_, in, _ := strings.Cut(header, "synctest bubble ")
		if bubble == "" { // the first goroutine is ours
			bubble = in
		}
		if bubble == "" {
			panic("no bubble in " + header)
		}
		if in == bubble {
			count += strings.Count(stack, function)
		}
	}
	return count
}

// recorder notes the events of hooks, in order, and their times.
type recorder struct {
	mu     sync.Mutex
	events []recorded
}

type recorded struct {
	at    time.Time
	event any // the argument of the hook
}

// Hooks returns the hooks that record.
func (r *recorder) Hooks() relock.Hooks {
	return relock.Hooks{
		AcquireStarted:  func(e relock.AcquireStarted) { r.add(e) },
		AcquireFinished: func(e relock.AcquireFinished) { r.add(e) },
		Queued:          func(e relock.Queued) { r.add(e) },
		Released:        func(e relock.Released) { r.add(e) },
		Renewed:         func(e relock.Renewed) { r.add(e) },
		Lost:            func(e relock.Lost) { r.add(e) },
		Leaked:          func(e relock.Leaked) { r.add(e) },
		Reconnected:     func(e relock.Reconnected) { r.add(e) },
		Retried:         func(e relock.Retried) { r.add(e) },
		Closed:          func(e relock.Closed) { r.add(e) },
		Dropped:         func(e relock.Dropped) { r.add(e) },
	}
}

func (r *recorder) add(event any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, recorded{time.Now(), event})
}

// all returns the events so far, in order.
func (r *recorder) all() []any {
	settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	events := make([]any, len(r.events))
	for i, e := range r.events {
		events[i] = e.event
	}
	return events
}

// kinds is all without the fields: "AcquireStarted", "AcquireFinished", ...
func (r *recorder) kinds() []string {
	var kinds []string
	for _, e := range r.all() {
		kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", e), "relock."))
	}
	return kinds
}

// eventsOf returns the events of one kind, in order.
func eventsOf[E any](r *recorder) []E {
	var events []E
	for _, e := range r.all() {
		if event, ok := e.(E); ok {
			events = append(events, event)
		}
	}
	return events
}

// timesOf returns the times of the events of one kind, in order.
func timesOf[E any](r *recorder) []time.Time {
	settle()
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

// logbook is a slog handler that keeps the records.
type logbook struct {
	least slog.Level

	mu    sync.Mutex
	lines []logLine
}

// logger returns a logger that writes to the book.
func (b *logbook) logger() *slog.Logger { return slog.New(b) }

type logLine struct {
	level slog.Level
	msg   string
	attrs map[string]any
}

// Enabled makes a logbook a slog.Handler.
func (b *logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= b.least }

// Handle keeps a record.
func (b *logbook) Handle(_ context.Context, record slog.Record) error {
	line := logLine{level: record.Level, msg: record.Message, attrs: map[string]any{}}
	record.Attrs(func(a slog.Attr) bool {
		line.attrs[a.Key] = a.Value.Any()
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
	return nil
}

// WithAttrs is not used by the library.
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler { return b }

// WithGroup is not used by the library.
func (b *logbook) WithGroup(string) slog.Handler { return b }

// about returns the lines whose message contains text.
func (b *logbook) about(text string) []logLine {
	settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []logLine
	for _, line := range b.lines {
		if strings.Contains(line.msg, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
