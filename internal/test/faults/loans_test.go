package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
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
func (s journey) lend() (section context.Context, ticket relock.Ticket) {
	s.T.Helper()
	section = s.Enter(s.T.Context(), s.L)
	ticket, err := s.L.Lend(section)
	require.NoError(s.T, err)
	return section, ticket
}

// use borrows or accepts.
func (s journey) use(verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) context.Context {
	s.T.Helper()
	var section context.Context
	require.NoError(s.T, s.Call(func() (err error) {
		section, err = verb(s.T.Context(), t)
		return err
	}))
	stage.Keep(s.T, section)
	return section
}

// handOff enters in P, and returns a ticket to continue with.
func (s journey) handOff() relock.Ticket {
	s.T.Helper()
	ticket, err := s.L.HandOff(s.Enter(s.T.Context(), s.L))
	require.NoError(s.T, err)
	return ticket
}

// travel is a loan that is recalled, and a section that is handed off, while others wait.
func (s journey) travel() {
	s.T.Helper()
	section, ticket := s.lend()
	loan := s.use(s.Far.Borrow, ticket)
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
	there := s.use(s.Far.Accept, ticket)
	require.Equal(s.T, token, s.Draw(there, s.Far))
	require.True(s.T, waiter.Waits())
	s.Leave(there, s.Far)
	waiter.Leave()
	s.RequireFree(s.L.Name())
}

// giveUpOn uses a ticket, lets the script hang on the wire, and cancels.
func (s journey) giveUpOn(script string, verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) *redistest.Rule {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	defer cancel()
	stuck := s.Other.Faults.On(s.Script(script), redistest.Hold()) // a busy machine may see a second attempt
	a := s.Begin(ctx, func(ctx context.Context) (context.Context, error) { return verb(ctx, t) })
	stuck.WaitHits(s.T, 1)
	cancel()
	require.True(s.T, stage.IsDone(a.Within(stage.Promptly).Failure()), "%v", a.Err)
	stuck.Remove()
	return stuck
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

func TestALostReplyOfATicketIsAskedForAgainAndCountsOnce(t *testing.T) {
	for _, script := range []string{stage.LuaBorrow, stage.LuaReturn, stage.LuaRecall, stage.LuaAccept} {
		for name, how := range stage.Breaks {
			t.Run(script+", "+name, func(t *testing.T) {
				s := newJourney(stage.OnShared(t), "a")
				victim := s.Other
				if script == stage.LuaRecall {
					victim = s.P
				}
				rule := victim.Faults.Once(s.Script(script), redistest.DropReply(how))
				s.travel()
				rule.WaitHits(t, 1)
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

func TestALostReplyOfALoanThatFollowsIsNoLoss(t *testing.T) {
	const ttl = 1200 * time.Millisecond
	s := journey{stage.Apart(t).Scene(relock.WithTTL(ttl))}
	section, ticket := s.lend()
	loan := s.use(s.Far.Borrow, ticket)
	rule := s.Other.Faults.On(s.Script(stage.LuaFollow), redistest.DropReply(redistest.Reset)).Times(2)
	stage.SleepUntil(time.Now().Add(2 * ttl))
	rule.WaitHits(t, 2)
	require.NoError(t, loan.Err())
	s.Leave(loan, s.Far)
	s.Leave(section, s.L)
	s.RequireFree("a")
}

func TestALateCommandOfATicketTouchesNothingThatCameLater(t *testing.T) {
	// Each leaves the lock with a later section in P, and returns what is stuck.
	for what, act := range map[string]func(s journey) *redistest.Rule{
		"Borrow": func(s journey) *redistest.Rule {
			section, ticket := s.lend()
			stuck := s.giveUpOn(stage.LuaBorrow, s.Far.Borrow, ticket)
			s.Leave(section, s.L)
			return stuck
		},
		"the Unlock of a loan": func(s journey) *redistest.Rule {
			section, ticket := s.lend()
			loan := s.use(s.Far.Borrow, ticket)
			stuck := s.Other.Faults.Once(s.Script(stage.LuaReturn), redistest.Hold())
			s.Leave(loan, s.Far) // the first attempt hangs, the second is answered
			s.Leave(section, s.L)
			return stuck
		},
		"the Unlock of a lender": func(s journey) *redistest.Rule {
			section, ticket := s.lend()
			loan := s.use(s.Far.Borrow, ticket)
			stuck := s.P.Faults.Once(s.Script(stage.LuaRecall), redistest.Hold())
			s.Leave(section, s.L)
			s.Leave(loan, s.Far)
			return stuck
		},
		"Accept of a section that another one continues": func(s journey) *redistest.Rule {
			ticket := s.handOff()
			stuck := s.giveUpOn(stage.LuaAccept, s.Far.Accept, ticket)
			third := s.Peer().NewLock("a")
			s.Leave(s.use(third.Accept, ticket), third)
			return stuck
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := journey{stage.OnShared(t).Scene()}
			stuck := act(s)
			section, ticket := s.lend()
			loan := s.use(s.Far.Borrow, ticket)
			s.Unchanged(func() { require.NotEmpty(t, stuck.Release(t)) })
			s.Leave(section, s.L)
			require.Equal(t, 1, s.Count("a"), "the loan is open")
			s.Leave(loan, s.Far)
			s.RequireFree("a")
		})
	}
}

func TestALateTicketThatNobodyWantsIsTakenBackInTime(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	t.Run("Borrow", func(t *testing.T) {
		s := journey{stage.Apart(t).Scene(relock.WithTTL(ttl))}
		section, ticket := s.lend()
		s.giveUpOn(stage.LuaBorrow, s.Far.Borrow, ticket).Release(t) // a loan, for nobody
		s.Leave(section, s.L)
		s.Within(ttl + s.Limit).RequireFree("a")
	})
	t.Run("Accept", func(t *testing.T) {
		s := journey{stage.Apart(t).Scene(relock.WithTTL(ttl))}
		s.giveUpOn(stage.LuaAccept, s.Far.Accept, s.handOff()).Release(t) // moves the lock, to nobody
		s.Within(ttl + s.Limit).RequireFree("a")
	})
}

func TestAnUnlockOfALoanThatIsNeverAnsweredLeavesTheLockFree(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for _, script := range []string{stage.LuaReturn, stage.LuaRecall} {
		t.Run(script, func(t *testing.T) {
			s := journey{stage.OnShared(t).Scene(relock.WithTTL(ttl))}
			section, ticket := s.lend()
			loan := s.use(s.Far.Borrow, ticket)
			for _, victim := range []*stage.Peer{s.P, s.Other} {
				victim.Faults.On(s.Script(script), redistest.DropReply(redistest.EOF))
			}
			first := s.Within(ttl + stage.AtOnce)
			if script == stage.LuaRecall {
				err := first.Call(func() error { return s.L.Unlock(section) })
				require.ErrorContains(t, err, "not confirmed")
				if err := s.Far.Unlock(loan); err != nil && !errors.Is(err, relock.ErrLockLost) {
					require.ErrorContains(t, err, "not confirmed") // the lease of the lender was over meanwhile
				}
			} else {
				err := first.Call(func() error { return s.Far.Unlock(loan) })
				require.ErrorContains(t, err, "not confirmed")
				s.Leave(section, s.L)
			}
			s.Within(ttl + s.Limit).RequireFree("a")
		})
	}
}
