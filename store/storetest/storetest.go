// Package storetest shows whether a store keeps the promises of package store:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Start: func(t *testing.T) storetest.Server {
//				address := startServer(t)
//				return storetest.Server{New: func() store.Store { return mystore.New(address) }}
//			},
//			Without: map[storetest.Promise]string{storetest.Acks: "one server only"},
//		})
//	}
//
// The suite runs on real servers, and needs no fake time. Option -run selects single promises by
// the name of the subtest. At the end of each subtest the lock must be free, and nobody may wait
// for it.
package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/promise"
	"github.com/go-relock/relock/store"
)

// Promise names a part of package store for a harness to leave out.
type Promise string

// The promises that a [Harness] may list in Without.
const (
	FIFO        Promise = "FIFO"        // the longest waiter is served, nobody overtakes, and Look counts the waiters
	Wakes       Promise = "Wakes"       // a waiter is woken when the lock is freed, well before the lease would have ended
	Tokens      Promise = "Tokens"      // Token draws tokens; without the promise, Token is errors.ErrUnsupported
	Kinds       Promise = "Kinds"       // read-write locks and semaphores, in one queue; without the promise, Check refuses them
	Semaphores  Promise = "Semaphores"  // a part of Kinds: without the promise, Check refuses semaphores
	Acks        Promise = "Acks"        // replicas confirm; without the promise, Check refuses Acks
	Watch       Promise = "Watch"       // the store is a store.Watcher, and tells of Break
	CheckServer Promise = "CheckServer" // the store is a store.Checker
	Several     Promise = "Several"     // the store is a store.Several, and takes mutexes in one step
	WaitGraph   Promise = "WaitGraph"   // the store is a store.WaitGraph
	Lending     Promise = "Lending"     // the store is a store.Lending
	Asking      Promise = "Asking"      // the store is a store.Asking, whose clients hear of Want
	Announcing  Promise = "Announcing"  // the store is a store.Announcing
	Listing     Promise = "Listing"     // the store is a store.Listing
	Queueing    Promise = "Queueing"    // the store is a store.Queueing

	// ReaderTokens is a part of Kinds and Tokens: the token of a reader is that of the last writer.
	// Without the promise, each reader has a token of its own.
	ReaderTokens Promise = "ReaderTokens"
)

// Harness describes a store to the suite.
type Harness struct {
	// Start returns the server of one subtest. Subtests may share a server: each one uses new lock
	// names.
	Start func(t *testing.T) Server
	// Around runs the body of one subtest, for instance in a bubble: synctest.Test. If nil, the
	// body is called.
	Around func(t *testing.T, body func(*testing.T))
	// Without lists the promises the store does not make, each with the reason. Run logs each of
	// them.
	Without map[Promise]string
	// TTL is the lease in subtests of expiry: long enough for a few round trips. 0 is 500 ms.
	TTL time.Duration
	// Parallel runs the subtests that do not interrupt the server beside each other, behind the
	// others, as many at a time as flag -parallel says. [Server.Lose] leaves the locks of other
	// names alone then.
	Parallel bool
	// BadNames are names for Check to refuse, beside the empty name.
	BadNames []string
	// SameNames are pairs of spellings of one lock.
	SameNames [][2]string
	// Shown returns the name that State and Busy have for a hold. nil: its ID.
	Shown func(store.ID) store.ID
}

// Server keeps the locks of one subtest. Without a hook, Run logs each subtest in need of the hook.
type Server struct {
	// New returns a store of one process. All stores of a server share their locks. The suite
	// closes the store.
	New func() store.Store
	// Interrupt makes the server silent or unreachable for every store, until restore is called.
	Interrupt func() (restore func())
	// Lose makes the server lose the holds of a lock, or everything.
	Lose func(name string)
}

// Times that suit real servers.
const (
	long     = time.Minute      // a lease without an end
	patience = 30 * time.Second // limit of everything that takes no time
	prompt   = 2 * time.Second  // limit of a call whose context is done
)

// Needs of a subtest beside a promise of the store.
const (
	interrupt Promise = "Server.Interrupt"
	lose      Promise = "Server.Lose"
)

// test is one subtest.
type test struct {
	name  string
	run   func(b *bench)
	needs Promise // empty: every store can run the subtest
	also  Promise // a second need
	kind  store.Kind
	halts bool // interrupts the server, if the server can be interrupted
}

// Run runs the suite, and logs every promise in h.Without.
func Run(t *testing.T, h Harness) {
	t.Helper()
	promise.Log(t, h.Without)
	if h.TTL == 0 {
		h.TTL = 500 * time.Millisecond
	}
	for _, c := range allTests() {
		halts := c.halts || c.needs == interrupt || c.also == interrupt
		promise.Run(t, c.name, h.Parallel && !halts, h.Around, func(t *testing.T) { t.Helper(); h.run(t, c) })
	}
}

// allTests returns the suite. One writer, and a semaphore of one, keep the promises of a mutex.
func allTests() []test {
	stays := slices.Concat(takeTests, waitTests, holdTests)
	others := slices.Concat(renewTests, faultTests)
	return slices.Concat(
		stays, others, optionalTests, kindTests, severalTests, showTests, lendTests, listTests, queueTests, passTests,
		as("Writer", store.ReadWrite, Kinds, stays, others), as("Permit", store.Semaphore, Semaphores, stays),
	)
}

// as returns the tests for another kind of lock.
func as(name string, kind store.Kind, promise Promise, lists ...[]test) []test {
	tests := slices.Concat(lists...)
	for i := range tests {
		tests[i].name, tests[i].kind, tests[i].also = name+": "+tests[i].name, kind, promise
	}
	return tests
}

// run runs one subtest, and then requires a free lock.
func (h Harness) run(t *testing.T, c test) {
	t.Helper()
	b := newBench(t, h)
	if racing, ok := b.st.(store.Racing); ok && racing.Races() {
		require.False(t, b.promises(FIFO), "waiters race: the harness must list FIFO in Without")
	}
	if !b.suite.Has(t, c.needs, c.also) {
		return
	}
	if c.kind != store.Mutex {
		b.begin(c.kind)
	}
	c.run(b)
	b.requireFree()
}
