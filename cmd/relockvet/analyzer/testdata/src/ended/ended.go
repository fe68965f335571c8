// Package ended has work with the context of a section that its Unlock has ended.
package ended

import (
	"context"
	"log/slog"

	"github.com/go-relock/relock"
)

func work(context.Context) error { return nil }

func afterUnlock(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = work(section)
	if err := l.Unlock(section); err != nil {
		return err
	}
	return work(section) // want `section has ended with the Unlock on line 19; write ctx, the context from before the section, or unlock later`
}

func sameName(ctx context.Context, l *relock.Lock) error {
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = work(ctx)
	_ = l.Unlock(ctx)
	return work(ctx) // want `ctx is the section's context, and the Unlock on line 31 has ended it; write section, err := l.Lock\(ctx\) on line 26, so that ctx stays the caller's`
}

func bothBranches(ctx context.Context, l *relock.Lock, fast bool) error {
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if fast {
		_ = l.Unlock(ctx)
	} else {
		_ = work(ctx)
		_ = l.Unlock(ctx)
	}
	again, err := l.Lock(ctx) // want `has ended it`
	if err != nil {
		return err
	}
	return l.Unlock(again)
}

func inAGoroutine(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = l.Unlock(section)
	go func() { _ = work(section) }() // want `has ended with the Unlock`
	return nil
}

func rounds(ctx context.Context, l *relock.Lock, n int) error {
	for range n {
		var err error
		ctx, err = l.Lock(ctx) // want `in the next round of the loop ctx is the context that the Unlock on line 70 has ended; write section, err := l.Lock\(ctx\)`
		if err != nil {
			return err
		}
		_ = l.Unlock(ctx)
	}
	return nil
}

func outerVariable(ctx context.Context, l *relock.Lock) error {
	inside := func() (err error) {
		ctx, err = l.Lock(ctx) // want `this assigns to ctx of the function around, where it is an ended context after the Unlock; write section, err := l.Lock\(ctx\)`
		if err != nil {
			return err
		}
		defer l.Unlock(ctx)
		return work(ctx)
	}
	if err := inside(); err != nil {
		return err
	}
	return work(ctx)
}

// Right.

func deferredUnlock(ctx context.Context, l *relock.Lock) error {
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock(ctx)
	return work(ctx)
}

func innerScope(ctx context.Context, l *relock.Lock) error {
	if ctx, err := l.Lock(ctx); err == nil {
		_ = work(ctx)
		_ = l.Unlock(ctx)
	}
	return work(ctx)
}

func lastStep(ctx context.Context, l *relock.Lock) error {
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = work(ctx)
	return l.Unlock(ctx)
}

func questions(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = l.Unlock(section)
	if l.Held(section) || section.Err() == nil {
		slog.InfoContext(section, "cannot be", "debug", slog.Default().Enabled(section, slog.LevelDebug))
	}
	_ = l.Unlock(section)
	_ = work(context.WithoutCancel(section))
	return context.Cause(section)
}

func oneBranch(ctx context.Context, l *relock.Lock, fast bool) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if fast {
		_ = l.Unlock(section)
	}
	if !fast {
		err = work(section)
		_ = l.Unlock(section)
	}
	return err
}

func otherBranch(ctx context.Context, l *relock.Lock, fast bool) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	if fast {
		_ = l.Unlock(section)
	} else {
		err = work(section)
	}
	if fast {
		return err
	}
	err = work(section)
	_ = l.Unlock(section)
	return err
}

func setElsewhere(ctx context.Context, l *relock.Lock) error {
	section, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	reset := func() { section = ctx }
	_ = l.Unlock(section)
	reset()
	return work(section)
}

func takenInside(ctx context.Context, l *relock.Lock) error {
	take := func() (err error) {
		ctx, err = l.Lock(ctx)
		return err
	}
	if err := take(); err != nil {
		return err
	}
	defer l.Unlock(ctx)
	return work(ctx)
}

func newRounds(ctx context.Context, l *relock.Lock, n int) error {
	for range n {
		section, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		_ = work(section)
		_ = l.Unlock(section)
	}
	return work(ctx)
}

func restored(ctx context.Context, l *relock.Lock) error {
	before := ctx
	ctx, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	_ = l.Unlock(ctx)
	ctx = before
	return work(ctx)
}

func outerOne(ctx context.Context, a, b *relock.Lock) error {
	outer, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer a.Unlock(outer)
	inner, err := b.Lock(outer)
	if err != nil {
		return err
	}
	_ = b.Unlock(inner)
	return work(outer)
}
