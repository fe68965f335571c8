package main

import (
	"context"
	"fmt"
	"time"
)

type nestedSizes struct{ rounds, pairs int }

// nested measures an inner entry and its exit. The other libraries have no re-entry: an inner Lock
// waits for its own outer section until the lease is over.
func nested(b *bench) error {
	rounds := b.sizes.nested.rounds
	all := b.systems
	records, handles := make([]*record, len(all)), make([]handle, len(all))
	for i, s := range all {
		records[i] = b.record("", s, rounds)
		p, err := s.open(setup{addr: b.server.Addr()})
		if err != nil {
			return err
		}
		defer p.close()
		handles[i] = p.handle(freshLock("nested"))
	}
	return b.turns("nested", rounds, len(all), func(r, i int) error {
		n := b.sizes.nested.pairs
		if all[i] == relockLocal {
			n *= 20 // long enough for the clock
		}
		if _, err := inner(handles[i], n/10); err != nil {
			return fmt.Errorf("%s: %w", all[i], err)
		}
		var elapsed time.Duration
		u, err := b.spent(func() (err error) {
			elapsed, err = inner(handles[i], n)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", all[i], err)
		}
		records[i].set(r, round{
			"us": micros(elapsed) / float64(n), "allocs": float64(u.mallocs) / float64(n),
			"bytes":    float64(u.allocated) / float64(n),
			"commands": float64(u.commands()-2) / float64(n), // without the outer entry and exit
		})
		return nil
	})
}

// inner makes n pairs in a section of the same lock, and returns how long the pairs took.
func inner(h handle, n int) (time.Duration, error) {
	outer, err := h.lock(context.Background())
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range n {
		section, err := h.lock(outer)
		if err != nil {
			return 0, err
		}
		if err := h.unlock(section); err != nil {
			return 0, err
		}
	}
	elapsed := time.Since(start)
	return elapsed, h.unlock(outer)
}
