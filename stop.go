package relock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// WithStop returns a context like ctx for a service that shuts down gracefully. When stop is done,
// calls under the result get no lock any more: waits end, and new calls are refused, with the cause
// of stop. Sections go on until ctx ends, and so do calls inside open sections, so that the work
// that has begun comes to its end. A wait that ends so matches the error of stop, and [ErrLocked]
// if another hold had the lock.
//
// With a server, ctx is the base context of all requests, and stop ends at the signal. If WithStop
// is called again under the result, the later stop counts.
func WithStop(ctx, stop context.Context) context.Context {
	if ctx == nil || stop == nil {
		panic(errNilContext)
	}
	return context.WithValue(ctx, stopKey, stop)
}

// stoppable returns a context that ends with ctx, and with the stop around caller. Inside an open
// section nothing stops a call. cancel is nil if there is nothing to cancel.
func stoppable(ctx, caller context.Context) (stopped context.Context, cancel context.CancelFunc) {
	stop, is := caller.Value(stopKey).(context.Context)
	if !is {
		return ctx, nil
	}
	if _, inside := HolderFrom(caller); inside {
		return ctx, nil
	}
	stop = &lifetime.Guarded{Context: stop}
	ctx, end := context.WithCancelCause(&lifetime.Guarded{Context: ctx})
	after := context.AfterFunc(stop, func() { end(&stopError{context.Cause(stop)}) })
	if stop.Err() != nil {
		end(&stopError{context.Cause(stop)})
	}
	return ctx, func() { after(); end(nil) }
}

// stopError is the cause of a wait that a stop has ended.
type stopError struct{ cause error }

func (e *stopError) Error() string { return fmt.Sprintf("stopped: %v", e.cause) }
func (e *stopError) Unwrap() error { return e.cause }

func isStop(err error) bool {
	var stop *stopError
	return errors.As(err, &stop)
}

// stopper ends a context early.
type stopper interface{ Stop() }

// bound returns a context that ends with ctx, with the client, and after wait if wait is above 0.
func (c *Client) bound(ctx context.Context, wait time.Duration) (context.Context, stopper) {
	switch {
	case wait > 0:
		e := lifetime.EndingAfter(ctx, c.life, wait, errWaitOver)
		return e, e
	case ctx.Done() == nil:
		return lifetime.Of(c.life, ctx), endless{}
	default:
		e := lifetime.EndingWith(ctx, c.life)
		return e, e
	}
}

type endless struct{}

func (endless) Stop() {}

// boundCall is bound for a call that asks for a lock: the stop around caller ends the context, too.
func (c *Client) boundCall(ctx, caller context.Context, wait time.Duration) (context.Context, stopper) {
	ctx, end := c.bound(ctx, wait)
	ctx, cancel := stoppable(ctx, caller)
	if cancel == nil {
		return ctx, end
	}
	return ctx, both{stopFunc(cancel), end}
}

// answerLimit is how long a call that does not wait gives a store to answer, or a little longer.
const answerLimit = 2 * time.Second

// boundClaim is boundCall for the claim of a call, which has answerLimit if it does not wait.
func (c *Client) boundClaim(ctx, caller context.Context, wait time.Duration, acks store.Acks) (context.Context, stopper) {
	ctx, end := c.boundCall(ctx, caller, wait)
	var limited *lifetime.Ending
	switch {
	case wait != 0:
		return ctx, end
	case acks.Timeout > 0:
		limited = lifetime.EndingAfter(ctx, c.life, answerLimit+acks.Timeout, errSilent)
	default:
		limited = lifetime.EndingWith(ctx, c.answers.At(time.Now()))
	}
	return limited, both{limited, end}
}

type both struct{ inner, outer stopper }

func (b both) Stop() { b.inner.Stop(); b.outer.Stop() }

type stopFunc context.CancelFunc

func (f stopFunc) Stop() { f() }
