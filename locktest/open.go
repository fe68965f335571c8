package locktest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/caller"
)

// NoneOpen returns hooks that fail a test which leaves a section open: at the end of the test, or
// when it closes the client. It is for tests of programs that lock:
//
//	client, err := relock.Open(mem.New(), relock.WithHooks(locktest.NoneOpen(t)))
//
// A section that was lost is over.
func NoneOpen(t testing.TB) event.Hooks {
	t.Helper()
	o := &open{sections: map[*int]string{}}
	t.Cleanup(func() {
		for range 1000 { // the end of a section is told a moment after its Unlock
			if o.isEmpty() {
				break
			}
			<-time.After(time.Millisecond)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, what := range o.sections {
			t.Errorf("locktest: no Unlock of %s", what)
		}
	})
	return event.Hooks{Trace: o.begin}
}

// open is the sections that are open, or were when their client was closed.
type open struct {
	mu       sync.Mutex
	sections map[*int]string
	closed   int
}

func (o *open) begin(s event.AcquireStarted) (context.Context, event.TraceFinished) {
	taken := "at " + caller.Line(nil)
	if taken == "at " {
		taken = "by a candidate, which goes on" // of Campaign, in a goroutine of its own
	}
	return s.Context, func(section context.Context, e event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
		if e.Err != nil || e.Depth > 1 {
			return section, nil
		}
		key := new(int)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.sections[key] = fmt.Sprintf("%q, taken %s", e.Name, taken)
		return section, func(end event.TraceEnded) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if end.Closed {
				o.closed++
			} else {
				delete(o.sections, key)
			}
		}
	}
}

// isEmpty says that there is nothing to wait for.
func (o *open) isEmpty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.sections) == o.closed
}
