package stage

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
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
	stuck = s.P.Faults.Once(s.Script(script), redistest.Hold()).Skip(skip)
	a := s.Start(ctx, s.L)
	stuck.WaitHits(s.T, 1)
	require.True(s.T, a.Waits())
	cancel()
	require.True(s.T, IsDone(a.Within(Promptly).Failure()), "%v", a.Err)
	require.Equal(s.T, ctx, a.Ctx, "the context comes back as it was")
	return stuck
}

// Unchanged runs f, and fails the test if the owner of the lock or the queue are others then.
func (s *Scene) Unchanged(f func()) {
	s.T.Helper()
	hold, count := s.Owner("a"), s.Count("a")
	queue := s.Queue("a")
	f()
	require.Equal(s.T, hold, s.Owner("a"))
	require.Equal(s.T, count, s.Count("a"))
	require.Equal(s.T, queue, s.Queue("a"))
}

// Lend enters in P, and returns the section with a ticket.
func (s *Scene) Lend() (section context.Context, ticket relock.Ticket) {
	s.T.Helper()
	section = s.Enter(s.T.Context(), s.L)
	ticket, err := s.L.Lend(section)
	require.NoError(s.T, err)
	return section, ticket
}

// Use borrows or accepts.
func (s *Scene) Use(verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) context.Context {
	s.T.Helper()
	var section context.Context
	require.NoError(s.T, s.Call(func() (err error) {
		section, err = verb(s.T.Context(), t) //nolint:fatcontext // the section is the result
		return err
	}))
	Keep(s.T, section)
	return section
}

// HandOff enters in P, and returns a ticket to continue with.
func (s *Scene) HandOff() relock.Ticket {
	s.T.Helper()
	ticket, err := s.L.HandOff(s.Enter(s.T.Context(), s.L))
	require.NoError(s.T, err)
	return ticket
}

// Journey is a loan that is recalled, and a section that is handed off, while others wait.
func (s *Scene) Journey() {
	s.T.Helper()
	section, ticket := s.Lend()
	loan := s.Use(s.Far.Borrow, ticket)
	waiter := s.Start(s.T.Context(), s.L)
	s.AwaitWaiters(s.L.Name(), 1)
	s.Leave(section, s.L)
	_, cause := s.Ends(loan)
	require.ErrorIs(s.T, cause, relock.ErrRecalled)
	require.True(s.T, waiter.Waits(), "a loan is open")
	s.Leave(loan, s.Far)
	mine := waiter.Section()
	s.RequireCount(s.L.Name(), 1)
	token := s.Draw(mine, s.L)
	require.Greater(s.T, token, ticket.Token)

	waiter = s.Start(s.T.Context(), s.Far)
	s.AwaitWaiters(s.L.Name(), 1)
	ticket, err := s.L.HandOff(mine)
	require.NoError(s.T, err)
	there := s.Use(s.Far.Accept, ticket)
	require.Equal(s.T, token, s.Draw(there, s.Far))
	require.True(s.T, waiter.Waits())
	s.Leave(there, s.Far)
	waiter.Leave()
	s.RequireFree(s.L.Name())
}

// GiveUpOn uses a ticket, lets the script hang on the wire, and cancels.
func (s *Scene) GiveUpOn(script string, verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) *redistest.Rule {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	defer cancel()
	stuck := s.Other.Faults.Once(s.Script(script), redistest.Hold())
	a := s.Begin(ctx, func(ctx context.Context) (context.Context, error) { return verb(ctx, t) })
	stuck.WaitHits(s.T, 1)
	cancel()
	require.True(s.T, IsDone(a.Within(Promptly).Failure()), "%v", a.Err)
	return stuck
}
