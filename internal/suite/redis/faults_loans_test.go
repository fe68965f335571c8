package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/internal/stage"
)

// What if a command of a ticket is lost, or runs late or twice?

// newJourney is a scene with a lock of its own for one journey.
func newJourney(w *stage.Arena, name string) *stage.Scene {
	s := &stage.Scene{Arena: w, P: w.Peer(), Other: w.Peer()}
	s.L, s.Far = s.P.NewLock(name), s.Other.NewLock(name)
	return s
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
					s.Journey()
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
				s.Journey()
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
	s.Journey()
}

func TestALostReplyOfALoanThatFollowsIsNoLoss(t *testing.T) {
	const ttl = 1200 * time.Millisecond
	s := stage.Apart(t).Scene(relock.WithTTL(ttl))
	section, ticket := s.Lend()
	loan := s.Use(s.Far.Borrow, ticket)
	rule := s.Other.Faults.On(s.Script(stage.LuaFollow), redistest.DropReply(redistest.Reset)).Times(2)
	stage.SleepUntil(time.Now().Add(2 * ttl))
	rule.WaitHits(t, 2)
	require.NoError(t, loan.Err())
	s.Leave(loan, s.Far)
	s.Leave(section, s.L)
	s.RequireFree("a")
}

func TestALateCommandOfATicketTouchesNothingThatCameLater(t *testing.T) {
	// Each leaves the lock with a later section in p, and returns what is stuck.
	for what, act := range map[string]func(s *stage.Scene) *redistest.Rule{
		"Borrow": func(s *stage.Scene) *redistest.Rule {
			section, ticket := s.Lend()
			stuck := s.GiveUpOn(stage.LuaBorrow, s.Far.Borrow, ticket)
			s.Leave(section, s.L)
			return stuck
		},
		"the Unlock of a loan": func(s *stage.Scene) *redistest.Rule {
			section, ticket := s.Lend()
			loan := s.Use(s.Far.Borrow, ticket)
			stuck := s.Other.Faults.Once(s.Script(stage.LuaReturn), redistest.Hold())
			s.Leave(loan, s.Far) // the first attempt hangs, the second is answered
			s.Leave(section, s.L)
			return stuck
		},
		"the Unlock of a lender": func(s *stage.Scene) *redistest.Rule {
			section, ticket := s.Lend()
			loan := s.Use(s.Far.Borrow, ticket)
			stuck := s.P.Faults.Once(s.Script(stage.LuaRecall), redistest.Hold())
			s.Leave(section, s.L)
			s.Leave(loan, s.Far)
			return stuck
		},
		"Accept of a section that another one continues": func(s *stage.Scene) *redistest.Rule {
			ticket := s.HandOff()
			stuck := s.GiveUpOn(stage.LuaAccept, s.Far.Accept, ticket)
			third := s.Peer().NewLock("a")
			s.Leave(s.Use(third.Accept, ticket), third)
			return stuck
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := stage.OnShared(t).Scene()
			stuck := act(s)
			section, ticket := s.Lend()
			loan := s.Use(s.Far.Borrow, ticket)
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
		s := stage.Apart(t).Scene(relock.WithTTL(ttl))
		section, ticket := s.Lend()
		s.GiveUpOn(stage.LuaBorrow, s.Far.Borrow, ticket).Release(t) // a loan, for nobody
		s.Leave(section, s.L)
		s.Within(ttl + s.Limit).RequireFree("a")
	})
	t.Run("Accept", func(t *testing.T) {
		s := stage.Apart(t).Scene(relock.WithTTL(ttl))
		s.GiveUpOn(stage.LuaAccept, s.Far.Accept, s.HandOff()).Release(t) // moves the lock, to nobody
		s.Within(ttl + s.Limit).RequireFree("a")
	})
}

func TestAnUnlockOfALoanThatIsNeverAnsweredLeavesTheLockFree(t *testing.T) {
	const ttl = 800 * time.Millisecond
	for _, script := range []string{stage.LuaReturn, stage.LuaRecall} {
		t.Run(script, func(t *testing.T) {
			s := stage.OnShared(t).Scene(relock.WithTTL(ttl))
			section, ticket := s.Lend()
			loan := s.Use(s.Far.Borrow, ticket)
			for _, victim := range []*stage.Peer{s.P, s.Other} {
				victim.Faults.On(s.Script(script), redistest.DropReply(redistest.EOF))
			}
			first := s.Within(ttl + 200*time.Millisecond)
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
