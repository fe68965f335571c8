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
	"frees a lock that was lent":         {freesLent{mem.New()}, "Release of a lender recalls its loans"},
	"lends by every ticket":              {lendsAlways{mem.New()}, "Borrow by a ticket that cannot be used"},
	"borrows beyond the lease":           {borrowsLonger{mem.New()}, "Borrow begins a loan beside its lender"},
	"keeps loans that are returned":      {keepsLoans{mem.New()}, "The last return frees the lock and wakes the waiter"},
	"follows what was recalled":          {hidesRecall{mem.New()}, "Release of a lender recalls its loans"},
	"believes that all clients know":     {alwaysAware{mem.New()}, "Accept waits for the lease of a client that knows nothing"},
	"accepts a hold that is gone":        {acceptsGone{mem.New()}, "Accept that comes too late changes nothing"},
	"frees the lock before it is handed": {freesFirst{mem.New()}, "Accept keeps the queue"},
}

type freesLent struct{ *mem.Store }

func (s freesLent) Release(ctx context.Context, l store.Lease) error {
	if l.Lent {
		return s.Break(ctx, l.Claim)
	}
	return s.Store.Release(ctx, l)
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

type keepsLoans struct{ *mem.Store }

func (s keepsLoans) Release(ctx context.Context, l store.Lease) error {
	if l.Lender != "" {
		return nil
	}
	return s.Store.Release(ctx, l)
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
