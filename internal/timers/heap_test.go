package timers_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/timers"
)

func TestAnEmptyHeapHasNoFirst(t *testing.T) {
	var h timers.Heap[int]
	var i timers.Item[int]
	item, due := h.First()
	require.Nil(t, item)
	require.Equal(t, timers.Never, due)
	require.Zero(t, h.Len())
	require.False(t, i.In())
	require.Equal(t, timers.Never, h.Due(&i))
	h.Remove(&i)
	require.Zero(t, h.Len())
	require.Empty(t, slices.Collect(h.All()))
}

func TestAnItemMovesInBothDirections(t *testing.T) {
	var h timers.Heap[string]
	a, b := timers.Item[string]{Value: "a"}, timers.Item[string]{Value: "b"}
	requireFirst := func(want *timers.Item[string], due time.Duration) {
		t.Helper()
		first, when := h.First()
		require.Same(t, want, first)
		require.Equal(t, due, when)
	}
	h.Set(&a, 2)
	h.Set(&b, 3)
	requireFirst(&a, 2)
	h.Set(&a, 4)
	requireFirst(&b, 3)
	h.Set(&a, 1)
	requireFirst(&a, 1)
	require.Equal(t, 2, h.Len(), "a moved, and was not added")
	h.Remove(&a)
	requireFirst(&b, 3)
	require.False(t, a.In())
	h.Set(&a, 2)
	requireFirst(&a, 2)
}

type item = timers.Item[int]

func TestTheEarliestIsOnTopWhateverIsDone(t *testing.T) {
	var heap timers.Heap[int]
	due := map[*item]time.Duration{}
	pick := func() *item {
		for i := range due {
			return i
		}
		return nil
	}
	for n := range 20_000 {
		when := rand.N(1000 * time.Nanosecond) // so few that many are the same
		switch action := rand.IntN(10); {
		case action < 4 || len(due) == 0:
			i := &item{Value: n}
			heap.Set(i, when)
			due[i] = when
		case action < 7:
			i := pick()
			heap.Set(i, when)
			due[i] = when
		default:
			i := pick()
			heap.Remove(i)
			require.False(t, i.In())
			require.Equal(t, timers.Never, heap.Due(i))
			delete(due, i)
		}
		require.Equal(t, len(due), heap.Len())
	}
	values := map[int]bool{}
	for v := range heap.All() {
		values[v] = true
	}
	for i, when := range due {
		require.True(t, i.In())
		require.Equal(t, when, heap.Due(i))
		require.True(t, values[i.Value])
	}
	require.Len(t, values, len(due))
	for last := time.Duration(0); heap.Len() > 0; {
		first, when := heap.First()
		require.GreaterOrEqual(t, when, last)
		require.Equal(t, due[first], when)
		last = when
		heap.Remove(first)
	}
}

func TestMovingAnItemDoesNotAllocate(t *testing.T) {
	var h timers.Heap[int]
	items := make([]item, 100)
	for n := range items {
		h.Set(&items[n], time.Duration(n))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Set(&items[0], 1000)
		h.Remove(&items[1])
		h.Set(&items[1], 1)
	}))
}
