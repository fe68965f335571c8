package core_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// How does a caller ask for a lock that another has?

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestAnAskIsHeardByWhoeverHasTheLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, asker := w.NewClient(), w.NewClient()
		l, other := m.NewLock("a"), m.NewLock("b")
		section := w.Enter(t.Context(), l)
		inner := w.Enter(section, l)
		elsewhere := w.Enter(t.Context(), other)
		wanted := l.Wanted(inner)
		require.NotNil(t, wanted)
		require.Equal(t, wanted, l.Wanted(section), "one channel for all entries")
		require.False(t, isClosed(wanted))
		another := other.Wanted(elsewhere)

		for range 3 {
			require.NoError(t, asker.NewLock("a").Ask(t.Context()))
			require.True(t, isClosed(wanted))
		}
		require.False(t, isClosed(another), "another hold of the same client")
		require.NoError(t, section.Err(), "nothing is taken away")
		w.RequireCount("a", 2)

		waiting := w.Start(t.Context(), asker.NewLock("a"))
		w.Leave(inner, l)
		w.Leave(section, l)
		require.NoError(t, waiting.Failure())
		next := w.Start(t.Context(), l)
		w.Leave(waiting.Section(), asker.NewLock("a"))
		require.False(t, isClosed(l.Wanted(next.Section())), "each hold is asked by itself")
	})
}

func TestASectionThatGotTheLockByAPassHearsAnAsk(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewPassing()
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		first := l.Wanted(section)
		next := w.Start(t.Context(), l)
		w.Leave(section, l)
		require.NoError(t, next.Failure())
		wanted := l.Wanted(next.Section())
		require.NoError(t, w.NewClient().NewLock("a").Ask(t.Context()))
		require.True(t, isClosed(wanted))
		require.False(t, isClosed(first), "its hold is over")
	})
}

func TestAllReadersHearAnAsk(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var all []<-chan struct{}
		for range 3 {
			r := w.NewClient().NewRWLock("a").RLocker()
			all = append(all, r.Wanted(w.Enter(t.Context(), r)))
		}
		require.NoError(t, w.NewClient().NewRWLock("a").Ask(t.Context()))
		for _, wanted := range all {
			require.True(t, isClosed(wanted))
		}
	})
}

func TestWantedIsNilWhereNobodyCanAsk(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		require.Nil(t, l.Wanted(t.Context()), "outside of a section")
		section := w.Enter(t.Context(), l)
		w.Leave(section, l)
		require.Nil(t, l.Wanted(section), "behind a section")
		require.ErrorIs(t, l.Ask(t.Context()), relock.ErrNotHeld)
		require.ErrorIs(t, new(relock.Lock).Ask(t.Context()), relock.ErrInvalid)
		require.Nil(t, new(relock.Lock).Wanted(t.Context()))

		silent, err := relock.Open(struct{ store.Store }{mem.New()})
		require.NoError(t, err)
		defer silent.Close()
		l = silent.NewLock("a")
		section, err = l.Lock(t.Context())
		require.NoError(t, err)
		require.Nil(t, l.Wanted(section), "a store that cannot tell")
		require.ErrorIs(t, l.Ask(t.Context()), errors.ErrUnsupported)
		require.NoError(t, l.Unlock(section))
	})
}

// A borrower leaves when the lender does: a claim reaches the lender, and nobody when it has left.
func TestALenderHearsAnAskAndItsBorrowersHearTheRecall(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		lender, borrower, asker := w.NewClient().NewLock("a"), w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), lender)
		given, err := ticket.Lend(section, lender)
		require.NoError(t, err)
		loan, err := ticket.Borrow(t.Context(), borrower, given)
		require.NoError(t, err)
		require.Nil(t, borrower.Wanted(loan), "a channel that nothing would close")
		wanted := lender.Wanted(section)
		require.NoError(t, asker.Ask(t.Context()))
		require.True(t, isClosed(wanted))

		stage.Pass(time.Second) // the borrower listens for its recall
		w.Leave(section, lender)
		stage.Settle()
		require.ErrorIs(t, context.Cause(loan), relock.ErrRecalled)
		require.NoError(t, asker.Ask(t.Context()), "the loan is open")
		w.Leave(loan, borrower)
		require.ErrorIs(t, asker.Ask(t.Context()), relock.ErrNotHeld)
	})
}

func TestTheHookHearsOneAskOfAHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var events []event.Wanted
		m := w.NewClient(relock.WithHooks(event.Hooks{Wanted: func(e event.Wanted) { events = append(events, e) }}))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		_ = l.Wanted(section)
		stage.Pass(time.Second)
		for range 3 {
			require.NoError(t, l.Ask(context.Background()))
		}
		stage.Pass(time.Millisecond)
		holder, _ := relock.HolderFrom(section)
		require.Equal(t, []event.Wanted{{Name: "a", Mode: event.ModeExclusive, Holder: holder, Held: time.Second}}, events)
	})
}

// A watch of the store lasts as long as some hold listens.
func TestTheWatchForAsksEndsWithTheLastHoldThatListens(t *testing.T) {
	stage.Fake(t, func(t *testing.T, _ *stage.World) {
		counted := &countingAsks{Store: mem.New()}
		c, err := relock.Open(counted)
		require.NoError(t, err)
		l := c.NewLock("a")
		for range 3 {
			section, err := l.Lock(t.Context())
			require.NoError(t, err)
			require.Zero(t, counted.open, "nobody listens")
			_, _ = l.Wanted(section), l.Wanted(section)
			require.Equal(t, 1, counted.open)
			require.NoError(t, l.Unlock(section))
			stage.Pass(time.Millisecond)
			require.Zero(t, counted.open)
		}
		section, err := l.Lock(t.Context())
		require.NoError(t, err)
		wanted := l.Wanted(section)
		require.NoError(t, c.Close())
		require.Zero(t, counted.open)
		require.NoError(t, c.Close())
		require.False(t, isClosed(wanted))
		require.Nil(t, c.NewLock("b").Wanted(section))
	})
}

type countingAsks struct {
	*mem.Store
	open int
}

func (s *countingAsks) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	s.open++
	end := s.Store.WatchWanted(client, wanted)
	return func() { s.open--; end() }
}
