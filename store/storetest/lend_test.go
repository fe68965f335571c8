package storetest_test

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// lendMutants have one fault of a lending store each.
var lendMutants = map[string]mutant{
	"frees a lock that was lent": {"Release of a lender recalls its loans", fault{release: func(ctx context.Context, s *mem.Store, l store.Lease) error {
		if l.Lent {
			return s.Break(ctx, l.Claim)
		}
		return s.Release(ctx, l)
	}}},
	"lends by every ticket":    {"Borrow by a ticket that cannot be used", fault{hides: func(s *mem.Store) memory { return lendsAlways{s} }}},
	"borrows beyond the lease": {"Borrow begins a loan beside its lender", fault{hides: func(s *mem.Store) memory { return borrowsLonger{s} }}},
	"keeps loans that are returned": {"The last return frees the lock and wakes the waiter", fault{release: func(ctx context.Context, s *mem.Store, l store.Lease) error {
		if l.Lender != "" {
			return nil
		}
		return s.Release(ctx, l)
	}}},
	"follows what was recalled":          {"Release of a lender recalls its loans", fault{hides: func(s *mem.Store) memory { return hidesRecall{s} }}},
	"believes that all clients know":     {"Accept waits for the lease of a client that knows nothing", fault{hides: func(s *mem.Store) memory { return alwaysAware{s} }}},
	"accepts a hold that is gone":        {"Accept that comes too late changes nothing", fault{hides: func(s *mem.Store) memory { return acceptsGone{s} }}},
	"frees the lock before it is handed": {"Accept keeps the queue", fault{hides: func(s *mem.Store) memory { return freesFirst{s} }}},
}

type lendsAlways struct{ *mem.Store }

func (s lendsAlways) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (store.Lease, error) {
	t.ID = rand.Text()
	return s.Store.Borrow(ctx, a, t)
}

type borrowsLonger struct{ *mem.Store }

func (s borrowsLonger) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (store.Lease, error) {
	l, err := s.Store.Borrow(ctx, a, t)
	l.TTL += time.Second
	return l, err
}

type hidesRecall struct{ *mem.Store }

func (s hidesRecall) Follow(ctx context.Context, l store.Lease) (time.Duration, error) {
	state, err := s.Look(ctx, l.Claim)
	return state.TTL, err
}

type alwaysAware struct{ *mem.Store }

func (s alwaysAware) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, _ bool) (store.Lease, time.Duration, error) {
	return s.Store.Accept(ctx, a, old, t, false)
}

type acceptsGone struct{ *mem.Store }

func (s acceptsGone) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, unaware bool) (store.Lease, time.Duration, error) {
	state, err := s.Look(ctx, a)
	if err == nil && state.Owner != "" {
		old = state.Owner
	}
	return s.Store.Accept(ctx, a, old, t, unaware)
}

type freesFirst struct{ *mem.Store }

func (s freesFirst) Accept(ctx context.Context, a store.Claim, old store.ID, _ store.Ticket, _ bool) (store.Lease, time.Duration, error) {
	before := a
	before.ID = old
	if err := s.Break(ctx, before); err != nil {
		return store.Lease{}, 0, err
	}
	l, err := s.Try(ctx, a)
	return l, 0, err
}
