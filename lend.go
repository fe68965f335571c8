package relock

import (
	"context"
	"errors"
	"fmt"
	"github.com/go-relock/relock/event"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// This file lets holds travel: a section is lent to another process, or continued there.

// TicketUse is what a [Ticket] is good for.
type TicketUse string

// The uses of a ticket.
const (
	UseLoan    TicketUse = "loan"     // Borrow, beside the section of the lender
	UseHandOff TicketUse = "hand-off" // Accept, in place of a section that has ended
	UseResume  TicketUse = "resume"   // Accept, in place of a section whose process may have ended
)

// TicketLife is the time for which a ticket of [Lock.Lend] or [Lock.HandOff] can be used. Set
// [Ticket.Expires] for another time.
const TicketLife = 5 * time.Minute

// Ticket lets another process take part in a hold, or take the hold over. A ticket is a secret:
// whoever has the ticket gets in. Its String shows nothing of use to a stranger. Send it over a
// channel that nobody else reads, and with module ticket, which signs it, where its way is not
// trusted. All fields survive encoding/json, if the name of the lock is in UTF-8. A Ticket works
// once. The store keeps nothing of a ticket until it is used, so whoever may change the fields of a
// ticket can do more: make more loans, or take the lock over.
type Ticket struct {
	Use   TicketUse     `json:"use"`
	ID    string        `json:"id"`    // of the ticket: unique
	Lock  string        `json:"lock"`  // the [Lock.Key] of the lock
	Hold  string        `json:"hold"`  // that the ticket is about
	Token int64         `json:"token"` // the fencing token of the hold
	TTL   time.Duration `json:"ttl"`   // of the lease of the hold
	Delay time.Duration `json:"delay"` // of its [WithLockDelay]
	// Expires is the end of the ticket: a time of this process's clock, which the server that keeps
	// the lock compares with its own. Zero: the ticket of [Lock.ResumeTicket] ends with its hold.
	Expires time.Time `json:"expires,omitzero"`
}

// String returns the use and the lock of the ticket, without its secrets.
func (t Ticket) String() string { return fmt.Sprintf("%s ticket for %q", t.Use, t.Lock) }

// GoString is [Ticket.String].
func (t Ticket) GoString() string { return t.String() }

// LogValue is [Ticket.String], for package slog.
func (t Ticket) LogValue() slog.Value { return slog.StringValue(t.String()) }

// Lend returns a ticket with which another process enters the section around ctx, with
// [Lock.Borrow]. One ticket is for one loan. Lend draws the fencing token of the hold, see
// [Lock.Token], as the lender and its borrowers have one token.
//
// Unlock of the last entry recalls all open loans: the contexts of the borrowed sections end, with
// the cause [ErrRecalled]. Unlock does not wait for them. The lock goes on to the next waiter when
// each loan is returned by its Unlock, or the lease has run out.
//
// In Redis a lender has 1,000 open loans at most: the next Borrow is [ErrTicket].
//
// Errors: [ErrInvalid] together with [errors.ErrUnsupported] for a store that cannot lend (only
// relock's own layout in Redis and package mem can), and for a lock that is no mutex; ErrInvalid
// inside a borrowed section; and the errors of Token. The section goes on, unless its lock was
// lost.
func (l *Lock) Lend(ctx context.Context) (Ticket, error) {
	return l.issue(ctx, "lend", UseLoan, func(h *hold) error {
		h.lease.Lent = true
		h.turn.passes = h.maxPasses // the next hold must not have the ID of the ticket
		return nil
	})
}

// HandOff ends the section around ctx, with all entries of its hold, and returns a ticket with
// which another process continues, with [Lock.Accept]: with the same fencing token, and a lease of
// its own. The contexts of the section end with the cause [ErrHandedOff], which each Unlock
// returns. Nothing is renewed until Accept: if nobody accepts, the lock is free when the lease has
// run out.
//
// Errors: those of [Lock.Lend]; [ErrInvalid] for a hold that has lent its lock, also if the loan
// was returned. The section goes on, unless its lock was lost.
func (l *Lock) HandOff(ctx context.Context) (Ticket, error) {
	var after func()
	ticket, err := l.issue(ctx, "hand off", UseHandOff, func(h *hold) error {
		if h.lease.Lent {
			return invalid("HandOff of %q: its section was lent; hand off first, or unlock, which recalls the loans", l.name)
		}
		after = l.client.table.handOffLocked(h)
		return nil
	})
	if err == nil {
		after()
	}
	return ticket, err
}

// ResumeTicket returns a ticket for the case that this process ends without Unlock. A program that
// is to go on after a restart, such as a workflow engine, stores the ticket beside its progress,
// and continues with [Lock.Accept] while the lease lasts. Nothing changes for the section around
// ctx until then; it is lost as soon as somebody accepts.
//
// Errors: those of [Lock.Lend].
func (l *Lock) ResumeTicket(ctx context.Context) (Ticket, error) {
	return l.issue(ctx, "make a ticket for", UseResume, func(h *hold) error {
		h.turn.passes = h.maxPasses // as in Lend
		return nil
	})
}

// issue draws a token and makes a ticket for the section around ctx. begin does to its hold what
// comes with the ticket, with the table's mutex held.
func (l *Lock) issue(ctx context.Context, op string, use TicketUse, begin func(*hold) error) (Ticket, error) {
	if err := l.Err(); err != nil {
		return Ticket{}, err
	}
	if _, err := l.lending(op); err != nil {
		return Ticket{}, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return Ticket{}, err
	}
	token, err := l.token(ctx, op)
	if err != nil {
		return Ticket{}, err
	}
	e, err := l.inside(op, ctx)
	if err != nil {
		return Ticket{}, err
	}
	h, t := e.hold, &l.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.isLoan():
		return Ticket{}, invalid("%s %q inside a borrowed section: only the lender can", op, l.name)
	case isLost(h.end): // just now
		return Ticket{}, h.end
	case h.state != held:
		return Ticket{}, l.opError(op, h.holder, ErrNotHeld)
	}
	if err := begin(h); err != nil {
		return Ticket{}, err
	}
	ticket := Ticket{
		Use: use, ID: id.String(), Lock: h.lease.Name, Hold: string(h.lease.ID), Token: token, TTL: h.ttl, Delay: h.lease.Delay,
	}
	if use != UseResume {
		ticket.Expires = time.Now().Add(TicketLife)
	}
	return ticket, nil
}

// handOffLocked ends a hold without its release, and returns what to do without the mutex.
func (t *table) handOffLocked(h *hold) func() {
	lease, cancels := h.lease, h.cancelsLocked()
	t.releaseLocked(h, ErrHandedOff, nil)
	return func() {
		// An early command of this hold may run yet, and the store may remember its wait.
		h.client.cleanup.addAfter(time.Until(lease.Sent.Add(lease.Kept(lease.TTL))), h, lease.Ask, h.ttl)
		for _, cancel := range cancels {
			cancel(ErrHandedOff)
		}
		h.client.reportLeaks()
	}
}

// lending returns the store, if it can lend this lock.
func (l *Lock) lending(op string) (store.Lending, error) {
	s, is := l.client.store.(store.Lending)
	switch {
	case !is:
		return nil, invalid("%s %q: %w by its store: only relock's own layout in Redis and package mem lend locks", op, l.name, errors.ErrUnsupported)
	case l.ask.Kind != store.Mutex:
		return nil, invalid("%s %q: %w: only a mutex can be lent, and not %s", op, l.name, errors.ErrUnsupported, l.ask.Kind)
	}
	return s, nil
}

// Borrow enters the section for which [Lock.Lend] has made the ticket, beside its lender. Borrow
// does not wait. The borrowed section has the fencing token of the lender. Nested calls of Lock
// enter at once.
//
// The context that Borrow returns ends when ctx ends, at the Unlock, and
//   - when the lender unlocks: the cause is [ErrRecalled]. Finish, and Unlock: the lock goes on
//     when each loan is returned.
//   - when the lender has lost the lock, or its lease has run out as far as this process knows: the
//     cause is [ErrLockLost]. A borrowed section never extends the lease of the lender. It asks for
//     the rest of the lease whenever a third of the rest that it knows has passed.
//
// Borrow asks a store up to three times. Errors: [ErrTicket]; [ErrLockLost]
// if the lender does not have the lock any more, or has unlocked; [ErrInvalid], as for [Lock.Lend],
// and inside a section of this lock; [ErrClosed]; ctx's error, or an error of the store, and the
// ticket may be used up.
func (l *Lock) Borrow(ctx context.Context, t Ticket) (context.Context, error) {
	s, err := l.accepting("borrow", t, UseLoan)
	if err != nil {
		return refused(ctx, err), err
	}
	a := acquiring{lock: l, ctx: ctx, op: "borrow"}
	a.byTicket = func() error {
		h := a.newHold()
		set := *l.settings // what is the lender's, and nested entries that ask nobody
		set.ttl, set.delay, set.acks, set.fixed, set.maxHold, set.localReentry = t.TTL, t.Delay, store.Acks{}, false, 0, true
		h.settings = &set
		h.lease.TTL, h.lease.Delay, h.lease.Acks, h.lease.Lender = t.TTL, t.Delay, store.Acks{}, store.ID(t.Hold)
		bound, end := l.client.boundCall(a.event.Context, ctx, 0)
		defer end.Stop()
		lease, err := s.Borrow(bound, h.lease.Ask, store.Ticket{ID: t.ID, Expires: t.Expires})
		return a.enterBy(bound, t, h, lease, err)
	}
	return a.run()
}

// Accept continues a hold of which [Lock.HandOff] or [Lock.ResumeTicket] has made the ticket, in a
// new section: the lock is not free in between, and the fencing token is the same. The section has
// the options of this Lock. Accept waits for no other hold.
//
// With a ticket of HandOff the section begins at once. With a ticket of ResumeTicket the former
// process may run and know nothing: Accept takes the lock from it, and begins after the end of the
// lease that the former process may count on, at most its TTL later. If ctx ends before, or too
// few servers confirm, nobody has the lock until the lease has run out.
//
// Accept asks a store up to three times. Errors: [ErrTicket]; [ErrLockLost]
// if the hold is gone, or was continued by somebody else; [ErrInvalid], as for [Lock.Lend], and
// inside a section of this lock; [ErrNotReplicated]; [ErrClosed]; ctx's error, or an error of the
// store, and the ticket may be used up.
func (l *Lock) Accept(ctx context.Context, t Ticket) (context.Context, error) {
	s, err := l.accepting("accept", t, UseHandOff, UseResume)
	if err != nil {
		return refused(ctx, err), err
	}
	unaware := t.Use == UseResume
	a := acquiring{lock: l, ctx: ctx, op: "accept"}
	a.byTicket = func() error {
		h := a.newHold()
		if unaware {
			a.hold = nil // never to be abandoned, see enterBy
		}
		bound, end := l.client.boundCall(a.event.Context, ctx, 0)
		defer end.Stop()
		lease, wait, err := s.Accept(bound, h.lease.Ask, store.ID(t.Hold), store.Ticket{ID: t.ID, Expires: t.Expires}, unaware)
		if err == nil && wait > 0 {
			lifetime.Sleep(bound.Done(), wait) // enterBy sees the end of bound, too
		}
		return a.enterBy(bound, t, h, lease, err)
	}
	return a.run()
}

// enterBy begins a hold that the store has given for a ticket.
func (a *acquiring) enterBy(ctx context.Context, t Ticket, h *hold, lease store.Lease, err error) error {
	l := a.lock
	if err == nil && ctx.Err() != nil {
		err = store.Unsure(lifetime.Ended(ctx))
	}
	if err == nil {
		lease.Token = t.Token
		err = a.begin(h, lease)
	}
	if errors.Is(err, store.ErrUnsure) && t.Use != UseResume { // not of a resume: others would get in beside the former process
		l.client.cleanup.add(h, h.lease.Ask, h.ttl)
	}
	switch {
	case err == nil:
		return nil
	case isGone(ctx, err):
		a.event.Outcome = event.OutcomeLost
		return &LostError{Name: l.name, Holder: holderOf(store.ID(t.Hold)), Token: t.Token, Reason: event.LossTaken}
	default:
		return a.failed(ctx, err)
	}
}

// accepting checks a ticket, and returns the store.
func (l *Lock) accepting(op string, t Ticket, uses ...TicketUse) (store.Lending, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	s, err := l.lending(op)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(uses, t.Use):
		return nil, fmt.Errorf("%w: a %q ticket, and %s needs one of %q", ErrTicket, t.Use, op, uses)
	case t.Lock != l.ask.Name:
		return nil, fmt.Errorf("%w: it is for %q, and this lock is %q", ErrTicket, t.Lock, l.ask.Name)
	case uuid.Validate(t.ID) != nil, t.Hold == "", t.Token <= 0, t.TTL < MinTTL, t.TTL > MaxTTL, t.Delay < 0, t.Delay > MaxTTL:
		return nil, fmt.Errorf("%w: it was not made by Lend, HandOff or ResumeTicket", ErrTicket)
	case t.Expires.IsZero() && t.Use != UseResume:
		return nil, fmt.Errorf("%w: it has no expiry", ErrTicket)
	}
	return s, nil
}
