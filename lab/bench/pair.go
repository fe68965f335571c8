package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

type pairSizes struct{ rounds, bursts, pairs int } // bursts in a round, pairs in a burst

type parallelSizes struct {
	rounds, goroutines int
	slice              time.Duration
}

// seat is a goroutine's place in a system: a lock that nobody else wants.
type seat struct {
	handle

	ctx   context.Context
	guard guard
	took  durations
}

// pairs locks and unlocks as long as more says so of the time.
func (s *seat) pairs(more func(now time.Time) bool) error {
	for last := time.Now(); more(last); {
		section, err := s.lock(s.ctx)
		if err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		s.guard.enter(1)
		s.guard.leave(1)
		if err := s.unlock(section); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		now := time.Now()
		s.took = append(s.took, now.Sub(last))
		last = now
	}
	return nil
}

// burst makes n pairs.
func (s *seat) burst(n int) error {
	return s.pairs(func(time.Time) bool { n--; return n >= 0 })
}

// competitor is a system in a case.
type competitor struct {
	*system

	process process
	record  *record
	seats   []seat
	used    usage
}

// field is all systems of a case, on the same go-redis client.
type field struct {
	rdb *redis.Client
	all []*competitor
	end context.CancelFunc
}

// field opens all systems of the workload, with n seats each.
func (b *bench) field(rounds, n int) (*field, error) {
	f := &field{rdb: b.redis()}
	endable, end := context.WithCancel(context.Background())
	f.end = end
	with := b.setup()
	with.rdb = f.rdb
	for _, s := range b.systems {
		p, err := s.open(with)
		if err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		c := &competitor{system: s, process: p, record: b.record("", s, rounds), seats: make([]seat, n)}
		ctx := context.Background()
		if s.setting == ending {
			ctx = endable
		}
		for i := range c.seats {
			c.seats[i].handle, c.seats[i].ctx = p.handle(freshLock(b.workload)), ctx
		}
		f.all = append(f.all, c)
	}
	return f, nil
}

func (f *field) close() {
	f.end()
	for _, c := range f.all {
		for i := range c.seats {
			c.record.Broken += c.seats[i].guard.broken.Load()
		}
		c.process.close()
	}
	_ = f.rdb.Close()
}

// reset forgets the figures of the last round.
func (c *competitor) reset() {
	c.used = usage{}
	for i := range c.seats {
		c.seats[i].took = c.seats[i].took[:0]
	}
}

// run adds the use of f to the figures.
func (c *competitor) run(e *env, f func() error) error {
	u, err := e.spent(f)
	if err != nil {
		return fmt.Errorf("%s: %w", c.system, err)
	}
	c.used = c.used.plus(u)
	return nil
}

// figures returns the metrics since the reset.
func (c *competitor) figures() round {
	var took durations
	for i := range c.seats {
		took = append(took, c.seats[i].took...)
	}
	u, n := c.used, float64(len(took))
	return round{
		"us": micros(took.sum()) / n, "per_s": n / u.wall.Seconds(),
		"p50_us": micros(took.quantile(0.5)), "p99_us": micros(took.quantile(0.99)),
		"client_us": micros(u.client) / n, "server_us": micros(u.server) / n,
		"allocs": float64(u.mallocs) / n, "bytes": float64(u.allocated) / n,
		"commands": float64(u.commands(c.also...)) / n, "wire_bytes": float64(u.in+u.out) / n,
	}
}

// pair measures Lock and Unlock of a lock that nobody else wants.
func pair(b *bench) error { return b.pairs(b.sizes.pair) }

// pairs measures each system in bursts, in turns with all others. From a tenth of a second to the
// next a machine may take twice as long for everything. So a round has several bursts of each
// system, and compares sums over the same moments.
func (b *bench) pairs(size pairSizes) error {
	f, err := b.field(size.rounds, 1)
	if err != nil {
		return err
	}
	defer f.close()
	for _, c := range f.all {
		if err := c.seats[0].burst(size.pairs); err != nil { // connections, scripts
			return fmt.Errorf("%s: %w", c.system, err)
		}
	}
	return b.rounds(b.workload, size.rounds, func(r int) error {
		for _, c := range f.all {
			c.reset()
		}
		for range size.bursts {
			err := inTurns(len(f.all), func(i int) error {
				return f.all[i].run(b.env, func() error { return f.all[i].seats[0].burst(size.pairs) })
			})
			if err != nil {
				return err
			}
		}
		for _, c := range f.all {
			c.record.set(r, c.figures())
		}
		return nil
	})
}

// parallel measures many goroutines of one process, each with a lock of its own, whose commands can
// be sent together.
func parallel(b *bench) error {
	size := b.sizes.parallel
	f, err := b.field(size.rounds, size.goroutines)
	if err != nil {
		return err
	}
	defer f.close()
	for _, c := range f.all {
		if err := c.together(size.slice / 4); err != nil { // connections, scripts
			c.record.failed(0, err)
		}
	}
	return b.turns(b.workload, size.rounds, len(f.all), func(r, i int) error {
		c := f.all[i]
		c.reset()
		err := c.run(b.env, func() error { return c.together(size.slice) })
		if err != nil {
			c.record.failed(r, err)
			return nil
		}
		c.record.set(r, c.figures())
		return nil
	})
}

// together makes pairs in all seats at the same time.
func (c *competitor) together(length time.Duration) error {
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for i := range c.seats {
		wg.Go(func() {
			if err := c.seats[i].pairs(end.After); err != nil {
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
