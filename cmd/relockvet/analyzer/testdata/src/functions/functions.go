// Package functions has functions of Do.
package functions

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
)

func work(context.Context) error { return nil }

func unnamed(ctx context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(context.Context) error {
		return work(ctx) // want `ctx is the context from before the section: it does not end if the lock is lost, and a nested Lock waits for its own section; write func\(ctx context.Context\) error`
	})
}

func blank(ctx context.Context, l *relock.RWLock) error {
	return l.RDo(ctx, func(_ context.Context) error {
		return work(ctx) // want `from before the section`
	})
}

func notUsed(ctx context.Context, l relock.Locker) error {
	return relock.Do(ctx, l, func(section context.Context) error {
		limited, cancel := context.WithTimeout(ctx, time.Second) // want `from before the section`
		defer cancel()
		return work(limited)
	})
}

func nested(ctx context.Context, a, b *relock.Lock) error {
	return a.DoFor(ctx, time.Second, func(context.Context) error {
		return b.Do(ctx, work) // want `from before the section`
	})
}

// Right.

func shadows(ctx context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(ctx context.Context) error { return work(ctx) })
}

func both(ctx context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(section context.Context) error {
		if err := work(section); err != nil {
			return work(ctx) // on purpose, as it seems
		}
		return nil
	})
}

func logs(ctx context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(context.Context) error {
		slog.InfoContext(ctx, "in")
		return ctx.Err()
	})
}

func elsewhere(ctx, other context.Context, l *relock.Lock) error {
	return l.Do(ctx, func(context.Context) error { return work(other) })
}

func ofALeader(ctx context.Context, l *relock.Lock) error {
	_ = leader.Run(ctx, l, func(ctx context.Context) error { return work(ctx) })
	return leader.Run(ctx, l, func(context.Context) error {
		return work(ctx) // want `from before the section`
	})
}
