package main

import (
	"context"
	"errors"
	"strconv"
	"time"
)

type stormSizes struct{ rounds, processes, waiters int }

// storm cancels all waiters of a lock at the same moment: first while the lock is taken, then
// during an Unlock, when some waiters are about to get the lock. After the second a new caller
// wants the lock.
func storm(b *bench) error {
	size := b.sizes.storm
	return b.contest(strconv.Itoa(size.waiters)+" waiting", size.rounds, func(s *system, rec *record) (round, error) {
		m := round{}
		err := b.calm(s, m, rec)
		if err == nil {
			err = b.wild(s, m, rec)
		}
		return m, err
	})
}

// calm is a storm while the lock is taken.
func (b *bench) calm(s *system, m round, rec *record) error {
	n := b.sizes.storm.waiters
	c, err := b.gather(s, b.sizes.storm.processes)
	if err != nil {
		return err
	}
	defer c.close(rec) // a wait below has reported a waiter that hangs
	if err := c.wait(n); err != nil {
		return err
	}
	u, err := b.spent(func() error {
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
		if s.queued == nil {
			return nil
		}
		err := b.queued(s, c.lock, 0)
		m["cleaned_ms"] = millis(time.Since(start))
		return err
	})
	m["commands_each"] = float64(u.commands(s.also...)) / float64(n)
	return err
}

// wild is a storm in the moment of an Unlock.
func (b *bench) wild(s *system, m round, rec *record) error {
	c, err := b.gather(s, b.sizes.storm.processes)
	if err != nil {
		return err
	}
	defer c.close(rec) // a wait below has reported a waiter that hangs
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
	if err := c.wait(b.sizes.storm.waiters); err != nil {
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
	return errors.Join(h.unlock(section), <-unlocked)
}
