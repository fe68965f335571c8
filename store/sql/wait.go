package relocksql

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Wait queues, and waits for the grant. A grant names the arrival number of its waiter, so the
// waiter believes the grant without another question. The lease then counts from the last claim that
// found the hold in the queue.
//
// One waiter of the store asks again for all waiters of a name, to renew their places and when the
// lease of the owner should be over. Each waiter asks again when a notification may be lost, and if
// it is one of the first.
func (s *Store) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	w, leave := s.join(a)
	defer leave()
	woken := store.WakeNone
	arrival, next := int64(0), false
	for {
		scout := arrival != 0 && s.scouts(w)
		p, l, err := s.claim(ctx, patient, a, ways{join: true, keepAll: scout, next: next})
		switch {
		case err != nil:
			return store.Lease{}, leftBehind(arrival != 0, err)
		case p.arrival == 0:
			l.Woken = cmp.Or(woken, l.Woken)
			return l, nil
		case scout && p.arrival != arrival: // the places are lost
			s.wake(a.Name)
		}
		arrival, next = p.arrival, p.position < promptWaiters
		s.hear()
		progress(store.Progress{Busy: p.busy, Queued: true, Position: p.position})
		n, err := s.rest(ctx, w, a, p)
		switch {
		case err != nil:
			return store.Lease{}, leftBehind(true, err)
		case n.grant && n.arrival == p.arrival:
			l.Woken = store.WakeGrant
			return l, nil
		}
		woken = store.WakeRecheck
	}
}

// longRest is the time after which a waiter asks again, though the scout of its name keeps its
// place.
const longRest = 30 * time.Second

// rest sleeps until a note comes, or the waiter has to ask again. One waiter of the store asks for
// all waiters of a name: the scout. A scout that leaves is replaced by the next waiter that wakes.
func (s *Store) rest(ctx context.Context, w *waiter, a store.Claim, p place) (note, error) {
	for begun := time.Now(); ; {
		n, err := w.sleep(ctx, s.askAgain(a, p, s.scouts(w)))
		if err != nil || n.told || p.position < promptWaiters || s.scouts(w) ||
			s.life.Err() != nil || time.Since(begun) > longRest {
			return n, err
		}
	}
}

// leftBehind returns the error of a wait: cleanup takes the place back.
func leftBehind(queued bool, err error) error {
	if queued {
		return store.Unsure(err)
	}
	return err
}

// sleep returns the next note, or the zero note after d. A note at the end of ctx counts more than
// that end.
func (w *waiter) sleep(ctx context.Context, d time.Duration) (n note, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case n = <-w.notes:
	case <-timer.C:
	case <-ctx.Done():
		select {
		case n = <-w.notes:
		default:
		}
		if !n.grant {
			err = lifetime.Ended(ctx)
		}
	}
	return n, err
}

// promptWaiters is the number of waiters that ask as soon as the lease of the owner should be over.
// One is enough, so the other waiters take time.
const promptWaiters = 4

// askAgain returns the time after which a waiter asks again by itself. A waiter that looks for the end
// of the owner's lease sleeps for no longer than its own: the lock may have another owner by then, with
// a shorter lease.
func (s *Store) askAgain(a store.Claim, p place, scout bool) time.Duration {
	d := beat/2 + rand.N(beat/2)
	if s.life.Err() != nil {
		return min(d, s.pollMax)
	}
	left := p.busy.TTL + time.Millisecond
	switch {
	case p.busy.Owner == "": // an earlier waiter is in the way
		return d
	case p.position < promptWaiters || scout:
		return min(d, a.TTL, left+rand.N(5*time.Millisecond))
	default:
		return min(d, left+rand.N(a.TTL/3+1))
	}
}
