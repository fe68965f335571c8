package relock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// lose ends a lost hold, and returns the error for its sections.
func (h *hold) lose(reason event.LossReason) error {
	t := &h.client.table
	t.mu.Lock()
	if h.state == over {
		defer t.mu.Unlock()
		return h.end
	}
	l := t.loseLocked(h, reason)
	t.mu.Unlock()
	l.end()
	l.report()
	return l.err
}

// endOf returns the end of a hold for its sections, nil while the hold is valid. gone says that the
// store did not find the hold: a loss, unless the last Unlock is in flight and was faster.
func (h *hold) endOf(gone bool) error {
	t := &h.client.table
	t.mu.Lock()
	state, end, expired, recalled := h.state, h.end, h.expiredLocked(time.Now()), h.recalled
	t.mu.Unlock()
	switch {
	case state == over:
		return end
	case state == leaving:
		return ErrReleased
	case gone:
		return h.lose(event.LossTaken)
	case expired: // the watchdog is about to find out
		return h.lose(event.LossExpired)
	case recalled:
		return ErrRecalled
	default:
		return nil
	}
}

// isGone says whether err is the word of the store that it does not have a hold. ctx is the context
// of the command: the error of a command that its context has ended may be any error of the caller.
func isGone(ctx context.Context, err error) bool {
	return ctx.Err() == nil && errors.Is(err, store.ErrGone)
}

// loss carries a lost hold out of the mutex, to be reported.
type loss struct {
	hold   *hold
	err    *LostError
	cancel []context.CancelCauseFunc
	event  func() // nil: no hook
}

// loseLocked ends a lost hold. LossExpired stands for every reason of a loss at the deadline: the
// reason is the same whether the watchdog or a call has found the loss. The caller calls end and
// report, and counts as a goroutine of the client until report returns.
func (t *table) loseLocked(h *hold, reason event.LossReason) *loss {
	h.client.group.Add()
	if reason == event.LossExpired {
		reason = h.reasonLocked()
	}
	l := &loss{hold: h, err: &LostError{Name: h.name, Holder: h.holder, Token: h.token, Reason: reason}, cancel: h.cancelsLocked()}
	t.finishLocked(h, l.err)
	l.event = t.endEventLocked(h, nil)
	return l
}

// reasonLocked returns the reason for a loss at the deadline. A closed client renews nothing.
func (h *hold) reasonLocked() event.LossReason {
	switch {
	case h.isLongestLocked(h.lease.Until()):
		return event.LossMaxHold
	case h.client.table.closed, h.client.table.isWorkedInLocked(h):
		return event.LossExpired
	case h.leaked:
		return event.LossLeaked
	default:
		return event.LossAbandoned
	}
}

// end ends the contexts of the section, before anything else is done.
func (l *loss) end() {
	for _, cancel := range l.cancel {
		cancel(l.err)
	}
}

// report reports the loss to cleanup, the log and the hooks.
func (l *loss) report() {
	h := l.hold
	c := h.client
	defer c.group.Leave()
	// The last renewal may have reached the store without an answer. Cleanup keeps it from holding
	// up whoever waits. With WithLockDelay the store keeps the lock for a time, unless the lock was
	// taken away.
	delay := h.delay
	if l.err.Reason == event.LossTaken {
		delay = 0
	}
	c.cleanup.addAfter(delay, h, h.lease.Claim, h.longest())
	c.reportLeaks()
	if h.kept { // no section is lost
		if l.err.Reason == event.LossTaken && h.since.After(h.lease.Sent) { // the store has confirmed nothing since the last section
			c.log(h.logger, slog.LevelWarn, "relock: a lock was lost while it was kept, or in its last section",
				slog.String("lock", h.name), slog.String("holder", h.holder.String()))
		}
		return
	}
	c.log(h.logger, slog.LevelError, "relock: lock lost", slog.String("lock", h.name), slog.String("holder", h.holder.String()),
		slog.Int64("token", l.err.Token), slog.String("reason", string(l.err.Reason)))
	if l.event != nil {
		c.events.Emit(l.event)
	}
}

// foundLocked leaves the leaks of h to reportLeaks.
func (t *table) foundLocked(h *hold) {
	t.leaks = append(t.leaks, h.leaks...)
	h.leaks = nil
}

// reportLeaks reports the entries that were found, which nobody can unlock any more, and ends their
// contexts. Nobody has these contexts, but their parents refer to them until their end. If nobody
// works under another entry of a hold, its lease is not renewed, and runs out.
func (c *Client) reportLeaks() {
	t := &c.table
	t.mu.Lock()
	leaks := t.leaks
	t.leaks = nil
	t.mu.Unlock()
	for _, e := range leaks {
		h := e.hold
		e.cancel(nil)
		c.log(h.logger, slog.LevelError, "relock: lock leaked: a context that Lock returned was dropped without Unlock",
			slog.String("lock", h.name), slog.String("holder", h.holder.String()))
		if hook := h.hooks.Leaked; hook != nil {
			e := event.Leaked{Name: h.name, Mode: modeOf(h.lease.Kind, h.lease.Limit), Holder: h.holder, Held: time.Since(h.since)}
			c.events.Emit(func() { hook(e) })
		}
	}
}

// finishLocked ends a hold. Its entries stay, for whoever has to end their contexts.
func (t *table) finishLocked(h *hold, end error) {
	h.state, h.end = over, end
	t.removeLocked(h)
	t.foundLocked(h)
	t.stopHearingLocked(h)
	t.leaveLineLocked(h)
	if reader := h.around; reader != nil && reader.isReader() { // which sees what this writer has written
		reader.token = 0
		reader.inside++
	}
}

// releaseLocked ends a hold after its last exit or its hand-off, and reports the end. The end and
// its event are one step under the mutex, so that Close comes before both or after both.
func (t *table) releaseLocked(h *hold, end, err error) {
	t.finishLocked(h, end)
	if report := t.endEventLocked(h, err); report != nil {
		h.client.events.Emit(report)
	}
}

// endEventLocked reports the end of h to its traces, and returns the call of its hook; nil: none.
// Close reports the end of a hold that is lost or left later, too. err is why a release was not
// confirmed.
func (t *table) endEventLocked(h *hold, err error) func() {
	t.endTracesLocked(h, err)
	hooks := &h.hooks
	if h.kept || hooks.Closed == nil && hooks.Lost == nil && hooks.Released == nil {
		return nil
	}
	e := event.Closed{
		Name: h.name, Mode: modeOf(h.lease.Kind, h.lease.Limit), Holder: h.holder, Token: h.token, TTL: h.ttl, Held: time.Since(h.since), MaxDepth: h.deepest,
		Leader: h.leader,
	}
	lost, isLost := h.end.(*LostError) // the end of a hold is not wrapped
	switch {
	case h.closed:
		return nil
	case t.closed:
		if h.closed = true; hooks.Closed == nil {
			return nil
		}
		closed := e
		return func() { hooks.Closed(closed) }
	case isLost && hooks.Lost != nil:
		lost := event.Lost{
			Name: e.Name, Mode: e.Mode, Holder: e.Holder, Token: e.Token, TTL: e.TTL, Reason: lost.Reason, Held: e.Held, MaxDepth: e.MaxDepth,
			Leader: e.Leader,
		}
		return func() { hooks.Lost(lost) }
	case !isLost && hooks.Released != nil:
		released := event.Released{
			Name: e.Name, Mode: e.Mode, Holder: e.Holder, Token: e.Token, TTL: e.TTL, Held: e.Held, MaxDepth: e.MaxDepth, Leader: e.Leader,
			Err: err,
		}
		return func() { hooks.Released(released) }
	default:
		return nil
	}
}

// trace notes functions to call at the end of the hold, which may be over already.
func (h *hold) trace(ends []func(event.TraceEnded)) {
	t := &h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	h.traces = ends
	if h.state == over || t.closed {
		t.endTracesLocked(h, nil)
	}
}

// endTracesLocked reports the end of a hold to its traces. err is why a release was not confirmed.
func (t *table) endTracesLocked(h *hold, err error) {
	if len(h.traces) == 0 {
		return
	}
	end := event.TraceEnded{Closed: t.closed, Held: time.Since(h.since), MaxDepth: h.deepest, Err: err}
	if lost, is := h.end.(*LostError); is { // the end of a hold is not wrapped
		end.Reason = lost.Reason
	}
	for _, ended := range h.traces {
		h.client.events.Emit(func() { ended(end) })
	}
	h.traces = nil
}

// longest returns how long the lease of the hold may last from now on without a renewal.
func (h *hold) longest() time.Duration {
	t := &h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(h.lease.TTL, h.ttl, time.Until(h.renewal.longest).Round(time.Millisecond))
}

// unlockLimit bounds the time in which Unlock tries to reach the store.
const unlockLimit = 10 * time.Second

func unlockBy(now time.Time, l store.Lease) time.Time {
	return now.Add(min(unlockLimit, l.Until().Sub(now)))
}
