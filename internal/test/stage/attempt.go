package stage

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// Attempt is a call of Lock, or the like, in a goroutine of its own.
type Attempt struct {
	s     *Stage
	Lock  *relock.Lock // of a call that Start began
	Begun time.Time
	Done  chan struct{}

	// Set when Done is closed.
	Ctx   context.Context
	Err   error
	Ended time.Time
}

// Locking is Lock or TryLock, or TryLockFor with its wait bound to it.
type Locking func(context.Context) (context.Context, error)

// TryFor returns TryLockFor with its wait.
func TryFor(l *relock.Lock, wait time.Duration) Locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// Unlock returns Unlock, for Begin.
func Unlock(l *relock.Lock) Locking {
	return func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) }
}

// Begin starts a call. In fake time, Begin returns when the call has ended or waits for something.
func (s *Stage) Begin(ctx context.Context, lock Locking) *Attempt {
	s.T.Helper()
	a := &Attempt{s: s, Begun: time.Now(), Done: make(chan struct{})}
	s.T.Cleanup(func() { runtime.KeepAlive(a) }) // as Keep
	go func() {
		defer close(a.Done)
		a.Ctx, a.Err = lock(ctx)
		a.Ended = time.Now()
	}()
	s.clock.settle()
	return a
}

// Start begins to lock. The attempt can [Attempt.Leave].
func (s *Stage) Start(ctx context.Context, l *relock.Lock) *Attempt {
	s.T.Helper()
	a := s.Begin(ctx, l.Lock)
	a.Lock = l
	return a
}

// Within returns the attempt with another limit, which counts from the next wait for the attempt.
func (a *Attempt) Within(limit time.Duration) *Attempt {
	a.s = a.s.Within(limit)
	return a
}

// Waits says whether the call has not returned yet.
func (a *Attempt) Waits() bool {
	a.s.clock.settle()
	return !IsClosed(a.Done)
}

// Comes waits for the call for d, and says whether the call has returned.
func (a *Attempt) Comes(d time.Duration) bool {
	select {
	case <-a.Done:
		return true
	case <-time.After(d):
		return false
	}
}

// Result waits until the call returns.
func (a *Attempt) Result() (context.Context, error) {
	a.s.T.Helper()
	if !a.s.clock.comes(a.s.Limit, a.Done) {
		a.s.T.Fatalf("the call has not come back after %s", a.s.Limit)
	}
	return a.Ctx, a.Err
}

// Failure waits until the call returns, and returns its error.
func (a *Attempt) Failure() error {
	a.s.T.Helper()
	_, err := a.Result()
	return err
}

// Section waits until the call has entered.
func (a *Attempt) Section() context.Context {
	a.s.T.Helper()
	section, err := a.Result()
	require.NoError(a.s.T, err)
	return section
}

// Leave waits until the call has entered, and unlocks.
func (a *Attempt) Leave() {
	a.s.T.Helper()
	a.s.Leave(a.Section(), a.Lock)
}

// Took returns how long the call lasted.
func (a *Attempt) Took() time.Duration {
	a.s.T.Helper()
	_, _ = a.Result()
	return a.Ended.Sub(a.Begun)
}

// RequireRefusedBy fails unless err is the refusal of the lock.
func RequireRefusedBy(t *testing.T, name string, err error) {
	t.Helper()
	var refusal *relock.LockedError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, name, refusal.Name)
}

// IsDone says that err is how a call with a done context ends.
func IsDone(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ErrorOf returns the error of a call.
func ErrorOf[T any](_ T, err error) error { return err }
