package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/ticket"
)

// What do the texts of errors say, and which errors does an error match? Package locktest asks the
// second question of each store.

// The texts.

func TestARefusalSaysWhoHasTheLockAndForHowLong(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 10 * time.Second
		holding := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		section := w.Enter(t.Context(), holding)
		holder := stage.HolderOf(t, section)
		l := w.NewClient().NewLock("a")
		stage.Pass(2*time.Second + 345678*time.Nanosecond)

		_, err := l.TryLock(t.Context())
		require.EqualError(t, err, fmt.Sprintf(`relock: "a" is locked by %s; its lease has 8s left and may be renewed`, holder))
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		refusal.TTL = refusal.TTL.Round(time.Millisecond)
		require.Equal(t, &relock.LockedError{Name: "a", Holder: holder, TTL: 8 * time.Second}, refusal)

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the request took too long"))
		defer cancel()
		_, err = l.Lock(ctx)
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, holder, refusal.Holder)
		require.ErrorContains(t, err, "may be renewed: context deadline exceeded: the request took too long")
		w.Leave(section, holding)
	})
}

func TestARefusalByAHoldOfTheSameClientSaysSo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := w.Enter(t.Context(), l)
		for name, claim := range map[string]func() (context.Context, error){
			"without a wait": func() (context.Context, error) { return l.TryLock(t.Context()) },
			"with a wait":    func() (context.Context, error) { return l.TryLockFor(t.Context(), time.Second) },
		} {
			_, err := claim()
			var refusal *relock.LockedError
			require.ErrorAs(t, err, &refusal, name)
			require.True(t, refusal.Local, name)
			require.ErrorContains(t, err, "(held by this process)", name)
		}
		_, err := w.NewClient().NewLock("a").TryLock(t.Context())
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.False(t, refusal.Local)
		require.NotContains(t, err.Error(), "this process")
		w.Leave(section, l)
	})
}

func TestARefusalSaysWhatIsNotKnown(t *testing.T) {
	owner := relock.LockedError{Name: "a"}
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		owner.Holder = stage.HolderOf(t, w.Enter(t.Context(), w.NewClient().NewLock("a")))
	})
	noLease, over, unknown := owner, owner, relock.LockedError{Name: "a", TTL: -1}
	noLease.TTL = -time.Millisecond
	require.EqualError(t, &noLease, fmt.Sprintf(`relock: "a" is locked by %s without a lease`, owner.Holder))
	require.NotContains(t, over.Error(), "without a lease", "the lease is over just now")
	require.EqualError(t, &unknown, `relock: "a" is locked by another holder`)
}

// lateContext is cancelled by the first question for its error after a moment.
type lateContext struct {
	context.Context
	cancel context.CancelFunc
	from   time.Time
}

func (c lateContext) Err() error {
	if !time.Now().Before(c.from) {
		c.cancel()
	}
	return c.Context.Err()
}

func TestAWaitThatIsOverJustBeforeItsContextIsNoDeadline(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		holding := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), holding)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		late := lateContext{ctx, cancel, time.Now().Add(time.Second)}
		_, err := w.NewClient().NewLock("a").TryLockFor(late, time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the context has none")
		w.Leave(section, holding)
	})
}

func TestErrorsOfOperationsSayWhichLockAndHolder(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		done, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := l.Lock(done)
		require.EqualError(t, err, `relock: lock "a": context canceled`)
		require.EqualError(t, l.Unlock(t.Context()), `relock: unlock "a": not held by this context (use the one that Lock returned, before its Unlock)`)
		require.EqualError(t, l.ForceUnlock(t.Context()), `relock: force unlock "a": nobody has the lock`)

		section := w.Enter(t.Context(), l)
		holder := stage.HolderOf(t, section)
		inside, cancel := context.WithCancel(section)
		cancel()
		_, err = l.Lock(inside)
		require.EqualError(t, err, fmt.Sprintf(`relock: lock "a" as %s: context canceled`, holder))
		m.Link.On(stage.Refuse(stage.ErrRefused))
		for op, err := range map[string]error{
			"lock": second(l.Lock(section)), "token": second(l.Token(section)), "unlock": l.Unlock(section),
		} {
			requireOp(t, err, op, "a", holder)
		}
		requireOp(t, second(l.State(t.Context())), "state", "a", "")
		m.Link.Heal()
		stage.Pass(time.Second)
		section = w.Enter(t.Context(), l)
		m.Link.On(stage.Refuse(stage.ErrRefused), stage.CmdBreak)
		requireOp(t, l.ForceUnlock(t.Context()), "force unlock", "a", stage.HolderOf(t, section))
		fixed := m.NewLock("b", relock.WithFixedLease(time.Minute))
		inB := w.Enter(t.Context(), fixed)
		m.Link.On(stage.Refuse(stage.ErrRefused), stage.CmdEnter)
		requireOp(t, fixed.Extend(inB, time.Minute), "extend", "b", stage.HolderOf(t, inB))
		require.True(t, fixed.Held(inB))
		w.Leave(inB, fixed)
		w.Leave(section, l)
	})
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// requireOp fails unless err is a refusal of the store in that operation.
func requireOp(t *testing.T, err error, op, name string, holder relock.Holder) {
	t.Helper()
	require.ErrorIs(t, err, stage.ErrRefused, op)
	var failed *relock.OpError
	require.ErrorAs(t, err, &failed, op)
	require.Equal(t, op, failed.Op)
	require.Equal(t, name, failed.Name)
	require.Equal(t, holder, failed.Holder, op)
	require.ErrorContains(t, err, fmt.Sprintf("relock: %s %q", op, name))
	require.NotContains(t, err.Error(), "\n")
}

func TestALossSaysWhichHoldAndWhy(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		holder := stage.HolderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		w.Store.Lose("a")
		_, cause := w.Ends(section)
		require.Equal(t, &relock.LostError{Name: "a", Holder: holder, Token: token, Reason: event.LossTaken}, cause)
		require.EqualError(t, cause, fmt.Sprintf(`relock: "a" lost by %s: the store does not have this hold any more`, holder))
		require.Equal(t, cause, l.Unlock(section), "Unlock returns the same")
	})
}

func TestEveryReasonForALossIsToldInWordsOfItsOwn(t *testing.T) {
	told := map[string]bool{}
	for _, reason := range []event.LossReason{
		event.LossExpired, event.LossTaken, event.LossMaxHold, event.LossAbandoned, event.LossLeaked, "a new one",
	} {
		_, words, _ := strings.Cut((&relock.LostError{Name: "a", Reason: reason}).Error(), `"a" lost by : `)
		require.NotEmpty(t, words)
		require.False(t, told[words], words)
		told[words] = true
	}
}

func TestAnErrorHasTheCauseOfItsContext(t *testing.T) {
	cause := errors.New("shutting down")
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l, fixed := m.NewLock("a"), m.NewLock("b", relock.WithFixedLease(time.Minute))
		section, inB := w.Enter(t.Context(), l), w.Enter(t.Context(), fixed)
		m.Link.Cut()
		for name, call := range map[string]func(ctx context.Context) error{
			"Lock":        func(ctx context.Context) error { return second(m.NewLock("c").Lock(ctx)) },
			"TryLock":     func(ctx context.Context) error { return second(m.NewLock("c").TryLock(ctx)) },
			"TryLockFor":  func(ctx context.Context) error { return second(m.NewLock("c").TryLockFor(ctx, time.Hour)) },
			"nested Lock": func(ctx context.Context) error { return second(l.Lock(relock.WithSection(ctx, section))) },
			"Token":       func(ctx context.Context) error { return second(l.Token(relock.WithSection(ctx, section))) },
			"Extend":      func(ctx context.Context) error { return fixed.Extend(relock.WithSection(ctx, inB), time.Minute) },
			"State":       func(ctx context.Context) error { return second(l.State(ctx)) },
			"ForceUnlock": l.ForceUnlock,
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			begun := time.Now()
			err := call(ctx)
			require.Equal(t, time.Second, time.Since(begun), name)
			require.ErrorIs(t, err, context.Canceled, name)
			require.ErrorIs(t, err, relock.ErrUnavailable, name)
			if strings.Contains(name, "Lock") && name != "ForceUnlock" {
				require.ErrorIs(t, err, cause, name)
			}
		}
		m.Link.Heal()
		stage.Pass(time.Second)
		w.Leave(section, l)
		w.Leave(inB, fixed)
	})
}

func TestAForeignHolderForgesNoLineOfALog(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		for name, id := range map[string]store.ID{
			"a": "evil\nlevel=ERROR msg=\"admin logged in\"", "b": "evil\x1b[31m:1:1", "c": "evil\xff:1:1",
		} {
			_, err := w.Store.Try(t.Context(), store.Claim{Name: name, ID: id, TTL: time.Hour, Limit: 1})
			require.NoError(t, err)
			l := w.NewClient().NewLock(name)
			_, refusal := l.TryLock(t.Context())
			require.ErrorContains(t, refusal, "is locked by \"evil\\")
			state, err := l.State(t.Context())
			require.NoError(t, err)
			for _, text := range []string{refusal.Error(), state.Holder.String(), fmt.Sprint(state)} {
				require.NotContains(t, text, "\n")
				require.NotContains(t, text, "\x1b")
				require.True(t, utf8.ValidString(text))
			}
		}
	})
}

// The errors that an error matches.

// errCause is why some contexts of these tests end.
var errCause = errors.New("shutting down")

// failures are calls that fail, each with all that its error matches. l is lock "a", which another
// client holds.
var failures = map[string]struct {
	fail func(w *stage.World, m *stage.Member, l *relock.Lock) error
	want []error
}{
	"TryLock of a held lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrLocked}},
	"the wait of TryLockFor is over": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		return w.Begin(w.T.Context(), stage.TryFor(l, time.Second)).Failure()
	}, []error{relock.ErrLocked}},
	"the caller's deadline during Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Start(ctx, l).Failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"the caller's deadline during TryLockFor": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Begin(ctx, stage.TryFor(l, time.Hour)).Failure()
	}, []error{relock.ErrLocked, context.DeadlineExceeded}},
	"cancelled with a cause while waiting": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		ctx, cancel := context.WithCancelCause(w.T.Context())
		a := w.Start(ctx, l)
		cancel(errCause)
		return a.Failure()
	}, []error{relock.ErrLocked, context.Canceled, errCause}},
	"cancelled with a cause while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		m.Link.Cut()
		ctx, cancel := context.WithCancelCause(w.T.Context())
		a := w.Start(ctx, l)
		cancel(errCause)
		return a.Failure()
	}, []error{context.Canceled, errCause, relock.ErrUnavailable}},
	"cancelled before": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		ctx, cancel := context.WithCancel(w.T.Context())
		cancel()
		return w.Start(ctx, l).Failure()
	}, []error{context.Canceled}},
	"past its deadline before": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		ctx, cancel := context.WithTimeout(w.T.Context(), 0)
		defer cancel()
		return w.Begin(ctx, l.TryLock).Failure()
	}, []error{context.DeadlineExceeded}},
	"the deadline while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		m.Link.Cut()
		ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
		defer cancel()
		return w.Start(ctx, l).Failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the end of the wait while the store is silent": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		m.Link.Cut()
		return w.Begin(w.T.Context(), stage.TryFor(l, time.Second)).Failure()
	}, []error{context.DeadlineExceeded, relock.ErrUnavailable}},
	"the client is closed while waiting": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		a := w.Start(w.T.Context(), l)
		_ = m.Close()
		return a.Failure()
	}, []error{relock.ErrClosed}},
	"the client was closed": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		_ = m.Close()
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrClosed}},
	"Unlock without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		return l.Unlock(w.T.Context())
	}, []error{relock.ErrNotHeld}},
	"Extend without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		return l.Extend(w.T.Context(), time.Second)
	}, []error{relock.ErrNotHeld}},
	"Token without Lock": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
		_, err := l.Token(w.T.Context())
		return err
	}, []error{relock.ErrNotHeld}},
	"ForceUnlock of a free lock": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		return m.NewLock("free").ForceUnlock(w.T.Context())
	}, []error{relock.ErrNotHeld}},
	"Unlock of a lost lock": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		other := m.NewLock("other")
		ctx := w.Enter(w.T.Context(), other)
		require.NoError(w.T, other.ForceUnlock(w.T.Context()))
		return other.Unlock(ctx)
	}, []error{relock.ErrLockLost}},
	"Lock in a section that was lost": {func(w *stage.World, m *stage.Member, _ *relock.Lock) error {
		other := m.NewLock("other")
		ctx := w.Enter(w.T.Context(), other)
		require.NoError(w.T, other.ForceUnlock(w.T.Context()))
		_, _ = w.Ends(ctx)
		return w.Start(context.WithoutCancel(ctx), other).Failure()
	}, []error{relock.ErrLockLost}},
	"too few replicas": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		m.Link.Once(stage.Refuse(store.ErrNotReplicated), stage.CmdWait)
		return w.Start(w.T.Context(), l).Failure()
	}, []error{relock.ErrNotReplicated}},
	"another kind of lock": {func(w *stage.World, m *stage.Member, l *relock.Lock) error {
		m.Link.Once(stage.Refuse(store.ErrKind), stage.CmdTry)
		return w.Begin(w.T.Context(), l.TryLock).Failure()
	}, []error{relock.ErrKind}},
	"a wrong wait": {func(w *stage.World, _ *stage.Member, l *relock.Lock) error {
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

func TestAWaitThatCloseEndsIsNoRefusalThoughItsContextEndsToo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		_ = w.Enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := w.Start(lateContext{ctx, cancel, time.Now().Add(time.Second)}, m.NewLock("a"))
		stage.Pass(time.Second)
		require.NoError(t, m.Close())
		require.ErrorIs(t, waiting.Failure(), relock.ErrClosed)
		require.NotErrorIs(t, waiting.Failure(), relock.ErrLocked)
	})
}

func TestACallThatHasNotEnteredReturnsAContextThatHasEnded(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		other := w.NewClient()
		theirs := w.Enter(t.Context(), other.NewLock("a"))
		writing, err := other.NewRWLock("b").Lock(t.Context())
		require.NoError(t, err)
		m := w.NewClient()
		l, rw, zero := m.NewLock("a"), m.NewRWLock("b"), new(relock.Lock)
		again := m.NewLock("c")
		section := w.Enter(t.Context(), again)
		outer := context.WithValue(section, t, "a value of the caller")
		for name, call := range map[string]stage.Locking{
			"Lock": func(ctx context.Context) (context.Context, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return l.Lock(ctx)
			},
			"TryLock": l.TryLock,
			"TryLockIf inside": func(ctx context.Context) (context.Context, error) {
				ended, _, err := again.TryLockIf(ctx, "return true", nil)
				return ended, err
			},
			"TryLockFor":             stage.TryFor(l, time.Second),
			"TryLockFor, wrong time": stage.TryFor(l, -1),
			"TryLockIf": func(ctx context.Context) (context.Context, error) {
				ended, _, err := l.TryLockIf(ctx, "return true", nil)
				return ended, err
			},
			"RLock": func(ctx context.Context) (context.Context, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return rw.RLock(ctx)
			},
			"TryRLock":    rw.TryRLock,
			"TryRLockFor": func(ctx context.Context) (context.Context, error) { return rw.TryRLockFor(ctx, time.Second) },
			"Locks.Lock": func(ctx context.Context) (context.Context, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return m.NewLocks([]string{"d", "a"}).Lock(ctx)
			},
			"TryLock of a writer": rw.TryLock,
			"Locks.TryLock":       m.NewLocks([]string{"d", "a"}).TryLock,
			"Locks.TryLockFor": func(ctx context.Context) (context.Context, error) {
				return m.NewLocks([]string{"d", "a"}).TryLockFor(ctx, time.Second)
			},
			"Locks, wrong time": func(ctx context.Context) (context.Context, error) {
				return m.NewLocks([]string{"d"}).TryLockFor(ctx, -1)
			},
			"Borrow":        func(ctx context.Context) (context.Context, error) { return ticket.Borrow(ctx, l, ticket.Ticket{}) },
			"Accept":        func(ctx context.Context) (context.Context, error) { return ticket.Accept(ctx, l, ticket.Ticket{}) },
			"the zero Lock": zero.TryLock,
			"a context that has ended": func(ctx context.Context) (context.Context, error) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return m.NewLock("free").Lock(ctx)
			},
		} {
			ended, err := call(outer)
			require.Error(t, err, name)
			require.Equal(t, err, context.Cause(ended), name)
			require.ErrorIs(t, ended.Err(), context.Canceled, name)
			require.Equal(t, "a value of the caller", ended.Value(t), name)
			require.ErrorIs(t, again.Unlock(ended), relock.ErrNotHeld, "%s: the section around the call stays", name)
			require.NoError(t, outer.Err(), name)
		}
		ended, err := l.Lock(nil) //lint:ignore SA1012 a mistake
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.Equal(t, err, context.Cause(ended))
		w.Leave(section, again)
		w.Leave(theirs, other.NewLock("a"))
		require.NoError(t, other.NewRWLock("b").Unlock(writing))
	})
}
