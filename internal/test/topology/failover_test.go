package topology_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Who is in after a master of the cluster has gone?

func TestASilentMasterCostsNoLockOfAnotherMaster(t *testing.T) {
	const ttl = 3 * time.Second
	w := stage.OnClusterOf(t, func(c *redistest.ClusterConfig) {
		c.Replicas, c.NodeTimeout = 0, time.Minute // nobody takes over
		c.Args = []string{"--cluster-require-full-coverage", "no"}
	})
	names := w.OneForEachMaster()
	p := w.PeerOn(func(o *redis.ClusterOptions) { o.ReadTimeout = ttl }, relock.WithTTL(ttl))
	locks := []*relock.Lock{p.NewLock(names[0]), p.NewRWLock(names[1]).Writer(), p.NewLock(names[2])}
	var sections []context.Context
	for _, l := range locks {
		sections = append(sections, w.Enter(t.Context(), l))
	}
	stage.SleepUntil(time.Now().Add(ttl/3 + 300*time.Millisecond))
	silent := w.Cluster.MasterFor(names[2])
	silent.Pause()
	defer silent.Resume()
	stage.SleepUntil(time.Now().Add(ttl + ttl/2))
	require.ErrorIs(t, context.Cause(sections[2]), relock.ErrLockLost)
	for i := range 2 {
		require.NoError(t, context.Cause(sections[i]), names[i])
		w.Leave(sections[i], locks[i])
	}
}

// WAIT has no key. WAIT must go to the master of the lock, behind the script and on its connection.
func TestReplicaAcksInAClusterAreThoseOfTheSlotsMaster(t *testing.T) {
	w := stage.OnCluster(t)
	w.LoadScripts()
	p, q := w.Peer(stage.Acked()), w.Peer(stage.Acked())
	names, masters := w.OneForEachMaster(), w.Masters()
	waits := func(master *redistest.Server) int {
		info, err := master.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		_, rest, _ := strings.Cut(info, "cmdstat_wait:calls=")
		digits, _, _ := strings.Cut(rest, ",")
		n, _ := strconv.Atoi(digits)
		return n
	}
	for i, name := range names {
		stage.Replicated(t, w.All, "{"+name+"}")
		var before []int
		for _, m := range masters {
			before = append(before, waits(m))
		}
		l, other := p.NewLock(name), q.NewLock(name)
		section := w.Enter(t.Context(), l)
		for j, m := range masters {
			want := 0
			if i == j {
				want = 1
			}
			require.Equal(t, want, waits(m)-before[j], "WAIT for a lock of master %d at master %d", i, j)
		}
		waiter := w.Start(t.Context(), other) // a grant is confirmed too
		w.AwaitWaiters(name, 1)
		w.Leave(section, l)
		w.Leave(waiter.Section(), other)
		require.GreaterOrEqual(t, waits(masters[i])-before[i], 2)
	}

	// A lock that was confirmed is there after a failover, and WAIT goes to the new master then.
	section := w.Enter(t.Context(), p.NewLock(names[2]))
	master := w.Cluster.FailoverFor(names[2])
	w.RequireOwner(names[2], section)
	w.Leave(section, p.NewLock(names[2]))
	before := waits(master)
	w.Leave(w.Enter(t.Context(), p.NewLock(names[2])), p.NewLock(names[2]))
	require.Positive(t, waits(master)-before)

	// Also when the old master is dead.
	old := w.Cluster.MasterFor(names[1])
	section = w.Enter(t.Context(), p.NewLock(names[1]))
	w.Cluster.KillMasterFor(names[1])
	w.Leave(section, p.NewLock(names[1]))
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased, "and not lost")
	old.Restart()
	w.Cluster.WaitReplica(names[1], old)
}

// A replica takes SSUBSCRIBE for the slots of its master, and repeats what the master publishes. A
// client with an old map of the cluster gets there after a failover.
func TestAGrantHeardThroughAReplicaIsNotBelieved(t *testing.T) {
	const ttl = 3 * time.Second
	w := stage.OnCluster(t)
	holder, waiting, third := w.Peer(relock.WithTTL(ttl)), w.Peer(relock.WithTTL(ttl)), w.Peer()
	l, wl := holder.NewLock("a"), waiting.NewLock("a")
	section := w.Enter(t.Context(), l)
	waiter := w.Start(t.Context(), wl)
	w.AwaitWaiters("a", 1)
	oldMap := waiting.Faults.On(redistest.Named("CLUSTER"), redistest.Answer("-LOADING no map today"))
	old := w.Cluster.MasterFor("a")
	master := w.Cluster.FailoverFor("a")
	redistest.Eventually(t, w.Limit, func() bool { return oldMap.Hits() > 0 && stage.ShardChannels(t, old) == 1 }, "the waiter hears the replica")
	w.Leave(section, l)
	// The waiter must not get in while Redis says otherwise, and no later than at the end of a
	// lease.
	if !waiter.Comes(500 * time.Millisecond) {
		oldMap.Remove()
	}
	mine := waiter.Within(ttl + w.Limit).Section()
	w.RequireOwner("a", mine)
	_, err := third.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	oldMap.Remove()
	w.Leave(mine, wl)

	// The client has found the new master.
	section = w.Enter(t.Context(), l)
	waiter = w.Start(t.Context(), wl)
	w.AwaitWaiters("a", 1)
	require.Equal(t, 1, w.Pubsubs(master, waiting))
	start := time.Now()
	w.Leave(section, l)
	mine = waiter.Section()
	require.Less(t, time.Since(start), bound.Of(ttl/2)+w.Lateness(), "by the message")
	w.Leave(mine, wl)
}
