package topology_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Which commands does a user need on a cluster, and what if a cluster lacks some?

// beforeSeven makes the servers of a cluster as deaf to sharded pub/sub as those before Redis 7.
var beforeSeven = []string{
	"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SUNSUBSCRIBE", "", "--rename-command", "SPUBLISH", "",
	"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-pubsub|shardnumsub",
}

func TestAClusterWithoutShardedPubSubIsServedByPlainPubSub(t *testing.T) {
	const ttl = 3 * time.Second
	w := stage.OnCluster(t, beforeSeven...)
	holder, waiting, third := w.Peer(relock.WithTTL(ttl)), w.Peer(relock.WithTTL(ttl)), w.Peer(relock.WithTTL(ttl))
	names := w.OneForEachMaster()
	for _, name := range names {
		for range 2 { // the first waiter finds out
			l := holder.NewLock(name)
			section := w.Enter(t.Context(), l)
			c := &stage.Crowd{Arena: w.Arena}
			c.Enter(section, l)
			for range 5 {
				c.Joins(waiting.NewLock(name))
			}
			w.AwaitWaiters(name, 5)
			start := time.Now()
			c.Leave(section)
			w.Leave(section, l)
			c.Through(w.Limit, 6)
			require.Less(t, time.Since(start), bound.Of(ttl/2)+w.Lateness(), "by messages, not by leases")
		}
	}
	// A client that has never waited, and so has not found out, hands over all the same.
	w.HandOver(third.NewLock(names[0]), waiting.NewLock(names[0]))

	// Plain subscriptions stay when a slot moves. Their messages come over the bus of the cluster,
	// and nobody counts them.
	l, wl := holder.NewLock(names[0]), waiting.NewLock(names[0])
	section := w.Enter(t.Context(), l)
	waiter := w.Start(t.Context(), wl)
	w.AwaitWaiters(names[0], 1)
	w.Cluster.MoveSlot(names[0], w.Cluster.MasterFor(names[1]))
	w.Leave(section, l)
	mine := waiter.Within(ttl + w.Limit).Section()
	w.RequireOwner(names[0], mine)
	_, err := third.NewLock(names[0]).TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	w.Leave(mine, wl)
	section = w.Enter(t.Context(), l)
	waiter = w.Start(t.Context(), wl)
	w.AwaitWaiters(names[0], 1)
	start := time.Now()
	w.Leave(section, l)
	mine = waiter.Section()
	require.Less(t, time.Since(start), bound.Of(ttl/2)+w.Lateness(), "the client has found out where the lock is")
	w.Leave(mine, wl)
}

// aclInCluster is what a Redis user needs in a cluster beside aclCommands: for sharded pub/sub, and
// for go-redis itself.
var aclInCluster = []string{
	"ssubscribe", "sunsubscribe", "spublish", "pubsub|shardnumsub", "cluster|slots", "command", "asking",
}

func TestTheCommandsOfAUserInAClusterAreEnoughAndNoneIsTooMany(t *testing.T) {
	w := stage.OnCluster(t)
	if !w.Cluster.Nodes()[0].AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 there is no sharded pub/sub")
	}
	w.LoadScripts()
	without := func(missing string) []string {
		rules := []string{"~relock:*", "&relock:*"}
		for _, command := range slices.Concat(stage.ACLCommands, aclInCluster) {
			if command != missing {
				rules = append(rules, "+"+command)
			}
		}
		return rules
	}
	// Each user waits for a lock, is granted it, and hands it on, while another lock is waited for.
	tour := func(p *stage.ClusterPeer, tag string) (wrong []string) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		l := p.NewLock("{" + tag + "}")
		section, err := l.Lock(ctx)
		if err != nil {
			return []string{err.Error()}
		}
		waiter := w.Start(ctx, l)
		for w.Waiters(l.Name()) == 0 && waiter.Waits() {
			<-time.After(10 * time.Millisecond)
		}
		var errs stage.Texts
		errs.Check(l.Unlock(section))
		freed := time.Now()
		<-waiter.Done
		errs.Check(waiter.Err)
		if waiter.Err == nil {
			if time.Since(freed) > time.Second+w.Lateness() {
				errs.Add("the message did not come")
			}
			errs.Check(l.Unlock(waiter.Ctx))
		}
		return errs.All()
	}
	require.Empty(t, tour(w.NewUser("whole", without(""), relock.WithTTL(2*time.Second)), "whole"), "the list is enough")
	needed := []string{"ssubscribe", "spublish", "pubsub|shardnumsub", "cluster|slots"}
	wrong := make([][]string, len(needed))
	var tours sync.WaitGroup
	for i, command := range needed {
		name := "no-" + strings.ReplaceAll(command, "|", "-")
		p := w.NewUser(name, without(command), relock.WithTTL(2*time.Second))
		tours.Go(func() { wrong[i] = tour(p, name) })
	}
	tours.Wait()
	for i, command := range needed {
		require.NotEmpty(t, wrong[i], command)
	}

	// A slot that moves is followed with ASKING.
	spread := w.OneForEachMaster()
	whole, half := w.NewUser("whole", without("")), w.NewUser("half", without("asking"))
	l := whole.NewLock(spread[0])
	section := w.Enter(t.Context(), l)
	waiter := w.Start(t.Context(), l)
	w.AwaitWaiters(spread[0], 1)
	w.Draw(section, l)
	move := w.Cluster.BeginMove(spread[0], w.Cluster.MasterFor(spread[1]))
	move.MoveKeys()
	_, err := l.State(t.Context())
	require.NoError(t, err)
	_, err = half.NewLock(spread[0]).State(t.Context())
	require.ErrorContains(t, err, "NOPERM")
	move.Finish()
	w.Leave(section, l)
	w.Leave(waiter.Section(), l)
	require.NoError(t, w.All.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.FlushAll(ctx).Err() // what users who may not do everything have left
	}))
}
