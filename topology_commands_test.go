package relock_test

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
	"github.com/go-relock/relock/internal/redistest"
)

// Which commands does a user need on a cluster, and what if a cluster lacks some?

// beforeSeven makes the servers of a cluster as deaf to sharded pub/sub as those before Redis 7.
var beforeSeven = []string{
	"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SUNSUBSCRIBE", "", "--rename-command", "SPUBLISH", "",
	"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-pubsub|shardnumsub",
}

func TestAClusterWithoutShardedPubSubIsServedByPlainPubSub(t *testing.T) {
	const ttl = 3 * time.Second
	w := onCluster(t, beforeSeven...)
	holder, waiting, third := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
	names := w.oneForEachMaster()
	for _, name := range names {
		for range 2 { // the first waiter finds out
			l := holder.NewLock(name)
			section := w.enter(t.Context(), l)
			c := &crowd{w: w.arena}
			c.enter(section, l)
			for range 5 {
				c.joins(waiting.NewLock(name))
			}
			w.awaitWaiters(name, 5)
			start := time.Now()
			c.leave(section)
			w.leave(section, l)
			c.through(w.limit, 6)
			require.Less(t, time.Since(start), ttl/2+w.lateness(), "by messages, not by leases")
		}
	}
	// A client that has never waited, and so has not found out, hands over all the same.
	w.handOver(third.NewLock(names[0]), waiting.NewLock(names[0]))

	// Plain subscriptions stay when a slot moves. Their messages come over the bus of the cluster, and
	// nobody counts them.
	l, wl := holder.NewLock(names[0]), waiting.NewLock(names[0])
	section := w.enter(t.Context(), l)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters(names[0], 1)
	w.cluster.MoveSlot(names[0], w.cluster.MasterFor(names[1]))
	w.leave(section, l)
	mine := waiter.within(ttl + w.limit).section()
	w.requireOwner(names[0], mine)
	_, err := third.NewLock(names[0]).TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	w.leave(mine, wl)
	section = w.enter(t.Context(), l)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters(names[0], 1)
	start := time.Now()
	w.leave(section, l)
	mine = waiter.section()
	require.Less(t, time.Since(start), ttl/2+w.lateness(), "the client has found out where the lock is")
	w.leave(mine, wl)
}

// aclInCluster is what a Redis user needs in a cluster beside aclCommands: for sharded pub/sub, and
// for go-redis itself.
var aclInCluster = []string{
	"ssubscribe", "sunsubscribe", "spublish", "pubsub|shardnumsub", "cluster|slots", "command", "asking",
}

// user makes a user on every node, with a client of its own.
func (w *field) user(name string, rules []string, options ...relock.Option) *clusterPeer {
	w.t.Helper()
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + name}
	for _, r := range rules {
		args = append(args, r)
	}
	for _, server := range w.cluster.Nodes() {
		require.NoError(w.t, server.Client().Do(context.Background(), args...).Err())
	}
	return w.peerOn(func(o *redis.ClusterOptions) { o.Username, o.Password, o.ClientName = name, name, "" }, options...)
}

func TestTheCommandsOfAUserInAClusterAreEnoughAndNoneIsTooMany(t *testing.T) {
	w := onCluster(t)
	if !w.cluster.Nodes()[0].AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 there is no sharded pub/sub")
	}
	w.loadScripts()
	without := func(missing string) []string {
		rules := []string{"~relock:*", "&relock:*"}
		for _, command := range slices.Concat(aclCommands, aclInCluster) {
			if command != missing {
				rules = append(rules, "+"+command)
			}
		}
		return rules
	}
	// Each user waits for a lock, is granted it, and hands it on, while another lock is waited for.
	tour := func(p *clusterPeer, tag string) (wrong []string) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		l := p.NewLock("{" + tag + "}")
		section, err := l.Lock(ctx)
		if err != nil {
			return []string{err.Error()}
		}
		waiter := w.start(ctx, l)
		for w.waiters(l.Name()) == 0 && waiter.waits() {
			<-time.After(10 * time.Millisecond)
		}
		var errs names
		errs.check(l.Unlock(section))
		freed := time.Now()
		<-waiter.done
		errs.check(waiter.err)
		if waiter.err == nil {
			if time.Since(freed) > time.Second+w.lateness() {
				errs.add("the message did not come")
			}
			errs.check(l.Unlock(waiter.ctx))
		}
		return errs.all()
	}
	require.Empty(t, tour(w.user("whole", without(""), relock.WithTTL(2*time.Second)), "whole"), "the list is enough")
	needed := []string{"ssubscribe", "spublish", "pubsub|shardnumsub", "cluster|slots"}
	wrong := make([][]string, len(needed))
	var tours sync.WaitGroup
	for i, command := range needed {
		name := "no-" + strings.ReplaceAll(command, "|", "-")
		p := w.user(name, without(command), relock.WithTTL(2*time.Second))
		tours.Go(func() { wrong[i] = tour(p, name) })
	}
	tours.Wait()
	for i, command := range needed {
		require.NotEmpty(t, wrong[i], command)
	}

	// A slot that moves is followed with ASKING.
	spread := w.oneForEachMaster()
	whole, half := w.user("whole", without("")), w.user("half", without("asking"))
	l := whole.NewLock(spread[0])
	section := w.enter(t.Context(), l)
	waiter := w.start(t.Context(), l)
	w.awaitWaiters(spread[0], 1)
	w.draw(section, l)
	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	move.MoveKeys()
	_, err := l.State(t.Context())
	require.NoError(t, err)
	_, err = half.NewLock(spread[0]).State(t.Context())
	require.ErrorContains(t, err, "NOPERM")
	move.Finish()
	w.leave(section, l)
	w.leave(waiter.section(), l)
	require.NoError(t, w.all.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.FlushAll(ctx).Err() // what users who may not do everything have left
	}))
}
