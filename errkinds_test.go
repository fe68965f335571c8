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

// Which errors does an error match?

// This file is about what errors match. errors_test.go is about their texts.

// errCause is why some contexts of these tests end.
var errCause = errors.New("shutting down")

// failures are calls that fail, each with all that its error matches. l is lock "a", which another
// client holds.
var failures = map[string]struct {
	fail func(w *world, m *member, l *relock.Lock) error
	want []error
}{
	"TryLock of a held lock": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		return w.begin(w.t.Context(), l.TryLock).failure()
	}, []error{relock.ErrLocked}},
	"the wait of TryLockFor is over": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		return w.begin(w.t.Context(), tryFor(l, time.Second)).failure()
	}, []error{relock.ErrLocked}},
	"the caller's deadline during Lock": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		return w.start(ctx, l).failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"the caller's deadline during TryLockFor": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		return w.begin(ctx, tryFor(l, time.Hour)).failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"cancelled with a cause while waiting": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		ctx, cancel := context.WithCancelCause(w.t.Context())
		a := w.start(ctx, l)
		cancel(errCause)
		return a.failure()
	}, []error{relock.ErrLocked, context.Canceled, errCause}},
	"cancelled with a cause while the store is silent": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		m.link.cut()
		ctx, cancel := context.WithCancelCause(w.t.Context())
		a := w.start(ctx, l)
		cancel(errCause)
		return a.failure()
	}, []error{context.Canceled, errCause, relock.ErrUnavailable}},
	"cancelled before": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		ctx, cancel := context.WithCancel(w.t.Context())
		cancel()
		return w.start(ctx, l).failure()
	}, []error{context.Canceled}},
	"past its deadline before": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		ctx, cancel := context.WithTimeout(w.t.Context(), 0)
		defer cancel()
		return w.begin(ctx, l.TryLock).failure()
	}, []error{context.DeadlineExceeded}},
	"the deadline while the store is silent": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		m.link.cut()
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		return w.start(ctx, l).failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the end of the wait while the store is silent": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		m.link.cut()
		return w.begin(w.t.Context(), tryFor(l, time.Second)).failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the client is closed while waiting": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		a := w.start(w.t.Context(), l)
		_ = m.Close()
		return a.failure()
	}, []error{relock.ErrClosed}},
	"the client was closed": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		_ = m.Close()
		return w.begin(w.t.Context(), l.TryLock).failure()
	}, []error{relock.ErrClosed}},
	"Unlock without Lock": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		return l.Unlock(w.t.Context())
	}, []error{relock.ErrNotHeld}},
	"Extend without Lock": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		return l.Extend(w.t.Context(), time.Second)
	}, []error{relock.ErrNotHeld}},
	"Token without Lock": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		_, err := l.Token(w.t.Context())
		return err
	}, []error{relock.ErrNotHeld}},
	"ForceUnlock of a free lock": {func(w *world, m *member, _ *relock.Lock) error {
		w.t.Helper()
		return m.NewLock("free").ForceUnlock(w.t.Context())
	}, []error{relock.ErrNotHeld}},
	"Unlock of a lost lock": {func(w *world, m *member, _ *relock.Lock) error {
		w.t.Helper()
		other := m.NewLock("other")
		ctx := w.enter(w.t.Context(), other)
		require.NoError(w.t, other.ForceUnlock(w.t.Context()))
		return other.Unlock(ctx)
	}, []error{relock.ErrLockLost}},
	"Lock in a section that was lost": {func(w *world, m *member, _ *relock.Lock) error {
		w.t.Helper()
		other := m.NewLock("other")
		ctx := w.enter(w.t.Context(), other)
		require.NoError(w.t, other.ForceUnlock(w.t.Context()))
		_, _ = w.ends(ctx)
		return w.start(context.WithoutCancel(ctx), other).failure()
	}, []error{relock.ErrLockLost}},
	"too few replicas": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		m.link.once(refuse(store.ErrNotReplicated), cmdWait)
		return w.start(w.t.Context(), l).failure()
	}, []error{relock.ErrNotReplicated}},
	"another kind of lock": {func(w *world, m *member, l *relock.Lock) error {
		w.t.Helper()
		m.link.once(refuse(store.ErrKind), cmdTry)
		return w.begin(w.t.Context(), l.TryLock).failure()
	}, []error{relock.ErrKind}},
	"a wrong wait": {func(w *world, _ *member, l *relock.Lock) error {
		w.t.Helper()
		return w.begin(w.t.Context(), tryFor(l, -time.Second)).failure()
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
				section := w.enter(t.Context(), holding)
				m := w.NewClient()
				err := c.fail(w, m, m.NewLock("a"))
				require.Error(t, err)
				require.NotContains(t, err.Error(), "\n")
				for _, sentinel := range sentinels {
					require.Equal(t, slices.Contains(c.want, sentinel), errors.Is(err, sentinel), "%v: %v", sentinel, err)
				}
				m.link.heal()
				w.leave(section, holding)
			})
		})
	}
}

func TestARefusalSaysThatTheStoreCouldNotBeReachedAtTheEnd(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holding := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), holding)
		m := w.NewClient()
		waiting := w.begin(t.Context(), tryFor(m.NewLock("a"), time.Minute))
		silent := m.link.cut()
		w.leave(section, holding)
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
		_ = w.enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := w.start(endingContext{ctx, cancel, time.Now().Add(time.Second)}, m.NewLock("a"))
		pass(time.Second)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		require.NotErrorIs(t, waiting.failure(), relock.ErrLocked)
	})
}
