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
	case *Ending:
		return c.other != nil || time.Until(c.deadline) < d
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

// Ending is a context of [Until], [EndingWith] or [EndingAfter]. Package context makes the end of
// an Ending when the first caller asks for Done, or when the Ending has ended: most commands are
// answered before. The creator calls Stop, as the CancelFunc of a context.
type Ending struct {
	caller   Guarded
	other    context.Context // ends the Ending, as caller does; nil: only the deadline ends the Ending
	deadline time.Time       // zero: none
	cause    error           // of the deadline; nil: DeadlineExceeded

	mu      sync.Mutex
	made    context.Context // nil: not yet
	cancel  context.CancelFunc
	stopped bool
}

// Until returns a context with the values of ctx that ends at a deadline, and not with ctx.
func Until(ctx context.Context, deadline time.Time) *Ending {
	return &Ending{caller: Guarded{ctx}, deadline: deadline}
}

// EndingWith returns a context with the values of ctx that ends with ctx, and with other and its
// cause.
func EndingWith(ctx, other context.Context) *Ending {
	return &Ending{caller: Guarded{ctx}, other: other}
}

// EndingAfter is EndingWith, and the context ends with a cause when wait is over.
func EndingAfter(ctx, other context.Context, wait time.Duration, cause error) *Ending {
	e := EndingWith(ctx, other)
	e.deadline, e.cause = time.Now().Add(wait), cause
	return e
}

// Deadline implements [context.Context].
func (e *Ending) Deadline() (time.Time, bool) {
	if e.other == nil {
		return e.deadline, true
	}
	deadline, is := e.caller.Deadline()
	if !e.deadline.IsZero() && (!is || e.deadline.Before(deadline)) {
		return e.deadline, true
	}
	return deadline, is
}

// Done implements [context.Context].
func (e *Ending) Done() <-chan struct{} { return e.make().Done() }

// Err implements [context.Context].
func (e *Ending) Err() error {
	if !e.isMade() && (e.other == nil || e.caller.Err() == nil && e.other.Err() == nil) &&
		(e.deadline.IsZero() || time.Now().Before(e.deadline)) {
		return nil
	}
	return e.make().Err()
}

// Value implements [context.Context].
func (e *Ending) Value(key any) any {
	if e.isMade() {
		return e.make().Value(key) // context.Cause asks for a value of package context
	}
	return e.parent().Value(key)
}

// parent returns the context of the caller, without its end if the end does not end the Ending.
func (e *Ending) parent() context.Context {
	if e.other == nil {
		return context.WithoutCancel(&e.caller)
	}
	return &e.caller
}

// Stop ends the context. Stop may be called again.
func (e *Ending) Stop() {
	e.mu.Lock()
	e.stopped = true
	cancel := e.cancel
	e.mu.Unlock()
	if cancel != nil { // without the mutex, as a child that ends asks its parents
		cancel()
	}
}

// isMade says whether package context has made the end, or has to, as the context was stopped.
func (e *Ending) isMade() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.made != nil || e.stopped
}

func (e *Ending) make() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.made == nil {
		e.made, e.cancel = e.begin()
		if e.stopped {
			e.cancel()
		}
	}
	return e.made
}

func (e *Ending) begin() (context.Context, context.CancelFunc) {
	if e.other == nil {
		return context.WithDeadlineCause(e.parent(), e.deadline, e.cause)
	}
	ctx, cancel := context.WithCancelCause(e.parent())
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

// IsUnmade says whether ctx is an [Ending] whose Done would have to make its end.
func IsUnmade(ctx context.Context) bool {
	e, is := ctx.(*Ending)
	return is && !e.isMade()
}

// End is how a wait of [Await] ends.
type End int

// The ends of a wait.
const (
	AtDone    End = iota // done is closed
	AtMoment             // the moment is over
	AtContext            // the context has ended
)

// Await waits until done is closed, moment is over, or ctx ends. A moment of nil lasts for ever.
func Await(ctx context.Context, done <-chan struct{}, moment context.Context) End {
	var over <-chan struct{}
	if moment != nil {
		over = moment.Done()
	}
	ends := endsOf(ctx)
	select {
	case <-done:
		return AtDone
	case <-over:
		return AtMoment
	case <-ends[0]:
	case <-ends[1]:
	case <-ends[2]:
	}
	return AtContext
}

// endsOf returns channels of which one is closed when ctx ends. The others are nil, or belong to
// contexts that end ctx. Where that is enough, endsOf does not make the end of an [Ending].
func endsOf(ctx context.Context) [3]<-chan struct{} {
	e, is := ctx.(*Ending)
	if !is || e.other == nil || !e.deadline.IsZero() || e.isMade() {
		return [3]<-chan struct{}{ctx.Done()}
	}
	if inner, is := e.caller.Context.(*Ending); is {
		if ends := endsOf(inner); ends[2] == nil {
			return [3]<-chan struct{}{e.other.Done(), ends[0], ends[1]}
		}
	}
	return [3]<-chan struct{}{e.other.Done(), e.caller.Done()}
}

// Ended returns the end of a done context as an error. The error matches both ctx.Err and the
// cause, which differ if a context was cancelled with a cause of its own.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err || errors.Is(cause, err) { // the quick way: mostly there is no cause
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

// Guarded is a context of a caller for goroutines of the library, where a method of the context
// that panics would end the process. Such a context has no value and no deadline, and has ended.
// Every child of a foreign context needs a guard: a child that ends asks its parents.
type Guarded struct{ context.Context }

// Deadline implements [context.Context].
func (g *Guarded) Deadline() (deadline time.Time, ok bool) {
	defer survive()
	return g.Context.Deadline()
}

// Done implements [context.Context].
func (g *Guarded) Done() (done <-chan struct{}) {
	done = over // the result after a panic
	defer survive()
	return g.Context.Done()
}

// Err implements [context.Context].
func (g *Guarded) Err() (err error) {
	err = context.Canceled // the result after a panic
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
	stop = func() bool { return false } // the result after a panic
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
