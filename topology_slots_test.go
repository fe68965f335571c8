package relock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What do holders and waiters notice while a slot moves to another master?

func TestOnAClusterWhoseSlotsMove(t *testing.T) {
	shared := onCluster(t)
	for name, test := range map[string]func(*field){
		"a lock is held and waited for at every step of it":          everyStepOfAMove,
		"a lock is handed over while its slot is about to move":      handedOverBeforeAMove,
		"a lock that is freed on the way is had when it has arrived": freedOnTheWay,
		"no section meets another while slots move to and fro":       toAndFro,
		"a lease is renewed whatever becomes of another in its slot": apartOnTheWay,
	} {
		t.Run(name, func(t *testing.T) { test(shared.in(t)) })
	}
}

// apartOnTheWay: while a slot migrates, Redis refuses a call for several locks if some of the keys
// are elsewhere. Each lease is renewed all the same.
func apartOnTheWay(w *field) {
	t := w.t
	const ttl = 1500 * time.Millisecond
	names := w.oneForEachMaster()
	to := w.cluster.MasterFor(names[2])
	for i, gone := range []bool{false, true} { // the key of the other lock is gone, or has not moved
		name, p := names[i], w.peer(relock.WithTTL(ttl))
		one, other := p.NewLock(name), p.NewLock("{"+name+"}:other")
		section, otherSection := w.enter(t.Context(), one), w.enter(t.Context(), other)
		if gone {
			require.NoError(t, w.peer().NewLock(other.Name()).ForceUnlock(t.Context()))
		}
		move := w.cluster.BeginMove(name, to)
		if !gone {
			move.MoveKeys(baseKey(name))
		}
		sleepUntil(time.Now().Add(ttl + ttl/2))
		require.NoError(t, context.Cause(section))
		if gone {
			require.ErrorIs(t, context.Cause(otherSection), relock.ErrLockLost)
		} else {
			require.NoError(t, context.Cause(otherSection))
		}
		move.Finish()
		w.leave(section, one)
		if !gone {
			w.leave(otherSection, other)
		}
	}
}

// everyStepOfAMove: a slot moves key by key, and the slot itself comes last. In between the old
// master answers ASK for a lock whose keys have moved. Both masters answer TRYAGAIN for a lock whose
// keys are on both sides or are not all there.
func everyStepOfAMove(w *field) {
	t := w.t
	const ttl = 3 * time.Second
	names := w.oneForEachMaster()
	name, to := names[0], w.cluster.MasterFor(names[1])
	holder, waiting, late := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
	l, wl, ll := holder.NewLock(name), waiting.NewLock(name), late.NewLock(name)
	alone := holder.NewLock("{" + name + "}:alone") // in the same slot
	renewals := w.counter(holder, luaRenew)
	renewed := func(what string) {
		t.Helper()
		before := renewals()
		redistest.Eventually(t, w.limit, func() bool { return renewals() > before+1 }, "a renewal is sent while %s", what)
		redistest.Eventually(t, w.limit, func() bool { return w.all.PTTL(t.Context(), baseKey(name)).Val() > ttl/2 }, "and arrives")
	}

	outer := w.enter(t.Context(), l)
	section := w.enter(outer, l)
	token := w.draw(section, l)
	other := w.enter(t.Context(), alone)
	first := w.start(t.Context(), wl)
	w.awaitWaiters(name, 1)

	move := w.cluster.BeginMove(name, to)
	second := w.start(t.Context(), wl)
	w.awaitWaiters(name, 2)
	_, err := ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "all of its keys are there, so nothing has changed")

	move.MoveKeys(baseKey(name) + ":queue")
	_, err = ll.TryLock(t.Context())
	require.ErrorContains(t, err, "TRYAGAIN", "and not that it is free")
	third := w.start(t.Context(), ll)
	renewed("its keys are on both sides")

	move.MoveKeys()
	_, err = ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "ASK leads to where it is")
	renewed("its keys have moved and the slot has not")
	w.leave(section, l) // an inner one
	w.awaitCount(name, 1)
	// A lock without a queue has a key that exists on neither side: nobody serves it for now.
	leaving := make(chan error, 1)
	go func() { leaving <- alone.Unlock(other) }()
	before := late.faults.Commands()
	sleepUntil(time.Now().Add(500 * time.Millisecond))
	require.Less(t, late.faults.Commands()-before, 100, "a waiter that cannot be served does not ask all the time")
	require.True(t, first.waits() && second.waits() && third.waits())
	require.NoError(t, outer.Err())

	move.Finish()
	require.NoError(t, w.call(func() error { return <-leaving }))
	require.Same(t, to, w.cluster.MasterFor(name))
	w.awaitWaiters(name, 3)
	redistest.Eventually(t, w.limit, func() bool { return shardChannels(t, to) == 2 }, "both waiting clients listen at the new master")
	renewed("it is there")
	w.leave(outer, l)
	for _, next := range []*attempt{first, second, third} {
		mine := next.section()
		w.requireOwner(name, mine)
		drawn := w.draw(mine, next.lock)
		require.Greater(t, drawn, token)
		token = drawn
		w.leave(mine, next.lock)
	}
}

// handedOverBeforeAMove: the old master serves a slot that is about to move, but a script cannot
// make a key there, and cannot look at a key that does not exist (any more).
func handedOverBeforeAMove(w *field) {
	t := w.t
	spread := w.oneForEachMaster()
	holder, waiting := w.peer(), w.peer()
	held := func(lock string, waiters ...*clusterPeer) (section context.Context, l *relock.Lock, asked []*attempt) {
		l = holder.NewLock("{" + spread[0] + "}:" + lock)
		section = w.enter(t.Context(), l)
		for i, p := range waiters {
			asked = append(asked, w.start(t.Context(), p.NewLock(l.Name())))
			w.awaitWaiters(l.Name(), i+1)
		}
		return section, l, asked
	}
	gone := func(l *relock.Lock) { // a waiter that nothing reaches, before all others
		require.NoError(t, w.all.ZAdd(t.Context(), baseKey(l.Name())+":queue", redis.Z{Score: 1, Member: "gone:1:1|30000"}).Err())
	}
	one, oneLock, oneWaits := held("one", waiting)
	two, twoLock, twoWait := held("two", waiting, waiting)
	past, pastLock, pastWaits := held("past", waiting)
	gone(pastLock)
	none, noneLock, _ := held("none")
	gone(noneLock)
	force, forceLock, forceWaits := held("force", waiting)
	w.draw(force, forceLock) // State, and so ForceUnlock, looks at the token

	// The first waiter of this lock does not hear of its grant, and gives up.
	deaf := w.peer()
	late, lateLock, _ := held("late")
	ctx, cancel := context.WithCancel(t.Context())
	lateGone := w.start(ctx, deaf.NewLock(lateLock.Name()))
	w.awaitWaiters(lateLock.Name(), 1)
	lateWaits := w.start(t.Context(), waiting.NewLock(lateLock.Name()))
	w.awaitWaiters(lateLock.Name(), 2)

	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	w.leave(one, oneLock)
	granted := oneWaits[0].section()
	w.leave(two, twoLock)
	w.leave(twoWait[0].section(), twoWait[0].lock)
	second := twoWait[1].section()
	w.leave(past, pastLock)
	passed := pastWaits[0].section()
	w.leave(none, noneLock)
	require.NoError(t, waiting.NewLock(forceLock.Name()).ForceUnlock(t.Context()))
	forced := forceWaits[0].section()
	deaf.faults.StallPubSub()
	w.leave(late, lateLock)
	cancel()
	require.ErrorIs(t, lateGone.failure(), context.Canceled)
	lately := lateWaits.section()
	deaf.faults.Heal()

	move.Finish()
	w.leave(granted, oneWaits[0].lock)
	w.leave(second, twoWait[1].lock)
	w.leave(passed, pastWaits[0].lock)
	w.leave(forced, forceWaits[0].lock)
	w.leave(lately, lateWaits.lock)
	require.ErrorIs(t, forceLock.Unlock(force), relock.ErrLockLost)
}

// freedOnTheWay: the lock is freed where the slot is going to be, while its waiters can only listen
// where the slot still is.
func freedOnTheWay(w *field) {
	t := w.t
	names := w.oneForEachMaster()
	name := names[0]
	holder, waiting := w.peer(), w.peer()
	l := holder.NewLock(name)
	section := w.enter(t.Context(), l)
	c := &crowd{w: w.arena}
	c.enter(section, l)
	for range 10 {
		c.joins(waiting.NewLock(name))
	}
	w.awaitWaiters(name, 10)
	move := w.cluster.BeginMove(name, w.cluster.MasterFor(names[1]))
	move.MoveKeys()
	c.leave(section)
	w.leave(section, l)
	move.Finish()
	c.through(w.limit, 11)
	w.requireFree(name)
}

func toAndFro(w *field) {
	t := w.t
	const workers = 12
	spread := w.oneForEachMaster()
	there, back := w.cluster.MasterFor(spread[0]), w.cluster.MasterFor(spread[1])
	guards := make([]witness, 3)
	peers := []*clusterPeer{w.peer(), w.peer(), w.peer()}
	var done tally
	var errs names
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range workers {
		g, l := &guards[i%3], peers[i/3%3].NewLock(fmt.Sprintf("{%s}:%d", spread[0], i%3))
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				errs.check(l.Do(context.Background(), func(section context.Context) error {
					g.enter(section, l)
					defer g.leave(section)
					<-time.After(time.Millisecond)
					return section.Err()
				}))
				done.add("sections")
			}
		})
	}
	for i := range 8 {
		before := done.of("sections")
		redistest.Eventually(t, w.limit, func() bool { return done.of("sections") > before+60 }, "work goes on after %d moves", i)
		to := there
		if i%2 == 0 {
			to = back
		}
		w.cluster.MoveSlot(spread[0], to)
	}
	close(stop)
	require.NoError(t, w.call(func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	for i := range guards {
		guards[i].require(t)
	}
	t.Log(&done)
}
