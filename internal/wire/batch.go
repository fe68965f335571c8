package wire

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/internal/attempts"
)

const (
	// maxSends is how many sends are in flight before calls queue. With one, the server idles while
	// the client reads answers; with many, batches are small. Of 2, 3, 4 and 6, 3 was the fastest.
	maxSends = 3
	// maxUnits is how many units share a script call: enough to make the call itself cheap, few
	// enough not to hold up the server (about 0.1 ms).
	maxUnits = 64
	// maxOpen bounds the search for a script call with room for another unit.
	maxOpen = 8
	// maxBatch is how many calls of each kind a send takes out of the queue. A send of them all
	// would make every answer late, and then wake all callers at once, with the renewals behind
	// them.
	maxBatch = 256
	// maxQueued is how long calls queue while no send ends, so that a hanging connection holds up
	// nobody else. A round trip to a server nearby is much shorter, a lease much longer.
	maxQueued = 2 * time.Millisecond
	// maxFlooded is maxQueued of a queue that is longer than a batch: the server has enough to do.
	maxFlooded = 100 * time.Millisecond
)

// flight is one attempt of a call, in flight or in the queue.
type flight struct {
	ctx   context.Context
	spec  *spec
	unit  Unit
	slot  string        // in a cluster
	since time.Time     // the beginning of the attempt, without its time in the queue
	done  chan struct{} // closed by finish; nil if the caller itself sends the flight

	outcome              // of finish
	finished atomic.Bool // by finish
	together bool        // done is that of several flights, and closed after them
	yields   bool        // as [Call.Yields]
	queued   bool        // in the queue; guarded by the batcher
}

// spec is what the units of a script call have in common, and how long their attempts may take.
type spec struct {
	script   *Script
	common   []any
	acks     attempts.Acks
	patience time.Duration // 0: as long as go-redis waits
}

func (w *Wire) specOf(c *Call) spec {
	s := spec{script: c.Script, common: c.Common, acks: c.Acks}
	if c.Patience < w.readTimeout {
		s.patience = c.Patience
	}
	return s
}

type outcome struct {
	reply  any
	acked  int
	err    error
	unsure bool // an earlier send of the same attempt may have run
	late   bool // a quick attempt was over without an answer, and is to be repeated
}

// finish hands the outcome to the caller, unless the flight has one. If the caller has given up,
// nobody reads the outcome.
func (f *flight) finish(o outcome) {
	if f.finished.Swap(true) {
		return
	}
	f.outcome = o
	if f.done != nil && !f.together {
		close(f.done)
	}
}

// batcher lets calls that meet share round trips and script calls. While a slot is free, a call is
// sent by itself. Otherwise calls queue, and a batch of the queue is sent as soon as a send ends.
// With 64 goroutines a call then takes a quarter of the time, as most of the cost is system calls
// of the client and the start of a script in the server.
//
// At limit, calls queue here and not for a connection of the pool. A renewal, which does not queue
// here, then finds the connection that the limit leaves, or is next at the only one. A call in the
// queue costs neither a goroutine nor a timer of its own, and its patience has not begun: a flood
// of callers does not make answers late, and lateness makes no repeats. A call that is given up
// leaves the queue, so no connection carries calls that nobody waits for.
type batcher struct {
	sendAsync func(ctx context.Context, flights []*flight, own slot)
	limit     int // of sends

	mu      sync.Mutex
	sends   int   // in flight; more than maxSends after a flush
	urgent  queue // both are empty while a slot is free
	yielded queue // of the calls that yield
	late    *time.Timer
	pause   time.Duration // of late
}

// enter takes a slot for f, or else queues f, and reports whether f has a slot.
func (b *batcher) enter(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sends < min(maxSends, b.limit) {
		b.sends++
		return true
	}
	f.done = make(chan struct{})
	b.queueOf(f).add(f)
	if b.lenLocked() == 1 {
		b.armLocked(maxQueued)
	}
	return false
}

func (b *batcher) queueOf(f *flight) *queue {
	if f.yields {
		return &b.yielded
	}
	return &b.urgent
}

func (b *batcher) lenLocked() int { return b.urgent.len() + b.yielded.len() }

func (b *batcher) isFloodLocked() bool { return b.lenLocked() > maxBatch }

// yield lets the callers that are awake now run first, if calls are in the queue: the next calls of
// these callers join the queue before it is sent.
func (b *batcher) yield() {
	b.mu.Lock()
	waits := b.lenLocked() > 0
	b.mu.Unlock()
	if waits {
		runtime.Gosched()
	}
}

// leave ends a send, and sends a batch in its slot, or if the limit may have kept a flush from it.
func (b *batcher) leave() {
	b.mu.Lock()
	b.sends--
	var batch []*flight
	if b.sends < maxSends || b.sends == b.limit-1 && !b.isFloodLocked() {
		batch = b.takeLocked()
	}
	b.mu.Unlock()
	b.start(batch)
}

// flush sends a batch without a slot, as no send has ended in time. At the limit the next end of a
// send does, or a later flush if there is a flood by then.
func (b *batcher) flush() {
	b.mu.Lock()
	var batch []*flight
	if isFlood := b.isFloodLocked(); b.sends < b.limit && (!isFlood || b.pause == maxFlooded) {
		batch = b.takeLocked()
	} else {
		b.armLocked(maxFlooded)
	}
	b.mu.Unlock()
	b.start(batch)
}

// armLocked makes the next flush due, if anything is in the queue.
func (b *batcher) armLocked(pause time.Duration) {
	b.pause = pause
	switch {
	case b.late == nil:
		b.late = time.AfterFunc(pause, b.flush)
	case b.lenLocked() == 0:
		b.late.Stop()
	default:
		b.late.Reset(pause)
	}
}

func (b *batcher) takeLocked() []*flight {
	n := min(b.urgent.len(), maxBatch) + min(b.yielded.len(), maxBatch)
	if n == 0 {
		return nil
	}
	batch := b.yielded.take(b.urgent.take(make([]*flight, 0, n)))
	b.sends++
	b.armLocked(maxQueued)
	return batch
}

func (b *batcher) start(flights []*flight) {
	switch len(flights) {
	case 0:
	case 1:
		b.sendAsync(flights[0].ctx, flights, b)
	default:
		b.sendAsync(context.Background(), flights, b)
	}
}

// forget takes f out of the queue, and reports whether f was there. Then f was never sent.
func (b *batcher) forget(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !f.queued {
		return false
	}
	b.queueOf(f).remove(f)
	if b.lenLocked() == 0 {
		b.late.Stop()
	}
	return true
}

// queue is flights that wait for a send, first come, first served.
type queue struct {
	flights []*flight
	gone    int // that were removed, and are in flights still
}

func (q *queue) len() int { return len(q.flights) - q.gone }

func (q *queue) add(f *flight) {
	f.queued = true
	q.flights = append(q.flights, f)
}

// remove takes f out. Thousands may leave at once, so flights is not searched for each.
func (q *queue) remove(f *flight) {
	f.queued = false
	if q.gone++; 2*q.gone > len(q.flights) {
		q.flights = slices.DeleteFunc(q.flights, func(f *flight) bool { return !f.queued })
		q.gone = 0
	}
}

// take appends a batch of flights, which begin now, to others.
func (q *queue) take(to []*flight) []*flight {
	now, left := time.Now(), maxBatch
	at := 0
	for ; at < len(q.flights) && left > 0; at++ {
		f := q.flights[at]
		q.flights[at] = nil
		if !f.queued {
			q.gone--
			continue
		}
		f.queued, f.since = false, now
		to = append(to, f)
		left--
	}
	q.flights = q.flights[at:]
	return to
}

// merge puts flights into as few script calls as possible.
func merge(flights []*flight) []*scriptCall {
	var calls []*scriptCall
	for i, f := range flights {
		open := calls[max(0, len(calls)-maxOpen):]
		at := slices.IndexFunc(open, func(c *scriptCall) bool { return len(c.flights) < maxUnits && c.takes(f) })
		if at < 0 {
			call := callOf(append(make([]*flight, 0, min(maxUnits, len(flights)-i)), f))
			calls = append(calls, &call)
		} else {
			open[at].flights = append(open[at].flights, f)
		}
	}
	return calls
}

func callOf(flights []*flight) scriptCall {
	return scriptCall{spec: flights[0].spec, flights: flights}
}

// finish hands each flight its outcome. With unsure an earlier send of the attempt may have run.
func (c *scriptCall) finish(unsure bool) {
	for i, f := range c.flights {
		o := c.outcome(i)
		o.unsure = unsure
		f.finish(o)
	}
}

func (c *scriptCall) takes(f *flight) bool {
	return c.script == f.spec.script && !c.script.Alone && c.flights[0].slot == f.slot && slices.Equal(c.common, f.spec.common)
}

// isRefusedTogether reports whether single units may fare better than a call of several. TRYAGAIN
// comes from a server with some keys of a migrating slot.
func isRefusedTogether(err error) bool {
	c := Code(err)
	return c == "TRYAGAIN" || c != "" && Refused(err)
}
