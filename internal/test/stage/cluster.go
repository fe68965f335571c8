package stage

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
	"github.com/go-relock/relock/internal/test/redistest"
)

// A ClusterArena is an arena on a cluster.
type ClusterArena struct {
	*Arena
	Cluster *redistest.Cluster
	All     *redis.ClusterClient // has no faults
}

// OnCluster is a cluster of three masters, with a replica each.
func OnCluster(t *testing.T, args ...string) *ClusterArena {
	t.Helper()
	return OnClusterOf(t, func(c *redistest.ClusterConfig) { c.Args = args })
}

// OnClusterOf is a cluster as config says.
func OnClusterOf(t *testing.T, config func(*redistest.ClusterConfig)) *ClusterArena {
	t.Helper()
	w := new(ClusterArena)
	w.Arena = surroundings(t, func() redis.UniversalClient { return w.All })
	w.Cluster = redistest.StartCluster(t, config)
	// The view from outside reads the map of the cluster all the time.
	w.All = w.Cluster.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 100 * time.Millisecond })
	t.Cleanup(func() {
		if !t.Failed() {
			w.requireTidy()
		}
	})
	return w
}

// In returns the arena for a subtest.
func (w *ClusterArena) In(t *testing.T) *ClusterArena {
	t.Helper()
	sub := *w
	sub.Arena = w.Arena.In(t)
	return &sub
}

// requireTidy waits until nothing is left on any server that a lock in use would leave.
func (w *ClusterArena) requireTidy() {
	w.T.Helper()
	var left []string
	redistest.Eventually(w.T, w.TidyWithin, func() bool {
		left = slices.DeleteFunc(redistest.Keys(w.T, w.All), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.HasPrefix(key, "redisson_lock_token:")
		})
		left = append(left, redistest.Subscriptions(w.T, w.All)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens; keys or subscriptions left: %q", &left)
}

// A ClusterPeer is one process as the cluster sees it.
type ClusterPeer struct {
	*relock.Client
	RDB    *redis.ClusterClient
	Faults *redistest.Faults
	name   string // of its connections
}

var clusterPeers atomic.Int64

// Peer makes a client that reads the map of the cluster when go-redis thinks best.
func (w *ClusterArena) Peer(options ...relock.Option) *ClusterPeer {
	w.T.Helper()
	return w.PeerOn(func(*redis.ClusterOptions) {}, options...)
}

// PeerOn is Peer with other go-redis options.
func (w *ClusterArena) PeerOn(mod func(*redis.ClusterOptions), options ...relock.Option) *ClusterPeer {
	w.T.Helper()
	p := &ClusterPeer{Faults: redistest.NewFaults(), name: fmt.Sprint("peer", clusterPeers.Add(1))}
	w.T.Cleanup(p.Faults.Close)
	p.RDB = w.Cluster.Client(func(o *redis.ClusterOptions) {
		o.Dialer = p.Faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout = OnWire, OnWire, OnWire
		o.DialerRetries = 1
		o.ClientName = p.name
		mod(o)
	})
	var err error
	p.Client, err = relock.New(p.RDB, options...)
	require.NoError(w.T, err)
	w.Closing(p.Client, p.Faults)
	return p
}

// Counter counts the calls of a script that p sends from now on.
func (w *ClusterArena) Counter(p *ClusterPeer, script string) func() int {
	w.T.Helper()
	return w.Arena.Counter(&Peer{Faults: p.Faults}, script)
}

// LoadScripts makes EVALSHA work at once everywhere, so that every call is one command.
func (w *ClusterArena) LoadScripts() {
	w.T.Helper()
	require.NoError(w.T, w.All.ForEachMaster(w.T.Context(), func(ctx context.Context, node *redis.Client) error {
		for _, name := range ScriptNames {
			if err := node.ScriptLoad(ctx, LuaSource(w.T, name)).Err(); err != nil {
				return err
			}
		}
		return nil
	}))
}

// OneForEachMaster are lock names, each with another of the three masters.
func (w *ClusterArena) OneForEachMaster() []string {
	w.T.Helper()
	var names []string
	var masters []*redistest.Server
	for i := 0; len(names) < 3; i++ {
		name := fmt.Sprint("spread", i)
		if master := w.Cluster.MasterFor(name); !slices.Contains(masters, master) {
			names, masters = append(names, name), append(masters, master)
		}
	}
	return names
}

// Masters are the three masters of now.
func (w *ClusterArena) Masters() []*redistest.Server {
	w.T.Helper()
	var masters []*redistest.Server
	for _, name := range w.OneForEachMaster() {
		masters = append(masters, w.Cluster.MasterFor(name))
	}
	return masters
}

// Pubsubs is how many pub/sub connections p has at a server.
func (w *ClusterArena) Pubsubs(server *redistest.Server, p *ClusterPeer) int {
	w.T.Helper()
	list, err := server.Client().Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(w.T, err)
	return strings.Count(list, " name="+p.name+" ")
}

// ShardChannels is how many sharded channels are subscribed to at a server.
func ShardChannels(t testing.TB, server *redistest.Server) int {
	t.Helper()
	if !server.AtLeast(7, 0) {
		return 0
	}
	channels, err := server.Client().PubSubShardChannels(context.Background(), "*").Result()
	require.NoError(t, err)
	return len(channels)
}

// HandOver locks with l, waits with next, and hands the lock over.
func (w *ClusterArena) HandOver(l, next *relock.Lock) {
	w.T.Helper()
	section := w.Enter(w.T.Context(), l)
	waiter := w.Start(w.T.Context(), next)
	w.AwaitWaiters(l.Name(), 1)
	w.Leave(section, l)
	mine := waiter.Section()
	w.RequireOwner(l.Name(), mine)
	w.Leave(mine, next)
}

// NewUser makes a user on every node, with a client of its own.
func (w *ClusterArena) NewUser(name string, rules []string, options ...relock.Option) *ClusterPeer {
	w.T.Helper()
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + name}
	for _, r := range rules {
		args = append(args, r)
	}
	for _, server := range w.Cluster.Nodes() {
		require.NoError(w.T, server.Client().Do(context.Background(), args...).Err())
	}
	return w.PeerOn(func(o *redis.ClusterOptions) { o.Username, o.Password, o.ClientName = name, name, "" }, options...)
}
