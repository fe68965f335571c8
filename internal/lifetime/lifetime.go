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
	values Guarded
}

// Of returns a context that ends with life, and has the values of another context. life has to be
// long, as Within ignores its end.
func Of(life, values context.Context) context.Context { return &of{life, Guarded{values}} }

func (c *of) Value(key any) any {
	if v := c.Context.Value(key); v != nil { // context.Cause asks for a value of life
		return v
	}
	return c.values.Value(key)
}

type until struct {
	context.Context
	values Guarded
}

// Until returns a context with the values of ctx that ends at a deadline, and not with ctx. The
// CancelFunc ends the context early.
func Until(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	u := &until{values: Guarded{ctx}}
	var cancel context.CancelFunc
	u.Context, cancel = context.WithDeadline(context.WithoutCancel(&u.values), deadline)
	return u, cancel
}

// Ended returns the end of a done context as an error. The error matches both ctx.Err and the
// cause, which differ if a context was cancelled with a cause of its own.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err || errors.Is(cause, err) { //nolint:errorlint // the quick way: mostly there is no cause
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

// Guarded is a context of a caller for goroutines of the library, where a method of the context that
// panics would end the process. Such a context has no value and no deadline, and has ended. Every
// child of a foreign context needs a guard: a child that ends asks its parents.
type Guarded struct{ context.Context }

// Deadline implements [context.Context].
func (g *Guarded) Deadline() (deadline time.Time, ok bool) {
	defer survive()
	return g.Context.Deadline()
}

// Done implements [context.Context].
func (g *Guarded) Done() (done <-chan struct{}) {
	done = over //nolint:wastedassign // the result after a panic
	defer survive()
	return g.Context.Done()
}

// Err implements [context.Context].
func (g *Guarded) Err() (err error) {
	err = context.Canceled //nolint:wastedassign // the result after a panic
	defer survive()
	return g.Context.Err()
}

// Value implements [context.Context].
func (g *Guarded) Value(key any) (value any) {
	defer survive()
	return g.Context.Value(key)
}

// AfterFunc is called by package context for a context that is not its own, in place of a goroutine
// if the context has such a method.
func (g *Guarded) AfterFunc(f func()) (stop func() bool) {
	stop = func() bool { return false } //nolint:wastedassign // the result after a panic
	defer survive()
	a, is := g.Context.(interface{ AfterFunc(f func()) func() bool })
	if !is {
		return context.AfterFunc(struct{ context.Context }{g}, f)
	}
	inner := a.AfterFunc(f)
	return func() (stopped bool) {
		defer survive()
		return inner()
	}
}

// over is closed.
var over = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func survive() { _ = recover() }

// Millis returns a time in whole milliseconds, rounded up: a lease never gets shorter.
func Millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
