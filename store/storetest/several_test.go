package storetest_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// severalMutants break promises of store.Several and store.WaitGraph.
var severalMutants = map[string]mutant{
	"takes no several locks": {"TryAll takes all locks or none", fault{hides: func(s *mem.Store) memory { return noSeveral{Store: s} }}},
	// One lock after the other is taken, until one is busy.
	"takes some of several locks": {"TryAll takes all locks or none", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) (leases []store.Lease, err error) {
		for _, a := range claims {
			l, err := s.Try(ctx, a)
			if busy := (*store.Busy)(nil); errors.As(err, &busy) {
				busy.Name = a.Name
			}
			if err != nil {
				return nil, err
			}
			leases = append(leases, l)
		}
		return leases, nil
	}}},
	"does not name the taken lock": {"TryAll says which lock is taken", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
		leases, err := s.TryAll(ctx, claims)
		if busy := (*store.Busy)(nil); errors.As(err, &busy) {
			busy.Name = claims[0].Name
		}
		return leases, err
	}}},
	"refuses a second TryAll": {"TryAll twice is once", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
		if err := anyTaken(ctx, s, claims); err != nil {
			return nil, err
		}
		return s.TryAll(ctx, claims)
	}}},
	// Waiters ask again and again, without a queue.
	"lets TryAll overtake": {"TryAll does not overtake a waiter", fault{wait: func(ctx context.Context, s *mem.Store, a store.Claim, progress progress) (store.Lease, error) {
		for {
			l, err := s.Try(ctx, a)
			var busy *store.Busy
			if !errors.As(err, &busy) {
				return l, err
			}
			progress(store.Progress{Busy: busy, Queued: true})
			<-time.After(time.Millisecond)
		}
	}}},
	"remembers who had a lock":      {"TryAll takes a lock whose hold has ended", remembers()},
	"takes some, unsupported":       {"TryAll that is unsupported changes nothing", fault{tryAll: takeUnsupported}},
	"takes some beside a semaphore": {"TryAll beside another kind of lock changes nothing", fault{tryAll: takeUnsupported}},
	"frees one of several locks": {"ReleaseAll frees all locks and serves a waiter", fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) []error {
		errs := make([]error, len(leases))
		for i, l := range leases[:min(1, len(leases))] {
			errs[i] = s.Release(ctx, l)
		}
		return errs
	}}},
	// One lock is freed, and then its hold is found to be gone.
	"is unsure of one freed lock": {"ReleaseAll of one hold and of none", fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) []error {
		errs := s.ReleaseAll(ctx, leases)
		if len(leases) == 1 {
			errs = s.ReleaseAll(ctx, leases)
		}
		return errs
	}}},
	"frees several locks of anybody": {"ReleaseAll twice is once", freesEach(releaseAny)},
	"ends ReleaseAll at the first error": {"ReleaseAll says which holds are gone", fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) []error {
		errs := make([]error, len(leases))
		for i, l := range leases {
			if errs[i] = s.Release(ctx, l); errs[i] != nil {
				break
			}
		}
		return errs
	}}},
	// Permits are freed, and are said not to be.
	"frees what is unsupported": {"ReleaseAll leaves to Release what it does not support", fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) []error {
		errs := s.ReleaseAll(ctx, leases)
		for i, l := range leases {
			if l.Kind == store.Semaphore {
				errs[i] = errors.ErrUnsupported
			}
		}
		return errs
	}}},
	// One attempt is made.
	"ends ReleaseAll when interrupted": {"ReleaseAll outlasts an interruption", fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) []error {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return s.ReleaseAll(ctx, leases)
	}}},
	"hides the cause of the end of all": {"A context that is done ends TryAll and ReleaseAll", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return s.TryAll(ctx, claims)
	}}},
	"is sure of lost answers to TryAll": {"A silent server holds up no TryAll and no ReleaseAll", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
		leases, err := s.TryAll(ctx, claims)
		if errors.Is(err, store.ErrUnsure) {
			return nil, errors.New(err.Error())
		}
		return leases, err
	}}},
	"is sure of lost answers to all": {"A silent server holds up no TryAll and no ReleaseAll", freesEach(releaseSurely)},
	// The locks are looked at, and taken a little later.
	"lets two into several locks": {"TryAll excludes many at once", fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) (leases []store.Lease, err error) {
		if err := anyTaken(ctx, s, claims); err != nil {
			return nil, err
		}
		<-time.After(10 * time.Microsecond)
		for _, a := range claims {
			l, err := tries(share).try(ctx, s, a)
			if err != nil {
				return nil, err
			}
			leases = append(leases, l)
		}
		return leases, nil
	}}},
	"shows no waits": {"A wait is shown under each of its holds", fault{hides: func(s *mem.Store) memory { return noWaits{Store: s} }}},
	"shows a wait under one hold": {"A wait is shown under each of its holds", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error {
		w.Holds = w.Holds[:1]
		return s.Show(ctx, w, lifetime)
	}}},
	"keeps the first wait": {"A wait that is shown anew replaces the old one", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error {
		if shown, err := s.Shown(ctx, w.Holds); err == nil && len(shown) > 0 && len(w.For) > 0 {
			return nil
		}
		return s.Show(ctx, w, lifetime)
	}}},
	"keeps what is taken back": {"A wait that is taken back is gone", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error {
		if len(w.For) == 0 {
			return nil
		}
		return s.Show(ctx, w, lifetime)
	}}},
	"takes all waits of a hold back": {"A wait that is taken back is gone", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error {
		if len(w.For) > 0 {
			return s.Show(ctx, w, lifetime)
		}
		shown, err := s.Shown(ctx, w.Holds)
		for _, other := range shown {
			other.For = nil
			err = errors.Join(err, s.Show(ctx, other, lifetime))
		}
		return err
	}}},
	"shows a wait for too long": {"A wait ends with its lifetime", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, _ time.Duration) error {
		return s.Show(ctx, w, time.Hour)
	}}},
	"shows a wait too shortly": {"A wait ends with its lifetime", fault{show: func(ctx context.Context, s *mem.Store, w store.Waiting, lifetime time.Duration) error {
		return s.Show(ctx, w, lifetime*9/10)
	}}},
	"hides the cause of the end of Shown": {"A context that is done ends Show and Shown", fault{shown: func(ctx context.Context, s *mem.Store, holds []store.ID) ([]store.Waiting, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return s.Shown(ctx, holds)
	}}},
	"shows nothing in silence": {"A silent server holds up no Show and no Shown", fault{shown: func(ctx context.Context, s *mem.Store, holds []store.ID) ([]store.Waiting, error) {
		waits, err := s.Shown(ctx, holds)
		if errors.Is(err, store.ErrUnavailable) {
			return nil, nil
		}
		return waits, err
	}}},
}

// noSeveral has a field that hides the method TryAll.
type noSeveral struct {
	*mem.Store
	TryAll struct{}
}

// noWaits has a field that hides the method Show.
type noWaits struct {
	*mem.Store
	Show struct{}
}

// anyTaken says which of several locks somebody has.
func anyTaken(ctx context.Context, s *mem.Store, claims []store.Claim) error {
	for _, a := range claims {
		if state, err := s.Look(ctx, a); err == nil && state.Owner != "" {
			return &store.Busy{Name: a.Name, Owner: state.Owner, TTL: state.TTL}
		}
	}
	return nil
}

// remembers refuses a lock for good that was taken once.
func remembers() fault {
	var mu sync.Mutex
	taken := map[string]error{}
	return fault{tryAll: func(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, a := range claims {
			if err := taken[a.Name]; err != nil {
				return nil, err
			}
		}
		leases, err := s.TryAll(ctx, claims)
		if busy := (*store.Busy)(nil); errors.As(err, &busy) {
			taken[busy.Name] = err
		}
		return leases, err
	}}
}

func takeUnsupported(ctx context.Context, s *mem.Store, claims []store.Claim) ([]store.Lease, error) {
	leases, err := s.TryAll(ctx, claims)
	if errors.Is(err, errors.ErrUnsupported) {
		_, _ = s.Try(ctx, claims[0])
	}
	return leases, err
}

// freesEach frees several locks one after the other.
func freesEach(release func(ctx context.Context, s *mem.Store, l store.Lease) error) fault {
	return fault{releaseAll: func(ctx context.Context, s *mem.Store, leases []store.Lease) (errs []error) {
		for _, l := range leases {
			errs = append(errs, release(ctx, s, l))
		}
		return errs
	}}
}
