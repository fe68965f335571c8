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

// abreast is the number of paths that List and Waiters look at together, and lookLimit the time for
// each answer to List.
const abreast, lookLimit = 16, 2 * time.Second

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

// Waiters implements [store.Queueing], with a read for each waiter.
func (s *Store) Waiters(ctx context.Context, a store.Claim, most int) (waiters []store.Waiter, err error) {
	err = s.once(ctx, func(x *session) error {
		all, err := x.fresh(ctx, s.path(a))
		if err != nil {
			return err
		}
		nodes, err := ofKind(all, a.Kind)
		if err != nil {
			return err
		}
		var waiting []node
		for i, n := range nodes {
			if len(waiting) < most && !isIn(nodes, i) {
				waiting = append(waiting, n)
			}
		}
		waiters = make([]store.Waiter, len(waiting))
		errs := attempts.Each(len(waiting), abreast, func(i int) error {
			n := waiting[i]
			r, err := x.get(ctx, s.path(a)+"/"+n.name)
			switch {
			case errors.Is(err, zk.ErrNoNode):
				return nil
			case errors.Is(err, zk.ErrNoAuth): // of another user; the lock itself can be read
				return fmt.Errorf("%w: the user may not read the nodes of all waiters", errors.ErrUnsupported)
			case err != nil:
				return err
			}
			waiters[i] = store.Waiter{ID: decode(n, r.data, time.Duration(x.timeout.Load())).ID, Limit: 1}
			if n.reads {
				waiters[i].Limit = store.Unlimited
			}
			return nil
		})
		waiters = slices.DeleteFunc(waiters, func(w store.Waiter) bool { return w.ID == "" }) // gone meanwhile
		return cmp.Or(errs...)
	})
	return waiters, err
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
