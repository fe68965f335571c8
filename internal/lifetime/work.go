package lifetime

import (
	"context"
	"time"
)

// Outliving returns a context for a call that takes a lock for work which may outlive ctx. The
// context has the values of ctx, and ends with ctx as long as the call goes on. The creator calls
// keep when the call has returned: from then on the context, and a section under it, go on without
// ctx. keep returns false if ctx has ended before.
func Outliving(ctx context.Context) (asking context.Context, keep func() bool) {
	caller := &Guarded{ctx}
	asking, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	return asking, context.AfterFunc(caller, func() { cancel(context.Cause(caller)) })
}

// Work returns the context of work in a section that outlives caller, and a function that ends it.
// The context has the values of section, the deadline of caller, and ends with either.
func Work(section, caller context.Context) (work context.Context, end func()) {
	guarded := &Guarded{caller}
	both := EndingWith(section, guarded)
	return workContext{both, guarded}, both.Stop
}

type workContext struct {
	*Ending
	caller context.Context
}

func (c workContext) Deadline() (time.Time, bool) { return c.caller.Deadline() }
