package relockk8s

import (
	"context"
	"time"

	api "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// List implements [store.Listing]: the Leases that this package has made. List needs the right to
// list, as no other call does.
func (s *Store) List(ctx context.Context, _ store.Claim) (map[string]store.Kind, error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	found := make(map[string]store.Kind)
	options := meta.ListOptions{LabelSelector: clientLabel, Limit: 500}
	for {
		var page *api.LeaseList
		err := once(ctx, func(ctx context.Context) (err error) {
			page, err = s.leases.List(ctx, options)
			return err
		})
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			found[page.Items[i].Name] = store.Mutex
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// Look implements [store.Store]. The rest of a lease counts from the first look of the process at
// the Lease since its last renewal. The owner of a Lease of another program is
// "kubernetes:<holderIdentity>:0".
func (s *Store) Look(ctx context.Context, a store.Claim) (store.State, error) {
	v, err := s.look(ctx, a)
	if err != nil || v == nil {
		return store.State{}, err
	}
	return store.State{Owner: v.owner(), Count: max(v.Count, 1), TTL: max(v.rest(), time.Millisecond), Limit: 1, Token: v.token()}, nil
}

// look reads the Lease, and returns nil if nobody has the lock.
func (s *Store) look(ctx context.Context, a store.Claim) (*view, error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	v, err := s.get(ctx, a.Name)
	if err != nil || v == nil || !v.held() {
		return nil, err
	}
	return v, nil
}

// Break implements [store.Store]. Break deletes the Lease of a hold, also of a holder of another
// program. A hold whose lease is over is there until another hold has the lock.
func (s *Store) Break(ctx context.Context, a store.Claim) error {
	return s.change(ctx, a, func(v *view) error { return s.remove(ctx, v) })
}
