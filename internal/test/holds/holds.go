// Package holds has what tests of a store say again and again: a hold is claimed, taken, waited for
// and looked at.
package holds

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// hang bounds a wait that should not last.
const hang = time.Minute

var lastID atomic.Int64

// Claim returns the claim of a new hold. Each hold is of another client.
func Claim(name string, ttl time.Duration) store.Claim {
	n := lastID.Add(1)
	return store.Claim{Name: name, ID: store.ID(fmt.Sprintf("client%d:1:%d", n, n)), TTL: ttl, Limit: 1}
}

// Nothing ignores the progress of a wait.
func Nothing(store.Progress) {}

// Take has a hold enter a free lock.
func Take(t testing.TB, s store.Store, a store.Claim) store.Lease {
	t.Helper()
	l, err := s.Try(t.Context(), a)
	require.NoError(t, err)
	return l
}

// Forget forgets a claim.
func Forget(t testing.TB, s store.Store, a store.Claim) {
	t.Helper()
	require.NoError(t, s.Forget(t.Context(), []store.Claim{a})[0])
}

// RequireOwner requires that a hold has a lock; an empty ID: that nobody has.
func RequireOwner(t testing.TB, s store.Store, name string, id store.ID) {
	t.Helper()
	state, err := s.Look(t.Context(), store.Claim{Name: name})
	require.NoError(t, err)
	require.Equal(t, id, state.Owner)
}

// A Waiter is a call of Wait in a goroutine of its own.
type Waiter struct {
	Claim store.Claim
	Done  chan struct{} // closed when Wait has returned

	// What Wait has returned, and when.
	Lease store.Lease
	Err   error
	At    time.Time

	queued chan struct{}
}

// Wait calls Wait, and returns when the store has told that the hold waits.
func Wait(t testing.TB, s store.Store, a store.Claim) *Waiter {
	t.Helper()
	w := Start(t, s, a)
	w.AwaitQueued(t)
	return w
}

// Start calls Wait.
func Start(t testing.TB, s store.Store, a store.Claim) *Waiter {
	t.Helper()
	w := &Waiter{Claim: a, queued: make(chan struct{}, 100), Done: make(chan struct{})}
	go func() {
		defer close(w.Done)
		w.Lease, w.Err = s.Wait(t.Context(), a, func(store.Progress) {
			select {
			case w.queued <- struct{}{}:
			default:
			}
		})
		w.At = time.Now()
	}()
	return w
}

// AwaitQueued waits until the store tells, once more, that the hold waits.
func (w *Waiter) AwaitQueued(t testing.TB) {
	t.Helper()
	select {
	case <-w.queued:
	case <-w.Done:
		require.FailNow(t, "Wait has returned, and the hold has not waited", "%v", w.Err)
	case <-time.After(hang):
		require.FailNow(t, "the hold is not queued")
	}
}

// Get returns the lease of the hold, which must get the lock within a minute.
func (w *Waiter) Get(t testing.TB) store.Lease {
	t.Helper()
	return w.GetWithin(t, hang)
}

// GetWithin is Get with another limit.
func (w *Waiter) GetWithin(t testing.TB, limit time.Duration) store.Lease {
	t.Helper()
	select {
	case <-w.Done:
	case <-time.After(limit):
		require.FailNow(t, "the waiter does not get the lock", "after %s", limit)
	}
	require.NoError(t, w.Err)
	return w.Lease
}
