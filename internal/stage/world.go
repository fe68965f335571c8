package stage

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// The chapters of the tests, each with its question:
//
//   - all_test.go: Are several locks entered and left together?
//   - arena_test.go: How does a test play on a real server?
//   - cleanup_test.go: When is a hold that nobody wants taken back, and for how long?
//   - clock_linux_test.go: What if the clock of the server is turned?
//   - close_test.go: What does Close end, and what does Close leave?
//   - crash_test.go: What if a process, a network or a server goes away?
//   - deaf_test.go: What if a client hears nothing?
//   - deadlock_test.go: Which calls wait for each other in a circle, and which one gives up?
//   - embedded_test.go: What does a client do on an embedded server?
//   - errkinds_test.go: Which errors does an error match?
//   - errors_test.go: What do the texts of errors say?
//   - eval_test.go: When does a script of the user run, and what does it find?
//   - example_test.go, example_more_test.go, example_kinds_test.go: How is each verb used?
//   - extend_test.go: When does a fixed lease end?
//   - fakestore_test.go: What does the core make of each answer of a store?
//   - faults_pubsub_test.go: What if the pub/sub connection of waiters breaks?
//   - faults_queue_test.go: In which order are waiters served, also when some give up?
//   - faults_replies_test.go: What if a reply is lost, or a command runs late or twice?
//   - faults_loans_test.go: What if a command of a ticket is lost, or runs late or twice?
//   - faults_server_test.go: What if a server refuses commands or lacks replicas?
//   - flood_test.go: Are thousands of waiters of several processes served in order?
//   - hooks_test.go: What do events say?
//   - hooks_calls_test.go: How and when are hooks called?
//   - hooks_ends_test.go: Does each hold have one end?
//   - hooks_redis_test.go: Which events does only a Redis server cause?
//   - hooks_trace_test.go: Which contexts does Hooks.Trace give to a call?
//   - late_test.go: What if a command runs late?
//   - lead_test.go: Who leads, and when does another one take over?
//   - leak_test.go: When is a hold reported as leaked?
//   - lease_test.go: What if a lease is nearly over when it begins?
//   - lend_test.go: When does a section end that was lent, borrowed or handed on?
//   - line_test.go: How does a client pass a lock on within itself?
//   - link_test.go: How does a test break the link to a store in fake time?
//   - lock_test.go: What is a lock, and does it keep the promises of package locktest?
//   - log_test.go: What does the library log?
//   - loss_test.go: When does a section end because its lock is lost?
//   - options_test.go: Which options and arguments are refused?
//   - options_redis_test.go: Which options need Redis, and what do they do?
//   - outcome_test.go: Which outcome does a call have?
//   - redisson_test.go: Does a lock of Redisson's layout work as others do?
//   - redisson_suite_test.go: Does Redisson's layout pass the suites?
//   - reentry_test.go: Which calls are inside of a section?
//   - reentry_faults_test.go: What if a nested entry or exit is slow, refused or lost?
//   - stage_test.go: Which words begin, wait and end a call?
//   - stop_test.go: Which calls does a stop end, and which ones go on?
//   - storm_test.go: Do holders exclude each other at random faults in fake time?
//   - stress_test.go: Do many goroutines exclude each other on a real server while everything breaks?
//   - topology_cluster_test.go: How does a test play on a cluster?
//   - topology_commands_test.go: Which commands does a user need on a cluster?
//   - topology_connections_test.go: What do locks cost on a cluster that is well?
//   - topology_failover_test.go: Who is in after a master has gone?
//   - topology_redisson_test.go: Does Redisson's layout work on Sentinel and on a cluster?
//   - topology_sentinel_test.go: Who is in after a failover by Sentinel?
//   - topology_slots_test.go: What if a slot moves?
//   - topology_tls_test.go: Does a user with few commands have all that a lock needs over TLS?
//   - wait_test.go: When exactly does a wait end?
//   - watchdog_test.go: When are leases renewed?

// This file and link_test.go are the vocabulary of the tests in fake time, with stage_test.go.

// A World is a store in memory and a clock in a testing/synctest bubble. Time stands still while
// anything in the world can run, and jumps to the next timer when nothing can. Commands take no
// time, so tests ask for exact times.
//
// The end of a test closes all clients of its world. A goroutine that is left over fails the test.
type World struct {
	Store *mem.Store
	Stage
}

// worldEnd is the time at which a world ends by force. A test that waits for ever would spin
// through fake time.
const worldEnd = 10 * 365 * 24 * time.Hour

// patience is the limit of a world.
const patience = 2 * time.Hour

// Fake runs a test in a world of its own.
func Fake(t *testing.T, test func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		end := time.AfterFunc(worldEnd, func() {
			debug.SetTraceback("all")
			panic(t.Name() + " waits for something that never comes")
		})
		t.Cleanup(func() { end.Stop() })
		t.Cleanup(func() { require.Zero(t, Goroutines("go-relock/relock.(*"), "goroutines of the library") })
		w := &World{Store: mem.New()}
		look := func(name string) (store.State, error) {
			return w.Store.Look(context.Background(), store.Ask{Name: name})
		}
		w.Stage = Stage{T: t, clock: fakeClock{}, look: look, Limit: patience}
		test(t, w)
	})
}

// Pass lets time pass, and lets everything happen that is due.
func Pass(d time.Duration) {
	<-time.After(d)
	Settle()
}

// Settle lets everything happen that can happen without time passing.
func Settle() { synctest.Wait() }

// Member is a process, as a store sees processes: a Client with a link of its own.
type Member struct {
	*relock.Client
	Link *Link
}

// NewClient returns a Client as a process of its own would have it.
func (w *World) NewClient(options ...relock.Option) *Member {
	w.T.Helper()
	m := &Member{Link: NewLink(w.Store)}
	var err error
	m.Client, err = relock.Open(m.Link, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() {
		m.Link.Heal()
		require.NoError(w.T, m.Close())
	})
	return m
}

// Margin is by how much the deadline of a lease is earlier than its end.
func Margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Goroutines counts the goroutines of this bubble with a function in their stack, once all have run
// as far as they can.
func Goroutines(function string) int {
	Settle()
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

// GiveUp begins a call whose command is kept, or lost, and ends its context.
func (w *World) GiveUp(ctx context.Context, lock Locking) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := w.Begin(ctx, lock)
	require.True(w.T, a.Waits())
	cancel()
	require.ErrorIs(w.T, a.Failure(), context.Canceled)
	require.Equal(w.T, ctx, a.Ctx, "the context comes back as it was")
	require.Zero(w.T, a.Took(), "the call returns promptly")
}

// OpenClient returns a Client of the world whose link hides nothing of its store.
func (w *World) OpenClient(options ...relock.Option) *relock.Client {
	w.T.Helper()
	c, err := relock.Open(w.Store, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() { require.NoError(w.T, c.Close()) })
	return c
}

// Passing returns a client, a section whose lock can be passed on, and calls that stand in the line
// behind it.
func Passing(t *testing.T, w *World, n int, options ...relock.Option) (*Member, *relock.Lock, context.Context, []*Attempt) {
	t.Helper()
	m := w.NewClient(options...)
	l := m.NewLock("a")
	section := w.Enter(t.Context(), l)
	var waiting []*Attempt
	for range n {
		waiting = append(waiting, w.Start(t.Context(), l))
	}
	m.Link.Reset()
	return m, l, section, waiting
}

// LostBecause waits for the loss of a section, and returns how long that took.
func (w *World) LostBecause(section context.Context, reason relock.LossReason) time.Duration {
	w.T.Helper()
	begun := time.Now()
	require.Equal(w.T, reason, w.Lost(section))
	return time.Since(begun)
}
