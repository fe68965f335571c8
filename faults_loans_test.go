package relock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What if a command of a ticket is lost, or runs late or twice?

// lend enters in p, and returns the section with a ticket.
func (s *scene) lend() (section context.Context, ticket relock.Ticket) {
	s.t.Helper()
	section = s.enter(s.t.Context(), s.l)
	ticket, err := s.l.Lend(section)
	require.NoError(s.t, err)
	return section, ticket
}

// use borrows or accepts.
func (s *scene) use(verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) context.Context {
	s.t.Helper()
	var section context.Context
	require.NoError(s.t, s.call(func() (err error) {
		section, err = verb(s.t.Context(), t) //nolint:fatcontext // the section is the result
		return err
	}))
	keep(s.t, section)
	return section
}

// handOff enters in p, and returns a ticket to continue with.
func (s *scene) handOff() relock.Ticket {
	s.t.Helper()
	ticket, err := s.l.HandOff(s.enter(s.t.Context(), s.l))
	require.NoError(s.t, err)
	return ticket
}

// journey is a loan that is recalled, and a section that is handed off, while others wait.
func (s *scene) journey() {
	s.t.Helper()
	section, ticket := s.lend()
	loan := s.use(s.far.Borrow, ticket)
	waiter := s.start(s.t.Context(), s.l)
	s.awaitWaiters(s.l.Name(), 1)
	s.leave(section, s.l)
	_, cause := s.ends(loan)
	require.ErrorIs(s.t, cause, relock.ErrRecalled)
	require.True(s.t, waiter.waits(), "a loan is open")
	s.leave(loan, s.far)
	mine := waiter.section()
	s.requireCount(s.l.Name(), 1)
	token := s.draw(mine, s.l)
	require.Greater(s.t, token, ticket.Token)

	waiter = s.start(s.t.Context(), s.far)
	s.awaitWaiters(s.l.Name(), 1)
	ticket, err := s.l.HandOff(mine)
	require.NoError(s.t, err)
	there := s.use(s.far.Accept, ticket)
	require.Equal(s.t, token, s.draw(there, s.far))
	require.True(s.t, waiter.waits())
	s.leave(there, s.far)
	waiter.leave()
	s.requireFree(s.l.Name())
}

// journeys is a scene with a lock of its own for one journey.
func (w *arena) journeys(name string) *scene {
	s := &scene{arena: w, p: w.peer(), other: w.peer()}
	s.l, s.far = s.p.NewLock(name), s.other.NewLock(name)
	return s
}

func TestAConnectionMayBreakAtAnyCommandOfAJourney(t *testing.T) {
	w := onShared(t)
	for name, action := range map[string]redistest.Action{
		"before it": redistest.CutBefore(redistest.EOF), "after it": redistest.DropReply(redistest.EOF),
	} {
		for _, lender := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lender %t", name, lender), func(t *testing.T) {
				w := w.in(t)
				for n := 0; ; n++ {
					s := w.journeys(fmt.Sprint(t.Name(), n))
					victim := s.other
					if lender {
						victim = s.p
					}
					rule := victim.faults.Once(ofInterest, action).Skip(n)
					s.journey()
					require.NoError(t, s.p.Close())
					require.NoError(t, s.other.Close())
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
	for _, script := range []string{luaBorrow, luaReturn, luaRecall, luaAccept} {
		for name, how := range breaks {
			t.Run(script+", "+name, func(t *testing.T) {
				s := onShared(t).journeys("a")
				victim := s.other
				if script == luaRecall {
					victim = s.p
				}
				rule := victim.faults.Once(s.script(script), redistest.DropReply(how))
				s.journey()
				rule.WaitHits(t, 1)
			})
		}
	}
}

func TestACommandOfATicketThatRunsTwiceDoesWhatItDoesOnce(t *testing.T) {
	s := onShared(t).journeys("a")
	for _, victim := range []*peer{s.p, s.other} {
		victim.faults.On(s.script(slices.Concat(ticketScripts, scriptNames)...), redistest.Duplicate(2, redistest.First))
	}
	s.journey()
}

func TestALostReplyOfALoanThatFollowsIsNoLoss(t *testing.T) {
	const ttl = 1200 * time.Millisecond
	s := apart(t).scene(relock.WithTTL(ttl))
	section, ticket := s.lend()
	loan := s.use(s.far.Borrow, ticket)
	rule := s.other.faults.On(s.script(luaFollow), redistest.DropReply(redistest.Reset)).Times(2)
	sleepUntil(time.Now().Add(2 * ttl))
	rule.WaitHits(t, 2)
	require.NoError(t, loan.Err())
	s.leave(loan, s.far)
	s.leave(section, s.l)
	s.requireFree("a")
}

// giveUpOn uses a ticket, lets the script hang on the wire, and cancels.
func (s *scene) giveUpOn(script string, verb func(context.Context, relock.Ticket) (context.Context, error), t relock.Ticket) *redistest.Rule {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	stuck := s.other.faults.Once(s.script(script), redistest.Hold())
	a := s.begin(ctx, func(ctx context.Context) (context.Context, error) { return verb(ctx, t) })
	stuck.WaitHits(s.t, 1)
	cancel()
	require.True(s.t, isDone(a.within(promptly).failure()), "%v", a.err)
	return stuck
}

func TestALateCommandOfATicketTouchesNothingThatCameLater(t *testing.T) {
	// Each leaves the lock with a later section in p, and returns what is stuck.
	for what, act := range map[string]func(s *scene) *redistest.Rule{
		"Borrow": func(s *scene) *redistest.Rule {
			section, ticket := s.lend()
			stuck := s.giveUpOn(luaBorrow, s.far.Borrow, ticket)
			s.leave(section, s.l)
			return stuck
		},
		"the Unlock of a loan": func(s *scene) *redistest.Rule {
			section, ticket := s.lend()
			loan := s.use(s.far.Borrow, ticket)
			stuck := s.other.faults.Once(s.script(luaReturn), redistest.Hold())
			s.leave(loan, s.far) // the first attempt hangs, the second is answered
			s.leave(section, s.l)
			return stuck
		},
		"the Unlock of a lender": func(s *scene) *redistest.Rule {
			section, ticket := s.lend()
			loan := s.use(s.far.Borrow, ticket)
			stuck := s.p.faults.Once(s.script(luaRecall), redistest.Hold())
			s.leave(section, s.l)
			s.leave(loan, s.far)
			return stuck
		},
		"Accept of a section that another one continues": func(s *scene) *redistest.Rule {
			ticket := s.handOff()
			stuck := s.giveUpOn(luaAccept, s.far.Accept, ticket)
			third := s.peer().NewLock("a")
			s.leave(s.use(third.Accept, ticket), third)
			return stuck
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := onShared(t).scene()
			stuck := act(s)
			section, ticket := s.lend()
			loan := s.use(s.far.Borrow, ticket)
			s.unchanged(func() { require.NotEmpty(t, stuck.Release(t)) })
			s.leave(section, s.l)
			require.Equal(t, 1, s.count("a"), "the loan is open")
			s.leave(loan, s.far)
			s.requireFree("a")
		})
	}
}

func TestALateTicketThatNobodyWantsIsTakenBackInTime(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	t.Run("Borrow", func(t *testing.T) {
		s := apart(t).scene(relock.WithTTL(ttl))
		section, ticket := s.lend()
		s.giveUpOn(luaBorrow, s.far.Borrow, ticket).Release(t) // a loan, for nobody
		s.leave(section, s.l)
		s.within(ttl + s.limit).requireFree("a")
	})
	t.Run("Accept", func(t *testing.T) {
		s := apart(t).scene(relock.WithTTL(ttl))
		s.giveUpOn(luaAccept, s.far.Accept, s.handOff()).Release(t) // moves the lock, to nobody
		s.within(ttl + s.limit).requireFree("a")
	})
}

func TestAnUnlockOfALoanThatIsNeverAnsweredLeavesTheLockFree(t *testing.T) {
	const ttl = 800 * time.Millisecond
	for _, script := range []string{luaReturn, luaRecall} {
		t.Run(script, func(t *testing.T) {
			s := onShared(t).scene(relock.WithTTL(ttl))
			section, ticket := s.lend()
			loan := s.use(s.far.Borrow, ticket)
			for _, victim := range []*peer{s.p, s.other} {
				victim.faults.On(s.script(script), redistest.DropReply(redistest.EOF))
			}
			first := s.within(ttl + 200*time.Millisecond)
			if script == luaRecall {
				err := first.call(func() error { return s.l.Unlock(section) })
				require.ErrorContains(t, err, "not confirmed")
				if err := s.far.Unlock(loan); err != nil && !errors.Is(err, relock.ErrLockLost) {
					require.ErrorContains(t, err, "not confirmed") // the lease of the lender was over meanwhile
				}
			} else {
				err := first.call(func() error { return s.far.Unlock(loan) })
				require.ErrorContains(t, err, "not confirmed")
				s.leave(section, s.l)
			}
			s.within(ttl + s.limit).requireFree("a")
		})
	}
}
