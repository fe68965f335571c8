package relock

import (
	"container/list"
	"context"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// line queues the calls of one client that wait for one lock, first come first served. The hold
// at its head asks the store; all other holds wait for their turn. A line has two uses:
//
//   - A store whose waiters race for the lock gets one racer of each client. The head leaves the
//     line when it has the lock, and the next hold asks.
//   - WithLocalPass keeps the lock inside of the process. The head asks for the lock, and stays the
//     head while it has the lock. When its section ends, the head hands its lease to the next hold,
//     and the store is not asked; or, beyond the limits of WithLocalPass, frees the lock, and the
//     next hold asks. The store sees one hold throughout, so a late command is as harmless as ever.
//     (The algorithm is lock cohorting, by Dice, Marathe and Shavit, 2012.)
//
// A line exists while it has a head. The table's mutex guards the line.
type line struct {
	head    *hold
	busy    *store.Busy // the store's last refusal of the head, while the head asks; nil: none yet
	waiting list.List   // of *hold
}

// turn is the line's part of a hold.
type turn struct {
	isHead  bool
	scripts int32         // of Eval, that may run yet
	called  chan struct{} // closed when the hold is the head, or has been passed the lock
	passes  int           // how often the lease was passed on since the store gave it; at the limit once a ticket names the hold
	began   time.Time     // when the store gave the lease
}

// waitTurn waits until h is the head of its line. passed: h has the lease of the section before.
func (t *table) waitTurn(ctx context.Context, h *hold, progress func(store.Progress)) (passed bool, err error) {
	t.mu.Lock()
	ln := t.lines[h.lease.Name]
	if ln == nil {
		t.lines[h.lease.Name], h.turn.isHead = &line{head: h}, true
		t.mu.Unlock()
		return false, nil
	}
	h.turn.called = make(chan struct{})
	place := ln.waiting.PushBack(h)
	position := ln.waiting.Len() - 1
	if ln.head.state == entering && ln.head.turn.passes == 0 {
		position++ // the head waits, too
	}
	busy := ln.busyLocked()
	t.mu.Unlock()
	progress(store.Progress{Busy: busy, Queued: true, Position: position})
	select {
	case <-h.turn.called:
	case <-ctx.Done():
	}
	t.mu.Lock()
	busy = ln.busyLocked()
	isHead := h.turn.isHead
	passed = h.turn.passes > 0
	if !isHead {
		ln.waiting.Remove(place)
	}
	t.mu.Unlock()
	progress(store.Progress{Busy: busy})
	if !isHead {
		return false, lifetime.Ended(ctx)
	}
	return passed, nil
}

// busyLocked returns the owner of the lock, as far as the line knows.
func (ln *line) busyLocked() *store.Busy {
	if ln.head.state != held {
		return ln.busy
	}
	return &store.Busy{Owner: ln.head.lease.ID, TTL: max(0, ln.head.leftLocked(time.Now()))}
}

// noteRefusal notes the store's last refusal of h, for the line behind h.
func (t *table) noteRefusal(h *hold, busy *store.Busy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.turn.isHead && busy != nil {
		t.lines[h.lease.Name].busy = busy
	}
}

// stepDownLocked makes the next hold the head of the line, if h is the head.
func (t *table) stepDownLocked(h *hold) {
	if !h.turn.isHead {
		return
	}
	h.turn.isHead = false
	ln := t.lines[h.lease.Name]
	if front := ln.waiting.Front(); front != nil {
		ln.callLocked(front)
		return
	}
	delete(t.lines, h.lease.Name)
}

// callLocked makes the hold at place the head of the line.
func (ln *line) callLocked(place *list.Element) {
	next := ln.waiting.Remove(place).(*hold)
	if ln.head.state != entering { // the head has had the lock since its last refusal
		ln.busy = nil
	}
	ln.head, next.turn.isHead = next, true
	close(next.turn.called)
}

// passLocked passes the lease of h, whose last entry was just left, to the first hold in its line.
func (t *table) passLocked(h *hold, now time.Time) bool {
	if !h.turn.isHead {
		return false
	}
	ln := t.lines[h.lease.Name]
	front := ln.waiting.Front()
	if front == nil {
		return false
	}
	next := front.Value.(*hold)
	if !h.passesToLocked(next, now) {
		return false
	}
	next.lease = h.lease
	next.lease.Token, next.lease.Woken = 0, store.WakeNone
	next.turn.passes, next.turn.began = h.turn.passes+1, h.turn.began
	h.turn.isHead = false
	ln.callLocked(front)
	return true
}

// passesToLocked says whether h passes its lease on to next.
func (h *hold) passesToLocked(next *hold, now time.Time) bool {
	switch {
	case h.client.races: // each hold of such a store asks for itself
	case h.client.table.closed: // next does not begin any more
	case h.renewal.soon: // the store may have another count, or not have the hold any more
	case h.turn.passes >= h.maxPasses: // a limit of WithLocalPass, or a ticket names the hold
	case h.turn.scripts > 0: // a script would run in the section of next
	case now.Sub(h.turn.began) >= h.passLimit: // the other limit of WithLocalPass
	case h.lease.Token != 0: // the store has drawn the token with the lease, so next would have the same token
	case h.leftLocked(now) < h.ttl/2: // next would begin with a short rest
	case next.ttl != h.ttl, next.delay != h.delay, next.acks != h.acks: // next asks for another lease
	default:
		return true
	}
	return false
}
