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
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Which commands does a user need on a cluster, and what if a cluster lacks some?

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
