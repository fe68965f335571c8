package topology_test

import (
	"context"
	"net"
	"strings"
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
