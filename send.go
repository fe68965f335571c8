package relock

import (
	"context"
	"errors"
	"math"
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
//   - Where flightsAloft are on their way already, commands wait for one to land, and leave with it in one pipeline. It takes
//     its share and not all of them, so that all lanes carry the same: then the server works on one batch while the client
//     works on the answers to another. (All of them, where a round trip is longer than laneLimit.) While none lands
//     nobody waits for longer than laneLimit, so a connection that hangs holds up nobody else.
//   - The usual ones of these, first entries that do not wait and last exits, share one script call (many.lua), up to
//     manyBatch of them. What makes a call cost is less what it does to each lock than that it is one: with 64
//     goroutines that is two fifths of the client's CPU and half of the server's. Where one lock's part fails, that
//     flight is sent by itself, so it has the answer that it would have had alone.
const (
	// briskLimit leaves a caller whose context ends while its command is stuck enough of 50 ms to tell it.
	briskLimit = 25 * time.Millisecond
	// briskNear is how long a usual round trip may be for that: much less than the limit. With more, a switch of goroutines
	// does not matter.
	briskNear = briskLimit / 10
	// briskPause is how long no command goes that way after one got no answer: a stall costs one connection, not many.
	briskPause = time.Second
	// flightsAloft is how many commands or pipelines are on their way before others queue. With one, the server idles while
	// the client works on the answers; with two, both idle while an answer wakes somebody; with more, fewer share a call. Where a
	// round trip is no shorter than a quarter of laneLimit there are farAloft: the CPUs have time then, and smaller batches are
	// back sooner.
	flightsAloft = 3
	farAloft     = 4
	// apartPause is how long every command has a script call of its own after the server has refused one for many.
	apartPause = time.Second
	// laneLimit is how long they queue if none lands: long against a round trip to a server nearby, short against a lease.
	laneLimit = 2 * time.Millisecond
)

// lanes is what is on its way on one go-redis client, and what waits to be. Commands that need a connection to themselves,
// and those for a cluster, which go-redis spreads over the nodes, use no lane.
type lanes struct {
	wire     *wire
	prompt   bool         // go-redis respects the deadlines of contexts
	smoothed atomic.Int64 // the usual round trip, in nanoseconds; 0: not known
	shortest atomic.Int64 // the shortest one of late, also in a rush
	apart    atomic.Int64 // until when flights share no script call, in nanoseconds since start
	stalled  atomic.Int64 // when a brisk command had an unknown end, in nanoseconds since start
	start    time.Time
	flights  sync.Pool // not for the whole package: a channel made in a synctest bubble must stay there

	mu       sync.Mutex
	aloft    atomic.Int32 // written with mu held
	carried  int          // how many commands are on their way, on lanes or hurried
	spare    []*flight    // room for the next queue
	queue    []*flight    // empty while a lane is free
	unlanded []*flight    // those that were or are in the queue, and have not landed
	closed   bool
	limit    time.Duration // how long the queue waits: laneLimit, but for tests, which change it while nothing is sent
	late     *time.Timer   // fires when it has; nil before the first
}

func (l *lanes) init(w *wire) {
	l.wire, l.start, l.limit = w, time.Now(), laneLimit
	l.stalled.Store(-int64(briskPause))
	if rdb, ok := w.rdb.(plainClient); ok {
		o := rdb.Options()
		l.prompt = o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 // else it sets no deadlines at all
	}
}

// send is one attempt, given up as soon as ctx is done or stop is closed: that of the client, or nil. (Where ctx cannot end, Close
// wakes those who are queued, see lanes.close.) What is given up may run all the same.
func (w *wire) send(ctx context.Context, r *request, eval bool, stop <-chan struct{}) (reply any, acked int, err error) {
	switch lane := w.laneFor(r); {
	case lane == onlyLane && w.lanes.isBrisk():
		reply, err = w.sendBriskly(ctx, r, eval)
		return reply, 0, err
	case lane != queued && ctx.Done() == nil:
		return w.sendPatiently(ctx, r, eval, lane)
	default:
		return w.sendAloft(ctx, r, eval, stop, lane)
	}
}

// laneFor takes a lane for a request, if it needs one and one is free.
func (w *wire) laneFor(r *request) lane {
	switch {
	case w.cluster != nil || r.acks > 0:
		return noLane
	case !w.lanes.hasRoom(): // then the queue's mutex need not be taken twice
		return queued
	default:
		return w.lanes.enter()
	}
}

// sendBriskly sends a command by itself on the lane that it has, and expects the answer within briskLimit.
func (w *wire) sendBriskly(ctx context.Context, r *request, eval bool) (any, error) {
	l := &w.lanes
	defer l.leave() // also if a hook of the go-redis client panics
	start := time.Now()
	limit := &limited{Context: ctx, deadline: start.Add(briskLimit)}
	defer limit.end()
	cmd := r.command(ctx, eval)
	err := believed(limit, w.rdb.Process(limit, cmd))
	l.timed(start, err)
	if err != nil && judge(err) == unknown {
		l.stalled.Store(int64(time.Since(l.start)))
	}
	return cmd.Val(), err
}

// sendPatiently sends a command by itself where no context can end it. After Close, go-redis does.
func (w *wire) sendPatiently(ctx context.Context, r *request, eval bool, lane lane) (reply any, acked int, err error) {
	if lane == noLane {
		return w.process(ctx, r, eval)
	}
	l := &w.lanes
	defer l.leave()
	start := time.Now()
	reply, acked, err = w.process(ctx, r, eval)
	l.timed(start, err)
	return reply, acked, err
}

// sendAloft has a command sent by somebody else, and waits for the answer, for the end of ctx or for Close.
func (w *wire) sendAloft(ctx context.Context, r *request, eval bool, stop <-chan struct{}, lane lane) (reply any, acked int, err error) {
	l := &w.lanes
	f, _ := l.flights.Get().(*flight)
	if f == nil {
		f = &flight{done: make(chan struct{}, 1)}
	}
	f.wire, f.ctx, f.request, f.eval = w, ctx, r, eval
	f.given.Store(false)
	if lane == queued {
		f.stops = stop != nil && ctx.Done() == nil
		lane = l.wait(f)
	}
	switch lane {
	case queued:
	case shut:
		return nil, 0, ErrClosed
	default:
		f.stops = false
		w.workers.add()
		go f.fly(lane)
	}
	if err = f.await(ctx, stop); err == nil {
		return f.take()
	}
	if r.first != nil {
		w.orphans.gaveUp(r.first)
	}
	if l.forget(f) && r.first != nil {
		w.orphans.landed(r.first, true)
	}
	return nil, 0, err
}

// limited is a context with a deadline that needs a timer only where somebody waits. go-redis looks once, in passing, whether the
// context of a command is done, and again where there is no idle connection and it waits for one, which can take long. So Done is
// that of the context around it when it is called first, and from then on ends at the deadline too. Where go-redis respects
// deadlines, it gives up reading and writing then.
//
// It is never done without a channel that says so, even at first: code that makes a context from it, as a hook may, looks at that,
// and then calls Done again to wait.
type limited struct {
	context.Context
	deadline time.Time

	looked atomic.Bool
	mu     sync.Mutex
	timed  context.Context // nil: nobody has waited yet
	cancel context.CancelFunc
}

func (c *limited) Deadline() (time.Time, bool) {
	if deadline, ok := c.Context.Deadline(); ok && deadline.Before(c.deadline) {
		return deadline, true
	}
	return c.deadline, true
}

func (c *limited) Done() <-chan struct{} {
	if c.looked.Swap(true) {
		return c.wait()
	}
	if done := c.Context.Done(); done != nil {
		return done
	}
	return notYet
}

// notYet is never closed.
var notYet = make(chan struct{})

func (c *limited) wait() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(c.Context, c.deadline)
	}
	return c.timed.Done()
}

func (c *limited) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Context.Err(); err != nil || c.timed == nil || c.timed.Err() == nil {
		return err
	}
	return errNoConnection
}

// end stops the timer, if there is one.
func (c *limited) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// errNoConnection is the end of a command that go-redis had no connection for. But a hook may say so of one that was sent.
var errNoConnection = errors.New("no connection to Redis in time")

// isBrisk says whether an answer can be expected well within briskLimit.
func (l *lanes) isBrisk() bool {
	smoothed := l.smoothed.Load()
	return l.prompt && smoothed > 0 && smoothed < int64(briskNear) &&
		int64(time.Since(l.start))-l.stalled.Load() >= int64(briskPause)
}

// timed notes how long a round trip took.
func (l *lanes) timed(start time.Time, err error) {
	if err != nil {
		return
	}
	took, smoothed, shortest := int64(time.Since(start)), l.smoothed.Load(), l.shortest.Load()
	if shortest == 0 || took < shortest {
		l.shortest.Store(took)
	} else {
		l.shortest.Store(shortest + (took-shortest)/64)
	}
	if smoothed > 0 {
		took = smoothed + (took-smoothed)/8
	}
	l.smoothed.Store(took)
}

// lane is what a command has for its way.
type lane int

const (
	noLane   lane = iota // it needs none
	onlyLane             // one, and nothing else is on its way
	someLane             // one
	queued               // none yet
	shut                 // none any more
)

// most is how many lanes there are.
func (l *lanes) most() int {
	if l.shortest.Load() < int64(l.limit/4) {
		return flightsAloft
	}
	return farAloft
}

// hasRoom says whether a lane is free, for as long as mu is held.
func (l *lanes) hasRoom() bool { return int(l.aloft.Load()) < l.most() }

// enter takes a lane if one is free.
func (l *lanes) enter() lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasRoom() {
		return queued
	}
	l.carried++
	if l.aloft.Add(1) == 1 {
		return onlyLane
	}
	return someLane
}

// wait puts f into the queue, unless a lane has become free.
func (l *lanes) wait(f *flight) lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasRoom() {
		l.aloft.Add(1)
		l.carried++
		return someLane
	}
	if l.closed && f.stops {
		return shut
	}
	f.index = len(l.unlanded)
	l.unlanded = append(l.unlanded, f)
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
	l.dropLocked(f)
	return true
}

// dropLocked takes f out of those that have not landed.
func (l *lanes) dropLocked(f *flight) {
	last := len(l.unlanded) - 1
	moved := l.unlanded[last]
	l.unlanded[f.index], moved.index = moved, f.index
	l.unlanded[last] = nil
	l.unlanded = l.unlanded[:last]
}

// close ends the waits that Close ends. (A select for each call that waits, which only Close needs, would cost a fortieth of the
// client's CPU with many goroutines.)
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, f := range l.unlanded {
		if f.stops && f.given.CompareAndSwap(false, true) {
			f.stopped = true
			f.done <- struct{}{}
		}
	}
}

// takeLocked takes the first n out of the queue. The caller sends them, in a worker that it starts or is.
func (l *lanes) takeLocked(n int) []*flight {
	if n == 0 {
		return nil
	}
	batch, rest := l.queue[:n], l.queue[n:]
	l.queue, l.spare = append(l.spare, rest...), nil
	clear(rest)
	if len(rest) > 0 {
		l.late.Reset(l.limit)
	} else {
		l.late.Stop()
	}
	return batch
}

// land notes that these are not on their way any more, before they arrive. nil: that was noted already.
func (l *lanes) land(batch []*flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range batch {
		if f != nil {
			l.dropLocked(f)
			l.carried--
		}
	}
}

// reuse gives a lane that carries nothing to its share of those who wait for one, and returns what they want sent. Nothing: the
// lane is free. room is for the next queue.
func (l *lanes) reuse(room []*flight) []*flight {
	clear(room)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reuseLocked(room)
}

func (l *lanes) reuseLocked(room []*flight) []*flight {
	if l.spare == nil {
		l.spare = room[:0]
	}
	share, most := len(l.queue), l.most()
	if int(l.aloft.Load()) > most {
		share = 0
	} else if l.smoothed.Load() < int64(l.limit) { // else those who stay would be hurried before another lane lands
		share = min(share, (l.carried+share+most-1)/most)
	}
	batch := l.takeLocked(share)
	if len(batch) == 0 {
		l.aloft.Add(-1)
	}
	l.carried += len(batch)
	return batch
}

// leave is for a caller that has sent its command itself.
func (l *lanes) leave() {
	if batch := l.landOne(); len(batch) > 0 {
		l.wire.workers.start(func() { l.carry(batch) })
	}
}

// landOne is land and reuse for a lane that had one command.
func (l *lanes) landOne() []*flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carried--
	return l.reuseLocked(nil)
}

// carry sends a batch, and then whatever has come meanwhile, on one lane.
func (l *lanes) carry(batch []*flight) {
	if len(batch) == 0 {
		return
	}
	behind := make(chan struct{})
	defer func() {
		if len(batch) > 0 { // a hook of the go-redis client has called runtime.Goexit
			l.wire.landed(batch)
			l.wire.workers.start(func() { l.carry(l.reuse(nil)) })
		}
	}()
	for len(batch) > 0 {
		l.wire.sendAll(batch)
		l.land(batch)
		// Those who have their answers send the next commands: this lane waits for these. Go runs first whom a goroutine has
		// made ready last, and then the others in their order. So this runs behind all of them, without a word of them.
		last := len(batch) - 1
		arrive(batch[:last])
		go func() { behind <- struct{}{} }()
		arrive(batch[last:])
		<-behind
		batch = l.reuse(batch)
	}
}

// hurry sends the queue without a lane.
func (l *lanes) hurry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.takeLocked(len(l.queue))
	if len(batch) == 0 {
		return
	}
	l.carried += len(batch)
	l.wire.workers.start(func() {
		defer l.wire.landed(batch) // also if a hook of the go-redis client calls runtime.Goexit
		l.wire.sendAll(batch)
	})
}

// arrive hands the answers over. nil: that was done already.
func arrive(batch []*flight) {
	for i, f := range batch {
		if f != nil {
			batch[i] = nil
			f.arrive()
		}
	}
}

// landed is land and arrive.
func (w *wire) landed(batch []*flight) {
	w.lanes.land(batch)
	arrive(batch)
}

// sendAll sends a batch in one pipeline, and notes the answers.
func (w *wire) sendAll(batch []*flight) {
	for _, f := range batch {
		f.err = errPanicked // until there is an answer
	}
	if len(batch) == 1 {
		f := batch[0]
		f.reply, f.acked, f.err = w.process(f.ctx, f.request, f.eval)
		return
	}
	usual := 0
	if w.lanes.mayShare() {
		for i, f := range batch { // those to the front that can share a call
			if r := f.request; r.usual != unusual && !r.alone {
				batch[i], batch[usual] = batch[usual], f
				usual++
			}
		}
	}
	if usual == 1 {
		usual = 0
	}
	w.sendTogether(batch[:usual], batch[usual:], false)
}

// shared is one script call for several flights.
type shared struct {
	flights []*flight
	cmd     command
}

// sendTogether sends the usual flights in as few calls as can be, and others each in its own, all in one pipeline.
func (w *wire) sendTogether(usual, others []*flight, eval bool) {
	until := earliest(earliest(time.Time{}, usual), others)
	calls := make([]shared, 0, (len(usual)+manyBatch-1)/manyBatch)
	cmds := make([]redis.Cmder, 0, cap(calls)+len(others))
	for len(usual) > 0 {
		c := shared{flights: usual[:min(len(usual), manyBatch)]}
		usual = usual[len(c.flights):]
		c.cmd = manyCommand(c.flights, eval)
		calls = append(calls, c)
		cmds = append(cmds, c.cmd)
	}
	for _, f := range others {
		cmds = append(cmds, f.request.command(f.ctx, f.eval))
	}
	ctx := context.Background()
	if !until.IsZero() {
		limit := &limited{Context: ctx, deadline: until}
		defer limit.end()
		ctx = limit
	}
	if len(cmds) == 1 {
		cmds[0].SetErr(believed(ctx, w.rdb.Process(ctx, cmds[0])))
	} else {
		pipe := w.rdb.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...) // queued
		exec(ctx, pipe)
	}
	for i, f := range others {
		f.reply, f.err = cmds[len(calls)+i].(command).Result()
	}
	for n, c := range calls {
		replies, err := manyReplies(c.cmd, len(c.flights))
		if !eval && redis.HasErrorPrefix(err, "NOSCRIPT") {
			w.landed(others) // who has an answer waits for no other
			for _, answered := range calls[:n] {
				w.landed(answered.flights)
			}
			w.sendTogether(c.flights, nil, true)
			continue
		}
		if err != nil && judge(err) == refused {
			w.lanes.refused(err)
			err = errNotTogether
		}
		for i, f := range c.flights {
			if f.err = err; err != nil {
				continue
			}
			switch f.reply = replies[i]; f.reply {
			case nil:
				f.err = errAskAlone
			case manyNothing:
				f.err = errNotTogether
			}
		}
	}
}

// earliest is the first time at which a request has to be over: until, or that of a flight.
func earliest(until time.Time, flights []*flight) time.Time {
	for _, f := range flights {
		if at := f.request.until; !at.IsZero() && (until.IsZero() || at.Before(until)) {
			until = at
		}
	}
	return until
}

// Why a flight that shared a call has to be sent by itself, in the same attempt.
var (
	errNotTogether = errors.New("the server does not do this in a script call for many locks, and has done nothing")
	errAskAlone    = errors.New("this lock's part of a script call for many has failed, and nobody knows where")
)

// mayShare says whether flights may share a script call.
func (l *lanes) mayShare() bool { return int64(time.Since(l.start)) >= l.apart.Load() }

// refused notes that the server does not take a script call for many locks.
func (l *lanes) refused(err error) {
	until := int64(math.MaxInt64)
	if !redis.HasErrorPrefix(err, "CROSSSLOT") { // it is one of a cluster, and will be
		until = int64(time.Since(l.start) + apartPause)
	}
	l.apart.Store(max(until, l.apart.Load()))
}

// flight is a command on its way, or in the queue. One that is given up is left to the garbage collector.
type flight struct {
	wire    *wire
	ctx     context.Context
	request *request
	eval    bool // its script is sent in full
	done    chan struct{}
	// given is set by whoever decides how the caller's wait ends: arrive, with an answer; the caller, who gives up; or lanes.close. The
	// sender has reply, acked and err until arrive has set it, and then the caller.
	given   atomic.Bool
	stops   bool // Close ends the wait for it: the caller looks at nothing else
	stopped bool // it has
	index   int  // in lanes.unlanded
	reply   any
	acked   int
	err     error
}

// fly sends one command, and goes on with what waits for its lane.
func (f *flight) fly(lane lane) {
	w := f.wire
	defer w.workers.leave()
	start := time.Now()
	returned := false
	defer func() {
		if !returned { // a hook of the go-redis client has called runtime.Goexit
			f.arrive()
			if lane != noLane {
				w.lanes.leave()
			}
		}
	}()
	f.err = errPanicked
	f.reply, f.acked, f.err = w.process(f.ctx, f.request, f.eval)
	returned = true
	if lane == noLane {
		f.arrive()
		return
	}
	w.lanes.timed(start, f.err)
	f.arrive()
	w.lanes.carry(w.lanes.landOne())
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

// await returns nil when f has arrived, and otherwise why it was given up.
func (f *flight) await(ctx context.Context, stop <-chan struct{}) (err error) {
	if ctx.Done() == nil && (stop == nil || f.stops) {
		<-f.done
		if f.stopped {
			return ErrClosed
		}
		return nil
	}
	select {
	case <-f.done:
		return nil
	case <-stop:
		err = ErrClosed
	case <-ctx.Done():
		err = errGivenUp
	}
	if !f.given.CompareAndSwap(false, true) { // it has arrived at the same time: the answer is worth more
		<-f.done
		return nil
	}
	return err
}

// take returns the answer of a flight that has arrived, and keeps the flight for another command.
func (f *flight) take() (reply any, acked int, err error) {
	l := &f.wire.lanes
	reply, acked, err = f.reply, f.acked, f.err
	f.wire, f.ctx, f.request, f.reply, f.acked, f.err = nil, nil, nil, nil, 0, nil
	l.flights.Put(f)
	return reply, acked, err
}

var errGivenUp = errors.New("no answer from Redis yet")
