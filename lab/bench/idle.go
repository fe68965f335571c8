package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

type idleSizes struct {
	rounds  int
	waiters []int
	window  time.Duration // of a slice, or the system's cycle, whichever is longer
	most    time.Duration // of a slice
}

// idle measures what many goroutines cost that wait for a lock of another process, while nothing
// happens.
func idle(b *bench) error {
	for _, n := range b.sizes.idle.waiters {
		err := b.contest(strconv.Itoa(n)+" waiting", b.sizes.idle.rounds, func(s *system, rec *record) (round, error) {
			return b.idleSlice(s, n, rec)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) idleSlice(s *system, n int, rec *record) (m round, err error) {
	c, err := b.gather(s, 1)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := c.close(rec); err == nil {
			err = closing
		}
	}()
	before := b.memory()
	if err := c.wait(n); err != nil {
		return nil, err
	}
	// Among waiters that poll, a collection also sees commands in flight. The least of three has
	// the fewest.
	after := b.memory()
	for range 2 {
		if again := b.memory(); again.heap < after.heap {
			after = again
		}
	}
	u, err := b.spent(func() error {
		pause(min(max(b.sizes.idle.window, s.cycle), b.sizes.idle.most))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if back := c.back.Load(); back > 0 {
		return nil, fmt.Errorf("%d of %d waiters came back while the lock was taken", back, n)
	}
	return round{
		"heap_bytes":     float64(after.heap-before.heap) / float64(n),
		"stack_bytes":    float64(after.stacks-before.stacks) / float64(n),
		"goroutines":     float64(after.goroutines-before.goroutines) / float64(n),
		"commands_per_s": float64(u.commands(s.also...)) / u.wall.Seconds(),
		"cpu_client":     u.client.Seconds() / u.wall.Seconds(),
		"cpu_server":     u.server.Seconds() / u.wall.Seconds(),
	}, nil
}

// crowd is a lock of one process, and many goroutines of other processes that wait for the lock.
type crowd struct {
	bench  *bench
	system *system
	lock   string
	guard  guard

	holder    process
	held      handle
	section   context.Context
	processes []process

	ctx      context.Context
	cancel   context.CancelFunc
	waiting  sync.WaitGroup
	returned []time.Time  // the return of each waiter's Lock
	back     atomic.Int64 // waiters that have returned
}

// holding and later name the holder and a waiter in the guard.
const holding, later = 1, 2

// gather lets one process take a lock, and opens processes for waiters.
func (b *bench) gather(s *system, processes int) (*crowd, error) {
	c := &crowd{bench: b, system: s, lock: freshLock(b.workload)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	with := setup{addr: b.server.Addr()}
	var err error
	if c.holder, err = s.open(with); err != nil {
		return nil, err
	}
	for range processes {
		p, err := s.open(with)
		if err != nil {
			_ = c.close(&record{})
			return nil, err
		}
		c.processes = append(c.processes, p)
	}
	c.held = c.holder.handle(c.lock)
	if c.section, err = c.held.lock(context.Background()); err != nil {
		c.section = nil
		_ = c.close(&record{})
		return nil, err
	}
	c.guard.enter(holding)
	return c, nil
}

// wait makes n goroutines ask for the lock, and returns when all of them wait.
func (c *crowd) wait(n int) error {
	c.returned = make([]time.Time, n)
	for i := range n {
		c.waiting.Go(func() {
			h := c.processes[i%len(c.processes)].handle(c.lock)
			section, err := h.lock(c.ctx)
			c.returned[i] = time.Now()
			c.back.Add(1)
			if err != nil {
				return // cancelled; back counts any other error
			}
			c.guard.enter(later)
			c.guard.leave(later)
			_ = h.unlock(context.WithoutCancel(section)) // may be lost, if the holder's lease ran out
		})
	}
	if c.system.queued == nil {
		pause(100*time.Millisecond + time.Duration(n)*200*time.Microsecond)
		return nil
	}
	return c.bench.queued(c.system, c.lock, n)
}

// unlock lets the holder leave.
func (c *crowd) unlock() error {
	if c.section == nil {
		return nil
	}
	c.guard.leave(holding)
	err := c.held.unlock(c.section)
	c.section = nil
	return err
}

// close ends all waits, and returns when nothing is left of the crowd.
func (c *crowd) close(rec *record) error {
	c.cancel()
	err := within(closeLimit, func() error {
		c.waiting.Wait()
		_ = c.unlock() // a lease without watchdog may be over
		for _, p := range c.processes {
			p.close()
		}
		c.holder.close()
		return nil
	})
	rec.Broken += c.guard.broken.Load()
	return err
}
