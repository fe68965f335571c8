package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// lendTests are the promises of [store.Lending].
var lendTests = []test{
	{name: "Borrow begins a loan beside its lender", run: borrowBeside, needs: Lending},
	{name: "Borrow of a lender that is gone", run: borrowGone, needs: Lending},
	{name: "Borrow by a ticket that cannot be used", run: borrowRefused, needs: Lending},
	{name: "Borrow twice is one loan", run: borrowTwice, needs: Lending},
	{name: "Follow says what is left of the lease", run: follows, needs: Lending},
	{name: "A loan ends before the lock delay of its lender", run: loanDelay, needs: Lending},
	{name: "A script of a loan that was returned has not run", run: loanScript, needs: Lending},
	{name: "Release of a lender recalls its loans", run: releaseRecalls, needs: Lending},
	{name: "Forget of a lender recalls its loans", run: forgetRecalls, needs: Lending},
	{name: "A recall tells the client of each loan", run: recallTells, needs: Lending, also: Watch},
	{name: "The last return frees the lock and wakes the waiter", run: returnWakes, needs: Lending, also: Wakes},
	{name: "A loan that is returned twice is returned once", run: returnTwice, needs: Lending},
	{name: "Forget of a loan returns it", run: forgetReturns, needs: Lending},
	{name: "A loan that is never returned ends with the lease", run: loanEnds, needs: Lending},
	{name: "A Borrow after its return ends with the lease", run: borrowLate, needs: Lending},
	{name: "Loans of an earlier lender do not count", run: loansOfBefore, needs: Lending},
	{name: "Accept moves the lock to a new hold", run: acceptMoves, needs: Lending},
	{name: "Accept twice is once", run: acceptTwice, needs: Lending},
	{name: "Accept that comes too late changes nothing", run: acceptRefused, needs: Lending},
	{name: "Accept of a hold that has left changes nothing", run: acceptLeft, needs: Lending},
	{name: "Accept waits for the lease of a client that knows nothing", run: acceptUnaware, needs: Lending},
	{name: "Accept keeps the queue", run: acceptQueue, needs: Lending, also: FIFO},
	{name: "Accept ends the loans of the old hold", run: acceptLoans, needs: Lending},
	{name: "Accept tells the clients of the loans", run: acceptTells, needs: Lending, also: Watch},
	{name: "Token grows after an Accept", run: acceptToken, needs: Lending, also: Tokens},
	{name: "A context that is done ends the calls of tickets", run: lendDone, needs: Lending},
	{name: "A silent server holds up no call of a ticket", run: lendSilent, needs: Lending, also: interrupt},
	{name: "A recall and a return outlast an interruption", run: returnOutlasts, needs: Lending, also: interrupt},
	{name: "A lost lock ends its loans", run: lendLost, needs: Lending, also: lose},
	{name: "Many loans and moves exclude all others", run: stressLend, needs: Lending},
}

// lending returns the power of a store.
func (b *bench) lending(st store.Store) store.Lending {
	lending, ok := st.(store.Lending)
	require.True(b.t, ok, "the store is no store.Lending: the harness must list Lending in Without")
	return lending
}

func newTicket() store.Ticket { return store.Ticket{ID: rand.Text(), Expires: time.Now().Add(long)} }

// lend makes a new hold that may lend its lock.
func (b *bench) lend(a store.Claim) store.Lease {
	l := b.take(b.st, a)
	l.Lent = true
	return l
}

// loanOf returns the claim of a new loan.
func (b *bench) loanOf(lender store.Lease) store.Claim {
	a := b.claim(lender.TTL)
	a.Lender, a.Delay = lender.ID, lender.Delay
	return a
}

// borrow begins a loan in the other process, by a new ticket.
func (b *bench) borrow(lender store.Lease) store.Lease {
	return b.borrowBy(b.loanOf(lender), newTicket())
}

func (b *bench) borrowBy(a store.Claim, t store.Ticket) store.Lease {
	before := time.Now()
	loan, err := b.lending(b.other).Borrow(b.ctx, a, t)
	require.NoError(b.t, err)
	b.requireSent(before, loan)
	require.Equal(b.t, a.ID, loan.ID)
	require.Equal(b.t, a.Lender, loan.Lender)
	require.False(b.t, loan.Until().After(time.Now().Add(b.look().TTL)), "the loan outlasts the lease of its lender")
	return loan
}

// giveBack returns a loan.
func (b *bench) giveBack(loan store.Lease) { require.NoError(b.t, b.other.Release(b.ctx, loan)) }

func (b *bench) follow(loan store.Lease) (time.Duration, error) {
	return b.lending(b.other).Follow(b.ctx, loan)
}

// requireRecalled fails unless the lender has left, and its loan is open.
func (b *bench) requireRecalled(lender, loan store.Lease) {
	require.ErrorIs(b.t, last(b.follow(loan)), store.ErrRecalled)
	b.requireOwner(lender.Claim, 1)
	b.requireBusy(last(b.st.Try(b.ctx, b.claim(long))), lender.ID)
}

func borrowBeside(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	b.requireOwner(l.Claim, 1)
	b.requireTTL(long/2, long)
	b.requireBusy(last(b.other.Try(b.ctx, b.claim(long))), l.ID)
	for _, loan := range []store.Lease{second, first} {
		require.Greater(b.t, time.Until(loan.Until()), long/2)
		b.giveBack(loan)
		b.requireOwner(l.Claim, 1)
	}
	b.giveBack(b.borrow(l))
	b.release(l)
	require.Empty(b.t, b.look().Owner, "no loan is open")
}

func borrowGone(b *bench) {
	gone := func(lender store.Lease) {
		_, err := b.lending(b.other).Borrow(b.ctx, b.loanOf(lender), newTicket())
		b.requireGone(err)
	}
	gone(store.Lease{Claim: b.claim(long)}) // never was
	l := b.lend(b.claim(long))
	b.release(l)
	gone(l)
	l = b.lend(b.claim(b.h.TTL))
	b.eventually("the lease ends", func() bool { return b.look().Owner == "" })
	gone(l)
	next := b.take(b.st, b.claim(long))
	gone(l)
	b.requireOwner(next.Claim, 1)
	b.release(next)
}

func borrowRefused(b *bench) {
	l := b.lend(b.claim(long))
	refused := func(t store.Ticket) {
		_, err := b.lending(b.other).Borrow(b.ctx, b.loanOf(l), t)
		require.ErrorIs(b.t, err, store.ErrTicket)
		require.NotErrorIs(b.t, err, store.ErrUnsure)
	}
	used, expired := newTicket(), newTicket()
	expired.Expires = time.Now().Add(-time.Second)
	loan := b.borrowBy(b.loanOf(l), used)
	refused(used)
	b.giveBack(loan)
	refused(used)
	refused(expired)
	refused(store.Ticket{ID: rand.Text()})
	b.release(l)
	require.Empty(b.t, b.look().Owner, "no loan is open")
}

func borrowTwice(b *bench) {
	l := b.lend(b.claim(long))
	a, t := b.loanOf(l), newTicket()
	b.borrowBy(a, t)
	loan := b.borrowBy(a, t)
	b.giveBack(loan)
	b.release(l)
	require.Empty(b.t, b.look().Owner, "no loan is open")
}

func follows(b *bench) {
	l := b.lend(b.claim(long))
	loan := b.borrow(l)
	left, err := b.follow(loan)
	require.NoError(b.t, err)
	require.Greater(b.t, left, long/2)
	require.LessOrEqual(b.t, left, long)
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: 3 * long, Count: 1}})[0])
	left, err = b.follow(loan)
	require.NoError(b.t, err)
	require.Greater(b.t, left, 2*long)
	require.LessOrEqual(b.t, left, 3*long)
	b.requireGone(last(b.follow(store.Lease{Claim: b.loanOf(l)})))
	b.giveBack(loan)
	b.requireGone(last(b.follow(loan)))
	b.release(l)
	b.requireGone(last(b.follow(loan)))
}

// loanDelay has a lender whose lock stays taken for a while after the lease. No loan counts on that
// time.
func loanDelay(b *bench) {
	a := b.claim(long)
	a.Delay = long
	l := b.lend(a)
	loan := b.borrow(l)
	require.LessOrEqual(b.t, time.Until(loan.Until()), long)
	left, err := b.follow(loan)
	require.NoError(b.t, err)
	require.Greater(b.t, left, long/2)
	require.LessOrEqual(b.t, left, long)
	b.giveBack(loan)
	b.release(l)
}

// loanScript has a script that does nothing, in any language of scripts.
func loanScript(b *bench) {
	scripts, is := b.other.(store.Scripts)
	if !is {
		b.t.Log("NOT TESTED: the store runs no scripts")
		return
	}
	eval := func(loan store.Lease) error { return last(scripts.Eval(b.ctx, loan, store.Script{})) }
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	b.giveBack(first)
	b.requireGone(eval(first))
	require.NoError(b.t, eval(second))
	b.release(l)
	require.NoError(b.t, eval(second), "the loan is open")
	b.giveBack(second)
	b.requireGone(eval(second))
}

func releaseRecalls(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	for range 2 { // as after a lost answer
		b.release(l)
		b.requireRecalled(l, first)
	}
	b.requireGone(last(b.lending(b.other).Borrow(b.ctx, b.loanOf(l), newTicket())))
	b.giveBack(first)
	b.requireRecalled(l, second)
	b.giveBack(second)
	require.Empty(b.t, b.look().Owner)
	b.requireGone(b.st.Release(b.ctx, l))
}

func forgetRecalls(b *bench) {
	l := b.lend(b.claim(long))
	loan := b.borrow(l)
	for range 2 {
		require.NoError(b.t, b.st.Forget(b.ctx, []store.Claim{l.Claim})[0])
		b.requireRecalled(l, loan)
	}
	b.giveBack(loan)
	require.Empty(b.t, b.look().Owner)
	next := b.take(b.st, b.claim(long))
	require.NoError(b.t, b.st.Forget(b.ctx, []store.Claim{l.Claim, loan.Claim})[0])
	b.requireOwner(next.Claim, 1)
	b.release(next)
}

func recallTells(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	told := b.tells(first, second)
	b.release(l)
	told()
	b.giveBack(first)
	b.giveBack(second)
}

// tells watches the clients of loans. The result waits until each is told to look. A store may
// tell its clients to look when their watches begin, which does not count.
func (b *bench) tells(loans ...store.Lease) func() {
	doubts := make(chan store.ID, 100)
	left := make(map[store.ID]bool)
	for _, loan := range loans {
		left[loan.ID] = true
		b.t.Cleanup(b.other.(store.Watcher).Watch(client(loan.ID), func(store.ID) { doubts <- loan.ID }))
	}
	b.pause(200 * time.Millisecond)
	for len(doubts) > 0 {
		<-doubts
	}
	return func() {
		b.eventually("each client is told", func() bool {
			select {
			case id := <-doubts:
				delete(left, id)
			default:
			}
			return len(left) == 0
		})
	}
}

func returnWakes(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	b.giveBack(first)
	b.pause(100 * time.Millisecond)
	b.waits(w)
	b.giveBack(second)
	next := b.get(w)
	b.requireOwner(w.claim, 1)
	b.release(next)
}

// returnTwice returns while the lender is in, and then behind its lender.
func returnTwice(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	for range 2 {
		b.giveBack(first)
		b.requireOwner(l.Claim, 1)
	}
	b.release(l)
	b.giveBack(first)
	b.requireRecalled(l, second)
	b.giveBack(second)
	b.requireGone(b.other.Release(b.ctx, second))
	next := b.take(b.st, b.claim(long))
	b.requireGone(b.other.Release(b.ctx, second))
	b.requireOwner(next.Claim, 1)
	b.release(next)
}

func forgetReturns(b *bench) {
	l := b.lend(b.claim(long))
	first, second := b.borrow(l), b.borrow(l)
	forget := func(claims ...store.Claim) { require.NoError(b.t, errors.Join(b.other.Forget(b.ctx, claims)...)) }
	forget(b.loanOf(l), first.Claim) // the first one never was
	b.requireOwner(l.Claim, 1)
	b.requireGone(last(b.follow(first)))
	require.NoError(b.t, last(b.follow(second)))
	b.release(l)
	b.requireRecalled(l, second)
	forget(second.Claim, first.Claim)
	require.Empty(b.t, b.look().Owner)
}

func loanEnds(b *bench) {
	l := b.lend(b.claim(2 * b.h.TTL))
	loan := b.borrow(l)
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	next := b.get(w)
	require.False(b.t, w.at.Before(loan.Until()), "another hold has the lock before Lease.Until of the loan")
	b.requireGone(last(b.follow(loan)))
	b.requireGone(b.other.Release(b.ctx, loan))
	b.requireOwner(w.claim, 1)
	b.release(next)
}

// borrowLate runs a Borrow once more after its return, as a command that was on its way does.
func borrowLate(b *bench) {
	l := b.lend(b.claim(2 * b.h.TTL))
	a, t := b.loanOf(l), newTicket()
	b.giveBack(b.borrowBy(a, t))
	_ = last(b.lending(b.other).Borrow(b.ctx, a, t))
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	b.release(b.get(w))
	b.requireGone(last(b.lending(b.other).Borrow(b.ctx, a, t)))
}

func loansOfBefore(b *bench) {
	old := b.lend(b.claim(b.h.TTL))
	loan := b.borrow(old)
	b.eventually("the lease ends", func() bool { return b.look().Owner == "" })
	l := b.lend(b.claim(long))
	b.requireGone(last(b.follow(loan)))
	b.requireGone(b.other.Release(b.ctx, loan))
	b.requireOwner(l.Claim, 1)
	own := b.borrow(l)
	require.NoError(b.t, last(b.follow(own)))
	b.requireGone(b.other.Release(b.ctx, loan))
	b.giveBack(own)
	b.release(l)
	require.Empty(b.t, b.look().Owner, "no loan is open")
}

// acceptBy moves the lock of a hold to a new hold in the other process.
func (b *bench) acceptBy(a store.Claim, old store.Lease, t store.Ticket, unaware bool) (store.Lease, time.Duration) {
	l, wait, err := b.lending(b.other).Accept(b.ctx, a, old.ID, t, unaware)
	require.NoError(b.t, err)
	require.False(b.t, l.Sent.After(time.Now()), "Lease.Sent is after the reply")
	require.Equal(b.t, a.ID, l.ID)
	b.requireOwner(a, 1)
	require.False(b.t, l.Until().After(time.Now().Add(b.look().TTL)), "Accept returns a lease that outlasts that of the store")
	return l, wait
}

func (b *bench) accept(old store.Lease) store.Lease {
	l, wait := b.acceptBy(b.claim(long), old, newTicket(), false)
	require.Zero(b.t, wait)
	return l
}

// requireMoved runs each command of the old hold, late.
func (b *bench) requireMoved(old, l store.Lease) {
	for name, call := range b.calls() {
		switch name {
		case "Enter", "Release to 2", "Release", "Renew", "Token":
			b.requireGone(call(b.ctx, old, store.Claim{}))
		case "Forget":
			require.NoError(b.t, call(b.ctx, old, store.Claim{}))
		}
		b.requireOwner(l.Claim, 1)
	}
	b.requireTTL(0, l.TTL)
}

func acceptMoves(b *bench) {
	old := b.take(b.st, b.claim(b.h.TTL))
	for _, st := range []store.Store{b.st, b.other} { // counts, too, are those of the new hold
		require.NoError(b.t, last(st.Enter(b.ctx, old, 2)))
	}
	l := b.accept(old)
	b.requireTTL(long/2, long)
	require.Greater(b.t, time.Until(l.Until()), long/2)
	b.requireMoved(old, l)
	b.pause(2 * b.h.TTL)
	b.requireOwner(l.Claim, 1)
	again := b.accept(l)
	b.requireMoved(l, again)
	b.release(again)
	require.Empty(b.t, b.look().Owner)
}

func acceptTwice(b *bench) {
	for _, unaware := range []bool{false, true} {
		old := b.take(b.st, b.claim(b.h.TTL))
		a, t := b.claim(long), newTicket()
		_, first := b.acceptBy(a, old, t, unaware)
		l, second := b.acceptBy(a, old, t, unaware)
		require.LessOrEqual(b.t, second, first)
		b.requireTTL(long/2, long+b.h.TTL)
		b.release(l)
		require.Empty(b.t, b.look().Owner)
		b.requireGone(last2(b.lending(b.other).Accept(b.ctx, a, old.ID, t, unaware)))
	}
}

// last2 returns the error of a call.
func last2[A, B any](_ A, _ B, err error) error { return err }

func acceptRefused(b *bench) {
	accept := func(old store.Lease, t store.Ticket) error {
		return last2(b.lending(b.other).Accept(b.ctx, b.claim(long), old.ID, t, false))
	}
	b.requireGone(accept(store.Lease{Claim: b.claim(long)}, newTicket()))
	old := b.take(b.st, b.claim(long))
	expired := newTicket()
	expired.Expires = time.Now().Add(-time.Second)
	err := accept(old, expired)
	require.ErrorIs(b.t, err, store.ErrTicket)
	require.NotErrorIs(b.t, err, store.ErrUnsure)
	b.requireOwner(old.Claim, 1)
	t := newTicket()
	l, _ := b.acceptBy(b.claim(long), old, t, false)
	b.requireGone(accept(old, t))
	b.requireOwner(l.Claim, 1)
	b.release(l)
	b.requireGone(accept(old, t))
	b.requireGone(accept(l, newTicket()))
	short := b.take(b.st, b.claim(b.h.TTL))
	b.eventually("the lease ends", func() bool { return b.look().Owner == "" })
	b.requireGone(accept(short, newTicket()))
}

// acceptLeft has a ticket of a lender that has left, and whose loan keeps the lock.
func acceptLeft(b *bench) {
	for _, unaware := range []bool{false, true} {
		l := b.lend(b.claim(long))
		loan := b.borrow(l)
		b.release(l)
		b.requireGone(last2(b.lending(b.other).Accept(b.ctx, b.claim(long), l.ID, newTicket(), unaware)))
		b.requireRecalled(l, loan)
		b.giveBack(loan)
		require.Empty(b.t, b.look().Owner)
	}
}

// acceptUnaware lets the old hold count on its lease for as long as it may.
func acceptUnaware(b *bench) {
	old := b.take(b.st, b.claim(2*b.h.TTL))
	t := store.Ticket{ID: rand.Text()} // ends with its hold
	l, wait := b.acceptBy(b.claim(b.h.TTL), old, t, true)
	accepted := time.Now()
	b.requireMoved(old, l)
	require.Positive(b.t, wait)
	require.LessOrEqual(b.t, wait, 2*b.h.TTL)
	require.False(b.t, accepted.Add(wait).Before(old.Until()), "the new hold begins before Lease.Until of the old one")
	b.pause(wait)
	b.requireOwner(l.Claim, 1)
	require.Greater(b.t, time.Until(l.Until()), time.Duration(0), "no lease is left after the wait")
	b.release(l)
}

func acceptQueue(b *bench) {
	old := b.take(b.st, b.claim(long))
	first := b.wait(b.st, b.claim(long))
	second := b.wait(b.other, b.claim(long))
	l := b.accept(old)
	require.Equal(b.t, 2, b.look().Waiters)
	b.pause(50 * time.Millisecond)
	b.waits(first)
	b.release(l)
	next := b.get(first)
	b.waits(second)
	b.release(next)
	b.release(b.get(second))
}

func acceptLoans(b *bench) {
	old := b.lend(b.claim(long))
	loan := b.borrow(old)
	l, _ := b.acceptBy(b.claim(long), old, newTicket(), true)
	b.requireGone(last(b.follow(loan)))
	b.requireGone(b.other.Release(b.ctx, loan))
	b.requireGone(last(b.lending(b.other).Borrow(b.ctx, b.loanOf(old), newTicket())))
	l.Lent = true
	own := b.borrow(l)
	b.giveBack(own)
	b.release(l)
	require.Empty(b.t, b.look().Owner, "no loan is open")
}

func acceptTells(b *bench) {
	old := b.lend(b.claim(long))
	told := b.tells(b.borrow(old), b.borrow(old))
	l := b.accept(old)
	told()
	b.release(l)
}

func acceptToken(b *bench) {
	old := b.take(b.st, b.claim(long))
	drawn := b.token(old)
	l := b.accept(old)
	token := b.token(l)
	require.GreaterOrEqual(b.t, token, drawn)
	b.release(l)
	next := b.take(b.st, b.claim(long))
	require.Greater(b.t, b.token(next), token)
	b.release(next)
}

// eachTicketCall runs the calls of tickets with a context that ends. Each one must return promptly.
// If its error does not match ErrUnsure, the call must not have run.
func (b *bench) eachTicketCall(newContext func() context.Context, silence func() (restore func()), check func(name string, err error)) {
	st := b.lending(b.st)
	for name, call := range map[string]func(ctx context.Context, l, loan store.Lease, a store.Claim) error{
		"Borrow": func(ctx context.Context, l, _ store.Lease, a store.Claim) error {
			a.Lender = l.ID
			b.left[a.ID] = a
			return last(st.Borrow(ctx, a, newTicket()))
		},
		"Follow": func(ctx context.Context, _, loan store.Lease, _ store.Claim) error { return last(st.Follow(ctx, loan)) },
		"Accept": func(ctx context.Context, l, _ store.Lease, a store.Claim) error {
			b.left[a.ID] = a
			return last2(st.Accept(ctx, a, l.ID, newTicket(), false))
		},
		"Release": func(ctx context.Context, l, _ store.Lease, _ store.Claim) error { return st.Release(ctx, l) },
		"return":  func(ctx context.Context, _, loan store.Lease, _ store.Claim) error { return st.Release(ctx, loan) },
		"Forget": func(ctx context.Context, l, _ store.Lease, _ store.Claim) error {
			return st.Forget(ctx, []store.Claim{l.Claim})[0]
		},
		"Forget of a loan": func(ctx context.Context, _, loan store.Lease, _ store.Claim) error {
			return st.Forget(ctx, []store.Claim{loan.Claim})[0]
		},
	} {
		b.name = b.newName()
		l := b.lend(b.claim(long))
		loan, a := b.borrow(l), b.claim(long)
		ctx, restore := newContext(), silence()
		var err error
		b.promptly(func() { err = call(ctx, l, loan, a) })
		restore()
		check(name, err)
		if err != nil && !errors.Is(err, store.ErrUnsure) {
			require.NoError(b.t, last(b.follow(loan)), "%s has run: %v", name, err)
			b.requireOwner(l.Claim, 1)
			delete(b.left, a.ID)
		}
		b.left[l.ID], b.left[loan.ID] = l.Claim, loan.Claim
		b.requireFree()
	}
}

func lendDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	b.eachTicketCall(b.done(cause), func() func() { return func() {} }, func(name string, err error) {
		if err != nil {
			require.ErrorIs(b.t, err, context.Canceled, name)
			require.ErrorIs(b.t, err, cause, name)
		}
	})
}

func lendSilent(b *bench) {
	b.eachTicketCall(b.soon, b.interrupt, func(name string, err error) { require.Error(b.t, err, name) })
}

// returnOutlasts lets the lender leave, and then its borrower, while the server is interrupted. If
// an attempt without an answer has freed the lock, Release returns ErrGone together with ErrUnsure.
func returnOutlasts(b *bench) {
	l := b.lend(b.claim(long))
	loan := b.borrow(l)
	for _, leave := range []store.Lease{l, loan} {
		restore := b.interrupt()
		done := make(chan error, 1)
		go func() { done <- b.st.Release(b.ctx, leave) }()
		b.pause(100 * time.Millisecond)
		restore()
		select {
		case err := <-done:
			if !errors.Is(err, store.ErrGone) || !errors.Is(err, store.ErrUnsure) {
				require.NoError(b.t, err)
			}
		case <-time.After(patience):
			require.FailNow(b.t, "does not happen: a call returns after the interruption")
		}
		if leave.ID == l.ID {
			b.requireRecalled(l, loan)
		}
	}
	require.Empty(b.t, b.look().Owner)
}

func lendLost(b *bench) {
	l := b.lend(b.claim(long))
	loan := b.borrow(l)
	b.server.Lose(b.name)
	b.requireGone(last(b.follow(loan)))
	b.requireGone(b.other.Release(b.ctx, loan))
	b.requireGone(last(b.lending(b.other).Borrow(b.ctx, b.loanOf(l), newTicket())))
	b.requireGone(last2(b.lending(b.other).Accept(b.ctx, b.claim(long), l.ID, newTicket(), false)))
	b.requireGone(b.st.Release(b.ctx, l))
	require.Empty(b.t, b.look().Owner)
}

// stressLend has waiters that lend the lock, and waiters that hand it over. The last one to leave
// is the lender, or its borrower.
func stressLend(b *bench) {
	const chains, rounds = 6, 8
	var in atomic.Int64
	alone := func(stay func()) {
		if n := in.Add(1); n != 1 {
			b.t.Errorf("%d are in at once", n)
		}
		stay()
		in.Add(-1)
	}
	lend := func(l store.Lease) (err error) {
		l.Lent = true
		var loan store.Lease
		alone(func() {
			if loan, err = b.lending(b.other).Borrow(b.ctx, b.loanOf(l), newTicket()); err == nil {
				err = b.st.Release(b.ctx, l)
				b.pause(time.Millisecond)
			}
		})
		if err != nil {
			return err
		}
		return b.other.Release(b.ctx, loan)
	}
	move := func(l store.Lease) error {
		var next store.Lease
		var err error
		alone(func() {
			next, _, err = b.lending(b.other).Accept(b.ctx, b.claim(long), l.ID, newTicket(), false)
			b.pause(time.Millisecond)
		})
		if err != nil {
			return err
		}
		return b.other.Release(b.ctx, next)
	}
	var group sync.WaitGroup
	for i := range chains {
		group.Go(func() {
			for range rounds {
				l, err := b.st.Wait(b.ctx, b.claim(long), func(store.Progress) {})
				switch {
				case err != nil:
				case i%2 == 0:
					err = lend(l)
				default:
					err = move(l)
				}
				if err != nil {
					b.t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}
