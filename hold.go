package relock

import (
	"context"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// hold is one holder's stay in one lock, from its first entry to its last exit.
type hold struct {
	client *Client
	name   string // of the lock, as its user knows it
	holder Holder
	*settings

	// Guarded by the table's mutex.
	state   holdState
	lease   store.Lease // as the store has given it, or as a section of this process has passed it on
	since   time.Time   // when the first entry was entered
	end     error       // the reason for the end of an entered hold: ErrReleased, ErrClosed or a *LostError
	token   int64       // the first drawn token; 0: none
	count   int         // of open entries
	deepest int         // the highest count
	entries *entry      // the open ones, newest first; without entries whose context was dropped
	leaks   []context.CancelCauseFunc
	leaked  bool // the context of some entry was dropped without Unlock
	renewal renewal
	turn    turn
}

// renewal is the watchdog's part of a hold.
type renewal struct {
	item     timers.Item[*hold] // in the table's heap while the hold is held
	inFlight bool
	failures int // in a row
	// check asks for a renewal soon: the store may have another count, or not have the hold any
	// more.
	check   bool
	recount bool // as check, with the next renewal
	// Two commands with a count that are in flight at once may reach the store in either order.
	// changes and rounds tell whether that happened; then the count is sent again. After an entry
	// or exit beside another one the count is sent at once. After an entry or exit beside a renewal
	// the count is sent within TTL/3, as a busy loop of nested calls would cause one renewal after
	// the other.
	changes int       // how many entries and exits have been sent
	rounds  int       // how many renewals have been sent
	longest time.Time // until when an Extend without an answer may have made the lease last
}

// turn is the line's part of a hold, see line.go.
type turn struct {
	isHead bool
	called chan struct{} // closed when the hold is the head, or has been passed the lock
	passed bool
	passes int       // how often the lease was passed on since the store gave it
	began  time.Time // when the store gave the lease
}

type holdState uint8

const (
	entering holdState = iota // the store is being asked for the first entry
	held
	leaving // the last exit is in flight; nothing changes the lease any more
	over
)

func (h *hold) expiredLocked(now time.Time) bool { return !now.Before(h.lease.Until()) }

// table has all leases of a client. Its mutex guards the holds, their entries, the lines and the
// heap. No blocking call runs with the mutex held. Of other mutexes, only the mutexes of events and
// group may be taken with the table's mutex held.
type table struct {
	start time.Time // the heap counts from here

	mu     sync.Mutex
	closed bool
	leases timers.Heap[*hold] // of the holds that are held or leaving, by the time when the watchdog looks at them next
	lines  map[string]*line   // by the store's name of the lock
}

// at returns a time as the heap counts.
func (t *table) at(when time.Time) time.Duration { return when.Sub(t.start) }

// enterLocked adds an entry to its hold.
func (t *table) enterLocked(e *entry) {
	h := e.hold
	if e.next = h.entries; e.next != nil {
		e.next.prev = e
	}
	h.entries = e
	h.count++
	h.deepest = max(h.deepest, h.count)
}

// leaveLocked takes an entry out of its hold.
func (t *table) leaveLocked(e *entry) {
	e.left = true
	t.unlinkLocked(e)
	e.hold.count--
}

func (t *table) unlinkLocked(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else if e.hold.entries == e {
		e.hold.entries = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.next, e.prev = nil, nil
}

// confirmLocked notes a lease that a command has set. A deadline only moves later, and a passed
// deadline stays passed, as another hold may have had the lock since. A hold at its longest allowed
// length ends in time, also if a command reached the store late and set a longer lease.
func (t *table) confirmLocked(h *hold, lease store.Lease, now time.Time) {
	if h.maxHold > 0 {
		lease.TTL = min(lease.TTL, h.since.Add(h.maxHold).Sub(lease.Sent).Truncate(time.Millisecond))
	}
	if h.state != held || h.expiredLocked(now) || !lease.Until().After(h.lease.Until()) {
		return
	}
	h.lease.Sent, h.lease.TTL = lease.Sent, lease.TTL
	t.scheduleLocked(h)
}

// scheduleLocked puts h into the heap at the time of its next renewal or of its deadline.
func (t *table) scheduleLocked(h *hold) {
	due := h.lease.Until()
	if next := h.lease.Sent.Add(h.ttl / 3); !h.fixed && next.Before(due) {
		due = next
	}
	t.leases.Set(&h.renewal.item, t.at(due))
	h.client.watchdog.nudgeLocked()
}

// checkLocked makes the watchdog ask the store about h at once.
func (t *table) checkLocked(h *hold) {
	if h.state != held {
		return
	}
	h.renewal.check = true
	t.leases.Set(&h.renewal.item, t.at(time.Now()))
	h.client.watchdog.nudgeLocked()
}

// recountLocked makes the watchdog send the count again within TTL/3, also if nobody wants the lease
// any more: a renewal and another command with a count may have reached the store in either order.
func (t *table) recountLocked(h *hold) {
	h.renewal.recount = true
	t.leases.Set(&h.renewal.item, min(t.at(time.Now().Add(h.ttl/3)), t.leases.Due(&h.renewal.item)))
	h.client.watchdog.nudgeLocked()
}

// isWantedLocked says whether anybody still works in a section of h.
func (t *table) isWantedLocked(h *hold) bool {
	for e := h.entries; e != nil; e = e.next {
		if e.ctx.Err() == nil {
			return true
		}
	}
	return false
}

// nextTTLLocked returns the lease to ask for: the TTL, or the rest of the longest allowed hold; 0
// leaves the lease unchanged.
func (h *hold) nextTTLLocked(now time.Time) time.Duration {
	if h.fixed {
		return 0
	}
	if h.maxHold == 0 {
		return h.ttl
	}
	left := min(h.ttl, h.since.Add(h.maxHold).Sub(now).Truncate(time.Millisecond))
	if left < MinTTL {
		return 0
	}
	return left
}

// isLongestLocked says whether a lease that ends now could not be renewed, as the hold has reached
// its longest allowed length.
func (h *hold) isLongestLocked(now time.Time) bool {
	return h.maxHold > 0 && h.since.Add(h.maxHold).Sub(now) < MinTTL+store.Margin(h.ttl)
}

// finishLocked ends a hold. Its entries stay, for whoever has to end their contexts.
func (t *table) finishLocked(h *hold, end error) {
	h.state, h.end = over, end
	t.leases.Remove(&h.renewal.item)
	t.stepDownLocked(h)
}

// cancelsLocked returns the functions that end the contexts of h, newest entry first.
func (h *hold) cancelsLocked() (cancels []context.CancelCauseFunc) {
	for e := h.entries; e != nil; e = e.next {
		cancels = append(cancels, e.cancel)
	}
	return cancels
}

// releaseLocked ends a hold after its last exit, and reports the end. The end and its event are one
// step under the mutex, so that Close comes before both or after both.
func (t *table) releaseLocked(h *hold, err error) {
	t.finishLocked(h, ErrReleased)
	if h.hooks.Released == nil || t.closed {
		return
	}
	event := Released{
		Name: h.name, Holder: h.holder, Token: h.token, TTL: h.ttl, Held: time.Since(h.since), MaxDepth: h.deepest, Err: err,
	}
	h.client.events.Emit(func() { h.hooks.Released(event) })
}

// longest returns the longest time for which the store may keep the hold from now on without a
// renewal.
func (h *hold) longest() time.Duration {
	t := &h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(h.lease.TTL, h.ttl, time.Until(h.renewal.longest).Round(time.Millisecond))
}
