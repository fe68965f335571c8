package relock_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// ---------------------------------------------------------------------------------------------------------------------
// What the suites for several servers share: this file, topology_cluster_test.go, topology_tls_test.go.

// ample is what soon is in other tests. Here it is for several servers and clients, and a busy machine may let each of them
// wait. It is less than the lease that a lock has by default, so what only comes at the end of one is found out.
const ample = 10 * time.Second

// acked asks for the one replica that there is, and gives it time on a busy machine.
func acked() relock.Option { return relock.WithReplicaAcks(1, 400*time.Millisecond) }

// onWire is how the peers of these suites talk: a server that is gone is noticed soon, and there is room for a busy machine.
const onWire = 500 * time.Millisecond

// surroundings is an arena that has no server yet.
func surroundings(t *testing.T) *arena {
	t.Helper()
	if testing.Short() {
		redistest.NotTested(t, "Sentinel and Cluster take nearly half of the time of this package; -short leaves them out")
	}
	return bareArena(t, ample)
}

// crowd is many who wait for one lock, go through it one by one, and leave at once.
type crowd struct {
	guarded
	w    *arena
	all  sync.WaitGroup
	errs names
}

func (c *crowd) joins(l *relock.Lock) {
	c.all.Go(func() {
		section, err := l.Lock(context.Background())
		if err != nil {
			c.errs.add("lock: " + err.Error())
			return
		}
		c.enter(section, l)
		<-time.After(time.Millisecond)
		c.leave(section)
		if err := l.Unlock(section); err != nil {
			c.errs.add("unlock: " + err.Error())
		}
	})
}

// through waits until everybody was in.
func (c *crowd) through(limit time.Duration, entries int) {
	c.w.t.Helper()
	_ = c.w.call(limit, func() error { c.all.Wait(); return nil })
	require.Empty(c.w.t, c.errs.all())
	c.require(c.w.t)
	require.Equal(c.w.t, entries, c.entries)
}

// replicated waits until the replica of a server has all that was written so far.
func replicated(t testing.TB, master redis.UniversalClient, key string) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		// Behind a write on the same connection: else there is nothing that the replica could lack.
		var wait *redis.Cmd
		node, ok := master.(*redis.Client)
		if !ok {
			var err error
			if node, err = master.(*redis.ClusterClient).MasterForKey(context.Background(), key); err != nil {
				return false
			}
		}
		_, err := node.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			p.Set(context.Background(), key, 1, time.Millisecond)
			wait = p.Do(context.Background(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica has everything")
}

// cutReplica makes a replica lack all that its master is told from now on. It may be elected all the same. (To stop its
// process would not do: what the master has sent by then waits in the socket.)
func cutReplica(t testing.TB, master, replica *redistest.Server) {
	t.Helper()
	m, r := master.Client(), replica.Client()
	ctx := context.Background()
	// A password that the master does not want keeps the replica out.
	require.NoError(t, r.ConfigSet(ctx, "masterauth", "nobody").Err())
	require.NoError(t, m.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	redistest.Eventually(t, ample, func() bool {
		info, err := r.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:down")
	}, "the replica has lost its master")
}

// mendReplica lets it in again.
func mendReplica(t testing.TB, replica *redistest.Server) {
	t.Helper()
	require.NoError(t, replica.Client().ConfigSet(context.Background(), "masterauth", "").Err())
}

// forgotten says that a server has none of the library's scripts.
func forgotten(t testing.TB, server *redistest.Server) bool {
	t.Helper()
	var sums []string
	for _, name := range scriptNames {
		sum := sha1.Sum([]byte(luaSource(t, name)))
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	there, err := server.Client().ScriptExists(context.Background(), sums...).Result()
	require.NoError(t, err)
	for _, yes := range there {
		if yes {
			return false
		}
	}
	return true
}

// ---------------------------------------------------------------------------------------------------------------------
// Sentinel.

// onSentinel is an arena on a master with a replica, and three sentinels.
func onSentinel(t *testing.T) (*arena, *redistest.Sentinel) {
	t.Helper()
	w := surroundings(t)
	s := redistest.StartSentinel(t)
	w.server, w.plain = s.Master(), s.Client()
	t.Cleanup(func() {
		if !t.Failed() {
			w.requireTidy()
		}
	})
	return w, s
}

// sentinelPeer is a peer that asks the sentinels for the master.
func sentinelPeer(w *arena, s *redistest.Sentinel, options ...relock.Option) *peer {
	w.t.Helper()
	p := &peer{faults: redistest.NewFaults()}
	w.t.Cleanup(p.faults.Close)
	p.rdb = s.Client(func(o *redis.FailoverOptions) {
		o.Dialer = p.faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout = onWire, onWire, onWire
		o.DialerRetries = 1
	})
	var err error
	p.Client, err = relock.New(p.rdb, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		start := time.Now()
		require.NoError(w.t, p.Close())
		require.Less(w.t, time.Since(start), 10*time.Second)
		require.Empty(w.t, relock.Leftovers(p.Client))
	})
	return p
}

// TestTwentyWaitersGetInOneByOneAfterASentinelFailover is about a lock that is held and waited for while the master goes
// away, in each of the three ways in which it can.
func TestTwentyWaitersGetInOneByOneAfterASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	var peers []*peer
	for range 4 {
		peers = append(peers, sentinelPeer(w, s, relock.WithTTL(12*time.Second)))
	}
	holder := sentinelPeer(w, s, relock.WithTTL(12*time.Second))
	for _, way := range []struct {
		name     string
		fail     func() *redistest.Server // returns when all sentinels know the new master
		comeBack func()
	}{
		{"killed", s.KillMaster, func() { s.Replica().Restart() }},
		{"in agreement", s.Failover, func() {}},
		{"stopped, and resumed as a second master", s.PauseMaster, func() { s.Replica().Resume() }},
	} {
		t.Run(way.name, func(t *testing.T) {
			const name = "a"
			w := w.in(t)
			l := holder.NewLock(name)
			outer := w.enter(t.Context(), l, ample)
			section := w.enter(outer, l, ample)
			c := &crowd{w: w}
			c.enter(section, l)
			for i := range 20 {
				c.joins(peers[i%len(peers)].NewLock(name))
			}
			w.awaitWaiters(name, 20)
			replicated(t, w.plain, "x")
			require.True(t, forgotten(t, s.Replica()), "scripts are not replicated, so the new master answers NOSCRIPT")

			way.fail()
			way.comeBack()
			require.NoError(t, section.Err(), "the new master has the lock")
			w.leave(section, l, ample)
			require.NoError(t, outer.Err())
			w.requireCount(name, 1)
			c.leave(section)
			w.leave(outer, l, ample)
			// All are queued on the new master, or ask there as soon as their pub/sub connection has found it. A stopped
			// server is only noticed by its silence.
			c.through(3*ample, 21)
			w.awaitFree(name, ample)
			s.WaitReplica()
			require.NoError(t, s.Replica().Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// A lock that only the old master knew is lost with it. The holder hears of it, and those who waited get in.
func TestAHolderIsToldThatTheReplicaWhichWasPromotedLackedItsLock(t *testing.T) {
	w, s := onSentinel(t)
	const ttl = 12 * time.Second
	holder, next := sentinelPeer(w, s, relock.WithTTL(ttl)), sentinelPeer(w, s, relock.WithTTL(ttl))
	replicated(t, w.plain, "x")
	replica := s.Replica()
	cutReplica(t, s.Master(), replica)

	l := holder.NewLock("a")
	section := w.enter(t.Context(), l, ample)
	token := l.Token(section)
	c := &crowd{w: w}
	for range 5 {
		c.joins(next.NewLock("a"))
	}
	w.awaitWaiters("a", 5)
	require.Same(t, replica, s.KillMaster())
	mendReplica(t, replica)

	// A renewal is tried again every ttl/12 while it fails.
	lost := w.lost(section, ttl/3+ttl/12+ample)
	require.Equal(t, relock.LossTaken, lost.Reason, "not by its deadline: Redis has said so")
	require.Equal(t, token, lost.Token)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	c.through(ample, 5)
	require.Greater(t, c.token, token, "who is in now has a larger token, although the new master did not know of the old one")
	s.Replica().Restart()
}

// The same with WithReplicaAcks: either the replica has the lock, or nobody thinks to have it.
func TestReplicaAcksCloseTheGapOfASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	p, q := sentinelPeer(w, s, acked()), sentinelPeer(w, s)
	l := p.NewLock("a")
	replicated(t, w.plain, "x")
	replica := s.Replica()

	cutReplica(t, s.Master(), replica)
	require.ErrorIs(t, w.start(t.Context(), l).out(ample), relock.ErrNotReplicated)
	w.awaitFree("a", 0)
	mendReplica(t, replica)
	s.WaitReplica()

	replicated(t, w.plain, "x")
	section := w.enter(t.Context(), l, ample)
	s.Master().Kill() // at once
	waiter := w.start(t.Context(), q.NewLock("a"))
	s.Replace(replica)
	redistest.Eventually(t, ample, func() bool { return w.plain.Ping(t.Context()).Err() == nil }, "it is found")
	w.awaitWaiters("a", 1)
	require.NoError(t, section.Err())
	require.True(t, l.Held(section))
	token := l.Token(section)
	w.requireCount("a", 1)
	w.leave(section, l, ample)
	mine := waiter.in(ample)
	require.Greater(t, waiter.lock.Token(mine), token)
	w.leave(mine, waiter.lock, ample)

	// Nobody is left to confirm. That is told, and not for ever.
	require.ErrorIs(t, w.start(t.Context(), l).out(ample), relock.ErrNotReplicated)
	s.Replica().Restart()
	s.WaitReplica()
	replicated(t, w.plain, "x")
	w.leave(w.enter(t.Context(), l, ample), l, ample)
}

// Work goes on all the time here, so the failover comes at whatever moment it likes.
func TestWithReplicaAcksNoTwoAreInThroughASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	const ttl, workers = 2 * time.Second, 8
	w.tidyWithin = ttl + ample // of a release that got lost
	var peers []*peer
	for range 4 {
		peers = append(peers, sentinelPeer(w, s, relock.WithTTL(ttl), acked()))
	}
	g := &guarded{lost: true}
	var done tally
	var errs names
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range workers {
		l := peers[i%len(peers)].NewLock("a")
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				section, err := l.Lock(context.Background())
				switch {
				case errors.Is(err, relock.ErrNotReplicated):
					done.add("not replicated")
					<-time.After(20 * time.Millisecond)
					continue
				case err != nil:
					errs.add(err.Error())
					return
				}
				if g.enter(section, l) {
					<-time.After(3 * time.Millisecond)
					g.leave(section)
					done.add("sections")
				}
				if l.Unlock(section) != nil { // while there is no master it cannot be confirmed
					done.add("unlocks that failed")
				}
			}
		})
	}
	sections := func(more int) {
		t.Helper()
		want := done.of("sections") + more
		redistest.Eventually(t, 30*time.Second, func() bool { return done.of("sections") >= want }, "work goes on")
	}
	sections(50)
	s.KillMaster()
	s.Replica().Restart()
	s.WaitReplica()
	sections(50)
	close(stop)
	require.NoError(t, w.call(20*time.Second, func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	g.section = nil // of one whose lease ran out
	g.require(t)
	t.Log(&done)
}

// Behind sentinels there are two kinds of go-redis clients. One of them is a cluster client, as it also reads from replicas,
// although there is no cluster. Services with either share their locks.
func TestBothKindsOfSentinelClientsShareTheirLocks(t *testing.T) {
	w, s := onSentinel(t)
	plain := sentinelPeer(w, s)
	rdb := redis.NewFailoverClusterClient(&redis.FailoverOptions{
		MasterName: s.MasterName(), SentinelAddrs: s.Addrs(), RouteRandomly: true,
		ReadTimeout: onWire, WriteTimeout: onWire, DialTimeout: onWire, DialerRetries: 1,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	reader, err := relock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	l, rl := plain.NewLock("a"), reader.NewLock("a")

	handOver := func() {
		t.Helper()
		for _, way := range [][2]*relock.Lock{{l, rl}, {rl, l}, {rl, rl}} {
			section := w.enter(t.Context(), way[0], ample)
			waiter := w.start(t.Context(), way[1])
			w.awaitWaiters("a", 1)
			w.leave(section, way[0], ample)
			w.leave(waiter.in(ample), way[1], ample)
		}
	}
	handOver()
	section := w.enter(t.Context(), rl, ample)
	waiter := w.start(t.Context(), rl)
	w.awaitWaiters("a", 1)
	replicated(t, w.plain, "x")
	s.Failover()
	w.leave(section, rl, ample)
	w.leave(waiter.in(ample), rl, ample)
	handOver()
}

// Without sentinels: an operator makes the replica the master, and moves the name or address to it that clients use. What
// is connected stays connected, so the pub/sub connections of waiters lead to a replica now. There, they hear what the new
// master publishes; but the new master does not see them, and takes the waiters for dead.
func TestAGrantHeardThroughADemotedMasterIsNotBelieved(t *testing.T) {
	const ttl = 5 * time.Second // nothing of it must have run out before all is in place
	w, replica := withReplica(t)
	w.tidyWithin = ttl + ample
	var address atomic.Value
	address.Store(w.server.Addr())
	follow := func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, address.Load().(string))
		}
	}
	owner, waiting, third := w.peerOn(follow, relock.WithTTL(ttl)), w.peerOn(follow, relock.WithTTL(ttl)), w.peerOn(follow)
	l, wl, tl := owner.NewLock("a"), waiting.NewLock("a"), third.NewLock("a")

	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	replicated(t, w.plain, "x")
	old := w.plain
	w.plain = replica.Client()
	require.NoError(t, w.plain.ReplicaOf(t.Context(), "NO", "ONE").Err())
	address.Store(replica.Addr())
	host, port, _ := strings.Cut(replica.Addr(), ":")
	require.NoError(t, old.ReplicaOf(t.Context(), host, port).Err())
	replicated(t, w.plain, "x")
	require.Len(t, redistest.Subscriptions(t, old), 1, "the waiter hears the old master")

	require.NoError(t, section.Err())
	w.leave(section, l, ample)
	// It is enough that it gets in when the lease would have ended. It must not get in while Redis knows nothing of it.
	mine := waiter.in(ttl + ample)
	hold, count := w.owner("a")
	require.Equal(t, 1, count, "whoever is in has the lock in Redis")
	holder, _ := relock.HolderFrom(mine)
	require.True(t, strings.HasPrefix(hold, holder.String()), "%s is in, and %s has the lock", holder, hold)
	_, err := tl.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)

	// And now it knows, so that the next hand-over is as prompt as any.
	w.leave(mine, wl, ample)
	section = w.enter(t.Context(), l, ample)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	w.leave(section, l, ample)
	start := time.Now()
	mine = waiter.in(ttl + ample)
	require.Less(t, time.Since(start), ttl/2+time.Duration(w.late.Load()), "not by the end of a lease")
	w.leave(mine, wl, ample)
	w.awaitFree("a", ample)
	replicated(t, w.plain, "x")
	w.plain = old // which outlives the test's new master, and has all that it had
}
