// Package locktest shows whether the API of package relock keeps its promises over a store:
//
//	func TestLocks(t *testing.T) {
//		server := startServer(t)
//		locktest.Run(t, func(t *testing.T, options ...relock.Option) *relock.Client {
//			client, err := relock.Open(mystore.New(server), options...)
//			require.NoError(t, err)
//			return client
//		})
//	}
//
// A [Harness] declares the promises that a store leaves out, and offers more to the suite, such as
// servers that lose data. The suite runs on real servers, and in a testing/synctest bubble. A
// [Harness] with Short runs a dozen subtests, for a store that has passed package storetest. Each
// promise is one subtest with a name for -run. At the end of each subtest every lock must be free,
// and nobody may wait.
package locktest

import (
	"errors"
	"testing"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/promise"
	"github.com/go-relock/relock/store"
)

// Promise is something that a store may leave out.
type Promise string

// The promises that a [Harness] may list in Without.
const (
	FIFO    Promise = "FIFO"    // the longest waiter is served, and State counts the waiters
	Names   Promise = "Names"   // State and refusals name the holder
	AnyName Promise = "AnyName" // names with colons and capitals; without the promise, NewLock refuses them
	Rest    Promise = "Rest"    // State tells the rest of a lease; without the promise, the whole lease
	Tokens  Promise = "Tokens"  // Token draws; without the promise it is errors.ErrUnsupported
	Acks    Promise = "Acks"    // WithReplicaAcks; without the promise, NewLock refuses it
	Watch   Promise = "Watch"   // a ForceUnlock ends the section at once
	Kinds   Promise = "Kinds"   // read-write locks and semaphores; without the promise, NewRWLock and NewSemaphore refuse them
	// Semaphores is a part of Kinds; without the promise, NewSemaphore refuses.
	Semaphores Promise = "Semaphores"
	// ReaderTokens is a part of Kinds and Tokens: the token of a reader is minus that of the last
	// writer; without the promise, each reader has a token of its own.
	ReaderTokens Promise = "ReaderTokens"
	Deadlocks    Promise = "Deadlocks" // a circle of waits is found, as the store is a store.WaitGraph
	Lending      Promise = "Lending"   // sections are lent, handed off and resumed; without the promise, Lend and the others refuse
)

// Harness is what the suite needs to know of a store.
type Harness struct {
	// Start returns the server of one subtest. Subtests may share a server: each subtest uses new
	// lock names.
	Start func(t *testing.T) Server
	// Around runs the body of one subtest, for instance in a bubble: synctest.Test. If nil, the
	// body is called.
	Around func(t *testing.T, body func(*testing.T))
	// Without has the promises that the store does not make, and the reasons. The suite logs them.
	Without map[Promise]string
	// TTL is a lease that the suite waits for to end. 0 is 1 s.
	TTL time.Duration
	// Short runs a dozen subtests, for a store that has passed package storetest: the other
	// promises are those of the Client, and are the same over each store. None of the dozen waits
	// for the end of a lease.
	Short bool
	// Parallel runs the subtests beside each other, as many at a time as flag -parallel says.
	// [Server.Lose] leaves the locks of other names alone then.
	Parallel bool
	// Replicas is how many replicas of the server can confirm a hold.
	Replicas int
}

// Server keeps the locks. If a hook is nil, the suite logs which subtests are not run.
type Server struct {
	// NewClient returns the Client of one process. The clients of a server share their locks. The
	// suite closes the client.
	NewClient func(options ...relock.Option) *relock.Client
	// Lose makes the server lose the holds of a lock, or everything.
	Lose func(name string)
}

// lose stands for a hook that a subtest needs.
const lose Promise = "Server.Lose"

// test is one subtest.
type test struct {
	name  string
	run   func(b *bench)
	needs Promise // empty: every store can run the subtest
	also  Promise // a second need
	short bool    // of those that Harness.Short runs
}

// Run runs the suite over a store that keeps all promises. All clients of one subtest share their
// locks, as processes that share a server do.
func Run(t *testing.T, newClient func(t *testing.T, options ...relock.Option) *relock.Client) {
	t.Helper()
	Harness{Start: func(t *testing.T) Server {
		t.Helper()
		return Server{NewClient: func(options ...relock.Option) *relock.Client {
			t.Helper()
			return newClient(t, options...)
		}}
	}}.Run(t)
}

// Run runs the suite, and logs every promise that the store does not make.
func (h Harness) Run(t *testing.T) {
	t.Helper()
	promise.Log(t, h.Without)
	if h.TTL == 0 {
		h.TTL = time.Second
	}
	for _, tests := range [][]test{
		enterTests, reentryTests, waitTests, leaseTests, lossTests, doTests, clientTests, optionalTests, kindTests,
		severalTests, lendTests,
	} {
		for _, c := range tests {
			if c.short || !h.Short {
				promise.Run(t, c.name, h.Parallel, h.Around, func(t *testing.T) { t.Helper(); h.run(t, c) })
			}
		}
	}
}

// run runs one subtest, and looks for locks that the subtest has left.
func (h Harness) run(t *testing.T, c test) {
	t.Helper()
	b := newBench(t, h)
	if !b.suite.Has(t, c.needs, c.also) {
		return
	}
	c.run(b)
	b.requireFree()
}

// sentinels are all kinds of errors. A call must match the kinds that its test names, and no other.
var sentinels = []error{
	relock.ErrLocked, relock.ErrNotHeld, relock.ErrLockLost, relock.ErrReleased, relock.ErrClosed, relock.ErrInvalid,
	relock.ErrNotReplicated, relock.ErrUnavailable, relock.ErrKind, store.ErrDeadlock, errors.ErrUnsupported,
}
