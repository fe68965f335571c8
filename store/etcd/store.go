// Package relocketcd keeps locks in etcd:
//
//	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
//	...
//	s, err := relocketcd.New(c, "/locks/")
//	...
//	client, err := relock.Open(s)
//
// # Layout
//
// The layout is the layout of etcd's own package concurrency, so these locks exclude `etcdctl lock`
// and concurrency.Mutex, and are excluded by them. The lock "orders" is the range of the keys
//
//	/locks/orders/<etcd lease in hexadecimal>
//
// A key is a hold or a waiter. The key with the smallest create revision has the lock, and the
// others wait in the order of their create revisions. The value names the hold, its count and the
// length of its etcd lease. A key with another value belongs to another program.
//
// The process knows the key of each of its claims from the first command on, so a command that is
// sent again finds its key. For a claim of another process the store reads all keys of the lock.
// Each command that changes or deletes a key compares the create revision, so a command that runs
// late touches no newer key of the same name.
//
// The fencing token is the revision of etcd at which the hold had the lock: the create revision of
// the key, or for a waiter the revision of the answer that let the waiter in.
//
// # Leases
//
// Each key has an etcd lease of its own, so a hold ends alone. etcd counts in seconds, and has a
// shortest lease (2 s by default), so an etcd lease lasts as long as the lease of the hold, or
// longer. An etcd lease whose key was released serves the next hold of the process, for two
// reasons. A grant of a lease is a write, and the renewal of a lease is not. And etcd goes through
// the names of deleted keys too until the next compaction, so a new name for each hold would slow
// down all reads of the lock.
//
// # States
//
//	none  -> in       Try, in a transaction that finds the range empty
//	none  -> waiting  Wait, in a transaction that does not find the key
//	waiting -> in     the last key with a smaller create revision is gone
//	any   -> none     Release, Forget and Break delete the key; the etcd lease ends
//
// A waiter watches the key before its own only, so a release wakes one waiter.
package relocketcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Store keeps locks in etcd. A Store is a store of mutexes with one first-in-first-out queue for
// each name.
type Store struct {
	client *clientv3.Client
	prefix string
	pool   pool
	holds  renewer // of the leases of holds, so that no other renewal holds them up
	others renewer // of the leases of waiters, and of spares

	life    context.Context // ends with Close
	end     context.CancelFunc
	group   group.Group // goroutines of the store
	watched atomic.Bool // the stream of watches is kept open
}

var (
	_ store.Watcher = (*Store)(nil)
	_ store.Checker = (*Store)(nil)
	_ store.Listing = (*Store)(nil)
)

// New makes a store on an etcd client. The name of each key begins with prefix, which ends in a
// slash or is empty. The client may be a client of package clientv3/namespace. [Store.Close] leaves
// the client open.
func New(client *clientv3.Client, prefix string) (*Store, error) {
	switch {
	case client == nil:
		return nil, errors.New("the etcd client is nil")
	case client.ActiveConnection() == nil:
		return nil, errors.New("the etcd client has no connection")
	case prefix != "" && !strings.HasSuffix(prefix, "/"):
		return nil, fmt.Errorf("the prefix %q does not end in a slash", prefix)
	}
	life, end := context.WithCancel(context.Background())
	return &Store{
		client: client, prefix: prefix, pool: pool{holds: make(map[store.ID]hold)},
		holds: renewer{client: client}, others: renewer{client: client},
		life: life, end: end,
	}, nil
}

// Check accepts a mutex with a name without a slash: etcd's own locks of "a" would wait for the
// lock of "a/b". Other kinds, and acknowledgements, are [errors.ErrUnsupported]: etcd has each
// command on the disks of a majority before etcd answers.
func (s *Store) Check(a store.Claim) (store.Claim, error) {
	switch {
	case a.Name == "":
		return a, errors.New("the lock name is empty")
	case strings.Contains(a.Name, "/"):
		return a, fmt.Errorf("the lock name %q has a slash: slashes belong into the prefix of the store", a.Name)
	case a.Kind != store.Mutex || a.Limit != 1:
		return a, fmt.Errorf("%w: a lock in etcd is a mutex, and not %s", errors.ErrUnsupported, a.Kind)
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
	h, again, err := s.reserve(ctx, a, 0)
	if err != nil {
		return store.Lease{}, err
	}
	resp, err := s.change(ctx,
		clientv3.Compare(clientv3.CreateRevision(s.dir(a)).WithPrefix(), "=", 0),
		[]clientv3.Op{put(h.key, record{ID: a.ID, Count: 1, TTL: h.lease.ttl}, clientv3.WithLease(h.lease.id))},
		[]clientv3.Op{s.oldest(a)},
	)
	if err != nil {
		return store.Lease{}, err
	}
	if resp.Succeeded {
		h.revision = resp.Header.Revision
		s.pool.set(a.ID, h)
		return store.Lease{Claim: a, Sent: h.lease.sent, Token: h.revision, Unsure: again}, nil
	}
	owner := stayOf(resp.Responses[0].GetResponseRange().Kvs[0])
	if owner.ID == a.ID {
		return s.again(ctx, a, owner, resp.Header.Revision)
	}
	if !again {
		s.giveBack(ctx, a.ID)
	}
	busy, err := s.busy(ctx, owner)
	return store.Lease{}, cmp.Or[error](err, busy)
}

// again returns the lease of a hold that has the lock already.
func (s *Store) again(ctx context.Context, a store.Claim, st stay, revision int64) (store.Lease, error) {
	l := store.Lease{Claim: a, Token: revision}
	sent, errs := s.keep(ctx, []store.Renewal{{Lease: l, TTL: a.TTL, Count: st.Count}})
	if errs[0] != nil {
		return store.Lease{}, store.Unsure(errs[0])
	}
	l.Sent = sent
	return l, nil
}

// busy returns the refusal by an owner.
func (s *Store) busy(ctx context.Context, owner stay) (*store.Busy, error) {
	rest, err := s.rest(ctx, owner.lease)
	if err != nil {
		return nil, err
	}
	return &store.Busy{Owner: owner.id(), TTL: rest}, nil
}

// Enter implements [store.Store]. If the etcd lease is too short for l.TTL, the key gets a longer
// one.
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	var sent time.Time
	err := attempts.Patiently(ctx, attempts.Call{Report: l.Report, Command: "renew"}, func() error {
		var errs []error
		sent, errs = s.keep(ctx, []store.Renewal{{Lease: l, TTL: l.TTL, Count: count}})
		return errs[0]
	})
	switch {
	case ctx.Err() == nil && errors.Is(err, store.ErrGone):
		return store.Lease{}, store.ErrGone // no attempt of Enter frees the lock
	case err != nil:
		return store.Lease{}, err
	case l.TTL > 0:
		l.Sent = sent
	}
	return l, nil
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	unsure := l.Unsure // a command with this etcd lease may be in flight
	err := attempts.Patiently(ctx, attempts.Call{Report: l.Report, Command: "release"}, func() error {
		_, err := s.remove(ctx, l.Claim)
		unsure = unsure || errors.Is(err, store.ErrUnsure)
		return err
	})
	if err == nil && !unsure {
		s.giveBack(ctx, l.ID)
	}
	return err
}

// giveBack ends a hold without a key, and keeps its etcd lease for the next hold.
func (s *Store) giveBack(ctx context.Context, id store.ID) {
	if h, found := s.pool.drop(id); found {
		s.giveLease(ctx, h.lease)
	}
}

// remove deletes the key of a hold, and no newer key of the same name.
func (s *Store) remove(ctx context.Context, a store.Claim) (stay, error) {
	h, known := s.pool.hold(a.ID)
	st := stay{key: h.key, revision: h.revision, lease: h.lease.id}
	if !known || h.revision == 0 {
		stays, _, err := s.read(ctx, []store.Renewal{{Lease: store.Lease{Claim: a}}})
		switch {
		case err != nil:
			return stay{}, err
		case stays[0] == nil:
			return stay{}, store.ErrGone
		}
		st = *stays[0]
	}
	resp, err := s.change(ctx, is(st), []clientv3.Op{clientv3.OpDelete(st.key)}, nil)
	if err != nil {
		return stay{}, err
	}
	if !resp.Succeeded {
		return stay{}, store.ErrGone
	}
	return st, nil
}

// Forget implements [store.Store]. Forget revokes the etcd leases of the claims, so that a command of
// theirs that comes late has no effect.
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return attempts.Each(len(claims), parallel, func(i int) error {
		if ctx.Err() != nil {
			return lifetime.Ended(ctx)
		}
		st, err := s.remove(ctx, claims[i])
		if err != nil && !errors.Is(err, store.ErrGone) {
			return err
		}
		h, found := s.pool.drop(claims[i].ID)
		if err != nil && !found { // another call has given the etcd lease back
			return nil
		}
		err = s.revoke(ctx, cmp.Or(st.lease, h.lease.id))
		if err != nil && found {
			s.pool.set(claims[i].ID, h)
		}
		return err
	})
}

// Token returns the token in the lease of the hold. If the lease has none, as the process has
// passed the lock on to another call, Token draws the next revision of etcd, and makes the next
// revision.
func (s *Store) Token(ctx context.Context, l store.Lease) (int64, error) {
	stays, revision, err := s.read(ctx, []store.Renewal{{Lease: l}})
	switch {
	case err != nil:
		return 0, err
	case stays[0] == nil:
		return 0, store.ErrGone
	case l.Token != 0:
		return l.Token, nil
	}
	drawn := stays[0].record
	drawn.Token = revision + 1
	if err := s.rewrite(ctx, *stays[0], drawn, clientv3.WithIgnoreLease()); err != nil {
		return 0, err
	}
	return drawn.Token, nil
}

// Close ends the streams of renewals and watches, and revokes the etcd leases that no hold uses.
func (s *Store) Close() error {
	s.group.Close()
	s.end()
	s.group.Wait()
	s.holds.close()
	s.others.close()
	left := s.pool.close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	attempts.Each(len(left), parallel, func(i int) error { return s.revoke(ctx, left[i].id) })
	return nil
}

// seconds returns the shortest etcd lease for a time.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
