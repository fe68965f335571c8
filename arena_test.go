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
	"github.com/go-relock/relock/store"
)

// This file and stage_test.go are the vocabulary of the tests on real servers: faults_*_test.go, crash_test.go,
// clock_linux_test.go, stress_test.go, flood_test.go, deaf_test.go.

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const (
	// limit bounds a few round trips on one server. See stage.limit.
	limit = 3 * time.Second
	// promptly is how long a call may go on after its context is done.
	promptly = 50 * time.Millisecond
	// atOnce bounds a call that should not wait for anything.
	atOnce = 500 * time.Millisecond
	// afterLease is how much later than the end of a dead holder's lease the next one may be in.
	afterLease = 500 * time.Millisecond
)

// arena is the surroundings of one test: a server, and a view of that server from outside. When
// the test ends, and all its peers are closed, nothing may be left: no key but tokens and used
// tickets, no subscription, and no goroutine of the library.
type arena struct {
	stage
	server     *redistest.Server
	plain      *redis.Client // has no faults
	tidyWithin time.Duration // until nothing is left; longer for a test with leases that nobody gives back
	wall       wallClock
}

// onShared is an arena on the server of the whole test binary, emptied, with the scripts loaded.
func onShared(t *testing.T) *arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return newArena(t, redistest.Shared(t))
}

// onOwn is an arena on a server of its own, for a test that pauses, kills or configures it.
func onOwn(t *testing.T, args ...string) *arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return newArena(t, redistest.Start(t, args...))
}

// apart is onOwn for a test that mostly waits, and runs in parallel with others of its kind.
func apart(t *testing.T, args ...string) *arena {
	t.Helper()
	t.Parallel()
	return newArena(t, redistest.Start(t, args...))
}

func newArena(t *testing.T, server *redistest.Server) *arena {
	t.Helper()
	plain := server.Client(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
	w := bare(t, limit, func() redis.UniversalClient { return plain })
	w.server, w.plain = server, plain
	t.Cleanup(func() {
		if !t.Failed() { // what has failed half-way leaves what it likes
			w.requireTidy()
		}
	})
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
	w.loadScripts()
	return w
}

// bare is an arena without a server. The arena sees locks through rdb.
func bare(t *testing.T, limit time.Duration, rdb func() redis.UniversalClient) *arena {
	t.Helper()
	w := &arena{tidyWithin: limit, wall: wallClock{new(atomic.Int64)}}
	look := func(name string) (store.State, error) { return lookIn(rdb(), name) }
	w.stage = stage{t: t, clock: w.wall, look: look, limit: limit}
	t.Cleanup(w.measure())
	return w
}

// lookIn reads a lock in Redis, behind the back of the library.
func lookIn(rdb redis.UniversalClient, name string) (state store.State, err error) {
	ctx, key := context.Background(), baseKey(name)
	hash, lease, queued := new(redis.MapStringStringCmd), new(redis.DurationCmd), new(redis.IntCmd)
	_, err = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		hash, lease, queued = p.HGetAll(ctx, key), p.PTTL(ctx, key), p.ZCard(ctx, key+":queue")
		return nil
	})
	if err == nil && len(hash.Val()) > 1 {
		err = fmt.Errorf("one hold owns the lock: %v", hash.Val())
	}
	for hold, count := range hash.Val() {
		state.Owner = store.ID(hold)
		if err == nil {
			state.Count, err = strconv.Atoi(count)
		}
	}
	state.TTL, state.Waiters = lease.Val(), int(queued.Val())
	return state, err
}

// measure notes how late this process is because the machine is busy, until stop is called.
func (w *arena) measure() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		every(5*time.Millisecond, quit, func(late time.Duration) { w.wall.late.Store(max(w.wall.late.Load(), int64(late))) })
	}()
	return func() { close(quit); <-done }
}

// lateness is the longest that this process was late.
func (w *arena) lateness() time.Duration { return w.wall.lateness() }

// every calls f after each interval, with how late the call is, until stop is closed.
func every(interval time.Duration, stop <-chan struct{}, f func(late time.Duration)) {
	for {
		began := time.Now()
		select {
		case <-time.After(interval):
			f(time.Since(began) - interval)
		case <-stop:
			return
		}
	}
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
		left = slices.DeleteFunc(redistest.Keys(w.t, w.plain), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.Contains(key, ":loans:") // used tickets, until they expire
		})
		left = append(left, redistest.Subscriptions(w.t, w.plain)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens and used tickets; keys or subscriptions left: %q", &left)
}

// peer is one process as Redis sees it: a client on a go-redis client of its own, with faults on
// its wire.
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
		o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond
		o.DialTimeout, o.DialerRetries = 500*time.Millisecond, 1
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.rdb, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		p.faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.t, p.Close())
		require.Less(w.t, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
	})
	return p
}

// connect makes n connections that are ready for commands.
func (p *peer) connect(t testing.TB, n int) {
	t.Helper()
	conns := make([]*redis.Conn, n)
	for i := range conns {
		redistest.Eventually(t, limit, func() bool { // a busy machine may take longer than the timeouts of p
			conns[i] = p.rdb.Conn()
			err := conns[i].Ping(t.Context()).Err()
			if err != nil {
				_ = conns[i].Close()
			}
			return err == nil
		}, "connected")
	}
	for _, c := range conns {
		require.NoError(t, c.Close()) // back into the pool
	}
}

// draw returns the token of a section.
func (w *arena) draw(section context.Context, l *relock.Lock) int64 {
	w.t.Helper()
	token, err := l.Token(section)
	require.NoError(w.t, err)
	require.Positive(w.t, token)
	return token
}

// baseKey is the key of a lock with the default prefix.
func baseKey(name string) string {
	if strings.Contains(name, "{") { // {slot}:lock, as tests on a cluster name locks
		return relock.DefaultPrefix + name
	}
	return relock.DefaultPrefix + "{" + name + "}"
}

// queue is the holds that wait for a lock, first come first.
func (w *arena) queue(name string) []string {
	w.t.Helper()
	members, err := w.plain.ZRange(context.Background(), baseKey(name)+":queue", 0, -1).Result()
	require.NoError(w.t, err)
	for i, m := range members {
		members[i], _, _ = strings.Cut(m, "|")
	}
	return members
}

// calls is how many commands the server has run, by name.
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

// scriptNames are the scripts, as the client sends them. Faults are aimed at one of them.
var scriptNames = []string{luaAcquire, luaRelease, luaRenew, luaForget, luaToken, luaState, luaBreak, luaAll}

// ticketScripts are the scripts of loans and moves.
var ticketScripts = []string{luaBorrow, luaFollow, luaReturn, luaRecall, luaAccept}

const (
	luaAcquire = "acquire"
	luaRelease = "release"
	luaRenew   = "renew" // also a nested entry, an inner exit, and Extend
	luaForget  = "forget"
	luaToken   = "token"
	luaState   = "state"
	luaBreak   = "break"
	luaAll     = "all"

	luaBorrow = "loans/borrow"
	luaFollow = "loans/follow"
	luaReturn = "loans/return" // the Unlock of a loan
	luaRecall = "loans/recall" // the Unlock of a lender
	luaAccept = "loans/accept"
)

// luaSource is the text of a script.
func luaSource(t testing.TB, name string) string {
	t.Helper()
	var text strings.Builder
	files := []string{"lib", name}
	if filepath.Dir(name) == "loans" {
		files = []string{"lib", "loans/lib", name}
	}
	for _, file := range files {
		b, err := os.ReadFile(filepath.Join("scripts", file+".lua"))
		require.NoError(t, err)
		text.Write(b)
	}
	return text.String()
}

// script matches the calls of the scripts of these names.
func (w *arena) script(names ...string) redistest.Match {
	w.t.Helper()
	var wanted []string
	for _, name := range names {
		text := luaSource(w.t, name)
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
	for _, name := range slices.Concat(scriptNames, ticketScripts) {
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

// witness is what a lock guards. It notices two that are in at once, and a token that is not larger
// than all tokens before.
type witness struct {
	lost bool // leases may be lost: a section that is over by its own clock is not in

	mu      sync.Mutex
	lock    *relock.Lock
	section context.Context // nil: nobody is in
	token   int64           // the largest so far
	entries int
	faults  []string
}

// enter is called with the section's context. It returns false if the section is over already.
func (g *witness) enter(section context.Context, l *relock.Lock) bool {
	g.mu.Lock()
	if g.section != nil && (!g.lost || g.lock.Held(g.section) && l.Held(section)) {
		g.faults = append(g.faults, fmt.Sprintf("a section of %q begins while another still is in", l.Name()))
	}
	g.lock, g.section = l, section
	g.entries++
	g.mu.Unlock()
	token, err := l.Token(section)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil && token <= g.token && (!g.lost || l.Held(section)):
		g.faults = append(g.faults, fmt.Sprintf("token %d comes after token %d", token, g.token))
	case errors.Is(err, relock.ErrLockLost):
		if !g.lost {
			g.faults = append(g.faults, fmt.Sprintf("a section of %q is over before it began: %v", l.Name(), err))
		}
		return false
	}
	g.token = max(token, g.token)
	return true
}

// leave is called before Unlock.
func (g *witness) leave(section context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.section == section {
		g.section = nil
	}
}

func (g *witness) require(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.faults)
}

// names collects texts of many goroutines, such as errors.
type names struct {
	mu   sync.Mutex
	list []string
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

// check adds an error, if there is one.
func (n *names) check(err error) {
	if err != nil {
		n.add(err.Error())
	}
}

func (n *names) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// tally counts what happened, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *tally) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}

// isClosed says whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sleepUntil waits for a moment, and not for an event: to show that something does not happen.
func sleepUntil(moment time.Time) { <-time.After(time.Until(moment)) }

// isDone says that err is how a call with a done context ends.
func isDone(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
