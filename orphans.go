package relock

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// orphans are holds that nobody here wants any more while Redis may still know them: a waiter that gave up has a place in
// the queue or a grant on its way; a command that was given up may yet run and take the lock for nobody. They are
// abandoned in the background until Redis confirms it.
//
// One goroutine works on them, many in a round trip, while there are any.
type orphans struct {
	client *Client
	wake   chan struct{}

	mu      sync.Mutex
	pending []*orphan
	running bool
}

type orphan struct {
	hold      *hold
	confirmed bool // that nothing is there
	tries     int
	landings  int // of the hold's, when this was last tried
	next      time.Time
	since     time.Time
	lease     time.Duration // from then on Redis keeps it no longer than this
}

// unsureLocked: a command that can take the lock, or join the queue, may run later than the abandon: it was given up and
// is still on its way, or its connection broke. Then one confirmation is not the end of it. The hold is abandoned again
// when the command has landed, and at growing intervals for one lease, or for as long as it is on its way.
func (p *orphan) unsureLocked() bool { return p.hold.flying > 0 || p.hold.unanswered }

// landedLocked: such a command has landed since this was last tried, so what was confirmed then counts for nothing.
func (p *orphan) landedLocked() bool { return p.landings != p.hold.landings }

func (p *orphan) confirmedLocked() bool { return p.confirmed && !p.landedLocked() }

// How often an orphan is tried, and how many in one round trip.
const (
	orphanFirst = 50 * time.Millisecond
	orphanLong  = 2 * time.Second
	orphanCalm  = 10 * time.Second // where Redis refuses: that may last, for many
	orphanLimit = 2 * time.Second  // for one round trip
	orphanBatch = 256
	// queueLimit is how much longer than a lease to go on where Redis does not answer, or refuses. The place in the
	// queue may outlast that (see keep in ask.lua): a grant to it then goes on to the next, or costs one lease.
	queueLimit = time.Minute
	// closeLimit is what Close spends on orphans that are not confirmed, counted anew whenever some are.
	closeLimit = time.Second
)

func newOrphans(c *Client) *orphans { return &orphans{client: c, wake: make(chan struct{}, 1)} }

// add takes in a hold. unanswered: some command of it has ended without an answer, and may run late.
func (o *orphans) add(h *hold, unanswered bool) {
	now := time.Now()
	p := &orphan{hold: h, next: now, since: now, lease: h.longest(now)}
	o.mu.Lock()
	defer o.mu.Unlock()
	h.unanswered = h.unanswered || unanswered
	o.pending = append(o.pending, p)
	if !o.running {
		o.running = true
		o.client.workers.start(o.run) // also for a section that outlives the client
		return
	}
	o.wakeLocked()
}

func (o *orphans) wakeLocked() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// gaveUp notes that an acquire of h is on its way, and nobody waits for its answer.
func (o *orphans) gaveUp(h *hold) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.flying++
}

// landed notes that such an acquire has come to an end, with an answer or without. It touches nothing but its hold: when Redis
// answers again after a silence, as many land at once as there are orphans.
func (o *orphans) landed(h *hold, answered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.flying--
	h.landings++
	h.unanswered = h.unanswered || !answered
	o.wakeLocked()
}

// run ends when nothing is pending. After Close it makes one more round for what is not confirmed.
func (o *orphans) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if o.client.isClosed() {
			o.last()
			return
		}
		due, next, more := o.due(time.Now())
		if !more {
			return
		}
		if len(due) > 0 {
			o.try(due)
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-o.wake:
		case <-o.client.closed:
		}
	}
}

// due takes out what is to be tried now. It says when something else will be, and whether anything is left at all; if
// not, the goroutine that asked has to end.
func (o *orphans) due(now time.Time) (due []*orphan, next time.Time, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) == 0 {
		o.running = false
		return nil, next, false
	}
	due = o.takeLocked(func(p *orphan) bool { return p.landedLocked() || !p.next.After(now) })
	for _, p := range o.pending {
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
	}
	return due, next, true
}

func (o *orphans) takeLocked(want func(*orphan) bool) (taken []*orphan) {
	rest := o.pending[:0]
	for _, p := range o.pending {
		if want(p) {
			p.landings = p.hold.landings
			taken = append(taken, p)
		} else {
			rest = append(rest, p)
		}
	}
	clear(o.pending[len(rest):])
	o.pending = rest
	return taken
}

// try tries what is due, a batch after the other. Close leaves the rest to last.
func (o *orphans) try(due []*orphan) {
	for batch := range slices.Chunk(due, orphanBatch) {
		if o.client.isClosed() {
			o.mu.Lock()
			o.pending = append(o.pending, batch...)
			o.mu.Unlock()
			continue
		}
		o.abandon(batch, time.Now().Add(orphanLimit))
	}
}

// abandon tries a batch until then, and keeps what is not done with. It says whether Redis has answered at all.
func (o *orphans) abandon(batch []*orphan, until time.Time) (answers bool) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	errs := o.client.wire.abandon(ctx, batch)
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range batch {
		err, age := errs[i], now.Sub(p.since)
		p.tries++
		p.confirmed = err == nil
		answers = answers || p.confirmed
		longest := orphanLong
		if err != nil && judge(err) == refused {
			longest = orphanCalm
		}
		p.next = now.Add(min(orphanFirst<<min(p.tries-1, 10), longest))
		switch {
		case p.confirmedLocked() && (!p.unsureLocked() || p.hold.flying == 0 && age > p.lease):
		case err != nil && (o.isLast(err) || age > p.lease+queueLimit):
			h := p.hold
			o.client.events.log(h.logger, slog.LevelWarn, "relock: could not confirm that nothing is left in Redis",
				slog.String("lock", h.keys.name), slog.String("holder", h.holder.String()), slog.Any("error", err))
		default:
			o.pending = append(o.pending, p)
		}
	}
	return answers
}

// isLast says whether an error is the last word on an orphan. What Redis refuses (MISCONF, NOPERM) may be mended while the lease
// lasts; Close does not wait for that.
func (o *orphans) isLast(err error) bool {
	return isRedisClosed(err) || o.client.isClosed() && judge(err) == refused
}

// last is what Close waits for: that each orphan is confirmed once after its commands have landed, as far as that can be
// had within closeLimit.
func (o *orphans) last() {
	until := time.Now().Add(closeLimit)
	isOpen := func(p *orphan) bool { return !p.confirmedLocked() }
	for {
		o.mu.Lock()
		open := o.takeLocked(isOpen)
		o.mu.Unlock()
		for batch := range slices.Chunk(open, orphanBatch) {
			if time.Now().Before(until) && o.abandon(batch, until) {
				until = time.Now().Add(closeLimit)
			}
		}
		o.mu.Lock()
		more := slices.ContainsFunc(o.pending, func(p *orphan) bool { return isOpen(p) || p.hold.flying > 0 })
		if !more || !time.Now().Before(until) { // what is still open then ends with its lease
			o.pending, o.running = nil, false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		pause := time.NewTimer(min(orphanFirst, time.Until(until)))
		select {
		case <-o.wake: // one has landed
		case <-pause.C:
		}
		pause.Stop()
	}
}
