package wire

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
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
	// maxQueued is how long calls queue while no send ends, so that a hanging connection holds up
	// nobody else. A round trip to a server nearby is much shorter, a lease much longer.
	maxQueued = 2 * time.Millisecond
)

// flight is one attempt of a call, in flight or in the queue.
type flight struct {
	ctx   context.Context
	spec  *spec
	unit  Unit
	slot  string        // in a cluster
	since time.Time     // the beginning of the attempt
	done  chan struct{} // closed by finish; nil if the caller itself sends the flight

	outcome       // the sender's until done is closed
	finished bool // the sender's
	together bool // done is that of several flights, and closed after them
}

// spec is what the units of a script call have in common.
type spec struct {
	script *Script
	common []any
	acks   Acks
}

func (c *Call) spec() spec { return spec{c.Script, c.Common, c.Acks} }

type outcome struct {
	reply  any
	acked  int
	err    error
	unsure bool // an earlier send of the same attempt may have run
	late   bool // a quick attempt was over without an answer, and is to be repeated
}

// finish hands the outcome to the caller. If the caller has given up, nobody reads the outcome.
func (f *flight) finish(o outcome) {
	o.unsure = f.unsure
	f.outcome, f.finished = o, true
	if f.done != nil && !f.together {
		close(f.done)
	}
}

// batcher lets calls that meet share round trips and script calls. While a slot is free, a call is
// sent by itself. Otherwise calls queue, and the whole queue is sent as soon as a send ends. With
// 64 goroutines a call then takes a quarter of the time, as most of the cost is system calls of the
// client and the start of a script in the server.
//
// At limit, calls queue here and not for a connection of the pool. A renewal, which does not queue
// here, then finds the connection that the limit leaves, or is next at the only one. A call that is
// given up leaves the queue, so no connection carries calls that nobody waits for.
type batcher struct {
	sendAsync func(ctx context.Context, flights []*flight, own slot)
	limit     int // of sends

	mu    sync.Mutex
	sends int       // in flight; more than maxSends after a flush
	queue []*flight // empty while a slot is free
	late  *time.Timer
}

// enter takes a slot for f, or else queues f, and reports whether f has a slot.
func (b *batcher) enter(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.enterFreeLocked() {
		return true
	}
	f.done = make(chan struct{})
	b.queue = append(b.queue, f)
	switch {
	case b.late == nil:
		b.late = time.AfterFunc(maxQueued, b.flush)
	case len(b.queue) == 1:
		b.late.Reset(maxQueued)
	}
	return false
}

// enterFree takes a slot, if one is free, and reports whether it has.
func (b *batcher) enterFree() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.enterFreeLocked()
}

func (b *batcher) enterFreeLocked() bool {
	isFree := b.sends < min(maxSends, b.limit)
	if isFree {
		b.sends++
	}
	return isFree
}

// yield lets the callers that are awake now run first, if calls are in the queue: the next calls of
// these callers join the queue before it is sent.
func (b *batcher) yield() {
	b.mu.Lock()
	waits := len(b.queue) > 0
	b.mu.Unlock()
	if waits {
		runtime.Gosched()
	}
}

// leave ends a send, and sends the queue in its slot, or if the limit may have kept a flush from
// it.
func (b *batcher) leave() {
	b.mu.Lock()
	b.sends--
	var queue []*flight
	if b.sends < maxSends || b.sends == b.limit-1 {
		queue = b.takeLocked()
	}
	b.mu.Unlock()
	b.start(queue)
}

// flush sends the queue without a slot, as no send has ended in time. At the limit the next end of
// a send does.
func (b *batcher) flush() {
	b.mu.Lock()
	var queue []*flight
	if b.sends < b.limit {
		queue = b.takeLocked()
	}
	b.mu.Unlock()
	b.start(queue)
}

func (b *batcher) takeLocked() []*flight {
	queue := b.queue
	if b.queue = nil; len(queue) > 0 {
		b.sends++
		b.late.Stop()
	}
	return queue
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
	i := slices.Index(b.queue, f)
	if i < 0 {
		return false
	}
	b.queue = slices.Delete(b.queue, i, i+1)
	if len(b.queue) == 0 {
		b.late.Stop()
	}
	return true
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
	return scriptCall{spec: *flights[0].spec, flights: flights}
}

func (c *scriptCall) finish() {
	for i, f := range c.flights {
		f.finish(c.outcome(i))
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
