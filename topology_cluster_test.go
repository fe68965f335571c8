package relock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// How does a test play on a cluster? TestLocksInOtherSetupsKeepThePromises runs the whole suite
// there. The chapters are topology_connections_test.go, topology_slots_test.go,
// topology_failover_test.go and topology_commands_test.go.

// field is an arena on a cluster.
type field struct {
	*arena
	cluster *redistest.Cluster
	all     *redis.ClusterClient // has no faults
}

// onCluster is a cluster of three masters, with a replica each.
func onCluster(t *testing.T, args ...string) *field {
	t.Helper()
	w := new(field)
	w.arena = surroundings(t, func() redis.UniversalClient { return w.all })
	w.cluster = redistest.StartCluster(t, func(c *redistest.ClusterConfig) { c.Args = args })
	// The view from outside reads the map of the cluster all the time.
	w.all = w.cluster.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond })
	t.Cleanup(func() {
		if !t.Failed() {
			w.requireTidy()
		}
	})
	return w
}

func (w *field) in(t *testing.T) *field {
	t.Helper()
	sub := *w
	sub.arena = w.arena.in(t)
	return &sub
}

func (w *field) requireTidy() {
	w.t.Helper()
	var left []string
	redistest.Eventually(w.t, w.tidyWithin, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.t, w.all), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.HasPrefix(key, "redisson_lock_token:")
		})
		left = append(left, redistest.Subscriptions(w.t, w.all)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens; keys or subscriptions left: %q", &left)
}

// clusterPeer is one process as the cluster sees it.
type clusterPeer struct {
	*relock.Client
	rdb    *redis.ClusterClient
	faults *redistest.Faults
	name   string // of its connections
}

var clusterPeers atomic.Int64

// peer makes a client that reads the map of the cluster when go-redis thinks best.
func (w *field) peer(options ...relock.Option) *clusterPeer {
	w.t.Helper()
	return w.peerOn(func(*redis.ClusterOptions) {}, options...)
}

func (w *field) peerOn(mod func(*redis.ClusterOptions), options ...relock.Option) *clusterPeer {
	w.t.Helper()
	p := &clusterPeer{faults: redistest.NewFaults(), name: fmt.Sprint("peer", clusterPeers.Add(1))}
	w.t.Cleanup(p.faults.Close)
	p.rdb = w.cluster.Client(func(o *redis.ClusterOptions) {
		o.Dialer = p.faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout = onWire, onWire, onWire
		o.DialerRetries = 1
		o.ClientName = p.name
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.rdb, options...)
	require.NoError(w.t, err)
	w.closing(p.Client, p.faults)
	return p
}

// counter counts the calls of a script that p sends from now on.
func (w *field) counter(p *clusterPeer, script string) func() int {
	w.t.Helper()
	return w.arena.counter(&peer{faults: p.faults}, script)
}

// loadScripts makes EVALSHA work at once everywhere, so that every call is one command.
func (w *field) loadScripts() {
	w.t.Helper()
	require.NoError(w.t, w.all.ForEachMaster(w.t.Context(), func(ctx context.Context, node *redis.Client) error {
		for _, name := range scriptNames {
			if err := node.ScriptLoad(ctx, luaSource(w.t, name)).Err(); err != nil {
				return err
			}
		}
		return nil
	}))
}

// oneForEachMaster are lock names, each with another of the three masters.
func (w *field) oneForEachMaster() []string {
	w.t.Helper()
	var names []string
	var masters []*redistest.Server
	for i := 0; len(names) < 3; i++ {
		name := fmt.Sprint("spread", i)
		if master := w.cluster.MasterFor(name); !slices.Contains(masters, master) {
			names, masters = append(names, name), append(masters, master)
		}
	}
	return names
}

// masters are the three masters of now.
func (w *field) masters() []*redistest.Server {
	w.t.Helper()
	var masters []*redistest.Server
	for _, name := range w.oneForEachMaster() {
		masters = append(masters, w.cluster.MasterFor(name))
	}
	return masters
}

// pubsubs is how many pub/sub connections p has at a server.
func (w *field) pubsubs(server *redistest.Server, p *clusterPeer) int {
	w.t.Helper()
	list, err := server.Client().Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(w.t, err)
	return strings.Count(list, " name="+p.name+" ")
}

// shardChannels is how many sharded channels are subscribed to at a server.
func shardChannels(t testing.TB, server *redistest.Server) int {
	t.Helper()
	if !server.AtLeast(7, 0) {
		return 0
	}
	channels, err := server.Client().PubSubShardChannels(context.Background(), "*").Result()
	require.NoError(t, err)
	return len(channels)
}

// handOver locks with l, waits with next, and hands the lock over.
func (w *field) handOver(l, next *relock.Lock) {
	w.t.Helper()
	section := w.enter(w.t.Context(), l)
	waiter := w.start(w.t.Context(), next)
	w.awaitWaiters(l.Name(), 1)
	w.leave(section, l)
	mine := waiter.section()
	w.requireOwner(l.Name(), mine)
	w.leave(mine, next)
}
