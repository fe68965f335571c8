// Package relock has the names of relock that relockvet knows, without what they do.
package relock

import (
	"context"
	"errors"
	"time"
)

var (
	ErrLocked   = errors.New("locked")
	ErrLockLost = errors.New("lost")
)

type Locker interface {
	Lock(ctx context.Context) (context.Context, error)
	TryLock(ctx context.Context) (context.Context, error)
	Unlock(ctx context.Context) error
}

type LockedError struct{}

func (*LockedError) Error() string { return "locked" }

type Client struct{}

func (*Client) NewLock(string) *Lock { return nil }

type Lock struct{}

func (*Lock) Name() string { return "" }

func (*Lock) Lock(ctx context.Context) (context.Context, error)    { return ctx, nil }
func (*Lock) TryLock(ctx context.Context) (context.Context, error) { return ctx, nil }
func (*Lock) TryLockFor(ctx context.Context, _ time.Duration) (context.Context, error) {
	return ctx, nil
}
func (*Lock) TryLockIf(ctx context.Context, _ string, _ []string, _ ...any) (context.Context, any, error) {
	return ctx, nil, nil
}
func (*Lock) Unlock(context.Context) error                                 { return nil }
func (*Lock) Do(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }
func (*Lock) DoFor(ctx context.Context, _ time.Duration, fn func(context.Context) error) error {
	return fn(ctx)
}

func (*Lock) Held(context.Context) bool            { return true }
func (*Lock) Token(context.Context) (int64, error) { return 1, nil }

type forWriting = Lock

type RWLock struct{ *forWriting }

func (*RWLock) RLock(ctx context.Context) (context.Context, error)    { return ctx, nil }
func (*RWLock) TryRLock(ctx context.Context) (context.Context, error) { return ctx, nil }
func (*RWLock) TryRLockFor(ctx context.Context, _ time.Duration) (context.Context, error) {
	return ctx, nil
}
func (*RWLock) RDo(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }
func (*RWLock) RLocker() *Lock                                                { return nil }
func (*RWLock) Writer() *Lock                                                 { return nil }

type Locks struct{}

func All(...Locker) *Locks { return nil }

func (*Locks) Lock(ctx context.Context) (context.Context, error)            { return ctx, nil }
func (*Locks) TryLock(ctx context.Context) (context.Context, error)         { return ctx, nil }
func (*Locks) Unlock(context.Context) error                                 { return nil }
func (*Locks) Do(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }

func Do(ctx context.Context, _ Locker, fn func(context.Context) error) error { return fn(ctx) }

func WithSection(ctx, _ context.Context) context.Context { return ctx }
