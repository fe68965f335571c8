package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// What does State say of those who wait?

func TestStateNamesTheWaitersByTurn(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, other := w.NewClient(), w.NewClient()
		prices := m.NewRWLock("prices").Writer()
		section := w.Enter(t.Context(), prices)
		state, err := prices.State(t.Context())
		require.NoError(t, err)
		require.Nil(t, state.Queue, "nobody waits")
		begin := time.Now()
		reader := w.Start(t.Context(), m.NewRWLock("prices").RLocker())
		stage.Pass(3 * time.Second)
		writer := w.Start(t.Context(), other.NewRWLock("prices").Writer())
		stage.Pass(time.Second)

		state, err = prices.State(t.Context())
		require.NoError(t, err)
		require.Len(t, state.Queue, 2)
		first, second := state.Queue[0], state.Queue[1]
		require.Equal(t, relock.Waiter{Holder: first.Holder, Mode: event.ModeShared, Since: begin}, first)
		require.Equal(t, relock.Waiter{Holder: second.Holder, Mode: event.ModeExclusive, Since: begin.Add(3 * time.Second)}, second)
		all, err := m.List(t.Context(), nil)
		require.NoError(t, err)
		require.Nil(t, all[0].Queue, "a list would be too long")

		w.Leave(section, prices)
		require.Equal(t, first.Holder, stage.HolderOf(t, reader.Section()))
		w.Leave(reader.Section(), m.NewRWLock("prices").RLocker())
		require.Equal(t, second.Holder, stage.HolderOf(t, writer.Section()))
		w.Leave(writer.Section(), other.NewRWLock("prices").Writer())
	})
}

func TestStateReadsAHundredWaiters(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		var waits []*stage.Attempt
		for range 103 {
			waits = append(waits, w.Start(t.Context(), l))
		}
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 103, state.Waiters)
		require.Len(t, state.Queue, 100)
		w.Leave(section, l)
		for _, wait := range waits {
			w.Leave(wait.Section(), l)
		}
	})
}

// nameless is a store that counts its waiters, and knows none of them.
type nameless struct{ store.Store }

func TestStateOfAStoreThatDoesNotTellHasNoQueue(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		wait := w.Start(t.Context(), l)
		c, err := relock.Open(nameless{w.Store})
		require.NoError(t, err)
		defer c.Close()
		state, err := c.NewLock("a").State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Waiters)
		require.Nil(t, state.Queue)
		w.Leave(section, l)
		w.Leave(wait.Section(), l)
	})
}
