// Package lifetime makes contexts with ends known in advance. A command needs no second goroutine
// to wait for the end of the context if the context cannot end while the command is in flight.
package lifetime

import (
	"context"
	"sync"
	"time"
)

// Within says whether ctx may end within d from now.
func Within(ctx context.Context, d time.Duration) bool {
	switch c := ctx.(type) {
	case *of:
		return false
	case *until:
		return time.Until(c.deadline) < d
	default:
		return ctx.Done() != nil
	}
}

// of is a context of Of.
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

// until is a context of Until. The timer starts with the first call of Done.
type until struct {
	context.Context // has the values, and never ends
	deadline        time.Time

	mu     sync.Mutex
	timed  context.Context // nil: nobody waits yet
	cancel context.CancelFunc
	ended  bool // the CancelFunc was called
}

// Until returns a context with the values of ctx that ends at a deadline, and not with ctx. The
// CancelFunc ends the context early.
func Until(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	c := &until{Context: context.WithoutCancel(ctx), deadline: deadline}
	return c, c.stop
}

func (c *until) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *until) Done() <-chan struct{} { return c.wait().Done() }

func (c *until) wait() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadline(c.Context, c.deadline)
		if c.ended {
			c.cancel()
		}
	}
	return c.timed
}

func (c *until) Err() error {
	c.mu.Lock()
	timed, ended := c.timed, c.ended
	c.mu.Unlock()
	switch {
	case timed != nil:
		return timed.Err()
	case ended:
		return context.Canceled
	case time.Now().Before(c.deadline):
		return nil
	default:
		return c.wait().Err()
	}
}

func (c *until) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}
