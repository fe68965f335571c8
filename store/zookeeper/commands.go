package relockzk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// Enter implements [store.Store].
func (s *Store) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	err := s.patiently(ctx, attempts.Call{Report: l.Report, Command: "renew"}, func(x *session) error {
		n, err := x.renewal(store.Renewal{Lease: l, TTL: l.TTL, Count: count})
		if err != nil {
			return err
		}
		x.commit(ctx, []*renewal{n})
		if n.err == nil {
			n.lease.Woken, l = l.Woken, n.lease
		}
		return n.err
	})
	if ctx.Err() == nil && errors.Is(err, store.ErrGone) {
		err = store.ErrGone // no attempt of Enter frees the lock
	}
	return l, err
}

// Release implements [store.Store].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.patiently(ctx, attempts.Call{Report: l.Report, Command: "release"}, func(x *session) error { return s.free(ctx, x, l.Claim) })
}

// free deletes the node of a hold that has its lock.
func (s *Store) free(ctx context.Context, x *session, a store.Claim) error {
	var node string
	h, err := x.find(a.ID)
	if err == nil {
		node, _ = x.known(h)
	} else if node, err = x.holder(ctx, a); err != nil {
		return err
	}
	err = x.remove(ctx, node)
	if err == nil || errors.Is(err, zk.ErrNoNode) {
		s.drop(x, a.ID)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return store.ErrGone
	}
	return err
}

// holder returns the path of the node of the claim, if that has the lock.
func (x *session) holder(ctx context.Context, a store.Claim) (string, error) {
	lock := x.store.path(a)
	all, err := x.fresh(ctx, lock)
	if err != nil {
		return "", err
	}
	nodes, err := ofKind(all, a.Kind)
	if err != nil {
		return "", store.ErrGone
	}
	if i := indexOf(nodes, a.ID); i >= 0 && isIn(nodes, i) {
		return lock + "/" + nodes[i].name, nil
	}
	return "", store.ErrGone
}

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs := make([]error, len(renewals))
	err := s.once(ctx, func(x *session) error {
		all := make([]*renewal, len(renewals))
		var open []*renewal
		for i, r := range renewals {
			if all[i], errs[i] = x.renewal(r); errs[i] == nil {
				open = append(open, all[i])
			}
		}
		var batches sync.WaitGroup
		for batch := range slices.Chunk(open, batchSize) {
			batches.Go(func() { x.commit(ctx, batch) })
		}
		batches.Wait()
		for i, n := range all {
			if n != nil {
				errs[i] = n.err
			}
		}
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(renewals))
	}
	return errs
}

// Forget implements [store.Store].
func (s *Store) Forget(ctx context.Context, claims []store.Claim) []error {
	return s.each(ctx, len(claims), func(x *session, i int) error { return x.forget(ctx, claims[i]) })
}

// each makes one attempt at each of n commands, all at the same time, behind one sync.
func (s *Store) each(ctx context.Context, n int, attempt func(x *session, i int) error) []error {
	if n == 0 {
		return nil
	}
	var errs []error
	err := s.once(ctx, func(x *session) error {
		if err := x.sync(ctx); err != nil {
			return err
		}
		errs = attempts.Each(n, n, func(i int) error { return attempt(x, i) })
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, n)
	}
	return errs
}

// Token implements [store.Store]. The token is the number of a transaction of ZooKeeper. That of a
// mutex is the czxid of its node, which is the number of the transaction that made the node, or the
// number of a later transaction on the nodes of the lock, before the next node. A writer that has
// waited, and a reader, draw the number of a transaction of their own: an upgrade before them has a
// younger node, and nothing is left of the last writer.
func (s *Store) Token(ctx context.Context, l store.Lease) (token int64, err error) {
	err = s.once(ctx, func(x *session) error {
		node, err := x.holder(ctx, l.Claim)
		if err != nil {
			return err
		}
		if l.Kind == store.ReadWrite && (l.Limit == store.Unlimited || l.Token == 0) {
			token, err = x.draw(ctx, x.store.path(l.Claim), node)
		} else {
			var stat *zk.Stat
			if stat, err = x.stat(ctx, node); err == nil {
				token = max(stat.Czxid, l.Token)
			}
		}
		if errors.Is(err, zk.ErrNoNode) {
			return store.ErrGone
		}
		return err
	})
	return token, err
}

// abreast is the number of paths that List looks at together, and lookLimit the time for each answer.
const abreast, lookLimit = 16, 2 * time.Second

// List implements [store.Listing]. List walks all paths below the root, as ZooKeeper has no search,
// and leaves out what the session may not read: it has no lock there.
func (s *Store) List(ctx context.Context, _ store.Claim) (map[string]store.Kind, error) {
	found := make(map[string]store.Kind)
	err := s.once(ctx, func(x *session) error {
		limited, cancel := context.WithTimeout(ctx, lookLimit)
		defer cancel()
		if err := x.sync(limited); err != nil {
			return err
		}
		var mu sync.Mutex
		for paths := []string{""}; len(paths) > 0; {
			var below []string
			errs := attempts.Each(len(paths), abreast, func(i int) error {
				limited, cancel := context.WithTimeout(ctx, lookLimit)
				defer cancel()
				children, _, err := x.names(limited, cmp.Or(strings.TrimSuffix(s.root+paths[i], "/"), "/"))
				if errors.Is(err, zk.ErrNoAuth) && paths[i] != "" {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				for _, child := range children {
					if n, is := parse(child); is {
						found[paths[i]] = n.kind
					} else if path := strings.TrimPrefix(paths[i]+"/"+child, "/"); s.root+path != "/zookeeper" {
						below = append(below, path)
					}
				}
				return err
			})
			if err := cmp.Or(errs...); err != nil {
				return err
			}
			paths = below
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = store.Unavailable(fmt.Errorf("no answer in %v", lookLimit))
	}
	if err != nil {
		return nil, err
	}
	delete(found, "") // nodes in the root are of nobody's lock
	return found, nil
}

// Look implements [store.Store]. A TTL is the whole lease, as ZooKeeper does not tell when a
// session was last heard of.
func (s *Store) Look(ctx context.Context, a store.Claim) (state store.State, err error) {
	err = s.once(ctx, func(x *session) error {
		for {
			all, err := x.fresh(ctx, s.path(a))
			if err != nil {
				return err
			}
			nodes, err := ofKind(all, a.Kind)
			if err != nil || len(nodes) == 0 || !isIn(nodes, 0) { // an upgrade without its reader
				state.Waiters = len(nodes)
				return err
			}
			if state, err = x.look(ctx, s.path(a), nodes); err != nil || state.Owner != "" {
				return err
			}
		}
	})
	return state, err
}

// look reads the nodes that are in. A node that is gone meanwhile is left out.
func (x *session) look(ctx context.Context, lock string, nodes []node) (state store.State, err error) {
	var in []store.Held
	counts := make(map[store.ID]int)
	for i, n := range nodes {
		if !isIn(nodes, i) {
			state.Waiters++
			continue
		}
		r, err := x.get(ctx, lock+"/"+n.name)
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return state, err
		}
		known := decode(n, r.data, time.Duration(x.timeout.Load()))
		held := store.Held{ID: known.ID, TTL: time.Duration(known.Kept) * time.Millisecond, Limit: 1}
		if n.reads {
			held.Limit = store.Unlimited
		} else {
			state.Token = r.stat.Czxid
		}
		in, counts[held.ID] = append(in, held), known.Count
	}
	if len(in) == 0 {
		return store.State{}, nil
	}
	slices.SortStableFunc(in, func(a, b store.Held) int { return cmp.Compare(a.TTL, b.TTL) })
	state.Owner, state.TTL, state.Limit, state.Count = in[0].ID, in[0].TTL, in[0].Limit, counts[in[0].ID]
	if len(in) > 1 {
		state.Others = in[1:]
	}
	return state, nil
}

// Break implements [store.Store]. The client of the hold watches its node, and so notices.
func (s *Store) Break(ctx context.Context, a store.Claim) error {
	return s.once(ctx, func(x *session) error {
		node, err := x.holder(ctx, a)
		if err != nil {
			return err
		}
		if err = x.remove(ctx, node); errors.Is(err, zk.ErrNoNode) {
			return store.ErrGone
		}
		return err
	})
}

// Watch implements [store.Watcher]. The Store watches the node of each hold of the client, and
// tells of the end of the session.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stop = s.watchers.Add(client, doubt)
	if s.session != nil {
		for id, h := range s.session.holds {
			if h.held && strings.HasPrefix(string(id), client+":") {
				s.group.Go(func() { s.observe(h) })
			}
		}
	}
	return stop
}

// observe sets a watch on the node of a hold. The event comes to session.event.
func (s *Store) observe(h *hold) {
	node, _ := h.session.known(h)
	ctx, cancel := context.WithTimeout(context.Background(), giveUpLimit)
	defer cancel()
	if _, err := h.session.watch(ctx, node); errors.Is(err, zk.ErrNoNode) {
		s.watchers.Tell(h.claim.ID)
	}
}

// heldAt returns the hold whose node has a path, if anybody watches its client.
func (s *Store) heldAt(x *session, node string) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range x.holds {
		if h.held && h.node == node && len(s.watchers.Of(id)) > 0 {
			return h
		}
	}
	return nil
}
