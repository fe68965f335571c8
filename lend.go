package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/inside"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// This file lets holds travel: a section is lent to another process, or continued there. Package
// ticket has the verbs.

// tickets implements [inside.Tickets].
type tickets Lock

// Lend implements [inside.Tickets].
func (s *tickets) Lend(ctx context.Context) (inside.Ticket, error) {
	return (*Lock)(s).issue(ctx, "lend", inside.Loan, func(h *hold) error {
		h.lease.Lent = true
		h.passing.named = true
		return nil
	})
}

// HandOff implements [inside.Tickets].
func (s *tickets) HandOff(ctx context.Context) (inside.Ticket, error) {
	l := (*Lock)(s)
	var after func()
	t, err := l.issue(ctx, "hand off", inside.HandOff, func(h *hold) error {
		if h.lease.Lent {
			return invalid("HandOff of %q: its section was lent; hand off first, or unlock, which recalls the loans", l.name)
		}
		after = l.client.table.handOffLocked(h)
		return nil
	})
	if err == nil {
		after()
	}
	return t, err
}

// ToResume implements [inside.Tickets].
func (s *tickets) ToResume(ctx context.Context) (inside.Ticket, error) {
	return (*Lock)(s).issue(ctx, "make a ticket for", inside.Resume, func(h *hold) error {
		h.passing.named = true
		return nil
	})
}

// issue draws a token and makes a ticket for the section around ctx. begin does to its hold what
// comes with the ticket, with the table's mutex held.
func (l *Lock) issue(ctx context.Context, op string, use string, begin func(*hold) error) (inside.Ticket, error) {
	if err := l.Err(); err != nil {
		return inside.Ticket{}, err
	}
	if _, err := l.lending(op); err != nil {
		return inside.Ticket{}, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return inside.Ticket{}, err
	}
	token, err := l.token(ctx, op)
	if err != nil {
		return inside.Ticket{}, err
	}
	e, err := l.inside(op, ctx)
	if err != nil {
		return inside.Ticket{}, err
	}
	h, t := e.hold, &l.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.isLoan():
		return inside.Ticket{}, invalid("%s %q inside a borrowed section: only the lender can", op, l.name)
	case isLost(h.end): // just now
		return inside.Ticket{}, h.end
	case h.state != held:
		return inside.Ticket{}, l.opError(op, h.holder, ErrNotHeld)
	}
	if err := begin(h); err != nil {
		return inside.Ticket{}, err
	}
	return inside.Ticket{
		Use: use, ID: id.String(), Lock: h.lease.Name, Hold: string(h.lease.ID), Token: token, TTL: h.ttl, Delay: h.lease.Delay,
	}, nil
}

// handOffLocked ends a hold without its release, and returns what to do without the mutex.
func (t *table) handOffLocked(h *hold) func() {
	lease, cancels := h.lease, h.cancelsLocked()
	t.releaseLocked(h, ErrHandedOff, nil)
	return func() {
		// An early command of this hold may run yet, and the store may remember its wait.
		h.client.cleanup.addAfter(time.Until(lease.Sent.Add(lease.Kept(lease.TTL))), h, lease.Claim, h.ttl)
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
	case l.claim.Kind != store.Mutex:
		return nil, invalid("%s %q: %w: only a mutex can be lent, and not %s", op, l.name, errors.ErrUnsupported, l.claim.Kind)
	}
	return s, nil
}

// ticketCall is a call that enters by a ticket.
type ticketCall struct {
	op    string // for errors
	enter func() error
}

// Borrow implements [inside.Tickets].
func (s *tickets) Borrow(ctx context.Context, t inside.Ticket) (context.Context, error) {
	l := (*Lock)(s)
	lending, err := l.accepting("borrow", t, inside.Loan)
	if err != nil {
		return refused(ctx, err), err
	}
	a := acquiring{lock: l, ctx: ctx}
	a.ticket = &ticketCall{"borrow", func() error {
		h := a.newHold()
		set := *l.settings // what is the lender's, and nested entries that ask nobody
		set.ttl, set.delay, set.acks, set.fixed, set.maxHold, set.localReentry = t.TTL, t.Delay, store.Acks{}, false, 0, true
		h.settings = &set
		h.lease.TTL, h.lease.Delay, h.lease.Acks, h.lease.Lender = t.TTL, t.Delay, store.Acks{}, store.ID(t.Hold)
		bound, end := l.client.boundCall(a.event.Context, ctx, 0)
		defer end.Stop()
		lease, err := lending.Borrow(bound, h.lease.Claim, store.Ticket{ID: t.ID, Expires: t.Expires})
		return a.enterBy(bound, t, h, lease, err)
	}}
	return a.run()
}

// Accept implements [inside.Tickets]. The former process of a resume may run and know nothing.
func (s *tickets) Accept(ctx context.Context, t inside.Ticket) (context.Context, error) {
	l := (*Lock)(s)
	lending, err := l.accepting("accept", t, inside.HandOff, inside.Resume)
	if err != nil {
		return refused(ctx, err), err
	}
	unaware := t.Use == inside.Resume
	a := acquiring{lock: l, ctx: ctx}
	a.ticket = &ticketCall{"accept", func() error {
		h := a.newHold()
		if unaware {
			a.hold = nil // never to be abandoned, see enterBy
		}
		bound, end := l.client.boundCall(a.event.Context, ctx, 0)
		defer end.Stop()
		lease, wait, err := lending.Accept(bound, h.lease.Claim, store.ID(t.Hold), store.Ticket{ID: t.ID, Expires: t.Expires}, unaware)
		if err == nil && wait > 0 {
			lifetime.Sleep(bound.Done(), wait) // enterBy sees the end of bound, too
		}
		return a.enterBy(bound, t, h, lease, err)
	}}
	return a.run()
}

// enterBy begins a hold that the store has given for a ticket.
func (a *acquiring) enterBy(ctx context.Context, t inside.Ticket, h *hold, lease store.Lease, err error) error {
	l := a.lock
	if err == nil && ctx.Err() != nil {
		err = store.Unsure(lifetime.Ended(ctx))
	}
	if err == nil {
		lease.Token = t.Token
		err = a.begin(h, lease)
	}
	if errors.Is(err, store.ErrUnsure) && t.Use != inside.Resume { // not of a resume: others would get in beside the former process
		l.client.cleanup.add(h, h.lease.Claim, h.ttl)
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
func (l *Lock) accepting(op string, t inside.Ticket, uses ...string) (store.Lending, error) {
	if err := l.Err(); err != nil {
		return nil, err
	}
	s, err := l.lending(op)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(uses, t.Use):
		return nil, fmt.Errorf("%w: a %q ticket, and %s needs one of %q", ErrTicket, t.Use, op, uses)
	case t.Lock != l.claim.Name:
		return nil, fmt.Errorf("%w: it is for %q, and this lock is %q", ErrTicket, t.Lock, l.claim.Name)
	case uuid.Validate(t.ID) != nil, t.Hold == "", t.Token <= 0, t.TTL < MinTTL, t.TTL > MaxTTL, t.Delay < 0, t.Delay > MaxTTL:
		return nil, fmt.Errorf("%w: it was not made by Lend, HandOff or ToResume", ErrTicket)
	case t.Expires.IsZero() && t.Use != inside.Resume:
		return nil, fmt.Errorf("%w: it has no expiry", ErrTicket)
	}
	return s, nil
}
