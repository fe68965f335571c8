package relock

import (
	"context"
	"sync"
	"time"
)

// lifetime is the context of a frame: it ends when its parent does, or when the frame is over. It is what [context.WithCancelCause]
// makes of the parent, but made only when somebody waits for its end, or when it has ended and somebody asks how. Until then there
// is no channel, and the parent knows of no child: most of what a nested pair that asks nobody would cost.
type lifetime struct {
	parent context.Context

	mu     sync.Mutex              // nothing of the parent's is called with it held
	made   context.Context         // once there is one, it decides
	cancel context.CancelCauseFunc // of made
	cause  error                   // why the frame is over; until there is something made, it decides
}

var _ context.Context = (*lifetime)(nil)

func (l *lifetime) Deadline() (time.Time, bool) { return l.parent.Deadline() }

func (l *lifetime) Done() <-chan struct{} { return l.context().Done() }

func (l *lifetime) Err() error {
	if l.isOpen() && l.parent.Err() == nil {
		return nil
	}
	return l.context().Err()
}

// Value also has what [context.Cause] looks for, which asks here once Err has said that this has ended.
func (l *lifetime) Value(key any) any {
	if l.isOpen() {
		return l.parent.Value(key)
	}
	return l.context().Value(key)
}

// isOpen says whether there is nothing to know but what the parent knows.
func (l *lifetime) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made == nil && l.cause == nil
}

// end is the end of the frame. Whatever ended it first is why it has ended.
func (l *lifetime) end(cause error) {
	if l.parent.Err() != nil {
		l.context()
	}
	l.mu.Lock()
	cancel := l.cancel
	if l.cause == nil {
		l.cause = cause
	}
	l.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// context is what the standard library makes.
func (l *lifetime) context() context.Context {
	for {
		l.mu.Lock()
		made, cause := l.made, l.cause
		l.mu.Unlock()
		if made != nil {
			return made
		}
		parent := l.parent
		if cause != nil { // the parent may have ended since
			parent = context.WithoutCancel(parent)
		}
		made, cancel := context.WithCancelCause(parent)
		if cause != nil {
			cancel(cause)
		}
		l.mu.Lock()
		if l.made == nil && (l.cause == nil) == (cause == nil) {
			l.made, l.cancel = made, cancel
			l.mu.Unlock()
			return made
		}
		l.mu.Unlock()
		cancel(nil) // somebody was faster
	}
}
