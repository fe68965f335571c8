package relock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// Who is in after a master of the cluster has gone?

func TestWaitersGetInOneByOneAfterAClusterFailover(t *testing.T) {
	w := onCluster(t)
	names := w.oneForEachMaster()
	name := names[0]
	ttl := relock.WithTTL(12 * time.Second)
	var peers []*clusterPeer
	for range 4 {
		peers = append(peers, w.peer(ttl))
	}
	holder := w.peer(ttl)
	for _, way := range []struct {
		name     string
		fail     func(string) *redistest.Server
		comeBack func(old *redistest.Server)
	}{
		{"in agreement", w.cluster.FailoverFor, func(*redistest.Server) {}},
		{"killed", w.cluster.KillMasterFor, (*redistest.Server).Restart},
		{"stopped, and resumed as a second master", w.cluster.PauseMasterFor, (*redistest.Server).Resume},
	} {
		t.Run(way.name, func(t *testing.T) {
			w := w.in(t)
			l := holder.NewLock(name)
			outer := w.enter(t.Context(), l)
			section := w.enter(outer, l)
			c := &crowd{w: w.arena}
			c.enter(section, l)
			for i := range 20 {
				c.joins(peers[i%len(peers)].NewLock(name))
			}
			w.awaitWaiters(name, 20)
			// Until the failover the cluster is down, also for locks of other masters.
			elsewhere := w.enter(t.Context(), holder.NewLock(names[1]))
			replicated(t, w.all, "{"+name+"}")
			old := w.cluster.MasterFor(name)
			requireForgotten(t, w.cluster.ReplicaFor(name))

			way.fail(name)
			way.comeBack(old)
			require.NotSame(t, old, w.cluster.MasterFor(name))
			require.NoError(t, section.Err(), "the new master has the lock")
			w.leave(section, l)
			w.awaitCount(name, 1)
			c.leave(section)
			w.leave(outer, l)
			c.through(3*w.limit, 21)
			require.NoError(t, elsewhere.Err())
			w.leave(elsewhere, holder.NewLock(names[1]))
			w.requireFree(name)
			w.cluster.WaitReplica(name, old)
			require.NoError(t, old.Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// Each thing that a client is doing must find the new master by itself, and long before go-redis
// reads the map of the cluster (ten seconds). A client that only holds locks sends renewals only.
func TestCallsInFlightWhenAMasterDiesAreDoneByTheNextOne(t *testing.T) {
	w := onCluster(t)
	const ttl = 8 * time.Second
	holder, leaver, starter, quitter := w.peer(relock.WithTTL(ttl)), w.peer(), w.peer(), w.peer()
	kept, left, free := holder.NewLock("{a}:kept"), leaver.NewLock("{a}:left"), starter.NewLock("{a}:free")
	section := w.enter(t.Context(), kept)
	leaving := w.enter(t.Context(), left)
	w.leave(w.enter(t.Context(), free), free)
	ctx, cancel := context.WithCancel(t.Context())
	var quitting []*attempt
	for range 5 {
		quitting = append(quitting, w.start(ctx, quitter.NewLock(kept.Name())))
	}
	w.awaitWaiters(kept.Name(), 5)
	replicated(t, w.all, "{a}")

	old, replica := w.cluster.MasterFor("a"), w.cluster.ReplicaFor("a")
	old.Kill()
	cancel()
	for _, q := range quitting {
		require.ErrorIs(t, q.within(time.Second).failure(), context.Canceled, "a waiter that gives up does not wait for a master")
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- left.Unlock(leaving) }()
	entering := w.start(t.Context(), free)
	require.Same(t, replica, w.cluster.MasterFor("a"))
	after := time.Now()

	redistest.Eventually(t, ttl, func() bool { // a lease from after the failover
		return section.Err() != nil || kept.Remaining(section) > ttl*3/4
	}, "the hold is renewed or lost")
	require.NoError(t, context.Cause(section))
	require.Less(t, time.Since(after), limit+w.lateness(), "renewals are sent all the time")
	require.NoError(t, w.call(func() error { return <-unlocked }))
	w.leave(entering.section(), free)
	w.awaitWaiters(kept.Name(), 0) // those who gave up leave nothing
	w.leave(section, kept)
	old.Restart()
	w.cluster.WaitReplica("a", old)
}

// WAIT has no key. WAIT must go to the master of the lock, behind the script and on its connection.
func TestReplicaAcksInAClusterAreThoseOfTheSlotsMaster(t *testing.T) {
	w := onCluster(t)
	w.loadScripts()
	p, q := w.peer(acked()), w.peer(acked())
	names, masters := w.oneForEachMaster(), w.masters()
	waits := func(master *redistest.Server) int {
		info, err := master.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		_, rest, _ := strings.Cut(info, "cmdstat_wait:calls=")
		digits, _, _ := strings.Cut(rest, ",")
		n, _ := strconv.Atoi(digits)
		return n
	}
	for i, name := range names {
		replicated(t, w.all, "{"+name+"}")
		var before []int
		for _, m := range masters {
			before = append(before, waits(m))
		}
		l, other := p.NewLock(name), q.NewLock(name)
		section := w.enter(t.Context(), l)
		for j, m := range masters {
			want := 0
			if i == j {
				want = 1
			}
			require.Equal(t, want, waits(m)-before[j], "WAIT for a lock of master %d at master %d", i, j)
		}
		waiter := w.start(t.Context(), other) // a grant is confirmed too
		w.awaitWaiters(name, 1)
		w.leave(section, l)
		w.leave(waiter.section(), other)
		require.GreaterOrEqual(t, waits(masters[i])-before[i], 2)
	}

	// A lock that was confirmed is there after a failover, and WAIT goes to the new master then.
	section := w.enter(t.Context(), p.NewLock(names[2]))
	master := w.cluster.FailoverFor(names[2])
	w.requireOwner(names[2], section)
	w.leave(section, p.NewLock(names[2]))
	before := waits(master)
	w.leave(w.enter(t.Context(), p.NewLock(names[2])), p.NewLock(names[2]))
	require.Positive(t, waits(master)-before)

	// Also when the old master is dead.
	old := w.cluster.MasterFor(names[1])
	section = w.enter(t.Context(), p.NewLock(names[1]))
	w.cluster.KillMasterFor(names[1])
	w.leave(section, p.NewLock(names[1]))
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased, "and not lost")
	old.Restart()
	w.cluster.WaitReplica(names[1], old)
}

// A replica takes SSUBSCRIBE for the slots of its master, and repeats what the master publishes. A
// client with an old map of the cluster gets there after a failover.
func TestAGrantHeardThroughAReplicaIsNotBelieved(t *testing.T) {
	const ttl = 3 * time.Second
	w := onCluster(t)
	holder, waiting, third := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer()
	l, wl := holder.NewLock("a"), waiting.NewLock("a")
	section := w.enter(t.Context(), l)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	oldMap := waiting.faults.On(redistest.Named("CLUSTER"), redistest.Answer("-LOADING no map today"))
	old := w.cluster.MasterFor("a")
	master := w.cluster.FailoverFor("a")
	redistest.Eventually(t, w.limit, func() bool { return oldMap.Hits() > 0 && shardChannels(t, old) == 1 }, "the waiter hears the replica")
	w.leave(section, l)
	// The waiter must not get in while Redis says otherwise, and no later than at the end of a lease.
	if !waiter.comes(500 * time.Millisecond) {
		oldMap.Remove()
	}
	mine := waiter.within(ttl + w.limit).section()
	w.requireOwner("a", mine)
	_, err := third.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	oldMap.Remove()
	w.leave(mine, wl)

	// The client has found the new master.
	section = w.enter(t.Context(), l)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	require.Equal(t, 1, w.pubsubs(master, waiting))
	start := time.Now()
	w.leave(section, l)
	mine = waiter.section()
	require.Less(t, time.Since(start), ttl/2+w.lateness(), "by the message")
	w.leave(mine, wl)
}
