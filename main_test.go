package relock_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// This file is what the tests on a real server share: faults_test.go, waiting_test.go, crash_test.go, stress_test.go.

// soon bounds what takes a few round trips. It leaves room for a busy machine under the race detector; what a test is
// about has a bound of its own.
const soon = 3 * time.Second

// promptly is how long a call may go on after its context is done.
const promptly = 50 * time.Millisecond

// arena is the surroundings of one test: a server, and a view of it from outside. When the test ends, and all its peers
// are closed, nothing may be left: no key but tokens, no subscription, no goroutine of the library.
type arena struct {
	t      *testing.T
	server *redistest.Server
	plain  *redis.Client // has no faults, and is not in the way of any
	// tidyWithin bounds how long it may take until nothing is left. A test with leases that nobody gives back raises it.
	tidyWithin time.Duration
	late       *atomic.Int64 // the longest that this process was late for anything, in nanoseconds
	figures    *figures
}

// figures is the longest that a test had to wait for each kind of thing, with the bound that it had. They are logged at
// its end.
type figures struct {
	mu      sync.Mutex
	longest map[string]figure
}

type figure struct{ took, limit time.Duration }

func (f *figures) add(what string, took, limit time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.longest == nil {
		f.longest = map[string]figure{}
	}
	if took > f.longest[what].took {
		f.longest[what] = figure{took, limit}
	}
}

func (f *figures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(f.longest)) {
		l := f.longest[what]
		parts = append(parts, fmt.Sprintf("%s %s (at most %s)", what, l.took.Round(10*time.Microsecond), l.limit))
	}
	return strings.Join(parts, ", ")
}

// onShared is an arena on the server of the whole test binary, emptied, with the scripts loaded.
func onShared(t *testing.T) *arena {
	t.Helper()
	return newArena(t, redistest.Shared(t))
}

// onOwn is an arena on a server of its own, for a test that pauses, kills or configures it.
func onOwn(t *testing.T, args ...string) *arena {
	t.Helper()
	return newArena(t, redistest.Start(t, args...))
}

// onClock is an arena on a server with a clock of its own.
func onClock(t *testing.T) (*arena, *redistest.Clock) {
	t.Helper()
	server, clock := redistest.StartWithClock(t)
	return newArena(t, server), clock
}

func newArena(t *testing.T, server *redistest.Server) *arena {
	t.Helper()
	w := bareArena(t, soon)
	w.server = server
	w.plain = server.Client(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
	t.Cleanup(func() {
		if !t.Failed() { // what has failed half-way leaves what it likes
			w.requireTidy()
		}
	})
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
	w.loadScripts()
	return w
}

// bareArena is an arena without a server.
func bareArena(t *testing.T, tidyWithin time.Duration) *arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	w := &arena{t: t, tidyWithin: tidyWithin, late: new(atomic.Int64), figures: new(figures)}
	t.Cleanup(func() {
		t.Logf("longest: %s; this process was late by up to %s", w.figures, time.Duration(w.late.Load()))
	})
	t.Cleanup(w.measure())
	return w
}

// measure notes how late this process is because the machine is busy, until the function that it returns is called.
func (w *arena) measure() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			const beat = 5 * time.Millisecond
			began := time.Now()
			select {
			case <-time.After(beat):
				w.late.Store(max(w.late.Load(), int64(time.Since(began)-beat)))
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// within waits for done and says whether it came within limit. What the whole process was late is not held against it:
// the bounds are about the library, not about the machine.
func (w *arena) within(limit time.Duration, done <-chan struct{}) bool {
	for _, d := range []func() time.Duration{
		func() time.Duration { return limit },
		func() time.Duration { return time.Duration(w.late.Load()) },
	} {
		select {
		case <-done:
			return true
		default:
		}
		select {
		case <-done:
			return true
		case <-time.After(d()):
		}
	}
	return false
}

// in is the same surroundings for a subtest.
func (w *arena) in(t *testing.T) *arena {
	t.Helper()
	sub := *w
	sub.t = t
	return &sub
}

// requireTidy waits until nothing is left in Redis that a lock in use would leave.
func (w *arena) requireTidy() {
	w.t.Helper()
	var left []string
	redistest.Eventually(w.t, w.tidyWithin, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.t, w.plain), isToken)
		left = append(left, redistest.Subscriptions(w.t, w.plain)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens; keys or subscriptions left: %q", &left)
}

// peer is one process as Redis sees it: a relock client on a go-redis client of its own, with faults on its wire.
type peer struct {
	*relock.Client
	rdb    *redis.Client
	faults *redistest.Faults
}

// peer makes a client that gives up a silent connection soon.
func (w *arena) peer(options ...relock.Option) *peer {
	w.t.Helper()
	return w.peerOn(func(*redis.Options) {}, options...)
}

// peerOn is peer with other go-redis options.
func (w *arena) peerOn(mod func(*redis.Options), options ...relock.Option) *peer {
	w.t.Helper()
	p := &peer{faults: redistest.NewFaults()}
	w.t.Cleanup(p.faults.Close)
	p.rdb = w.server.Client(func(o *redis.Options) {
		o.Dialer = p.faults.Dialer(nil)
		o.ReadTimeout = 150 * time.Millisecond
		o.WriteTimeout = 150 * time.Millisecond
		o.DialTimeout = 500 * time.Millisecond
		o.DialerRetries = 1
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.rdb, inLayout(options)...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		p.faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.t, p.Close())
		require.Less(w.t, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
		require.Empty(w.t, relock.Leftovers(p.Client))
	})
	return p
}

// connect makes n connections that are ready for commands.
func (p *peer) connect(t testing.TB, n int) {
	t.Helper()
	connectAll(t, p.rdb, n)
}

func connectAll(t testing.TB, rdb *redis.Client, n int) {
	t.Helper()
	conns := make([]*redis.Conn, n)
	for i := range conns {
		conns[i] = rdb.Conn()
		require.NoError(t, conns[i].Ping(t.Context()).Err())
	}
	for _, c := range conns {
		require.NoError(t, c.Close()) // back into the pool
	}
}

// enter locks, and fails the test if that fails or takes longer than limit. The wait itself has no deadline, so that a
// lock that comes late is told from one that never comes.
func (w *arena) enter(ctx context.Context, l *relock.Lock, limit time.Duration) context.Context {
	w.t.Helper()
	return w.start(ctx, l).in(limit)
}

// leave unlocks, and fails the test if that fails or takes longer than limit.
func (w *arena) leave(ctx context.Context, l *relock.Lock, limit time.Duration) {
	w.t.Helper()
	require.NoError(w.t, w.call(limit, func() error { return l.Unlock(ctx) }))
}

// call runs f and fails the test if it does not come back within limit.
func (w *arena) call(limit time.Duration, f func() error) error {
	w.t.Helper()
	var err error
	done := make(chan struct{})
	begin := time.Now()
	go func() { defer close(done); err = f() }()
	if !w.within(limit, done) {
		w.t.Fatalf("the call has not come back after %s", limit)
	}
	w.figures.add("call", time.Since(begin), limit)
	return err
}

// asking is a Lock on its way in a goroutine.
type asking struct {
	w    *arena
	lock *relock.Lock
	done chan struct{}

	// readable once done is closed
	section context.Context
	err     error
	at      time.Time
}

// start begins to lock.
func (w *arena) start(ctx context.Context, l *relock.Lock) *asking {
	a := &asking{w: w, lock: l, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.section, a.err = l.Lock(ctx)
		a.at = time.Now()
	}()
	return a
}

// in waits until the lock is entered, and fails the test if it is not within limit from now.
func (a *asking) in(limit time.Duration) context.Context {
	a.w.t.Helper()
	require.NoError(a.w.t, a.out(limit))
	return a.section
}

// out waits until Lock returns, whatever the outcome.
func (a *asking) out(limit time.Duration) error {
	a.w.t.Helper()
	begin := time.Now()
	if !a.w.within(limit, a.done) {
		a.w.t.Fatalf("Lock of %q has not come back after %s", a.lock.Name(), limit)
	}
	what := "entry"
	if a.err != nil {
		what = "refusal"
	}
	a.w.figures.add(what, a.at.Sub(begin), limit)
	return a.err
}

// waiting says whether Lock has not returned.
func (a *asking) waiting() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// lost waits until the section's context has ended, and fails the test if it does not say that the lock was lost.
func (w *arena) lost(section context.Context, limit time.Duration) relock.LostError {
	w.t.Helper()
	begin := time.Now()
	if !w.within(limit, section.Done()) {
		w.t.Fatalf("the holder has not been told after %s", limit)
	}
	w.figures.add("notice of loss", time.Since(begin), limit)
	require.ErrorIs(w.t, context.Cause(section), relock.ErrLockLost)
	var lost *relock.LostError
	require.ErrorAs(w.t, context.Cause(section), &lost)
	return *lost
}

// redissonLayout is set while a test runs that is to show that what it shows holds in Redisson's layout too, see
// redisson_suite_test.go. No test of this package is parallel.
var redissonLayout bool

// localPass is set while a test runs that is to show that what it shows holds WithLocalPass too, see line_test.go.
var localPass bool

// namedTest is a test that is run once more in some other way.
type namedTest struct {
	name string
	test func(*testing.T)
}

// onceMore runs tests while way is set.
func onceMore(t *testing.T, way *bool, tests []namedTest) {
	t.Helper()
	*way = true
	defer func() { *way = false }()
	for _, c := range tests {
		t.Run(c.name, c.test)
	}
}

// inLayout is the options of a client in the layout that is tested: Redisson's fenced lock is the one with tokens.
func inLayout(options []relock.Option) []relock.Option {
	if redissonLayout {
		return append([]relock.Option{relock.WithRedissonLayout(), relock.WithRedissonFencing()}, options...)
	}
	if localPass {
		return append([]relock.Option{relock.WithLocalPass(0, 0)}, options...)
	}
	return options
}

// baseKey is the key of a lock with the default prefix.
func baseKey(name string) string {
	if redissonLayout {
		return name
	}
	return relock.DefaultPrefix + "{" + name + "}"
}

// isToken says whether a key is a token counter: the only kind that may stay.
func isToken(key string) bool {
	return strings.HasSuffix(key, ":token") || strings.HasPrefix(key, "redisson_lock_token:")
}

// owner is what Redis has under a lock's name: the hold and its count; "" and 0 if it is free.
func (w *arena) owner(name string) (hold string, count int) {
	w.t.Helper()
	fields, err := w.plain.HGetAll(context.Background(), baseKey(name)).Result()
	require.NoError(w.t, err)
	for field, value := range fields {
		if field == "step" || field == "relock:step" || field == "next" || field == "token" {
			continue
		}
		require.Empty(w.t, hold, "one hold owns the lock: %v", fields)
		hold = field
		count, err = strconv.Atoi(value)
		require.NoError(w.t, err)
	}
	return hold, count
}

// requireCount says how often Redis thinks that the lock is held.
func (w *arena) requireCount(name string, want int) {
	w.t.Helper()
	_, count := w.owner(name)
	require.Equal(w.t, want, count, "the count of %q in Redis", name)
}

// waiters is the length of a lock's queue. Redisson's layout has none: there it is the number of clients that hear the lock.
func (w *arena) waiters(name string) int {
	w.t.Helper()
	if redissonLayout {
		channel := "redisson_lock__channel:{" + name + "}"
		n, err := w.plain.PubSubNumSub(context.Background(), channel).Result()
		require.NoError(w.t, err)
		return int(n[channel])
	}
	queue, err := w.plain.ZRange(context.Background(), baseKey(name)+":queue", 0, -1).Result()
	require.NoError(w.t, err)
	if len(queue) > 0 {
		first, _, _ := strings.Cut(queue[0], "|")
		if owner, _ := w.owner(name); owner == first { // it was granted the lock, and nobody has come since
			return len(queue) - 1
		}
	}
	return len(queue)
}

// awaitWaiters waits until n are queued.
func (w *arena) awaitWaiters(name string, n int) {
	w.t.Helper()
	if redissonLayout && n == 0 {
		return // who gives up has left nothing, and the channel is heard for some seconds more
	}
	var got int
	redistest.Eventually(w.t, soon+time.Duration(n)*10*time.Millisecond, func() bool {
		got = w.waiters(name)
		return got == n
	}, "%d wait for %q", n, name)
}

// awaitFree waits until nobody holds the lock and nobody waits for it.
func (w *arena) awaitFree(name string, limit time.Duration) {
	w.t.Helper()
	if redissonLayout { // where a waiter is only known by what it hears, it may be cancelled with a question on its way
		limit = max(limit, soon)
	}
	redistest.Eventually(w.t, limit, func() bool {
		n, err := w.plain.Exists(context.Background(), baseKey(name), baseKey(name)+":queue").Result()
		return err == nil && n == 0
	}, "%q is free and nobody is queued", name)
}

// lease is what is left of the lease in Redis.
func (w *arena) lease(name string) time.Duration {
	w.t.Helper()
	ttl, err := w.plain.PTTL(context.Background(), baseKey(name)).Result()
	require.NoError(w.t, err)
	return ttl
}

// calls is how many commands the server has run for others than this arena's own look.
func (w *arena) calls() map[string]int {
	w.t.Helper()
	info, err := w.plain.Info(context.Background(), "commandstats").Result()
	require.NoError(w.t, err)
	calls := map[string]int{}
	for line := range strings.SplitSeq(info, "\r\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		calls[name], err = strconv.Atoi(digits)
		require.NoError(w.t, err)
	}
	return calls
}

// callsSince adds up what has been run since before.
func (w *arena) callsSince(before map[string]int) (sum int, each string) {
	w.t.Helper()
	var list []string
	for name, n := range w.calls() {
		if d := n - before[name]; d > 0 {
			sum += d
			list = append(list, fmt.Sprintf("%s %d", name, d))
		}
	}
	slices.Sort(list)
	return sum, strings.Join(list, ", ")
}

// The scripts, as the client sends them. They are the only commands of interest on the wire, and faults are aimed at one
// of them.
const (
	luaAcquire = "acquire"
	luaRelease = "release"
	luaRenew   = "renew"
	luaAbandon = "abandon"
	luaState   = "state"
	luaForce   = "force_release"
	luaMany    = "many"
)

var scriptNames = []string{luaAcquire, luaRelease, luaRenew, luaAbandon, luaState, luaForce}

// inScripts is the file of a script in the layout that is tested.
func inScripts(name string) string {
	if !redissonLayout {
		return name
	}
	switch name {
	case luaRenew:
		return name
	case luaAbandon, luaForce:
		name = luaRelease
	}
	return "redisson/" + name
}

// luaSource joins a script from its files.
func luaSource(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("scripts", name+".lua"))
	require.NoError(t, err)
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if include, ok := strings.CutPrefix(strings.TrimSpace(line), "--- include "); ok {
			line = luaSource(t, include)
		}
		b.WriteString(line)
	}
	return b.String()
}

// script matches the calls of the scripts of these names.
func (w *arena) script(names ...string) redistest.Match {
	w.t.Helper()
	var wanted []string
	for _, name := range names {
		text := luaSource(w.t, inScripts(name))
		sum := sha1.Sum([]byte(text))
		wanted = append(wanted, text, hex.EncodeToString(sum[:]))
	}
	return func(args []string) bool {
		return redistest.Named("EVALSHA", "EVAL")(args) && slices.Contains(wanted, args[1])
	}
}

// loadScripts makes EVALSHA work at once, so that every call is one command.
func (w *arena) loadScripts() {
	w.t.Helper()
	for _, name := range append([]string{"redisson/acquire", "redisson/release", "redisson/state", luaMany}, scriptNames...) {
		require.NoError(w.t, w.plain.ScriptLoad(w.t.Context(), luaSource(w.t, name)).Err())
	}
}

// counter counts the calls of a script that p sends from now on.
func (w *arena) counter(p *peer, name string) func() int {
	w.t.Helper()
	return p.faults.On(w.script(name), redistest.Before(func([]string) {})).Hits
}

// breaks are the ways in which a connection can break before the reply has come.
var breaks = map[string]redistest.Break{
	"end of file": redistest.EOF, "reset": redistest.Reset, "silence": redistest.Silence,
}

// guarded is what a lock guards. It notices two that are in at once, and a token that is not larger than all before it.
type guarded struct {
	lost bool // leases may be lost: a section that is over by its own clock is not in

	mu      sync.Mutex
	lock    *relock.Lock
	section context.Context // nil: nobody is in
	token   int64           // the largest so far
	entries int
	faults  []string
}

// enter is called with the section's context. false: the section is over already.
func (g *guarded) enter(section context.Context, l *relock.Lock) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	token := l.Token(section)
	if token == 0 {
		if !g.lost {
			g.faults = append(g.faults, fmt.Sprintf("a section of %q is over before it began: %v", l.Name(), context.Cause(section)))
		}
		return false
	}
	if g.section != nil && (!g.lost || g.lock.Held(g.section)) {
		g.faults = append(g.faults, fmt.Sprintf("token %d is in while token %d still is", token, g.token))
	}
	if token <= g.token {
		g.faults = append(g.faults, fmt.Sprintf("token %d comes after token %d", token, g.token))
	}
	g.lock, g.section, g.token = l, section, max(token, g.token)
	g.entries++
	return true
}

// leave is called before Unlock.
func (g *guarded) leave(section context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.section == section {
		g.section = nil
	}
}

// forget is told that the lock has been lost in a way that nobody could tell in time.
func (g *guarded) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.section = nil
}

func (g *guarded) require(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.faults)
	require.Nil(t, g.section, "everybody has left")
}

// sleepUntil waits for a moment, not for an event: where a test shows that something does not happen.
func sleepUntil(moment time.Time) { <-time.After(time.Until(moment)) }

// isDone says that err is how a call with a done context ends.
func isDone(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
