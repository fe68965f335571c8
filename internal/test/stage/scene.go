package stage

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// A Scene is two processes and a lock.
type Scene struct {
	*Arena
	P, Other *Peer
	L, Far   *relock.Lock // the same lock, in P and in Other
}

// Scene makes two processes with these options and a lock of each.
func (w *Arena) Scene(options ...relock.Option) *Scene {
	s := &Scene{Arena: w, P: w.Peer(options...), Other: w.Peer(options...)}
	s.L, s.Far = s.P.NewLock("a"), s.Other.NewLock("a")
	return s
}

// LockBy takes the lock in Other, so that P has to wait.
func (s *Scene) LockBy() (section context.Context) { return s.Enter(s.T.Context(), s.Far) }

// Nested enters twice.
func (s *Scene) Nested() (outer, inner context.Context) {
	outer = s.Enter(s.T.Context(), s.L)
	return outer, s.Enter(outer, s.L)
}

// GiveUp begins to lock, lets the script of the call hang on the wire, and cancels.
func (s *Scene) GiveUp(ctx context.Context, script string, skip int) (stuck *redistest.Rule) {
	s.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck = s.P.Faults.On(s.Script(script), redistest.Hold()).Skip(skip) // a busy machine may see a second attempt
	a := s.Start(ctx, s.L)
	stuck.WaitHits(s.T, 1)
	require.True(s.T, a.Waits())
	cancel()
	require.True(s.T, IsDone(a.Within(Promptly).Failure()), "%v", a.Err)
	stuck.Remove()
	require.Equal(s.T, a.Err, context.Cause(a.Ctx), "the context has ended")
	return stuck
}
