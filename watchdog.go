package relock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// watchdog is one goroutine for all leases of a client. The watchdog looks at a hold when its
// renewal is due (a third of the TTL after the last renewal), renews due leases in batches, and
// retries unconfirmed renewals soon. The watchdog ends a hold at its deadline, or as soon as the
// store does not have the hold: at the deadline the section's contexts end with the cause before
// anybody else can have the lock.
//
// Renewals run in goroutines of their own, so a silent store cannot keep the watchdog from a
// deadline.
type watchdog struct {
	client *Client
	wake   chan struct{}

	// Guarded by the table's mutex.
	running bool
	armed   time.Duration // when the watchdog wakes by itself, as in the heap
	looked  time.Time     // the last tick
	watchAt time.Duration // when to look for sections old enough to be watched; Never: no need to
	stop    func()        // ends the watch of the store; nil: the store is not watched
}

// renewal is the watchdog's part of a hold.
type renewal struct {
	item     timers.Item[*hold] // in the table's heap while the hold is held
	inFlight bool
	// soon asks for a renewal at once: a command had no answer, so the store may count otherwise.
	soon     bool
	failures int32     // in a row
	longest  time.Time // until when an Extend without an answer may have made the lease last
}

const (
	// lookAtMost is how many leases are renewed, or ended, before others get the table's mutex.
	lookAtMost = 1000
	// earlyDivisor makes a batch take along leases due within a tenth of their renewal interval.
	earlyDivisor = 10
	// watchAfter is the age of a section at which the client begins to watch the store for its end.
	// Short sections cost no subscription.
	watchAfter = 200 * time.Millisecond
	// lookEvery is the time between two looks at the wall clock while there is any hold: after a
	// machine was suspended, timers fire late by that time.
	lookEvery = time.Second
	// leap is by how much more the wall clock goes ahead than the monotonic clock when it was set,
	// or when the machine was suspended. The two readings of one time differ by less.
	leap = time.Millisecond
)

// retryPause is the time from an unconfirmed renewal to the next: short at first, and short enough
// for several tries of a renewal within a lease.
func retryPause(failures int32, ttl time.Duration) time.Duration {
	return min(5*time.Millisecond<<min(failures, 10), ttl/12+time.Millisecond, time.Second)
}

// nudgeLocked starts the watchdog, or wakes the watchdog if anything is due before its next tick.
func (d *watchdog) nudgeLocked() {
	next := d.nextLocked()
	if next == timers.Never {
		return
	}
	if !d.running {
		d.running = d.client.group.GoOpen(d.run)
		return
	}
	if next < d.armed {
		d.armed = next
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

func (d *watchdog) nextLocked() time.Duration {
	_, due := d.client.table.leases.First()
	return min(due, d.watchAt)
}

// run ends when the client is closed. Leases held at the time are not renewed any more.
func (d *watchdog) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := d.tick(time.Now())
		timer.Reset(min(next-time.Since(d.client.table.start), time.Hour))
		select {
		case <-timer.C:
		case <-d.wake:
		case <-d.client.life.Done():
			t := &d.client.table
			t.mu.Lock()
			stop := d.stop
			d.stop = nil
			t.mu.Unlock()
			if stop != nil {
				stop()
			}
			return
		}
	}
}

// tick does all due work, and returns the time of the next tick.
func (d *watchdog) tick(now time.Time) (next time.Duration) {
	t := &d.client.table
	t.mu.Lock()
	leapt := d.leaptLocked(now)
	t.mu.Unlock()
	if leapt {
		t.each(t.holds, func(h *hold) { t.hastenLocked(h, now) })
	}
	t.mu.Lock()
	rounds, lost := d.dueLocked(now)
	watch := d.watchDueLocked(now)
	d.armed = d.nextLocked()
	if t.leases.Len() > 0 {
		d.armed = min(d.armed, t.at(now.Add(lookEvery)))
	}
	next = d.armed
	t.mu.Unlock()
	for _, l := range lost { // all lost sections end before anything else is done
		l.end()
	}
	for _, l := range lost {
		l.report()
	}
	d.client.reportLeaks()
	for _, r := range rounds {
		d.client.group.Go(func() { d.renew(r) })
	}
	if watch != nil {
		_ = attempts.Apart(func() error { watch(); return nil })
	}
	return next
}

// leaptLocked says whether the wall clock has left the monotonic clock behind since the last tick.
func (d *watchdog) leaptLocked(now time.Time) bool {
	last, wall := d.looked, d.client.table.wall
	if d.looked = now; d.client.table.leases.Len() == 0 {
		return false
	}
	return !last.IsZero() && wall(now).Sub(wall(last))-now.Sub(last) >= leap
}

// dueLocked returns the leases to renew, and the holds at their deadline.
func (d *watchdog) dueLocked(now time.Time) (rounds []round, lost []*loss) {
	t := &d.client.table
	for n := 0; n < lookAtMost && len(lost) < lookAtMost; {
		h := t.firstDueLocked(now, n > 0)
		if h == nil {
			break
		}
		t.foundLocked(h)
		if h.expiredLocked(now) {
			lost = append(lost, t.loseLocked(h, event.LossExpired))
			continue
		}
		if h.kept && t.at(now) >= h.turn.until {
			t.yieldLocked(h)
			n++
			continue
		}
		if ttl, isDue := t.renewalLocked(h, now); isDue {
			h.renewal.inFlight, h.renewal.soon = true, false
			r := roundOf(&rounds, h.lease.Acks)
			r.holds, r.ttls = append(r.holds, h), append(r.ttls, ttl)
			n++
		}
		t.leases.Set(&h.renewal.item, t.endLocked(h, now))
	}
	for i := range rounds {
		rounds[i].fillLocked()
	}
	return rounds, lost
}

// roundOf returns the round of the leases that wait for the same confirmations: these take time.
func roundOf(rounds *[]round, acks store.Acks) *round {
	i := slices.IndexFunc(*rounds, func(r round) bool { return r.acks == acks })
	if i < 0 {
		i = len(*rounds)
		*rounds = append(*rounds, round{acks: acks})
	}
	return &(*rounds)[i]
}

// firstDueLocked returns the first hold in the heap whose time has come, or nearly, for a round
// that is sent anyway; nil: none.
func (t *table) firstDueLocked(now time.Time, isSent bool) *hold {
	item, due := t.leases.First()
	if item == nil {
		return nil
	}
	h, at := item.Value, t.at(now)
	early := h.intervalLocked() / earlyDivisor
	if !isSent || h.fixed || h.renewal.failures > 0 || h.renewal.soon || t.isAtEndLocked(h, due, now) {
		early = 0
	}
	if due > at+early {
		return nil
	}
	return h
}

// isAtEndLocked says whether a time in the heap is the deadline of h, or nearly, and no renewal.
func (t *table) isAtEndLocked(h *hold, due time.Duration, now time.Time) bool {
	return due >= t.endLocked(h, now)-h.intervalLocked()/earlyDivisor
}

// renewalLocked says whether to renew h, whose time has come, and the lease to ask for. Without a
// renewal the lease runs out. A lease of 0 leaves the lease as it is, and sends the count.
func (t *table) renewalLocked(h *hold, now time.Time) (ttl time.Duration, isDue bool) {
	if h.renewal.inFlight { // whose result schedules the next one
		return 0, false
	}
	ttl = h.nextTTLLocked(now)
	isLonger := h.isLoan() || ttl-store.Margin(ttl) > h.leftLocked(now)
	if !isLonger || !t.isWorkedInLocked(h) {
		ttl = 0
	}
	return ttl, ttl > 0 || h.renewal.soon
}

// intervalLocked returns the time from one renewal to the next. A loan may begin with a small rest
// of its lender's lease, which the lender is about to renew.
func (h *hold) intervalLocked() time.Duration {
	if h.isLoan() {
		return min(h.ttl, h.lease.TTL) / 3
	}
	return h.ttl / 3
}

type round struct {
	acks     store.Acks // of each lease
	holds    []*hold
	ttls     []time.Duration // the leases to ask for
	renewals []store.Renewal
	limit    time.Duration // the shortest renewal interval, and the time for the confirmations
}

// fillLocked makes the renewals of all holds of the round, in one slice.
func (r *round) fillLocked() {
	r.renewals, r.limit = make([]store.Renewal, len(r.holds)), r.holds[0].intervalLocked()
	for i, h := range r.holds {
		r.renewals[i] = store.Renewal{Lease: h.lease, TTL: r.ttls[i], Count: h.storeCount()}
		r.limit = min(r.limit, h.intervalLocked())
	}
	r.limit += r.acks.Timeout
}

func (h *hold) storeCount() int {
	if h.localReentry {
		return 1
	}
	return h.count
}

// renew renews one round. renew waits for a renewal interval, as a slow link must have time to
// answer, and a silent connection must leave time to try another connection. Of a lease with acks a
// renewal without the confirmations is no renewal: the deadline stays.
func (d *watchdog) renew(r round) {
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	sent := time.Now()
	errs := apart(len(r.renewals), func() []error { return d.renewOrFollow(ctx, r.renewals) })
	d.note(r, errs, sent)
}

// renewOrFollow renews leases. A loan is not renewed: the rest of its lender's lease becomes the
// TTL of its renewal.
func (d *watchdog) renewOrFollow(ctx context.Context, renewals []store.Renewal) []error {
	isLoan := func(r store.Renewal) bool { return r.Lease.Lender != "" }
	if !slices.ContainsFunc(renewals, isLoan) {
		return d.client.store.Renew(ctx, renewals)
	}
	errs := slices.Repeat([]error{attempts.ErrEnded}, len(renewals))
	var own []store.Renewal
	var at []int
	var loans sync.WaitGroup
	for i, r := range renewals {
		if !isLoan(r) {
			own, at = append(own, r), append(at, i)
			continue
		}
		loans.Go(func() {
			attempts.Outlast(&errs[i], func() (err error) {
				renewals[i].TTL, err = d.client.store.(store.Lending).Follow(ctx, r.Lease)
				return err
			})
		})
	}
	if len(own) > 0 {
		for i, err := range d.client.store.Renew(ctx, own) {
			errs[at[i]] = err
		}
	}
	loans.Wait()
	return errs
}

// note notes the result of each renewal of a round, and reports the round.
func (d *watchdog) note(r round, errs []error, sent time.Time) {
	c, t := d.client, &d.client.table
	e := event.Renewed{Locks: len(r.holds), Duration: time.Since(sent)}
	again := 0
	var lost []*loss
	var recalls []context.CancelCauseFunc
	t.mu.Lock()
	now := time.Now()
	for i, h := range r.holds {
		h.renewal.inFlight = false
		switch err := errs[i]; {
		case err == nil && h.state == held:
			t.renewedLocked(h, r.renewals[i], sent, now)
		case err == nil:
		case errors.Is(err, store.ErrRecalled):
			h.recalled = true
			recalls = append(recalls, h.cancelsLocked()...)
		case !errors.Is(err, store.ErrGone):
			e.Failed++
			e.Err = cmp.Or(e.Err, err)
			if h.state == held {
				again++
				t.retryLocked(h, sent, now)
			}
		case h.state == held:
			if !h.kept { // otherwise no section is lost
				e.Lost++
			}
			lost = append(lost, t.loseLocked(h, event.LossTaken))
		default: // the hold was unlocked during the renewal, and another one may have been passed the lease
			e.Locks--
			c.doubtLocked(r.renewals[i].Lease.ID)
		}
	}
	d.nudgeLocked()
	t.mu.Unlock()
	for _, recall := range recalls {
		recall(ErrRecalled)
	}
	for _, l := range lost {
		l.end()
		l.report()
	}
	if again > 0 {
		c.log(c.settings.logger, slog.LevelWarn, "relock: renewal not confirmed, trying again until the deadline",
			slog.Int("locks", again), slog.Any("error", e.Err))
	}
	if c.settings.hooks.Renewed != nil && e.Locks > 0 {
		c.events.Emit(func() { c.settings.hooks.Renewed(e) })
	}
}

func (t *table) renewedLocked(h *hold, r store.Renewal, sent, now time.Time) {
	h.renewal.failures = 0
	lease := r.Lease
	lease.Sent, lease.TTL = sent, r.TTL
	t.confirmLocked(h, lease, now)
	t.scheduleLocked(h, now)
	if h.isLoan() { // whose deadline may be the same as before
		next := now.Add(max(min(h.ttl, h.leftLocked(now))/3, retryPause(0, h.ttl)))
		t.leases.Set(&h.renewal.item, min(t.at(next), t.endLocked(h, now)))
	}
	if h.renewal.soon { // meanwhile
		t.renewSoonLocked(h)
	}
}

// retryLocked makes the watchdog repeat an unconfirmed renewal soon, also if nobody wants the lease
// any more: the store may have a wrong count. The pause counts from the time when the renewal was
// sent: a renewal that got no answer has waited longer than a pause.
func (t *table) retryLocked(h *hold, sent, now time.Time) {
	h.renewal.failures++
	h.renewal.soon = true
	next := sent.Add(retryPause(h.renewal.failures, h.ttl))
	t.leases.Set(&h.renewal.item, min(t.at(next), t.endLocked(h, now)))
}

// watchLocked makes the watchdog look after watchAfter for a section worth a watch of the store.
func (d *watchdog) watchLocked() {
	if _, is := d.client.store.(store.Watcher); !is || d.stop != nil || d.watchAt != timers.Never {
		return
	}
	d.lookForOldLocked(time.Now(), watchAfter)
	d.nudgeLocked()
}

// watchDueLocked returns the function that begins or ends the watch of the store, if due. The watch
// begins with a section older than watchAfter, and ends when a tick finds no section.
func (d *watchdog) watchDueLocked(now time.Time) func() {
	t := &d.client.table
	if t.at(now) < d.watchAt {
		return nil
	}
	d.watchAt = timers.Never
	old := t.survivors > 0
	if len(t.holds) > 0 {
		d.lookForOldLocked(now, watchAfter)
	}
	switch {
	case old && d.stop == nil:
		d.lookForOldLocked(now, watchLinger)
		d.stop = func() {} // until the watch has begun
		return func() {
			stop := d.client.store.(store.Watcher).Watch(d.client.id, d.doubt)
			t.mu.Lock()
			d.stop = stop
			t.mu.Unlock()
		}
	case old || d.stop != nil && len(t.holds) > 0:
		d.lookForOldLocked(now, watchLinger)
	case d.stop != nil:
		stop := d.stop
		d.stop = nil
		return stop
	}
	return nil
}

// lookForOldLocked makes the watchdog look after a time for sections that have begun by now.
func (d *watchdog) lookForOldLocked(now time.Time, after time.Duration) {
	t := &d.client.table
	t.nextGenerationLocked()
	d.watchAt = t.at(now.Add(after))
}

// watchLinger is the interval at which the watchdog looks whether the watch is still needed.
const watchLinger = 10 * time.Second

// doubt asks the store at once about a hold that may be gone, or about all holds if id is empty.
func (d *watchdog) doubt(id store.ID) {
	t := &d.client.table
	if id == "" {
		t.each(t.holds, t.renewSoonLocked)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d.client.doubtLocked(id)
}

func (c *Client) doubtLocked(id store.ID) {
	if h := c.findLocked(id); h != nil {
		c.table.renewSoonLocked(h)
	}
}

// confirmLocked notes a lease that a command has set. A deadline only moves later, and a passed
// deadline stays passed, as another hold may have had the lock since. A hold at its longest allowed
// length ends in time, also if a command reached the store late and set a longer lease.
func (t *table) confirmLocked(h *hold, lease store.Lease, now time.Time) {
	if h.maxHold > 0 && !h.kept {
		lease.TTL = min(lease.TTL, h.since.Add(h.maxHold).Sub(lease.Sent).Truncate(time.Millisecond))
	}
	if h.state != held || h.expiredLocked(now) || !lease.Until().After(h.lease.Until()) {
		return
	}
	h.lease.Sent, h.lease.TTL = lease.Sent, lease.TTL
	t.scheduleLocked(h, now)
}

// scheduleLocked puts h into the heap at the time of its next renewal or of its deadline.
func (t *table) scheduleLocked(h *hold, now time.Time) {
	t.leases.Set(&h.renewal.item, t.dueLocked(h, now))
	h.client.watchdog.nudgeLocked()
}

// hastenLocked has the watchdog look at h sooner, as the wall clock has gone ahead.
func (t *table) hastenLocked(h *hold, now time.Time) {
	if due := t.dueLocked(h, now); h.state == held && due < t.leases.Due(&h.renewal.item) {
		t.leases.Set(&h.renewal.item, due)
	}
}

// dueLocked returns the time of the next renewal of h or of its deadline, as the heap counts.
func (t *table) dueLocked(h *hold, now time.Time) time.Duration {
	end := t.endLocked(h, now)
	if h.fixed {
		return end
	}
	due := min(end, end-h.lease.Until().Sub(h.lease.Sent)+h.intervalLocked())
	if h.kept {
		due = min(due, h.turn.until)
	}
	return due
}

// renewSoonLocked makes the watchdog ask the store about h at once, or about the hold that h passes
// its lease on to.
func (t *table) renewSoonLocked(h *hold) {
	h.renewal.soon = true
	if h.state != held {
		return
	}
	t.leases.Set(&h.renewal.item, t.at(time.Now()))
	h.client.watchdog.nudgeLocked()
}
