package stage

import (
	"context"

	"github.com/go-relock/relock"
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
