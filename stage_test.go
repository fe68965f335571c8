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

// A Stage is where a test plays: a world in fake time (helpers_test.go), or an arena on real servers
// (arena_test.go). The words are the same on both. Only the clock differs.
type Stage struct {
	T     *testing.T
	clock clock
	look  func(name string) (store.State, error) // reads a lock in the store

	// limit bounds what should happen. In fake time, limit costs nothing and is hours. On a real
	// server, limit is a few seconds and leaves room for a busy machine under the race detector. The
	// subject of a test has a bound of its own: see within.
	Limit time.Duration
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

func (fakeClock) settle() { Settle() }

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
	Settle()
	require.True(t, cond(), append([]any{msg}, args...)...)
}

// Within returns the stage with another limit.
func (s *Stage) Within(limit time.Duration) *Stage {
	sub := *s
	sub.Limit = limit
	return &sub
}

// Enter locks, and fails the test if that fails or takes longer than the limit. The wait itself has
// no deadline, so that a lock that comes late is told from a lock that never comes.
func (s *Stage) Enter(ctx context.Context, l *relock.Lock) context.Context {
	s.T.Helper()
	var section context.Context
	require.NoError(s.T, s.Call(func() (err error) {
		section, err = l.Lock(ctx) //nolint:fatcontext // the section is the result
		return err
	}))
	Keep(s.T, section)
	return section
}

// Leave unlocks, and fails the test if that fails or takes longer than the limit.
func (s *Stage) Leave(section context.Context, l *relock.Lock) {
	s.T.Helper()
	require.NoError(s.T, s.Call(func() error { return l.Unlock(section) }))
}

// Call runs f, and fails the test if f does not come back within the limit.
func (s *Stage) Call(f func() error) error {
	s.T.Helper()
	back, err := s.clock.call(s.Limit, f)
	if !back {
		s.T.Fatalf("the call has not come back after %s", s.Limit)
	}
	return err
}

// Attempt is a call of Lock, or the like, in a goroutine of its own.
type Attempt struct {
	s     *Stage
	Lock  *relock.Lock // of a call that start began
	Begun time.Time
	Done  chan struct{}

	// Set when done is closed.
	Ctx   context.Context
	Err   error
	Ended time.Time
}

// Locking is Lock or TryLock, or TryLockFor with its wait bound to it.
type Locking func(context.Context) (context.Context, error)

// TryFor returns TryLockFor with its wait.
func TryFor(l *relock.Lock, wait time.Duration) Locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// Unlock returns Unlock, for begin.
func Unlock(l *relock.Lock) Locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) }
}

// Begin starts a call. In fake time, begin returns when the call has ended or waits for something.
func (s *Stage) Begin(ctx context.Context, lock Locking) *Attempt {
	s.T.Helper()
	a := &Attempt{s: s, Begun: time.Now(), Done: make(chan struct{})}
	s.T.Cleanup(func() { runtime.KeepAlive(a) }) // as keep
	go func() {
		defer close(a.Done)
		a.Ctx, a.Err = lock(ctx)
		a.Ended = time.Now()
	}()
	s.clock.settle()
	return a
}

// Start begins to lock. The attempt can leave.
func (s *Stage) Start(ctx context.Context, l *relock.Lock) *Attempt {
	s.T.Helper()
	a := s.Begin(ctx, l.Lock)
	a.Lock = l
	return a
}

// Within returns the attempt with another limit, which counts from the next wait for the attempt.
func (a *Attempt) Within(limit time.Duration) *Attempt {
	a.s = a.s.Within(limit)
	return a
}

// Waits says whether the call has not returned yet.
func (a *Attempt) Waits() bool {
	a.s.clock.settle()
	return !IsClosed(a.Done)
}

// Comes waits for the call for d, and says whether the call has returned.
func (a *Attempt) Comes(d time.Duration) bool { return a.s.clock.comes(d, a.Done) }

// Result waits until the call returns.
func (a *Attempt) Result() (context.Context, error) {
	a.s.T.Helper()
	if !a.s.clock.comes(a.s.Limit, a.Done) {
		a.s.T.Fatalf("the call has not come back after %s", a.s.Limit)
	}
	return a.Ctx, a.Err
}

// Failure waits until the call returns, and returns its error.
func (a *Attempt) Failure() error {
	a.s.T.Helper()
	_, err := a.Result()
	return err
}

// Section waits until the call has entered.
func (a *Attempt) Section() context.Context {
	a.s.T.Helper()
	section, err := a.Result()
	require.NoError(a.s.T, err)
	return section
}

// Leave waits until the call has entered, and unlocks.
func (a *Attempt) Leave() {
	a.s.T.Helper()
	a.s.Leave(a.Section(), a.Lock)
}

// Took returns how long the call lasted.
func (a *Attempt) Took() time.Duration {
	a.s.T.Helper()
	_, _ = a.Result()
	return a.Ended.Sub(a.Begun)
}

// Keep refers to a section until its test ends. A section that the test does not mention any more
// would be a leak, and not be renewed.
func Keep(t *testing.T, section context.Context) { //nolint:revive // t comes first in a test helper
	t.Helper()
	t.Cleanup(func() { runtime.KeepAlive(section) })
}

// Ends waits until a context ends, and returns how long that took, and the cause.
func (s *Stage) Ends(ctx context.Context) (time.Duration, error) {
	s.T.Helper()
	begun := time.Now()
	if !s.clock.comes(s.Limit, ctx.Done()) {
		s.T.Fatalf("the context has not ended after %s", s.Limit)
	}
	return time.Since(begun), context.Cause(ctx)
}

// Lost waits until a section has ended, and fails the test if the lock was not lost.
func (s *Stage) Lost(section context.Context) relock.LossReason {
	s.T.Helper()
	_, cause := s.Ends(section)
	var lost *relock.LostError
	require.ErrorAs(s.T, cause, &lost)
	require.ErrorIs(s.T, lost, relock.ErrLockLost)
	return lost.Reason
}

// state reads a lock in the store.
func (s *Stage) state(name string) store.State {
	s.T.Helper()
	state, err := s.look(name)
	require.NoError(s.T, err)
	return state
}

// Owner returns the hold that has the lock in the store; empty if nobody has the lock.
func (s *Stage) Owner(name string) string { s.T.Helper(); return string(s.state(name).Owner) }

// Count returns the count of the hold that has the lock in the store.
func (s *Stage) Count(name string) int { s.T.Helper(); return s.state(name).Count }

// Lease returns what is left of a lock's lease in the store.
func (s *Stage) Lease(name string) time.Duration { s.T.Helper(); return s.state(name).TTL }

// Waiters returns how many holds queue for a lock in the store.
func (s *Stage) Waiters(name string) int { s.T.Helper(); return s.state(name).Waiters }

// Free says whether nobody has the lock in the store, and nobody waits.
func (s *Stage) Free(name string) bool {
	state, err := s.look(name)
	return err == nil && state.Owner == "" && state.Waiters == 0
}

// RequireFree fails unless nobody has the locks in the store, and nobody waits. Commands in flight
// have until the limit.
func (s *Stage) RequireFree(names ...string) {
	s.T.Helper()
	for _, name := range names {
		s.clock.require(s.T, s.Limit, func() bool { return s.Free(name) }, "%q is free and nobody waits", name)
	}
}

// RequireOwner fails unless the section's hold has the lock in the store.
func (s *Stage) RequireOwner(name string, section context.Context) { //nolint:revive // the section does not bound the call
	s.T.Helper()
	holder, hold := HolderOf(s.T, section), s.Owner(name)
	require.True(s.T, strings.HasPrefix(hold, holder.String()+":"), "%s is in, and the store says %q", holder, hold)
}

// RequireCount fails unless the lock is held that often in the store, now.
func (s *Stage) RequireCount(name string, want int) {
	s.T.Helper()
	s.clock.settle()
	require.Equal(s.T, want, s.Count(name), "the count of %q in the store", name)
}

// AwaitCount fails unless the lock is held that often in the store within the limit.
func (s *Stage) AwaitCount(name string, want int) {
	s.T.Helper()
	s.clock.require(s.T, s.Limit, func() bool {
		state, err := s.look(name)
		return err == nil && state.Count == want
	}, "the count of %q is %d", name, want)
}

// AwaitWaiters fails unless n queue within the limit.
func (s *Stage) AwaitWaiters(name string, n int) {
	s.T.Helper()
	s.clock.require(s.T, s.Limit+time.Duration(n)*10*time.Millisecond, func() bool {
		state, err := s.look(name)
		return err == nil && state.Waiters == n
	}, "%d wait for %q", n, name)
}

// HolderOf returns the holder of a section.
func HolderOf(t *testing.T, section context.Context) relock.Holder { //nolint:revive // t comes first in a test helper
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
