package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// Which outcome does a call have?

// outcomes are calls of lock "b", each with its outcome. What has ended the call's context is no
// outcome of the call.
var outcomes = map[string]struct {
	want relock.Outcome
	lock func(t *testing.T, w *world, m *member) error
}{
	"in a section of a lock that was lost": {relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		section := w.enter(t.Context(), m.NewLock("a"))
		w.Lose("a")
		_, _ = w.ends(section)
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"outside of a section of this lock that was lost": {relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		section := w.enter(t.Context(), m.NewLock("b"))
		w.Lose("b")
		_, _ = w.ends(section)
		_, err := m.NewLock("b").Lock(relock.WithoutHolder(section))
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"in its own section that was lost": {relock.OutcomeLost, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		section := w.enter(t.Context(), m.NewLock("b"))
		w.Lose("b")
		_, _ = w.ends(section)
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"a wait that the loss of another lock ends": {relock.OutcomeLocked, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		_ = w.enter(t.Context(), w.NewClient().NewLock("b"))
		waiting := w.start(w.enter(t.Context(), m.NewLock("a")), m.NewLock("b"))
		w.Lose("a")
		require.ErrorIs(t, waiting.failure(), relock.ErrLockLost)
		return waiting.failure()
	}},
	"in a section of another client that was closed": {relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		other := w.NewClient()
		section := w.enter(t.Context(), other.NewLock("a"))
		require.NoError(t, other.Close())
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrClosed)
		return err
	}},
	"a wait that another client's Close ends": {relock.OutcomeLocked, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		_ = w.enter(t.Context(), w.NewClient().NewLock("b"))
		other := w.NewClient()
		waiting := w.start(w.enter(t.Context(), other.NewLock("a")), m.NewLock("b"))
		require.NoError(t, other.Close())
		require.ErrorIs(t, waiting.failure(), relock.ErrLocked)
		require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		require.ErrorIs(t, waiting.failure(), context.Canceled)
		return waiting.failure()
	}},
	"another client's Close ends the tries to reach the store": {relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		other := w.NewClient()
		section := w.enter(t.Context(), other.NewLock("a"))
		m.link.cut()
		waiting := w.start(section, m.NewLock("b"))
		pass(3 * time.Second)
		require.NoError(t, other.Close())
		require.ErrorIs(t, waiting.failure(), relock.ErrClosed)
		require.ErrorIs(t, waiting.failure(), context.Canceled)
		return waiting.failure()
	}},
	"a sibling was refused its lock": {relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) error {
		t.Helper()
		_ = w.enter(t.Context(), w.NewClient().NewLock("a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := m.NewLock("a").TryLock(ctx)
		cancel(err) // as an errgroup does
		_, err = m.NewLock("b").Lock(ctx)
		require.ErrorIs(t, err, relock.ErrLocked)
		return err
	}},
	"too few replicas confirm": {relock.OutcomeError, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.once(refuse(store.ErrNotReplicated), cmdWait)
		_, err := m.NewLock("b").Lock(t.Context())
		return err
	}},
	"too few replicas confirm, and the wait ends": {relock.OutcomeError, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.once(func(ctx context.Context, _ *fault, _ func() error) error {
			<-ctx.Done()
			return store.Unsure(store.ErrNotReplicated)
		}, cmdWait)
		_, err := m.NewLock("b").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		return err
	}},
	"the wait ends while the store is silent": {relock.OutcomeCanceled, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.cut()
		_, err := m.NewLock("b").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		return err
	}},
	"a deadline of the network": {relock.OutcomeError, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.once(refuse(store.Unavailable(context.DeadlineExceeded)), cmdTry) // as a dial that took too long
		_, err := m.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}},
	"a deadline of the network, after the command": {relock.OutcomeError, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.once(loseAnswer(context.DeadlineExceeded), cmdTry)
		_, err := m.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}},
	"another kind of lock": {relock.OutcomeError, func(t *testing.T, _ *world, m *member) error {
		t.Helper()
		m.link.once(refuse(store.ErrKind), cmdWait)
		_, err := m.NewLock("b").Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrKind)
		return err
	}},
}

func TestTheOutcomeIsThatOfTheCall(t *testing.T) {
	for name, test := range outcomes {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				err := test.lock(t, w, w.NewClient(relock.WithHooks(r.Hooks())))
				finished := eventsOf[relock.AcquireFinished](&r)
				last := finished[len(finished)-1]
				require.Equal(t, "b", last.Name)
				require.Equal(t, test.want, last.Outcome, "%v", last.Err)
				require.Equal(t, err, last.Err)
			})
		})
	}
}
