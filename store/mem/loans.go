package mem

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-relock/relock/store"
)

type used struct {
	by      store.ID
	expires time.Time
}

// useTicket refuses a ticket that has expired, or was used for another hold.
func (s *Store) useTicket(t store.Ticket, id store.ID) error {
	now := time.Now()
	maps.DeleteFunc(s.tickets, func(_ string, old used) bool { return !now.Before(old.expires) })
	if !t.Expires.IsZero() && !now.Before(t.Expires) {
		return fmt.Errorf("%w: it has expired", store.ErrTicket)
	}
	if old, is := s.tickets[t.ID]; is && old.by != id {
		return fmt.Errorf("%w: it was used before", store.ErrTicket)
	}
	if !t.Expires.IsZero() {
		s.tickets[t.ID] = used{id, t.Expires}
	}
	return nil
}

// Borrow implements [store.Lending].
func (s *Store) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (l store.Lease, err error) {
	err = s.once(ctx, a.Name, func(k *lock) error {
		h := find(k.holds, a.Lender)
		if h == nil || h.recalled {
			return store.ErrGone
		}
		if t.Expires.IsZero() {
			return fmt.Errorf("%w: a loan needs a ticket that expires", store.ErrTicket)
		}
		if err := s.useTicket(t, a.ID); err != nil {
			return err
		}
		if h.loans == nil {
			h.loans = make(map[store.ID]time.Time)
		}
		h.loans[a.ID] = h.end()
		a.TTL = time.Until(h.end()) - a.Delay
		l = store.Lease{Claim: a, Sent: time.Now()}
		return nil
	})
	return l, err
}

// Follow implements [store.Lending].
func (s *Store) Follow(ctx context.Context, l store.Lease) (left time.Duration, err error) {
	err = s.once(ctx, l.Name, func(k *lock) error {
		h := find(k.holds, l.Lender)
		if h == nil || h.loans[l.ID].IsZero() {
			return store.ErrGone
		}
		h.loans[l.ID] = h.end()
		if h.recalled {
			return store.ErrRecalled
		}
		left = time.Until(h.end()) - l.Delay
		return nil
	})
	return left, err
}

// Accept implements [store.Lending].
func (s *Store) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, unaware bool) (
	l store.Lease, wait time.Duration, err error,
) {
	err = s.once(ctx, a.Name, func(k *lock) error {
		h := find(k.holds, a.ID)
		if h == nil {
			if h = find(k.holds, old); h == nil || h.recalled {
				return store.ErrGone
			}
			if err := s.useTicket(t, a.ID); err != nil {
				return err
			}
			s.recall(h)
			if wait = time.Until(h.end()); !unaware {
				wait = 0
			}
			h.Lease = store.Lease{Claim: a, Sent: time.Now()}
			h.TTL += wait
			h.count, h.loans, h.recalled = 1, nil, false
		}
		l = h.Lease
		wait = h.TTL - a.TTL - time.Since(h.Sent)
		return nil
	})
	if unaware && (err == nil || errors.Is(err, store.ErrUnsure)) {
		s.tell(old)
	}
	return l, max(wait, 0), err
}

// leave ends a loan, or a hold. A hold with open loans stays until the last one is returned.
func (s *Store) leave(k *lock, h *hold, a store.Claim) {
	if a.Lender != "" {
		delete(h.loans, a.ID)
	} else {
		h.recalled = true
		s.recall(h)
	}
	if h.recalled && len(h.open()) == 0 {
		k.remove(h.ID)
	}
}

// recall has the clients of all open loans look. The caller holds Store.mu.
func (s *Store) recall(h *hold) {
	for loan := range h.open() {
		go s.tell(loan)
	}
}

// open returns the loans on which their clients may count yet. The clients of others are dead.
func (h *hold) open() map[store.ID]time.Time {
	now := time.Now()
	maps.DeleteFunc(h.loans, func(_ store.ID, end time.Time) bool { return !now.Before(end) })
	return h.loans
}
