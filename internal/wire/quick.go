package wire

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/lifetime"
)

// A server that has just answered within quickAnswer is expected to do so again, so the next
// attempt of a call is a quick one. A quick attempt waits for a connection until the end of a
// moment, which it shares with others, and needs no timer and no watch of its context. If its
// context can end, it waits for the answer until then, too. If rdb keeps deadlines, such an attempt
// is sent by its caller, and waits for its answer for quickLimit. An attempt that is over without
// an answer is repeated at once, and not as a quick one. So nobody notices the end of a context
// later than 4 * quickLimit. The limits count from the send, and no call that has to queue is a
// quick one: a process or a server that is late for a while makes no repeats.

const (
	quickLimit  = 25 * time.Millisecond
	quickAnswer = 5 * time.Millisecond
)

// quick is what a Wire knows of the speed of its server.
type quick struct {
	is            atomic.Bool  // the last answer to a call that was sent alone came within quickAnswer
	at            atomic.Int64 // its time, since Wire.start
	keepsDeadline bool         // rdb stops waiting for an answer at the deadline of a context
	moments       lifetime.Moments
}

// keepsDeadline reports whether rdb stops waiting for an answer at the deadline of a context.
func keepsDeadline(rdb redis.UniversalClient) bool {
	plain, is := rdb.(*redis.Client)
	return is && plain.Options().ContextTimeoutEnabled
}

// brief is the context of a quick attempt for go-redis: it has the values of the call's context,
// and ends with its moment.
type brief struct {
	context.Context
	moment  context.Context // nil: this is no quick attempt
	ofReply bool            // the deadline is that of a reply, which is awaited from now on
}

// Deadline is asked for by go-redis when a command is written, and when its reply is to be read.
func (b *brief) Deadline() (time.Time, bool) {
	if b.ofReply {
		return time.Now().Add(quickLimit), true
	}
	return b.Context.Deadline()
}

func (b *brief) Done() <-chan struct{} { return b.moment.Done() }
func (b *brief) Err() error            { return b.moment.Err() }

// contextOf returns the context for go-redis of a flight alone. For a quick attempt it is one that
// nobody has to make.
func (w *Wire) contextOf(l *lone, p *progress) context.Context {
	ctx := l.flight.ctx
	if p.late || !w.quick.is.Load() || !lifetime.IsUnmade(ctx) {
		return ctx
	}
	l.brief = brief{Context: ctx, moment: w.quick.moments.At(l.flight.since)}
	return &l.brief
}

// mayRunTwice reports whether a repeat of a call does no harm.
func (c *Call) mayRunTwice() bool { return !c.NoRepeat && c.Acks.Wanted() == 0 }

// isInTime reports whether the caller sends, and gives the call up after quickLimit: a repeat does
// no harm, and the call has more time.
func (w *Wire) isInTime(ctx context.Context, c *Call, p *progress) bool {
	if p.late || !w.quick.is.Load() || !w.quick.keepsDeadline || !c.mayRunTwice() {
		return false
	}
	deadline, ends := ctx.Deadline()
	return (!ends || time.Until(deadline) > quickLimit) && (c.Patience <= 0 || c.Patience > quickLimit)
}

// sendInTime sends a flight in a slot of the batcher, which the end of the send gives back, and
// gives the flight up after quickLimit.
func (w *Wire) sendInTime(l *lone) outcome {
	defer w.batcher.leave() // also if a hook of go-redis ends the goroutine
	l.brief = brief{Context: l.flight.ctx, moment: w.quick.moments.At(l.flight.since), ofReply: true}
	w.exchange(&l.brief, l.alone())
	o := l.call.outcome(0)
	if judge(o.err) == unknown && isTimeout(o.err) {
		o.err = givenUp(time.Since(l.flight.since), false)
	}
	return o
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// wasQuick reports whether the server was quick just before a time. Otherwise it may be away.
func (w *Wire) wasQuick(now time.Time) bool {
	return w.quick.is.Load() && now.Sub(w.start)-time.Duration(w.quick.at.Load()) < silence
}

// noteSpeed notes how quick the attempt of a flight alone was, and whether the attempt was a quick
// one that is to be repeated.
func (w *Wire) noteSpeed(l *lone, o *outcome) {
	now := time.Now()
	w.quick.is.Store(o.err == nil && now.Sub(l.flight.since) <= quickAnswer)
	w.quick.at.Store(int64(now.Sub(w.start)))
	isOver := isContextEnd(o.err) || errors.Is(o.err, ErrGivenUp)
	o.late = l.brief.moment != nil && isOver && l.flight.ctx.Err() == nil
}
