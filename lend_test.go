package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// When does a section end that was lent, borrowed or handed on?

// Package locktest has the promises of tickets. This file has what needs faults and exact times.

// borrowed is a section of a lender, and a loan of it in another process.
type borrowed struct {
	*world
	lender, there *member
	l, far        *relock.Lock // the same lock
	section, loan context.Context
}

// borrows has the lender take the lock with these options, and lends it after some time.
func (w *world) borrows(after time.Duration, options ...relock.Option) *borrowed {
	w.t.Helper()
	b := &borrowed{world: w, lender: w.NewClient(), there: w.NewClient()}
	b.l, b.far = b.lender.NewLock("a", options...), b.there.NewLock("a")
	b.section = w.enter(w.t.Context(), b.l)
	pass(after)
	ticket, err := b.l.Lend(b.section)
	require.NoError(w.t, err)
	b.loan, err = b.far.Borrow(w.t.Context(), ticket)
	require.NoError(w.t, err)
	return b
}

func TestAResumeTicketIsNotForTheNextHoldWithTheSameLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_, l, section, waiting := passing(t, w, 1, relock.WithLocalPass(0, 0))
		ticket, err := l.ResumeTicket(section)
		require.NoError(t, err)
		w.leave(section, l)
		next := waiting[0].section()
		there := w.NewClient().NewLock("a")
		_, err = there.Accept(t.Context(), ticket)
		require.ErrorIs(t, err, relock.ErrLockLost, "its section was unlocked")
		require.NoError(t, next.Err())
		w.leave(next, l)
		w.requireFree("a")
	})
}

func TestALoanFollowsALeaseThatWasNearlyOver(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		b := w.borrows(9*time.Second, relock.WithFixedLease(10*time.Second))
		pass(500 * time.Millisecond)
		require.NoError(t, b.l.Extend(b.section, 10*time.Second))
		pass(5 * time.Second)
		require.NoError(t, b.loan.Err())
		require.NoError(t, b.section.Err())
		w.leave(b.loan, b.far)
		w.leave(b.section, b.l)
		w.requireFree("a")
	})
}

func TestALoanOfALongLeaseLearnsOfItsRecallWithoutAMessage(t *testing.T) {
	const ttl = 10 * time.Second
	fake(t, func(t *testing.T, w *world) {
		b := w.borrows(0, relock.WithFixedLease(ttl))
		require.NoError(t, b.l.Extend(b.section, time.Hour))
		pass(ttl)
		cut := b.there.link.cut(cmdRenew) // and so the messages
		w.leave(b.section, b.l)
		pass(ttl / 3)
		require.ErrorIs(t, context.Cause(b.loan), relock.ErrRecalled)
		cut.end()
		w.leave(b.loan, b.far)
		w.requireFree("a")
	})
}

func TestALoanAsksNotManyTimesForALeaseThatEnds(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		b := w.borrows(0)
		require.NoError(t, b.lender.Close())
		require.Equal(t, relock.LossExpired, w.lost(b.loan))
		require.Less(t, b.there.link.sent(cmdFollow), 40)
		require.ErrorIs(t, b.far.Unlock(b.loan), relock.ErrLockLost)
	})
}
