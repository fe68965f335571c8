package relock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
	"github.com/go-relock/relock/store"
)

// Which errors does an error match?

// This file is about what errors match. errors_test.go is about their texts.

// errCause is why some contexts of these tests end.
var errCause = errors.New("shutting down")

// failures are calls that fail, each with all that its error matches. l is lock "a", which another
// client holds.
var failures = map[string]struct {
	fail func(w *stage.World, m *stage.Member, l *relock.Lock) error
	want []error
}{
	"TryLock of a held lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrLocked}},
	"the wait of TryLockFor is over": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		return w.Begin(w.T.Context(), stage.TryFor(l, time.Second)).Failure()
	}, []error{relock.ErrLocked}},
	"the caller's deadline during Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Start(ctx, l).Failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"the caller's deadline during TryLockFor": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Begin(ctx, stage.TryFor(l, time.Hour)).Failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"cancelled with a cause while waiting": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		ctx, cancel := context.WithCancelCause(w.T.Context())
		a := w.Start(ctx, l)
		cancel(errCause)
		return a.Failure()
	}, []error{relock.ErrLocked, context.Canceled, errCause}},
	"cancelled with a cause while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		m.Link.Cut()
		ctx, cancel := context.WithCancelCause(w.T.Context())
		a := w.Start(ctx, l)
		cancel(errCause)
		return a.Failure()
	}, []error{context.Canceled, errCause, relock.ErrUnavailable}},
	"cancelled before": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		ctx, cancel := context.WithCancel(w.T.Context())
		cancel()
		return w.Start(ctx, l).Failure()
	}, []error{context.Canceled}},
	"past its deadline before": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		ctx, cancel := context.WithTimeout(w.T.Context(), 0)
		defer cancel()
		return w.Begin(ctx, l.TryLock).Failure()
	}, []error{context.DeadlineExceeded}},
	"the deadline while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		m.Link.Cut()
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Start(ctx, l).Failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the end of the wait while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		m.Link.Cut()
		return w.Begin(w.T.Context(), stage.TryFor(l, time.Second)).Failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the client is closed while waiting": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		a := w.Start(w.T.Context(), l)
		_ = m.Close()
		return a.Failure()
	}, []error{relock.ErrClosed}},
	"the client was closed": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		_ = m.Close()
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrClosed}},
	"Unlock without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		return l.Unlock(w.T.Context())
	}, []error{relock.ErrNotHeld}},
	"Extend without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		return l.Extend(w.T.Context(), time.Second)
	}, []error{relock.ErrNotHeld}},
	"Token without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		_, err := l.Token(w.T.Context())
		return err
	}, []error{relock.ErrNotHeld}},
	"ForceUnlock of a free lock": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		w.T.Helper()
		return m.NewLock("free").ForceUnlock(w.T.Context())
	}, []error{relock.ErrNotHeld}},
	"Unlock of a lost lock": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		w.T.Helper()
		other := m.NewLock("other")
		ctx := w.Enter(w.T.Context(), other)
		require.NoError(w.T, other.ForceUnlock(w.T.Context()))
		return other.Unlock(ctx)
	}, []error{relock.ErrLockLost}},
	"Lock in a section that was lost": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		w.T.Helper()
		other := m.NewLock("other")
		ctx := w.Enter(w.T.Context(), other)
		require.NoError(w.T, other.ForceUnlock(w.T.Context()))
		_, _ = w.Ends(ctx)
		return w.Start(context.WithoutCancel(ctx), other).Failure()
	}, []error{relock.ErrLockLost}},
	"too few replicas": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		m.Link.Once(stage.Refuse(store.ErrNotReplicated), stage.CmdWait)
		return w.Start(w.T.Context(), l).Failure()
	}, []error{relock.ErrNotReplicated}},
	"another kind of lock": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		m.Link.Once(stage.Refuse(store.ErrKind), stage.CmdTry)
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrKind}},
	"a wrong wait": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		w.T.Helper()
		return w.Begin(w.T.Context(), stage.TryFor(l, -time.Second)).Failure()
	}, []error{relock.ErrInvalid}},
}

func TestErrorsMatchTheirKindAndTheirCauseAndNothingElse(t *testing.T) {
	sentinels := []error{
		relock.ErrLocked, relock.ErrNotHeld, relock.ErrLockLost, relock.ErrReleased, relock.ErrClosed, relock.ErrInvalid,
		relock.ErrNotReplicated, relock.ErrUnavailable, relock.ErrKind, context.Canceled, context.DeadlineExceeded, errCause,
	}
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				holding := w.NewClient().NewLock("a")
				section := w.Enter(t.Context(), holding)
				m := w.NewClient()
				err := c.fail(w, m, m.NewLock("a"))
				require.Error(t, err)
				require.NotContains(t, err.Error(), "\n")
				for _, sentinel := range sentinels {
					require.Equal(t, slices.Contains(c.want, sentinel), errors.Is(err, sentinel), "%v: %v", sentinel, err)
				}
				m.Link.Heal()
				w.Leave(section, holding)
			})
		})
	}
}

func TestARefusalSaysThatTheStoreCouldNotBeReachedAtTheEnd(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		holding := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), holding)
		m := w.NewClient()
		waiting := w.Begin(t.Context(), stage.TryFor(m.NewLock("a"), time.Minute))
		silent := m.Link.Cut()
		w.Leave(section, holding)
		err := waiting.Failure()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		silent.End()
	})
}

// endingContext is cancelled when somebody asks for its error from a moment on.
type endingContext struct {
	context.Context
	cancel context.CancelFunc
	from   time.Time
}

func (c endingContext) Err() error {
	if !time.Now().Before(c.from) {
		c.cancel()
	}
	return c.Context.Err()
}

func TestAWaitThatCloseEndsIsNoRefusalThoughItsContextEndsToo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_ = w.Enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := w.Start(endingContext{ctx, cancel, time.Now().Add(time.Second)}, m.NewLock("a"))
		stage.Pass(time.Second)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.NotErrorIs(t, waiting.Failure(), relock.ErrLocked)
	})
}
