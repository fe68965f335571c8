package relock_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// A world is a Redis server and a clock, both of its own, in a testing/synctest bubble. Time stands still while anything
// in the world can run, and jumps to the next timer when nothing can: commands take no time, and a lease of 30 s is over
// in no time. So the times that tests ask for are exact.
//
// What is made by a world is closed when its test ends. A goroutine that is left over then fails the test.
type world struct {
	*miniredis.Miniredis
	t *testing.T

	mu      sync.Mutex
	instant time.Time // of the last command
	busy    int       // commands since the clock last moved
}

// worldEnd is when a world ends by force: a test that waits for what never comes must not spin through fake time for ever.
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
		w := &world{Miniredis: miniredis.NewMiniRedis(), t: t}
		w.ClockTTL(true)
		t.Cleanup(func() {
			// Everything is closed. The library has nothing left now; go-redis goes on dialling for a while.
			require.Zero(t, goroutines("relock.(*"), "goroutines of the library")
			w.Close()
			pass(time.Minute)
		})
		test(t, w)
	})
}

// pass lets time pass, and then lets everything happen that is due by then.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // fake time
	settle()
}

// settle lets everything happen that can happen without time passing.
func settle() { synctest.Wait() }

// member is a process as far as Redis can tell: a Client with a go-redis client and a network of its own.
type member struct {
	*relock.Client
	redis *redis.Client
	net   *redistest.Faults
}

// NewClient returns a Client as a process of its own would have it.
func (w *world) NewClient(options ...relock.Option) *member {
	w.t.Helper()
	return w.NewClientOn(func(*redis.Options) {}, options...)
}

// NewClientOn is NewClient with other go-redis options.
func (w *world) NewClientOn(mod func(*redis.Options), options ...relock.Option) *member {
	w.t.Helper()
	m := &member{}
	m.redis, m.net = w.NewRedis(mod)
	var err error
	m.Client, err = relock.New(m.redis, inLayout(options)...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		require.NoError(w.t, m.Close())
		require.Empty(w.t, relock.Leftovers(m.Client))
	})
	return m
}

// NewRedis returns a go-redis client of the world's server, and its network. It sends nothing by itself, except the
// handshake of a connection.
func (w *world) NewRedis(mod ...func(*redis.Options)) (*redis.Client, *redistest.Faults) {
	faults := redistest.NewFaults()
	w.t.Cleanup(faults.Close)
	faults.On(w.noHotLoop, redistest.Action{})
	o := &redis.Options{
		Addr:        "127.0.0.1:6379", // nobody listens there: the dialer ignores it
		Dialer:      faults.Dialer(func(context.Context, string, string) (net.Conn, error) { return w.Dial() }),
		ReadTimeout: 3 * time.Second,
		// Who waits for a connection does so with a timer that go-redis shares between bubbles, which is fatal.
		PoolSize: 1000,
		// Asking for these, go-redis waits for the reply with a mutex held, and time does not pass for who waits for a mutex.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DisableIdentity:          true, // nothing but the handshake before the first command
	}
	for _, f := range mod {
		f(o)
	}
	rdb := redis.NewClient(o)
	w.t.Cleanup(func() {
		stats := rdb.PoolStats()
		require.Zero(w.t, stats.WaitCount+stats.Timeouts, "nobody may have waited for a connection, see PoolSize")
		_ = rdb.Close()
	})
	return rdb, faults
}

// noHotLoop is called for each command, and matches none. A loop without a pause would hold the clock for ever.
func (w *world) noHotLoop([]string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); !now.Equal(w.instant) {
		w.instant, w.busy = now, 0
	}
	if w.busy++; w.busy == 20_000 {
		debug.SetTraceback("all")
		panic(w.t.Name() + " sends command after command while the clock stands still")
	}
	return false
}

// scripts is how many times this member has called a script since the last net.Reset.
func (m *member) scripts() int { return m.net.Commands("EVALSHA", "EVAL") }

// warm runs every script once, so that what is counted later are calls and not the sending of their text.
func (w *world) warm(m *member) {
	w.t.Helper()
	l := m.NewLock("warm")
	ctx, err := l.Lock(w.t.Context())
	require.NoError(w.t, err)
	_, err = l.State(ctx)
	require.NoError(w.t, err)
	require.NoError(w.t, l.Unlock(ctx))
	m.net.Reset()
}

// base is the key of a lock's hash.
func base(name string) string { return baseKey(name) }

// lease is what is left of a lock's lease on the server, 0 if it is free.
func (w *world) lease(name string) time.Duration {
	w.t.Helper()
	if !w.Exists(base(name)) {
		return 0
	}
	return w.TTL(base(name))
}

// free says whether nobody holds the lock and nobody waits for it, on the server.
func (w *world) free(name string) bool {
	w.t.Helper()
	return !w.Exists(base(name)) && !w.Exists(base(name)+":queue")
}

// requireNothingLeft fails unless the token is all that Redis knows of the lock.
func (w *world) requireNothingLeft(name string) {
	w.t.Helper()
	settle()
	for _, key := range w.Keys() {
		if strings.HasPrefix(key, base(name)) {
			require.True(w.t, isToken(key), "only the token may stay: %q", key)
		}
	}
}

// queue is the holders who wait for a lock, first come first.
func (w *world) queue(name string) []string {
	w.t.Helper()
	if !w.Exists(base(name) + ":queue") {
		return nil
	}
	members, err := w.ZMembers(base(name) + ":queue") // by score
	require.NoError(w.t, err)
	for i, member := range members {
		hold, _, _ := strings.Cut(member, "|")
		members[i] = hold[:strings.LastIndexByte(hold, ':')]
	}
	return members
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

// begin starts a call and returns when it has ended or is waiting for something.
func begin(t *testing.T, ctx context.Context, lock locking) *attempt { //nolint:revive // t comes first in a test helper
	t.Helper()
	a := &attempt{t: t, begun: time.Now(), done: make(chan struct{})}
	t.Cleanup(func() { runtime.KeepAlive(a) }) // and what it has entered, as keep
	go func() {
		defer close(a.done)
		a.ctx, a.err = lock(ctx)
		a.ended = time.Now()
	}()
	settle()
	return a
}

// tryFor is TryLockFor with its wait.
func tryFor(l *relock.Lock, wait time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
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

// patience is how long a test waits for what should happen.
const patience = 2 * time.Hour

func (a *attempt) await() {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		require.FailNow(a.t, "the call does not return")
	}
}

// result waits for the call to return.
func (a *attempt) result() (context.Context, error) {
	a.t.Helper()
	a.await()
	return a.ctx, a.err
}

// section waits for the call to enter.
func (a *attempt) section() context.Context {
	a.t.Helper()
	ctx, err := a.result()
	require.NoError(a.t, err)
	return ctx
}

// took is how long the call lasted.
func (a *attempt) took() time.Duration {
	a.t.Helper()
	a.await()
	return a.ended.Sub(a.begun)
}

// enter locks, for sections that are not what a test is about.
func enter(t *testing.T, ctx context.Context, l *relock.Lock) context.Context { //nolint:revive // t comes first in a test helper
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	keep(t, section)
	return section
}

// keep refers to a section until its test ends: one that a test does not mention any more would be a leak, and not be
// renewed.
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

// goroutines counts those of this bubble with a function in their stack, once those that can go on have done so. (One of the test
// before may be about to end.)
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
		if bubble == "" { // the first one is ours
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

// recorder notes what hooks are told, in order, and when.
type recorder struct {
	mu     sync.Mutex
	events []recorded
}

type recorded struct {
	at    time.Time
	event any // the argument of the hook
}

// Hooks are the hooks that record.
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

// all is what was recorded so far, in order.
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

// eventsOf is what was recorded of one kind, in order.
func eventsOf[E any](r *recorder) []E {
	var events []E
	for _, e := range r.all() {
		if event, ok := e.(E); ok {
			events = append(events, event)
		}
	}
	return events
}

// timesOf is when that was.
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

// logbook is a slog handler that keeps what is logged.
type logbook struct {
	least slog.Level

	mu    sync.Mutex
	lines []logLine
}

// logger is a logger that writes to the book.
func (b *logbook) logger() *slog.Logger { return slog.New(b) }

type logLine struct {
	level slog.Level
	msg   string
	attrs map[string]any
}

// Enabled makes it a slog.Handler.
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

// about is the lines whose message contains text.
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
