package relock

import (
	"container/list"
	"context"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// line is the queue of one client for one lock, in a store whose waiters race: only the hold at the
// head of the line asks the store. When the head has the lock, it leaves the line, and the next hold
// asks.
//
// A line exists while it has a head. The table's mutex guards the line.
type line struct {
	head    *hold
	busy    *store.Busy // the store's last refusal of the head, while the head asks; nil: none yet
	waiting list.List   // of *hold
}

// turn is the line's part of a hold.
type turn struct {
	isHead bool
	called chan struct{} // closed when the hold is the head
}

// waitTurn waits until h is the head of its line.
func (t *table) waitTurn(ctx context.Context, h *hold, progress func(store.Progress)) error {
	t.mu.Lock()
	ln := t.lines[h.lease.Name]
	if ln == nil {
		t.lines[h.lease.Name], h.turn.isHead = &line{head: h}, true
		t.mu.Unlock()
		return nil
	}
	h.turn.called = make(chan struct{})
	place := ln.waiting.PushBack(h)
	position := ln.waiting.Len() // behind the head, too
	busy := ln.busy
	t.mu.Unlock()
	progress(store.Progress{Busy: busy, Queued: true, Position: position})
	select {
	case <-h.turn.called:
	case <-ctx.Done():
	}
	t.mu.Lock()
	busy = ln.busy
	isHead := h.turn.isHead
	if !isHead {
		ln.waiting.Remove(place)
	}
	t.mu.Unlock()
	progress(store.Progress{Busy: busy})
	if !isHead {
		return lifetime.Ended(ctx)
	}
	return nil
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
	front := ln.waiting.Front()
	if front == nil {
		delete(t.lines, h.lease.Name)
		return
	}
	next := ln.waiting.Remove(front).(*hold)
	if h.state != entering { // h has had the lock since its last refusal
		ln.busy = nil
	}
	ln.head, next.turn.isHead = next, true
	close(next.turn.called)
}
