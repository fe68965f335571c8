package topology_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What do holders and waiters notice while a slot moves to another master?

func TestOnAClusterWhoseSlotsMove(t *testing.T) {
	shared := stage.OnCluster(t)
	for name, test := range map[string]func(*stage.ClusterArena){
		"a lock is held and waited for at every step of it":          everyStepOfAMove,
		"a lock that is freed on the way is had when it has arrived": freedOnTheWay,
		"a lease is renewed whatever becomes of another in its slot": apartOnTheWay,
		"locks without waiters are unlocked while their slot moves":  unlockedOnTheWay,
		"a run without a queue is unlocked while its slot moves":     runOnTheWay,
	} {
		t.Run(name, func(t *testing.T) { test(shared.In(t)) })
	}
}

// apartOnTheWay: while a slot migrates, Redis refuses a call for several locks if some of the keys
// are elsewhere. Each lease is renewed all the same.
func apartOnTheWay(w *stage.ClusterArena) {
	t := w.T
	const ttl = 1500 * time.Millisecond
	names := w.OneForEachMaster()
	to := w.Cluster.MasterFor(names[2])
	for i, gone := range []bool{false, true} { // the key of the other lock is gone, or has not moved
		name, p := names[i], w.Peer(relock.WithTTL(ttl))
		one, other := p.NewLock(name), p.NewLock("{"+name+"}:other")
		section, otherSection := w.Enter(t.Context(), one), w.Enter(t.Context(), other)
		if gone {
			require.NoError(t, w.Peer().NewLock(other.Name()).ForceUnlock(t.Context()))
		}
		move := w.Cluster.BeginMove(name, to)
		if !gone {
			move.MoveKeys(stage.BaseKey(name))
		}
		stage.SleepUntil(time.Now().Add(ttl + ttl/2))
		require.NoError(t, context.Cause(section))
		if gone {
			require.ErrorIs(t, context.Cause(otherSection), relock.ErrLockLost)
		} else {
			require.NoError(t, context.Cause(otherSection))
		}
		move.Finish()
		w.Leave(section, one)
		if !gone {
			w.Leave(otherSection, other)
		}
	}
}

// unlockedOnTheWay: a lock without waiters has no queue, on neither side.
func unlockedOnTheWay(w *stage.ClusterArena) {
	t := w.T
	const locks = 10
	names := w.OneForEachMaster()
	holder, next := w.Peer(), w.Peer()
	lock := func(p *stage.ClusterPeer, i int) *relock.Lock { return p.NewLock(fmt.Sprintf("{%s}:%d", names[0], i)) }
	var sections []context.Context
	for i := range locks {
		sections = append(sections, w.Enter(t.Context(), lock(holder, i)))
	}
	waiter := w.Start(t.Context(), lock(next, 0))
	w.AwaitWaiters(waiter.Lock.Name(), 1)
	base := stage.BaseKey(waiter.Lock.Name())
	move := w.Cluster.BeginMove(names[0], w.Cluster.MasterFor(names[1]))
	move.MoveKeys(base+":queue", stage.BaseKey(lock(next, 1).Name()))
	leaving := make(chan error, 1)
	go func() { leaving <- lock(holder, 0).Unlock(sections[0]) }()
	for i := 1; i < locks; i++ {
		w.Leave(sections[i], lock(holder, i))
	}
	require.Zero(t, w.All.Exists(t.Context(), stage.BaseKey(lock(next, 1).Name())).Val())
	require.EqualValues(t, 1, w.All.Exists(t.Context(), base).Val(), "somebody waits on the other side")
	move.MoveKeys(base)
	require.NoError(t, w.Call(func() error { return <-leaving }))
	move.Finish()
	waiter.Leave()
}

// runOnTheWay: a section that was handed on outlives the queue, which has nothing but its place.
func runOnTheWay(w *stage.ClusterArena) {
	t := w.T
	names := w.OneForEachMaster()
	p := w.Peer()
	before, l := w.Peer().NewLock(names[0]), p.NewLock(names[0])
	theirs := w.Enter(t.Context(), before)
	first := w.Start(t.Context(), l)
	w.AwaitWaiters(names[0], 1)
	second := w.Start(t.Context(), l)
	w.AwaitWaiters(names[0], 2)
	require.False(t, second.Comes(50*time.Millisecond)) // it knows of its place
	w.Leave(theirs, before)
	w.Leave(first.Section(), l)
	section := second.Section()
	require.EqualValues(t, 1, w.All.Del(t.Context(), stage.BaseKey(names[0])+":queue").Val(), "its end, and the place in it")
	move := w.Cluster.BeginMove(names[0], w.Cluster.MasterFor(names[1]))
	w.Leave(section, l)
	move.Finish()
}

// everyStepOfAMove: a slot moves key by key, and the slot itself comes last. In between the old
// master answers ASK for a lock whose keys have moved. Both masters answer TRYAGAIN for a lock
// whose keys are on both sides or are not all there.
func everyStepOfAMove(w *stage.ClusterArena) {
	t := w.T
	const ttl = 3 * time.Second
	names := w.OneForEachMaster()
	name, to := names[0], w.Cluster.MasterFor(names[1])
	holder, waiting, late := w.Peer(relock.WithTTL(ttl)), w.Peer(relock.WithTTL(ttl)), w.Peer(relock.WithTTL(ttl))
	l, wl, ll := holder.NewLock(name), waiting.NewLock(name), late.NewLock(name)
	alone := holder.NewLock("{" + name + "}:alone") // in the same slot
	renewals := w.Counter(holder, stage.LuaRenew)
	renewed := func(what string) {
		t.Helper()
		before := renewals()
		redistest.Eventually(t, w.Limit, func() bool { return renewals() > before+1 }, "a renewal is sent while %s", what)
		redistest.Eventually(t, w.Limit, func() bool { return w.All.PTTL(t.Context(), stage.BaseKey(name)).Val() > ttl/2 }, "and arrives")
	}

	outer := w.Enter(t.Context(), l)
	section := w.Enter(outer, l)
	token := w.Draw(section, l)
	other := w.Enter(t.Context(), alone)
	first := w.Start(t.Context(), wl)
	w.AwaitWaiters(name, 1)

	move := w.Cluster.BeginMove(name, to)
	second := w.Start(t.Context(), wl)
	w.AwaitWaiters(name, 2)
	_, err := ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "all of its keys are there, so nothing has changed")

	move.MoveKeys(stage.BaseKey(name) + ":queue")
	_, err = ll.TryLock(t.Context())
	require.ErrorContains(t, err, "TRYAGAIN", "and not that it is free")
	third := w.Start(t.Context(), ll)
	renewed("its keys are on both sides")

	move.MoveKeys()
	_, err = ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "ASK leads to where it is")
	renewed("its keys have moved and the slot has not")
	w.Leave(section, l) // an inner one
	w.AwaitCount(name, 1)
	w.Leave(other, alone) // has no queue, neither here nor there
	before := late.Faults.Commands()
	stage.SleepUntil(time.Now().Add(500 * time.Millisecond))
	require.Less(t, late.Faults.Commands()-before, 100, "a waiter that cannot be served does not ask all the time")
	require.True(t, first.Waits() && second.Waits() && third.Waits())
	require.NoError(t, outer.Err())

	move.Finish()
	require.Same(t, to, w.Cluster.MasterFor(name))
	w.AwaitWaiters(name, 3)
	redistest.Eventually(t, w.Limit, func() bool { return stage.ShardChannels(t, to) == 2 }, "both waiting clients listen at the new master")
	renewed("it is there")
	w.Leave(outer, l)
	for _, next := range []*stage.Attempt{first, second, third} {
		mine := next.Section()
		w.RequireOwner(name, mine)
		drawn := w.Draw(mine, next.Lock)
		require.Greater(t, drawn, token)
		token = drawn
		w.Leave(mine, next.Lock)
	}
}

// freedOnTheWay: the lock is freed where the slot is going to be, while its waiters can only listen
// where the slot still is.
func freedOnTheWay(w *stage.ClusterArena) {
	t := w.T
	names := w.OneForEachMaster()
	name := names[0]
	holder, waiting := w.Peer(), w.Peer()
	l := holder.NewLock(name)
	section := w.Enter(t.Context(), l)
	c := &stage.Crowd{Arena: w.Arena}
	c.Enter(section, l)
	for range 10 {
		c.Joins(waiting.NewLock(name))
	}
	w.AwaitWaiters(name, 10)
	move := w.Cluster.BeginMove(name, w.Cluster.MasterFor(names[1]))
	move.MoveKeys()
	c.Leave(section)
	w.Leave(section, l)
	move.Finish()
	c.Through(w.Limit, 11)
	w.RequireFree(name)
}
