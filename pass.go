package relock

import (
	"time"

	"github.com/go-relock/relock/store"
)

// This file passes a lease on within the process. A grant of the store may serve several waits of
// this client, which stand directly behind each other in the queue (store.Passing). The last Unlock
// of a hold gives its lease to the next wait, without a command. The store sees one hold with the
// ID of the first wait, until the last wait's hold releases the lock.

// passing is the part of a hold that decides whether its lease is passed on.
type passing struct {
	scripts int32 // of Eval, that may run yet
	named   bool  // a ticket names the ID
	done    bool  // the lease was passed on
}

// mayPassLocked says whether the next hold may have the lease and the ID of h.
func (h *hold) mayPassLocked(now time.Time) bool {
	switch {
	case h.renewal.soon: // the store may have another count, or not have the hold any more
	case h.passing.scripts > 0: // a script would run in the next section
	case h.passing.named: // the ticket would let somebody into the next section
	case h.leader: // each leader has a hold of its own, as followers tell them apart by it
	case h.maxWaiters > 0: // the places of the holds that were served would count as waiters
	case h.leftLocked(now) < h.ttl/2: // the next hold would begin with a short rest
	case !h.renewal.longest.IsZero(): // the next hold would have the lease of an Extend
	default:
		return true
	}
	return false
}

// pass passes the lease of h on, after its last exit. The caller ends h.
func (h *hold) pass() bool {
	s, is := h.client.store.(store.Passing)
	if !is || h.lease.Run == nil { // nothing changes the lease at this time
		return false
	}
	t := &h.client.table
	t.mu.Lock()
	may := h.mayPassLocked(time.Now())
	h.passing.done = may // before the next hold begins
	t.mu.Unlock()
	if !may {
		return false
	}
	passed := false
	defer func() {
		if !passed { // also if the store panics
			t.mu.Lock()
			h.passing.done = false
			t.mu.Unlock()
		}
	}()
	passed = s.Pass(h.lease)
	return passed
}

func (t *table) unpass(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unpassLocked(h)
}

// unpassLocked removes the hold that has passed its lease on to h from the table. h does not begin.
func (t *table) unpassLocked(h *hold) {
	number := numberOf(h.lease.ID)
	if before := t.holds[number]; before != nil && before.passing.done {
		before.passing.done = false
		if before.state == over {
			t.dropLocked(number)
		}
	}
}
