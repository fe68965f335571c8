package subs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// field is a rig on a cluster of three masters with a replica each.
type field struct {
	*rig
	cluster *redistest.Cluster
	all     *redis.ClusterClient // without faults, and with a fresh map of the cluster
	masters []string             // a key on each of the masters of the start
	reads   atomic.Int64         // of the map of the cluster
}

func newField(t *testing.T, args ...string) *field {
	t.Helper()
	redistest.NoGoroutineLeft(t)
	f := &field{cluster: redistest.StartCluster(t, func(c *redistest.ClusterConfig) { c.Args = args })}
	f.rig = &rig{t: t, faults: redistest.NewFaults()}
	t.Cleanup(f.faults.Close)
	f.all = f.cluster.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = 50 * time.Millisecond })
	rdb := f.cluster.Client(func(o *redis.ClusterOptions) {
		o.Dialer = f.faults.Dialer(nil)
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.DialerRetries = time.Second, time.Second, time.Second, 1
	})
	var mu sync.Mutex
	var last time.Time
	f.place(func(ctx context.Context, key string, anew bool) (string, redis.UniversalClient, error) {
		mu.Lock()
		if anew && time.Since(last) > 200*time.Millisecond { // many channels share an answer
			f.reads.Add(1)
			_ = rdb.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
			last = time.Now()
		}
		mu.Unlock()
		master, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			return "", nil, err
		}
		return master.Options().Addr, master, nil
	})
	f.sharded.Store(true)
	f.start()
	var servers []*redistest.Server
	for i := 0; len(servers) < 3; i++ {
		key := fmt.Sprint("spread", i)
		if master := f.cluster.MasterFor(key); !slices.Contains(servers, master) {
			servers, f.masters = append(servers, master), append(f.masters, key)
		}
	}
	return f
}

// slotted is a channel in the slot of that key.
func slotted(key string, i int) Topic {
	base := fmt.Sprintf("{%s}:%d", key, i)
	return Topic{Channel: base + ":me"}
}

func (f *field) listen(topic Topic, id string) *Listener {
	f.t.Helper()
	l, err := f.try(topic, id)
	require.NoError(f.t, err)
	return l
}

// hears sends messages to a listener until one arrives: the map of the sender may be behind.
func (f *field) hears(l *Listener) {
	f.t.Helper()
	f.eventually(func() bool {
		publish := f.all.SPublish
		if !l.sub.sharded {
			publish = f.all.Publish
		}
		_ = publish(context.Background(), l.sub.Channel, l.id).Err()
		select {
		case n := <-l.C():
			if n == (Note{}) { // its channel is confirmed anew
				return false
			}
			require.Equal(f.t, Note{Message: true, Payload: l.id}, n)
			return true
		case <-time.After(100 * time.Millisecond):
			return false
		}
	}, "a message arrives")
}

// channels is how many sharded channels are subscribed at a server.
func (f *field) channels(server *redistest.Server) int {
	f.t.Helper()
	channels, err := server.Client().PubSubShardChannels(context.Background(), "*").Result()
	require.NoError(f.t, err)
	return len(channels)
}

func TestSubscriptionsFollowASlotThatMoves(t *testing.T) {
	f := newField(t)
	key, from, to := f.masters[0], f.cluster.MasterFor(f.masters[0]), f.cluster.MasterFor(f.masters[1])
	there := f.listen(slotted(f.masters[1], 0), "1")
	moving := f.listen(slotted(key, 0), "1")
	twin, err := f.try(Topic{Channel: moving.sub.Channel, Plain: true}, "1")
	require.NoError(t, err)
	other := key
	for i := 0; f.cluster.MasterFor(other) != from || f.cluster.Slot(other) == f.cluster.Slot(key); i++ {
		other = fmt.Sprint("other", i)
	}
	staying := f.listen(slotted(other, 0), "1")
	require.Equal(t, 2, f.channels(from))

	f.cluster.MoveSlot(key, to)
	for _, l := range []*Listener{moving, twin, staying} {
		f.confirmed(l)
	}
	require.Empty(t, there.C(), "the connection of another node is left alone")
	for _, l := range []*Listener{moving, staying, there} {
		f.hears(l)
	}
	require.Equal(t, Note{Message: true, Payload: twin.id}, f.next(twin), "a message on the channel is one for both topics")
	require.Equal(t, 1, f.channels(from))
	require.Equal(t, 2, f.channels(to))
	plain, err := to.Client().PubSubChannels(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Equal(t, []string{twin.sub.Channel}, plain)
	require.Equal(t, []loss{{from.Addr(), 1, errUnasked}}, f.losses())
	f.eventually(func() bool { return len(f.backs()) == 2 }, "both nodes are back")

	// A channel without listeners ends with its slot.
	moving.Close()
	twin.Close()
	f.cluster.MoveSlot(key, from)
	f.eventually(func() bool { return f.channels(from) == 1 && f.channels(to) == 1 }, "it is gone")
}

func TestSubscriptionsFollowAMasterThatDies(t *testing.T) {
	f := newField(t)
	const channels = 200
	var listeners []*Listener
	for i := range channels {
		listeners = append(listeners, f.listen(slotted("a", i), "1"))
	}
	old := f.cluster.MasterFor("a")
	f.faults.Reset()
	f.reads.Store(0)
	master := f.cluster.KillMasterFor("a")
	f.eventually(func() bool { return f.channels(master) == channels }, "the new master has them all")
	for _, l := range listeners {
		f.confirmed(l)
	}
	f.hears(listeners[0])
	require.Less(t, f.reads.Load(), int64(60), "of the map")
	require.Less(t, f.faults.Stats().Dials, 300)
	f.eventually(func() bool { return len(f.backs()) > 0 }, "the outage is over")
	require.Equal(t, []string{master.Addr()}, f.backs())
	_, pubsub := f.faults.Conns()
	require.Equal(t, 1, pubsub)
	old.Restart()
	f.cluster.WaitReplica("a", old)
}

func TestASlotThatNobodyServesCausesNoFlood(t *testing.T) {
	f := newField(t)
	const channels = 20
	var listeners []*Listener
	for i := range channels {
		listeners = append(listeners, f.listen(slotted("a", i), "1"))
	}
	master, slot := f.cluster.MasterFor("a"), f.cluster.Slot("a")
	f.faults.Reset()
	for _, node := range f.cluster.Nodes() {
		_ = node.Client().Do(t.Context(), "CLUSTER", "DELSLOTS", slot).Err() // replicas have none
	}
	pause(2 * time.Second)
	asked := f.faults.Commands("SSUBSCRIBE")
	require.GreaterOrEqual(t, asked, channels, "it is asked for again")
	require.LessOrEqual(t, asked, 20*channels, "no hot loop")
	for _, l := range listeners { // nodes forget the slot one after the other, and one may have confirmed meanwhile
		select {
		case n := <-l.C():
			require.NoError(t, n.Err)
		default:
		}
	}
	require.NoError(t, master.Client().Do(t.Context(), "CLUSTER", "ADDSLOTS", slot).Err())
	for _, l := range listeners {
		f.confirmed(l)
	}
	f.hears(listeners[0])
}

func TestAClusterBeforeRedisSevenHasPlainPubSub(t *testing.T) {
	f := newField(t, "--rename-command", "SSUBSCRIBE", "", "--rename-command", "SUNSUBSCRIBE", "")
	var listeners []*Listener
	for _, key := range f.masters {
		listeners = append(listeners, f.listen(slotted(key, 0), "1"))
	}
	require.False(t, f.sharded.Load())
	require.Equal(t, 1, f.faults.Commands("SSUBSCRIBE"))
	from, to := f.cluster.MasterFor(f.masters[0]), f.cluster.MasterFor(f.masters[1])
	f.cluster.MoveSlot(f.masters[0], to)
	f.hears(listeners[0])  // by way of the bus between the nodes
	listeners[0].Suspect() // as nobody counts a listener on another node
	f.confirmed(listeners[0])
	f.eventually(func() bool {
		here, err := to.Client().PubSubNumSub(t.Context(), listeners[0].sub.Channel).Result()
		require.NoError(t, err)
		there, err := from.Client().PubSubNumSub(t.Context(), listeners[0].sub.Channel).Result()
		require.NoError(t, err)
		return here[listeners[0].sub.Channel] == 1 && there[listeners[0].sub.Channel] == 0
	}, "it is where its key is")
	f.hears(listeners[0])
}
