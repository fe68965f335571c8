package main

import (
	"context"
	"fmt"
	"time"
)

type nestedSizes struct{ rounds, pairs int }

// nested measures entering a lock that the call chain has already, and leaving it again. The other libraries have no
// re-entry: the same call waits for itself until the lease is over.
func nested(b *bench) error {
	rounds, pairs := b.sizes.nested.rounds, b.sizes.nested.pairs
	all := []*system{relockDefaults, relockLocal}
	records := make([]*record, len(all))
	processes := make([]process, len(all))
	handles := make([]handle, len(all))
	for i, s := range all {
		records[i] = b.record("", s, rounds)
		p, err := s.open(setup{addr: b.server.Addr()})
		if err != nil {
			return err
		}
		defer p.close()
		processes[i], handles[i] = p, p.handle(freshLock("nested"))
	}
	slice := func(i, n int) (elapsed time.Duration, err error) {
		h := handles[i]
		outer, err := h.lock(context.Background())
		if err != nil {
			return 0, err
		}
		start := time.Now()
		for range n {
			inner, err := h.lock(outer)
			if err != nil {
				return 0, err
			}
			if err := h.unlock(inner); err != nil {
				return 0, err
			}
		}
		elapsed = time.Since(start)
		return elapsed, h.unlock(outer)
	}
	return b.turns("nested", rounds, len(all), func(r, i int) error {
		n := pairs
		if all[i] == relockLocal {
			n *= 20 // as it is that much faster, and a slice should not be too short for the clock
		}
		if _, err := slice(i, n/10); err != nil {
			return fmt.Errorf("%s: %w", all[i], err)
		}
		before, err := b.now()
		if err != nil {
			return err
		}
		elapsed, err := slice(i, n)
		if err != nil {
			return fmt.Errorf("%s: %w", all[i], err)
		}
		after, err := b.now()
		if err != nil {
			return err
		}
		u := after.since(before)
		records[i].set(r, round{
			"us": micros(elapsed) / float64(n), "allocs": float64(u.mallocs) / float64(n),
			"bytes": float64(u.allocated) / float64(n), "commands": float64(u.commands()-2) / float64(n),
		})
		return nil
	})
}
