package relock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

func TestEveryNewHolderIsAnother(t *testing.T) {
	seen := map[relock.Holder]bool{}
	for range 1000 {
		h := relock.NewHolder()
		require.False(t, seen[h])
		seen[h] = true
		require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+$`, h.String())
	}
	require.Empty(t, relock.Holder{}.String())
}

func TestAContextWithoutAHolderCarriesNone(t *testing.T) {
	h, ok := relock.HolderFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, h)
	require.Equal(t, t.Context(), relock.WithoutHolder(t.Context()), "there is nothing to take away")
	require.Equal(t, t.Context(), relock.WithHolder(t.Context(), relock.Holder{}))
}

func TestWithHolderIsWhatHolderFromReturns(t *testing.T) {
	h, other := relock.NewHolder(), relock.NewHolder()
	ctx := relock.WithHolder(t.Context(), h)
	got, ok := relock.HolderFrom(ctx)
	require.True(t, ok)
	require.Equal(t, h, got)
	require.Equal(t, ctx, relock.WithHolder(ctx, h), "it carries that one already")

	got, ok = relock.HolderFrom(relock.WithHolder(ctx, other))
	require.True(t, ok)
	require.Equal(t, other, got, "the nearest counts")
	for _, without := range []context.Context{relock.WithoutHolder(ctx), relock.WithHolder(ctx, relock.Holder{})} {
		_, ok = relock.HolderFrom(without)
		require.False(t, ok)
	}
}

func TestHolderContextsKeepWhatTheirParentsHave(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "trace"))
	ctx := relock.WithoutHolder(relock.WithHolder(parent, relock.NewHolder()))
	require.Equal(t, "trace", ctx.Value(key{}))
	require.NoError(t, ctx.Err())
	cause := errors.New("over")
	cancel(cause)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.Equal(t, cause, context.Cause(ctx))
}

func TestLockTakesTheHolderOfItsContext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		h := relock.NewHolder()
		section := enter(t, relock.WithHolder(t.Context(), h), l)
		got, ok := relock.HolderFrom(section)
		require.True(t, ok)
		require.Equal(t, h, got)
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, h, state.Holder)
		require.NoError(t, l.Unlock(section))
		got, _ = relock.HolderFrom(section)
		require.Equal(t, h, got, "the context keeps its holder")
	})
}

func TestWithHolderOfTheSameHolderKeepsTheSections(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		h, _ := relock.HolderFrom(section)
		again := relock.WithHolder(section, h)
		require.True(t, l.Held(again))
		require.NoError(t, l.Unlock(again))
		require.False(t, l.Held(section))
	})
}

func TestASectionIsHiddenFromAnotherHolder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		h, _ := relock.HolderFrom(section)
		for name, ctx := range map[string]context.Context{
			"WithoutHolder":                   relock.WithoutHolder(section),
			"WithHolder of another":           relock.WithHolder(section, relock.NewHolder()),
			"another and back":                relock.WithHolder(relock.WithHolder(section, relock.NewHolder()), h),
			"another lock's section, and out": relock.WithoutHolder(enter(t, section, c.NewLock(t.Name()))),
		} {
			require.False(t, l.Held(ctx), name)
			require.ErrorIs(t, l.Unlock(ctx), relock.ErrNotHeld, name)
		}
		require.True(t, l.Held(section))
		require.NoError(t, l.Unlock(section))
	})
}

func TestAGoroutineWithoutHolderCompetesForItself(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		_, err := l.TryLock(relock.WithoutHolder(section))
		require.ErrorIs(t, err, relock.ErrLocked)
		own := begin(t, relock.WithoutHolder(section), l.Lock)
		require.True(t, own.waits())

		// Its context still ends with the section.
		require.NoError(t, l.Unlock(section))
		_, err = own.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, context.Canceled)
		w.requireNothingLeft("a")

		section = enter(t, t.Context(), l)
		own = begin(t, relock.WithoutHolder(context.WithoutCancel(section)), l.Lock)
		pass(time.Minute)
		require.True(t, own.waits())
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(own.section()))
		w.requireNothingLeft("a")
	})
}

func TestAHolderReentersOnlyThroughTheClientThatTookTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one, two := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		section := enter(t, request, one)
		_, err := two.TryLock(section)
		require.ErrorIs(t, err, relock.ErrLocked)
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		h, _ := relock.HolderFrom(request)
		require.Equal(t, h, locked.Holder, "the message shows what is wrong")

		waiting := begin(t, request, two.Lock)
		require.True(t, waiting.waits())
		require.NoError(t, one.Unlock(section))
		require.NoError(t, two.Unlock(waiting.section()))
		w.requireNothingLeft("a")
	})
}

func TestOneHolderHoldsManyLocks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		names := []string{"a", "b", "c", "d"}
		ctx := t.Context()
		for _, name := range names {
			ctx = enter(t, ctx, c.NewLock(name)) //nolint:fatcontext // a section inside a section is what this is about
		}
		for _, name := range names {
			require.Equal(t, 1, c.NewLock(name).Count(ctx), name)
		}
		// A locks B locks A again: the nearest frame of the lock is the one that is left.
		inner := enter(t, ctx, c.NewLock("a"))
		require.Equal(t, 2, c.NewLock("a").Count(inner))
		require.NoError(t, c.NewLock("a").Unlock(inner))
		require.Equal(t, 1, c.NewLock("a").Count(ctx))
		for i := len(names) - 1; i >= 0; i-- {
			require.NoError(t, c.NewLock(names[i]).Unlock(ctx))
			w.requireNothingLeft(names[i])
		}
	})
}
