// Package mem keeps locks in memory. The package serves unit tests that need no server, and is the
// reference of package storetest:
//
//	client, err := relock.Open(mem.New())
//
// One [Store] stands for one server. Clients that share a Store exclude each other as processes
// that share a server do. The package measures leases with package time, so a testing/synctest
// bubble gives fake time. Make the Store inside the bubble.
package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Store keeps locks in memory, in one first-in-first-out queue for each name. A Store serves every
// [store.Claim.Limit], draws fencing tokens from 1 for each name, and remembers the last token of a
// name for as long as the Store lives. A lock that nobody has and nobody waits for leaves nothing
// else behind: no goroutine, no timer.
//
// [Store.Lose] and [Store.Interrupt] play the failures of a server.
type Store struct {
	watchers attempts.Watchers
	askers   attempts.Watchers
	follow   attempts.Watchers // by lock in place of client

	mu      sync.Mutex
	locks   map[string]*lock
	tokens  map[string]int64
	missed  bool   // a hold was gone whose client did not watch
	cuts    []*cut // the interruptions that are in force
	waits   map[store.ID]shown
	tickets map[string]used
}

var (
	_ store.Watcher    = (*Store)(nil)
	_ store.Asking     = (*Store)(nil)
	_ store.Announcing = (*Store)(nil)
	_ store.Several    = (*Store)(nil)
	_ store.WaitGraph  = (*Store)(nil)
	_ store.Lending    = (*Store)(nil)
	_ store.Listing    = (*Store)(nil)
	_ store.Queueing   = (*Store)(nil)
)

// cut is one interruption. The restore function closes over.
type cut struct {
	err  error
	over chan struct{}
}

// New makes an empty Store.
func New() *Store {
	return &Store{
		locks:   make(map[string]*lock),
		tokens:  make(map[string]int64),
		waits:   make(map[store.ID]shown),
		tickets: make(map[string]used),
	}
}

// Check accepts every name but the empty one, and every limit from 1 up. Replica
// acknowledgements are [errors.ErrUnsupported].
func (s *Store) Check(a store.Claim) (store.Claim, error) {
	switch {
	case a.Name == "":
		return a, errors.New("the lock name is empty")
	case a.Limit < 1:
		return a, fmt.Errorf("a limit of %d holds lets nobody in", a.Limit)
	case a.Acks != store.Acks{}:
		return a, fmt.Errorf("memory has no replicas and no disk: %w", errors.ErrUnsupported)
	}
	return a, nil
}

// Try implements [store.Store].
func (s *Store) Try(ctx context.Context, a store.Claim) (l store.Lease, err error) {
	err = s.once(ctx, a.Name, func(k *lock) error {
		h, in, err := k.claim(a)
		if err == nil && !in {
			err = k.busy(h)
		}
		l = h.Lease
		return err
	})
	return l, err
}

// TryAll implements [store.Several]. Locks of other kinds than a mutex are
// [errors.ErrUnsupported].
func (s *Store) TryAll(ctx context.Context, claims []store.Claim) (leases []store.Lease, err error) {
	if slices.ContainsFunc(claims, func(a store.Claim) bool { return a.Kind != store.Mutex }) {
		return nil, fmt.Errorf("several locks in one step: only mutexes: %w", errors.ErrUnsupported)
	}
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	_, err = s.attempt(func() error {
		for _, a := range claims {
			if err := s.on(a.Name, func(k *lock) error { return k.refusal(a) }); err != nil {
				return err
			}
		}
		for _, a := range claims {
			_ = s.on(a.Name, func(k *lock) error {
				h, _, err := k.claim(a)
				leases = append(leases, h.Lease)
				return err
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// ReleaseAll implements [store.Several].
func (s *Store) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	return each(leases, func(l store.Lease) error { return s.Release(ctx, l) })
}

// Enter implements [store.Store]. If l.TTL is 0, Enter returns the lease that the hold has.
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	err := s.patiently(ctx, l.Claim, "renew", of(l.ID, func(_ *lock, h *hold) {
		h.extend(l.TTL, count)
		l.Sent, l.TTL = h.Sent, h.TTL
	}))
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // no attempt of Enter frees the lock
	}
	return l, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.patiently(ctx, l.Claim, "release", of(l.Owner(), func(k *lock, h *hold) { s.leave(k, h, l.Claim) }))
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return each(renewals, func(r store.Renewal) error {
		return s.once(ctx, r.Lease.Name, of(r.Lease.ID, func(_ *lock, h *hold) { h.extend(r.TTL, r.Count) }))
	})
}

// Forget implements [store.Store].
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return each(claims, func(a store.Claim) error {
		return s.once(ctx, a.Name, func(k *lock) error {
			if h := find(k.holds, a.Owner()); h != nil {
				s.leave(k, h, a)
			} else {
				k.remove(a.ID)
			}
			return nil
		})
	})
}

// Token implements [store.Store].
func (s *Store) Token(ctx context.Context, l store.Lease) (token int64, err error) {
	err = s.once(ctx, l.Name, of(l.ID, func(*lock, *hold) {
		if token = s.tokens[l.Name]; l.Kind != store.ReadWrite || token == 0 {
			token = max(token, l.Token) + 1
			s.tokens[l.Name] = token
		}
	}))
	return token, err
}

// Close does nothing. Clients that share the Store go on, and so does the Store.
func (s *Store) Close() error { return nil }

// Lose forgets every hold of the lock, as a server that crashes does. The queue stays, so the lock
// goes to the next waiter at once. Lose tells the clients of the lost holds.
func (s *Store) Lose(name string) {
	var lost []*hold
	s.mu.Lock()
	_ = s.on(name, func(k *lock) error { lost, k.holds = k.holds, nil; return nil })
	s.mu.Unlock()
	for _, h := range lost {
		s.tell(h.ID)
		for loan := range h.loans {
			s.tell(loan)
		}
	}
}

// Interrupt cuts every client off until restore is called: commands fail with err, marked with
// [store.ErrUnavailable], or wait for the end of the interruption where package store says so.
// Commands do not run, unless err matches [store.ErrUnsure]: then commands run, and only their
// answers are lost. Leases end during an interruption and waiters are granted the lock, but learn
// of the grant afterwards. A nil err stands for [store.ErrUnavailable]. If interruptions overlap,
// the latest one decides, and each lasts until its own restore. Calling restore again does nothing.
func (s *Store) Interrupt(err error) (restore func()) {
	if err == nil {
		err = store.ErrUnavailable
	}
	c := &cut{err: store.Unavailable(err), over: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts = append(s.cuts, c)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.cuts = slices.DeleteFunc(s.cuts, func(other *cut) bool { return other == c })
		close(c.over)
		s.mu.Unlock()
		s.tell("")
	})
}

func each[T any](items []T, command func(T) error) []error {
	errs := make([]error, len(items))
	for i, item := range items {
		errs[i] = command(item)
	}
	return errs
}

// once makes one attempt at a command, unless ctx is done.
func (s *Store) once(ctx context.Context, name string, command func(*lock) error) error {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	_, err := s.attempt(func() error { return s.on(name, command) })
	return err
}

// patiently makes attempts until one is answered or ctx is done, each after an interruption.
func (s *Store) patiently(ctx context.Context, a store.Claim, verb string, command func(*lock) error) error {
	var c *cut
	over := func(done <-chan struct{}) bool {
		select {
		case <-c.over:
			return true
		case <-done:
			return false
		}
	}
	return attempts.Repeat(ctx, attempts.Call{Report: a.Report, Command: verb}, over, func() (err error) {
		c, err = s.attempt(func() error { return s.on(a.Name, command) })
		return err
	})
}

// attempt runs a command, and returns the interruption that has lost its answer, if there is one.
func (s *Store) attempt(command func() error) (*cut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cuts) == 0 {
		return nil, command()
	}
	c := s.cuts[len(s.cuts)-1]
	if errors.Is(c.err, store.ErrUnsure) {
		_ = command() // the answer is lost
	}
	return c, c.err
}
