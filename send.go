package relock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is how one attempt of a command reaches Redis.
//
// go-redis cannot be interrupted while it reads: it gives up at its ReadTimeout, and not when a context ends. So a call
// that must return at once when its context ends needs somebody else to wait for the answer, and on few cores the two
// goroutine switches that this takes cost more than the whole way to a server nearby. And go-redis sends each command by
// itself, on a connection by itself, so that many goroutines spend most of their time in system calls.
//
//   - While nothing else is on its way, and go-redis respects the deadlines of contexts (ContextTimeoutEnabled), the
//     caller sends its command itself, with a deadline that is near. If there is no answer by then, which should be
//     rare, that is an attempt with an unknown end like any other, and the next one goes the way below. (A clone of the
//     client by WithTimeout would need no ContextTimeoutEnabled, but such a clone has none of the client's hooks.)
//   - Otherwise the command flies: a goroutine sends it, and the caller waits for that or for its context. A caller whose
//     context cannot end needs nobody to wait for it.
//   - Where flightsAloft are on their way already, commands wait for one to land, and leave with it in one pipeline.
//     Nobody waits for longer than laneLimit, so a connection that hangs holds up nobody else.
const (
	// briskLimit leaves a caller whose context ends while its command is stuck enough of 50 ms to tell it.
	briskLimit = 25 * time.Millisecond
	// briskNear is how long a usual round trip may be for that: much less than the limit. With more, a switch of goroutines
	// does not matter.
	briskNear = briskLimit / 10
	// briskPause is how long no command goes that way after one got no answer: a stall costs one connection, not many.
	briskPause = time.Second
	// flightsAloft is how many commands or pipelines are on their way before others queue.
	flightsAloft = 4
	// laneLimit is how long they queue if none lands: long against a round trip to a server nearby, short against a lease.
	laneLimit = 2 * time.Millisecond
)

// lanes is what is on its way on one go-redis client, and what waits to be. Commands that need a connection to themselves,
// and those for a cluster, which go-redis spreads over the nodes, use no lane.
type lanes struct {
	wire    *wire
	prompt  bool         // go-redis respects the deadlines of contexts
	usual   atomic.Int64 // the smoothed round trip, in nanoseconds; 0: not known
	stalled atomic.Int64 // when a brisk command had an unknown end, in nanoseconds since start
	start   time.Time
	flights sync.Pool // not for the whole package: a channel made in a synctest bubble must stay there

	mu    sync.Mutex
	aloft int
	queue []*flight     // empty while a lane is free
	limit time.Duration // how long the queue waits: laneLimit, but for tests
	late  *time.Timer   // fires when it has; nil before the first
}

func (l *lanes) init(w *wire) {
	l.wire, l.start, l.limit = w, time.Now(), laneLimit
	l.stalled.Store(-int64(briskPause))
	if rdb, ok := w.rdb.(*redis.Client); ok {
		l.prompt = rdb.Options().ContextTimeoutEnabled
	}
}

// send is one attempt, given up as soon as ctx is done or stop is closed. What is given up may run all the same.
func (w *wire) send(ctx context.Context, r *request, cmd command, stop <-chan struct{}) (acked int, err error) {
	l := &w.lanes
	lane := noLane
	if w.cluster == nil && r.acks == 0 {
		lane = l.enter()
	}
	if lane == onlyLane && l.isBrisk() {
		defer l.leave() // also if a hook of the go-redis client panics
		start := time.Now()
		err = w.rdb.Process(briskContext{ctx, start.Add(briskLimit)}, cmd)
		l.timed(start, err)
		if err != nil && judge(err) == unknown {
			l.stalled.Store(int64(time.Since(l.start)))
		}
		return 0, err
	}
	if ctx.Done() == nil && lane != queued { // no context can end it; after Close, go-redis does
		if lane != noLane {
			defer l.leave()
		}
		return w.process(ctx, r, cmd)
	}
	f, _ := l.flights.Get().(*flight)
	if f == nil {
		f = &flight{done: make(chan struct{}, 1)}
	}
	f.wire, f.ctx, f.request, f.cmd = w, ctx, r, cmd
	f.given.Store(false)
	if lane == queued {
		lane = l.wait(f)
	}
	if lane != queued {
		w.workers.add()
		go f.fly(lane)
	}
	select {
	case <-f.done:
		return f.land()
	case <-stop:
		err = ErrClosed
	case <-ctx.Done():
		err = errGivenUp
	}
	if !f.given.CompareAndSwap(false, true) { // it has landed at the same time: the answer is worth more
		<-f.done
		return f.land()
	}
	if r.first != nil {
		w.orphans.gaveUp(r.first)
	}
	if l.forget(f) && r.first != nil {
		w.orphans.landed(r.first, true)
	}
	return 0, err
}

// briskContext has a deadline that only go-redis looks at, so it needs no timer.
type briskContext struct {
	context.Context
	deadline time.Time
}

func (c briskContext) Deadline() (time.Time, bool) {
	if deadline, ok := c.Context.Deadline(); ok && deadline.Before(c.deadline) {
		return deadline, true
	}
	return c.deadline, true
}

// isBrisk says whether an answer can be expected well within briskLimit.
func (l *lanes) isBrisk() bool {
	usual := l.usual.Load()
	return l.prompt && usual > 0 && usual < int64(briskNear) &&
		int64(time.Since(l.start))-l.stalled.Load() >= int64(briskPause) && l.hasIdle()
}

// hasIdle says whether a command can be sent without making a connection first, which can take long.
func (l *lanes) hasIdle() bool {
	return l.wire.cluster == nil && l.wire.rdb.PoolStats().IdleConns > 0
}

// timed notes how long a round trip took.
func (l *lanes) timed(start time.Time, err error) {
	if err != nil {
		return
	}
	took, usual := int64(time.Since(start)), l.usual.Load()
	if usual > 0 {
		took = usual + (took-usual)/8
	}
	l.usual.Store(took)
}

// lane is what a command has for its way.
type lane int

const (
	noLane   lane = iota // it needs none
	onlyLane             // one, and nothing else is on its way
	someLane             // one
	queued               // none yet
)

// enter takes a lane if one is free.
func (l *lanes) enter() lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aloft == flightsAloft {
		return queued
	}
	if l.aloft++; l.aloft == 1 {
		return onlyLane
	}
	return someLane
}

// wait puts f into the queue, unless a lane has become free.
func (l *lanes) wait(f *flight) lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aloft < flightsAloft {
		l.aloft++
		return someLane
	}
	if l.queue = append(l.queue, f); len(l.queue) == 1 {
		if l.late == nil {
			l.late = time.AfterFunc(l.limit, l.hurry)
		} else {
			l.late.Reset(l.limit)
		}
	}
	return queued
}

// forget takes f out of the queue, and says whether it was there.
func (l *lanes) forget(f *flight) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, f)
	if i < 0 {
		return false
	}
	if l.queue = slices.Delete(l.queue, i, i+1); len(l.queue) == 0 {
		l.late.Stop()
	}
	return true
}

// takeLocked empties the queue. The caller sends what was in it, in a worker that it starts or is.
func (l *lanes) takeLocked() []*flight {
	batch := l.queue
	if len(batch) > 0 {
		l.queue = nil
		l.late.Stop()
	}
	return batch
}

// pass gives a lane to those who wait for one, and returns what they want sent. Nothing: the lane is free.
func (l *lanes) pass() []*flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.takeLocked()
	if len(batch) == 0 {
		l.aloft--
	}
	return batch
}

// leave is for a caller that has sent its command itself.
func (l *lanes) leave() {
	if batch := l.pass(); len(batch) > 0 {
		l.wire.workers.start(func() { l.carry(batch) })
	}
}

// carry sends a batch, and then whatever has come meanwhile, on one lane.
func (l *lanes) carry(batch []*flight) {
	for len(batch) > 0 {
		l.wire.sendAll(batch)
		batch = l.pass()
	}
}

// hurry sends the queue without a lane.
func (l *lanes) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if batch := l.takeLocked(); len(batch) > 0 {
		l.wire.workers.start(func() { l.wire.sendAll(batch) })
	}
}

// sendAll sends a batch in one pipeline.
func (w *wire) sendAll(batch []*flight) {
	if len(batch) == 1 {
		f := batch[0]
		f.acked, f.err = w.process(f.ctx, f.request, f.cmd)
		f.arrive()
		return
	}
	pipe := w.rdb.Pipeline()
	for _, f := range batch {
		_ = pipe.Process(f.ctx, f.cmd) // queued
	}
	_, _ = pipe.Exec(context.Background()) // each command has its own error
	for _, f := range batch {
		f.err = f.cmd.Err()
		f.arrive()
	}
}

// flight is a command on its way, or in the queue. One that is given up is left to the garbage collector.
type flight struct {
	wire    *wire
	ctx     context.Context
	request *request
	cmd     command
	done    chan struct{}
	given   atomic.Bool // away: by the caller, who has given it up, or by arrive
	acked   int
	err     error
}

// fly sends one command, and goes on with what waits for its lane.
func (f *flight) fly(lane lane) {
	w := f.wire
	defer w.workers.leave()
	start := time.Now()
	f.acked, f.err = w.process(f.ctx, f.request, f.cmd)
	if lane == noLane {
		f.arrive()
		return
	}
	w.lanes.timed(start, f.err)
	f.arrive()
	w.lanes.carry(w.lanes.pass())
}

// arrive hands the answer over, or notes that nobody waits for it any more.
func (f *flight) arrive() {
	w, first := f.wire, f.request.first
	answered := f.err == nil || judge(f.err) != unknown
	if f.given.CompareAndSwap(false, true) {
		f.done <- struct{}{} // from here on the flight is the caller's
		return
	}
	if first != nil {
		w.orphans.landed(first, answered)
	}
}

func (f *flight) land() (acked int, err error) {
	l := &f.wire.lanes
	acked, err = f.acked, f.err
	f.wire, f.ctx, f.request, f.cmd, f.acked, f.err = nil, nil, nil, command{}, 0, nil
	l.flights.Put(f)
	return acked, err
}

var errGivenUp = errors.New("no answer from Redis yet")
