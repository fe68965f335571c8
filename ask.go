package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// This file lets a caller ask for a lock that another has.

// Ask asks whoever has the lock to give it back: each of them hears of it by [Lock.Wanted]. It is
// one message. Nothing is taken away, the queue stays as it is, and whoever does not listen goes
// on. The message is lost if its receiver is not connected just then, so ask again after a while. A
// lender hears of it, and its borrowers hear of their recall: when the lender has left, nobody is
// left to ask.
// Ask does not wait, and is of use beside a Lock that waits, or alone, as from "relock ask".
//
// Errors: [ErrNotHeld] if nobody has the lock; [errors.ErrUnsupported] with a store that cannot
// tell a client anything: ZooKeeper, Kubernetes, SQL but PostgreSQL, and Redis
// [WithRedissonLayout]; [ErrUnavailable], after 2 s without an answer; ctx's error; errors of the
// store; [ErrInvalid].
func (l *Lock) Ask(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		return err
	}
	asking, is := l.client.store.(store.Asking)
	if !is {
		return l.opError("ask", "", fmt.Errorf("%w: a word to the holder in this store", errors.ErrUnsupported))
	}
	holds, err := l.holds(ctx, "ask")
	if err != nil {
		return err
	}
	return l.each(ctx, "ask", holds, asking.Want)
}

// Wanted returns a channel that is closed when somebody asks for the lock of the section around
// ctx, see [Lock.Ask]. A holder that works for long looks there where it can stop, leaves the
// section, and takes the lock again behind whoever waits. Whoever is refused by a lock [WithKeep]
// asks by itself. What was asked before the first call of Wanted in a hold is not heard. All
// entries of a hold have the same channel.
//
// The channel is nil, so that a receive blocks, outside of a section, in a borrowed section, and
// with a store that cannot tell, see [Lock.Ask].
func (l *Lock) Wanted(ctx context.Context) <-chan struct{} {
	if l.check(ctx) != nil {
		return nil
	}
	e, c := l.nearest(ctx), l.client
	if _, is := c.store.(store.Asking); !is || e == nil {
		return nil
	}
	h, t := e.hold, &c.table
	t.mu.Lock()
	w := t.hearing[h]
	if w == nil && h.state == held && !t.closed && !h.isLoan() {
		if w = (&listener{c: make(chan struct{})}); t.hearing == nil {
			t.hearing = make(map[*hold]*listener)
		}
		t.hearing[h] = w
	}
	t.mu.Unlock()
	if w == nil {
		return nil
	}
	c.hearAsks()
	return w.c
}

// listener is what a hold that listens has heard. A listener is no part of a hold, as few holds
// listen.
type listener struct {
	c     chan struct{}
	heard bool // c is closed
}

// asks is what a client knows of being asked.
type asks struct {
	mu   sync.Mutex
	stop func() // ends the watch; nil: there is none
}

// hearAsks begins or ends the watch for asks: it lasts while a hold has a channel of Wanted, and
// for good from the first lock WithKeep on.
func (c *Client) hearAsks() {
	c.asks.mu.Lock()
	defer c.asks.mu.Unlock()
	t := &c.table
	t.mu.Lock()
	need := (t.hadHead || len(t.hearing) > 0) && !t.closed
	t.mu.Unlock()
	switch {
	case need && c.asks.stop == nil:
		c.asks.stop = c.store.(store.Asking).WatchWanted(c.id, c.asked)
	case !need && c.asks.stop != nil:
		c.asks.stop()
		c.asks.stop = nil
	}
}

// asked tells the hold with an ID that its lock is wanted. Without an ID a request may have been
// lost, for any of the heads.
func (c *Client) asked(id store.ID) {
	t := &c.table
	if id == "" {
		t.each(t.heads, t.keepNoLongerLocked)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if head := c.headLocked(id); head != nil {
		t.yieldLocked(head)
	}
	h := c.findLocked(id)
	if w := t.hearing[h]; w != nil && h.state == held && !w.heard {
		w.heard = true
		close(w.c)
		if hook := h.hooks.Wanted; hook != nil {
			e := event.Wanted{Name: h.name, Mode: modeOf(h.lease.Kind, h.lease.Limit), Holder: h.holder, Held: time.Since(h.since)}
			c.events.Emit(func() { hook(e) })
		}
	}
}

// stopHearingLocked forgets the channel of a hold that has ended. Nobody closes it any more.
func (t *table) stopHearingLocked(h *hold) {
	if t.hearing[h] == nil {
		return
	}
	delete(t.hearing, h)
	if len(t.hearing) == 0 {
		h.client.group.Go(h.client.hearAsks)
	}
}
