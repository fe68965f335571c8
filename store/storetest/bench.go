package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/promise"
	"github.com/go-relock/relock/store"
)

// bench holds the two processes and the lock of one subtest.
type bench struct {
	t      *testing.T
	ctx    context.Context
	h      Harness
	server Server
	suite  promise.Suite[Promise]
	kind   store.Kind // of the lock
	name   string
	st     store.Store
	other  store.Store

	left map[store.ID]store.Claim // failed with ErrUnsure
}

var lastID atomic.Int64

func newBench(t *testing.T, h Harness) *bench {
	t.Helper()
	b := &bench{t: t, ctx: t.Context(), h: h, server: h.Start(t), left: make(map[store.ID]store.Claim)}
	b.suite = promise.Suite[Promise]{
		Without: h.Without, Hooks: map[Promise]bool{interrupt: b.server.Interrupt != nil, lose: b.server.Lose != nil},
	}
	b.st, b.other = b.open(), b.open()
	b.begin(store.Mutex)
	return b
}

// begin takes a new lock of a kind.
func (b *bench) begin(kind store.Kind) {
	b.kind = kind
	b.name = b.newName()
}

func (b *bench) open() store.Store {
	st := b.server.New()
	b.t.Cleanup(func() { require.NoError(b.t, st.Close()) })
	return st
}

// newName returns an unused lock name, in the spelling of Check: small letters, as some stores take no
// others.
func (b *bench) newName() string {
	a, err := b.st.Check(store.Claim{Name: "storetest-" + strings.ToLower(rand.Text()), ID: newID("c"), TTL: long, Kind: b.kind, Limit: 1})
	require.NoError(b.t, err)
	return a.Name
}

func newID(client string) store.ID { return store.ID(fmt.Sprintf("%s:1:%d", client, lastID.Add(1))) }

// promises says whether the store makes a promise.
func (b *bench) promises(p Promise) bool { return b.suite.Reason(p) == "" }

// named returns the name of a hold in State and Busy.
func (b *bench) named(id store.ID) store.ID {
	if b.h.Shown == nil {
		return id
	}
	return b.h.Shown(id)
}

// last returns the error of a call.
func last[T any](_ T, err error) error { return err }

// client returns the client of an ID of newID.
func client(id store.ID) string {
	name, _, _ := strings.Cut(string(id), ":1:")
	return name
}

// claim returns the claim of a new hold of a new client. The hold is alone in the lock.
func (b *bench) claim(ttl time.Duration) store.Claim {
	return store.Claim{Name: b.name, ID: newID("storetest/" + rand.Text()), TTL: ttl, Kind: b.kind, Limit: 1}
}

// take makes a new hold with Try.
func (b *bench) take(st store.Store, a store.Claim) store.Lease {
	before := time.Now()
	l, err := st.Try(b.ctx, a)
	require.NoError(b.t, err)
	require.Equal(b.t, a, l.Claim)
	b.requireSent(before, l)
	return l
}

func (b *bench) requireSent(before time.Time, l store.Lease) {
	require.False(b.t, l.Sent.Before(before), "Lease.Sent is before the call")
	require.False(b.t, l.Sent.After(time.Now()), "Lease.Sent is after the reply")
	require.Equal(b.t, isMonotonic(time.Now()), isMonotonic(l.Sent), "Lease.Sent is not a time of time.Now, with both clocks")
}

// isMonotonic says whether a time has a reading of the monotonic clock. Fake time has none.
func isMonotonic(t time.Time) bool { return strings.Contains(t.String(), " m=") }

func (b *bench) release(l store.Lease) {
	require.NoError(b.t, b.st.Release(b.ctx, l))
}

func (b *bench) look() store.State {
	state, err := b.other.Look(b.ctx, b.claim(long))
	require.NoError(b.t, err)
	return state
}

// requireOwner looks for the owner of the lock and its count. A store need not keep the counts of
// read-write locks and semaphores: then Count is 1.
func (b *bench) requireOwner(a store.Claim, count int) {
	state := b.look()
	require.Equal(b.t, b.named(a.ID), state.Owner)
	if b.kind == store.Mutex || state.Count != 1 {
		require.Equal(b.t, count, state.Count)
	}
}

// requireTTL looks for the rest of the lease.
func (b *bench) requireTTL(from, to time.Duration) {
	ttl := b.look().TTL
	require.Greater(b.t, ttl, from)
	require.LessOrEqual(b.t, ttl, to)
}

// requireLasts fails unless the store keeps the lock for ttl from sent on: for all of the lease that a
// hold counts on.
func (b *bench) requireLasts(sent time.Time, ttl time.Duration) {
	rest := b.look().TTL
	require.GreaterOrEqual(b.t, rest+time.Since(sent), ttl-store.Margin(ttl), "the lease is shorter than told")
}

func (b *bench) requireGone(err error) {
	require.ErrorIs(b.t, err, store.ErrGone)
	require.NotErrorIs(b.t, err, store.ErrUnsure)
}

// requireBusy fails unless err is a refusal that names one of the owners, or nobody.
func (b *bench) requireBusy(err error, owners ...store.ID) {
	var busy *store.Busy
	require.ErrorAs(b.t, err, &busy)
	require.NotErrorIs(b.t, err, store.ErrUnsure)
	b.requireRefusal(busy, owners...)
}

func (b *bench) requireRefusal(busy *store.Busy, owners ...store.ID) {
	require.NotNil(b.t, busy)
	names := []store.ID{""}
	for _, owner := range owners {
		names = append(names, b.named(owner))
	}
	require.Contains(b.t, names, busy.Owner)
	require.Positive(b.t, busy.TTL)
	require.LessOrEqual(b.t, busy.TTL, long)
}

// failed checks for an error. After ErrUnsure, failed notes the claim and forgets the claim until
// confirmed, as the cleanup of relock does.
func (b *bench) failed(a store.Claim, err error) {
	require.Error(b.t, err)
	if errors.Is(err, store.ErrUnsure) {
		b.left[a.ID] = a
		b.eventually("Forget is confirmed", b.forgotten)
	}
}

func (b *bench) forgotten() bool {
	var claims []store.Claim
	for _, a := range b.left {
		claims = append(claims, a)
	}
	return errors.Join(b.st.Forget(b.ctx, claims)...) == nil
}

// requireFree waits until nobody has the lock and nobody waits. A command without an answer may run
// late. Each round therefore forgets the unsure asks again.
func (b *bench) requireFree() {
	b.eventually("nothing is left", func() bool {
		state := b.look()
		return b.forgotten() && state.Owner == "" && state.Waiters == 0
	})
}

// eventually waits until ok returns true.
func (b *bench) eventually(want string, ok func() bool) {
	late := time.After(patience)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			require.FailNow(b.t, "does not happen: "+want)
		}
	}
}

// interrupt makes the server silent. The function restore returns when both processes have answers.
func (b *bench) interrupt() (restore func()) {
	end := sync.OnceFunc(b.server.Interrupt())
	b.t.Cleanup(end)
	return func() {
		end()
		b.eventually("the server answers again", func() bool {
			return errors.Join(last(b.st.Look(b.ctx, b.claim(long))), last(b.other.Look(b.ctx, b.claim(long)))) == nil
		})
	}
}

// happens waits until a channel is closed.
func (b *bench) happens(want string, c <-chan struct{}) {
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: "+want)
	}
}

// pause lets time pass.
func (b *bench) pause(d time.Duration) { <-time.After(d) }

// promptly runs a call whose context ends, and fails if the call does not return.
func (b *bench) promptly(call func()) {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
	case <-time.After(bound.Of(prompt)):
		require.FailNow(b.t, "a call does not return promptly although its context is done")
	}
}

// waiter is a call of Wait.
type waiter struct {
	claim  store.Claim
	cancel context.CancelFunc
	queued chan struct{} // closed by the first progress with Queued
	first  store.Progress
	done   chan struct{} // closed behind lease, err and at
	lease  store.Lease
	err    error
	at     time.Time
}

// wait calls Wait, and returns when the hold is queued or Wait has returned.
func (b *bench) wait(st store.Store, a store.Claim) *waiter {
	w := b.start(st, a)
	select {
	case <-w.queued:
	case <-w.done:
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: Wait is queued")
	}
	return w
}

// start calls Wait.
func (b *bench) start(st store.Store, a store.Claim) *waiter {
	ctx, cancel := context.WithCancel(b.ctx)
	w := &waiter{claim: a, cancel: cancel, queued: make(chan struct{}), done: make(chan struct{})}
	var once sync.Once
	go func() {
		defer close(w.done)
		w.lease, w.err = st.Wait(ctx, a, func(p store.Progress) {
			if p.Queued {
				once.Do(func() { w.first = p; close(w.queued) })
			}
		})
		w.at = time.Now()
	}()
	b.t.Cleanup(func() {
		cancel()
		select {
		case <-w.done:
		case <-time.After(patience):
			b.t.Error("does not happen: Wait returns when its context is done")
		}
	})
	return w
}

// get waits until the waiter has the lock.
func (b *bench) get(w *waiter) store.Lease {
	b.happens("Wait returns with the lock", w.done)
	require.NoError(b.t, w.err)
	require.Equal(b.t, w.claim, w.lease.Claim)
	require.False(b.t, w.lease.Sent.After(w.at), "Lease.Sent is after the return of Wait")
	return w.lease
}

// end ends the context of a waiter before the grant.
func (b *bench) end(w *waiter) {
	w.cancel()
	b.promptly(func() { <-w.done })
	b.failed(w.claim, w.err)
}

// waits fails if Wait has returned.
func (b *bench) waits(w *waiter) {
	select {
	case <-w.done:
		require.FailNow(b.t, "Wait returns too early", "error: %v", w.err)
	default:
	}
}
