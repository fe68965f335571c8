package storetest_test

import (
	"context"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// memory is a store in memory, or a store with a fault over one.
type memory interface {
	store.Store
	Interrupt(err error) (restore func())
	Lose(name string)
}

type progress = func(store.Progress)

// fault has the commands that a broken store runs in place of those of the store in memory. A command
// that is nil is as it should be.
type fault struct {
	try        func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error)
	wait       func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error)
	enter      func(ctx context.Context, s *mem.Store, l store.Lease, count int) (store.Lease, error)
	release    func(ctx context.Context, s *mem.Store, l store.Lease) error
	renew      func(ctx context.Context, s *mem.Store, renewals []store.Renewal) []error
	forget     func(ctx context.Context, s *mem.Store, claims []store.Claim) []error
	token      func(ctx context.Context, s *mem.Store, l store.Lease) (int64, error)
	look       func(ctx context.Context, s *mem.Store, a store.Claim) (store.State, error)
	breaks     func(ctx context.Context, s *mem.Store, a store.Claim) error
	list       func(ctx context.Context, s *mem.Store, a store.Claim) (map[string]store.Kind, error)
	tryAll     func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error)
	releaseAll func(ctx context.Context, s *mem.Store, leases []store.Lease) []error
	show       func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error
	shown      func(ctx context.Context, s *mem.Store, holds []store.ID) ([]store.Waiting, error)
	hides      func(s *mem.Store) memory // other faults, such as a method that is not there
}

// tries changes the claim of a Try on its way to the store.
func tries(change func(a *store.Claim)) fault {
	return fault{try: func(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
		changed := a
		change(&changed)
		l, err := s.Try(ctx, changed)
		return of(a, l, err)
	}}
}

// waits changes the claim of a Wait on its way to the store.
func waits(change func(a *store.Claim)) fault {
	return fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		changed := a
		change(&changed)
		l, err := s.Wait(ctx, changed, progress)
		return of(a, l, err)
	}}
}

// asks changes the claims of both.
func asks(change func(a *store.Claim)) fault {
	return fault{try: tries(change).try, wait: waits(change).wait}
}

// of makes a lease name the claim of the caller.
func of(a store.Claim, l store.Lease, err error) (store.Lease, error) {
	if err == nil {
		l.Claim = a
	}
	return l, err
}

// looks changes what Look shows.
func looks(change func(state *store.State)) fault {
	return fault{look: func(ctx context.Context, s *mem.Store, a store.Claim) (store.State, error) {
		state, err := s.Look(ctx, a)
		change(&state)
		return state, err
	}}
}

// lists changes what List finds.
func lists(change func(found map[string]store.Kind)) fault {
	return fault{list: func(ctx context.Context, s *mem.Store, a store.Claim) (map[string]store.Kind, error) {
		found, err := s.List(ctx, a)
		change(found)
		return found, err
	}}
}

// store returns a new store with the fault.
func (f fault) store() memory {
	m := mem.New()
	if f.hides != nil {
		return f.hides(m)
	}
	return &broken{m, f}
}

// broken is a store with a fault.
type broken struct {
	*mem.Store
	f fault
}

func (s *broken) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if s.f.try != nil {
		return s.f.try(ctx, s.Store, a)
	}
	return s.Store.Try(ctx, a)
}

func (s *broken) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	if s.f.wait != nil {
		return s.f.wait(ctx, s.Store, a, progress)
	}
	return s.Store.Wait(ctx, a, progress)
}

func (s *broken) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	if s.f.enter != nil {
		return s.f.enter(ctx, s.Store, l, count)
	}
	return s.Store.Enter(ctx, l, count)
}

func (s *broken) Release(ctx context.Context, l store.Lease) error {
	if s.f.release != nil {
		return s.f.release(ctx, s.Store, l)
	}
	return s.Store.Release(ctx, l)
}

func (s *broken) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if s.f.renew != nil {
		return s.f.renew(ctx, s.Store, renewals)
	}
	return s.Store.Renew(ctx, renewals)
}

func (s *broken) Forget(ctx context.Context, claims []store.Claim) []error {
	if s.f.forget != nil {
		return s.f.forget(ctx, s.Store, claims)
	}
	return s.Store.Forget(ctx, claims)
}

func (s *broken) Token(ctx context.Context, l store.Lease) (int64, error) {
	if s.f.token != nil {
		return s.f.token(ctx, s.Store, l)
	}
	return s.Store.Token(ctx, l)
}

func (s *broken) Look(ctx context.Context, a store.Claim) (store.State, error) {
	if s.f.look != nil {
		return s.f.look(ctx, s.Store, a)
	}
	return s.Store.Look(ctx, a)
}

func (s *broken) Break(ctx context.Context, a store.Claim) error {
	if s.f.breaks != nil {
		return s.f.breaks(ctx, s.Store, a)
	}
	return s.Store.Break(ctx, a)
}

func (s *broken) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	if s.f.list != nil {
		return s.f.list(ctx, s.Store, a)
	}
	return s.Store.List(ctx, a)
}

func (s *broken) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	if s.f.tryAll != nil {
		return s.f.tryAll(ctx, s.Store, claims)
	}
	return s.Store.TryAll(ctx, claims)
}

func (s *broken) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	if s.f.releaseAll != nil {
		return s.f.releaseAll(ctx, s.Store, leases)
	}
	return s.Store.ReleaseAll(ctx, leases)
}

func (s *broken) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	if s.f.show != nil {
		return s.f.show(ctx, s.Store, w, lifetime)
	}
	return s.Store.Show(ctx, w, lifetime)
}

func (s *broken) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	if s.f.shown != nil {
		return s.f.shown(ctx, s.Store, holds)
	}
	return s.Store.Shown(ctx, holds)
}
