package stage

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
)

// A clock is the fake one or the real one.
type clock interface {
	// settle lets everything happen that can happen without time passing. On a real clock, settle
	// does nothing.
	settle()
	// comes waits for done, and says whether done came within limit.
	comes(limit time.Duration, done <-chan struct{}) bool
	// call runs f, and says whether f came back within limit.
	call(limit time.Duration, f func() error) (back bool, err error)
	// require fails unless cond is true: at once in fake time, within limit on a real clock.
	require(t *testing.T, limit time.Duration, cond func() bool, msg string, args ...any)
}

// fakeClock is the clock of a testing/synctest bubble.
type fakeClock struct{}

func (fakeClock) settle() { Settle() }

func (fakeClock) comes(limit time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (fakeClock) call(_ time.Duration, f func() error) (bool, error) { return true, f() }

func (fakeClock) require(t *testing.T, _ time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	Settle()
	require.True(t, cond(), append([]any{msg}, args...)...)
}

// wallClock is the real clock, whose limits are those of package bound. The longest time that this
// process was late for anything, in nanoseconds, is added to every limit.
type wallClock struct{ late *atomic.Int64 }

func (wallClock) settle() {}

func (c wallClock) comes(limit time.Duration, done <-chan struct{}) bool {
	for _, d := range []func() time.Duration{func() time.Duration { return bound.Of(limit) }, c.lateness} {
		select {
		case <-done:
			return true
		default:
		}
		select {
		case <-done:
			return true
		case <-time.After(d()):
		}
	}
	return false
}

func (c wallClock) lateness() time.Duration { return time.Duration(c.late.Load()) }

func (c wallClock) call(limit time.Duration, f func() error) (back bool, err error) {
	var result error
	done := make(chan struct{})
	go func() { defer close(done); result = f() }()
	if !c.comes(limit, done) {
		return false, nil
	}
	return true, result
}

func (wallClock) require(t *testing.T, limit time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	redistest.Eventually(t, limit, cond, msg, args...)
}

// SleepUntil waits for a moment, and not for an event: to show that something does not happen.
func SleepUntil(moment time.Time) { <-time.After(time.Until(moment)) }

// IsClosed says whether a channel is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Every calls f after each interval, with how late the call is, until stop is closed.
func Every(interval time.Duration, stop <-chan struct{}, f func(late time.Duration)) {
	for {
		began := time.Now()
		select {
		case <-time.After(interval):
			f(time.Since(began) - interval)
		case <-stop:
			return
		}
	}
}
