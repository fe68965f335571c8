package relock

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"
)

// The watchdog is one goroutine for all leases of a client. It looks at a hold when its renewal is due (a third of the
// TTL after the last one), renews what is due in batches, tries again soon what was not confirmed, and ends a hold at
// its deadline, or as soon as Redis says that it is gone: the section's contexts end with the cause before anybody else
// can have the lock.
//
// Renewals run in goroutines of their own, so a silent Redis cannot keep the watchdog from a deadline. One that is still on the
// wire when the next is sent, or when the hold ends, does no harm: it names a hold that is never used again.
type watchdog struct {
	client *Client
	wake   chan struct{}
	rounds sync.Pool // that are over
	lost   []*loss   // whose sections have ended, and that are not reported yet; only its goroutine's

	// Guarded by the table's mutex.
	running bool
	armed   time.Duration // when the watchdog wakes by itself, as in the heap
	// expected is when to look whatever the heap says: a grant that is waited for may have come, or a lease that was due then is over
	// by now. never: no such time.
	expected time.Duration
}

func newWatchdog(c *Client) *watchdog {
	return &watchdog{client: c, wake: make(chan struct{}, 1), armed: never, expected: never}
}

// never is later than anything in the heap.
const never = time.Duration(math.MaxInt64)

// dueSoon is the part of its renewal interval by which a lease is renewed early, to go with others that are due.
const dueSoon = 10

// earlyLocked is by how much the next renewal of h may be early.
func (h *hold) earlyLocked() time.Duration {
	if h.failures > 0 {
		return 0
	}
	return h.ttl / 3 / dueSoon
}

// lookAtMost is how many leases the watchdog renews, or ends, at once, so that others get at the table in between.
const lookAtMost = 10 * renewBatch

// lookSpread is the time over which a look spreads the next renewals of what it renews: each is a nanosecond after the
// one before, so that they keep their order, which is mostly that of the memory they are in.
const lookSpread time.Duration = lookAtMost

// retryPause is the time between two tries of a renewal: short at first, and never so long that a lease sees less than
// a few more.
func retryPause(failures int, ttl time.Duration) time.Duration {
	return min(5*time.Millisecond<<min(failures, 10), ttl/12+time.Millisecond, time.Second)
}

// nudgeLocked makes sure that the watchdog runs, and looks again if something is due before it would.
func (d *watchdog) nudgeLocked() {
	next := d.nextLocked()
	if next == never {
		return
	}
	d.expected = next // kept if that lease ends first: one look for nothing costs less than a wake-up for each lease that comes after it
	if !d.running {
		d.running = d.client.workers.startOpen(d.run)
		return
	}
	if next < d.armed {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// nextLocked is when something is due.
func (d *watchdog) nextLocked() time.Duration {
	if leases := d.client.table.leases; len(leases) > 0 {
		return min(leases[0].due, d.expected)
	}
	return d.expected
}

// expect makes the watchdog ready for a lease that h waits for, if it comes soon: to start or wake a goroutine between the grant
// and the return of Lock costs more than all that Lock does there. sent is since when the lease can be ours.
func (d *watchdog) expect(h *hold, sent time.Time) {
	t := d.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	d.expected = min(d.expected, t.at(sent.Add(h.ttl/3)))
	d.nudgeLocked()
}

// run ends when the client is closed: leases that are held then are not renewed any more.
func (d *watchdog) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	defer d.report()
	for {
		r, next := d.look(time.Now())
		if r != nil {
			d.client.workers.start(func() { d.renew(r) })
		}
		left := next - time.Since(d.client.table.start)
		if left > 0 { // else more may be lost, and all sections that are end before anything else is done
			d.report()
		}
		timer.Reset(left)
		select {
		case <-timer.C:
		case <-d.wake:
		case <-d.client.closed:
			return
		}
	}
}

// round is leases that are renewed together. One that is over is used again.
type round struct {
	batch []renewal
	holds []*hold // the batch's, for note where it is not waited for any more: the batch is still sorted and written to then
}

func (d *watchdog) newRound() *round {
	r, _ := d.rounds.Get().(*round)
	if r == nil {
		r = &round{}
	}
	return r
}

func (d *watchdog) endRound(r *round) {
	clear(r.batch)
	clear(r.holds)
	r.batch, r.holds = r.batch[:0], r.holds[:0]
	d.rounds.Put(r)
}

// keepWantedLocked leaves out the leases that nobody works under: they run out. It is a loop of its own, which does little
// for each, because the CPU then waits for the memory of several frames at a time.
func (r *round) keepWantedLocked(t *table) {
	r.batch = slices.DeleteFunc(r.batch, func(one renewal) bool {
		h := one.hold
		h.watchLocked()
		if t.wantedLocked(h) {
			return false
		}
		h.renewing = false
		t.rescheduleLocked(h, h.deadline)
		return true
	})
}

// look looks at what is due: it returns the leases to renew, if any, ends those whose deadline has come, and their sections, and
// says when it wants to look again.
func (d *watchdog) look(now time.Time) (r *round, next time.Duration) {
	t := d.client.table
	at := t.at(now)
	t.mu.Lock()
	var lost []*loss
	var leaked []leak
	full := false
	for len(t.leases) > 0 {
		h := t.leases[0].tenure.hold
		if !h.deadline.After(now) {
			if full = len(lost) == lookAtMost; full {
				break
			}
			lost = append(lost, t.loseLocked(h, h.reasonLocked(t, now)))
			continue
		}
		leaked = h.takeLeaksLocked(leaked)
		early := h.earlyLocked()
		if t.leases[0].due > at+early {
			break
		}
		ttl := h.nextLeaseLocked(now)
		if h.renewing || h.fixed || ttl < MinTTL || !safeUntil(now, ttl).After(h.deadline) {
			t.rescheduleLocked(h, h.deadline)
			if h.deadline.After(now.Add(early)) {
				continue
			}
			break
		}
		if r == nil {
			r = d.newRound()
		}
		if len(r.batch) == lookAtMost {
			full = true
			break
		}
		h.renewing = true
		// Where it stays if the renewal is confirmed; see lookSpread.
		t.rescheduleLocked(h, now.Add(h.ttl/3+time.Duration(len(r.batch))))
		r.batch = append(r.batch, renewal{hold: h, ttl: ttl})
	}
	if r != nil {
		if r.keepWantedLocked(t); len(r.batch) == 0 {
			d.endRound(r)
			r = nil
		}
	}
	if d.expected <= at {
		d.expected = never
	}
	d.armed = d.nextLocked()
	if next = d.armed; full {
		next = at
	}
	t.mu.Unlock()
	for _, l := range lost {
		l.end()
	}
	d.lost = append(d.lost, lost...)
	for _, l := range leaked {
		l.tell(now.Sub(l.hold.since))
	}
	return r, next
}

// report reports the losses that look has found.
func (d *watchdog) report() {
	for _, l := range d.lost {
		l.report()
	}
	d.lost = nil
}

// leak is an entry that nobody can unlock any more.
type leak struct {
	hold   *hold
	cancel context.CancelCauseFunc
}

// takeLeaksLocked adds the leaks of h that are not reported yet.
func (h *hold) takeLeaksLocked(all []leak) []leak {
	for _, cancel := range h.leaks {
		all = append(all, leak{h, cancel})
	}
	h.leaks = nil
	return all
}

// tell reports the leak, and ends the context that nobody has: those around it know it as long as it has not ended. If no other
// entry of the hold is worked under, its lease is not renewed, and runs out.
func (l leak) tell(heldFor time.Duration) {
	l.cancel(nil)
	h := l.hold
	c := h.client
	c.events.log(h.logger, slog.LevelError, "relock: lock leaked: a context that Lock returned was dropped without Unlock",
		slog.String("lock", h.keys.name), slog.String("holder", h.holder.String()), slog.Int64("token", h.token))
	if h.hooks.Leaked != nil {
		c.events.emit(func() { h.hooks.Leaked(Leaked{Name: h.keys.name, Holder: h.holder, Token: h.token, Held: heldFor}) })
	}
}

// nextLeaseLocked is the lease to ask for: the TTL, or what is left until the longest allowed hold.
func (h *hold) nextLeaseLocked(now time.Time) time.Duration {
	if h.maxHold == 0 {
		return h.ttl
	}
	left := h.since.Add(h.maxHold).Sub(now).Truncate(time.Millisecond)
	return min(h.ttl, left)
}

// isLongestLocked says whether a lease that ends now could not have been renewed any more, as the longest allowed hold is reached.
func (h *hold) isLongestLocked(now time.Time) bool {
	return h.maxHold > 0 && h.nextLeaseLocked(now) < MinTTL+margin(h.ttl)
}

func (h *hold) reasonLocked(t *table, now time.Time) LossReason {
	switch {
	case h.isLongestLocked(now):
		return LossMaxHold
	case t.wantedLocked(h):
		return LossExpired
	case h.leaked:
		return LossLeaked
	default:
		return LossAbandoned
	}
}

// renew sends one round and notes what became of it.
//
// It waits for half of a renewal interval, as a connection that went silent must leave time to try another; then what it carries may
// be sent once more. An answer that comes later counts as well: what it confirms is so since the command was sent.
func (d *watchdog) renew(r *round) {
	defer d.endRound(r)
	sent, least := time.Now(), r.batch[0].ttl
	for _, one := range r.batch {
		least = min(least, one.ttl)
		r.holds = append(r.holds, one.hold)
	}
	ctx, cancel := context.WithTimeout(context.Background(), least)
	defer cancel()
	givenUp := make(chan struct{})
	limit := time.AfterFunc(least/6+5*time.Millisecond, func() {
		defer close(givenUp)
		d.note(r, sent, func(i int) renewal { return renewal{hold: r.holds[i], err: errGivenUp} })
	})
	d.client.wire.renew(ctx, r.batch)
	if limit.Stop() {
		d.note(r, sent, func(i int) renewal { return r.batch[i] })
		return
	}
	<-givenUp
	d.noteLate(r, sent)
}

// note notes what became of each lease of a round, and tells of it.
func (d *watchdog) note(r *round, sent time.Time, outcome func(i int) renewal) {
	c, t := d.client, d.client.table
	event := Renewed{Locks: len(r.holds), Duration: time.Since(sent)}
	again := 0
	var lost []*loss
	t.mu.Lock()
	now := time.Now()
	for i := range r.holds {
		one := outcome(i)
		given := one.hold.tenure
		given.renewing = false
		if one.err != nil { // also of a hold that has ended meanwhile: Redis has not answered
			event.Failed++
			if event.Err == nil {
				event.Err = one.err
			}
		}
		h := one.currentLocked()
		switch {
		case h == nil:
			if one.lost { // Redis does not have what was unlocked
				event.Locks--
			}
		case one.err != nil:
			again++
			h.failures++
			t.rescheduleLocked(h, now.Add(retryPause(h.failures, h.ttl)))
		case one.lost:
			event.Lost++
			lost = append(lost, t.loseLocked(h, LossTaken))
		default:
			h.failures = 0
			t.confirmLocked(h, sent, one.ttl, now)
		}
	}
	d.nudgeLocked()
	t.mu.Unlock()
	for _, l := range lost {
		l.tell()
	}
	if again > 0 {
		c.events.log(c.settings.logger, slog.LevelWarn, "relock: renewal not confirmed, trying again until the deadline",
			slog.Int("locks", again), slog.Any("error", event.Err))
	}
	if c.settings.hooks.Renewed != nil && event.Locks > 0 {
		c.events.emit(func() { c.settings.hooks.Renewed(event) })
	}
}

// noteLate is note for answers that nobody waited for any more: others have been sent since.
func (d *watchdog) noteLate(r *round, sent time.Time) {
	t := d.client.table
	var lost []*loss
	t.mu.Lock()
	now := time.Now()
	for _, one := range r.batch {
		h := one.currentLocked()
		switch {
		case h == nil || one.err != nil:
		case one.lost:
			lost = append(lost, t.loseLocked(h, LossTaken))
		default:
			h.failures = 0
			t.confirmLocked(h, sent, one.ttl, now)
		}
	}
	d.nudgeLocked()
	t.mu.Unlock()
	for _, l := range lost {
		l.tell()
	}
}

// currentLocked is the hold that has the lease now, as it may have been passed on meanwhile; nil if it is over, or the answer
// does not matter to it: what was passed and is lost finds out next time, and what came too late to be passed has a tenure of its own.
func (r *renewal) currentLocked() *hold {
	given := r.hold.tenure
	h := given.hold
	if h.tenure != given || h.state != held && (h.state != entering || r.lost) {
		return nil
	}
	return h
}

// loss is a hold that has just been lost, for whoever tells of it outside the mutex.
type loss struct {
	hold   *hold
	err    *LostError
	cancel []context.CancelCauseFunc
	held   time.Duration
	closed bool   // Close had told of the end of this hold
	leaks  []leak // that were not reported yet
}

// loseLocked ends a hold that was lost. It is told as a worker, so that Close waits for that.
func (t *table) loseLocked(h *hold, reason LossReason) *loss {
	h.client.workers.add()
	l := &loss{
		hold: h,
		err:  &LostError{Name: h.keys.name, Holder: h.holder, Token: h.token, Reason: reason},
		held: time.Since(h.since), closed: h.client.isClosed(), leaks: h.takeLeaksLocked(nil),
	}
	for f := h.frames; f != nil; f = f.next {
		l.cancel = append(l.cancel, f.cancel)
	}
	t.finishLocked(h, l.err)
	return l
}

// tell ends the section, before anything else.
func (l *loss) tell() {
	l.end()
	l.report()
}

// end ends the contexts of the section, newest entry first.
func (l *loss) end() {
	for _, cancel := range l.cancel {
		cancel(l.err)
	}
}

// report tells everybody else.
func (l *loss) report() {
	h := l.hold
	defer h.client.workers.leave()
	c := h.client
	if l.err.Reason != LossTaken || h.unsure || h.queuedFor {
		// The last renewal may have reached Redis without our knowing: do not let it keep the lock from others. And who was
		// granted the lock may still be first in the queue.
		c.orphans.add(h, h.unsure)
	}
	for _, leak := range l.leaks {
		leak.tell(l.held)
	}
	c.events.log(h.logger, slog.LevelError, "relock: lock lost", slog.String("lock", h.keys.name),
		slog.String("holder", h.holder.String()), slog.Int64("token", h.token), slog.String("reason", string(l.err.Reason)))
	if h.hooks.Lost != nil && !l.closed {
		event := Lost{
			Name: h.keys.name, Holder: h.holder, Token: l.err.Token, TTL: h.ttl, Reason: l.err.Reason, Held: l.held, MaxDepth: h.deepest,
		}
		c.events.emit(func() { h.hooks.Lost(event) })
	}
}
