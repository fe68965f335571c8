package relock

import (
	"container/list"
	"context"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// line queues the calls of one client that want one lock, first come first served. The hold at its
// head asks the store; all other holds wait for their turn. There are two kinds of lines:
//
//   - A store whose waiters race gets one racer of each client. The head leaves the line when it
//     has the lock, and the next hold asks.
//   - The line of a lock [WithKeep] lasts while nobody else wants the lock, see pass.go. The head
//     stays until its end.
//
// A line exists while a hold refers to it. The table's mutex guards the line.
type line struct {
	head    *hold       // nil: nobody waits, and calls WithKeep ask the store by themselves
	busy    *store.Busy // the store's last refusal of the head, while the head asks; nil: none yet
	waiting list.List   // of *hold
	size    int         // the holds that refer to the line
}

// turn is the line's part of a hold.
type turn struct {
	line   *line         // nil: none
	place  *list.Element // among those that wait; nil: h does not wait
	called chan struct{} // closed when h need not wait any more
	until  time.Duration // until when the lock is kept, as the heap counts; 0: not known; -1: keep it no more
}

// waitTurn waits until h is the head of its line, has got the lease of the head, or has to ask the
// store beside the line. A hold that does not wait (tries) asks beside a line that has a head.
func (t *table) waitTurn(ctx context.Context, h *hold, tries bool, progress func(store.Progress)) error {
	t.mu.Lock()
	ln := t.joinLocked(h)
	if t.goAheadLocked(h, tries) {
		t.mu.Unlock()
		return nil
	}
	position := ln.waiting.Len()
	if ln.head.state == entering { // and waits, too
		position++
	}
	h.turn.called, h.turn.place = make(chan struct{}), ln.waiting.PushBack(h)
	busy := t.busyLocked(ln)
	t.mu.Unlock()
	progress(store.Progress{Busy: busy, Queued: true, Position: position})
	select {
	case <-h.turn.called:
	case <-ctx.Done():
	}
	t.mu.Lock()
	busy = t.busyLocked(ln)
	isCalled := h.turn.place == nil
	h.callLocked() // takes a call that has ended out of the line: nobody passes it a lease
	t.mu.Unlock()
	progress(store.Progress{Busy: busy})
	if !isCalled {
		return lifetime.Ended(ctx)
	}
	return nil
}

// joinLocked makes h refer to the line of its lock.
func (t *table) joinLocked(h *hold) *line {
	ln := t.lines[h.lease.Name]
	if ln == nil {
		ln = &line{}
		t.lines[h.lease.Name] = ln
	}
	h.turn.line = ln
	ln.size++
	return ln
}

// goAheadLocked gives h the lease that the client has kept, or makes h the head, if it can. It says
// whether h need not wait. After the end of a line WithKeep, see yieldLocked, all calls ask the
// store by themselves, until no other hold refers to the line.
func (t *table) goAheadLocked(h *hold, tries bool) bool {
	ln := h.turn.line
	switch {
	case t.takeKeptLocked(h):
		return true
	case ln.head != nil:
		return tries
	case h.client.races, ln.size == 1:
		t.leadLocked(h)
	}
	return true
}

// leadLocked makes h the head of its line, which asks the store.
func (t *table) leadLocked(h *hold) {
	h.turn.line.head = h
	if h.keep > 0 {
		h.lease.ID = headID(h.lease.ID)
		t.heads[numberOf(h.lease.ID)], t.hadHead = h, true
	}
	h.callLocked()
}

// callLocked ends the wait of h in its line.
func (h *hold) callLocked() {
	if h.turn.place != nil {
		h.turn.line.waiting.Remove(h.turn.place)
		h.turn.place = nil
		close(h.turn.called)
	}
}

// noteRefusal notes that the store has refused the head h, for the calls behind h. A head WithKeep
// yields. nil: it was no refusal.
func (t *table) noteRefusal(h *hold, busy *store.Busy) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ln := h.turn.line; ln != nil && ln.head == h && busy != nil {
		ln.busy = busy
		t.yieldLocked(h)
	}
}

// busyLocked returns who has the lock that the line waits for; nil: that is not known yet.
func (t *table) busyLocked(ln *line) *store.Busy {
	if h := ln.head; h != nil && h.state != entering {
		return &store.Busy{Owner: h.lease.ID, TTL: t.left(h.lease, time.Now())}
	}
	return ln.busy
}

// leaveLineLocked takes h out of its line. If h is the head, the next hold becomes the head.
func (t *table) leaveLineLocked(h *hold) {
	ln := h.turn.line
	if ln == nil {
		return
	}
	h.callLocked()
	h.turn.line = nil
	ln.size--
	if ln.head == h {
		delete(t.heads, numberOf(h.lease.ID))
		ln.head = nil
		if h.state != entering { // h has had the lock since its last refusal
			ln.busy = nil
		}
		if front := ln.waiting.Front(); front != nil {
			t.leadLocked(front.Value.(*hold))
		}
	}
	if ln.size == 0 {
		delete(t.lines, h.lease.Name)
	}
}
