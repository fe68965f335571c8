package relock

import (
	"context"
	"log/slog"
	"time"
)

// The watchdog is one goroutine for all leases of a client. It looks at a hold when its renewal is due (a third of the
// TTL after the last one), renews what is due in batches, tries again soon what was not confirmed, and ends a hold at
// its deadline, or as soon as Redis says that it is gone: the section's contexts end with the cause before anybody else
// can have the lock.
//
// Renewals run in goroutines of their own, so a silent Redis cannot keep the watchdog from a deadline. There is at most
// one renewal of a hold at a time. One that is still on the wire when the hold ends does no harm: it names a hold that
// is never used again.
type watchdog struct {
	client *Client
	wake   chan struct{}

	// Guarded by the table's mutex.
	running bool
	armed   time.Time // when the watchdog wakes by itself; zero: never
}

func newWatchdog(c *Client) *watchdog {
	return &watchdog{client: c, wake: make(chan struct{}, 1)}
}

// dueSoon is the part of its renewal interval by which a lease is renewed early, to go with others that are due.
const dueSoon = 10

// lookAtMost is how many leases the watchdog takes out at once, so that others get at the table in between.
const lookAtMost = 10 * renewBatch

// retryPause is the time between two tries of a renewal: short at first, and never so long that a lease sees less than
// a few more.
func retryPause(failures int, ttl time.Duration) time.Duration {
	return min(5*time.Millisecond<<min(failures, 10), ttl/12+time.Millisecond, time.Second)
}

// nudgeLocked makes sure that the watchdog runs, and looks again if something is due before it would.
func (d *watchdog) nudgeLocked() {
	leases := d.client.table.leases
	if len(leases) == 0 {
		return
	}
	if !d.running {
		d.running = d.client.workers.startOpen(d.run)
		return
	}
	if next := leases[0].due; d.armed.IsZero() || next.Before(d.armed) {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// run ends when the client is closed: leases that are held then are not renewed any more.
func (d *watchdog) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		batch, next := d.look(time.Now())
		if len(batch) > 0 {
			d.client.workers.start(func() { d.renew(batch) })
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = time.Until(next)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-d.wake:
		case <-d.client.closed:
			return
		}
	}
}

// look takes what is due out of the heap: it returns the leases to renew, ends those whose deadline has come, and says
// when it wants to look again.
func (d *watchdog) look(now time.Time) (batch []renewal, next time.Time) {
	t := d.client.table
	t.mu.Lock()
	var lost []*loss
	var leaked []*hold
	for len(t.leases) > 0 {
		h := t.leases[0]
		if h.leaks > h.told {
			h.told = h.leaks
			leaked = append(leaked, h)
		}
		if !h.deadline.After(now) {
			lost = append(lost, t.loseLocked(h, h.reasonLocked(t, now)))
			continue
		}
		early := time.Duration(0)
		if h.failures == 0 {
			early = h.ttl / 3 / dueSoon
		}
		if h.due.After(now.Add(early)) {
			break
		}
		ttl := h.nextLease(now)
		if h.renewing || h.fixed || ttl < MinTTL || !safeUntil(now, ttl).After(h.deadline) || !t.wantedLocked(h) {
			t.rescheduleLocked(h, h.deadline)
			if h.deadline.After(now.Add(early)) {
				continue
			}
			break
		}
		if len(batch) == lookAtMost {
			break
		}
		h.renewing = true
		t.rescheduleLocked(h, h.deadline)
		batch = append(batch, renewal{hold: h, ttl: ttl})
	}
	d.armed = time.Time{}
	if len(t.leases) > 0 {
		d.armed = t.leases[0].due
	}
	next = d.armed
	t.mu.Unlock()
	for _, l := range lost {
		l.tell()
	}
	for _, h := range leaked {
		h.tellLeak(now.Sub(h.since))
	}
	return batch, next
}

// tellLeak reports an entry that nobody can unlock any more. If no other entry of the hold is worked under, its lease is
// not renewed, and runs out.
func (h *hold) tellLeak(heldFor time.Duration) {
	c := h.client
	c.events.log(h.logger, slog.LevelError, "relock: lock leaked: a context that Lock returned was dropped without Unlock",
		slog.String("lock", h.keys.name), slog.String("holder", h.holder.String()))
	if h.hooks.Leaked != nil {
		c.events.emit(func() { h.hooks.Leaked(Leaked{Name: h.keys.name, Holder: h.holder, Token: h.token, Held: heldFor}) })
	}
}

// nextLease is the lease to ask for: the TTL, or what is left until the longest allowed hold.
func (h *hold) nextLease(now time.Time) time.Duration {
	if h.maxHold == 0 {
		return h.ttl
	}
	left := h.since.Add(h.maxHold).Sub(now).Truncate(time.Millisecond)
	return min(h.ttl, left)
}

func (h *hold) reasonLocked(t *table, now time.Time) LossReason {
	switch {
	case h.maxHold > 0 && h.nextLease(now) < MinTTL+margin(h.ttl):
		return LossMaxHold
	case h.leaks > 0 && !t.wantedLocked(h):
		return LossLeaked
	case !t.wantedLocked(h):
		return LossAbandoned
	default:
		return LossExpired
	}
}

// renew sends one batch and notes what became of it.
func (d *watchdog) renew(batch []renewal) {
	c, sent := d.client, time.Now()
	limit := batch[0].ttl
	for i := range batch {
		limit = min(limit, batch[i].ttl)
	}
	// Half of a renewal interval: a connection that went silent must leave time to try another.
	ctx, cancel := context.WithTimeout(context.Background(), limit/6+5*time.Millisecond)
	defer cancel()
	c.wire.renew(ctx, batch)

	event := Renewed{Locks: len(batch), Duration: time.Since(sent)}
	var lost []*loss
	t := c.table
	t.mu.Lock()
	for i := range batch {
		r := &batch[i]
		h := r.hold
		h.renewing = false
		if h.state != held {
			continue
		}
		switch {
		case r.err != nil:
			event.Failed++
			if event.Err == nil {
				event.Err = r.err
			}
			h.failures++
			t.rescheduleLocked(h, time.Now().Add(retryPause(h.failures, h.ttl)))
		case r.lost:
			event.Lost++
			lost = append(lost, t.loseLocked(h, LossTaken))
		default:
			h.failures = 0
			t.confirmLocked(h, sent, r.ttl)
		}
	}
	d.nudgeLocked()
	t.mu.Unlock()
	for _, l := range lost {
		l.tell()
	}
	if event.Err != nil {
		c.events.log(c.settings.logger, slog.LevelWarn, "relock: renewal not confirmed, trying again until the deadline",
			slog.Int("locks", event.Failed), slog.Any("error", event.Err))
	}
	if c.settings.hooks.Renewed != nil {
		c.events.emit(func() { c.settings.hooks.Renewed(event) })
	}
}

// loss is a hold that has just been lost, for whoever tells of it outside the mutex.
type loss struct {
	hold   *hold
	err    *LostError
	cancel []context.CancelCauseFunc
	held   time.Duration

	deepest int
}

// loseLocked ends a hold that was lost.
func (t *table) loseLocked(h *hold, reason LossReason) *loss {
	l := &loss{
		hold: h,
		err:  &LostError{Name: h.keys.name, Holder: h.holder, Token: h.token, Reason: reason},
		held: time.Since(h.since), deepest: h.deepest,
	}
	for f := h.frames; f != nil; f = f.next {
		l.cancel = append(l.cancel, f.cancel)
	}
	t.finishLocked(h, l.err)
	return l
}

// tell ends the contexts of the section, newest entry first, before anything else.
func (l *loss) tell() {
	for _, cancel := range l.cancel {
		cancel(l.err)
	}
	h := l.hold
	c := h.client
	if l.err.Reason != LossTaken || h.unsure {
		// The last renewal may have reached Redis without our knowing: do not let it keep the lock from others.
		c.orphans.add(h, h.unsure)
	}
	c.events.log(h.logger, slog.LevelError, "relock: lock lost", slog.String("lock", h.keys.name),
		slog.String("holder", h.holder.String()), slog.Int64("token", h.token), slog.String("reason", string(l.err.Reason)))
	if h.hooks.Lost != nil {
		event := Lost{
			Name: h.keys.name, Holder: h.holder, Token: l.err.Token, TTL: h.ttl, Reason: l.err.Reason, Held: l.held, MaxDepth: l.deepest,
		}
		c.events.emit(func() { h.hooks.Lost(event) })
	}
}
