package core_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
)

// What does Do make of a Locker of somebody else, and of a Do inside of a Do?

// This file is about what package locktest does not ask.

// stubLocker is a Locker as a service's test has one.
type stubLocker struct{ lockErr, unlockErr error }

type stubKey struct{}

func (s *stubLocker) Lock(ctx context.Context) (context.Context, error) {
	return context.WithValue(ctx, stubKey{}, s), s.lockErr
}

func (s *stubLocker) TryLock(ctx context.Context) (context.Context, error) { return s.Lock(ctx) }

func (s *stubLocker) Unlock(ctx context.Context) error {
	if ctx.Value(stubKey{}) != s {
		return relock.ErrNotHeld
	}
	return s.unlockErr
}

func TestDoTakesAnyLocker(t *testing.T) {
	ran := 0
	run := func(context.Context) error {
		ran++
		return context.Canceled
	}
	require.Equal(t, context.Canceled, relock.Do(t.Context(), &stubLocker{}, run))
	require.Equal(t, 1, ran)

	err := relock.Do(t.Context(), &stubLocker{unlockErr: relock.ErrLockLost}, run)
	require.ErrorIs(t, err, relock.ErrLockLost)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, err, "context canceled; relock: lock lost", "joined in one line")
	require.NotErrorIs(t, err, relock.ErrNotEntered)
	require.Equal(t, 2, ran)

	err = relock.Do(t.Context(), &stubLocker{lockErr: relock.ErrLocked}, run)
	require.ErrorIs(t, err, relock.ErrLocked)
	require.EqualError(t, err, relock.ErrLocked.Error())
	require.ErrorIs(t, err, relock.ErrNotEntered)
	require.Equal(t, 2, ran)
}

func TestDoRefusesWhatIsNilBeforeAnythingIsTaken(t *testing.T) {
	run := func(context.Context) error { return errors.New("the function has run") }
	locker := &stubLocker{lockErr: errors.New("the lock was taken")}
	for name, err := range map[string]error{
		"the Locker is nil":   relock.Do(t.Context(), nil, run),
		"the context is nil":  relock.Do(nil, locker, run), //lint:ignore SA1012 a nil context is what the test is about
		"the function is nil": relock.Do(t.Context(), locker, nil),
	} {
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, err, relock.ErrNotEntered)
	}
	for _, none := range []relock.Locker{(*relock.Lock)(nil), (*stubLocker)(nil)} {
		err := relock.Do(t.Context(), none, run)
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.ErrorContains(t, err, "the Locker is nil")
	}
}

func TestNotEnteredIsAboutTheDoThatReturnsTheError(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		free, busy := m.NewLock("free"), m.NewLock("busy")
		_ = w.Enter(t.Context(), w.NewClient().NewLock("busy"))
		nothing := func(context.Context) error { return nil }
		inner := func(ctx context.Context) error { return busy.DoFor(ctx, 0, nothing) }

		require.False(t, errors.Is(nil, relock.ErrNotEntered))
		require.NotErrorIs(t, relock.ErrLocked, relock.ErrNotEntered, "no Do has returned it")
		require.ErrorIs(t, inner(t.Context()), relock.ErrNotEntered)
		require.ErrorIs(t, errors.Join(stage.ErrOdd, inner(t.Context())), relock.ErrNotEntered)

		for name, fn := range map[string]func(ctx context.Context) error{
			"as it is": inner,
			"wrapped":  func(ctx context.Context) error { return fmt.Errorf("booking: %w", inner(ctx)) },
			"joined":   func(ctx context.Context) error { return errors.Join(stage.ErrOdd, inner(ctx)) },
		} {
			err := free.Do(t.Context(), fn)
			require.ErrorIs(t, err, relock.ErrLocked, name)
			require.ErrorAs(t, err, new(*relock.LockedError), name)
			require.NotErrorIs(t, err, relock.ErrNotEntered, "%s: the outer function has run", name)
		}

		// A group cancels its context with the error of one of its members.
		ctx, cancel := context.WithCancelCause(t.Context())
		err := free.Do(ctx, func(ctx context.Context) error {
			cancel(inner(t.Context()))
			return ctx.Err()
		})
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NotErrorIs(t, err, relock.ErrNotEntered)
	})
}

func TestDoJoinsTheCauseOfItsContextOnlyToAnError(t *testing.T) {
	errMine := errors.New("mine")
	for name, c := range map[string]struct {
		end  func(m *stage.Member, cancel context.CancelCauseFunc)
		want error
	}{
		"Close":              {func(m *stage.Member, _ context.CancelCauseFunc) { _ = m.Close() }, relock.ErrClosed},
		"the caller's cause": {func(_ *stage.Member, cancel context.CancelCauseFunc) { cancel(errMine) }, errMine},
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %t", name, fails), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m := w.NewClient()
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					err := m.NewLock("a").Do(ctx, func(ctx context.Context) error {
						c.end(m, cancel)
						<-ctx.Done()
						if fails {
							return ctx.Err()
						}
						return nil
					})
					if !fails {
						require.NoError(t, err)
						return
					}
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, c.want)
				})
			})
		}
	}
}

func TestDoJoinsAnUnlockThatTheStoreDoesNotConfirm(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		m.Link.Once(stage.Refuse(stage.ErrOdd), stage.CmdRelease)
		errMine := errors.New("mine")
		err := m.NewLock("a").Do(t.Context(), func(context.Context) error { return errMine })
		require.ErrorIs(t, err, errMine)
		require.ErrorIs(t, err, stage.ErrOdd)
		require.ErrorContains(t, err, "mine; relock: unlock \"a\"")
		require.NotErrorIs(t, err, relock.ErrNotEntered)
		stage.Pass(time.Minute)
		w.RequireFree("a")
	})
}

func TestDoValueReturnsTheValueOfItsFunction(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		next := func(context.Context) (int, error) { return 42, nil }
		value, err := relock.DoValue(t.Context(), l, next)
		require.NoError(t, err)
		require.Equal(t, 42, value)

		failed := errors.New("failed")
		value, err = relock.DoValue(t.Context(), l, func(context.Context) (int, error) { return 7, failed })
		require.ErrorIs(t, err, failed)
		require.NotErrorIs(t, err, relock.ErrNotEntered)
		require.Equal(t, 7, value)

		value, err = relock.DoValue(t.Context(), l, func(context.Context) (int, error) {
			w.Store.Lose("a")
			return 8, nil
		})
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.Equal(t, 8, value)

		for _, nothing := range []func() (int, error){
			func() (int, error) { return relock.DoValue[int](t.Context(), l, nil) },
			func() (int, error) { return relock.DoValue(t.Context(), nil, next) },
			func() (int, error) { return relock.DoValue(t.Context(), m.NewLock(""), next) },
		} {
			value, err := nothing()
			require.ErrorIs(t, err, relock.ErrInvalid)
			require.ErrorIs(t, err, relock.ErrNotEntered)
			require.Zero(t, value)
		}
	})
}
