// Package attempts has the loops that stores share: attempts until one is answered, many calls a
// few at a time, and reports to the clients that watch their holds.
package attempts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const shortest, longest = 10 * time.Millisecond, 500 * time.Millisecond

// Pause is the pause between two attempts: 10 ms at first, and twice as long each time up to 500
// ms. The zero value is a pause before which nothing has failed.
type Pause struct{ last time.Duration }

// Wait waits for the pause, and returns false if done is closed before.
func (p *Pause) Wait(done <-chan struct{}) bool {
	p.last = min(max(2*p.last, shortest), longest)
	return lifetime.Sleep(done, p.last)
}

// Call says who is told of the attempts of a call that are made again, and what they are called.
type Call struct {
	Report  store.Reporter // nil: nobody
	Command string
}

// slow is the age of an attempt that is reported though the attempt goes on.
const slow = time.Second

var errNoAnswer = store.Unavailable(errors.New("no answer"))

var errSlow = fmt.Errorf("no answer for %s", slow)

// Patiently is [Repeat] with a Pause.
func Patiently(ctx context.Context, c Call, attempt func() error) error {
	return Repeat(ctx, c, new(Pause).Wait, attempt)
}

// Repeat makes attempts until one is answered, ctx is done, or pause returns false. An attempt
// without an answer matches [store.ErrUnavailable]; c.Report is told of each, and of an attempt or
// a pause that takes a second, and pause is called. An attempt that ctx ends matches ctx.Err.
//
// The error matches [store.ErrUnsure] if an attempt may have run without an answer. If ctx ends the
// call, the error has the last error of an attempt beside the end of ctx; or matches
// [store.ErrUnavailable] if there was none in a second.
func Repeat(ctx context.Context, c Call, pause func(done <-chan struct{}) bool, attempt func() error) error {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	var last error // the store's last word: not the end of ctx
	since := time.Now()
	timed := func(failed int, f func()) {
		if c.Report != nil {
			why := cmp.Or(last, errSlow)
			defer time.AfterFunc(slow, func() { c.Report.Retrying(c.Command, failed, since, why) }).Stop()
		}
		f()
	}
	for n, unsure := 1, false; ; n++ {
		var err error
		timed(n-1, func() { err = attempt() })
		unsure = unsure || errors.Is(err, store.ErrUnsure)
		cut := err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err())
		waited := time.Since(since).Round(time.Millisecond)
		if !cut {
			last = err
		}
		silent := errors.Is(err, store.ErrUnavailable)
		if silent && ctx.Err() == nil && c.Report != nil {
			c.Report.Retrying(c.Command, n, since, err)
		}
		again := false
		if silent {
			timed(n, func() { again = pause(ctx.Done()) })
		}
		if again {
			continue
		}
		switch {
		case (cut || silent) && last != nil && ctx.Err() != nil:
			err = fmt.Errorf("%w (last: %w)", lifetime.Ended(ctx), last)
		case cut && !silent && waited >= slow:
			err = fmt.Errorf("%w (%w for %s)", err, errNoAnswer, waited)
		}
		if unsure {
			err = store.Unsure(err)
		}
		return err
	}
}

// Passes says whether an error of a call for a lock passes by itself: the store is out of reach, or
// too few replicas have confirmed. Whoever wants the lock for good asks again after a pause.
func Passes(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotReplicated)
}

// ErrEnded is the error of a call that has panicked, or has ended its goroutine with
// [runtime.Goexit], as a hook of a driver can. The call may have run.
var ErrEnded = store.Unsure(errors.New("the call has ended without a result"))

// Outlast sets *err to the error of f: ErrEnded, if f panics or ends the goroutine.
func Outlast(err *error, f func() error) {
	*err = ErrEnded
	defer func() {
		if reason := recover(); reason != nil {
			*err = fmt.Errorf("%w: %v", ErrEnded, reason)
		}
	}()
	*err = f()
}

// Apart is Outlast in a goroutine of its own, for a goroutine that must not end.
func Apart(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		Outlast(&err, f)
	}()
	<-done
	return err
}

// Each calls f with each number below n, at most so many calls at a time, and returns the errors in
// order, ErrEnded for a call without a result. A single call runs in the goroutine of the caller.
func Each(n, most int, f func(i int) error) []error {
	errs := slices.Repeat([]error{ErrEnded}, n)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			Outlast(&errs[i], func() error { return f(i) })
		}
	}
	var group sync.WaitGroup
	for range min(n, most) - 1 {
		group.Go(work)
	}
	work()
	group.Wait()
	return errs
}
