package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// Which outcome does a call have?

// outcomes are calls of lock "b", each with its outcome. What has ended the call's context is no
// outcome of the call.
var outcomes = map[string]struct {
	want event.Outcome
	lock func(t *testing.T, w *stage.World, m *stage.Member) error
}{
	"in a section of a lock that was lost": {event.OutcomeCanceled, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		section := w.Enter(t.Context(), m.NewLock("a"))
		w.Store.Lose("a")
		_, _ = w.Ends(section)
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"outside of a section of this lock that was lost": {event.OutcomeCanceled, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		section := w.Enter(t.Context(), m.NewLock("b"))
		w.Store.Lose("b")
		_, _ = w.Ends(section)
		_, err := m.NewLock("b").Lock(relock.WithoutHolder(section))
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"in its own section that was lost": {event.OutcomeLost, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		section := w.Enter(t.Context(), m.NewLock("b"))
		w.Store.Lose("b")
		_, _ = w.Ends(section)
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		return err
	}},
	"a wait that the loss of another lock ends": {event.OutcomeLocked, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		_ = w.Enter(t.Context(), w.NewClient().NewLock("b"))
		waiting := w.Start(w.Enter(t.Context(), m.NewLock("a")), m.NewLock("b"))
		w.Store.Lose("a")
		require.ErrorIs(t, waiting.Failure(), relock.ErrLockLost)
		return waiting.Failure()
	}},
	"in a section of another client that was closed": {event.OutcomeCanceled, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		other := w.NewClient()
		section := w.Enter(t.Context(), other.NewLock("a"))
		require.NoError(t, other.Close())
		_, err := m.NewLock("b").Lock(section)
		require.ErrorIs(t, err, relock.ErrClosed)
		return err
	}},
	"a wait that another client's Close ends": {event.OutcomeLocked, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		_ = w.Enter(t.Context(), w.NewClient().NewLock("b"))
		other := w.NewClient()
		waiting := w.Start(w.Enter(t.Context(), other.NewLock("a")), m.NewLock("b"))
		require.NoError(t, other.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrLocked)
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.ErrorIs(t, waiting.Failure(), context.Canceled)
		return waiting.Failure()
	}},
	"another client's Close ends the tries to reach the store": {event.OutcomeCanceled, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		other := w.NewClient()
		section := w.Enter(t.Context(), other.NewLock("a"))
		m.Link.Cut()
		waiting := w.Start(section, m.NewLock("b"))
		stage.Pass(3 * time.Second)
		require.NoError(t, other.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.ErrorIs(t, waiting.Failure(), context.Canceled)
		return waiting.Failure()
	}},
	"a sibling was refused its lock": {event.OutcomeCanceled, func(t *testing.T, w *stage.World, m *stage.Member) error {
		t.Helper()
		_ = w.Enter(t.Context(), w.NewClient().NewLock("a"))
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := m.NewLock("a").TryLock(ctx)
		cancel(err) // as an errgroup does
		_, err = m.NewLock("b").Lock(ctx)
		require.ErrorIs(t, err, relock.ErrLocked)
		return err
	}},
	"too few replicas confirm": {event.OutcomeError, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Once(stage.Refuse(store.ErrNotReplicated), stage.CmdWait)
		_, err := m.NewLock("b").Lock(t.Context())
		return err
	}},
	"too few replicas confirm, and the wait ends": {event.OutcomeError, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Once(func(ctx context.Context, _ *stage.Fault, _ func() error) error {
			<-ctx.Done()
			return store.Unsure(store.ErrNotReplicated)
		}, stage.CmdWait)
		_, err := m.NewLock("b").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrNotReplicated)
		return err
	}},
	"the wait ends while the store is silent": {event.OutcomeCanceled, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Cut()
		_, err := m.NewLock("b").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		return err
	}},
	"a deadline of the network": {event.OutcomeError, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Once(stage.Refuse(store.Unavailable(context.DeadlineExceeded)), stage.CmdTry) // as a dial that took too long
		_, err := m.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}},
	"a deadline of the network, after the command": {event.OutcomeError, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Once(stage.LoseAnswer(context.DeadlineExceeded), stage.CmdTry)
		_, err := m.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}},
	"another kind of lock": {event.OutcomeError, func(t *testing.T, _ *stage.World, m *stage.Member) error {
		t.Helper()
		m.Link.Once(stage.Refuse(store.ErrKind), stage.CmdWait)
		_, err := m.NewLock("b").Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrKind)
		return err
	}},
}

func TestTheOutcomeIsThatOfTheCall(t *testing.T) {
	for name, test := range outcomes {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				err := test.lock(t, w, w.NewClient(relock.WithHooks(r.Hooks())))
				finished := stage.EventsOf[event.AcquireFinished](&r)
				last := finished[len(finished)-1]
				require.Equal(t, "b", last.Name)
				require.Equal(t, test.want, last.Outcome, "%v", last.Err)
				require.Equal(t, err, last.Err)
			})
		})
	}
}
