package relocketcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/store"
)

// lease is an etcd lease.
type lease struct {
	id   clientv3.LeaseID
	ttl  int64     // in seconds
	sent time.Time // before the command that granted or renewed the lease was sent
}

func (l lease) end() time.Time { return l.sent.Add(time.Duration(l.ttl) * time.Second) }

// hold is what the process knows of one of its holds or waiters.
type hold struct {
	key      string
	lease    lease
	revision int64 // at which the key was made; 0: not known
}

// pool has the holds of the process, and etcd leases without a key, which are spare. No command
// that uses a spare is in flight.
type pool struct {
	mu     sync.Mutex
	holds  map[store.ID]hold
	most   int // the number of holds at which to look for those that have ended
	spares []lease
	closed bool
}

func (p *pool) hold(id store.ID) (hold, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, known := p.holds[id]
	return h, known
}

func (p *pool) set(id store.ID, h hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds[id] = h
	if len(p.holds) >= p.most {
		now := time.Now()
		maps.DeleteFunc(p.holds, func(_ store.ID, h hold) bool { return !now.Before(h.lease.end()) })
		p.most = 2*len(p.holds) + 64
	}
}

// renewed notes the etcd lease of a hold, unless the hold was dropped meanwhile: another hold may
// use the etcd lease by then.
func (p *pool) renewed(id store.ID, l lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, known := p.holds[id]; known {
		h.lease = l
		p.holds[id] = h
	}
}

// exchange gives a hold another etcd lease, and returns the old one. If the hold was dropped
// meanwhile, the old etcd lease may serve another hold.
func (p *pool) exchange(id store.ID, l lease) (old lease, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, found := p.holds[id]
	if found {
		old, h.lease = h.lease, l
		p.holds[id] = h
	}
	return old, found
}

// drop takes a hold out. The call that finds the hold there has the etcd lease of the hold: it
// alone may give the lease back, or revoke the lease.
func (p *pool) drop(id store.ID) (h hold, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, found = p.holds[id]
	delete(p.holds, id)
	return h, found
}

// take returns the spare that was given last, among the spares of one length.
func (p *pool) take(ttl int64) (l lease, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.spares = slices.DeleteFunc(p.spares, func(l lease) bool { return !now.Before(l.end()) })
	for i, spare := range slices.Backward(p.spares) {
		if spare.ttl == ttl {
			p.spares = slices.Delete(p.spares, i, i+1)
			return spare, true
		}
	}
	return lease{}, false
}

// give adds a spare, and returns false after close.
func (p *pool) give(l lease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.spares = append(p.spares, l)
	}
	return !p.closed
}

func (p *pool) close() (left []lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, p.spares, p.closed = p.spares, nil, true
	return left
}

// reserve returns the key and the etcd lease for a claim. If an earlier command has used them,
// reserve renews the etcd lease, and again is true.
func (s *Store) reserve(ctx context.Context, a store.Claim, age time.Duration) (h hold, again bool, err error) {
	ttl := seconds(a.Kept(a.TTL))
	if h, again = s.pool.hold(a.ID); again && h.lease.ttl >= ttl {
		h.lease.sent = time.Now()
		if err = s.renew(ctx, &s.others, []clientv3.LeaseID{h.lease.id})[0]; !errors.Is(err, store.ErrGone) {
			return h, true, err
		}
	}
	l, err := s.takeLease(ctx, ttl, age)
	if err != nil {
		return hold{}, false, err
	}
	h = hold{key: fmt.Sprintf("%s%x", s.dir(a), l.id), lease: l}
	s.pool.set(a.ID, h)
	return h, false, nil
}

// takeLease returns an etcd lease that lasts for ttl seconds from sent on: a spare, or a new one.
// takeLease renews a spare that was set longer ago than age. A lease that is granted without an
// answer has no key, and ends by itself.
func (s *Store) takeLease(ctx context.Context, ttl int64, age time.Duration) (lease, error) {
	for {
		spare, found := s.pool.take(ttl)
		if !found {
			break
		}
		if time.Since(spare.sent) < age {
			return spare, nil
		}
		spare.sent = time.Now()
		err := s.renew(ctx, &s.others, []clientv3.LeaseID{spare.id})[0]
		switch {
		case err == nil:
			return spare, nil
		case !errors.Is(err, store.ErrGone):
			return lease{}, err
		}
	}
	l := lease{ttl: ttl, sent: time.Now()}
	err := s.once(ctx, func(ctx context.Context) error {
		resp, err := s.client.Grant(ctx, ttl)
		switch {
		case err != nil:
			return err
		case resp.TTL < ttl: // etcd lengthens a lease, and shortens none
			return fmt.Errorf("a lease of %d s was granted, and not of %d s", resp.TTL, ttl)
		}
		l.id = resp.ID
		return nil
	})
	return l, err
}

// giveLease keeps an etcd lease without a key for the next hold. After Close the lease is revoked.
func (s *Store) giveLease(ctx context.Context, l lease) {
	if !s.pool.give(l) {
		_ = s.revoke(ctx, l.id)
	}
}

// revoke ends an etcd lease without a key. If revoke fails, the lease ends by itself.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) error {
	err := s.once(ctx, func(ctx context.Context) error {
		_, err := s.client.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// rest returns the rest of an etcd lease, rounded up; negative: there is no lease.
func (s *Store) rest(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return -1, nil
	}
	var seconds int64
	err := s.readOnly(ctx, func(ctx context.Context) error {
		resp, err := s.client.TimeToLive(ctx, id)
		if err == nil { // etcd rounds down; a lease that ends just now has -1, one on a new leader no end
			seconds = max(1, min(resp.TTL+1, resp.GrantedTTL))
		}
		return err
	})
	return time.Duration(seconds) * time.Second, err
}
