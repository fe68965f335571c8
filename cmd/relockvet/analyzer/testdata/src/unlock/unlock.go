// Package unlock has an Unlock with the context from before the section.
package unlock

import (
	"context"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

func work(context.Context) error { return nil }

func deferred(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(ctx) // want `ctx is the context from before the section, so this Unlock does not leave it; write l.Unlock\(section\)`
	return work(section)
}

type service struct{ lock relock.Locker }

func (s *service) last(ctx context.Context) error {
	section, err := s.lock.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = s.lock.Unlock(ctx) // want `write s.lock.Unlock\(section\)`
	}()
	return work(section)
}

func shadowed(ctx context.Context, l *relock.Lock) {
	if ctx, err := l.Lock(ctx); err == nil {
		_ = work(ctx)
	}
	_ = l.Unlock(ctx) // want `write l.Unlock\(section\)`
}

func deferredBefore(ctx context.Context, l *relock.Lock) error {
	defer l.Unlock(ctx) // want `write l.Unlock\(section\)`
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return work(section)
}

// Right.

func right(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(section)
	return work(section)
}

func sameVariable(ctx context.Context, l *relock.Lock) error {
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(ctx)
	return work(ctx)
}

// handOver enters again, and leaves the caller's entry.
func handOver(section context.Context, l *relock.Lock) (context.Context, error) {
	again, err := l.Lock(section)
	if err != nil {
		return nil, err
	}
	return again, l.Unlock(section)
}

func otherLock(ctx context.Context, a, b *relock.Lock) error {
	outer, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	inner, err := b.Lock(outer)
	if err != nil {
		return a.Unlock(outer)
	}
	_ = b.Unlock(inner)
	return a.Unlock(outer)
}

// apart leaves the caller's section, and enters anew.
func apart(section, ctx context.Context, l *relock.Lock) (context.Context, error) {
	if err := l.Unlock(section); err != nil {
		return nil, err
	}
	return l.Lock(ctx)
}

func handsOffAnother(ctx context.Context, l *relock.Lock) (ticket.Ticket, error) {
	section, err := l.Lock(ctx)
	if err != nil {
		return ticket.Ticket{}, err
	}
	work(section)
	return ticket.HandOff(ctx, l) // want `ctx is the context from before the section, so this HandOff does not leave it; write ticket.HandOff\(section, l\)`
}
