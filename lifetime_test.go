package relock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// foreign is a context of somebody else's making: the standard library does not know what it ends with.
type foreign struct {
	context.Context
	err  error
	done chan struct{}
}

func (f *foreign) Err() error            { return f.err }
func (f *foreign) Done() <-chan struct{} { return f.done }

// meddler is a context to which something happens while it is asked for the first time, behind the answer.
type meddler struct {
	context.Context
	atErr, atDone func()
}

func (m *meddler) Err() error {
	err := m.Context.Err()
	meddle(&m.atErr)
	return err
}

func (m *meddler) Done() <-chan struct{} {
	done := m.Context.Done()
	meddle(&m.atDone)
	return done
}

func meddle(f *func()) {
	if run := *f; run != nil {
		*f = nil
		run()
	}
}

// TestALifetimeIsWhatTheStandardLibraryMakes does the same to a lifetime and to what it stands for, in random order and under parents
// of every kind, and looks at both after each step.
func TestALifetimeIsWhatTheStandardLibraryMakes(t *testing.T) {
	type key string
	for range 3000 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		var past []string
		note := func(format string, args ...any) { past = append(past, fmt.Sprintf(format, args...)) }

		root, cancelRoot := context.WithCancelCause(context.WithValue(context.Background(), key("of the root"), 1))
		parent, refParent := root, root // those of a lifetime and of its model, which are each other's likeness
		var ends []func(error)          // of the lifetimes around it and their models
		for range r.IntN(3) {
			switch kind := r.IntN(5); kind {
			case 0:
				note("in a deadline")
				deadline := time.Now().Add(time.Duration(r.IntN(2)*2-1) * time.Hour)
				both, cancel := context.WithDeadline(parent, deadline)
				defer cancel()
				ref, cancel := context.WithDeadline(refParent, deadline)
				defer cancel()
				parent, refParent = both, ref
			case 1:
				note("without cancel")
				parent, refParent = context.WithoutCancel(parent), context.WithoutCancel(refParent)
			case 2:
				note("in a value")
				parent, refParent = context.WithValue(parent, key("between"), 2), context.WithValue(refParent, key("between"), 2)
			default:
				note("in a lifetime")
				outer := &lifetime{parent: parent}
				ref, cancel := context.WithCancelCause(refParent)
				ends = append(ends, func(err error) { outer.end(err); cancel(err) })
				parent, refParent = outer, ref
			}
		}
		l := &lifetime{parent: parent}
		ref, cancelRef := context.WithCancelCause(refParent)
		ends = append(ends, func(err error) { l.end(err); cancelRef(err) })
		type pair struct{ got, want context.Context }
		looked := []pair{{l, ref}}

		for step := range 1 + r.IntN(6) {
			switch r.IntN(6) {
			case 0:
				note("the root ends")
				cancelRoot(fmt.Errorf("root, step %d", step))
			case 1, 2:
				i := r.IntN(len(ends))
				note("end of %d", i)
				ends[i](fmt.Errorf("%d, step %d", i, step))
			case 3:
				note("somebody waits")
				_, _ = l.Done(), ref.Done()
			case 4:
				note("a child")
				got, cancelGot := context.WithCancel(l)
				defer cancelGot()
				want, cancelWant := context.WithCancel(ref)
				defer cancelWant()
				looked = append(looked, pair{got, want})
			case 5:
				note("only a look")
			}
			for i, p := range looked {
				if r.IntN(3) == 0 { // also steps of which nobody saw anything
					continue
				}
				where := fmt.Sprintf("context %d, seed %d: %q", i, seed, past)
				require.Equal(t, p.want.Err(), p.got.Err(), where)
				require.Equal(t, context.Cause(p.want), context.Cause(p.got), where)
				gotDeadline, gotOne := p.got.Deadline()
				wantDeadline, wantOne := p.want.Deadline()
				require.Equal(t, wantOne, gotOne, where)
				require.True(t, wantDeadline.Equal(gotDeadline), where)
				require.Equal(t, p.want.Value(key("of the root")), p.got.Value(key("of the root")), where)
				require.Equal(t, p.want.Value(key("between")), p.got.Value(key("between")), where)
				require.Nil(t, p.got.Value(key("nowhere")), where)
				if r.IntN(2) == 0 {
					require.Equal(t, isDone(p.want), isDone(p.got), where)
				}
			}
		}
		cancelRoot(nil)
		for _, end := range ends {
			end(errors.New("the test is over"))
		}
	}
}

func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// TestEverybodyIsToldOneEndOfALifetime has many look while it ends in several ways at once.
func TestEverybodyIsToldOneEndOfALifetime(t *testing.T) {
	errParent, errEnd := errors.New("the parent"), errors.New("the end")
	ends := map[error]int{}
	for range 2000 {
		parent, cancel := context.WithCancelCause(context.Background())
		l := &lifetime{parent: parent}
		var all sync.WaitGroup
		start := make(chan struct{})
		causes := make(chan error, 16)
		look := func(wait bool) {
			<-start
			if wait {
				<-l.Done()
			} else {
				for l.Err() == nil {
					runtime.Gosched()
				}
			}
			for range 3 {
				causes <- context.Cause(l)
			}
			if !isDone(l) || !errors.Is(l.Err(), context.Canceled) {
				causes <- errors.New("it ended, and then it had not")
			}
		}
		for i := range 4 {
			all.Go(func() { look(i%2 == 0) })
		}
		all.Go(func() { <-start; cancel(errParent) })
		all.Go(func() { <-start; l.end(errEnd) })
		close(start)
		all.Wait()
		close(causes)
		first := <-causes
		for cause := range causes {
			require.Equal(t, first, cause)
		}
		require.Contains(t, []error{errParent, errEnd}, first)
		ends[first]++
	}
	require.Len(t, ends, 2, "each was the first at some time")
}

func TestALifetimeThatWasSeenToEndWithItsParentHasNoOtherEnd(t *testing.T) {
	errParent := errors.New("the parent")
	for _, saw := range []struct {
		name string
		look func(l *lifetime)
	}{
		{"in passing", func(l *lifetime) { require.ErrorIs(t, l.Err(), context.Canceled) }},
		{"waiting", func(l *lifetime) { require.True(t, isDone(l)) }},
	} {
		t.Run(saw.name, func(t *testing.T) {
			parent, cancel := context.WithCancelCause(t.Context())
			var l *lifetime
			l = &lifetime{parent: &meddler{Context: parent, atErr: func() { // for whoever asks it has not ended, and then it has
				cancel(errParent)
				saw.look(l)
			}}}
			l.end(ErrReleased)
			require.Equal(t, errParent, context.Cause(l))
			require.True(t, isDone(l))
			require.Equal(t, errParent, context.Cause(l))
		})
	}
}

func TestALifetimeThatEndsWhileSomebodyBeginsToWaitHasEnded(t *testing.T) {
	var l *lifetime
	l = &lifetime{parent: &meddler{Context: t.Context(), atDone: func() { l.end(ErrReleased) }}}
	require.True(t, isDone(l))
	require.Equal(t, context.Canceled, l.Err())
	require.Equal(t, ErrReleased, context.Cause(l))
}

// TestALifetimeHasNotEndedBeforeItsParentSaysSoToThoseWhoWait is for contexts of somebody else's making, which may be late with that.
func TestALifetimeHasNotEndedBeforeItsParentSaysSoToThoseWhoWait(t *testing.T) {
	late := &foreign{Context: t.Context(), done: make(chan struct{})}
	l := &lifetime{parent: late}
	require.NoError(t, l.Err())
	late.err = context.DeadlineExceeded
	require.NoError(t, l.Err())
	require.False(t, isDone(l))
	close(late.done)
	<-l.Done()
	require.Equal(t, context.DeadlineExceeded, l.Err())
	l.end(ErrReleased)
	require.Equal(t, context.DeadlineExceeded, context.Cause(l))
}

// TestALifetimeThatNobodyWaitsForCostsItsParentNothing is what it is for.
func TestALifetimeThatNobodyWaitsForCostsItsParentNothing(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	defer cancel()
	var work context.Context // as a caller has it
	allocations := testing.AllocsPerRun(100, func() {
		l := &lifetime{parent: parent}
		work = l
		if work.Err() != nil {
			t.Error("it has ended")
		}
		l.end(ErrReleased)
	})
	require.LessOrEqual(t, allocations, 1.0)
	require.ErrorIs(t, context.Cause(work), ErrReleased)

	// One that is waited for is let go of by its parent when it is over, whatever that is.
	before := runtime.NumGoroutine()
	for range 100 {
		l := &lifetime{parent: &foreign{Context: parent, done: make(chan struct{})}}
		require.False(t, isDone(l))
		l.end(ErrReleased)
		require.True(t, isDone(l))

		// Also where two begin to wait at once.
		l = &lifetime{}
		l.parent = &meddler{
			Context: &foreign{Context: parent, done: make(chan struct{})},
			atDone:  func() { require.False(t, isDone(l)) },
		}
		require.False(t, isDone(l))
		l.end(ErrReleased)
		require.True(t, isDone(l))
	}
	redistest.Eventually(t, 5*time.Second, func() bool { return runtime.NumGoroutine() <= before }, "no goroutine is left")
}
