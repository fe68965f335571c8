package relock

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/caller"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// This file says how a call waits: its place in the queue, the limit of the queue, who has the lock
// meanwhile, attempts that fail, and pub/sub connections that are lost.

// limitQueue returns a context for a wait that ends in a full queue, see WithMaxWaiters.
func (a *acquiring) limitQueue(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.wait == 0 || a.lock.settings.maxWaiters == 0 {
		return ctx, func() {}
	}
	ctx, a.full = context.WithCancelCause(ctx)
	return ctx, func() { a.full(nil) }
}

// progress notes the store's answers, and ends a wait whose first place is behind too many.
func (a *acquiring) progress(p store.Progress) {
	a.event.Waited = true
	if p.Busy != nil {
		a.refusedBy(p.Busy)
	}
	if !p.Queued || a.placed {
		return
	}
	a.placed = true
	if l := a.lock; !a.event.Queued {
		a.event.Queued = true
		if hook := l.settings.hooks.Queued; hook != nil {
			e := event.Queued{Name: l.name, Mode: modeOf(l.claim.Kind, l.claim.Limit), Holder: a.event.Holder, Owner: a.event.Owner, Position: p.Position}
			l.client.events.Emit(func() { hook(e) })
		}
	}
	if a.full != nil && p.Position >= a.lock.settings.maxWaiters {
		a.full(ErrQueueFull)
	}
}

// refusedBy notes the owner of the lock, if err is a refusal.
func (a *acquiring) refusedBy(err error) {
	var busy *store.Busy
	if !errors.As(err, &busy) {
		return
	}
	l := a.lock
	owner := l.client.holderOf(busy.Owner)
	a.refusal = &LockedError{Name: l.name, Holder: owner, TTL: busy.TTL, Local: l.client.hasMade(owner)}
	a.event.Owner = owner
	if a.wait == 0 || a.hint != nil {
		return
	}
	around := openEntry(&lifetime.Guarded{Context: a.ctx}, func(e *entry) bool { return e.hold.isCalled(busy.Owner) })
	if a.refusal.Local || around != nil {
		stack := make([]uintptr, 32)
		stack = stack[:runtime.Callers(1, stack)]
		after := quietly
		if around == nil && openEntry(&lifetime.Guarded{Context: a.ctx}, l.client.isOf) != nil {
			after = waitShown + deadlockAfter // a circle of waits has its own error by then
		}
		a.hint = time.AfterFunc(after, func() { l.waitsForItself(busy.Owner, around, stack) })
	}
}

// waitsForItself warns of a call that has waited for a while for a hold of its own client, or for a
// section around it. around is the entry of that section; nil: none. Goroutines that take turns
// wait for their own client, too, so each line of the program is warned of once.
func (l *Lock) waitsForItself(id store.ID, around *entry, stack []uintptr) {
	c := l.client
	h, msg := (*hold)(nil), "relock: a call waits for a hold of this very client: a nested call needs the context of its section"
	if around != nil {
		c, msg = around.hold.client, "relock: a call waits for a section around it, of another Client: a nested call needs the Client of its section"
	}
	c.table.mu.Lock()
	var since time.Time
	if h = c.findLocked(id); h != nil {
		since = h.since
	}
	c.table.mu.Unlock()
	if h == nil { // the hold has ended
		return
	}
	place := caller.Of(stack, nil)
	if _, known := l.client.hinted.LoadOrStore(place, nil); known {
		return
	}
	l.client.log(l.settings.logger, slog.LevelWarn, msg, slog.String("lock", l.name), slog.String("holder", h.holder.String()),
		slog.Duration("held", time.Since(since)), slog.String("place", place))
}

// isDue says whether a warning is due, and notes when the next one is: after pause.
func (c *Client) isDue(next *atomic.Int64, pause time.Duration) bool {
	now, due := int64(time.Since(c.table.start)), next.Load()
	return now >= due && next.CompareAndSwap(due, now+int64(pause))
}

// A call fails for quietly before a warning. longestQuiet is between two warnings of a client.
const quietly, longestQuiet = time.Second, 10 * time.Second

// reporter is a Lock that its store reports failed attempts to.
type reporter Lock

// Retrying warns of a call that has failed for a second. The next warning comes after as long
// again, so that a thousand calls in one outage do not fill the log.
func (r *reporter) Retrying(command string, attempt int, since time.Time, err error) {
	c, level, elapsed := r.client, slog.LevelDebug, time.Since(since)
	if elapsed >= quietly && c.isDue(&c.quiet, min(elapsed, longestQuiet)) {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: a command has no answer yet", slog.String("command", command),
		slog.String("lock", r.name), slog.Int("attempt", attempt), slog.Duration("for", elapsed), slog.Any("error", err))
	if hook := c.settings.hooks.Retried; hook != nil {
		c.events.Emit(func() { hook(event.Retried{Name: r.name, Script: command, Attempt: attempt, Err: err}) })
	}
}

// disconnected frees the locks that the client keeps, as a request for one of them may be lost, and
// logs that a pub/sub connection is gone.
func (c *Client) disconnected(node string, attempt int, err error) {
	c.asked("")
	level := slog.LevelInfo
	if attempt > 3 {
		level = slog.LevelWarn
	}
	c.log(c.settings.logger, level, "relock: pub/sub connection lost, connecting again",
		slog.String("node", node), slog.Int("attempt", attempt), slog.Any("error", err))
}

func (c *Client) reconnected(node string, down time.Duration) {
	c.log(c.settings.logger, slog.LevelInfo, "relock: pub/sub connection is back", slog.String("node", node))
	if hook := c.settings.hooks.Reconnected; hook != nil {
		c.events.Emit(func() { hook(event.Reconnected{Node: node, Down: down}) })
	}
}
