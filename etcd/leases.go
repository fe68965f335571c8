package relocketcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

// spares are etcd leases without a key. No command that uses a spare is in flight.
type spares struct {
	mu     sync.Mutex
	list   []lease
	closed bool
}

// take returns the spare with the latest end among the spares of one length.
func (s *spares) take(ttl int64) (l lease, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.list = slices.DeleteFunc(s.list, func(l lease) bool { return !now.Before(l.end()) })
	for i, spare := range slices.Backward(s.list) {
		if spare.ttl == ttl {
			s.list = slices.Delete(s.list, i, i+1)
			return spare, true
		}
	}
	return lease{}, false
}

// give adds a spare, and returns false after close.
func (s *spares) give(l lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.list = append(s.list, l)
	}
	return !s.closed
}

func (s *spares) close() (left []lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, s.list, s.closed = s.list, nil, true
	return left
}

// takeLease returns an etcd lease that lasts for ttl seconds from sent on: a spare, or a new one. A
// lease that is granted without an answer has no key, and ends by itself.
func (s *Store) takeLease(ctx context.Context, ttl int64) (lease, error) {
	for {
		spare, found := s.spares.take(ttl)
		if !found {
			break
		}
		spare.sent = time.Now()
		err := s.renew(ctx, []clientv3.LeaseID{spare.id})[0]
		switch {
		case err == nil:
			return spare, nil
		case !errors.Is(err, store.ErrGone):
			return lease{}, err
		}
	}
	l := lease{ttl: ttl, sent: time.Now()}
	err := once(ctx, func(ctx context.Context) error {
		resp, err := s.client.Grant(ctx, ttl)
		if err == nil {
			l.id = resp.ID
		}
		return err
	})
	return l, err
}

// giveLease keeps an etcd lease without a key for the next hold. After Close the lease is revoked.
func (s *Store) giveLease(ctx context.Context, l lease) {
	if !s.spares.give(l) {
		s.revoke(ctx, l.id)
	}
}

// revoke ends an etcd lease without a key. If revoke fails, the lease ends by itself.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) {
	_ = once(ctx, func(ctx context.Context) error {
		_, err := s.client.Revoke(ctx, id)
		return err
	})
}

// renew resets etcd leases to their whole length. renew leaves out the leases with number 0, and
// returns ErrGone for a lease that has ended.
func (s *Store) renew(ctx context.Context, ids []clientv3.LeaseID) []error {
	errs := make([]error, len(ids))
	if !slices.ContainsFunc(ids, func(id clientv3.LeaseID) bool { return id != 0 }) {
		return errs
	}
	err := read(ctx, func(ctx context.Context) error { return s.reset(ctx, ids, errs) })
	for i, id := range ids {
		if err != nil && id != 0 {
			errs[i] = store.Unsure(err)
		}
	}
	return errs
}

// reset renews in one stream, and writes to errs which leases have ended.
func (s *Store) reset(ctx context.Context, ids []clientv3.LeaseID, errs []error) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseKeepAlive(ctx)
	for begin := 0; begin < len(ids) && err == nil; begin += batchMost {
		batch := ids[begin:min(begin+batchMost, len(ids))]
		for _, id := range batch {
			if id != 0 && err == nil {
				err = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
			}
		}
		for i, id := range batch {
			var resp *pb.LeaseKeepAliveResponse
			if id != 0 && err == nil {
				resp, err = stream.Recv()
			}
			if resp != nil && resp.TTL <= 0 {
				errs[begin+i] = store.ErrGone
			}
		}
	}
	return rpctypes.Error(err)
}

// rest returns the rest of an etcd lease, rounded up; negative: there is no lease.
func (s *Store) rest(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	if id == clientv3.NoLease {
		return -1, nil
	}
	var seconds int64
	err := read(ctx, func(ctx context.Context) error {
		resp, err := s.client.TimeToLive(ctx, id)
		if err == nil { // etcd rounds down; a lease that ends just now has -1, one on a new leader no end
			seconds = max(1, min(resp.TTL+1, resp.GrantedTTL))
		}
		return err
	})
	return time.Duration(seconds) * time.Second, err
}
