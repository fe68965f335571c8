package faults_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/ticket"
)

// What if a command of a ticket is lost, or runs late or twice?

// A journey is two processes between which sections travel.
type journey struct{ *stage.Scene }

// newJourney is a journey with a lock of its own.
func newJourney(w *stage.Arena, name string) journey {
	s := &stage.Scene{Arena: w, P: w.Peer(), Other: w.Peer()}
	s.L, s.Far = s.P.NewLock(name), s.Other.NewLock(name)
	return journey{s}
}

// lend enters in P, and returns the section with a ticket.
func (s journey) lend() (section context.Context, given ticket.Ticket) {
	s.T.Helper()
	section = s.Enter(s.T.Context(), s.L)
	given, err := ticket.Lend(section, s.L)
	require.NoError(s.T, err)
	return section, given
}

// use borrows or accepts.
func (s journey) use(verb func(context.Context, *relock.Lock, ticket.Ticket) (context.Context, error), l *relock.Lock, t ticket.Ticket) context.Context {
	s.T.Helper()
	var section context.Context
	require.NoError(s.T, s.Call(func() (err error) {
		section, err = verb(s.T.Context(), l, t)
		return err
	}))
	stage.Keep(s.T, section)
	return section
}

// travel is a loan that is recalled, and a section that is handed off, while others wait.
func (s journey) travel() {
	s.T.Helper()
	section, given := s.lend()
	loan := s.use(ticket.Borrow, s.Far, given)
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
	require.Greater(s.T, token, given.Token)

	waiter = s.Start(s.T.Context(), s.Far)
	s.AwaitWaiters(s.L.Name(), 1)
	given, err := ticket.HandOff(mine, s.L)
	require.NoError(s.T, err)
	there := s.use(ticket.Accept, s.Far, given)
	require.Equal(s.T, token, s.Draw(there, s.Far))
	require.True(s.T, waiter.Waits())
	s.Leave(there, s.Far)
	waiter.Leave()
	s.RequireFree(s.L.Name())
}

func TestAConnectionMayBreakAtAnyCommandOfAJourney(t *testing.T) {
	w := stage.OnShared(t)
	for name, action := range map[string]redistest.Action{
		"before it": redistest.CutBefore(redistest.EOF), "after it": redistest.DropReply(redistest.EOF),
	} {
		for _, lender := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lender %t", name, lender), func(t *testing.T) {
				w := w.In(t)
				for n := 0; ; n++ {
					s := newJourney(w, fmt.Sprint(t.Name(), n))
					victim := s.Other
					if lender {
						victim = s.P
					}
					rule := victim.Faults.Once(stage.OfInterest, action).Skip(n)
					s.travel()
					require.NoError(t, s.P.Close())
					require.NoError(t, s.Other.Close())
					if rule.Hits() == 0 { // there are no more commands
						t.Logf("%d commands, each of them once", n)
						require.GreaterOrEqual(t, n, 6)
						return
					}
				}
			})
		}
	}
}

func TestACommandOfATicketThatRunsTwiceDoesWhatItDoesOnce(t *testing.T) {
	s := newJourney(stage.OnShared(t), "a")
	for _, victim := range []*stage.Peer{s.P, s.Other} {
		victim.Faults.On(s.Script(slices.Concat(stage.TicketScripts, stage.ScriptNames)...), redistest.Duplicate(2, redistest.First))
	}
	s.travel()
}
