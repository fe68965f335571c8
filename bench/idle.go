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
	window  time.Duration // for which they are watched, if the system's cycle is not longer
	most    time.Duration // the longest, whatever its cycle
}

// idle lets many goroutines of one process wait for a lock that another process keeps: what waiting costs while nothing
// happens.
func idle(b *bench) error {
	for _, n := range b.sizes.idle.waiters {
		which := strconv.Itoa(n) + " waiting"
		all := b.taking(false)
		records := make([]*record, len(all))
		for i, s := range all {
			records[i] = b.record(which, s, b.sizes.idle.rounds)
		}
		err := b.turns("idle, "+which, b.sizes.idle.rounds, len(all), func(r, i int) error {
			m, err := b.idleSlice(all[i], n, &records[i].Broken)
			if err != nil {
				records[i].failed(r, err)
			} else {
				records[i].set(r, m)
			}
			return b.flush()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) idleSlice(s *system, n int, broken *int64) (m round, err error) {
	c, err := b.gather(s, freshLock("idle"), 1)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := c.close(); err == nil {
			err = closing
		}
		*broken += c.guard.broken.Load()
	}()
	before := b.memory()
	c.wait(n)
	if err := c.settle(b, n); err != nil {
		return nil, err
	}
	// A collection among waiters that poll sees what is on its way too; the least of some is what waits.
	after := b.memory()
	for range 2 {
		if again := b.memory(); again.heap < after.heap {
			after = again
		}
	}
	start, err := b.now()
	if err != nil {
		return nil, err
	}
	pause(min(max(b.sizes.idle.window, s.cycle), b.sizes.idle.most))
	end, err := b.now()
	if err != nil {
		return nil, err
	}
	if back := c.back.Load(); back > 0 {
		return nil, fmt.Errorf("%d of %d waiters came back while the lock was taken", back, n)
	}
	u := end.since(start)
	return round{
		"heap_bytes": float64(after.heap-before.heap) / float64(n), "stack_bytes": float64(after.stacks-before.stacks) / float64(n),
		"goroutines":     float64(after.goroutines-before.goroutines) / float64(n),
		"commands_per_s": float64(u.commands(s.also...)) / u.wall.Seconds(),
		"cpu_client":     u.client.Seconds() / u.wall.Seconds(), "cpu_server": u.server.Seconds() / u.wall.Seconds(),
	}, nil
}

// crowd is a lock that one process has, and many goroutines of others that wait for it.
type crowd struct {
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
	returned []time.Time  // when each waiter's Lock came back
	back     atomic.Int64 // how many have
}

// holding and later are who is in the guard: the holder, or a waiter.
const holding, later = 1, 2

func (b *bench) gather(s *system, lock string, processes int) (*crowd, error) {
	c := &crowd{system: s, lock: lock}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	with := setup{addr: b.server.Addr()}
	var err error
	if c.holder, err = s.open(with); err != nil {
		return nil, err
	}
	for range processes {
		p, err := s.open(with)
		if err != nil {
			_ = c.close()
			return nil, err
		}
		c.processes = append(c.processes, p)
	}
	c.held = c.holder.handle(lock)
	if c.section, err = c.held.lock(context.Background()); err != nil {
		_ = c.close()
		return nil, err
	}
	c.guard.enter(holding)
	return c, nil
}

// wait makes n goroutines ask for the lock.
func (c *crowd) wait(n int) {
	c.returned = make([]time.Time, n)
	for i := range n {
		c.waiting.Go(func() {
			h := c.processes[i%len(c.processes)].handle(c.lock)
			section, err := h.lock(c.ctx)
			c.returned[i] = time.Now()
			c.back.Add(1)
			if err != nil {
				return // cancelled; whoever fails otherwise is counted above
			}
			c.guard.enter(later)
			c.guard.leave(later)
			_ = h.unlock(context.WithoutCancel(section)) // where the holder's lease ran out, it may be lost by now
		})
	}
}

// settle returns when n wait.
func (c *crowd) settle(b *bench, n int) error {
	if c.system.queued == nil {
		pause(100*time.Millisecond + time.Duration(n)*200*time.Microsecond)
		return nil
	}
	return c.queued(b, n)
}

// queued returns when Redis knows of n waiters.
func (c *crowd) queued(b *bench, n int) error {
	for end := time.Now().Add(closeLimit); time.Now().Before(end); pause(time.Millisecond) {
		queued, err := c.system.queued(context.Background(), b.admin, c.lock)
		if err != nil || queued == n {
			return err
		}
	}
	return errHangs
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
func (c *crowd) close() error {
	c.cancel()
	return within(closeLimit, func() error {
		c.waiting.Wait()
		_ = c.unlock() // a lease without watchdog may be over
		for _, p := range c.processes {
			p.close()
		}
		c.holder.close()
		return nil
	})
}
