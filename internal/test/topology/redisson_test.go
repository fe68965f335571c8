package topology_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Does Redisson's layout work on Sentinel and on a cluster?

// Redisson's layout on Sentinel and on a cluster, where the kind of pub/sub depends on how the Java
// side is set up.

// onShardedCluster is a cluster that has both kinds of pub/sub.
func onShardedCluster(t *testing.T) *stage.ClusterArena {
	t.Helper()
	w := stage.OnCluster(t)
	if !w.Cluster.Nodes()[0].AtLeast(7, 0) {
		redistest.NotTested(t, "sharded pub/sub is there since Redis 7.0")
	}
	return w
}

// lockInJava takes a lock as a Redisson client of a cluster does.
func lockInJava(w *stage.ClusterArena, name string) {
	w.T.Helper()
	require.Zero(w.T, w.All.Exists(context.Background(), name).Val())
	require.NoError(w.T, w.All.HSet(context.Background(), name, stage.JavaHolder, 1).Err())
	require.NoError(w.T, w.All.PExpire(context.Background(), name, relock.DefaultTTL).Err())
}

// unlockInJava frees that lock, and publishes by way of a client.
func unlockInJava(w *stage.ClusterArena, name, publish string, via redis.UniversalClient) {
	w.T.Helper()
	require.EqualValues(w.T, 1, w.All.Del(context.Background(), name).Val())
	require.NoError(w.T, via.Do(context.Background(), publish, stage.ChannelOf(name), "0").Err())
}

// waitsFor begins to wait for a lock, and returns when the client listens and has asked since.
func waitsFor(w *stage.ClusterArena, p *stage.ClusterPeer, l *relock.Lock) *stage.Attempt {
	w.T.Helper()
	asks := w.Answers(&stage.Peer{Faults: p.Faults})
	waiter := w.Start(w.T.Context(), l)
	w.AwaitAsks(asks, 2)
	return waiter
}

// loadRedisson makes EVALSHA work at once everywhere.
func loadRedisson(w *stage.ClusterArena) {
	w.T.Helper()
	require.NoError(w.T, w.All.ForEachMaster(w.T.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ScriptLoad(ctx, stage.LuaSource(w.T, stage.LuaRedisson)).Err()
	}))
}

func TestInAClusterRedissonIsHeardAndToldWhicheverPubSubItUses(t *testing.T) {
	shared := onShardedCluster(t)
	names := shared.OneForEachMaster()
	loadRedisson(shared)
	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("Java frees it with "+publish, func(t *testing.T) {
			w := shared.In(t)
			p := w.Peer(stage.InRedisson()...)
			for _, name := range names {
				lockInJava(w, name)
				waiter := waitsFor(w, p, p.NewLock(name))
				via := redis.UniversalClient(w.All)
				if publish == "PUBLISH" { // goes from any node to all
					via = w.Cluster.MasterFor(names[0]).Client()
				}
				unlockInJava(w, name, publish, via)
				w.Leave(waiter.Section(), waiter.Lock)
			}
		})
	}
	t.Run("Go frees it", func(t *testing.T) { goFreesInACluster(shared.In(t), names) })
	t.Run("Go frees it for Go, with a token", func(t *testing.T) {
		w := shared.In(t)
		c := &stage.Crowd{Arena: w.Arena}
		peers := []*stage.ClusterPeer{w.Peer(stage.InRedisson(relock.WithRedissonFencing())...), w.Peer(stage.InRedisson(relock.WithRedissonFencing())...)}
		for i := range 40 {
			c.Joins(peers[i%2].NewLock(names[0]))
		}
		c.Through(w.Limit, 40)
	})
	t.Run("leases in many slots are renewed", func(t *testing.T) {
		w := shared.In(t)
		p := w.Peer(stage.InRedisson(relock.WithTTL(1500 * time.Millisecond))...)
		var sections []context.Context
		for i := range 100 {
			sections = append(sections, w.Enter(t.Context(), p.NewLock(fmt.Sprint("many", i))))
		}
		stage.SleepUntil(time.Now().Add(2 * time.Second))
		for i, section := range sections {
			require.NoError(t, section.Err())
			w.Leave(section, p.NewLock(fmt.Sprint("many", i)))
		}
	})
	t.Run("for a user with the commands of the page", func(t *testing.T) { redissonUserInACluster(shared.In(t), names[0]) })
	t.Run("a waiter follows its slot", func(t *testing.T) { redissonFollowsItsSlot(t, shared) })
}

func goFreesInACluster(w *stage.ClusterArena, names []string) {
	t := w.T
	p := w.Peer(stage.InRedisson()...)
	for _, name := range names {
		channel := stage.ChannelOf(name)
		sharded := w.All.SSubscribe(t.Context(), channel)
		plain := w.Cluster.MasterFor(names[2]).Client().Subscribe(t.Context(), channel)
		told := func() {
			t.Helper()
			for _, java := range []*redis.PubSub{sharded, plain} {
				m, err := java.ReceiveTimeout(t.Context(), w.Limit)
				require.NoError(t, err)
				if message, ok := m.(*redis.Message); ok {
					require.Equal(t, "0", message.Payload)
				}
			}
		}
		told() // that they are subscribed
		l := p.NewLock(name)
		w.Leave(w.Enter(t.Context(), l), l)
		told()
		lockInJava(w, name)
		require.NoError(t, l.ForceUnlock(t.Context()))
		told()
		require.NoError(t, sharded.Close())
		require.NoError(t, plain.Close())
	}
}

// redissonClusterACL is what a Redis user for Redisson's layout needs in a cluster in addition.
var redissonClusterACL = []string{"ssubscribe", "sunsubscribe", "spublish", "cluster|slots", "command", "asking"}

func redissonUserInACluster(w *stage.ClusterArena, name string) {
	t := w.T
	rules := []string{"~" + name, "~redisson_lock_token:*", "&redisson_lock__channel:*"}
	for _, list := range [][]string{stage.RedissonACL, stage.RedissonFencingACL, redissonClusterACL} {
		for _, command := range list {
			rules = append(rules, "+"+command)
		}
	}
	p := w.NewUser("redisson", rules, stage.InRedisson(relock.WithRedissonFencing(), relock.WithTTL(1500*time.Millisecond))...)
	l := p.NewLock(name)
	section := w.Enter(t.Context(), l)
	w.Leave(w.Enter(section, l), l)
	waiter := w.Start(t.Context(), l)
	stage.SleepUntil(time.Now().Add(2 * time.Second)) // the lease is renewed
	w.Leave(section, l)
	w.Leave(waiter.Section(), l)
	require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
}

func redissonFollowsItsSlot(t *testing.T, shared *stage.ClusterArena) {
	t.Helper()
	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("to another master, "+publish, func(t *testing.T) {
			w := shared.In(t)
			names := w.OneForEachMaster()
			p := w.Peer(stage.InRedisson(relock.WithTTL(2 * time.Second))...)
			l, name := p.NewLock(names[0]), names[0]
			lockInJava(w, name)
			waiter := waitsFor(w, p, l)
			to := w.Cluster.MasterFor(names[1])
			w.Cluster.MoveSlot(name, to)
			channel := stage.ChannelOf(name)
			redistest.Eventually(t, w.Limit, func() bool {
				heard, err := to.Client().PubSubShardChannels(t.Context(), channel).Result()
				return err == nil && len(heard) == 1
			}, "the waiter hears the new master")
			require.True(t, waiter.Waits())
			unlockInJava(w, name, publish, w.All)
			w.Leave(waiter.Section(), l)
			section := w.Enter(t.Context(), l) // and a section that is held while its slot moves
			w.Cluster.MoveSlot(name, w.Cluster.MasterFor(names[2]))
			stage.SleepUntil(time.Now().Add(2 * time.Second)) // a lease
			require.NoError(t, section.Err())
			w.Leave(section, l)
		})
	}
	t.Run("to the replica of a master that dies", func(t *testing.T) {
		w := shared.In(t)
		name := w.OneForEachMaster()[0]
		p, q := w.Peer(stage.InRedisson(relock.WithRedissonFencing())...), w.Peer(stage.InRedisson(relock.WithRedissonFencing())...)
		l := p.NewLock(name)
		section := w.Enter(t.Context(), l)
		c := &stage.Crowd{Arena: w.Arena}
		c.Enter(section, l)
		for range 5 {
			c.Joins(p.NewLock(name))
			c.Joins(q.NewLock(name))
		}
		stage.Replicated(t, w.All, "{"+name+"}x")
		w.Cluster.KillMasterFor(name)
		require.NoError(t, section.Err())
		c.Leave(section)
		w.Leave(section, l)
		c.Through(recheckInTime, 11)
	})
}

// recheckInTime is enough for a waiter that missed the message.
const recheckInTime = relock.DefaultTTL + stage.Limit
