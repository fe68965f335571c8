package locktest

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

var doTests = []test{
	{name: "Do runs its function inside of the lock", run: doInside, short: true},
	{name: "Do unlocks whatever its function does", run: doUnlocks},
	{name: "Do does not run its function without the lock", run: doRefused},
	{name: "Do joins what has ended its section", run: doJoins},
	{name: "DoFor waits no longer than it may", run: doFor},
}

func doInside(b *bench) {
	l, there := b.locks()
	var section context.Context
	require.NoError(b.t, l.Do(b.ctx, func(ctx context.Context) error {
		section = ctx
		b.requireCount(l, ctx, 1)
		b.requireBusy(there)
		return l.Do(ctx, func(ctx context.Context) error {
			b.requireCount(l, ctx, 2)
			return nil
		})
	}))
	require.Equal(b.t, relock.ErrReleased, context.Cause(section))
	require.False(b.t, b.state(l).Locked())

	err := relock.Do(b.ctx, l, func(context.Context) error { return errMine })
	require.Equal(b.t, errMine, err, "nothing is wrapped around the error")
	require.NotErrorIs(b.t, err, relock.ErrNotEntered)
	require.False(b.t, b.state(l).Locked())
}

func doUnlocks(b *bench) {
	l, _ := b.locks()
	require.PanicsWithValue(b.t, "oops", func() {
		_ = l.Do(b.ctx, func(context.Context) error { panic("oops") })
	})
	require.False(b.t, b.state(l).Locked())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Do(b.ctx, func(context.Context) error { runtime.Goexit(); return nil })
	}()
	b.happens("the goroutine ends", ended)
	require.False(b.t, b.state(l).Locked())

	err := l.Do(b.ctx, func(ctx context.Context) error { return l.Unlock(ctx) })
	b.requireKinds(err, relock.ErrNotHeld)
	require.NotErrorIs(b.t, err, relock.ErrNotEntered)
}

func doRefused(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	run := func(context.Context) error {
		b.t.Error("the function has run")
		return nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, brief)
	defer cancel()
	for _, err := range []error{
		l.Do(ctx, run), relock.Do(ctx, l, run), l.DoFor(ctx, long, run), l.DoFor(b.ctx, brief, run), l.DoFor(b.ctx, 0, run),
	} {
		require.Error(b.t, err)
		require.ErrorIs(b.t, err, relock.ErrNotEntered)
		require.ErrorIs(b.t, fmt.Errorf("wrapped: %w", err), relock.ErrNotEntered)
		require.NotContains(b.t, err.Error(), "\n")
	}
	b.requireRefused(l.DoFor(b.ctx, 0, run), l, b.holder(section))
	b.unlock(l, section)
}

func doJoins(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	lose := func(ctx context.Context) {
		require.NoError(b.t, there.ForceUnlock(b.ctx))
		b.requireLost(b.ends(ctx), l, event.LossTaken)
	}
	err := l.Do(b.ctx, func(ctx context.Context) error {
		lose(ctx)
		return fmt.Errorf("query: %w", ctx.Err()) // as a driver says
	})
	b.requireKinds(err, relock.ErrLockLost, context.Canceled)
	b.requireLost(err, l, event.LossTaken)
	require.NotErrorIs(b.t, err, relock.ErrNotEntered)

	err = l.Do(b.ctx, func(ctx context.Context) error { lose(ctx); return nil })
	b.requireLost(err, l, event.LossTaken)

	var cause error
	err = l.Do(b.ctx, func(ctx context.Context) error {
		lose(ctx)
		cause = context.Cause(ctx)
		return cause
	})
	require.Equal(b.t, cause, err, "the loss is not told twice")

	ctx, cancel := context.WithCancelCause(b.ctx)
	err = l.Do(ctx, func(ctx context.Context) error {
		cancel(errMine)
		return ctx.Err()
	})
	b.requireKinds(err, context.Canceled)
	require.ErrorIs(b.t, err, errMine)
}

func doFor(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	begun := time.Now()
	err := l.DoFor(b.ctx, brief, nothing)
	require.GreaterOrEqual(b.t, time.Since(begun), brief)
	b.requireRefused(err, l, b.holder(section))
	b.unlock(l, section)

	require.NoError(b.t, l.DoFor(b.ctx, patience, func(ctx context.Context) error {
		_, limited := ctx.Deadline()
		require.False(b.t, limited, "the wait is no limit to the function")
		return ctx.Err()
	}))
	b.requireKinds(l.DoFor(b.ctx, -1, nothing), relock.ErrInvalid)
}
