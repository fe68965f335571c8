package relock

import (
	"context"
	"log/slog"
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
	hold *hold
	// unsure: a command that can take the lock, or join the queue, may run later than the abandon. Then one
	// confirmation is not the end of it: the hold is abandoned again, at growing intervals, for one lease.
	unsure    bool
	confirmed bool // at least once
	tries     int
	next      time.Time
	since     time.Time
}

// How often an orphan is tried, and how many in one round trip.
const (
	orphanFirst = 50 * time.Millisecond
	orphanLong  = 2 * time.Second
	orphanLimit = 2 * time.Second // for one round trip
	orphanBatch = 256
	// queueLimit is how much longer than a lease to go on where Redis does not answer. After that the queue key has
	// expired, unless others keep it; and then a grant to a client that is gone goes to the next.
	queueLimit = time.Minute
	// closeLimit is what Close spends on orphans that are not confirmed.
	closeLimit = time.Second
)

func newOrphans(c *Client) *orphans { return &orphans{client: c, wake: make(chan struct{}, 1)} }

func (o *orphans) add(h *hold, unsure bool) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = append(o.pending, &orphan{hold: h, unsure: unsure, next: now, since: now})
	if !o.running {
		o.running = true
		o.client.workers.start(o.run) // also for a section that outlives the client
		return
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
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
		batch, next, more := o.due(time.Now())
		if !more {
			return
		}
		if len(batch) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), orphanLimit)
			o.abandon(ctx, batch)
			cancel()
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
func (o *orphans) due(now time.Time) (batch []*orphan, next time.Time, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) == 0 {
		o.running = false
		return nil, next, false
	}
	batch = o.takeLocked(func(p *orphan) bool { return !p.next.After(now) })
	for _, p := range o.pending {
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
	}
	return batch, next, true
}

func (o *orphans) takeLocked(want func(*orphan) bool) (batch []*orphan) {
	rest := o.pending[:0]
	for _, p := range o.pending {
		if len(batch) < orphanBatch && want(p) {
			batch = append(batch, p)
		} else {
			rest = append(rest, p)
		}
	}
	clear(o.pending[len(rest):])
	o.pending = rest
	return batch
}

// abandon tries a batch, and keeps what is not done with.
func (o *orphans) abandon(ctx context.Context, batch []*orphan) {
	errs := o.client.wire.abandon(ctx, batch)
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range batch {
		err, age := errs[i], now.Sub(p.since)
		p.tries++
		p.confirmed = p.confirmed || err == nil
		p.next = now.Add(min(orphanFirst<<min(p.tries-1, 10), orphanLong))
		switch {
		case p.confirmed && (!p.unsure || age > p.hold.ttl):
		case err != nil && (judge(err) == refused || age > p.hold.ttl+queueLimit):
			h := p.hold
			o.client.events.log(h.logger, slog.LevelWarn, "relock: could not confirm that nothing is left in Redis",
				slog.String("lock", h.keys.name), slog.String("holder", h.holder.String()), slog.Any("error", err))
		default:
			o.pending = append(o.pending, p)
		}
	}
}

// last is the round that Close waits for: whatever has not been confirmed once.
func (o *orphans) last() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for {
		o.mu.Lock()
		batch := o.takeLocked(func(p *orphan) bool { return !p.confirmed })
		if len(batch) == 0 || ctx.Err() != nil {
			o.pending, o.running = nil, false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		o.client.wire.abandon(ctx, batch) // once: what fails now ends with its lease
	}
}
