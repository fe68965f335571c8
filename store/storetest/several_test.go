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
	"takes no several locks":              {noSeveral{Store: mem.New()}, "TryAll takes all locks or none"},
	"takes some of several locks":         {takesSome{mem.New()}, "TryAll takes all locks or none"},
	"does not name the taken lock":        {namesNoLock{mem.New()}, "TryAll says which lock is taken"},
	"refuses a second TryAll":             {refusesAgain{mem.New()}, "TryAll twice is once"},
	"lets TryAll overtake":                {polls{mem.New()}, "TryAll does not overtake a waiter"},
	"remembers who had a lock":            {&remembers{Store: mem.New()}, "TryAll takes a lock whose hold has ended"},
	"takes some, unsupported":             {takesUnsupported{mem.New()}, "TryAll that is unsupported changes nothing"},
	"takes some beside a semaphore":       {takesUnsupported{mem.New()}, "TryAll beside another kind of lock changes nothing"},
	"frees one of several locks":          {freesOne{mem.New()}, "ReleaseAll frees all locks and serves a waiter"},
	"is unsure of one freed lock":         {unsureOfOne{mem.New()}, "ReleaseAll of one hold and of none"},
	"frees several locks of anybody":      {freesAny{mem.New()}, "ReleaseAll twice is once"},
	"ends ReleaseAll at the first error":  {freesUntilError{mem.New()}, "ReleaseAll says which holds are gone"},
	"frees what is unsupported":           {freesUnsupported{mem.New()}, "ReleaseAll leaves to Release what it does not support"},
	"ends ReleaseAll when interrupted":    {freesInTime{mem.New()}, "ReleaseAll outlasts an interruption"},
	"hides the cause of the end of all":   {hidesCauseOfAll{mem.New()}, "A context that is done ends TryAll and ReleaseAll"},
	"is sure of lost answers to TryAll":   {takesSurely{mem.New()}, "A silent server holds up no TryAll and no ReleaseAll"},
	"is sure of lost answers to all":      {freesSurely{mem.New()}, "A silent server holds up no TryAll and no ReleaseAll"},
	"lets two into several locks":         {looksFirst{mem.New()}, "TryAll excludes many at once"},
	"shows no waits":                      {noWaits{Store: mem.New()}, "A wait is shown under each of its holds"},
	"shows a wait under one hold":         {showsFirst{mem.New()}, "A wait is shown under each of its holds"},
	"keeps the first wait":                {showsOnce{mem.New()}, "A wait that is shown anew replaces the old one"},
	"keeps what is taken back":            {showsForGood{mem.New()}, "A wait that is taken back is gone"},
	"takes all waits of a hold back":      {hidesAll{mem.New()}, "A wait that is taken back is gone"},
	"shows a wait for too long":           {showsLong{mem.New()}, "A wait ends with its lifetime"},
	"shows a wait too shortly":            {showsShort{mem.New()}, "A wait ends with its lifetime"},
	"hides the cause of the end of Shown": {hidesCauseOfShown{mem.New()}, "A context that is done ends Show and Shown"},
	"shows nothing in silence":            {showsNothing{mem.New()}, "A silent server holds up no Show and no Shown"},
}

// noSeveral has a field that hides the method TryAll.
type noSeveral struct {
	*mem.Store
	TryAll struct{}
}

// takesSome takes one lock after the other, until one is taken.
type takesSome struct{ *mem.Store }

func (s takesSome) TryAll(ctx context.Context, claims []store.Claim) (leases []store.Lease, err error) {
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
}

type namesNoLock struct{ *mem.Store }

func (s namesNoLock) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	leases, err := s.Store.TryAll(ctx, claims)
	if busy := (*store.Busy)(nil); errors.As(err, &busy) {
		busy.Name = claims[0].Name
	}
	return leases, err
}

type refusesAgain struct{ *mem.Store }

func (s refusesAgain) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	for _, a := range claims {
		if state, err := s.Look(ctx, a); err == nil && state.Owner != "" {
			return nil, &store.Busy{Name: a.Name, Owner: state.Owner, TTL: state.TTL}
		}
	}
	return s.Store.TryAll(ctx, claims)
}

// polls lets waiters ask again and again, without a queue.
type polls struct{ *mem.Store }

func (s polls) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	for {
		l, err := s.Try(ctx, a)
		var busy *store.Busy
		if !errors.As(err, &busy) {
			return l, err
		}
		progress(store.Progress{Busy: busy, Queued: true})
		<-time.After(time.Millisecond)
	}
}

// remembers refuses a lock for good that was taken once.
type remembers struct {
	*mem.Store
	mu    sync.Mutex
	taken map[string]error
}

func (s *remembers) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range claims {
		if err := s.taken[a.Name]; err != nil {
			return nil, err
		}
	}
	leases, err := s.Store.TryAll(ctx, claims)
	if busy := (*store.Busy)(nil); errors.As(err, &busy) {
		s.taken = map[string]error{busy.Name: err}
	}
	return leases, err
}

type takesUnsupported struct{ *mem.Store }

func (s takesUnsupported) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	leases, err := s.Store.TryAll(ctx, claims)
	if errors.Is(err, errors.ErrUnsupported) {
		_, _ = s.Try(ctx, claims[0])
	}
	return leases, err
}

type freesOne struct{ *mem.Store }

func (s freesOne) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases[:min(1, len(leases))] {
		errs[i] = s.Release(ctx, l)
	}
	return errs
}

type freesAny struct{ *mem.Store }

func (s freesAny) ReleaseAll(ctx context.Context, leases []store.Lease) (errs []error) {
	for _, l := range leases {
		errs = append(errs, releasesAny(s).Release(ctx, l))
	}
	return errs
}

type freesUntilError struct{ *mem.Store }

func (s freesUntilError) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases {
		if errs[i] = s.Release(ctx, l); errs[i] != nil {
			break
		}
	}
	return errs
}

// freesUnsupported frees permits, and says that it did not.
type freesUnsupported struct{ *mem.Store }

func (s freesUnsupported) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs := s.Store.ReleaseAll(ctx, leases)
	for i, l := range leases {
		if l.Kind == store.Semaphore {
			errs[i] = errors.ErrUnsupported
		}
	}
	return errs
}

// freesInTime makes one attempt.
type freesInTime struct{ *mem.Store }

func (s freesInTime) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	return s.Store.ReleaseAll(ctx, leases)
}

type hidesCauseOfAll struct{ *mem.Store }

func (s hidesCauseOfAll) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.Store.TryAll(ctx, claims)
}

type takesSurely struct{ *mem.Store }

func (s takesSurely) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	leases, err := s.Store.TryAll(ctx, claims)
	if errors.Is(err, store.ErrUnsure) {
		return nil, errors.New(err.Error())
	}
	return leases, err
}

type freesSurely struct{ *mem.Store }

func (s freesSurely) ReleaseAll(ctx context.Context, leases []store.Lease) (errs []error) {
	for _, l := range leases {
		errs = append(errs, alwaysSure(s).Release(ctx, l))
	}
	return errs
}

// looksFirst looks whether the locks are free, and takes them a little later.
type looksFirst struct{ *mem.Store }

func (s looksFirst) TryAll(ctx context.Context, claims []store.Claim) (leases []store.Lease, err error) {
	for _, a := range claims {
		if state, err := s.Look(ctx, a); err == nil && state.Owner != "" {
			return nil, &store.Busy{Name: a.Name, Owner: state.Owner, TTL: state.TTL}
		}
	}
	<-time.After(10 * time.Microsecond)
	for _, a := range claims {
		l, err := asksShared(ctx, s.Store, a)
		if err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	return leases, nil
}

func asksShared(ctx context.Context, s *mem.Store, a store.Claim) (store.Lease, error) {
	return claims(ctx, s, a, nil, share)
}

// noWaits has a field that hides the method Show.
type noWaits struct {
	*mem.Store
	Show struct{}
}

type showsFirst struct{ *mem.Store }

func (s showsFirst) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	w.Holds = w.Holds[:1]
	return s.Store.Show(ctx, w, lifetime)
}

type showsOnce struct{ *mem.Store }

func (s showsOnce) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	if shown, err := s.Shown(ctx, w.Holds); err == nil && len(shown) > 0 && len(w.For) > 0 {
		return nil
	}
	return s.Store.Show(ctx, w, lifetime)
}

type showsForGood struct{ *mem.Store }

func (s showsForGood) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	if len(w.For) == 0 {
		return nil
	}
	return s.Store.Show(ctx, w, lifetime)
}

type hidesAll struct{ *mem.Store }

func (s hidesAll) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	if len(w.For) > 0 {
		return s.Store.Show(ctx, w, lifetime)
	}
	shown, err := s.Shown(ctx, w.Holds)
	for _, other := range shown {
		other.For = nil
		err = errors.Join(err, s.Store.Show(ctx, other, lifetime))
	}
	return err
}

type showsLong struct{ *mem.Store }

func (s showsLong) Show(ctx context.Context, w store.Waiting, _ time.Duration) error {
	return s.Store.Show(ctx, w, time.Hour)
}

type showsShort struct{ *mem.Store }

func (s showsShort) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	return s.Store.Show(ctx, w, lifetime*9/10)
}

type hidesCauseOfShown struct{ *mem.Store }

func (s hidesCauseOfShown) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.Store.Shown(ctx, holds)
}

type showsNothing struct{ *mem.Store }

func (s showsNothing) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	waits, err := s.Store.Shown(ctx, holds)
	if errors.Is(err, store.ErrUnavailable) {
		return nil, nil
	}
	return waits, err
}

// unsureOfOne frees one lock, and then finds its hold gone.
type unsureOfOne struct{ *mem.Store }

func (s unsureOfOne) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs := s.Store.ReleaseAll(ctx, leases)
	if len(leases) == 1 {
		errs = s.Store.ReleaseAll(ctx, leases)
	}
	return errs
}
