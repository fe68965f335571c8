package stage

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// A Stage is where a test plays: a [World] in fake time, or an [Arena] on real servers. The words
// are the same on both. Only the clock differs.
type Stage struct {
	T     *testing.T
	clock clock
	look  func(name string) (store.State, error) // reads a lock in the store

	// Limit bounds what should happen. In fake time, Limit costs nothing and is hours. On a real
	// server, Limit is a few seconds and leaves room for a busy machine under the race detector.
	// The subject of a test has a bound of its own: see Within.
	Limit time.Duration
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
		section, err = l.Lock(ctx)
		return err
	}))
	Keep(s.T, section)
	return section
}

// EnterAll locks several locks, and fails the test if that fails.
func (s *Stage) EnterAll(ctx context.Context, l *relock.Locks) context.Context {
	s.T.Helper()
	section := s.Begin(ctx, l.Lock).Section()
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

// Keep refers to a section until its test ends. A section that the test does not mention any more
// would be a leak, and not be renewed.
func Keep(t *testing.T, section context.Context) {
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
func (s *Stage) Lost(section context.Context) event.LossReason {
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
func (s *Stage) RequireOwner(name string, section context.Context) {
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
func HolderOf(t *testing.T, section context.Context) relock.Holder {
	t.Helper()
	holder, ok := relock.HolderFrom(section)
	require.True(t, ok, "the context is in no open section")
	return holder
}
