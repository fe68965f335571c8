package wire

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/lifetime"
)

// While the server is quick, nobody prepares for its silence. A command that its caller sends anyway
// has a context without a timer. With ContextTimeoutEnabled, a caller whose context can end sends
// its call, too, and gives the call up after briskLimit. The repeat takes a goroutine, and so does
// every call until an attempt is answered within quickAnswer again.

const (
	// briskLimit is how late a caller may notice the end of its context.
	briskLimit = 25 * time.Millisecond
	// quickAnswer is the time of an answer after which the server counts as quick.
	quickAnswer = 5 * time.Millisecond
)

// stopsAtDeadlines reports whether rdb stops waiting for a reply at the deadline of a context.
func stopsAtDeadlines(rdb redis.UniversalClient) bool {
	plain, is := rdb.(*redis.Client)
	return is && plain.Options().ContextTimeoutEnabled
}

// isBrisk reports whether a call may be sent briskly: a repeat does no harm, and is not needed soon.
func (w *Wire) isBrisk(ctx context.Context, c *Call) bool {
	if !w.stopsAtDeadlines || !w.quick.Load() || c.NoRepeat || c.Acks.Wanted() > 0 {
		return false
	}
	deadline, ends := ctx.Deadline()
	return (!ends || time.Until(deadline) > briskLimit) && (c.Patience <= 0 || c.Patience > briskLimit)
}

// brief is a context with a near deadline for go-redis, which has no timer.
type brief struct {
	context.Context
	deadline time.Time
}

func (b *brief) Deadline() (time.Time, bool) { return b.deadline, true }

// sendBriskly sends a call in a slot of the batcher, which it leaves. A loose context is that of the
// caller, which ends a wait for a connection.
func (w *Wire) sendBriskly(ctx context.Context, l *lone) outcome {
	defer w.batcher.leave() // also if a hook of go-redis ends the goroutine
	l.brief = brief{lifetime.Loose(ctx), l.flight.since.Add(briskLimit)}
	w.exchange(&l.brief, l.alone())
	o := l.call.outcome(0)
	if o.err == nil {
		return o
	}
	w.quick.Store(false)
	var timeout net.Error
	if judge(o.err) == unknown && errors.As(o.err, &timeout) && timeout.Timeout() {
		o.late, o.err = ctx.Err() == nil, givenUp(time.Since(l.flight.since), false)
	}
	return o
}
