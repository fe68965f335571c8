package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

type crashSizes struct {
	rounds, waiters int
	ttl             time.Duration
}

// crash kills the process that holds a lock while others wait. The next owner has to wait for the
// end of the lease. The time after the end of the lease is the system's own.
func crash(b *bench) error {
	size := b.sizes.crash
	all := b.taking()
	records := make([]*record, len(all))
	for i, s := range all {
		records[i] = b.record("TTL "+size.ttl.String(), s, size.rounds)
	}
	return b.rounds("crash", size.rounds, func(r int) error {
		// All at the same time, as all wait for the clock most of the time.
		var wg sync.WaitGroup
		for i, s := range all {
			lock := freshLock("crash")
			wg.Go(func() {
				m, err := b.crashSlice(s, lock, records[i])
				if err != nil {
					records[i].failed(r, err)
				}
				records[i].set(r, m)
			})
		}
		wg.Wait()
		return b.flush()
	})
}

func (b *bench) crashSlice(s *system, lock string, rec *record) (m round, err error) {
	size := b.sizes.crash
	with := setup{addr: b.server.Addr(), ttl: size.ttl}
	hold := &heldLock{System: s.name, Setting: s.setting, Addr: with.addr, Lock: lock, TTL: with.ttl}
	holder, _, err := startChild(task{Hold: hold})
	if err != nil {
		return nil, err
	}
	defer holder.kill() //nolint:errcheck // dead by then, or the kill below has failed
	r, err := newRing(b, s, lock, with, size.waiters)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, r.close())
		rec.Broken += r.guard.broken.Load()
	}()
	r.guard.enter(holding)
	for i, p := range r.clients {
		h := p.handle(lock)
		r.running.Go(func() { r.run(h, int64(later+i)) })
	}
	pause(200*time.Millisecond + rand.N(size.ttl/3)) // anywhere between two renewals
	select {
	case a := <-r.acquired:
		return nil, errors.Join(errors.New("a waiter came back while the lock was held"), a.err)
	default:
	}
	r.guard.leave(holding) // from here on the holder does nothing, and a waiter may enter
	return b.bury(s, holder, r)
}

// bury kills the holder, and measures until a waiter has the lock.
func (b *bench) bury(s *system, holder *child, r *ring) (round, error) {
	ttl := b.sizes.crash.ttl
	start := time.Now()
	r.called.Store(int64(start.Sub(r.start)))
	if err := holder.kill(); err != nil {
		return nil, err
	}
	left, err := b.leases(s, []string{r.lock})
	if err != nil {
		return nil, err
	}
	end := time.Since(start) + left[0] // of the lease
	limit := 3*ttl + 5*time.Second
	select {
	case a := <-r.acquired:
		return round{
			"total_ms": millis(a.after), "of_ttl": float64(a.after) / float64(ttl),
			"late_ms": millis(a.after - end),
		}, a.err
	case <-time.After(limit):
		return nil, fmt.Errorf("nobody had the lock %s after the crash", limit)
	}
}

// heldLock is the task of a process that holds a lock until its death.
type heldLock struct {
	System, Setting, Addr, Lock string
	TTL                         time.Duration
}

// run takes the lock, and keeps the lock until the parent ends, or kills this process.
func (task heldLock) run() error {
	for _, s := range systems {
		if s.name != task.System || s.setting != task.Setting {
			continue
		}
		p, err := s.open(setup{addr: task.Addr, ttl: task.TTL})
		if err != nil {
			return err
		}
		section, err := p.handle(task.Lock).lock(context.Background())
		if err != nil {
			return err
		}
		err = ready("held")
		_ = section.Err() // the section is in use to the end
		return err
	}
	return fmt.Errorf("no system %s, %s", task.System, task.Setting)
}
