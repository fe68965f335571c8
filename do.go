package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Do runs fn inside the lock l: Do locks, runs fn with the section's context, and unlocks, also
// when fn panics.
//
// If the lock is lost while fn runs, the section's context ends, and the error (a [*LostError],
// [ErrLockLost]) is joined to the error of fn: drivers only say "context canceled", and the last
// steps of fn may have happened without the lock. Any other cause of the context's end, such as
// [ErrClosed] or the cause of ctx, is joined if fn returns an error; for the cause of ctx the text
// says that the caller's context has ended. The error of an unconfirmed
// Unlock is joined too. If the lock cannot be had, fn is not run, and the error matches
// [ErrNotEntered].
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	switch {
	case isNil(l):
		return notEntered(invalid("Do: the Locker is nil"))
	case ctx == nil:
		return notEntered(errNilContext)
	case fn == nil:
		return notEntered(invalid("Do: the function is nil"))
	}
	section, err := l.Lock(ctx)
	if err != nil {
		return notEntered(err)
	}
	return within(section, l, fn)
}

// DoValue is [Do] for a function with a value. The value of fn is returned also with an error, such
// as a loss that the Unlock finds; without a run of fn it is the zero value.
func DoValue[T any](ctx context.Context, l Locker, fn func(ctx context.Context) (T, error)) (value T, err error) {
	if fn == nil {
		return value, notEntered(invalid("DoValue: the function is nil"))
	}
	err = Do(ctx, l, func(ctx context.Context) (err error) {
		value, err = fn(ctx)
		return err
	})
	return value, err
}

// within runs fn in a section, and leaves it.
func within(section context.Context, l Locker, fn func(ctx context.Context) error) (err error) {
	defer func() {
		if unlockErr := l.Unlock(section); unlockErr != nil && !errors.Is(err, unlockErr) {
			err = join(err, unlockErr)
		}
		if errors.Is(err, ErrNotEntered) { // of another Do: fn has returned it, or it has ended the context
			err = &enteredError{err}
		}
	}()
	return withEnd(section, fn(section))
}

// errCallerEnded says that the caller has ended the context of a section, or its deadline has.
var errCallerEnded = errors.New("the caller's context has ended")

// withEnd adds to the error of a function why the context of its section has ended.
func withEnd(section context.Context, err error) error {
	cause := context.Cause(section)
	if err == nil || cause == nil || errors.Is(err, errCallerEnded) {
		return err
	}
	isSaid := errors.Is(err, cause)
	switch {
	case isEnd(cause) && isSaid:
		return err
	case isEnd(cause):
		return join(err, cause)
	case isSaid:
		return join(err, errCallerEnded)
	default:
		return join(err, fmt.Errorf("%w: %w", errCallerEnded, cause))
	}
}

// isEnd says whether the cause of an end comes from a lock, and not from a caller.
func isEnd(cause error) bool {
	ends := []error{ErrLockLost, ErrReleased, ErrClosed, ErrRecalled, ErrHandedOff}
	return slices.ContainsFunc(ends, func(end error) bool { return errors.Is(cause, end) })
}

// Do is [Do] with this lock.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return Do(ctx, l, fn)
}

// DoFor is [Lock.Do] that waits for the lock as [Lock.TryLockFor] does: at most wait, and not at
// all if wait is 0. The wait is no limit to fn.
func (l *Lock) DoFor(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return doFor(ctx, wait, l, l.TryLockFor, fn)
}

func doFor(ctx context.Context, wait time.Duration, l Locker, try func(context.Context, time.Duration) (context.Context, error),
	fn func(ctx context.Context) error) error {
	if fn == nil {
		return notEntered(invalid("DoFor: the function is nil"))
	}
	if err := checkWait("DoFor", wait); err != nil {
		return notEntered(err)
	}
	section, err := try(ctx, wait)
	if err != nil {
		return notEntered(err)
	}
	return within(section, l, fn)
}

// notEnteredError is the error of a Do that has not run its function.
type notEnteredError struct{ error }

func notEntered(err error) error { return &notEnteredError{err} }

func (e *notEnteredError) Is(target error) bool { return target == ErrNotEntered }
func (e *notEnteredError) Unwrap() error        { return e.error }

// enteredError is the error of a Do that has run its function. It hides the ErrNotEntered of
// another Do inside, and so has no Unwrap.
type enteredError struct{ error }

func (e *enteredError) Is(target error) bool {
	return target != ErrNotEntered && errors.Is(e.error, target)
}
func (e *enteredError) As(target any) bool { return errors.As(e.error, target) }

// join is errors.Join with a text in one line.
func join(errs ...error) (joined error) {
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = &joinedError{joined, err}
		}
	}
	return joined
}

type joinedError struct{ first, second error }

func (e *joinedError) Error() string   { return e.first.Error() + "; " + e.second.Error() }
func (e *joinedError) Unwrap() []error { return []error{e.first, e.second} }
