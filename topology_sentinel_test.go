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

// Who is in after a failover by Sentinel?

// The first half of this file is the vocabulary of all tests with several servers.

// onWire is the timeout of the peers in these tests. A server that is gone is noticed soon, and a
// busy machine has time.
const onWire = 500 * time.Millisecond

// acked asks for the one replica that there is.
func acked() relock.Option { return relock.WithReplicaAcks(1, 400*time.Millisecond) }

// surroundings is an arena of several servers, none of them started. Servers and clients share a
// busy machine. The limit is less than DefaultTTL, so a test finds out what only comes at the end of
// a lease.
func surroundings(t *testing.T, rdb func() redis.UniversalClient) *arena {
	t.Helper()
	if testing.Short() {
		redistest.NotTested(t, "-short leaves out Sentinel and Cluster, which take long")
	}
	redistest.NoGoroutineLeft(t)
	return bare(t, 10*time.Second, rdb)
}

// closing closes a client at the end of a test.
func (w *arena) closing(c *relock.Client, faults *redistest.Faults) {
	w.t.Helper()
	w.t.Cleanup(func() {
		faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.t, c.Close())
		require.Less(w.t, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
	})
}

// crowd is many who wait for one lock, go through it one by one, and leave at once.
type crowd struct {
	witness
	w    *arena
	all  sync.WaitGroup
	errs names
}

func (c *crowd) joins(l *relock.Lock) {
	c.all.Go(func() {
		c.errs.check(l.Do(context.Background(), func(section context.Context) error {
			c.enter(section, l)
			<-time.After(time.Millisecond)
			c.leave(section)
			return context.Cause(section)
		}))
	})
}

// through waits until everybody was in.
func (c *crowd) through(limit time.Duration, entries int) {
	c.w.t.Helper()
	_ = c.w.within(limit).call(func() error { c.all.Wait(); return nil })
	require.Empty(c.w.t, c.errs.all())
	c.require(c.w.t)
	require.Equal(c.w.t, entries, c.entries)
}

// replicated waits until the replica of a server has all that was written so far.
func replicated(t testing.TB, master redis.UniversalClient, key string) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		node, ok := master.(*redis.Client)
		if !ok {
			var err error
			if node, err = master.(*redis.ClusterClient).MasterForKey(context.Background(), key); err != nil {
				return false
			}
		}
		var wait *redis.Cmd
		// WAIT counts replicas that have the writes of its connection, so there must be a write.
		_, err := node.Pipelined(context.Background(), func(p redis.Pipeliner) error {
			p.Set(context.Background(), key, 1, time.Millisecond)
			wait = p.Do(context.Background(), "WAIT", 1, 100)
			return nil
		})
		n, _ := wait.Int()
		return err == nil && n == 1
	}, "the replica has everything")
}

// cutReplica makes a replica lack all that its master is told from now on. The replica may be
// elected all the same. (A replica that is stopped would not do: its socket has what the master has
// sent by then.)
func cutReplica(t testing.TB, master, replica *redistest.Server) {
	t.Helper()
	m, r := master.Client(), replica.Client()
	ctx := context.Background()
	// A password that the master does not want keeps the replica out.
	require.NoError(t, r.ConfigSet(ctx, "masterauth", "nobody").Err())
	require.NoError(t, m.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	redistest.Eventually(t, 3*limit, func() bool {
		info, err := r.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:down")
	}, "the replica has lost its master")
}

// mendReplica lets a replica in again.
func mendReplica(t testing.TB, replica *redistest.Server) {
	t.Helper()
	require.NoError(t, replica.Client().ConfigSet(context.Background(), "masterauth", "").Err())
}

// requireForgotten says that a server has none of the scripts, and answers NOSCRIPT.
func requireForgotten(t testing.TB, server *redistest.Server) {
	t.Helper()
	var sums []string
	for _, name := range scriptNames {
		sum := sha1.Sum([]byte(luaSource(t, name)))
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	there, err := server.Client().ScriptExists(context.Background(), sums...).Result()
	require.NoError(t, err)
	require.NotContains(t, there, true)
}

// onSentinel is an arena on a master with a replica, and three sentinels.
func onSentinel(t *testing.T) (*arena, *redistest.Sentinel) {
	t.Helper()
	var w *arena
	w = surroundings(t, func() redis.UniversalClient { return w.plain })
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
	w.closing(p.Client, p.faults)
	return p
}

// failover is a way in which a master goes away.
type failover struct {
	fail     func() *redistest.Server // returns when all sentinels know the new master
	comeBack func()
}

// failovers returns the ways in which a master goes away, by name.
func failovers(s *redistest.Sentinel) map[string]failover {
	return map[string]failover{
		"killed":       {s.KillMaster, func() { s.Replica().Restart() }},
		"in agreement": {s.Failover, func() {}},
		"stopped, and resumed as a second master": {s.PauseMaster, func() { s.Replica().Resume() }},
	}
}

func TestWaitersGetInOneByOneAfterASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	var peers []*peer
	for range 4 {
		peers = append(peers, sentinelPeer(w, s, relock.WithTTL(12*time.Second)))
	}
	holder := sentinelPeer(w, s, relock.WithTTL(12*time.Second))
	for way, failover := range failovers(s) {
		t.Run(way, func(t *testing.T) {
			const name = "a"
			w := w.in(t)
			l := holder.NewLock(name)
			outer := w.enter(t.Context(), l)
			section := w.enter(outer, l)
			c := &crowd{w: w}
			c.enter(section, l)
			for i := range 20 {
				c.joins(peers[i%len(peers)].NewLock(name))
			}
			w.awaitWaiters(name, 20)
			replicated(t, w.plain, "x")
			requireForgotten(t, s.Replica()) // Redis does not replicate scripts

			failover.fail()
			failover.comeBack()
			require.NoError(t, section.Err(), "the new master has the lock")
			w.leave(section, l)
			require.NoError(t, outer.Err())
			w.requireCount(name, 1)
			c.leave(section)
			w.leave(outer, l)
			c.through(3*w.limit, 21) // a stopped server is only noticed by its silence
			w.requireFree(name)
			s.WaitReplica()
			require.NoError(t, s.Replica().Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// A lock that only the old master had is lost with it.
func TestAHolderIsToldThatThePromotedReplicaLackedItsLock(t *testing.T) {
	w, s := onSentinel(t)
	const ttl = 12 * time.Second
	holder, next := sentinelPeer(w, s, relock.WithTTL(ttl)), sentinelPeer(w, s, relock.WithTTL(ttl))
	replicated(t, w.plain, "x")
	replica := s.Replica()
	cutReplica(t, s.Master(), replica)

	l := holder.NewLock("a")
	section := w.enter(t.Context(), l)
	token := w.draw(section, l)
	c := &crowd{w: w}
	for range 5 {
		c.joins(next.NewLock("a"))
	}
	w.awaitWaiters("a", 5)
	require.Same(t, replica, s.KillMaster())
	mendReplica(t, replica)

	require.Equal(t, relock.LossTaken, w.within(ttl/3+w.limit).lost(section), "not by its deadline: Redis has said so")
	var lost *relock.LostError
	require.ErrorAs(t, l.Unlock(section), &lost)
	require.Equal(t, token, lost.Token)
	c.through(w.limit, 5)
	require.Greater(t, c.token, token, "the new master did not know of the old token")
	s.Replica().Restart()
}

// With WithReplicaAcks either the replica has the lock, or nobody thinks to have it.
func TestReplicaAcksCloseTheGapOfASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	p, q := sentinelPeer(w, s, acked()), sentinelPeer(w, s)
	l := p.NewLock("a")
	replicated(t, w.plain, "x")
	replica := s.Replica()

	cutReplica(t, s.Master(), replica)
	require.ErrorIs(t, w.start(t.Context(), l).failure(), relock.ErrNotReplicated)
	w.requireFree("a")
	mendReplica(t, replica)
	s.WaitReplica()

	replicated(t, w.plain, "x")
	section := w.enter(t.Context(), l)
	s.Master().Kill() // at once
	waiter := w.start(t.Context(), q.NewLock("a"))
	s.Replace(replica)
	redistest.Eventually(t, w.limit, func() bool { return w.plain.Ping(t.Context()).Err() == nil }, "the new master is found")
	w.awaitWaiters("a", 1)
	require.NoError(t, section.Err())
	require.True(t, l.Held(section))
	token := w.draw(section, l)
	w.requireCount("a", 1)
	w.leave(section, l)
	mine := waiter.section()
	require.Greater(t, w.draw(mine, waiter.lock), token)
	w.leave(mine, waiter.lock)

	// No replica is left. Lock says so, until one is back.
	require.ErrorIs(t, w.start(t.Context(), l).failure(), relock.ErrNotReplicated)
	s.Replica().Restart()
	s.WaitReplica()
	replicated(t, w.plain, "x")
	w.leave(w.enter(t.Context(), l), l)
}

// Work goes on all the time, so the failover comes at any moment.
func TestWithReplicaAcksNoTwoAreInThroughASentinelFailover(t *testing.T) {
	w, s := onSentinel(t)
	const ttl, workers = 2 * time.Second, 8
	w.tidyWithin = ttl + w.limit // the lease of a release that was lost
	var peers []*peer
	for range 4 {
		peers = append(peers, sentinelPeer(w, s, relock.WithTTL(ttl), acked()))
	}
	g := &witness{lost: true}
	var done tally
	var errs names
	stop := make(chan struct{})
	var all sync.WaitGroup
	work := func(l *relock.Lock) {
		section, err := l.Lock(context.Background())
		switch {
		case errors.Is(err, relock.ErrNotReplicated):
			done.add("not replicated")
			<-time.After(20 * time.Millisecond)
			return
		case err != nil:
			errs.check(err)
			return
		}
		if g.enter(section, l) {
			<-time.After(3 * time.Millisecond)
			done.add("sections")
		}
		g.leave(section)
		if l.Unlock(section) != nil { // nobody confirms while there is no master
			done.add("unlocks that failed")
		}
	}
	for i := range workers {
		l := peers[i%len(peers)].NewLock("a")
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					work(l)
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
	require.NoError(t, w.within(20*time.Second).call(func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	g.require(t)
	t.Log(&done)
}

// A FailoverClusterClient of go-redis is a cluster client without a cluster. Reads go to replicas.
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
			section := w.enter(t.Context(), way[0])
			waiter := w.start(t.Context(), way[1])
			w.awaitWaiters("a", 1)
			w.leave(section, way[0])
			w.leave(waiter.section(), way[1])
		}
	}
	handOver()
	section := w.enter(t.Context(), rl)
	waiter := w.start(t.Context(), rl)
	w.awaitWaiters("a", 1)
	replicated(t, w.plain, "x")
	s.Failover()
	w.leave(section, rl)
	w.leave(waiter.section(), rl)
	handOver()
}

// Without sentinels, an operator makes the replica the master, and moves the address that clients
// use. Connections stay, so the pub/sub connections of waiters lead to a replica then. A replica
// repeats what the new master publishes, and the new master does not count who hears it there.
func TestAGrantHeardThroughADemotedMasterIsNotBelieved(t *testing.T) {
	const ttl = 5 * time.Second // longer than all takes to be in place
	w, replica := withReplica(t)
	w.tidyWithin = ttl + w.limit
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

	section := w.enter(t.Context(), l)
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
	hears := func(s string) bool { return strings.HasPrefix(s, baseKey("a")+":") }
	heard := redistest.Subscriptions(t, old)
	require.True(t, hears(heard[0]) || hears(heard[len(heard)-1]), "the waiter hears the old master: %q", heard)

	require.NoError(t, section.Err())
	w.leave(section, l)
	// The waiter may get in as late as its lease allows, but not while Redis knows nothing of that.
	mine := waiter.within(ttl + w.limit).section()
	w.requireOwner("a", mine)
	_, err := tl.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)

	// The client has found the new master, so the next hand-over is as prompt as any.
	w.leave(mine, wl)
	section = w.enter(t.Context(), l)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	w.leave(section, l)
	start := time.Now()
	mine = waiter.within(ttl + w.limit).section()
	require.Less(t, time.Since(start), ttl/2+w.lateness(), "not by the end of a lease")
	w.leave(mine, wl)
	w.requireFree("a")
	replicated(t, w.plain, "x")
	w.plain = old // lives longer than the new master, and has all that the new master had
}
