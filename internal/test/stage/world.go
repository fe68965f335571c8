package stage

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// A World is a store in memory and a clock in a testing/synctest bubble. Time stands still while
// anything in the world can run, and jumps to the next timer when nothing can. Commands take no
// time, so tests ask for exact times.
//
// The end of a test closes all clients of its world. A goroutine that is left over fails the test.
type World struct {
	Store *mem.Store
	Stage
}

// worldEnd is the time at which a world ends by force. A test that waits for ever would spin
// through fake time.
const worldEnd = 10 * 365 * 24 * time.Hour

// patience is the limit of a world.
const patience = 2 * time.Hour

// Fake runs a test in a world of its own.
func Fake(t *testing.T, test func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		end := time.AfterFunc(worldEnd, func() {
			debug.SetTraceback("all")
			panic(t.Name() + " waits for something that never comes")
		})
		t.Cleanup(func() { end.Stop() })
		t.Cleanup(func() { require.Zero(t, Goroutines("go-relock/relock.(*"), "goroutines of the library") })
		w := &World{Store: mem.New()}
		look := func(name string) (store.State, error) {
			return w.Store.Look(context.Background(), store.Claim{Name: name})
		}
		w.Stage = Stage{T: t, clock: fakeClock{}, look: look, Limit: patience}
		test(t, w)
	})
}

// Pass lets time pass, and lets everything happen that is due.
func Pass(d time.Duration) {
	<-time.After(d)
	Settle()
}

// Settle lets everything happen that can happen without time passing.
func Settle() { synctest.Wait() }

// A Member is a process, as a store sees processes: a Client with a link of its own.
type Member struct {
	*relock.Client
	Link *Link
}

// NewClient returns a Client as a process of its own would have it.
func (w *World) NewClient(options ...relock.Option) *Member {
	w.T.Helper()
	m := &Member{Link: NewLink(w.Store)}
	var err error
	m.Client, err = relock.Open(m.Link, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() {
		m.Link.Heal()
		require.NoError(w.T, m.Close())
	})
	return m
}

// Margin is by how much the deadline of a lease is earlier than its end. It repeats [store.Margin]
// on purpose, so that a test notices another margin.
func Margin(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// Goroutines counts the goroutines of this bubble with a function in their stack, once all have run
// as far as they can.
func Goroutines(function string) int {
	Settle()
	buf := make([]byte, 1<<20)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	count, bubble := 0, ""
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		header, _, _ := strings.Cut(stack, "\n")
		_, in, _ := strings.Cut(header, "synctest bubble ")
		if bubble == "" { // the first goroutine is ours
			bubble = in
		}
		if bubble == "" {
			panic("no bubble in " + header)
		}
		if in == bubble {
			count += strings.Count(stack, function)
		}
	}
	return count
}

// GiveUp begins a call whose command is kept, or lost, and ends its context.
func (w *World) GiveUp(ctx context.Context, lock Locking) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := w.Begin(ctx, lock)
	require.True(w.T, a.Waits())
	cancel()
	require.ErrorIs(w.T, a.Failure(), context.Canceled)
	require.Equal(w.T, a.Err, context.Cause(a.Ctx), "the context has ended")
	require.Zero(w.T, a.Took(), "the call returns promptly")
}

// OpenClient returns a Client of the world whose link hides nothing of its store.
func (w *World) OpenClient(options ...relock.Option) *relock.Client {
	w.T.Helper()
	c, err := relock.Open(w.Store, options...)
	require.NoError(w.T, err)
	w.T.Cleanup(func() { require.NoError(w.T, c.Close()) })
	return c
}

// NewPassing is NewClient of a process whose store passes leases on.
func (w *World) NewPassing(options ...relock.Option) *Member {
	w.T.Helper()
	m := w.NewClient(options...)
	m.Link.Passes = true
	return m
}

// Passing returns a client that passes its leases on, a section, and calls that stand behind it.
func Passing(t *testing.T, w *World, n int, options ...relock.Option) (*Member, *relock.Lock, context.Context, []*Attempt) {
	t.Helper()
	m := w.NewPassing(options...)
	l := m.NewLock("a")
	section := w.Enter(t.Context(), l)
	var waiting []*Attempt
	for range n {
		waiting = append(waiting, w.Start(t.Context(), l))
	}
	m.Link.Reset()
	return m, l, section, waiting
}

// LostBecause waits for the loss of a section, and returns how long that took.
func (w *World) LostBecause(section context.Context, reason event.LossReason) time.Duration {
	w.T.Helper()
	begun := time.Now()
	require.Equal(w.T, reason, w.Lost(section))
	return time.Since(begun)
}
