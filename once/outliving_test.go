package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/once"
)

// What becomes of a function that goes on behind the end of its caller? (In fake time.)

var errGone = errors.New("the client has gone")

func TestAFunctionThatOutlivesItsCallerKeepsItsLock(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		here, there := newSchedule(t, w), newSchedule(t, w)
		ctx, leave := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, _, err := once.Do(ctx, here.once, "pay", func(ctx context.Context, a once.Attempt) (string, error) {
				<-ctx.Done()
				if cause := context.Cause(ctx); cause != errGone { // the very cause
					t.Error(cause)
				}
				<-time.After(5 * relock.DefaultTTL) // deaf to its context
				_, err := a.Token(context.WithoutCancel(ctx))
				return "first", err
			})
			ended <- err
		}()
		stage.Settle()
		leave(errGone)
		stage.Pass(2 * relock.DefaultTTL)
		again := func(context.Context, once.Attempt) (string, error) { return "second", nil }
		_, _, err := once.Do(t.Context(), there.once, "pay", again, once.NoWait())
		require.ErrorIs(t, err, once.ErrInFlight)
		result, replayed, err := once.Do(t.Context(), there.once, "pay", again)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "first", result)
		require.NoError(t, <-ended)
		section, err := w.NewClient().NewLock("once:pay").TryLock(t.Context())
		require.NoError(t, err, "the lock is free at the end")
		require.NotNil(t, section)
	})
}

func TestAFunctionKnowsTheDeadlineOfItsCaller(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		s := newSchedule(t, w)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := once.Do(ctx, s.once, "pay", func(ctx context.Context, _ once.Attempt) (int, error) {
			begun := time.Now()
			deadline, is := ctx.Deadline()
			require.True(t, is)
			require.Equal(t, time.Minute, deadline.Sub(begun).Round(time.Second))
			inner, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			<-inner.Done()
			require.Equal(t, time.Minute, time.Since(begun).Round(time.Second))
			require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
			return 0, ctx.Err()
		})
		require.Error(t, err)
		_, _, err = once.Do(t.Context(), s.once, "pay", func(_ context.Context, a once.Attempt) (int, error) {
			require.True(t, a.Interrupted, "nobody knows what it did at its end")
			return 0, nil
		})
		require.NoError(t, err)
	})
}

func TestTheEndOfACallerThatAsksIsItsOwn(t *testing.T) {
	for name, end := range map[string]error{"deadline": context.DeadlineExceeded, "cancel": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				s := newSchedule(t, w)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if name == "cancel" {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(time.Second, cancel)
				}
				silent := s.Net.On(scriptOf("pay"), redistest.Hold()).Times(3)
				_, _, err := once.Do(ctx, s.once, "pay", func(context.Context, once.Attempt) (int, error) { return 0, nil })
				require.ErrorIs(t, err, end)
				if name == "deadline" {
					require.NotErrorIs(t, err, context.Canceled)
				}
				silent.LetGo()
			})
		})
	}
}
