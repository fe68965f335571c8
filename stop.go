package relock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-relock/relock/internal/lifetime"
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
