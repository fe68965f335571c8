package stage

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// Options returns its arguments, for tables of options.
func Options(options ...relock.Option) []relock.Option { return options }

// RequireInvalid fails unless every method of the lock returns what Err returns, and nothing is
// sent.
func RequireInvalid(t *testing.T, m *Member, l *relock.Lock) {
	t.Helper()
	err := l.Err()
	require.ErrorIs(t, err, relock.ErrInvalid)
	ctx := t.Context()
	for _, lock := range []Locking{l.Lock, l.TryLock, TryFor(l, time.Second)} {
		got, lockErr := lock(ctx)
		require.Equal(t, err, lockErr)
		require.Equal(t, err, context.Cause(got))
	}
	run := func(context.Context) error { return errors.New("the function has run") }
	_, stateErr := l.State(ctx)
	_, tokenErr := l.Token(ctx)
	for _, got := range []error{stateErr, tokenErr, l.Unlock(ctx), l.ForceUnlock(ctx), l.Extend(ctx, time.Second)} {
		require.Equal(t, err, got)
	}
	for _, got := range []error{l.Do(ctx, run), l.DoFor(ctx, time.Second, run)} {
		require.ErrorIs(t, got, err)
		require.EqualError(t, got, err.Error())
		require.ErrorIs(t, got, relock.ErrNotEntered)
	}
	require.False(t, l.Held(ctx))
	require.Zero(t, l.Count(ctx))
	require.Zero(t, l.Remaining(ctx))
	if m != nil {
		require.Zero(t, m.Link.Sent())
	}
}
