package relocketcd

import (
	"cmp"
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// List implements [store.Listing], a thousand keys at a time.
func (s *Store) List(ctx context.Context, _ store.Claim) (map[string]store.Kind, error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	found := make(map[string]store.Kind)
	end := clientv3.GetPrefixRangeEnd(s.prefix)
	for from, more := cmp.Or(s.prefix, "\x00"), true; more; {
		resp, err := s.get(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(1000), clientv3.WithKeysOnly()))
		if err != nil {
			return nil, err
		}
		page := resp.Responses[0].GetResponseRange()
		for _, kv := range page.Kvs {
			from = string(kv.Key) + "\x00" // the next page begins behind the last key
			name, rest, is := strings.Cut(strings.TrimPrefix(string(kv.Key), s.prefix), "/")
			if is && name != "" && !strings.Contains(rest, "/") { // the others are notices, or of other programs
				found[name] = store.Mutex
			}
		}
		more = page.More
	}
	return found, nil
}

// Look implements [store.Store]. The owner of a key of another program is named after the end of
// the key: "etcd:694d7b3f5c1e2a08:0". The token of a hold that has waited is larger than in State.
func (s *Store) Look(ctx context.Context, a store.Claim) (state store.State, err error) {
	owner, keys, err := s.owner(ctx, a)
	if err != nil || keys == 0 {
		return state, err
	}
	rest, err := s.rest(ctx, owner.lease)
	if err != nil {
		return state, err
	}
	return store.State{
		Owner: owner.id(), Count: max(owner.Count, 1), TTL: rest, Limit: 1,
		Token: max(owner.revision, owner.Token), Waiters: keys - 1,
	}, nil
}

// Waiters implements [store.Queueing]. etcd keeps no times.
func (s *Store) Waiters(ctx context.Context, a store.Claim, most int) (all []store.Waiter, err error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	resp, err := s.get(ctx, clientv3.OpGet(s.dir(a), clientv3.WithPrefix(), clientv3.WithLimit(int64(most)+1),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
	if err != nil {
		return nil, err
	}
	for i, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if i > 0 { // the first one has the lock
			all = append(all, store.Waiter{ID: stayOf(kv).id(), Limit: 1})
		}
	}
	return all, nil
}

// owner returns the key that has the lock, and the number of keys.
func (s *Store) owner(ctx context.Context, a store.Claim) (owner stay, keys int, err error) {
	if ctx.Err() != nil {
		return owner, 0, lifetime.Ended(ctx)
	}
	resp, err := s.get(ctx, s.oldest(a))
	if err != nil {
		return owner, 0, err
	}
	answer := resp.Responses[0].GetResponseRange()
	for _, kv := range answer.Kvs {
		owner = stayOf(kv)
	}
	return owner, int(answer.Count), nil
}

// Break implements [store.Store]. Break tells the client of the hold, and leaves the etcd lease to
// its end: other keys of another program may need the lease.
func (s *Store) Break(ctx context.Context, a store.Claim) error {
	owner, _, err := s.owner(ctx, a)
	switch {
	case err != nil:
		return err
	case owner.id() != a.ID:
		return store.ErrGone
	}
	broken := []clientv3.Op{clientv3.OpDelete(owner.key)}
	if owner.ID != "" {
		broken = append(broken, s.notice(owner))
	}
	resp, err := s.change(ctx, is(owner), broken, nil)
	if err == nil && !resp.Succeeded {
		return store.ErrGone
	}
	return err
}
