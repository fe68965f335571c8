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
	// Limit bounds a few round trips on one server. See stage.limit.
	Limit = 3 * time.Second
	// Promptly is how long a call may go on after its context is done.
	Promptly = 50 * time.Millisecond
	// AtOnce bounds a call that should not wait for anything.
	AtOnce = 500 * time.Millisecond
	// AfterLease is how much later than the end of a dead holder's lease the next one may be in.
	AfterLease = 500 * time.Millisecond
)

// Arena is the surroundings of one test: a server, and a view of that server from outside. When
// the test ends, and all its peers are closed, nothing may be left: no key but tokens and used
// tickets, no subscription, and no goroutine of the library.
type Arena struct {
	Stage
	Server     *redistest.Server
	Plain      *redis.Client // has no faults
	TidyWithin time.Duration // until nothing is left; longer for a test with leases that nobody gives back
	wall       wallClock
}

// OnShared is an arena on the server of the whole test binary, emptied, with the scripts loaded.
func OnShared(t *testing.T) *Arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return NewArena(t, redistest.Shared(t))
}

// OnOwn is an arena on a server of its own, for a test that pauses, kills or configures it.
func OnOwn(t *testing.T, args ...string) *Arena {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	return NewArena(t, redistest.Start(t, args...))
}

// Apart is onOwn for a test that mostly waits, and runs in parallel with others of its kind.
func Apart(t *testing.T, args ...string) *Arena {
	t.Helper()
	t.Parallel()
	return NewArena(t, redistest.Start(t, args...))
}

func NewArena(t *testing.T, server *redistest.Server) *Arena {
	t.Helper()
	plain := server.Client(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second })
	w := bare(t, Limit, func() redis.UniversalClient { return plain })
	w.Server, w.Plain = server, plain
	t.Cleanup(func() {
		if !t.Failed() { // what has failed half-way leaves what it likes
			w.requireTidy()
		}
	})
	require.NoError(t, w.Plain.FlushAll(t.Context()).Err())
	w.loadScripts()
	return w
}

// bare is an arena without a server. The arena sees locks through rdb.
func bare(t *testing.T, limit time.Duration, rdb func() redis.UniversalClient) *Arena {
	t.Helper()
	w := &Arena{TidyWithin: limit, wall: wallClock{new(atomic.Int64)}}
	look := func(name string) (store.State, error) { return lookIn(rdb(), name) }
	w.Stage = Stage{T: t, clock: w.wall, look: look, Limit: limit}
	t.Cleanup(w.measure())
	return w
}

// lookIn reads a lock in Redis, behind the back of the library.
func lookIn(rdb redis.UniversalClient, name string) (state store.State, err error) {
	ctx, key := context.Background(), BaseKey(name)
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
func (w *Arena) measure() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		Every(5*time.Millisecond, quit, func(late time.Duration) { w.wall.late.Store(max(w.wall.late.Load(), int64(late))) })
	}()
	return func() { close(quit); <-done }
}

// Lateness is the longest that this process was late.
func (w *Arena) Lateness() time.Duration { return w.wall.lateness() }

// Every calls f after each interval, with how late the call is, until stop is closed.
func Every(interval time.Duration, stop <-chan struct{}, f func(late time.Duration)) {
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

// In is the same surroundings for a subtest.
func (w *Arena) In(t *testing.T) *Arena {
	t.Helper()
	sub := *w
	sub.T = t
	return &sub
}

// requireTidy waits until nothing is left in Redis that a lock in use would leave.
func (w *Arena) requireTidy() {
	w.T.Helper()
	var left []string
	redistest.Eventually(w.T, w.TidyWithin, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.T, w.Plain), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.Contains(key, ":loans:") // used tickets, until they expire
		})
		left = append(left, redistest.Subscriptions(w.T, w.Plain)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens and used tickets; keys or subscriptions left: %q", &left)
}

// Peer is one process as Redis sees it: a client on a go-redis client of its own, with faults on
// its wire.
type Peer struct {
	*relock.Client
	RDB    *redis.Client
	Faults *redistest.Faults
}

// Peer makes a client that gives up a silent connection soon.
func (w *Arena) Peer(options ...relock.Option) *Peer {
	w.T.Helper()
	return w.PeerOn(func(*redis.Options) {}, options...)
}

// PeerOn is peer with other go-redis options.
func (w *Arena) PeerOn(mod func(*redis.Options), options ...relock.Option) *Peer {
	w.T.Helper()
	p := &Peer{Faults: redistest.NewFaults()}
	w.T.Cleanup(p.Faults.Close)
	p.RDB = w.Server.Client(func(o *redis.Options) {
		o.Dialer = p.Faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond
		o.DialTimeout, o.DialerRetries = 500*time.Millisecond, 1
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.RDB, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() {
		p.Faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.T, p.Close())
		require.Less(w.T, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
	})
	return p
}

// Connect makes n connections that are ready for commands.
func (p *Peer) Connect(t testing.TB, n int) {
	t.Helper()
	conns := make([]*redis.Conn, n)
	for i := range conns {
		redistest.Eventually(t, Limit, func() bool { // a busy machine may take longer than the timeouts of p
			conns[i] = p.RDB.Conn()
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

// Draw returns the token of a section.
func (w *Arena) Draw(section context.Context, l *relock.Lock) int64 {
	w.T.Helper()
	token, err := l.Token(section)
	require.NoError(w.T, err)
	require.Positive(w.T, token)
	return token
}

// BaseKey is the key of a lock with the default prefix.
func BaseKey(name string) string {
	if strings.Contains(name, "{") { // {slot}:lock, as tests on a cluster name locks
		return relock.DefaultPrefix + name
	}
	return relock.DefaultPrefix + "{" + name + "}"
}

// Queue is the holds that wait for a lock, first come first.
func (w *Arena) Queue(name string) []string {
	w.T.Helper()
	members, err := w.Plain.ZRange(context.Background(), BaseKey(name)+":queue", 0, -1).Result()
	require.NoError(w.T, err)
	for i, m := range members {
		members[i], _, _ = strings.Cut(m, "|")
	}
	return members
}

// Calls is how many commands the server has run, by name.
func (w *Arena) Calls() map[string]int {
	w.T.Helper()
	info, err := w.Plain.Info(context.Background(), "commandstats").Result()
	require.NoError(w.T, err)
	calls := map[string]int{}
	for line := range strings.SplitSeq(info, "\r\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "info" {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		calls[name], err = strconv.Atoi(digits)
		require.NoError(w.T, err)
	}
	return calls
}

// ScriptNames are the scripts, as the client sends them. Faults are aimed at one of them.
var ScriptNames = []string{LuaAcquire, LuaRelease, LuaRenew, LuaForget, LuaToken, LuaState, LuaBreak, LuaAll}

// TicketScripts are the scripts of loans and moves.
var TicketScripts = []string{LuaBorrow, LuaFollow, LuaReturn, LuaRecall, LuaAccept}

const (
	LuaAcquire = "acquire"
	LuaRelease = "release"
	LuaRenew   = "renew" // also a nested entry, an inner exit, and Extend
	LuaForget  = "forget"
	LuaToken   = "token"
	LuaState   = "state"
	LuaBreak   = "break"
	LuaAll     = "all"

	LuaBorrow = "loans/borrow"
	LuaFollow = "loans/follow"
	LuaReturn = "loans/return" // the Unlock of a loan
	LuaRecall = "loans/recall" // the Unlock of a lender
	LuaAccept = "loans/accept"
)

// LuaSource is the text of a script.
func LuaSource(t testing.TB, name string) string {
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

// Script matches the calls of the scripts of these names.
func (w *Arena) Script(names ...string) redistest.Match {
	w.T.Helper()
	var wanted []string
	for _, name := range names {
		text := LuaSource(w.T, name)
		sum := sha1.Sum([]byte(text))
		wanted = append(wanted, text, hex.EncodeToString(sum[:]))
	}
	return func(args []string) bool {
		return redistest.Named("EVALSHA", "EVAL")(args) && slices.Contains(wanted, args[1])
	}
}

// loadScripts makes EVALSHA work at once, so that every call is one command.
func (w *Arena) loadScripts() {
	w.T.Helper()
	for _, name := range slices.Concat(ScriptNames, TicketScripts) {
		require.NoError(w.T, w.Plain.ScriptLoad(w.T.Context(), LuaSource(w.T, name)).Err())
	}
}

// Counter counts the calls of a script that p sends from now on.
func (w *Arena) Counter(p *Peer, name string) func() int {
	w.T.Helper()
	return p.Faults.On(w.Script(name), redistest.Before(func([]string) {})).Hits
}

// Breaks are the ways in which a connection can break before the reply has come.
var Breaks = map[string]redistest.Break{
	"end of file": redistest.EOF, "reset": redistest.Reset, "silence": redistest.Silence,
}

// Witness is what a lock guards. It notices two that are in at once, and a token that is not larger
// than all tokens before.
type Witness struct {
	Lost bool // leases may be lost: a section that is over by its own clock is not in

	mu      sync.Mutex
	lock    *relock.Lock
	section context.Context // nil: nobody is in
	Token   int64           // the largest so far
	Entries int
	Faults  []string
}

// Enter is called with the section's context. It returns false if the section is over already.
func (g *Witness) Enter(section context.Context, l *relock.Lock) bool {
	g.mu.Lock()
	if g.section != nil && (!g.Lost || g.lock.Held(g.section) && l.Held(section)) {
		g.Faults = append(g.Faults, fmt.Sprintf("a section of %q begins while another still is in", l.Name()))
	}
	g.lock, g.section = l, section
	g.Entries++
	g.mu.Unlock()
	token, err := l.Token(section)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err == nil && token <= g.Token && (!g.Lost || l.Held(section)):
		g.Faults = append(g.Faults, fmt.Sprintf("token %d comes after token %d", token, g.Token))
	case errors.Is(err, relock.ErrLockLost):
		if !g.Lost {
			g.Faults = append(g.Faults, fmt.Sprintf("a section of %q is over before it began: %v", l.Name(), err))
		}
		return false
	}
	g.Token = max(token, g.Token)
	return true
}

// Leave is called before Unlock.
func (g *Witness) Leave(section context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.section == section {
		g.section = nil
	}
}

func (g *Witness) Require(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.Faults)
}

// Texts collects texts of many goroutines, such as errors.
type Texts struct {
	mu   sync.Mutex
	list []string
}

func (n *Texts) Add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

// Check adds an error, if there is one.
func (n *Texts) Check(err error) {
	if err != nil {
		n.Add(err.Error())
	}
}

func (n *Texts) All() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// Tally counts what happened, by name.
type Tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *Tally) Add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *Tally) Of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *Tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}

// IsClosed says whether a channel is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// SleepUntil waits for a moment, and not for an event: to show that something does not happen.
func SleepUntil(moment time.Time) { <-time.After(time.Until(moment)) }

// IsDone says that err is how a call with a done context ends.
func IsDone(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
