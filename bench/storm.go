package main

import (
	"context"
	"strconv"
	"time"
)

type stormSizes struct{ rounds, processes, waiters int }

// storm cancels all waiters of a lock at the same moment, first while the lock is taken, then while it is being unlocked,
// so that some of them are about to get it. Then somebody else wants it.
func storm(b *bench) error {
	size := b.sizes.storm
	which := strconv.Itoa(size.waiters) + " waiting"
	all := b.taking(false)
	records := make([]*record, len(all))
	for i, s := range all {
		records[i] = b.record(which, s, size.rounds)
	}
	return b.turns("storm, "+which, size.rounds, len(all), func(r, i int) error {
		m := round{}
		err := b.calm(all[i], m, &records[i].Broken)
		if err == nil {
			err = b.wild(all[i], m, &records[i].Broken)
		}
		if err != nil {
			records[i].failed(r, err)
		}
		records[i].set(r, m)
		return b.flush()
	})
}

// calm is a storm while the lock is taken.
func (b *bench) calm(s *system, m round, broken *int64) error {
	size := b.sizes.storm
	c, err := b.gather(s, freshLock("storm"), size.processes)
	if err != nil {
		return err
	}
	defer func() { *broken += c.guard.broken.Load() }()
	defer c.close() //nolint:errcheck // where it hangs, the wait below has told
	c.wait(size.waiters)
	if err := c.settle(b, size.waiters); err != nil {
		return err
	}
	before, err := b.now()
	if err != nil {
		return err
	}
	start := time.Now()
	c.cancel()
	if err := within(closeLimit, func() error { c.waiting.Wait(); return nil }); err != nil {
		return err
	}
	var took durations
	for _, at := range c.returned {
		took = append(took, at.Sub(start))
	}
	m["return_p50_ms"], m["return_max_ms"] = millis(took.quantile(0.5)), millis(took.quantile(1))
	if s.queued != nil {
		if err := c.queued(b, 0); err != nil {
			return err
		}
		m["cleaned_ms"] = millis(time.Since(start))
	}
	after, err := b.now()
	if err != nil {
		return err
	}
	u := after.since(before)
	m["commands_each"] = float64(u.commands(s.also...)) / float64(size.waiters)
	return nil
}

// wild is a storm in the moment of an Unlock.
func (b *bench) wild(s *system, m round, broken *int64) error {
	size := b.sizes.storm
	c, err := b.gather(s, freshLock("storm"), size.processes)
	if err != nil {
		return err
	}
	defer func() { *broken += c.guard.broken.Load() }()
	defer c.close() //nolint:errcheck // where it hangs, the next wait has told
	next, err := s.open(setup{addr: b.server.Addr()})
	if err != nil {
		return err
	}
	defer next.close()
	other := next.handle(freshLock("storm"))
	if section, err := other.lock(context.Background()); err != nil { // connects
		return err
	} else if err := other.unlock(section); err != nil {
		return err
	}
	c.wait(size.waiters)
	if err := c.settle(b, size.waiters); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	start := time.Now()
	unlocked := make(chan error, 1)
	go func() {
		c.cancel()
		unlocked <- c.unlock()
	}()
	h := next.handle(c.lock)
	section, err := h.lock(ctx)
	if err != nil {
		return err
	}
	m["next_ms"] = millis(time.Since(start))
	c.guard.enter(later)
	c.guard.leave(later)
	if err := h.unlock(section); err != nil {
		return err
	}
	return <-unlocked
}
