// Package lifetime makes contexts with ends known in advance. A command needs no second goroutine
// to wait for the end of the context if the context cannot end while the command is in flight.
// Package lifetime also turns a lease into the milliseconds that servers count in.
package lifetime

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Within says whether ctx may end within d from now.
func Within(ctx context.Context, d time.Duration) bool {
	switch c := ctx.(type) {
	case *of:
		return false
	case *until:
		deadline, _ := c.Deadline()
		return time.Until(deadline) < d
	default:
		return ctx.Done() != nil
	}
}

type of struct {
	context.Context
	values context.Context
}

// Of returns a context that ends with life, and has the values of another context. life has to be
// long, as Within ignores its end.
func Of(life, values context.Context) context.Context { return &of{life, values} }

func (c *of) Value(key any) any {
	if v := c.Context.Value(key); v != nil { // context.Cause asks for a value of life
		return v
	}
	return c.values.Value(key)
}

type until struct{ context.Context }

// Until returns a context with the values of ctx that ends at a deadline, and not with ctx. The
// CancelFunc ends the context early.
func Until(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	timed, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	return &until{timed}, cancel
}

// Ended returns the end of a done context as an error. The error matches both ctx.Err and the
// cause, which differ if a context was cancelled with a cause of its own.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Sleep waits for d, and returns false if done is closed before.
func Sleep(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// Millis returns a time in whole milliseconds, rounded up: a lease never gets shorter.
func Millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
