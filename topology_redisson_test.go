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

// Redisson's layout on Sentinel and on a cluster, where what is published depends on how the Java side is set up.

// onShardedCluster is a cluster that has both kinds of pub/sub.
func onShardedCluster(t *testing.T) *field {
	t.Helper()
	w := onCluster(t)
	if !w.cluster.Nodes()[0].AtLeast(7, 0) {
		redistest.NotTested(t, "sharded pub/sub is there since Redis 7.0")
	}
	return w
}

// javaLocks takes a lock as a Redisson client of a cluster does, and javaUnlocks frees it again.
func (w *field) javaLocks(name string) {
	w.t.Helper()
	require.Zero(w.t, w.all.Exists(context.Background(), name).Val())
	require.NoError(w.t, w.all.HSet(context.Background(), name, "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", 1).Err())
	require.NoError(w.t, w.all.PExpire(context.Background(), name, relock.DefaultTTL).Err())
}

func (w *field) javaUnlocks(name, publish string, via redis.UniversalClient) {
	w.t.Helper()
	require.EqualValues(w.t, 1, w.all.Del(context.Background(), name).Val())
	require.NoError(w.t, via.Do(context.Background(), publish, redissonChannelOf(name), "0").Err())
}

// answers counts the calls of acquire that p has made from now on, and that Redis has answered.
func (w *field) answers(p *clusterPeer) func() int {
	w.t.Helper()
	return w.arena.answers(&peer{faults: p.faults})
}

// awaitRunner waits until a client hears of a lock, and has asked since.
func (w *field) awaitRunner(asks func() int, n int) {
	w.t.Helper()
	redistest.Eventually(w.t, soon, func() bool { return asks() >= n }, "%d calls of acquire", n)
}

func TestInAClusterRedissonIsHeardAndToldWhicheverPubSubItUses(t *testing.T) {
	shared := onShardedCluster(t)
	names := shared.oneForEachMaster()

	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("Java frees it with "+publish, func(t *testing.T) {
			w := shared.in(t)
			p := w.peer(inRedisson()...)
			for _, name := range names {
				w.javaLocks(name)
				asks := w.answers(p)
				waiter := w.start(t.Context(), p.NewLock(name))
				w.awaitRunner(asks, 2)
				via := redis.UniversalClient(w.all)
				if publish == "PUBLISH" { // any node will do, and it goes to all
					via = w.cluster.MasterFor(names[0]).Client()
				}
				w.javaUnlocks(name, publish, via)
				w.leave(waiter.in(soon), waiter.lock, soon)
			}
		})
	}

	t.Run("both kinds of one message cost one question", func(t *testing.T) {
		const messages = 30
		w := shared.in(t)
		p := w.peer(inRedisson()...)
		w.javaLocks(names[0])
		asks := w.answers(p)
		waiter := w.start(t.Context(), p.NewLock(names[0]))
		w.awaitRunner(asks, 2)
		before := asks()
		for range messages { // somebody else has it again at once
			n := asks()
			require.NoError(t, w.all.Eval(t.Context(), `redis.call('SPUBLISH', ARGV[1], '0') return redis.call('PUBLISH', ARGV[1], '0')`,
				names[:1], redissonChannelOf(names[0])).Err())
			w.awaitRunner(asks, n+1)
		}
		require.Less(t, asks()-before, messages*3/2, "seldom more")
		w.javaUnlocks(names[0], "SPUBLISH", w.all)
		w.leave(waiter.in(soon), waiter.lock, soon)
	})

	t.Run("Go frees it", func(t *testing.T) {
		w := shared.in(t)
		p := w.peer(inRedisson()...)
		for _, name := range names {
			channel := redissonChannelOf(name)
			sharded := w.all.SSubscribe(t.Context(), channel)
			plain := w.cluster.MasterFor(names[2]).Client().Subscribe(t.Context(), channel)
			for _, ears := range []*redis.PubSub{sharded, plain} {
				_, err := ears.ReceiveTimeout(t.Context(), soon)
				require.NoError(t, err)
			}
			told := func() {
				t.Helper()
				for _, ears := range []*redis.PubSub{sharded, plain} {
					m, err := ears.ReceiveTimeout(t.Context(), soon)
					require.NoError(t, err)
					require.Equal(t, "0", m.(*redis.Message).Payload)
				}
			}
			l := p.NewLock(name)
			w.leave(w.enter(t.Context(), l, soon), l, soon)
			told()
			w.javaLocks(name)
			require.NoError(t, l.ForceUnlock(t.Context()), "and by force")
			told()
			require.NoError(t, sharded.Close())
			require.NoError(t, plain.Close())
		}
	})

	t.Run("Go frees it for Go, with a token", func(t *testing.T) {
		w := shared.in(t)
		c := &crowd{w: w.arena}
		peers := []*clusterPeer{w.peer(inRedisson(relock.WithRedissonFencing())...), w.peer(inRedisson(relock.WithRedissonFencing())...)}
		for i := range 40 {
			c.joins(peers[i%2].NewLock(names[0]))
		}
		c.through(10*time.Second, 40)
	})

	t.Run("leases in many slots are renewed", func(t *testing.T) {
		w := shared.in(t)
		p := w.peer(inRedisson(relock.WithTTL(900 * time.Millisecond))...)
		var sections []context.Context
		for i := range 100 {
			sections = append(sections, w.enter(t.Context(), p.NewLock(fmt.Sprint("many", i)), soon))
		}
		sleepUntil(time.Now().Add(1500 * time.Millisecond))
		for i, section := range sections {
			require.NoError(t, section.Err())
			w.leave(section, p.NewLock(fmt.Sprint("many", i)), soon)
		}
	})

	t.Run("for a user with the commands of the page", func(t *testing.T) {
		w := shared.in(t)
		rules := []string{"~spread*", "~redisson_lock_token:*", "&redisson_lock__channel:*"}
		for _, list := range [][]string{redissonACL, redissonFencingACL, redissonClusterACL} {
			for _, command := range list {
				rules = append(rules, "+"+command)
			}
		}
		p := w.user("redisson", rules, inRedisson(relock.WithRedissonFencing(), relock.WithTTL(900*time.Millisecond))...)
		l := p.NewLock(names[0])
		section := w.enter(t.Context(), l, soon)
		w.leave(w.enter(section, l, soon), l, soon)
		asks := w.answers(p)
		waiter := w.start(t.Context(), l)
		w.awaitRunner(asks, 2)
		sleepUntil(time.Now().Add(time.Second)) // renewed
		w.leave(section, l, soon)
		w.leave(waiter.in(soon), l, soon)
		require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
	})

	t.Run("a name whose key and channel are apart is refused", func(t *testing.T) {
		p := shared.in(t).peer(inRedisson()...)
		for _, name := range []string{"a}b", "a{b", "a{}b", "{"} {
			_, err := p.NewLock(name).Lock(t.Context())
			require.ErrorIs(t, err, relock.ErrInvalid)
		}
	})
}

func TestInAClusterAWaiterInRedissonsLayoutFollowsItsSlot(t *testing.T) {
	shared := onShardedCluster(t)
	for _, publish := range []string{"SPUBLISH", "PUBLISH"} {
		t.Run("to another master, "+publish, func(t *testing.T) {
			w := shared.in(t)
			names := w.oneForEachMaster()
			p := w.peer(inRedisson(relock.WithTTL(2 * time.Second))...)
			l, name := p.NewLock(names[0]), names[0]
			w.javaLocks(name)
			asks := w.answers(p)
			waiter := w.start(t.Context(), l)
			w.awaitRunner(asks, 2)
			to := w.cluster.MasterFor(names[1])
			w.cluster.MoveSlot(name, to)
			redistest.Eventually(t, soon, func() bool { return shardChannels(t, to) == 1 }, "it hears the new master")
			channel := redissonChannelOf(name)
			redistest.Eventually(t, soon, func() bool {
				return to.Client().PubSubNumSub(t.Context(), channel).Val()[channel] == 1
			}, "and plain messages there too: where they came from may leave the cluster")
			require.True(t, waiter.waiting())
			w.javaUnlocks(name, publish, w.all)
			w.leave(waiter.in(soon), l, soon)
			// And a section that is held while it moves.
			section := w.enter(t.Context(), l, soon)
			w.cluster.MoveSlot(name, w.cluster.MasterFor(names[2]))
			sleepUntil(time.Now().Add(2 * time.Second)) // a lease
			require.NoError(t, section.Err())
			w.leave(section, l, soon)
		})
	}
	t.Run("to the replica of a master that dies", func(t *testing.T) {
		w := shared.in(t)
		name := w.oneForEachMaster()[0]
		p, q := w.peer(inRedisson(relock.WithRedissonFencing())...), w.peer(inRedisson(relock.WithRedissonFencing())...)
		l := p.NewLock(name)
		section := w.enter(t.Context(), l, soon)
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
		w.leave(section, l, unlockInTime)
		c.through(recheckInTime, 11)
	})
}

const (
	// unlockInTime is enough for go-redis to find the new master.
	unlockInTime = 10 * time.Second
	// recheckInTime is enough for a waiter that missed the message.
	recheckInTime = relock.DefaultTTL + soon
)

func TestAWaiterInRedissonsLayoutGetsInAfterASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	holder := sentinelPeer(w, s, inRedisson(relock.WithRedissonFencing())...)
	var peers []*peer
	for range 3 {
		peers = append(peers, sentinelPeer(w, s, inRedisson(relock.WithRedissonFencing())...))
	}
	for _, way := range []struct {
		name     string
		fail     func() *redistest.Server
		comeBack func()
	}{
		{"killed", s.KillMaster, func() { s.Replica().Restart() }},
		{"in agreement", s.Failover, func() {}},
	} {
		t.Run(way.name, func(t *testing.T) {
			w := w.in(t)
			l := holder.NewLock("a")
			section := w.enter(t.Context(), l, soon)
			c := &crowd{w: w}
			c.enter(section, l)
			for i := range 9 {
				c.joins(peers[i%3].NewLock("a"))
			}
			w.awaitEars("a", 3)
			replicated(t, w.plain, "x")
			way.fail()
			way.comeBack()
			require.NoError(t, section.Err(), "the new master has the lock")
			c.leave(section)
			w.leave(section, l, unlockInTime)
			c.through(recheckInTime, 10)
			s.WaitReplica()
		})
	}

	// A Java client of the same sentinels, on plain pub/sub.
	j := w.java()
	j.lock("b")
	waiter := w.start(t.Context(), peers[0].NewLock("b"))
	w.awaitEars("b", 1)
	j.unlock("b")
	w.leave(waiter.in(soon), waiter.lock, soon)
}
