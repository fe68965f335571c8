package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// This file nests entries: a hold is entered again, and left with entries still open.

// enterAgain enters the hold of outer once more.
func (a *acquiring) enterAgain(outer *entry) error {
	h := outer.hold
	t := &h.client.table
	if h.endOf(false) != nil {
		return a.notAgain(outer.ctx, outer, nil)
	}
	t.mu.Lock()
	lease, count := h.lease, h.count+1
	lease.TTL, lease.Acks = h.nextTTLLocked(time.Now()), store.Acks{}
	t.mu.Unlock()
	if !h.localReentry {
		ctx, end := h.client.boundClaim(a.event.Context, a.ctx, a.wait, store.Acks{})
		defer end.Stop()
		if outer.ctx.Err() == nil { // a hold that ends meanwhile is not entered again
			inside := lifetime.EndingWith(ctx, outer.ctx)
			defer inside.Stop()
			ctx = inside
		}
		var err error
		if lease, err = h.client.store.Enter(ctx, lease, count); err != nil {
			return a.notAgain(ctx, outer, a.unanswered(ctx, err))
		}
	}
	e, section := newEntry(a.ctx, h)
	t.mu.Lock()
	if t.closed || h.state != held || h.expiredLocked(time.Now()) {
		t.mu.Unlock()
		e.cancel(ErrReleased)
		return a.notAgain(outer.ctx, outer, nil)
	}
	t.enterLocked(e, section)
	now := time.Now()
	if !h.localReentry {
		t.reenteredLocked(h, lease, now)
	}
	if h.renewal.item.In() && t.isAtEndLocked(h, t.leases.Due(&h.renewal.item), now) {
		t.scheduleLocked(h, now) // nobody worked in the hold
	}
	a.section, a.event.Depth = section, h.count
	t.mu.Unlock()
	if own := a.lock.settings; own.ttl != h.ttl || own.fixed != h.fixed || own.maxHold != h.maxHold || own.delay != h.delay {
		h.client.log(own.logger, slog.LevelDebug, "relock: a nested call has the lease of its section: its own options do not count",
			slog.String("lock", h.name), slog.String("holder", h.holder.String()), slog.Duration("ttl", h.ttl))
	}
	return nil
}

// notAgain returns the error of a nested call without an entry. err is the error of the store.
func (a *acquiring) notAgain(ctx context.Context, outer *entry, err error) error {
	h := outer.hold
	t := &h.client.table
	t.mu.Lock()
	closed := t.closed
	if err != nil {
		t.renewSoonLocked(h) // the store may count this entry
	}
	t.mu.Unlock()
	end := h.endOf(isGone(ctx, err))
	if end == nil && closed {
		end = ErrClosed
	}
	switch {
	case isLost(end):
		outer.cancel(end) // the finder of the loss may not have come to it, see Lock.inside
		a.event.Outcome = event.OutcomeLost
		return end
	case end == ErrClosed: // the end of a hold is not wrapped
		a.event.Outcome = event.OutcomeClosed
		return a.opError(end)
	case end != nil:
		a.event.Outcome = event.OutcomeError
		return a.opError(end)
	case a.ctx.Err() == nil && outer.ctx.Err() != nil:
		a.event.Outcome = event.OutcomeCanceled
		return a.opError(lifetime.Ended(outer.ctx))
	default:
		return a.failed(ctx, err)
	}
}

// leaveInner sends the new count to the store. If the store does not confirm, the watchdog sends
// the count again. If the last entry was left meanwhile, its Unlock has freed the lock or has
// passed the lock on, and leaveInner sends nothing.
func (h *hold) leaveInner(ctx context.Context) error {
	if h.localReentry {
		return nil
	}
	t := &h.client.table
	t.mu.Lock()
	if h.count == 0 {
		t.mu.Unlock()
		return nil
	}
	now := time.Now()
	lease, count, limit := h.lease, h.count, unlockBy(now, h.lease)
	lease.TTL, lease.Acks = h.nextTTLLocked(now), store.Acks{}
	if !t.isWorkedInLocked(h) {
		lease.TTL = 0
	}
	t.mu.Unlock()
	bound := lifetime.Until(ctx, limit)
	defer bound.Stop()
	entered, err := h.client.store.Enter(bound, lease, count)
	if errors.Is(err, store.ErrGone) {
		if end := h.endOf(true); isLost(end) {
			return end
		}
		return nil // an Unlock of the last entry was faster
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if isLost(h.end) {
			return h.end
		}
		t.renewSoonLocked(h)
		return fmt.Errorf("not confirmed by the store; the entry is left, and the count will be sent again: %w", err)
	}
	if lease.TTL > 0 {
		t.reenteredLocked(h, entered, time.Now())
	}
	return nil
}

// reenteredLocked notes the lease that an entry or an exit has set. Neither waits for the
// confirmations of other servers, so with acks the deadline waits for a renewal.
func (t *table) reenteredLocked(h *hold, lease store.Lease, now time.Time) {
	if h.acks == (store.Acks{}) {
		t.confirmLocked(h, lease, now)
	}
}
