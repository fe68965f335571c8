package core_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/ticket"
)

// When does a section end that was lent, borrowed or handed on?

// Package locktest has the promises of tickets. This file has what needs faults and exact times.

// borrowed is a section of a lender, and a loan of it in another process.
type borrowed struct {
	*stage.World
	lender, there *stage.Member
	l, far        *relock.Lock // the same lock
	section, loan context.Context
}

// newBorrowed has the lender take the lock with these options, and lends it after some time.
func newBorrowed(w *stage.World, after time.Duration, options ...relock.Option) *borrowed {
	w.T.Helper()
	b := &borrowed{World: w, lender: w.NewClient(), there: w.NewClient()}
	b.l, b.far = b.lender.NewLock("a", options...), b.there.NewLock("a")
	b.section = w.Enter(w.T.Context(), b.l)
	stage.Pass(after)
	given, err := ticket.Lend(b.section, b.l)
	require.NoError(w.T, err)
	b.loan, err = ticket.Borrow(w.T.Context(), b.far, given)
	require.NoError(w.T, err)
	return b
}

func TestAResumeTicketIsNotForTheNextHoldWithTheSameLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_, l, section, waiting := stage.Passing(t, w, 1)
		given, err := ticket.ToResume(section, l)
		require.NoError(t, err)
		w.Leave(section, l)
		next := waiting[0].Section()
		there := w.NewClient().NewLock("a")
		_, err = ticket.Accept(t.Context(), there, given)
		require.ErrorIs(t, err, relock.ErrLockLost, "its section was unlocked")
		require.NoError(t, next.Err())
		w.Leave(next, l)
		w.RequireFree("a")
	})
}

func TestALoanFollowsALeaseThatWasNearlyOver(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := newBorrowed(w, 9*time.Second, relock.WithFixedLease(10*time.Second))
		stage.Pass(500 * time.Millisecond)
		require.NoError(t, b.l.Extend(b.section, 10*time.Second))
		stage.Pass(5 * time.Second)
		require.NoError(t, b.loan.Err())
		require.NoError(t, b.section.Err())
		w.Leave(b.loan, b.far)
		w.Leave(b.section, b.l)
		w.RequireFree("a")
	})
}

func TestALoanOfAShortRestOutlastsALostAnswer(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := newBorrowed(w, 8*time.Second, relock.WithFixedLease(10*time.Second))
		require.NoError(t, b.l.Extend(b.section, 10*time.Second))
		b.there.Link.Once(stage.Silence, stage.CmdFollow)
		stage.Pass(5 * time.Second)
		require.NoError(t, b.loan.Err())
		w.Leave(b.loan, b.far)
		w.Leave(b.section, b.l)
		w.RequireFree("a")
	})
}

func TestALoanOfALongLeaseLearnsOfItsRecallWithoutAMessage(t *testing.T) {
	const ttl = 10 * time.Second
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := newBorrowed(w, 0, relock.WithFixedLease(ttl))
		require.NoError(t, b.l.Extend(b.section, time.Hour))
		stage.Pass(ttl)
		cut := b.there.Link.Cut(stage.CmdRenew) // and so the messages
		w.Leave(b.section, b.l)
		stage.Pass(ttl / 3)
		require.ErrorIs(t, context.Cause(b.loan), relock.ErrRecalled)
		cut.End()
		w.Leave(b.loan, b.far)
		w.RequireFree("a")
	})
}

func TestALoanAsksNotManyTimesForALeaseThatEnds(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := newBorrowed(w, 0)
		require.NoError(t, b.lender.Close())
		require.Equal(t, event.LossExpired, w.Lost(b.loan))
		require.Less(t, b.there.Link.Sent(stage.CmdFollow), 40)
		require.ErrorIs(t, b.far.Unlock(b.loan), relock.ErrLockLost)
	})
}

func TestALoanEndsAtItsDeadlineThoughItsNextLookIsLater(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		b := newBorrowed(w, 0)
		require.NoError(t, b.lender.Close())
		for b.far.Held(b.loan) {
			stage.Pass(time.Millisecond)
		}
		require.Error(t, b.loan.Err(), "the deadline has passed")
		require.Equal(t, event.LossExpired, w.Lost(b.loan))
		require.ErrorIs(t, b.far.Unlock(b.loan), relock.ErrLockLost)
	})
}

// A caller may cancel its context with the loss of another lock as the cause.
func TestACauseOfTheCallersContextIsNoLossOfATicket(t *testing.T) {
	for name, test := range map[string]struct {
		issue   func(section context.Context, l *relock.Lock) (ticket.Ticket, error)
		use     func(ctx context.Context, l *relock.Lock, given ticket.Ticket) (context.Context, error)
		command stage.Command
	}{
		"a loan":     {ticket.Lend, ticket.Borrow, stage.CmdBorrow},
		"a hand-off": {ticket.HandOff, ticket.Accept, stage.CmdAccept},
		"a resume":   {ticket.ToResume, ticket.Accept, stage.CmdAccept},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				l, there := w.NewClient().NewLock("a"), w.NewClient()
				given, err := test.issue(w.Enter(t.Context(), l), l)
				require.NoError(t, err)
				ctx, cancel := context.WithCancelCause(t.Context())
				there.Link.Once(func(ctx context.Context, _ *stage.Fault, _ func() error) error {
					cancel(fmt.Errorf("the row has gone: %w", store.ErrGone))
					<-ctx.Done()
					return store.Unavailable(lifetime.Ended(ctx))
				}, test.command)
				_, err = test.use(ctx, there.NewLock("a"), given)
				require.ErrorIs(t, err, context.Canceled)
				require.NotErrorIs(t, err, relock.ErrLockLost)
				_, err = test.use(t.Context(), there.NewLock("a"), given)
				require.NoError(t, err, "and the ticket is good yet")
			})
		})
	}
}

// A refusal shows the holder. The ID of its hold is in tickets only.
func TestATicketCannotBeMadeFromARefusal(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l, there := m.NewLock("a"), w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		nested := w.Enter(section, m.NewLock("b"))
		_, err := there.TryLock(t.Context())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		holder := refusal.Holder.String()
		for _, hold := range []string{holder, holder + ":1", holder + holder[strings.LastIndexByte(holder, ':'):]} {
			for _, use := range []string{ticket.UseHandOff, ticket.UseResume} {
				forged := ticket.Ticket{
					Use: use, ID: uuid.NewString(), Lock: l.Key(), Hold: hold, Token: 1 << 53, TTL: time.Minute, Expires: time.Now().Add(time.Minute),
				}
				_, err = ticket.Accept(t.Context(), there, forged)
				require.ErrorIs(t, err, relock.ErrLockLost)
			}
		}
		stage.Pass(time.Minute)
		require.True(t, l.Held(section))
		require.NotEqual(t, tail(w.Owner("a")), tail(w.Owner("b")), "the digits of one hold do not tell those of another")
		w.Leave(nested, m.NewLock("b"))
		w.Leave(section, l)
	})
}

// A store may remember a hold that has waited until it is forgotten, and the hold is not released.
func TestAHoldThatWasHandedOnIsForgottenAfterItsLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l, there := m.NewLock("a"), w.NewClient().NewLock("a")
		forgets := m.Link.On(func(_ context.Context, _ *stage.Fault, run func() error) error { return run() }, stage.CmdForget)
		given, err := ticket.HandOff(w.Enter(t.Context(), l), l)
		require.NoError(t, err)
		section, err := ticket.Accept(t.Context(), there, given)
		require.NoError(t, err)
		stage.Pass(relock.DefaultTTL - time.Second)
		require.Zero(t, forgets.Hits.Load())
		stage.Pass(2 * time.Second)
		require.Positive(t, forgets.Hits.Load())
		require.True(t, there.Held(section), "the hold that goes on has another ID")
		w.Leave(section, there)
	})
}

// tail returns the random digits of an ID.
func tail(id string) string { return id[len(id)-12:] }
