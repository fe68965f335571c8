package locktest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/ticket"
)

// lendTests are the promises of sections that are lent, handed off and resumed.
var lendTests = []test{
	{name: "A borrower is in beside its lender", run: borrowBeside, needs: Lending, short: true},
	{name: "A loan that is returned leaves the lender in", run: borrowReturned, needs: Lending},
	{name: "The lender's Unlock recalls the loan", run: borrowRecalled, needs: Lending},
	{name: "A borrower that died long ago holds up nobody", run: borrowDead, needs: Lending},
	{name: "The lock goes on with the last return", run: borrowLast, needs: Lending, also: FIFO},
	{name: "A loan that nobody returns ends with the lease", run: borrowUnreturned, needs: Lending},
	{name: "A loan outlives its TTL with its lender", run: borrowRenewed, needs: Lending},
	{name: "A loan follows a lease without a watchdog", run: borrowExtended, needs: Lending},
	{name: "A loan ends with the loss of its lender", run: borrowLost, needs: Lending, also: lose},
	{name: "ForceUnlock of the lender ends the loan", run: borrowForced, needs: Lending, also: Watch},
	{name: "Close of the lender leaves the loan to its lease", run: borrowClosed, needs: Lending},
	{name: "Lender and borrower have one token", run: lendToken, needs: Lending},
	{name: "A nested Lock of a borrower enters at once", run: borrowNested, needs: Lending},
	{name: "A ticket is used once", run: ticketOnce, needs: Lending},
	{name: "A ticket of a hold that is gone is a loss", run: ticketGone, needs: Lending},
	{name: "Wrong tickets are refused", run: ticketWrong, needs: Lending},
	{name: "A borrowed section is not lent, handed off or extended", run: borrowLimits, needs: Lending},
	{name: "HandOff ends the section and Accept continues it", run: handOff, needs: Lending},
	{name: "Nobody overtakes a hand-off", run: handOffQueue, needs: Lending, short: true},
	{name: "A hand-off that nobody accepts ends with its lease", run: handOffDropped, needs: Lending},
	{name: "HandOff ends all entries of its hold", run: handOffNested, needs: Lending},
	{name: "A section that was lent is not handed off", run: handOffLent, needs: Lending},
	{name: "Accept resumes the hold of a process that is gone", run: resumeDead, needs: Lending},
	{name: "Accept begins after the lease of a process that runs", run: resumeAlive, needs: Lending},
	{name: "An Accept that gives up frees nothing early", run: resumeGivenUp, needs: Lending},
	{name: "Tickets of many sections at once", run: lendMany, needs: Lending},
	{name: "Locks that cannot be lent say so", run: lendRefused},
}

// lend returns a ticket that has gone through JSON, as on its way to another process.
func (b *bench) lend(l *relock.Lock, section context.Context) ticket.Ticket {
	b.t.Helper()
	t, err := ticket.Lend(section, l)
	return b.sent(t, err)
}

func (b *bench) sent(t ticket.Ticket, err error) ticket.Ticket {
	b.t.Helper()
	require.NoError(b.t, err)
	text, err := json.Marshal(t)
	require.NoError(b.t, err)
	var got ticket.Ticket
	require.NoError(b.t, json.Unmarshal(text, &got))
	return got
}

func (b *bench) borrow(l *relock.Lock, t ticket.Ticket) context.Context {
	b.t.Helper()
	section, err := ticket.Borrow(b.ctx, l, t)
	require.NoError(b.t, err)
	require.NoError(b.t, section.Err())
	return section
}

func (b *bench) accept(l *relock.Lock, t ticket.Ticket) context.Context {
	b.t.Helper()
	section, err := ticket.Accept(b.ctx, l, t)
	require.NoError(b.t, err)
	require.NoError(b.t, section.Err())
	return section
}

func borrowBeside(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	require.True(b.t, l.Held(section))
	require.True(b.t, there.Held(loan))
	require.Greater(b.t, there.Remaining(loan), time.Duration(0))
	b.requireBusy(l)
	b.unlock(there, loan)
	b.unlock(l, section)
}

func borrowReturned(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	for range 3 {
		b.unlock(there, b.borrow(there, b.lend(l, section)))
	}
	require.NoError(b.t, section.Err())
	b.requireBusy(l)
	b.unlock(l, section)
}

func borrowRecalled(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	late := b.lend(l, section)
	b.pause(500 * time.Millisecond) // a short section is not watched
	b.unlock(l, section)
	require.ErrorIs(b.t, b.ends(loan), relock.ErrRecalled)
	b.requireBusy(l)
	_, err := there.Lock(loan)
	require.ErrorIs(b.t, err, relock.ErrRecalled)
	_, err = there.Lock(relock.WithSection(b.ctx, loan))
	require.ErrorIs(b.t, err, relock.ErrRecalled)
	_, err = ticket.Borrow(b.ctx, there, late)
	b.requireKinds(err, relock.ErrLockLost)
	b.unlock(there, loan)
	b.unlock(l, b.enter(b.ctx, l))
}

func borrowLast(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	first, second := b.borrow(there, b.lend(l, section)), b.borrow(there, b.lend(l, section))
	next := b.wait(b.ctx, l.Lock)
	b.unlock(l, section)
	b.waits(next)
	b.unlock(there, first)
	b.waits(next)
	b.unlock(there, second)
	b.unlock(l, b.get(next))
}

func borrowDead(b *bench) {
	l, dead := b.lock(b.one, "a", relock.WithTTL(b.h.TTL)), b.client()
	section := b.enter(b.ctx, l)
	b.borrow(b.lock(dead, "a"), b.lend(l, section))
	require.NoError(b.t, dead.Close())
	b.pause(2 * b.h.TTL)
	there := b.lock(b.other, "a")
	loan := b.borrow(there, b.lend(l, section)) // keeps the loans of the lender
	b.pause(2 * b.h.TTL)
	b.unlock(l, section)
	b.unlock(there, loan)
	next, err := there.TryLock(b.ctx)
	require.NoError(b.t, err, "the loan of the dead borrower keeps the lock")
	b.unlock(there, next)
}

func borrowUnreturned(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	next := b.wait(b.ctx, l.Lock)
	b.unlock(l, section)
	after := b.get(next)
	require.Error(b.t, loan.Err(), "the borrower believes to be in beside the next holder")
	require.ErrorIs(b.t, there.Unlock(loan), relock.ErrLockLost)
	require.NoError(b.t, after.Err())
	b.unlock(l, after)
}

func borrowRenewed(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	b.pause(3 * b.h.TTL)
	require.NoError(b.t, loan.Err())
	require.NoError(b.t, section.Err())
	b.unlock(there, loan)
	b.unlock(l, section)
}

// borrowExtended has the lender extend the lease beyond the end that the borrower has seen, twice.
// The lease has a TTL to spare, or more, for a busy machine.
func borrowExtended(b *bench) {
	l, there := b.lock(b.one, "a", relock.WithFixedLease(2*b.h.TTL)), b.lock(b.other, "a")
	section := b.enter(b.ctx, l)
	given := b.lend(l, section)
	b.pause(b.h.TTL / 2)
	loan := b.borrow(there, given)
	for range 2 {
		require.NoError(b.t, l.Extend(section, 4*b.h.TTL))
		b.pause(3 * b.h.TTL)
		require.NoError(b.t, loan.Err())
	}
	b.unlock(there, loan)
	b.unlock(l, section)
}

func borrowLost(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	b.server.Lose(l.Name())
	b.requireLost(b.ends(section), l, event.LossTaken)
	require.ErrorIs(b.t, b.ends(loan), relock.ErrLockLost)
	require.ErrorIs(b.t, there.Unlock(loan), relock.ErrLockLost)
	require.ErrorIs(b.t, l.Unlock(section), relock.ErrLockLost)
}

func borrowForced(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	b.pause(500 * time.Millisecond) // a short section is not watched
	require.NoError(b.t, b.lock(b.client(), "a").ForceUnlock(b.ctx))
	b.requireLost(b.ends(section), l, event.LossTaken)
	require.ErrorIs(b.t, b.ends(loan), relock.ErrLockLost)
	require.ErrorIs(b.t, there.Unlock(loan), relock.ErrLockLost)
	require.ErrorIs(b.t, l.Unlock(section), relock.ErrLockLost)
}

func borrowClosed(b *bench) {
	lender := b.client(relock.WithTTL(b.h.TTL))
	l, there := b.lock(lender, "a"), b.lock(b.other, "a")
	loan := b.borrow(there, b.lend(l, b.enter(b.ctx, l)))
	require.NoError(b.t, lender.Close())
	require.ErrorIs(b.t, b.ends(loan), relock.ErrLockLost)
	require.ErrorIs(b.t, there.Unlock(loan), relock.ErrLockLost)
	b.unlock(there, b.enter(b.ctx, there))
}

func lendToken(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	token, err := l.Token(section)
	require.NoError(b.t, err)
	require.Positive(b.t, token)
	borrowed, err := there.Token(loan)
	require.NoError(b.t, err)
	require.Equal(b.t, token, borrowed)
	b.unlock(there, loan)
	b.unlock(l, section)
}

func borrowNested(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	inner := b.enter(loan, there)
	require.Equal(b.t, 2, there.Count(inner))
	b.unlock(there, inner)
	require.NoError(b.t, loan.Err())
	b.unlock(there, loan)
	b.unlock(l, section)
}

func ticketOnce(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	given := b.lend(l, section)
	loan := b.borrow(there, given)
	for range 2 {
		_, err := ticket.Borrow(b.ctx, there, given)
		require.ErrorIs(b.t, err, relock.ErrTicket)
		if there.Held(loan) {
			b.unlock(there, loan)
		}
	}
	b.unlock(l, section)
	given = b.sent(ticket.HandOff(b.enter(b.ctx, l), l))
	section = b.accept(there, given)
	_, err := ticket.Accept(b.ctx, l, given)
	b.requireKinds(err, relock.ErrLockLost)
	require.NoError(b.t, section.Err())
	b.unlock(there, section)
}

func ticketGone(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan, resume := b.lend(l, section), b.sent(ticket.ToResume(section, l))
	b.unlock(l, section)
	gone := func() {
		_, err := ticket.Borrow(b.ctx, there, loan)
		b.requireLost(err, l, event.LossTaken)
		_, err = ticket.Accept(b.ctx, there, resume)
		b.requireLost(err, l, event.LossTaken)
	}
	gone()
	section = b.enter(b.ctx, l)
	gone()
	require.NoError(b.t, section.Err())
	handed := b.sent(ticket.HandOff(section, l))
	require.NoError(b.t, there.ForceUnlock(b.ctx))
	_, err := ticket.Accept(b.ctx, there, handed)
	b.requireLost(err, l, event.LossTaken)
}

func ticketWrong(b *bench) {
	l, there := b.locks()
	other := b.lock(b.other, "b")
	section := b.enter(b.ctx, l)
	loan, resume := b.lend(l, section), b.sent(ticket.ToResume(section, l))
	with := func(t ticket.Ticket, change func(*ticket.Ticket)) ticket.Ticket { change(&t); return t }
	for what, given := range map[string]ticket.Ticket{
		"no ticket":    {},
		"other use":    resume,
		"no expiry":    with(loan, func(t *ticket.Ticket) { t.Expires = time.Time{} }),
		"expired":      with(loan, func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Minute) }),
		"expired 1970": with(loan, func(t *ticket.Ticket) { t.Expires = time.Unix(0, 0) }),
		"expired 1969": with(loan, func(t *ticket.Ticket) { t.Expires = time.Unix(-1, 0) }),
		"no hold":      with(loan, func(t *ticket.Ticket) { t.Hold = "" }),
		"no ID":        with(loan, func(t *ticket.Ticket) { t.ID = "" }),
		"wrong ID":     with(loan, func(t *ticket.Ticket) { t.ID = "x:y" }),
		"no token":     with(loan, func(t *ticket.Ticket) { t.Token = 0 }),
		"no lease":     with(loan, func(t *ticket.Ticket) { t.TTL = 0 }),
		"long lease":   with(loan, func(t *ticket.Ticket) { t.TTL = 2 * relock.MaxTTL }),
		"wrong delay":  with(loan, func(t *ticket.Ticket) { t.Delay = -1 }),
		"unknown use":  with(loan, func(t *ticket.Ticket) { t.Use = "x" }),
	} {
		_, err := ticket.Borrow(b.ctx, there, given)
		require.ErrorIs(b.t, err, relock.ErrTicket, what)
	}
	_, err := ticket.Borrow(b.ctx, other, loan)
	require.ErrorIs(b.t, err, relock.ErrTicket)
	require.ErrorContains(b.t, err, l.Key())
	_, err = ticket.Accept(b.ctx, there, loan)
	require.ErrorIs(b.t, err, relock.ErrTicket)
	_, err = ticket.Accept(b.ctx, there, with(resume, func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Minute) }))
	require.ErrorIs(b.t, err, relock.ErrTicket)
	require.NotContains(b.t, loan.String(), loan.ID)
	require.NoError(b.t, section.Err())
	b.unlock(there, b.borrow(there, loan)) // nothing has used the ticket
	b.unlock(l, section)
}

func borrowLimits(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	given := b.lend(l, section)
	_, err := ticket.Borrow(section, l, given)
	b.requireKinds(err, relock.ErrInvalid)
	loan := b.borrow(there, given)
	_, err = ticket.Lend(loan, there)
	b.requireKinds(err, relock.ErrInvalid)
	_, err = ticket.HandOff(loan, there)
	b.requireKinds(err, relock.ErrInvalid)
	_, err = ticket.ToResume(loan, there)
	b.requireKinds(err, relock.ErrInvalid)
	b.requireKinds(there.Extend(loan, long), relock.ErrInvalid)
	_, err = ticket.Lend(b.ctx, there)
	b.requireKinds(err, relock.ErrNotHeld)
	require.NoError(b.t, loan.Err())
	b.unlock(there, loan)
	b.unlock(l, section)
	_, err = ticket.Lend(section, l)
	b.requireKinds(err, relock.ErrNotHeld)
}

func handOff(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	token, err := l.Token(section)
	require.NoError(b.t, err)
	given := b.sent(ticket.HandOff(section, l))
	require.ErrorIs(b.t, context.Cause(section), relock.ErrHandedOff)
	require.False(b.t, l.Held(section))
	b.requireBusy(l)
	next := b.accept(there, given)
	require.ErrorIs(b.t, l.Unlock(section), relock.ErrHandedOff)
	b.pause(3 * b.h.TTL)
	require.NoError(b.t, next.Err(), "the lease is renewed")
	got, err := there.Token(next)
	require.NoError(b.t, err)
	require.Equal(b.t, token, got)
	b.requireBusy(l)
	b.unlock(there, next)
}

func handOffQueue(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	next := b.wait(b.ctx, l.Lock)
	section = b.accept(there, b.sent(ticket.HandOff(section, l)))
	b.waits(next)
	b.unlock(there, section)
	b.unlock(l, b.get(next))
}

func handOffDropped(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	given := b.sent(ticket.HandOff(b.enter(b.ctx, l), l))
	section := b.enter(b.ctx, there)
	_, err := ticket.Accept(b.ctx, there, given)
	b.requireKinds(err, relock.ErrLockLost)
	b.unlock(there, section)
}

func handOffNested(b *bench) {
	l, there := b.locks()
	outer := b.enter(b.ctx, l)
	inner := b.enter(outer, l)
	given := b.sent(ticket.HandOff(inner, l))
	for _, section := range []context.Context{inner, outer} {
		require.ErrorIs(b.t, context.Cause(section), relock.ErrHandedOff)
		_, err := l.Lock(section)
		require.ErrorIs(b.t, err, relock.ErrHandedOff)
		require.ErrorIs(b.t, l.Unlock(section), relock.ErrHandedOff)
	}
	b.unlock(there, b.accept(there, given))
}

func handOffLent(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	loan := b.borrow(there, b.lend(l, section))
	_, err := ticket.HandOff(section, l)
	b.requireKinds(err, relock.ErrInvalid)
	require.NoError(b.t, section.Err())
	b.unlock(there, loan)
	b.unlock(l, section)
}

func resumeDead(b *bench) {
	dead := b.client(relock.WithTTL(b.h.TTL))
	l, there := b.lock(dead, "a"), b.lock(b.other, "a")
	section := b.enter(b.ctx, l)
	given := b.sent(ticket.ToResume(section, l))
	require.NoError(b.t, section.Err())
	next := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, dead.Close())
	resumed := b.accept(there, given)
	b.waits(next)
	token, err := there.Token(resumed)
	require.NoError(b.t, err)
	require.Equal(b.t, given.Token, token)
	b.pause(2 * b.h.TTL)
	b.waits(next)
	b.unlock(there, resumed)
	b.unlock(there, b.get(next))
}

func resumeAlive(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	given := b.sent(ticket.ToResume(section, l))
	resumed := b.accept(there, given)
	require.Error(b.t, section.Err(), "the former section is over before the next one begins")
	require.ErrorIs(b.t, l.Unlock(section), relock.ErrLockLost)
	require.NoError(b.t, resumed.Err())
	b.unlock(there, resumed)
}

func resumeGivenUp(b *bench) {
	l, there := b.locks(relock.WithTTL(3 * b.h.TTL))
	section := b.enter(b.ctx, l)
	given, holder := b.sent(ticket.ToResume(section, l)), b.holder(section)
	accepting := b.start(b.ctx, func(ctx context.Context) (context.Context, error) { return ticket.Accept(ctx, there, given) })
	b.eventually("the hold moves", func() bool { return b.state(l).Holder != holder })
	accepting.cancel(errMine)
	require.ErrorIs(b.t, b.fails(accepting), errMine)
	next := b.enter(b.ctx, there)
	require.Error(b.t, section.Err(), "the former section is over before the next one begins")
	b.unlock(there, next)
}

// lendMany has lenders, borrowers and hand-offs at once. Nobody is in beside another section.
func lendMany(b *bench) {
	l, there := b.locks()
	var in room
	lent := func(section context.Context) error {
		in.visit()
		given, err := ticket.Lend(section, l)
		if err != nil {
			return err
		}
		loan, err := ticket.Borrow(b.ctx, there, given)
		if err != nil {
			return err
		}
		in.visit()
		return errors.Join(there.Unlock(loan), l.Unlock(section))
	}
	handed := func(section context.Context) error {
		given, err := ticket.HandOff(section, l)
		if err != nil {
			return err
		}
		section, err = ticket.Accept(b.ctx, there, given)
		if err != nil {
			return err
		}
		in.visit()
		return there.Unlock(section)
	}
	const chains, rounds = 4, 10
	var group sync.WaitGroup
	for i := range 2 * chains {
		group.Go(func() {
			for range rounds {
				section, err := l.Lock(b.ctx)
				if err == nil && i%2 == 0 {
					err = lent(section)
				} else if err == nil {
					err = handed(section)
				}
				if err != nil {
					b.t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	in.requireVisits(b.t, 3*chains*rounds)
}

// lendRefused is about stores and kinds of locks that cannot lend.
func lendRefused(b *bench) {
	given := ticket.Ticket{
		Use: ticket.UseLoan, ID: uuid.NewString(), Hold: "a:1:1", Token: 1, TTL: long, Expires: time.Now().Add(long),
	}
	locks := make(map[string]*relock.Lock)
	if !b.promises(Lending) {
		locks["of the store"] = b.lock(b.one, "a")
	}
	if b.promises(Kinds) {
		locks["for reading"] = b.rwLock(b.one, "b").RLocker()
	}
	if b.promises(Semaphores) {
		locks["of permits"] = b.semaphore(b.one, "c", 2)
	}
	for what, l := range locks {
		given.Lock = l.Key()
		section, err := l.TryLock(b.ctx)
		require.NoError(b.t, err, what)
		for _, err := range []error{
			last(ticket.Lend(section, l)), last(ticket.HandOff(section, l)), last(ticket.ToResume(section, l)), last(ticket.Borrow(b.ctx, l, given)), last(ticket.Accept(b.ctx, l, given)),
		} {
			require.ErrorIs(b.t, err, relock.ErrInvalid, what)
			require.ErrorIs(b.t, err, errors.ErrUnsupported, what)
		}
		require.NoError(b.t, section.Err(), what)
		b.unlock(l, section)
	}
}
