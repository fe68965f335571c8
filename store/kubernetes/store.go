package relockk8s

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// changes is how often a command starts anew because another client has changed the Lease
// meanwhile.
const changes = 5

// patient is how many claims and cleanups of a Store are in flight. Each has one command in flight.
// So the limit of client-go, which serves commands in the order in which they come, has few of them
// before a renewal or a release.
const patient = 4

// Store keeps locks in the Leases of a namespace. A Store is a store of mutexes whose waiters race.
// The zero Store is of no use, see [New].
type Store struct {
	leases coordination.LeaseInterface
	turns  chan struct{} // one for each claim and cleanup in flight

	mu    sync.Mutex
	views map[string]*view // the last version of each Lease that the process has read
	most  int              // the number of views at which to look for those that are over
}

var (
	_ store.Checker = (*Store)(nil)
	_ store.Racing  = (*Store)(nil)
	_ store.Watcher = (*Store)(nil)
	_ store.Listing = (*Store)(nil)
)

// New makes a Store on the Leases of a namespace. New talks to nobody. The rate limit of client-go,
// 5 commands a second by default, holds up locks too: see QPS and Burst in rest.Config.
func New(leases coordination.LeaseInterface) (*Store, error) {
	if leases == nil {
		return nil, errors.New("the interface of the Leases is nil")
	}
	return &Store{leases: leases, turns: make(chan struct{}, patient), views: make(map[string]*view)}, nil
}

// turn waits until a claim or a cleanup may send commands, until done.
func (s *Store) turn(ctx context.Context) (done func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }, nil
	case <-ctx.Done():
		return nil, store.Unavailable(fmt.Errorf("%d commands before this one have no answer: %w", patient, lifetime.Ended(ctx)))
	}
}

// Races says that waiters race: whoever asks first has a free lock.
func (s *Store) Races() bool { return true }

// Check accepts a mutex with the name of an object: at most 253 small letters, digits, '-' and '.',
// and each part between dots begins and ends with a letter or digit. Other kinds, and
// acknowledgements, are [errors.ErrUnsupported]: a majority of etcd has each write on disk before
// the API server answers.
func (s *Store) Check(a store.Claim) (store.Claim, error) {
	switch {
	case len(validation.IsDNS1123Subdomain(a.Name)) > 0:
		return a, fmt.Errorf("the lock name %q is no name of an object: %s", a.Name,
			strings.Join(validation.IsDNS1123Subdomain(a.Name), "; "))
	case a.Kind != store.Mutex || a.Limit != 1:
		return a, fmt.Errorf("%w: a lock in Kubernetes is a mutex, and not %s", errors.ErrUnsupported, a.Kind)
	case a.Acks != store.Acks{}:
		return a, fmt.Errorf("%w: a majority of etcd has each hold on disk anyway", errors.ErrUnsupported)
	}
	return a, nil
}

// Try implements [store.Store].
func (s *Store) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if ctx.Err() != nil {
		return store.Lease{}, lifetime.Ended(ctx)
	}
	l, _, err := s.take(ctx, a)
	return l, err
}

// take gives the lock to a hold. If another hold has the lock, take returns that view and a
// refusal.
func (s *Store) take(ctx context.Context, a store.Claim) (l store.Lease, v *view, err error) {
	done, err := s.turn(ctx)
	if err != nil {
		return store.Lease{}, nil, err
	}
	defer done()
	l = store.Lease{Claim: a}
	next := record{ID: a.ID, TTL: lifetime.Millis(a.Kept(a.TTL)), Count: 1}
	for range changes {
		l.Sent, l.Unsure = time.Now(), false
		v, err = s.create(ctx, a.Name, next)
		if errors.Is(err, errChanged) {
			v, err = s.get(ctx, a.Name)
			switch {
			case err == nil && v == nil: // deleted meanwhile
				continue
			case err == nil && v.held() && v.owner() != a.ID:
				return store.Lease{}, v, &store.Busy{Owner: v.owner(), TTL: max(v.rest(), time.Millisecond)}
			case err == nil:
				l.Sent, l.Unsure = time.Now(), v.owner() == a.ID
				v, err = s.update(ctx, v, v.again(next))
			}
		}
		switch {
		case err == nil:
			l.Token = v.token()
			return l, v, nil
		case !errors.Is(err, errChanged):
			return store.Lease{}, nil, err
		}
	}
	return store.Lease{}, nil, tooBusy()
}

// Enter implements [store.Store].
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	var sent time.Time
	err := attempts.Patiently(ctx, attempts.Call{Report: l.Report, Command: "renew"}, func() (err error) {
		sent, err = s.keep(ctx, store.Renewal{Lease: l, TTL: l.TTL, Count: count})
		return err
	})
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // an earlier attempt has changed nothing that is left
	}
	if err != nil {
		return store.Lease{}, err
	}
	if l.TTL > 0 {
		l.Sent = sent
	}
	return l, nil
}

// change runs a command on the Lease of a hold, and again if the Lease has changed meanwhile. The
// first command is on the version that the process knows, if the hold has the lock there.
func (s *Store) change(ctx context.Context, a store.Claim, command func(*view) error) (err error) {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	v := s.known(a.Name)
	for range changes {
		if v == nil || v.owner() != a.ID || !v.held() {
			if v, err = s.get(ctx, a.Name); err != nil {
				return err
			}
		}
		if v == nil || v.owner() != a.ID {
			return store.ErrGone
		}
		if err = command(v); !errors.Is(err, errChanged) {
			return err
		}
		v = nil
	}
	return tooBusy()
}

// Release implements [store.Store]. A release deletes the Lease.
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return attempts.Patiently(ctx, attempts.Call{Report: l.Report, Command: "release"}, func() error { return s.Break(ctx, l.Claim) })
}

// Forget implements [store.Store]. A command that was sent before, and comes later yet, can take
// the lock for one lease.
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return attempts.Each(len(claims), parallel, func(i int) error {
		done, err := s.turn(ctx)
		if err != nil {
			return err
		}
		defer done()
		if err = s.Break(ctx, claims[i]); errors.Is(err, store.ErrGone) {
			err = nil
		}
		return err
	})
}

// Token returns the token in the lease of the hold.
func (s *Store) Token(ctx context.Context, l store.Lease) (int64, error) {
	v, err := s.look(ctx, l.Claim)
	switch {
	case err != nil:
		return 0, err
	case v == nil || v.owner() != l.ID:
		return 0, store.ErrGone
	}
	return v.token(), nil
}

// Close does nothing: the Store has no connection of its own, and its goroutines end with the calls
// and watches that they serve.
func (s *Store) Close() error { return nil }
