// Package lifetime makes contexts with ends known in advance. A command needs no second goroutine
// to wait for the end of the context if the context cannot end while the command is in flight.
// Package lifetime also turns a lease into the milliseconds that servers count in.
package lifetime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Within says whether ctx may end within d from now.
func Within(ctx context.Context, d time.Duration) bool {
	switch c := ctx.(type) {
	case *of:
		return false
	case *Either:
		return true
	case *Limited:
		return time.Until(c.deadline) < d
	default:
		return ctx.Done() != nil
	}
}

// Loose returns a context with the values of ctx for a command that is sure to be answered soon. Of
// a context of this package, the result may end later than ctx, and costs nothing to wait for.
func Loose(ctx context.Context) context.Context {
	switch c := ctx.(type) {
	case *Limited:
		return c.values
	case *Either:
		if inner, is := c.parent.Context.(*Either); is {
			return Loose(inner)
		}
		return &c.parent
	default:
		return ctx
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

// Ends returns channels of which one is closed when ctx ends, and others are nil. A context of
// EndingWith then need not be made.
func Ends(ctx context.Context) [3]<-chan struct{} {
	e, is := ctx.(*Either)
	if !is || !e.deadline.IsZero() || e.isNeeded() {
		return [3]<-chan struct{}{ctx.Done()}
	}
	if inner, is := e.parent.Context.(*Either); is {
		if ends := Ends(inner); ends[2] == nil {
			return [3]<-chan struct{}{e.other.Done(), ends[0], ends[1]}
		}
	}
	return [3]<-chan struct{}{e.other.Done(), e.parent.Done()}
}

// Limited is a context of Until.
type Limited struct {
	caller   Guarded
	values   context.Context // of caller
	deadline time.Time
	late
}

// Until returns a context with the values of ctx that ends at a deadline, and not with ctx. The
// caller ends the context with Stop.
func Until(ctx context.Context, deadline time.Time) *Limited {
	l := &Limited{caller: Guarded{ctx}, deadline: deadline}
	l.values = context.WithoutCancel(&l.caller)
	return l
}

// Deadline implements [context.Context].
func (l *Limited) Deadline() (time.Time, bool) { return l.deadline, true }

// Done implements [context.Context].
func (l *Limited) Done() <-chan struct{} { return l.real(l).Done() }

// Err implements [context.Context].
func (l *Limited) Err() error {
	if !l.isNeeded() && time.Now().Before(l.deadline) {
		return nil
	}
	return l.real(l).Err()
}

// Value implements [context.Context].
func (l *Limited) Value(key any) any {
	if l.isNeeded() {
		return l.real(l).Value(key)
	}
	return l.values.Value(key)
}

func (l *Limited) begin() (context.Context, context.CancelFunc) {
	return context.WithDeadline(l.values, l.deadline)
}

// Either is a context of EndingWith.
type Either struct {
	parent   Guarded
	other    context.Context
	deadline time.Time // zero: none
	cause    error     // of the deadline
	late
}

// EndingWith returns a context with the values of ctx that ends with ctx, and with other and its
// cause. The caller ends the context with Stop.
func EndingWith(ctx, other context.Context) *Either {
	return &Either{parent: Guarded{ctx}, other: other}
}

// EndingAfter is EndingWith, and the context ends with a cause when wait is over.
func EndingAfter(ctx, other context.Context, wait time.Duration, cause error) *Either {
	return &Either{parent: Guarded{ctx}, other: other, deadline: time.Now().Add(wait), cause: cause}
}

// Deadline implements [context.Context].
func (e *Either) Deadline() (time.Time, bool) {
	deadline, is := e.parent.Deadline()
	if !e.deadline.IsZero() && (!is || e.deadline.Before(deadline)) {
		return e.deadline, true
	}
	return deadline, is
}

// Done implements [context.Context].
func (e *Either) Done() <-chan struct{} { return e.real(e).Done() }

// Err implements [context.Context].
func (e *Either) Err() error {
	goesOn := e.deadline.IsZero() || time.Now().Before(e.deadline)
	if goesOn && !e.isNeeded() && e.parent.Err() == nil && e.other.Err() == nil {
		return nil
	}
	return e.real(e).Err()
}

// Value implements [context.Context].
func (e *Either) Value(key any) any {
	if e.isNeeded() {
		return e.real(e).Value(key)
	}
	return e.parent.Value(key)
}

func (e *Either) begin() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(&e.parent)
	stop := context.AfterFunc(e.other, func() { cancel(context.Cause(e.other)) })
	if e.other.Err() != nil {
		cancel(context.Cause(e.other))
	}
	timed := func() {}
	if !e.deadline.IsZero() {
		ctx, timed = context.WithDeadlineCause(ctx, e.deadline, e.cause)
	}
	return ctx, func() { stop(); timed(); cancel(nil) }
}

// late is a context that is made when it ends, or when somebody waits for its end: most commands are
// answered before.
type late struct {
	mu      sync.Mutex
	ctx     context.Context // nil: nobody needs it yet
	cancel  context.CancelFunc
	stopped bool
}

// real returns the context, which b begins at the first call.
func (l *late) real(b interface {
	begin() (context.Context, context.CancelFunc)
}) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		l.ctx, l.cancel = b.begin()
		if l.stopped {
			l.cancel()
		}
	}
	return l.ctx
}

// isNeeded says whether the context is made, or has been stopped before.
func (l *late) isNeeded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctx != nil || l.stopped
}

// Stop ends the context. Stop may be called again.
func (l *late) Stop() {
	l.mu.Lock()
	l.stopped = true
	cancel := l.cancel
	l.mu.Unlock()
	if cancel != nil { // may come back, through a child
		cancel()
	}
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
