// Package dropped has calls whose section's context goes nowhere.
package dropped

import (
	"context"
	"errors"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

func blank(ctx context.Context, l *relock.Lock) error {
	_, err := l.Lock(ctx) // want `the section's context is dropped, so nothing can unlock the section; write section, err := l.Lock\(ctx\), and defer l.Unlock\(section\)$`
	return err
}

func statements(ctx context.Context, l *relock.Lock) {
	l.Lock(ctx) // want `context is dropped`
	defer l.Unlock(ctx)
	defer l.Lock(ctx)  // want `context is dropped`
	go l.TryLock(ctx)  // want `context is dropped`
	_, _ = l.Lock(ctx) // want `context is dropped`
}

func everyVerb(ctx context.Context, l *relock.Lock, rw *relock.RWLock, both *relock.Locks, any relock.Locker) {
	l.TryLock(ctx)                         // want `dropped`
	l.TryLockFor(ctx, time.Second)         // want `dropped`
	_, _, _ = l.TryLockIf(ctx, "", nil)    // want `dropped`
	ticket.Borrow(ctx, l, ticket.Ticket{}) // want `dropped`
	ticket.Accept(ctx, l, ticket.Ticket{}) // want `dropped`
	rw.Lock(ctx)                           // want `dropped`
	rw.RLock(ctx)                          // want `dropped`
	rw.TryRLock(ctx)                       // want `dropped`
	rw.TryRLockFor(ctx, time.Second)       // want `dropped`
	rw.RLocker().Lock(ctx)                 // want `dropped`
	both.Lock(ctx)                         // want `dropped`
	both.TryLock(ctx)                      // want `dropped`
	any.Lock(ctx)                          // want `dropped`
	relock.All(l, rw).Lock(ctx)            // want `dropped`
}

type embeds struct{ relock.Locker }

func embedded(ctx context.Context, e embeds) {
	e.Lock(ctx) // want `dropped`
}

func isFree(ctx context.Context, l *relock.Lock) bool {
	if _, err := l.TryLock(ctx); err != nil { // want `to ask without taking the lock, write State`
		return false
	}
	return true
}

func refused(ctx context.Context, l *relock.Lock) error {
	if _, err := l.TryLock(ctx); !errors.Is(err, relock.ErrLocked) { // a refusal is expected
		return errors.New("the lock is free")
	}
	_, err := l.Lock(ctx)
	requireError(err)
	return nil
}

func requireError(error) {}

func handed(ctx context.Context, l *relock.Lock) (context.Context, error) {
	forget(l.Lock(ctx))
	return l.Lock(ctx)
}

func forget(context.Context, error) {}

type notRelock struct{}

func (notRelock) Lock(ctx context.Context) (context.Context, error) { return ctx, nil }

func others(ctx context.Context) {
	notRelock{}.Lock(ctx)
}
