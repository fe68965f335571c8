package relock_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/store"
)

// This file is the vocabulary of all tests. Which words begin, wait and end a call of the library?

// A stage is where a test plays: a world in fake time (helpers_test.go), or an arena on real servers
// (arena_test.go). The words are the same on both. Only the clock differs.
type stage struct {
	t     *testing.T
	clock clock
	look  func(name string) (store.State, error) // reads a lock in the store

	// limit bounds what should happen. In fake time, limit costs nothing and is hours. On a real
	// server, limit is a few seconds and leaves room for a busy machine under the race detector. The
	// subject of a test has a bound of its own: see within.
	limit time.Duration
}

// A clock is the fake one or the real one.
type clock interface {
	// settle lets everything happen that can happen without time passing. On a real clock, settle
	// does nothing.
	settle()
	// comes waits for done, and says whether done came within limit.
	comes(limit time.Duration, done <-chan struct{}) bool
	// call runs f, and says whether f came back within limit.
	call(limit time.Duration, f func() error) (back bool, err error)
	// require fails unless cond is true: at once in fake time, within limit on a real clock.
	require(t *testing.T, limit time.Duration, cond func() bool, msg string, args ...any)
}

// fakeClock is the clock of a testing/synctest bubble.
type fakeClock struct{}

func (fakeClock) settle() { settle() }

func (fakeClock) comes(limit time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (fakeClock) call(_ time.Duration, f func() error) (bool, error) { return true, f() }

func (fakeClock) require(t *testing.T, _ time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	settle()
	require.True(t, cond(), append([]any{msg}, args...)...)
}

// within returns the stage with another limit.
func (s *stage) within(limit time.Duration) *stage {
	sub := *s
	sub.limit = limit
	return &sub
}

// enter locks, and fails the test if that fails or takes longer than the limit. The wait itself has
// no deadline, so that a lock that comes late is told from a lock that never comes.
func (s *stage) enter(ctx context.Context, l *relock.Lock) context.Context {
	s.t.Helper()
	var section context.Context
	require.NoError(s.t, s.call(func() (err error) {
		section, err = l.Lock(ctx) //nolint:fatcontext // the section is the result
		return err
	}))
	keep(s.t, section)
	return section
}

// leave unlocks, and fails the test if that fails or takes longer than the limit.
func (s *stage) leave(section context.Context, l *relock.Lock) {
	s.t.Helper()
	require.NoError(s.t, s.call(func() error { return l.Unlock(section) }))
}

// call runs f, and fails the test if f does not come back within the limit.
func (s *stage) call(f func() error) error {
	s.t.Helper()
	back, err := s.clock.call(s.limit, f)
	if !back {
		s.t.Fatalf("the call has not come back after %s", s.limit)
	}
	return err
}

// attempt is a call of Lock, or the like, in a goroutine of its own.
type attempt struct {
	s     *stage
	lock  *relock.Lock // of a call that start began
	begun time.Time
	done  chan struct{}

	// Set when done is closed.
	ctx   context.Context
	err   error
	ended time.Time
}

// locking is Lock or TryLock, or TryLockFor with its wait bound to it.
type locking func(context.Context) (context.Context, error)

// tryFor returns TryLockFor with its wait.
func tryFor(l *relock.Lock, wait time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// unlock returns Unlock, for begin.
func unlock(l *relock.Lock) locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) }
}

// begin starts a call. In fake time, begin returns when the call has ended or waits for something.
func (s *stage) begin(ctx context.Context, lock locking) *attempt {
	s.t.Helper()
	a := &attempt{s: s, begun: time.Now(), done: make(chan struct{})}
	s.t.Cleanup(func() { runtime.KeepAlive(a) }) // as keep
	go func() {
		defer close(a.done)
		a.ctx, a.err = lock(ctx)
		a.ended = time.Now()
	}()
	s.clock.settle()
	return a
}

// start begins to lock. The attempt can leave.
func (s *stage) start(ctx context.Context, l *relock.Lock) *attempt {
	s.t.Helper()
	a := s.begin(ctx, l.Lock)
	a.lock = l
	return a
}

// within returns the attempt with another limit, which counts from the next wait for the attempt.
func (a *attempt) within(limit time.Duration) *attempt {
	a.s = a.s.within(limit)
	return a
}

// waits says whether the call has not returned yet.
func (a *attempt) waits() bool {
	a.s.clock.settle()
	return !isClosed(a.done)
}

// comes waits for the call for d, and says whether the call has returned.
func (a *attempt) comes(d time.Duration) bool { return a.s.clock.comes(d, a.done) }

// result waits until the call returns.
func (a *attempt) result() (context.Context, error) {
	a.s.t.Helper()
	if !a.s.clock.comes(a.s.limit, a.done) {
		a.s.t.Fatalf("the call has not come back after %s", a.s.limit)
	}
	return a.ctx, a.err
}

// failure waits until the call returns, and returns its error.
func (a *attempt) failure() error {
	a.s.t.Helper()
	_, err := a.result()
	return err
}

// section waits until the call has entered.
func (a *attempt) section() context.Context {
	a.s.t.Helper()
	section, err := a.result()
	require.NoError(a.s.t, err)
	return section
}

// leave waits until the call has entered, and unlocks.
func (a *attempt) leave() {
	a.s.t.Helper()
	a.s.leave(a.section(), a.lock)
}

// took returns how long the call lasted.
func (a *attempt) took() time.Duration {
	a.s.t.Helper()
	_, _ = a.result()
	return a.ended.Sub(a.begun)
}

// keep refers to a section until its test ends. A section that the test does not mention any more
// would be a leak, and not be renewed.
func keep(t *testing.T, section context.Context) { //nolint:revive // t comes first in a test helper
	t.Helper()
	t.Cleanup(func() { runtime.KeepAlive(section) })
}

// ends waits until a context ends, and returns how long that took, and the cause.
func (s *stage) ends(ctx context.Context) (time.Duration, error) {
	s.t.Helper()
	begun := time.Now()
	if !s.clock.comes(s.limit, ctx.Done()) {
		s.t.Fatalf("the context has not ended after %s", s.limit)
	}
	return time.Since(begun), context.Cause(ctx)
}

// lost waits until a section has ended, and fails the test if the lock was not lost.
func (s *stage) lost(section context.Context) relock.LossReason {
	s.t.Helper()
	_, cause := s.ends(section)
	var lost *relock.LostError
	require.ErrorAs(s.t, cause, &lost)
	require.ErrorIs(s.t, lost, relock.ErrLockLost)
	return lost.Reason
}

// state reads a lock in the store.
func (s *stage) state(name string) store.State {
	s.t.Helper()
	state, err := s.look(name)
	require.NoError(s.t, err)
	return state
}

// owner returns the hold that has the lock in the store; empty if nobody has the lock.
func (s *stage) owner(name string) string { s.t.Helper(); return string(s.state(name).Owner) }

// count returns the count of the hold that has the lock in the store.
func (s *stage) count(name string) int { s.t.Helper(); return s.state(name).Count }

// lease returns what is left of a lock's lease in the store.
func (s *stage) lease(name string) time.Duration { s.t.Helper(); return s.state(name).TTL }

// waiters returns how many holds queue for a lock in the store.
func (s *stage) waiters(name string) int { s.t.Helper(); return s.state(name).Waiters }

// free says whether nobody has the lock in the store, and nobody waits.
func (s *stage) free(name string) bool {
	state, err := s.look(name)
	return err == nil && state.Owner == "" && state.Waiters == 0
}

// requireFree fails unless nobody has the locks in the store, and nobody waits. Commands in flight
// have until the limit.
func (s *stage) requireFree(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.clock.require(s.t, s.limit, func() bool { return s.free(name) }, "%q is free and nobody waits", name)
	}
}

// requireOwner fails unless the section's hold has the lock in the store.
func (s *stage) requireOwner(name string, section context.Context) { //nolint:revive // the section does not bound the call
	s.t.Helper()
	holder, hold := holderOf(s.t, section), s.owner(name)
	require.True(s.t, strings.HasPrefix(hold, holder.String()+":"), "%s is in, and the store says %q", holder, hold)
}

// requireCount fails unless the lock is held that often in the store, now.
func (s *stage) requireCount(name string, want int) {
	s.t.Helper()
	s.clock.settle()
	require.Equal(s.t, want, s.count(name), "the count of %q in the store", name)
}

// awaitCount fails unless the lock is held that often in the store within the limit.
func (s *stage) awaitCount(name string, want int) {
	s.t.Helper()
	s.clock.require(s.t, s.limit, func() bool {
		state, err := s.look(name)
		return err == nil && state.Count == want
	}, "the count of %q is %d", name, want)
}

// awaitWaiters fails unless n queue within the limit.
func (s *stage) awaitWaiters(name string, n int) {
	s.t.Helper()
	s.clock.require(s.t, s.limit+time.Duration(n)*10*time.Millisecond, func() bool {
		state, err := s.look(name)
		return err == nil && state.Waiters == n
	}, "%d wait for %q", n, name)
}

// holderOf returns the holder of a section.
func holderOf(t *testing.T, section context.Context) relock.Holder { //nolint:revive // t comes first in a test helper
	t.Helper()
	holder, ok := relock.HolderFrom(section)
	require.True(t, ok, "the context is in no open section")
	return holder
}

// wallClock is the real clock. Bounds are about the library, and not about the machine: the longest
// time that this process was late for anything, in nanoseconds, is added to every bound.
type wallClock struct{ late *atomic.Int64 }

func (wallClock) settle() {}

func (c wallClock) comes(limit time.Duration, done <-chan struct{}) bool {
	for _, d := range []func() time.Duration{func() time.Duration { return limit }, c.lateness} {
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

func (c wallClock) lateness() time.Duration { return time.Duration(c.late.Load()) }

func (c wallClock) call(limit time.Duration, f func() error) (back bool, err error) {
	var result error
	done := make(chan struct{})
	go func() { defer close(done); result = f() }()
	if !c.comes(limit, done) {
		return false, nil
	}
	return true, result
}

func (wallClock) require(t *testing.T, limit time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	redistest.Eventually(t, limit, cond, msg, args...)
}
