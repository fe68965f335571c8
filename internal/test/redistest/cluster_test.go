package redistest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// One start serves all tests of a cluster: starting is the slowest part.
func TestAClusterMovesSlotsAndFailsOver(t *testing.T) {
	t.Parallel() // it mostly waits
	c := redistest.StartCluster(t)
	// By default, go-redis reloads the slots of a silent master only after a minute, and after
	// MOVED at once.
	rdb := c.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond })
	ctx := t.Context()
	require.Len(t, c.Addrs(), 6)
	require.Len(t, c.Nodes(), 6)
	set := func(key string) {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() bool { return rdb.Set(ctx, key, key, 0).Err() == nil }, "set %s", key)
	}
	for i := range 20 {
		set(fmt.Sprint("key", i))
	}
	require.Len(t, redistest.Keys(t, rdb), 20)

	// "{a}" has the slot of "a"; two keys in it show the middle of a migration.
	set("{a}1")
	set("{a}2")
	from, to := c.MasterFor("a"), c.MasterFor("b")
	require.NotSame(t, from, to)
	direct := from.Client()
	move := c.BeginMove("a", to)
	require.NoError(t, direct.Get(ctx, "{a}1").Err())
	require.ErrorContains(t, direct.Get(ctx, "{a}3").Err(), "ASK")
	move.MoveKeys("{a}1")
	require.ErrorContains(t, direct.Get(ctx, "{a}1").Err(), "ASK")
	require.ErrorContains(t, direct.MGet(ctx, "{a}1", "{a}2").Err(), "TRYAGAIN")
	require.Equal(t, "{a}1", rdb.Get(ctx, "{a}1").Val(), "the client follows")
	require.Equal(t, "{a}2", rdb.Get(ctx, "{a}2").Val())
	move.Finish()
	require.Same(t, to, c.MasterFor("{a}2"))
	require.ErrorContains(t, direct.Get(ctx, "{a}2").Err(), "MOVED")
	require.Equal(t, "{a}2", rdb.Get(ctx, "{a}2").Val())
	c.MoveSlot("a", from)
	require.Same(t, from, c.MasterFor("a"))

	old, replica := c.MasterFor("a"), c.ReplicaFor("a")
	require.Same(t, replica, c.FailoverFor("a"))
	require.Same(t, replica, c.MasterFor("a"))
	set("a")

	require.Same(t, old, c.KillMasterFor("a"))
	require.Same(t, old, c.MasterFor("a"))
	set("a")
	replica.Restart()
	c.WaitReplica("a", replica)

	replica, old = c.ReplicaFor("b"), c.MasterFor("b")
	require.Same(t, replica, c.PauseMasterFor("b"))
	require.Same(t, replica, c.MasterFor("b"))
	old.Resume()
	c.WaitReplica("b", old)

	sub := rdb.SSubscribe(ctx, "a")
	defer sub.Close()
	redistest.Eventually(t, 30*time.Second, func() bool { return len(redistest.Subscriptions(t, rdb)) == 1 }, "subscribed")
}

func TestDuplicatesKeepTheirASKING(t *testing.T) {
	f, rdb, _ := wired(t)
	f.On(redistest.Any, redistest.Duplicate(2, redistest.Last))
	ctx := t.Context()
	cn := rdb.Conn()
	defer cn.Close()
	require.NoError(t, cn.Ping(ctx).Err())
	f.Reset()
	_ = cn.Do(ctx, "ASKING").Err() // an error outside a cluster
	before := f.Stats().Sent
	require.NoError(t, cn.Do(ctx, "ECHO", "x").Err())
	const echo, asking = "*2\r\n$4\r\nECHO\r\n$1\r\nx\r\n", "*1\r\n$6\r\nASKING\r\n"
	require.EqualValues(t, 2*len(echo)+len(asking), f.Stats().Sent-before)
}
