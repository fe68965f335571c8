package mem

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Wait implements [store.Store]. Wait looks again once in a lease of its own, as in a store that can
// lose a message, and calls progress at each look. A wait that ends with ctx takes its place back,
// unless an interruption prevents that.
func (s *Store) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	for {
		var h *hold
		var in bool
		var p store.Progress
		err = s.patiently(ctx, a, "acquire", func(k *lock) error {
			if h, in, err = k.claim(a); err == nil && !in {
				p = store.Progress{Busy: k.busy(h), Queued: true}
				p.Position, err = k.join(h)
			}
			l = h.Lease
			return err
		})
		if err != nil {
			return l, s.giveUp(a, err)
		}
		if in {
			return l, nil
		}
		progress(p)
		again := time.NewTimer(a.TTL)
		select {
		case <-h.moved:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return l, s.giveUp(a, lifetime.Ended(ctx))
		}
	}
}

// giveUp takes back what a wait has got, and returns the error of the wait.
func (s *Store) giveUp(a store.Claim, err error) error {
	if s.Forget(context.Background(), []store.Claim{a})[0] != nil {
		return store.Unsure(err)
	}
	return err
}

// shown is a wait that the Store shows until end.
type shown struct {
	store.Waiting
	end time.Time
}

// Show implements [store.WaitGraph].
func (s *Store) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	return s.once(ctx, "", func(*lock) error {
		now := time.Now()
		maps.DeleteFunc(s.waits, func(id store.ID, old shown) bool { return id == w.ID || !now.Before(old.end) })
		if len(w.For) > 0 {
			s.waits[w.ID] = shown{w, now.Add(lifetime)}
		}
		return nil
	})
}

// Shown implements [store.WaitGraph].
func (s *Store) Shown(ctx context.Context, holds []store.ID) (waits []store.Waiting, err error) {
	err = s.once(ctx, "", func(*lock) error {
		now := time.Now()
		for _, w := range s.waits {
			of := func(hold store.ID) bool { return slices.Contains(holds, hold) }
			if now.Before(w.end) && slices.ContainsFunc(w.Holds, of) {
				waits = append(waits, w.Waiting)
			}
		}
		return nil
	})
	return waits, err
}
