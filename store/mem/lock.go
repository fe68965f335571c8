package mem

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

// lock has the holds of one name, and the queue. A lock without holds has an empty queue, and is
// not in Store.locks.
type lock struct {
	holds, queue []*hold
	timer        *time.Timer // fires at the end of the first lease that ends
	draw         func()      // draws the next token, for a writer
}

// hold is a place in the queue, or a stay in the lock.
type hold struct {
	store.Lease
	count    int
	moved    chan struct{}          // closed when the hold leaves the queue
	queued   time.Time              // when it got its place in the queue
	loans    map[store.ID]time.Time // the ends of the open ones
	recalled bool                   // the hold has left, and its loans are open
}

func (h *hold) end() time.Time { return h.Sent.Add(h.Kept(h.TTL)) }

// extend sets the count, and moves the end of the lease to ttl from now unless the end is later.
func (h *hold) extend(ttl time.Duration, count int) {
	h.count = count
	if now := time.Now(); now.Add(h.Kept(ttl)).After(h.end()) {
		h.Sent, h.TTL = now, ttl
	}
}

func find(holds []*hold, id store.ID) *hold {
	if i := slices.IndexFunc(holds, func(h *hold) bool { return h.ID == id }); i >= 0 {
		return holds[i]
	}
	return nil
}

// of makes a command on a hold. The command is refused if the hold is not in.
func of(id store.ID, command func(*lock, *hold)) func(*lock) error {
	return func(k *lock) error {
		h := find(k.holds, id)
		if h == nil {
			return store.ErrGone
		}
		command(k, h)
		return nil
	}
}

// on runs a command on a lock. Leases that have ended are gone before the command runs, and waiters
// are served behind it. The caller holds Store.mu.
func (s *Store) on(name string, command func(*lock) error) error {
	k := s.locks[name]
	if k == nil {
		k = &lock{timer: time.AfterFunc(time.Hour, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = s.on(name, func(*lock) error { return nil })
		}), draw: func() { s.tokens[name]++ }}
	}
	k.settle()
	err := command(k)
	k.settle()
	if len(k.holds) == 0 {
		k.timer.Stop()
		delete(s.locks, name)
		return err
	}
	k.timer.Reset(time.Until(k.byEnd()[0].end()))
	s.locks[name] = k
	return err
}

// settle ends leases that have run out, and grants the lock to the head while the rule admits.
func (k *lock) settle() {
	now := time.Now()
	k.holds = slices.DeleteFunc(k.holds, func(h *hold) bool { return !now.Before(h.end()) })
	for len(k.queue) > 0 && k.admits(k.queue[0]) {
		h := k.queue[0]
		k.queue = slices.Delete(k.queue, 0, 1)
		k.enter(h, store.WakeGrant)
		close(h.moved)
	}
}

// byEnd sorts the holds by the ends of their leases, the earliest first, and returns them.
func (k *lock) byEnd() []*hold {
	slices.SortStableFunc(k.holds, func(a, b *hold) int { return a.end().Compare(b.end()) })
	return k.holds
}

// admits says whether the smallest limit admits h. The hold around h does not count.
func (k *lock) admits(h *hold) bool {
	n, least := 1, h.Limit
	for _, other := range k.holds {
		if other.ID != h.With {
			n, least = n+1, min(least, other.Limit)
		}
	}
	return n <= least
}

func (k *lock) enter(h *hold, woken store.Wake) {
	h.Sent, h.Woken, h.count = time.Now(), woken, 1
	k.holds = append(k.holds, h)
	if h.Kind == store.ReadWrite && h.Limit == 1 {
		k.draw()
	}
}

func (k *lock) is(kind store.Kind) error {
	if len(k.holds) > 0 && k.holds[0].Kind != kind {
		return fmt.Errorf("%w: %s, and not %s", store.ErrKind, k.holds[0].Kind, kind)
	}
	return nil
}

// claim returns the hold of a claim, and says whether the hold is in. A hold that was neither in nor
// in the queue enters if the lock is free.
func (k *lock) claim(a store.Claim) (h *hold, in bool, err error) {
	if h = find(k.holds, a.ID); h != nil {
		return h, true, nil
	}
	if h = find(k.queue, a.ID); h != nil {
		return h, false, nil
	}
	h = &hold{Lease: store.Lease{Claim: a}, moved: make(chan struct{})}
	if in, err = k.isFree(h); in {
		k.enter(h, store.WakeNone)
	}
	return h, in, err
}

// isFree says whether a new hold may enter now.
func (k *lock) isFree(h *hold) (bool, error) {
	if err := k.is(h.Kind); err != nil {
		return false, err
	}
	return (len(k.queue) == 0 || h.With != "") && k.admits(h), nil
}

// refusal is the error of TryAll for a claim: nil if it can have the lock now, or has it.
func (k *lock) refusal(a store.Claim) error {
	if find(k.holds, a.ID) != nil {
		return nil
	}
	h := &hold{Lease: store.Lease{Claim: a}}
	switch free, err := k.isFree(h); {
	case err != nil:
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	case free:
		return nil
	}
	busy := k.busy(h)
	busy.Name = a.Name
	return busy
}

// join puts the hold at the end of the queue, unless the hold has a place, and returns its
// position. A claim with a hold around it goes before the claims without one.
func (k *lock) join(h *hold) (position int, err error) {
	switch {
	case slices.Contains(k.queue, h):
		return slices.Index(k.queue, h), nil
	case h.With == "":
		k.queue = append(k.queue, h)
	case len(k.queue) > 0 && k.queue[0].With != "" && k.queue[0].With != h.With:
		return 0, store.ErrDeadlock
	default:
		i := slices.IndexFunc(k.queue, func(h *hold) bool { return h.With == "" })
		if i < 0 {
			i = len(k.queue)
		}
		k.queue = slices.Insert(k.queue, i, h)
	}
	h.queued = time.Now()
	return slices.Index(k.queue, h), nil
}

func (k *lock) remove(id store.ID) {
	same := func(h *hold) bool { return h.ID == id }
	k.holds = slices.DeleteFunc(k.holds, same)
	if h := find(k.queue, id); h != nil {
		k.queue = slices.DeleteFunc(k.queue, same)
		close(h.moved)
	}
}

// busy returns the refusal of a claim. The hold around the claim is no obstacle, so not the owner.
func (k *lock) busy(h *hold) *store.Busy {
	for _, other := range k.holds {
		if other.ID != h.With {
			return &store.Busy{Owner: other.ID, TTL: time.Until(other.end())}
		}
	}
	return &store.Busy{}
}
