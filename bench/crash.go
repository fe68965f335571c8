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

// crash kills the process that holds a lock while others wait for it. How soon the next one has it depends on how much of
// the lease is left; what a system adds to that is how late it is.
func crash(b *bench) error {
	size := b.sizes.crash
	which := "TTL " + size.ttl.String()
	all := b.taking(false)
	records := make([]*record, len(all))
	for i, s := range all {
		records[i] = b.record(which, s, size.rounds)
	}
	start := time.Now()
	for r := range size.rounds {
		// All at the same time: they wait for the clock most of the time, and do not know of each other.
		var wg sync.WaitGroup
		for i, s := range all {
			lock := freshLock("crash")
			wg.Go(func() {
				m, err := b.crashSlice(s, lock, &records[i].Broken)
				if err != nil {
					records[i].failed(r, err)
					return
				}
				records[i].set(r, m)
			})
		}
		wg.Wait()
		if err := b.flush(); err != nil {
			return err
		}
	}
	logf("  %-28s %d rounds, %s", "crash", size.rounds, time.Since(start).Round(time.Second))
	return nil
}

func (b *bench) crashSlice(s *system, lock string, broken *int64) (m round, err error) {
	size := b.sizes.crash
	with := setup{addr: b.server.Addr(), ttl: size.ttl}
	holder, _, err := startChild(task{Hold: &heldLock{System: s.name, Setting: s.setting, Addr: with.addr, Lock: lock, TTL: with.ttl}})
	if err != nil {
		return nil, err
	}
	defer holder.kill() //nolint:errcheck // it is dead by then, or its death has failed before
	r := newRing(lock)
	if err := r.open(s, with, size.waiters); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, r.close())
		*broken += r.guard.broken.Load()
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
	// A waiter that enters from here on is not in the way of the holder, which does nothing any more.
	r.guard.leave(holding)
	start := time.Now()
	r.called.Store(int64(start.Sub(r.start)))
	if err := holder.kill(); err != nil {
		return nil, err
	}
	left, err := b.leases(s, []string{lock})
	if err != nil {
		return nil, err
	}
	end := time.Since(start) + left[0] // of the lease
	select {
	case a := <-r.acquired:
		if a.err != nil {
			return nil, a.err
		}
		return round{
			"total_ms": millis(a.after), "of_ttl": float64(a.after) / float64(size.ttl), "late_ms": millis(a.after - end),
		}, nil
	case <-time.After(3*size.ttl + 5*time.Second):
		return nil, fmt.Errorf("nobody had the lock %s after the crash", 3*size.ttl+5*time.Second)
	}
}

// heldLock is what a process that is to be killed shall hold.
type heldLock struct {
	System, Setting, Addr, Lock string
	TTL                         time.Duration
}

// run does so until the parent ends, or kills this process.
func (what heldLock) run() error {
	for _, s := range systems {
		if s.name != what.System || s.setting != what.Setting {
			continue
		}
		p, err := s.open(setup{addr: what.Addr, ttl: what.TTL})
		if err != nil {
			return err
		}
		section, err := p.handle(what.Lock).lock(context.Background())
		if err != nil {
			return err
		}
		err = ready("held")
		_ = section.Err() // the section is in use to the end
		return err
	}
	return fmt.Errorf("no system %s, %s", what.System, what.Setting)
}
