package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file serves loans and holds that move to another client, in relock's layout. Their keys and
// scripts are their own, so those of the mutex are unchanged.

// Statuses in the replies of borrow, follow and accept. A number above 0 has a time: that of accept
// is one more than the time.
const (
	statusUsed     int64 = -1 // by another loan
	statusExpired  int64 = -2
	statusMany     int64 = -3
	statusRecalled int64 = -1 // of follow
)

var errNoExpiry = fmt.Errorf("%w: a loan needs a ticket that expires", store.ErrTicket)

func (s *nativeStore) byTicket(ctx context.Context, a store.Claim, c *wire.Call) (n int64, answer wire.Answer, err error) {
	c.Tries, c.Patience, c.Report, c.Yields = boundTries, takingLimit(a), a.Report, true
	n, answer, err = s.number(ctx, c)
	switch {
	case err != nil:
	case n == 0:
		err = store.ErrGone
	case n == statusUsed:
		err = fmt.Errorf("%w: it was used before", store.ErrTicket)
	case n == statusExpired:
		err = fmt.Errorf("%w: it has expired", store.ErrTicket)
	case n == statusMany:
		err = fmt.Errorf("%w: its lender has 1000 open loans, and more are not allowed", store.ErrTicket)
	}
	return n, answer, unsureOf(answer, err)
}

// expiry returns the expiry of a ticket in milliseconds of the server's clock, 0 for none. An
// expiry before 1970 is long ago, too.
func expiry(t store.Ticket) int64 {
	if t.Expires.IsZero() {
		return 0
	}
	return max(t.Expires.UnixMilli(), 1)
}

func (s *nativeStore) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (store.Lease, error) {
	if t.Expires.IsZero() {
		return store.Lease{}, errNoExpiry
	}
	left, answer, err := s.byTicket(ctx, a, &wire.Call{Script: s.scripts.borrow, Unit: wire.Unit{
		Keys: []string{a.Name, a.Name + loansSuffix, a.Name + ticketInfix + t.ID},
		Args: []any{string(a.Lender), string(a.ID), s.controlOf(a.ID), expiry(t)},
	}})
	if err != nil {
		return store.Lease{}, err
	}
	a.TTL = fromMillis(left) - a.Delay
	return store.Lease{Claim: a, Sent: answer.Sent, Unsure: answer.Unsure}, nil
}

func (s *nativeStore) Follow(ctx context.Context, l store.Lease) (time.Duration, error) {
	left, _, err := s.number(ctx, &wire.Call{Script: s.scripts.follow, Tries: 1, Unit: wire.Unit{
		Keys: []string{l.Name, l.Name + loansSuffix},
		Args: []any{string(l.Lender), string(l.ID), s.controlOf(l.ID)},
	}})
	switch {
	case err != nil:
		return 0, err
	case left == 0:
		return 0, store.ErrGone
	case left == statusRecalled:
		return 0, store.ErrRecalled
	}
	return fromMillis(left) - l.Delay, nil
}

func (s *nativeStore) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, unaware bool) (
	l store.Lease, wait time.Duration, err error,
) {
	n, answer, err := s.byTicket(ctx, a, &wire.Call{Script: s.scripts.accept, Acks: a.Acks, Unit: wire.Unit{
		Keys: []string{a.Name, a.Name + loansSuffix},
		Args: []any{
			string(old), s.controlOf(old), string(a.ID), lifetime.Millis(a.Kept(a.TTL)), expiry(t), unaware,
		},
	}})
	if err != nil {
		return l, 0, err
	}
	wait = fromMillis(n - 1)
	l = store.Lease{Claim: a, Sent: answer.First, Unsure: answer.Unsure}
	l.TTL += wait
	if unaware && answer.Acked < a.Acks.Wanted() {
		l.Unsure = true // the client of old may count on the lease that a release would end
	}
	l, err = s.keepOrUndo(ctx, l, answer.Acked)
	return l, wait, err
}
