package locktest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/caller"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// Client returns a client for a test of a program that locks: its locks are in memory, in a store of
// their own. The client is closed at the end of the test, which fails if a section is open then, see
// [NoneOpen]. In a testing/synctest bubble, give Client the bubble's t.
func Client(t testing.TB, options ...relock.Option) *relock.Client {
	t.Helper()
	return ClientOn(t, mem.New(), options...)
}

// ClientOn is [Client] for a store that clients share, as processes share a server. Hooks among the
// options take the place of those of NoneOpen: join them. A client that is to leave a section open,
// as a process that crashes does, comes from [relock.Open].
func ClientOn(t testing.TB, s store.Store, options ...relock.Option) *relock.Client {
	t.Helper()
	client, err := relock.Open(s, append([]relock.Option{relock.WithHooks(NoneOpen(t))}, options...)...)
	if err != nil {
		t.Fatalf("locktest: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("locktest: %v", err)
		}
	})
	return client
}

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
