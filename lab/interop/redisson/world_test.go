package redisson_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// soon bounds what takes some round trips, on a machine that is busy with other things. It is far less than long, so
// that a waiter that was not told, and woke at the end of a lease, is found out.
const soon = 10 * time.Second

// long is the lease where none should run out: the default of either side.
const long = 30 * time.Second

// short is the lease where a test is about its end or its renewal.
const short = 3 * time.Second

// servers says where Redis is and how to reach it: what a Go child process and the Java program are told.
type servers struct {
	Kind   string   // single, sentinel, cluster-sharded or cluster-plain, as the Java program calls them
	Addrs  []string // of the server, the sentinels or the nodes
	Master string   // as sentinels call it
}

func (s servers) cluster() bool { return strings.HasPrefix(s.Kind, "cluster-") }

// connect makes a go-redis client for them.
func (s servers) connect() redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{Addrs: s.Addrs, MasterName: s.Master, IsClusterMode: s.cluster()})
}

// client makes a relock client that shares with Redisson as the Java side is set up there.
func (s servers) client(rdb redis.UniversalClient, options ...relock.Option) (*relock.Client, error) {
	return relock.New(rdb, append([]relock.Option{relock.WithRedissonLayout()}, options...)...)
}

// world is the surroundings of a test: servers, a Java process whose locks last long and one whose locks last short,
// and a look into Redis.
type world struct {
	t *testing.T
	servers
	java  *java // its watchdog gives leases of long
	hasty *java // its watchdog gives leases of short
	plain redis.UniversalClient
	names *atomic.Int64
}

func newWorld(t *testing.T, s servers) *world {
	t.Helper()
	w := &world{t: t, servers: s, plain: s.connect(), names: new(atomic.Int64)}
	t.Cleanup(func() { _ = w.plain.Close() })
	w.java = startJava(t, s, long)
	w.hasty = startJava(t, s, short)
	return w
}

// run runs a subtest in the same surroundings.
func (w *world) run(name string, test func(w *world)) {
	w.t.Run(name, func(t *testing.T) {
		sub := *w
		sub.t = t
		test(&sub)
	})
}

// name returns a name for a lock that no other test uses. In a cluster they spread over the nodes.
func (w *world) name() string {
	return fmt.Sprintf("orders:%s:%d", w.Kind, w.names.Add(1))
}

// peer makes a Go client on connections of its own.
func (w *world) peer(options ...relock.Option) *relock.Client {
	w.t.Helper()
	rdb := w.connect()
	w.t.Cleanup(func() { _ = rdb.Close() })
	client, err := w.client(rdb, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, client.Close()) })
	return client
}

// enter locks and fails the test if that does not succeed soon.
func (w *world) enter(ctx context.Context, l *relock.Lock) context.Context {
	w.t.Helper()
	ctx, err := l.TryLockFor(ctx, soon)
	require.NoError(w.t, err)
	return ctx
}

// leave unlocks.
func (w *world) leave(section context.Context, l *relock.Lock) {
	w.t.Helper()
	require.NoError(w.t, l.Unlock(section))
}

// waiter is a Lock call that goes on in the background.
type waiter struct {
	t    *testing.T
	lock *relock.Lock
	done chan struct{}

	section context.Context // these are readable once done is closed
	err     error
	at      time.Time
}

// start locks in the background. The call ends with the test.
func (w *world) start(l *relock.Lock) *waiter {
	w.t.Helper()
	g := &waiter{t: w.t, lock: l, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		g.section, g.err = l.Lock(w.t.Context())
		g.at = time.Now()
	}()
	return g
}

// in waits until it has the lock.
func (g *waiter) in(limit time.Duration) context.Context {
	g.t.Helper()
	select {
	case <-g.done:
		require.NoError(g.t, g.err)
		return g.section
	case <-time.After(limit):
		require.Failf(g.t, "Go does not get in", "the lock %q within %v", g.lock.Name(), limit)
		return nil
	}
}

// pending fails the test if the call has come back.
func (g *waiter) pending(msg string) {
	g.t.Helper()
	select {
	case <-g.done:
		require.Failf(g.t, "Lock has returned", "%s: %v", msg, g.err)
	default:
	}
}

// channel is where a release of the lock is published.
func channel(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return "redisson_lock__channel:" + name
}

// nodes calls f with each node that has data.
func (w *world) nodes(replicas bool, f func(context.Context, *redis.Client) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	switch c := w.plain.(type) {
	case *redis.ClusterClient:
		each := c.ForEachMaster
		if replicas {
			each = c.ForEachShard
		}
		require.NoError(w.t, each(ctx, f))
	case *redis.Client:
		require.NoError(w.t, f(ctx, c))
	default:
		require.Failf(w.t, "unknown client", "%T", c)
	}
}

// subscribers counts those who would hear of a release of the lock, by the kind of publish that they would hear.
func (w *world) subscribers(name string) (plain, sharded int64) {
	w.t.Helper()
	var p, s atomic.Int64
	ch := channel(name)
	w.nodes(true, func(ctx context.Context, node *redis.Client) error {
		n, err := node.PubSubNumSub(ctx, ch).Result()
		if err != nil {
			return err
		}
		p.Add(n[ch])
		if n, err = node.PubSubShardNumSub(ctx, ch).Result(); err != nil {
			return err
		}
		s.Add(n[ch])
		return nil
	})
	return p.Load(), s.Load()
}

// listeners counts those who would hear of a release by Java. In a cluster Go listens in both ways, as it cannot know
// which one Java has.
func (w *world) listeners(name string) int64 {
	w.t.Helper()
	plain, sharded := w.subscribers(name)
	if w.Kind == "cluster-sharded" {
		return sharded
	}
	return plain
}

// scripts counts the scripts that the masters have run.
func (w *world) scripts() int64 {
	w.t.Helper()
	var sum atomic.Int64
	w.nodes(false, func(ctx context.Context, node *redis.Client) error {
		info, err := node.InfoMap(ctx, "commandstats").Result()
		if err != nil {
			return err
		}
		for _, command := range []string{"cmdstat_eval", "cmdstat_evalsha"} {
			// calls=2,usec=...
			calls, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"][command], "calls="), ",")
			n, _ := strconv.ParseInt(calls, 10, 64) // the line is missing while the command has not run
			sum.Add(n)
		}
		return nil
	})
	return sum.Load()
}

// asleep starts a waiter and returns when only a message or the end of the lease can wake it: it has tried, has
// subscribed, and has tried once more. Only for tests that nothing runs beside: it counts scripts.
func (w *world) asleep(name string, start func()) {
	w.t.Helper()
	w.unheard(name) // whoever waited before unsubscribes when it is in, and that takes a moment
	before := w.scripts()
	start()
	redistest.Eventually(w.t, soon, func() bool {
		return w.listeners(name) == 1 && w.scripts() >= before+2
	}, "a waiter for %s is subscribed and has tried twice", name)
}

// listening waits until n clients listen for the lock: those whose callers wait, or are about to.
func (w *world) listening(name string, n int64) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool {
		return w.listeners(name) >= n
	}, "%d clients listen for %s", n, name)
}

// ttl returns what is left of the lease in Redis.
func (w *world) ttl(name string) time.Duration {
	w.t.Helper()
	d, err := w.plain.PTTL(context.Background(), name).Result()
	require.NoError(w.t, err)
	return d
}

// free waits until the lock's key is gone.
func (w *world) free(name string) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool { return w.exists(name) == 0 }, "the key %s is gone", name)
}

func (w *world) exists(key string) int64 {
	w.t.Helper()
	n, err := w.plain.Exists(context.Background(), key).Result()
	require.NoError(w.t, err)
	return n
}

// fields returns the hash of the lock.
func (w *world) fields(name string) map[string]string {
	w.t.Helper()
	m, err := w.plain.HGetAll(context.Background(), name).Result()
	require.NoError(w.t, err)
	return m
}

// unheard waits until nobody listens for the lock.
func (w *world) unheard(name string) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool {
		p, s := w.subscribers(name)
		return p+s == 0
	}, "nobody listens for %s", name)
}

// between checks a number of milliseconds.
func (w *world) between(millis string, low, high time.Duration) {
	w.t.Helper()
	n, err := strconv.ParseInt(millis, 10, 64)
	require.NoError(w.t, err)
	d := time.Duration(n) * time.Millisecond
	require.Greater(w.t, d, low)
	require.LessOrEqual(w.t, d, high)
}

// holder returns who holds the lock in the Go process, as Redis and Java see it.
func (w *world) holder(name string, section context.Context) string {
	w.t.Helper()
	h, ok := relock.HolderFrom(section)
	require.True(w.t, ok)
	require.Contains(w.t, w.fields(name), h.String())
	return h.String()
}

// ended waits for the end of a section and returns its cause.
func (w *world) ended(section context.Context) error {
	w.t.Helper()
	select {
	case <-section.Done():
		return context.Cause(section)
	case <-time.After(soon):
		require.Fail(w.t, "the section does not end")
		return nil
	}
}

// tidy waits until nothing is left in Redis but what a lock leaves for good, and nobody listens any more.
func (w *world) tidy() {
	w.t.Helper()
	var left []string
	redistest.Eventually(w.t, soon, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.t, w.plain), func(key string) bool {
			return strings.HasPrefix(key, "redisson_lock_token:") || strings.HasPrefix(key, "counter:")
		})
		left = append(left, redistest.Subscriptions(w.t, w.plain)...)
		return len(left) == 0
	}, "everything is gone but tokens and counters; keys or channels left: %q", &left)
}

// handovers is how long it took from the call of unlock on one side to the answer of lock on the other.
type handovers []time.Duration

func (h handovers) String() string {
	h = slices.Sorted(slices.Values(h))
	return fmt.Sprintf("%d hand-overs: median %v, slowest %v", len(h),
		h[len(h)/2].Round(10*time.Microsecond), h[len(h)-1].Round(10*time.Microsecond))
}

// -- A Go process to kill -----------------------------------------------------------------------------------------

// It locks, prints "in", and unlocks when it is told "unlock".
func init() {
	redistest.RegisterChild("locker", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := locker(args, in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
}

func locker(args []string, in *bufio.Reader, out io.Writer) error {
	var s servers
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	lease, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	rdb := s.connect()
	defer rdb.Close()
	client, err := s.client(rdb, relock.WithTTL(lease))
	if err != nil {
		return err
	}
	defer client.Close()
	l := client.NewLock(args[1])
	section, err := l.Lock(context.Background())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "in")
	if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "unlock" {
		return nil // the test is over
	}
	return l.Unlock(section)
}

// locker starts such a process.
func (w *world) locker(name string, lease time.Duration) *redistest.Process {
	w.t.Helper()
	s, err := json.Marshal(w.servers)
	require.NoError(w.t, err)
	return redistest.Child(w.t, "locker", string(s), name, lease.String())
}
