package mem

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

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
