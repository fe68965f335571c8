package wire

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
)

// way is how an attempt reaches Redis.
type way int

const (
	direct  way = iota // sent by its caller, in attempt itself, until go-redis gives up
	inTime             // sent by its caller, until the end of a moment
	behind             // sent by a goroutine
	inQueue            // sent by the batcher, with others
	inRoom             // sent alone, once its node has room
)

// wayOf chooses the way of a flight. The flight then has a slot of the batcher, or is in its queue.
// go-redis spreads calls over the nodes of a cluster, and WAIT takes long: these are in a room.
func (w *Wire) wayOf(l *lone, c *Call, p *progress) way {
	if w.cluster != nil || c.Acks.Wanted() > 0 {
		return inRoom
	}
	way := behind
	switch f := &l.flight; {
	case w.isDirect(l):
		way = direct
	case w.isInTime(f.ctx, c, p):
		way = inTime
	}
	if !w.batcher.enter(&l.flight) {
		return inQueue
	}
	return way
}

// isDirect reports whether nothing ends the call before go-redis.
func (w *Wire) isDirect(l *lone) bool {
	return l.spec.patience <= 0 && !lifetime.Within(l.flight.ctx, w.readTimeout)
}

// sendBehind lets a goroutine send a flight, as go-redis would not notice the end of the call.
func (w *Wire) sendBehind(l *lone, c *Call, p *progress, own slot) outcome {
	f, ctx := &l.flight, l.flight.ctx
	if l.spec.patience > 0 {
		var cancel context.CancelFunc
		f.ctx, cancel = context.WithTimeout(ctx, l.spec.patience)
		defer cancel()
	}
	f.done = make(chan struct{})
	inner := w.contextOf(l, p)
	l.begun.Store(math.MaxInt64) // not yet
	w.group.Add()
	go w.sendAlone(inner, l, own)
	if l.brief.moment == nil || !c.mayRunTwice() {
		return w.await(ctx, f)
	}
	return w.awaitQuick(ctx, l)
}

// sendAlone is sendAsync of a flight alone, in a goroutine of the group.
func (w *Wire) sendAlone(ctx context.Context, l *lone, own slot) {
	o := outcome{err: errHook} // if a hook of go-redis ends the goroutine
	defer func() {
		l.flight.finish(o)
		w.batcher.yield()
		own.leave()
		w.group.Leave()
	}()
	l.begun.Store(int64(time.Since(w.start)))
	w.exchange(ctx, l.alone())
	o = l.call.outcome(0)
}

// waitInQueue waits for the outcome of a flight that the batcher sends. The attempt begins when the
// flight leaves the queue.
func (w *Wire) waitInQueue(l *lone, c *Call, p *progress) outcome {
	f := &l.flight
	end := lifetime.Await(f.ctx, f.done, w.silences.At(p.Sent))
	if end == lifetime.AtMoment {
		if c.Report != nil {
			c.Report.Retrying(c.Script.Name, p.attempts, p.begun, cmp.Or(p.last, errNoAnswer))
		}
		end = lifetime.Await(f.ctx, f.done, nil)
	}
	o := w.outcomeOf(f.ctx, f, end)
	p.send(f.since)
	return o
}

// sendInRoom sends a flight alone. Its patience begins when there is room.
func (w *Wire) sendInRoom(l *lone, c *Call, p *progress) outcome {
	own := w.enterRoom(&l.flight)
	if own == nil {
		return outcome{err: l.flight.ctx.Err()}
	}
	l.flight.since = time.Now()
	p.send(l.flight.since)
	if !w.isDirect(l) {
		return w.sendBehind(l, c, p, own)
	}
	defer own.leave()
	w.exchange(w.contextOf(l, p), l.alone())
	return l.call.outcome(0)
}

// await returns the outcome of a flight, or the end of its context. ctx is the caller's.
func (w *Wire) await(ctx context.Context, f *flight) outcome {
	return w.outcomeOf(ctx, f, lifetime.Await(f.ctx, f.done, nil))
}

// awaitQuick is await of a quick attempt, which is over at the end of a moment. The moments count
// from the send: a goroutine that begins late has sent nothing that a repeat would double.
func (w *Wire) awaitQuick(ctx context.Context, l *lone) outcome {
	f, moment := &l.flight, l.brief.moment
	end := lifetime.Await(f.ctx, f.done, moment)
	for end == lifetime.AtMoment && time.Since(w.start)-time.Duration(l.begun.Load()) < quickLimit {
		moment = w.quick.moments.At(time.Now())
		end = lifetime.Await(f.ctx, f.done, moment)
	}
	if end == lifetime.AtMoment {
		late, cancel := context.WithTimeout(context.Background(), quickAnswer)
		defer cancel()
		end = lifetime.Await(f.ctx, f.done, late) // go-redis may say that it had no connection until now
	}
	return w.outcomeOf(ctx, f, end)
}

// outcomeOf returns the outcome of a flight whose wait has ended.
func (w *Wire) outcomeOf(ctx context.Context, f *flight, end lifetime.End) outcome {
	switch {
	case end == lifetime.AtDone:
		return f.outcome
	case end == lifetime.AtMoment:
		return outcome{err: givenUp(time.Since(f.since), false)}
	case w.batcher.forget(f):
		return outcome{err: f.ctx.Err()}
	}
	select {
	case <-f.done: // at the same time
		return f.outcome
	default:
		return outcome{err: givenUp(time.Since(f.since), ctx.Err() == nil)}
	}
}
