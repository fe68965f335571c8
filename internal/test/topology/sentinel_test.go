package topology_test

import (
	"context"
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
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
)

// Who is in after a failover by Sentinel?

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
	redistest.Eventually(t, 3*stage.Limit, func() bool {
		info, err := r.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:down")
	}, "the replica has lost its master")
}

// mendReplica lets a replica in again.
func mendReplica(t testing.TB, replica *redistest.Server) {
	t.Helper()
	require.NoError(t, replica.Client().ConfigSet(context.Background(), "masterauth", "").Err())
}

func TestWaitersGetInOneByOneAfterASentinelFailover(t *testing.T) {
	w, s := stage.OnSentinel(t)
	var peers []*stage.Peer
	for range 4 {
		peers = append(peers, stage.SentinelPeer(w, s, relock.WithTTL(12*time.Second)))
	}
	holder := stage.SentinelPeer(w, s, relock.WithTTL(12*time.Second))
	for way, failover := range stage.Failovers(s) {
		t.Run(way, func(t *testing.T) {
			const name = "a"
			w := w.In(t)
			l := holder.NewLock(name)
			outer := w.Enter(t.Context(), l)
			section := w.Enter(outer, l)
			c := &stage.Crowd{Arena: w}
			c.Enter(section, l)
			for i := range 20 {
				c.Joins(peers[i%len(peers)].NewLock(name))
			}
			w.AwaitWaiters(name, 20)
			stage.Replicated(t, w.Plain, "x")
			stage.RequireForgotten(t, s.Replica()) // Redis does not replicate scripts

			failover.Fail()
			failover.ComeBack()
			require.NoError(t, section.Err(), "the new master has the lock")
			w.Leave(section, l)
			require.NoError(t, outer.Err())
			w.RequireCount(name, 1)
			c.Leave(section)
			w.Leave(outer, l)
			c.Through(3*w.Limit, 21) // a stopped server is only noticed by its silence
			w.RequireFree(name)
			s.WaitReplica()
			require.NoError(t, s.Replica().Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// Sentinels that come back without their files say that they know no master, until they are told.
func TestSentinelsThatForgetTheMasterAreWaitedFor(t *testing.T) {
	w, s := stage.OnSentinel(t)
	master := s.Master()
	tries := make(chan string, 1)
	report := relock.WithHooks(event.Hooks{Retried: func(e event.Retried) {
		if e.Err != nil && strings.Contains(e.Err.Error(), "do not know a master") {
			select {
			case tries <- e.Script:
			default:
			}
		}
	}})
	p := stage.SentinelPeer(w, s, report)
	w.Leave(w.Enter(t.Context(), p.NewLock("a")), p.NewLock("a"))

	s.Forget()
	require.NoError(t, master.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err())
	waiter := w.Start(t.Context(), p.NewLock("a"))
	led := make(chan error, 1)
	go func() {
		led <- leader.Run(t.Context(), p.NewLock("leader"), func(context.Context) error { return nil })
	}()
	require.Equal(t, "acquire", <-tries)
	_, err := p.NewLock("b").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrUnavailable)
	require.ErrorContains(t, err, "do not know a master")
	require.NotContains(t, err.Error(), "unexpected reply")
	require.True(t, waiter.Waits())
	require.Empty(t, led, "the candidacy goes on")
	s.Remember(master)
	waiter.Leave()
	require.NoError(t, <-led)
	w.RequireFree("a")
}

func TestCheckNamesAMasterThatNoSentinelKnowsInOneLine(t *testing.T) {
	_, s := stage.OnSentinel(t)
	rdb := s.Client(func(o *redis.FailoverOptions) { o.MasterName = "another" })
	c, err := relock.New(rdb)
	require.NoError(t, err)
	defer c.Close()
	err = c.Check(t.Context())
	require.ErrorIs(t, err, relock.ErrUnavailable)
	require.ErrorContains(t, err, "the sentinels do not know a master of this name")
	require.NotContains(t, err.Error(), "\n")
}

// A lock that only the old master had is lost with it.
func TestAHolderIsToldThatThePromotedReplicaLackedItsLock(t *testing.T) {
	w, s := stage.OnSentinel(t)
	const ttl = 12 * time.Second
	holder, next := stage.SentinelPeer(w, s, relock.WithTTL(ttl)), stage.SentinelPeer(w, s, relock.WithTTL(ttl))
	stage.Replicated(t, w.Plain, "x")
	replica := s.Replica()
	cutReplica(t, s.Master(), replica)

	l := holder.NewLock("a")
	section := w.Enter(t.Context(), l)
	token := w.Draw(section, l)
	c := &stage.Crowd{Arena: w}
	for range 5 {
		c.Joins(next.NewLock("a"))
	}
	w.AwaitWaiters("a", 5)
	require.Same(t, replica, s.KillMaster())
	mendReplica(t, replica)

	require.Equal(t, event.LossTaken, w.Within(ttl/3+w.Limit).Lost(section), "not by its deadline: Redis has said so")
	var lost *relock.LostError
	require.ErrorAs(t, l.Unlock(section), &lost)
	require.Equal(t, token, lost.Token)
	c.Through(w.Limit, 5)
	require.Greater(t, c.Token, token, "the new master did not know of the old token")
	s.Replica().Restart()
}

// With WithReplicaAcks either the replica has the lock, or nobody thinks to have it.
func TestReplicaAcksCloseTheGapOfASentinelFailover(t *testing.T) {
	w, s := stage.OnSentinel(t)
	p, q := stage.SentinelPeer(w, s, stage.Acked()), stage.SentinelPeer(w, s)
	l := p.NewLock("a")
	stage.Replicated(t, w.Plain, "x")
	replica := s.Replica()

	cutReplica(t, s.Master(), replica)
	require.ErrorIs(t, w.Start(t.Context(), l).Failure(), relock.ErrNotReplicated)
	w.RequireFree("a")
	mendReplica(t, replica)
	s.WaitReplica()

	stage.Replicated(t, w.Plain, "x")
	section := w.Enter(t.Context(), l)
	s.Master().Kill() // at once
	waiter := w.Start(t.Context(), q.NewLock("a"))
	s.Replace(replica)
	redistest.Eventually(t, w.Limit, func() bool { return w.Plain.Ping(t.Context()).Err() == nil }, "the new master is found")
	w.AwaitWaiters("a", 1)
	require.NoError(t, section.Err())
	require.True(t, l.Held(section))
	token := w.Draw(section, l)
	w.RequireCount("a", 1)
	w.Leave(section, l)
	mine := waiter.Section()
	require.Greater(t, w.Draw(mine, waiter.Lock), token)
	w.Leave(mine, waiter.Lock)

	// No replica is left. Lock says so, until one is back.
	require.ErrorIs(t, w.Start(t.Context(), l).Failure(), relock.ErrNotReplicated)
	s.Replica().Restart()
	s.WaitReplica()
	stage.Replicated(t, w.Plain, "x")
	w.Leave(w.Enter(t.Context(), l), l)
}

// Work goes on all the time, so the failover comes at any moment.
func TestWithReplicaAcksNoTwoAreInThroughASentinelFailover(t *testing.T) {
	w, s := stage.OnSentinel(t)
	const ttl, workers = 2 * time.Second, 8
	w.TidyWithin = ttl + w.Limit // the lease of a release that was lost
	var peers []*stage.Peer
	for range 4 {
		peers = append(peers, stage.SentinelPeer(w, s, relock.WithTTL(ttl), stage.Acked()))
	}
	g := &stage.Witness{Lost: true}
	var done stage.Tally
	var errs stage.Texts
	stop := make(chan struct{})
	var all sync.WaitGroup
	work := func(l *relock.Lock) {
		section, err := l.Lock(context.Background())
		switch {
		case errors.Is(err, relock.ErrNotReplicated):
			done.Add("not replicated")
			<-time.After(20 * time.Millisecond)
			return
		case err != nil:
			errs.Check(err)
			return
		}
		if g.Enter(section, l) {
			<-time.After(3 * time.Millisecond)
			done.Add("sections")
		}
		g.Leave(section)
		if l.Unlock(section) != nil { // nobody confirms while there is no master
			done.Add("unlocks that failed")
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
		want := done.Of("sections") + more
		redistest.Eventually(t, 30*time.Second, func() bool { return done.Of("sections") >= want }, "work goes on")
	}
	sections(50)
	s.KillMaster()
	s.Replica().Restart()
	s.WaitReplica()
	sections(50)
	close(stop)
	require.NoError(t, w.Within(20*time.Second).Call(func() error { all.Wait(); return nil }))
	require.Empty(t, errs.All())
	g.Require(t)
	t.Log(&done)
}

// A FailoverClusterClient of go-redis is a cluster client without a cluster. Reads go to replicas.
func TestBothKindsOfSentinelClientsShareTheirLocks(t *testing.T) {
	w, s := stage.OnSentinel(t)
	plain := stage.SentinelPeer(w, s)
	rdb := redis.NewFailoverClusterClient(&redis.FailoverOptions{
		MasterName: s.MasterName(), SentinelAddrs: s.Addrs(), RouteRandomly: true,
		ReadTimeout: stage.OnWire, WriteTimeout: stage.OnWire, DialTimeout: stage.OnWire, DialerRetries: 1,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	reader, err := relock.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })
	l, rl := plain.NewLock("a"), reader.NewLock("a")

	handOver := func() {
		t.Helper()
		for _, way := range [][2]*relock.Lock{{l, rl}, {rl, l}, {rl, rl}} {
			section := w.Enter(t.Context(), way[0])
			waiter := w.Start(t.Context(), way[1])
			w.AwaitWaiters("a", 1)
			w.Leave(section, way[0])
			w.Leave(waiter.Section(), way[1])
		}
	}
	handOver()
	section := w.Enter(t.Context(), rl)
	waiter := w.Start(t.Context(), rl)
	w.AwaitWaiters("a", 1)
	stage.Replicated(t, w.Plain, "x")
	s.Failover()
	w.Leave(section, rl)
	w.Leave(waiter.Section(), rl)
	handOver()
}

// Without sentinels, an operator makes the replica the master, and moves the address that clients
// use. Connections stay, so the pub/sub connections of waiters lead to a replica then. A replica
// repeats what the new master publishes, and the new master does not count who hears it there.
func TestAGrantHeardThroughADemotedMasterIsNotBelieved(t *testing.T) {
	const ttl = 5 * time.Second // longer than all takes to be in place
	w, replica := stage.WithReplica(t)
	w.TidyWithin = ttl + w.Limit
	var address atomic.Value
	address.Store(w.Server.Addr())
	follow := func(o *redis.Options) {
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, address.Load().(string))
		}
	}
	owner, waiting, third := w.PeerOn(follow, relock.WithTTL(ttl)), w.PeerOn(follow, relock.WithTTL(ttl)), w.PeerOn(follow)
	l, wl, tl := owner.NewLock("a"), waiting.NewLock("a"), third.NewLock("a")

	section := w.Enter(t.Context(), l)
	waiter := w.Start(t.Context(), wl)
	w.AwaitWaiters("a", 1)
	stage.Replicated(t, w.Plain, "x")
	old := w.Plain
	w.Plain = replica.Client()
	require.NoError(t, w.Plain.ReplicaOf(t.Context(), "NO", "ONE").Err())
	address.Store(replica.Addr())
	host, port, _ := strings.Cut(replica.Addr(), ":")
	require.NoError(t, old.ReplicaOf(t.Context(), host, port).Err())
	stage.Replicated(t, w.Plain, "x")
	hears := func(s string) bool { return strings.HasPrefix(s, stage.BaseKey("a")+":") }
	heard := redistest.Subscriptions(t, old)
	require.True(t, hears(heard[0]) || hears(heard[len(heard)-1]), "the waiter hears the old master: %q", heard)

	require.NoError(t, section.Err())
	w.Leave(section, l)
	// The waiter may get in as late as its lease allows, but not while Redis knows nothing of that.
	mine := waiter.Within(ttl + w.Limit).Section()
	w.RequireOwner("a", mine)
	_, err := tl.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)

	// The client has found the new master, so the next hand-over is as prompt as any.
	w.Leave(mine, wl)
	section = w.Enter(t.Context(), l)
	waiter = w.Start(t.Context(), wl)
	w.AwaitWaiters("a", 1)
	w.Leave(section, l)
	start := time.Now()
	mine = waiter.Within(ttl + w.Limit).Section()
	require.Less(t, time.Since(start), bound.Of(ttl/2)+w.Lateness(), "not by the end of a lease")
	w.Leave(mine, wl)
	w.RequireFree("a")
	stage.Replicated(t, w.Plain, "x")
	w.Plain = old // lives longer than the new master, and has all that the new master had
}
