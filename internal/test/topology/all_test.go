package topology_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
)

// Are several locks of one slot, and of several slots, taken together?

func TestLocksOnACluster(t *testing.T) {
	w := stage.OnCluster(t)
	w.LoadScripts()
	p := w.Peer()
	one, each := w.Counter(p, stage.LuaAll), w.Counter(p, stage.LuaAcquire)
	spread := w.OneForEachMaster()
	section := w.EnterAll(t.Context(), p.NewLocks(spread))
	require.Equal(t, []int{0, 3}, []int{one(), each()}, "different slots")
	require.NoError(t, p.NewLocks(spread).Unlock(section))

	tagged := []string{"{user:7}:cart", "{user:7}:stock", "{user:7}"}
	section = w.EnterAll(t.Context(), p.NewLocks(tagged))
	require.Equal(t, []int{1, 3}, []int{one(), each()}, "one slot")
	_, err := w.Peer().NewLocks(append(slices.Clone(spread), tagged[1])).TryLock(t.Context())
	stage.RequireRefusedBy(t, tagged[1], err)
	require.NoError(t, p.NewLocks(tagged).Unlock(section))
}

func TestLocksOfASlotThatMoves(t *testing.T) {
	w := stage.OnCluster(t)
	p := w.Peer()
	spread := w.OneForEachMaster()
	names := []string{"{" + spread[0] + "}:a", "{" + spread[0] + "}:b", "{" + spread[0] + "}:c"}
	l := p.NewLocks(names)
	held := w.EnterAll(t.Context(), p.NewLocks(names[:1]))
	move := w.Cluster.BeginMove(spread[0], w.Cluster.MasterFor(spread[1]))
	_, err := l.TryLock(relock.WithoutHolder(held))
	require.Error(t, err) // the held key is here, and the others are nowhere
	waiting := w.Begin(t.Context(), l.Lock)
	move.MoveKeys(stage.BaseKey(names[0]))
	move.Finish()
	require.NoError(t, p.NewLocks(names[:1]).Unlock(held))
	require.NoError(t, l.Unlock(waiting.Section()))
}
