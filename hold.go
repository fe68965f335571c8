package relock

import (
	"sync"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// hold is one holder's stay in one lock, from its first entry to its last exit.
type hold struct {
	client *Client
	name   string // of the lock, as its user knows it
	holder Holder
	around *hold // in the other mode, of a read-write lock; nil: none
	*settings
	leader bool // begun by package leader
	kept   bool // has no entry: the client keeps the lock, see pass.go

	// Guarded by the table's mutex.
	state      holdState
	recalled   bool  // the lender of this loan has left
	leaked     bool  // the context of some entry was dropped without Unlock
	closed     bool  // the end was reported to Hooks.Closed
	generation int32 // of the table, when the hold began

	lease   store.Lease // as the store has given it, or as another hold has passed it on, with that ID
	since   time.Time   // when the first entry was entered
	end     error       // the reason for the end of an entered hold: ErrReleased, ErrHandedOff, ErrClosed or a *LostError
	token   int64       // the first drawn token, of a reader since its last upgrade; 0: none
	inside  int         // how many holds in the other mode have ended inside of this one
	count   int         // of open entries
	deepest int         // the highest count
	newest  *entry      // of the open ones, and their first; without entries whose context was dropped
	leaks   []*entry    // to be reported when the hold is looked at next
	renewal renewal
	turn    turn
	passing passing
	traces  []func(event.TraceEnded) // to call at the end of the hold
}

type holdState uint8

const (
	entering holdState = iota // the store is being asked for the first entry
	held
	leaving // the last exit is in flight; nothing changes the lease any more
	over
)

func (h *hold) isReader() bool { return h.lease.Limit == store.Unlimited }

// isCalled says whether a store calls h by an ID, or by a field of Redisson's layout.
func (h *hold) isCalled(id store.ID) bool {
	return h.client.hasMade(Holder(id)) && numberOf(id) == numberOf(h.lease.ID)
}

func (h *hold) isLoan() bool { return h.lease.Lender != "" }

func (h *hold) expiredLocked(now time.Time) bool { return h.leftLocked(now) <= 0 }

func (h *hold) leftLocked(now time.Time) time.Duration { return h.client.table.left(h.lease, now) }

// table has all leases of a client. Its mutex guards the holds, their entries, the lines and the
// heap. No blocking call runs with the mutex held. Of other mutexes, only the mutexes of events and
// group may be taken with the table's mutex held.
type table struct {
	start time.Time                    // the heap counts from here
	wall  func(at time.Time) time.Time // the wall clock's reading in at; tests set that clock

	mu      sync.Mutex
	closed  bool
	holds   map[string]*hold    // that are held, leaving, or have just passed their lease on, by numberOf
	leases  timers.Heap[*hold]  // of the same holds, by the time when the watchdog looks at them next
	lines   map[string]*line    // by the store's name of the lock
	leaks   []*entry            // to be reported now
	hearing map[*hold]*listener // of the holds that listen for asks; nil: there was none
	heads   map[string]*hold    // of the lines WithKeep, by numberOf
	hadHead bool                // there was such a head, so the client listens for asks

	generation int32 // counts calls of nextGenerationLocked
	survivors  int   // the holds of earlier generations
}

func newTable() table {
	return table{start: time.Now(), wall: wallClock, holds: make(map[string]*hold), lines: make(map[string]*line), heads: make(map[string]*hold)}
}

// wallClock returns at without the reading of the monotonic clock.
func wallClock(at time.Time) time.Time { return at.Round(0) }

// at returns a time as the heap counts.
func (t *table) at(when time.Time) time.Duration { return when.Sub(t.start) }

// addLocked notes a hold that begins. If a hold has passed its lease on to h, h takes its place.
func (t *table) addLocked(h *hold) {
	number := numberOf(h.lease.ID)
	h.generation = t.generation
	if before := t.holds[number]; before != nil { // the lease is as old as before
		h.renewal.soon, h.generation = before.renewal.soon, before.generation
	}
	t.holds[number] = h
}

// removeLocked forgets a hold that has ended. A hold that has passed its lease on stays until the
// next hold begins, and notes meanwhile that the lease is in doubt.
func (t *table) removeLocked(h *hold) {
	if number := numberOf(h.lease.ID); t.holds[number] == h && !h.passing.done {
		t.dropLocked(number)
	}
	t.leases.Remove(&h.renewal.item)
}

func (t *table) dropLocked(number string) {
	if t.holds[number].generation != t.generation {
		t.survivors--
	}
	delete(t.holds, number)
}

// nextGenerationLocked counts from now on the holds that have begun so far, as survivors.
func (t *table) nextGenerationLocked() {
	t.generation++
	t.survivors = len(t.holds)
}

// each calls f with each hold or head, with the mutex held. Nothing else may look at all holds:
// each lets others have the mutex after lookAtMost holds. A hold that begins meanwhile may be left
// out.
func (t *table) each(holds map[string]*hold, f func(h *hold)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, h := range holds {
		f(h)
		if n++; n%lookAtMost == 0 {
			t.mu.Unlock()
			t.mu.Lock()
		}
	}
}

// findLocked returns the hold of the client with an ID, or with a field of Redisson's layout; nil:
// none.
func (c *Client) findLocked(id store.ID) *hold {
	if !c.hasMade(Holder(id)) {
		return nil
	}
	return c.table.holds[numberOf(id)]
}

// holderOf returns the holder of a hold: in the table, where the hold is one of the client.
func (c *Client) holderOf(id store.ID) Holder {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if h := c.findLocked(id); h != nil {
		return h.holder
	}
	return holderOf(id)
}

// left returns how long a lease lasts from now on, by the clock that says less. A machine that is
// suspended may stop the monotonic clock, and the wall clock goes on. A time has the readings of
// both clocks.
func (t *table) left(l store.Lease, now time.Time) time.Duration {
	until := l.Until()
	return min(until.Sub(now), t.wall(l.Sent).Add(until.Sub(l.Sent)).Sub(t.wall(now)))
}

// endLocked returns the deadline of h, as the heap counts.
func (t *table) endLocked(h *hold, now time.Time) time.Duration { return t.at(now) + h.leftLocked(now) }

// nextTTLLocked returns the TTL, or the rest of the longest allowed hold; 0: keep the lease.
func (h *hold) nextTTLLocked(now time.Time) time.Duration {
	if h.fixed {
		return 0
	}
	if h.maxHold == 0 || h.kept {
		return h.ttl
	}
	left := min(h.ttl, h.since.Add(h.maxHold).Sub(now).Truncate(time.Millisecond))
	if left < MinTTL {
		return 0
	}
	return left
}

// isLongestLocked says whether WithMaxHold leaves no time for another lease after now.
func (h *hold) isLongestLocked(now time.Time) bool {
	return h.maxHold > 0 && h.since.Add(h.maxHold).Sub(now) < MinTTL+store.Margin(h.ttl)
}
