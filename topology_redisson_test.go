package relock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// Does Redisson's layout work on Sentinel and on a cluster?

// Redisson's layout on Sentinel and on a cluster, where the kind of pub/sub depends on how the Java
// side is set up.

// onShardedCluster is a cluster that has both kinds of pub/sub.
func onShardedCluster(t *testing.T) *field {
	t.Helper()
	w := onCluster(t)
	if !w.cluster.Nodes()[0].AtLeast(7, 0) {
		redistest.NotTested(t, "sharded pub/sub is there since Redis 7.0")
	}
	return w
}

// javaLock takes a lock as a Redisson client of a cluster does.
func (w *field) javaLock(name string) {
	w.t.Helper()
	require.Zero(w.t, w.all.Exists(context.Background(), name).Val())
	require.NoError(w.t, w.all.HSet(context.Background(), name, javaHolder, 1).Err())
	require.NoError(w.t, w.all.PExpire(context.Background(), name, relock.DefaultTTL).Err())
}

// javaUnlock frees that lock, and publishes by way of a client.
func (w *field) javaUnlock(name, publish string, via redis.UniversalClient) {
	w.t.Helper()
	require.EqualValues(w.t, 1, w.all.Del(context.Background(), name).Val())
	require.NoError(w.t, via.Do(context.Background(), publish, channelOf(name), "0").Err())
}

// waits begins to wait for a lock, and returns when the client listens and has asked since.
func (w *field) waits(p *clusterPeer, l *relock.Lock) *attempt {
	w.t.Helper()
	asks := w.answers(&peer{faults: p.faults})
	waiter := w.start(w.t.Context(), l)
	w.awaitAsks(asks, 2)
	return waiter
}

// loadRedisson makes EVALSHA work at once everywhere.
func (w *field) loadRedisson() {
	w.t.Helper()
	require.NoError(w.t, w.all.ForEachMaster(w.t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ScriptLoad(ctx, luaSource(w.t, luaRedisson)).Err()
	}))
}

func TestInAClusterRedissonIsHeardAndToldWhicheverPubSubItUses(t *testing.T) {
	shared := onShardedCluster(t)
	names := shared.oneForEachMaster()
	shared.loadRedisson()
	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("Java frees it with "+publish, func(t *testing.T) {
			w := shared.in(t)
			p := w.peer(inRedisson()...)
			for _, name := range names {
				w.javaLock(name)
				waiter := w.waits(p, p.NewLock(name))
				via := redis.UniversalClient(w.all)
				if publish == "PUBLISH" { // goes from any node to all
					via = w.cluster.MasterFor(names[0]).Client()
				}
				w.javaUnlock(name, publish, via)
				w.leave(waiter.section(), waiter.lock)
			}
		})
	}
	t.Run("Go frees it", func(t *testing.T) { goFreesInACluster(shared.in(t), names) })
	t.Run("Go frees it for Go, with a token", func(t *testing.T) {
		w := shared.in(t)
		c := &crowd{w: w.arena}
		peers := []*clusterPeer{w.peer(inRedisson(relock.WithRedissonFencing())...), w.peer(inRedisson(relock.WithRedissonFencing())...)}
		for i := range 40 {
			c.joins(peers[i%2].NewLock(names[0]))
		}
		c.through(w.limit, 40)
	})
	t.Run("leases in many slots are renewed", func(t *testing.T) {
		w := shared.in(t)
		p := w.peer(inRedisson(relock.WithTTL(1500 * time.Millisecond))...)
		var sections []context.Context
		for i := range 100 {
			sections = append(sections, w.enter(t.Context(), p.NewLock(fmt.Sprint("many", i))))
		}
		sleepUntil(time.Now().Add(2 * time.Second))
		for i, section := range sections {
			require.NoError(t, section.Err())
			w.leave(section, p.NewLock(fmt.Sprint("many", i)))
		}
	})
	t.Run("for a user with the commands of the page", func(t *testing.T) { redissonUserInACluster(shared.in(t), names[0]) })
	t.Run("a name whose key and channel are apart is refused", func(t *testing.T) {
		p := shared.in(t).peer(inRedisson()...)
		for _, name := range []string{"a}b", "a{b", "a{}b", "{"} {
			_, err := p.NewLock(name).Lock(t.Context())
			require.ErrorIs(t, err, relock.ErrInvalid)
		}
	})
	t.Run("a waiter follows its slot", func(t *testing.T) { redissonFollowsItsSlot(t, shared) })
}

func goFreesInACluster(w *field, names []string) {
	t := w.t
	p := w.peer(inRedisson()...)
	for _, name := range names {
		channel := channelOf(name)
		sharded := w.all.SSubscribe(t.Context(), channel)
		plain := w.cluster.MasterFor(names[2]).Client().Subscribe(t.Context(), channel)
		told := func() {
			t.Helper()
			for _, java := range []*redis.PubSub{sharded, plain} {
				m, err := java.ReceiveTimeout(t.Context(), w.limit)
				require.NoError(t, err)
				if message, ok := m.(*redis.Message); ok {
					require.Equal(t, "0", message.Payload)
				}
			}
		}
		told() // that they are subscribed
		l := p.NewLock(name)
		w.leave(w.enter(t.Context(), l), l)
		told()
		w.javaLock(name)
		require.NoError(t, l.ForceUnlock(t.Context()))
		told()
		require.NoError(t, sharded.Close())
		require.NoError(t, plain.Close())
	}
}

// redissonClusterACL is what a Redis user for Redisson's layout needs in a cluster in addition.
var redissonClusterACL = []string{"ssubscribe", "sunsubscribe", "spublish", "cluster|slots", "command", "asking"}

func redissonUserInACluster(w *field, name string) {
	t := w.t
	rules := []string{"~" + name, "~redisson_lock_token:*", "&redisson_lock__channel:*"}
	for _, list := range [][]string{redissonACL, redissonFencingACL, redissonClusterACL} {
		for _, command := range list {
			rules = append(rules, "+"+command)
		}
	}
	p := w.user("redisson", rules, inRedisson(relock.WithRedissonFencing(), relock.WithTTL(1500*time.Millisecond))...)
	l := p.NewLock(name)
	section := w.enter(t.Context(), l)
	w.leave(w.enter(section, l), l)
	waiter := w.start(t.Context(), l)
	sleepUntil(time.Now().Add(2 * time.Second)) // the lease is renewed
	w.leave(section, l)
	w.leave(waiter.section(), l)
	require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
}

func redissonFollowsItsSlot(t *testing.T, shared *field) {
	t.Helper()
	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("to another master, "+publish, func(t *testing.T) {
			w := shared.in(t)
			names := w.oneForEachMaster()
			p := w.peer(inRedisson(relock.WithTTL(2 * time.Second))...)
			l, name := p.NewLock(names[0]), names[0]
			w.javaLock(name)
			waiter := w.waits(p, l)
			to := w.cluster.MasterFor(names[1])
			w.cluster.MoveSlot(name, to)
			channel := channelOf(name)
			redistest.Eventually(t, w.limit, func() bool {
				heard, err := to.Client().PubSubShardChannels(t.Context(), channel).Result()
				return err == nil && len(heard) == 1
			}, "the waiter hears the new master")
			require.True(t, waiter.waits())
			w.javaUnlock(name, publish, w.all)
			w.leave(waiter.section(), l)
			section := w.enter(t.Context(), l) // and a section that is held while its slot moves
			w.cluster.MoveSlot(name, w.cluster.MasterFor(names[2]))
			sleepUntil(time.Now().Add(2 * time.Second)) // a lease
			require.NoError(t, section.Err())
			w.leave(section, l)
		})
	}
	t.Run("to the replica of a master that dies", func(t *testing.T) {
		w := shared.in(t)
		name := w.oneForEachMaster()[0]
		p, q := w.peer(inRedisson(relock.WithRedissonFencing())...), w.peer(inRedisson(relock.WithRedissonFencing())...)
		l := p.NewLock(name)
		section := w.enter(t.Context(), l)
		c := &crowd{w: w.arena}
		c.enter(section, l)
		for range 5 {
			c.joins(p.NewLock(name))
			c.joins(q.NewLock(name))
		}
		replicated(t, w.all, "{"+name+"}x")
		w.cluster.KillMasterFor(name)
		require.NoError(t, section.Err())
		c.leave(section)
		w.leave(section, l)
		c.through(recheckInTime, 11)
	})
}

// recheckInTime is enough for a waiter that missed the message.
const recheckInTime = relock.DefaultTTL + limit

func TestAWaiterInRedissonsLayoutGetsInAfterASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	w.forRedisson()
	fenced := inRedisson(relock.WithRedissonFencing())
	holder := sentinelPeer(w, s, fenced...)
	peers := []*peer{sentinelPeer(w, s, fenced...), sentinelPeer(w, s, fenced...), sentinelPeer(w, s, fenced...)}
	ways := failovers(s)
	for _, way := range []string{"in agreement", "stopped, and resumed as a second master"} {
		delete(ways, way) // as in relock's own layout
	}
	for way, failover := range ways {
		t.Run(way, func(t *testing.T) {
			w := w.in(t)
			l := holder.NewLock("a")
			section := w.enter(t.Context(), l)
			c := &crowd{w: w}
			c.enter(section, l)
			for i := range 9 {
				c.joins(peers[i%3].NewLock("a"))
			}
			w.awaitEars("a", 3)
			replicated(t, w.plain, "x")
			failover.fail()
			failover.comeBack()
			require.NoError(t, section.Err(), "the new master has the lock")
			c.leave(section)
			w.leave(section, l)
			c.through(recheckInTime, 10)
			s.WaitReplica()
		})
	}

	// A Java client of the same sentinels uses plain pub/sub.
	w.javaLock("b")
	waiter := w.start(t.Context(), peers[0].NewLock("b"))
	w.awaitEars("b", 1)
	w.javaUnlock("b")
	w.leave(waiter.section(), waiter.lock)
}
