package relock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// This file is about what errors match. errors_test.go is about their texts.

// errCause is why some contexts of these tests end.
var errCause = errors.New("shutting down")

// failures are calls that fail, each with all that its error matches. l is lock "a", which another
// client holds.
var failures = map[string]struct {
	fail func(t *testing.T, m *member, l *relock.Lock) error
	want []error
}{
	"TryLock of a held lock": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		return begin(t, t.Context(), l.TryLock).failure()
	}, []error{relock.ErrLocked}},
	"the wait of TryLockFor is over": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		return begin(t, t.Context(), tryFor(l, time.Second)).failure()
	}, []error{relock.ErrLocked}},
	"the caller's deadline during Lock": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return begin(t, ctx, l.Lock).failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"the caller's deadline during TryLockFor": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return begin(t, ctx, tryFor(l, time.Hour)).failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"cancelled with a cause while waiting": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		ctx, cancel := context.WithCancelCause(t.Context())
		a := begin(t, ctx, l.Lock)
		cancel(errCause)
		return a.failure()
	}, []error{relock.ErrLocked, context.Canceled, errCause}},
	"cancelled with a cause while the store is silent": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		m.link.cut()
		ctx, cancel := context.WithCancelCause(t.Context())
		a := begin(t, ctx, l.Lock)
		cancel(errCause)
		return a.failure()
	}, []error{context.Canceled, errCause, relock.ErrUnavailable}},
	"cancelled before": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return begin(t, ctx, l.Lock).failure()
	}, []error{context.Canceled}},
	"past its deadline before": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		return begin(t, ctx, l.TryLock).failure()
	}, []error{context.DeadlineExceeded}},
	"the deadline while the store is silent": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		m.link.cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return begin(t, ctx, l.Lock).failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the end of the wait while the store is silent": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		m.link.cut()
		return begin(t, t.Context(), tryFor(l, time.Second)).failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the client is closed while waiting": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		a := begin(t, t.Context(), l.Lock)
		_ = m.Close()
		return a.failure()
	}, []error{relock.ErrClosed}},
	"the client was closed": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		_ = m.Close()
		return begin(t, t.Context(), l.TryLock).failure()
	}, []error{relock.ErrClosed}},
	"Unlock without Lock": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		return l.Unlock(t.Context())
	}, []error{relock.ErrNotHeld}},
	"Extend without Lock": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		return l.Extend(t.Context(), time.Second)
	}, []error{relock.ErrNotHeld}},
	"Token without Lock": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		_, err := l.Token(t.Context())
		return err
	}, []error{relock.ErrNotHeld}},
	"ForceUnlock of a free lock": {func(t *testing.T, m *member, _ *relock.Lock) error {
		t.Helper()
		return m.NewLock("free").ForceUnlock(t.Context())
	}, []error{relock.ErrNotHeld}},
	"Unlock of a lost lock": {func(t *testing.T, m *member, _ *relock.Lock) error {
		t.Helper()
		other := m.NewLock("other")
		ctx := enter(t, t.Context(), other)
		require.NoError(t, other.ForceUnlock(t.Context()))
		return other.Unlock(ctx)
	}, []error{relock.ErrLockLost}},
	"Lock in a section that was lost": {func(t *testing.T, m *member, _ *relock.Lock) error {
		t.Helper()
		other := m.NewLock("other")
		ctx := enter(t, t.Context(), other)
		require.NoError(t, other.ForceUnlock(t.Context()))
		_, _ = ends(t, ctx)
		return begin(t, context.WithoutCancel(ctx), other.Lock).failure()
	}, []error{relock.ErrLockLost}},
	"too few replicas": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		m.link.once(refuse(store.ErrNotReplicated), cmdWait)
		return begin(t, t.Context(), l.Lock).failure()
	}, []error{relock.ErrNotReplicated}},
	"another kind of lock": {func(t *testing.T, m *member, l *relock.Lock) error {
		t.Helper()
		m.link.once(refuse(store.ErrKind), cmdTry)
		return begin(t, t.Context(), l.TryLock).failure()
	}, []error{relock.ErrKind}},
	"a wrong wait": {func(t *testing.T, _ *member, l *relock.Lock) error {
		t.Helper()
		return begin(t, t.Context(), tryFor(l, -time.Second)).failure()
	}, []error{relock.ErrInvalid}},
}

func TestErrorsMatchTheirKindAndTheirCauseAndNothingElse(t *testing.T) {
	sentinels := []error{
		relock.ErrLocked, relock.ErrNotHeld, relock.ErrLockLost, relock.ErrReleased, relock.ErrClosed, relock.ErrInvalid,
		relock.ErrNotReplicated, relock.ErrUnavailable, relock.ErrKind, context.Canceled, context.DeadlineExceeded, errCause,
	}
	for name, c := range failures {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				holding := w.NewClient().NewLock("a")
				section := enter(t, t.Context(), holding)
				m := w.NewClient()
				err := c.fail(t, m, m.NewLock("a"))
				require.Error(t, err)
				require.NotContains(t, err.Error(), "\n")
				for _, sentinel := range sentinels {
					require.Equal(t, slices.Contains(c.want, sentinel), errors.Is(err, sentinel), "%v: %v", sentinel, err)
				}
				m.link.heal()
				require.NoError(t, holding.Unlock(section))
			})
		})
	}
}

func TestARefusalSaysThatTheStoreCouldNotBeReachedAtTheEnd(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holding := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), holding)
		m := w.NewClient()
		waiting := begin(t, t.Context(), tryFor(m.NewLock("a"), time.Minute))
		silent := m.link.cut()
		require.NoError(t, holding.Unlock(section))
		err := waiting.failure()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		silent.end()
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
	fake(t, func(t *testing.T, w *world) {
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := begin(t, endingContext{ctx, cancel, time.Now().Add(time.Second)}, m.NewLock("a").Lock)
		pass(time.Second)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		require.NotErrorIs(t, waiting.failure(), relock.ErrLocked)
	})
}
