package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ring is the clients that hand a lock round. A conductor lets the owner go, and sees the next one
// arrive.
type ring struct {
	bench    *bench
	system   *system
	lock     string
	acquired chan arrival
	release  chan struct{} // to the owner
	rejoin   chan struct{} // to a former owner
	guard    guard

	ctx     context.Context
	cancel  context.CancelFunc
	clients []process
	running sync.WaitGroup
	called  atomic.Int64 // the last call of Unlock, in nanoseconds since start
	start   time.Time
}

// arrival is the return of a Lock.
type arrival struct {
	after time.Duration // since the call of Unlock
	err   error
}

// openAtOnce is how many clients open or close at the same time.
const openAtOnce = 16

// closeLimit is for all clients of a slice to come to an end.
const closeLimit = 30 * time.Second

// eachOf calls f for 0..n-1, some at the same time, and joins the errors.
func eachOf(n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, min(n, openAtOnce))
	var wg sync.WaitGroup
	for k := range errs {
		wg.Go(func() {
			for errs[k] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[k] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// newRing opens n clients of a system.
func newRing(b *bench, s *system, lock string, with setup, n int) (*ring, error) {
	r := &ring{
		bench: b, system: s, lock: lock, acquired: make(chan arrival),
		release: make(chan struct{}), rejoin: make(chan struct{}),
		clients: make([]process, n), start: time.Now(),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	err := eachOf(n, func(i int) (err error) {
		r.clients[i], err = s.open(with)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// join lets client i ask for the lock.
func (r *ring) join(i int) {
	h := r.clients[i].handle(r.lock)
	r.running.Go(func() { r.run(h, int64(i+1)) })
}

// queueUp lets the first client take the lock and all others queue.
func (r *ring) queueUp() error {
	r.join(0)
	select {
	case a := <-r.acquired:
		if a.err != nil {
			return a.err
		}
	case <-time.After(closeLimit):
		return errHangs
	}
	n := len(r.clients) - 1
	for i := range n {
		r.join(i + 1)
	}
	if r.system.queued == nil {
		pause(50*time.Millisecond + time.Duration(n)*time.Millisecond)
		return nil
	}
	err := r.bench.queued(r.system, r.lock, n)
	pause(20 * time.Millisecond) // for the replies
	return err
}

// queued returns when Redis knows n waiters.
func (b *bench) queued(s *system, lock string, n int) error {
	for end := time.Now().Add(closeLimit); time.Now().Before(end); pause(time.Millisecond) {
		queued, err := s.queued(context.Background(), b.admin, lock)
		if err != nil || queued == n {
			return err
		}
	}
	return fmt.Errorf("not %d waiters are queued: %w", n, errHangs)
}

// run is a client: Lock, wait for the conductor, Unlock, and again. The client asks again only
// after the next arrival. Without a queue an earlier call would get the lock back before any waiter
// has looked.
func (r *ring) run(h handle, who int64) {
	ctx, cancel := context.WithCancel(r.ctx) // a context of its own
	defer cancel()
	for {
		section, err := h.lock(ctx)
		at := time.Since(r.start)
		if err != nil {
			r.tell(arrival{err: err})
			return
		}
		r.guard.enter(who)
		r.tell(arrival{after: at - time.Duration(r.called.Load())})
		r.await(r.release)
		r.guard.leave(who)
		r.called.Store(int64(time.Since(r.start)))
		if err := h.unlock(section); err != nil {
			r.tell(arrival{err: fmt.Errorf("unlock: %w", err)})
			return
		}
		r.await(r.rejoin)
	}
}

// tell hands an arrival to the conductor, until the ring closes.
func (r *ring) tell(a arrival) {
	select {
	case r.acquired <- a:
	case <-r.ctx.Done():
	}
}

// await returns at the sign of the conductor, or when the ring closes.
func (r *ring) await(sign <-chan struct{}) {
	select {
	case <-sign:
	case <-r.ctx.Done():
	}
}

// pass makes the owner give the lock away, and returns how long the next owner took. Then the
// former owner asks again.
func (r *ring) pass(limit time.Duration) (time.Duration, error) {
	if err := send(r.release, limit); err != nil {
		return 0, err
	}
	select {
	case a := <-r.acquired:
		if a.err != nil {
			return 0, a.err
		}
		if err := send(r.rejoin, limit); err != nil {
			return 0, fmt.Errorf("unlock: %w", err)
		}
		return a.after, nil
	case <-time.After(limit):
		return 0, fmt.Errorf("nobody had the lock %s after an Unlock", limit)
	}
}

// send gives a sign within the limit.
func send(to chan<- struct{}, limit time.Duration) error {
	select {
	case to <- struct{}{}:
		return nil
	case <-time.After(limit):
		return errHangs
	}
}

// close ends all waits, and returns when nothing of the ring is left.
func (r *ring) close() error {
	r.cancel()
	return within(closeLimit, func() error {
		r.running.Wait()
		return eachOf(len(r.clients), func(i int) error {
			if r.clients[i] != nil {
				r.clients[i].close()
			}
			return nil
		})
	})
}
