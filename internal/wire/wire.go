// Package wire brings script calls to Redis, through any client of go-redis. [Wire.Do] sends one
// call until Redis answers, and reports how sure the answer is. [Wire.All] sends many calls once.
// The package knows how go-redis and Redis fail, and knows nothing of locks.
//
// go-redis cannot be interrupted while reading: a read ends at ReadTimeout, and not with a context.
// A call with a context is therefore sent by another goroutine. A call whose context cannot end is
// sent by its caller, which saves two goroutine switches, and so are others while the server is
// quick, if go-redis keeps deadlines. Calls that meet are batched, see batcher.
package wire

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/internal/lifetime"
)

// Options is what a Wire reports, and to whom. The zero value reports nothing.
type Options struct {
	// Trouble is called, at most once a second, after the loss of a connection and after the
	// answers READONLY and MOVED. Leases should be renewed at once. Trouble must not block.
	Trouble func()
}

// Wire sends scripts to Redis. A Wire is safe for concurrent use.
type Wire struct {
	topology

	rdb         redis.UniversalClient
	options     Options
	readTimeout time.Duration
	start       time.Time
	batcher     batcher
	rooms       rooms
	quick       quick
	silences    lifetime.Moments // for calls that queue

	group    group.Group
	troubled atomic.Int64 // the last call of Options.Trouble, in nanoseconds since start; 0: none
}

// New makes a Wire over rdb: a [redis.Client], a [redis.ClusterClient], the AutoPipeline of a
// redis.Client, or a struct that embeds one of these. New sends nothing. The error says why another
// client cannot be used.
func New(rdb redis.UniversalClient, o Options) (*Wire, error) {
	if err := checkKind(rdb); err != nil {
		return nil, err
	}
	if o.Trouble == nil {
		o.Trouble = func() {}
	}
	w := &Wire{rdb: rdb, options: o, readTimeout: readTimeoutOf(rdb), start: time.Now()}
	w.reading = make(chan struct{}, 1)
	w.cluster, _ = rdb.(clusterClient)
	// ClusterSlots is set for servers that are no cluster: masters and replicas of Sentinel.
	w.sharded.Store(w.cluster != nil && w.cluster.Options().ClusterSlots == nil)
	w.quick.keepsDeadline = keepsDeadline(rdb)
	w.quick.moments.Length, w.quick.moments.Shared = quickLimit, quickLimit
	w.silences.Length, w.silences.Shared = silence, silence/20
	w.batcher.sendAsync, w.batcher.limit = w.sendAsync, sendsOf(rdb)
	w.rooms.limit = w.batcher.limit
	return w, nil
}

// ReadTimeout is how long go-redis waits for a reply; [math.MaxInt64] without a limit.
func (w *Wire) ReadTimeout() time.Duration { return w.readTimeout }

// Wait returns when no goroutine of the wire is left. Do works after Wait, too.
func (w *Wire) Wait() {
	w.group.Close()
	w.group.Wait()
	w.quick.moments.End()
	w.silences.End()
}

// Call is a script for one lock. A Call and its slices must not change after Do, which may return
// before the call is sent.
type Call struct {
	Script *Script
	// Common is the part of ARGV in front of the arguments of units. Calls share a script call only
	// if Script and Common are equal. The values must be comparable.
	Common []any
	Unit   Unit

	// Tries is how often the call is sent at most; 0: until ctx is done.
	Tries int
	// NoRepeat is for a script that may add to state: a call that may have run is not sent again. A
	// call that a server has refused, and not run, is.
	NoRepeat bool
	// Patience is how long one attempt may take, from its send. Do then gives the attempt up and
	// sends the next one, while the first one may still run. 0: as long as go-redis waits.
	Patience time.Duration
	// Yields says that the call is about no hold yet: in a queue it is sent behind the calls that
	// do not yield.
	Yields bool
	// Migrating serves a call with two keys in a migrating slot. nil: the call is sent again.
	Migrating *Migrating
	// Acks are to confirm the script, and Answer.Acked have. A call with Acks is never batched.
	Acks attempts.Acks
	// Report is told before the call is sent again; nil: nobody is.
	Report attempts.Reporter
	// Repeat makes the Unit.Args of an attempt at a time elapsed after Answer.First, once the end
	// of an attempt is unknown. first are those of the first attempt. nil: the same as before.
	Repeat func(first []any, elapsed time.Duration) []any
}

// Migrating are scripts for TRYAGAIN, the answer of a server that has not all keys of a call.
type Migrating struct {
	Second *Script // runs over the second key alone; replies 0 if the key does not exist
	First  *Script // then runs over the first key alone, in place of the script of the call
}

// Answer is what Do knows of a call.
type Answer struct {
	Reply any // of the unit
	Acked int // servers that have confirmed, up to Acks.Wanted
	// Sent is a time just before the answered attempt was sent, behind its time in a queue; after
	// an error, the last attempt.
	Sent time.Time
	// First is a time just before the first attempt with an unknown end was sent; otherwise Sent.
	First time.Time
	// Unsure says that some attempt may have run, or may run yet, without an answer.
	Unsure bool
}

// Do sends a call until Redis answers or refuses, the tries are used up, or ctx is done. Do returns
// as soon as ctx is done, also while Redis is silent. Between attempts Do waits for a [Pause]. The
// Answer counts also with an error.
//
// Errors: a refusal, see [Refused]; after all tries the last error, marked with
// [attempts.ErrUnavailable]; the end of ctx, with its cause and the error of the last attempt,
// marked with ErrUnavailable if that attempt has found no server that serves.
func (w *Wire) Do(ctx context.Context, c *Call) (Answer, error) {
	p := progress{fewest: math.MaxInt}
	for ctx.Err() == nil {
		args := p.begin(c)
		o := w.attempt(ctx, c, args, &p)
		v := judge(o.err)
		if !p.Unsure && (o.unsure || v == unknown || v == broken) {
			p.Unsure, p.First = true, p.Sent
		}
		switch {
		case o.late:
			p.late = true
			continue
		case v == answered && c.Script.asksAgain(o.reply):
			continue
		case v == answered:
			p.Reply, p.Acked = o.reply, o.acked
			return p.Answer, nil
		case v == refused, v == broken:
			return p.Answer, o.err
		}
		w.reportTrouble(o.err)
		if c.NoRepeat && p.Unsure {
			return p.Answer, unavailable(moreTelling(ctx.Err(), o.err))
		}
		if ctx.Err() != nil {
			return p.Answer, endedAfter(ctx, moreTelling(p.last, o.err))
		}
		p.last = o.err
		p.attempts++
		if !w.wasStale(o.err, &p.fewest) {
			p.tries++
		}
		if c.Tries > 0 && p.tries >= c.Tries {
			return p.Answer, unavailable(o.err)
		}
		w.doubtMap(ctx)
		lifetime.Sleep(ctx.Done(), Pause(p.tries))
		if c.Migrating != nil && Code(o.err) == "TRYAGAIN" {
			c = w.withoutSecond(ctx, c)
		}
	}
	return p.Answer, endedAfter(ctx, p.last)
}

// progress is what Do knows of a call on its way.
type progress struct {
	Answer

	begun    time.Time // the begin of the first attempt
	attempts int       // that have failed
	last     error     // of the last one of these
	tries    int       // attempts that have failed, but those on stale connections
	fewest   int       // idle connections so far, see wasStale
	late     bool      // a quick attempt was over without an answer
}

// begin reports the failed attempt before, and returns the arguments of the next one.
func (p *progress) begin(c *Call) []any {
	args := c.Unit.Args
	if p.attempts > 0 && c.Report != nil {
		c.Report.Retrying(c.Script.Name, p.attempts, p.begun, p.last)
	}
	if p.Unsure && c.Repeat != nil {
		args = c.Repeat(args, time.Since(p.First))
	}
	p.send(time.Now())
	p.begun = cmp.Or(p.begun, p.Sent)
	return args
}

// send notes that an attempt is sent no sooner than at a time.
func (p *progress) send(at time.Time) {
	if p.Sent = at; !p.Unsure {
		p.First = at
	}
}

// withoutSecond returns c, or the call over the first key of c alone, see [Migrating].
func (w *Wire) withoutSecond(ctx context.Context, c *Call) *Call {
	second := &Call{Script: c.Migrating.Second, Unit: Unit{Keys: c.Unit.Keys[1:]}, Patience: c.Patience}
	if o := w.attempt(ctx, second, nil, &progress{Answer: Answer{Sent: time.Now()}}); o.err != nil || o.reply != int64(0) {
		return c
	}
	first := *c
	first.Script, first.Unit.Keys, first.Migrating = c.Migrating.First, c.Unit.Keys[:1], nil
	return &first
}

// moreTelling chooses between the error of an attempt that its context ended, and the one before.
func moreTelling(last, err error) error {
	if last != nil && errors.Is(err, ErrGivenUp) || isContextEnd(err) {
		return last
	}
	return err
}

// attempt sends a call once, and returns as soon as ctx is done or the call's patience is over.
func (w *Wire) attempt(ctx context.Context, c *Call, args []any, p *progress) (o outcome) {
	l := &lone{spec: w.specOf(c)}
	l.flight = flight{ctx: ctx, spec: &l.spec, unit: Unit{Keys: c.Unit.Keys, Args: args}, since: p.Sent, yields: c.Yields}
	way := w.wayOf(l, c, p)
	if way != inQueue && c.Report != nil && !w.wasQuick(p.Sent) { // go-redis may wait for a connection for half a minute
		report, name, failed, begun, why := c.Report, c.Script.Name, p.attempts, p.begun, cmp.Or(p.last, errNoAnswer)
		defer time.AfterFunc(silence, func() { report.Retrying(name, failed, begun, why) }).Stop()
	}
	switch way {
	case inQueue:
		o = w.waitInQueue(l, c, p)
	case inRoom:
		o = w.sendInRoom(l, c, p)
	case inTime:
		o = w.sendInTime(l)
	case direct:
		defer w.batcher.leave() // also if a hook of go-redis ends the goroutine
		w.exchange(w.contextOf(l, p), l.alone())
		o = l.call.outcome(0)
	case behind:
		o = w.sendBehind(l, c, p, &w.batcher)
	}
	if way == inTime || way == direct || way == behind {
		w.noteSpeed(l, &o)
	}
	if isContextEnd(o.err) && !o.late && (ctx.Err() == nil || time.Since(p.Sent) >= silence) {
		o.err = errNoConnection // for all the time of the attempt
	}
	return o
}

// lone is a flight with room for a script call of its own.
type lone struct {
	spec    spec
	flight  flight
	call    scriptCall
	flights [1]*flight
	calls   [1]*scriptCall
	args    [10]any // enough for a mutex
	brief   brief
	begun   atomic.Int64 // when a goroutine began to send the flight, in nanoseconds since Wire.start
}

// alone returns the script call of the flight, as a list.
func (l *lone) alone() []*scriptCall {
	l.flights[0], l.calls[0] = &l.flight, &l.call
	l.call = callOf(l.flights[:])
	l.call.room = l.args[:0]
	return l.calls[:]
}

// sendAsync sends flights in a goroutine, which then leaves the slot.
func (w *Wire) sendAsync(ctx context.Context, flights []*flight, own slot) {
	w.group.Go(func() {
		begun := time.Now()
		stop := giveUpLate(flights)
		defer func() {
			stop()
			for _, f := range flights {
				f.finish(outcome{err: errHook}) // if a hook of go-redis ends the goroutine
			}
			if time.Since(begun) > quickLimit {
				w.quick.is.Store(false)
			}
			w.batcher.yield()
			own.leave()
		}()
		w.send(ctx, flights)
	})
}

// giveUpLate finishes each flight whose patience is over, counted from now. After stop none is.
func giveUpLate(flights []*flight) (stop func()) {
	var timers []*time.Timer
	var lengths []time.Duration // of patience: mostly one
	for _, f := range flights {
		patience := f.spec.patience
		if patience <= 0 || slices.Contains(lengths, patience) {
			continue
		}
		lengths = append(lengths, patience)
		timers = append(timers, time.AfterFunc(patience, func() {
			for _, f := range flights {
				if f.spec.patience == patience {
					f.finish(outcome{err: givenUp(patience, true)})
				}
			}
		}))
	}
	return func() {
		for _, t := range timers {
			t.Stop()
		}
	}
}

// send sends flights in one round trip, and finishes them. Units that a server refuses together are
// sent again, each in a call of its own.
func (w *Wire) send(ctx context.Context, flights []*flight) {
	var apart []*scriptCall
	calls := merge(flights)
	w.exchange(ctx, calls)
	for _, c := range calls {
		if len(c.flights) == 1 || !isRefusedTogether(c.err) {
			c.finish(false)
			continue
		}
		for i := range c.flights {
			call := callOf(c.flights[i : i+1])
			apart = append(apart, &call)
		}
	}
	if len(apart) > 0 {
		w.exchange(ctx, apart)
	}
	for _, c := range apart {
		c.finish(true) // the refused call may have reached this unit
	}
}
