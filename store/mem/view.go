package mem

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Look implements [store.Store].
func (s *Store) Look(ctx context.Context, a store.Claim) (state store.State, err error) {
	err = s.once(ctx, a.Name, func(k *lock) error {
		state = store.State{Token: s.tokens[a.Name], Waiters: len(k.queue)}
		if err := k.is(a.Kind); err != nil {
			return err
		}
		for i, h := range k.byEnd() {
			if i == 0 {
				state.Owner, state.Count, state.TTL, state.Limit = h.ID, h.count, time.Until(h.end()), h.Limit
				continue
			}
			state.Others = append(state.Others, store.Held{ID: h.ID, TTL: time.Until(h.end()), Limit: h.Limit})
		}
		return nil
	})
	return state, err
}

// Waiters implements [store.Queueing].
func (s *Store) Waiters(ctx context.Context, a store.Claim, most int) (all []store.Waiter, err error) {
	err = s.once(ctx, a.Name, func(k *lock) error {
		for _, h := range k.queue[:min(most, len(k.queue))] {
			all = append(all, store.Waiter{ID: h.ID, Limit: h.Limit, Since: h.queued})
		}
		return k.is(a.Kind)
	})
	return all, err
}

// List implements [store.Listing].
func (s *Store) List(ctx context.Context, _ store.Claim) (map[string]store.Kind, error) {
	if ctx.Err() != nil {
		return nil, lifetime.Ended(ctx)
	}
	found := make(map[string]store.Kind)
	_, err := s.attempt(func() error {
		for name, k := range s.locks {
			for _, h := range slices.Concat(k.holds, k.queue) {
				found[name] = h.Kind
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Break implements [store.Store]. Break tells the hold's client.
func (s *Store) Break(ctx context.Context, a store.Claim) error {
	err := s.once(ctx, a.Name, of(a.ID, func(k *lock, h *hold) {
		s.recall(h)
		k.remove(a.ID)
	}))
	if err == nil || errors.Is(err, store.ErrUnsure) {
		s.tell(a.ID)
	}
	return err
}
