package relock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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

// field is the surroundings of a test on a cluster. What it has of an arena needs no server.
type field struct {
	*arena
	cluster *redistest.Cluster
	all     *redis.ClusterClient // has no faults
}

// onCluster is a cluster of three masters, with a replica each.
func onCluster(t *testing.T, args ...string) *field {
	t.Helper()
	w := &field{arena: surroundings(t)}
	w.cluster = redistest.StartCluster(t, func(c *redistest.ClusterConfig) { c.Args = args })
	// It looks at the cluster's map all the time, so that it is never behind.
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
		left = slices.DeleteFunc(redistest.Keys(w.t, w.all), isToken)
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

// peer makes a client with go-redis's own idea of when to look at the cluster's map again.
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
	w.t.Cleanup(func() {
		p.faults.Heal() // what a failed test has left
		start := time.Now()
		require.NoError(w.t, p.Close())
		require.Less(w.t, time.Since(start), 10*time.Second, "Close waits for no more than what is on the wire")
		require.Empty(w.t, relock.Leftovers(p.Client))
	})
	return p
}

// count counts the calls of a script that p sends from now on.
func (w *field) count(p *clusterPeer, script string) func() int {
	w.t.Helper()
	return p.faults.On(w.script(script), redistest.Before(func([]string) {})).Hits
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

// owner is what Redis has at a base key: the hold and its count, or "" and 0.
func (w *field) owner(base string) (hold string, count int) {
	w.t.Helper()
	fields, err := w.all.HGetAll(context.Background(), base).Result()
	require.NoError(w.t, err)
	for _, note := range []string{"step", "next", "token"} {
		delete(fields, note)
	}
	require.LessOrEqual(w.t, len(fields), 1, "one hold owns the lock: %v", fields)
	for field, value := range fields {
		hold = field
		count, err = strconv.Atoi(value)
		require.NoError(w.t, err)
	}
	return hold, count
}

func (w *field) requireCount(name string, want int) {
	w.t.Helper()
	_, count := w.owner(baseKey(name))
	require.Equal(w.t, want, count, "the count of %q in Redis", name)
}

// requireOwner says that whoever is in has the lock in Redis too.
func (w *field) requireOwner(name string, section context.Context) { //nolint:revive // the section is not what bounds the call
	w.t.Helper()
	holder, _ := relock.HolderFrom(section)
	hold, _ := w.owner(baseKey(name))
	require.True(w.t, strings.HasPrefix(hold, holder.String()+":"), "%s is in, and Redis says %q", holder, hold)
}

func (w *field) awaitWaiters(name string, n int) {
	w.t.Helper()
	var got int64
	redistest.Eventually(w.t, ample+time.Duration(n)*10*time.Millisecond, func() bool {
		got = w.all.ZCard(context.Background(), baseKey(name)+":queue").Val()
		return got == int64(n)
	}, "%d wait for %q, but %d", n, name, &got)
}

func (w *field) awaitFree(name string, limit time.Duration) {
	w.t.Helper()
	redistest.Eventually(w.t, limit, func() bool {
		n, err := w.all.Exists(context.Background(), baseKey(name), baseKey(name)+":queue").Result()
		return err == nil && n == 0
	}, "%q is free and nobody is queued", name)
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

// pubsubs is how many pub/sub connections m has at a server.
func (w *field) pubsubs(server *redistest.Server, m *clusterPeer) int {
	w.t.Helper()
	list, err := server.Client().Do(context.Background(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(w.t, err)
	return strings.Count(list, " name="+m.name+" ")
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

// ---------------------------------------------------------------------------------------------------------------------
// A cluster that is well. These share one.

func TestOnAClusterThatIsWell(t *testing.T) {
	shared := onCluster(t)
	t.Run("a lock does all that it does on one server", func(t *testing.T) { allThatALockDoes(shared.in(t)) })
	t.Run("one pub/sub connection leads to each master, however many locks are waited for", func(t *testing.T) {
		onePubSubConnectionForEachMaster(shared.in(t))
	})
	t.Run("subscriptions end when nobody waits, and the others stay", func(t *testing.T) {
		subscriptionsThatEnd(shared.in(t))
	})
	t.Run("a subscription ends the way it was made, also when a later one is of the other kind", func(t *testing.T) {
		subscriptionsOfBothKinds(shared.in(t))
	})
	t.Run("a subscription that ends while its slot moves costs the others nothing", func(t *testing.T) {
		subscriptionThatEndsWhileItsSlotMoves(shared.in(t))
	})
	t.Run("a thousand locks over all slots are held and renewed", func(t *testing.T) {
		aThousandLocks(shared.in(t))
	})
	t.Run("idle connections that have ended are no tries of a call", func(t *testing.T) {
		idleConnectionsThatHaveEnded(shared.in(t))
	})
}

func allThatALockDoes(shared *field) {
	t := shared.t
	shared.loadScripts()
	names := shared.oneForEachMaster()
	// on is a test that begins with two clients.
	on := func(name string, test func(w *field, p, q *clusterPeer)) {
		t.Run(name, func(t *testing.T) {
			w := shared.in(t)
			test(w, w.peer(), w.peer())
			for _, name := range names {
				w.awaitFree(name, ample)
			}
		})
	}

	on("it excludes, nests, says its state, and is handed over to who waits", func(w *field, p, q *clusterPeer) {
		t := w.t
		for _, name := range names {
			l, other := p.NewLock(name), q.NewLock(name)
			outer := w.enter(t.Context(), l, ample)
			inner := w.enter(outer, l, ample)
			w.requireCount(name, 2)
			_, err := other.TryLock(t.Context())
			require.ErrorIs(t, err, relock.ErrLocked)
			waiter := w.start(t.Context(), other)
			w.awaitWaiters(name, 1)
			state, err := other.State(t.Context())
			require.NoError(t, err)
			holder, _ := relock.HolderFrom(outer)
			require.Equal(t, relock.State{Holder: holder, Count: 2, TTL: state.TTL, Token: l.Token(outer), Waiters: 1}, state)
			w.leave(inner, l, ample)
			w.requireCount(name, 1)
			w.leave(outer, l, ample)
			mine := waiter.in(ample)
			require.Greater(t, other.Token(mine), state.Token)
			w.requireOwner(name, mine)
			w.leave(mine, other, ample)
		}
	})

	on("a hand-over costs what it costs on one server", func(w *field, p, q *clusterPeer) {
		t := w.t
		l, other := p.NewLock(names[0]), q.NewLock(names[0])
		w.leave(w.enter(t.Context(), other, ample), other, ample)
		section := w.enter(t.Context(), l, ample)
		waiter := w.start(t.Context(), other)
		w.awaitWaiters(names[0], 1)
		before, asked := p.faults.Commands("EVALSHA"), q.faults.Commands("EVALSHA")
		w.leave(section, l, ample)
		mine := waiter.in(ample)
		require.Equal(t, 1, p.faults.Commands("EVALSHA")-before)
		require.Zero(t, q.faults.Commands("EVALSHA")-asked, "the grant is enough")
		w.leave(mine, other, ample)
	})

	on("a cluster client inside a struct of the caller's is one too", func(w *field, p, q *clusterPeer) {
		t := w.t
		wrapped, err := relock.New(struct{ *redis.ClusterClient }{p.rdb})
		require.NoError(t, err)
		defer func() { require.NoError(t, wrapped.Close()) }()
		for _, name := range names {
			l, other := q.NewLock(name), wrapped.NewLock(name)
			section := w.enter(t.Context(), l, ample)
			waiter := w.start(t.Context(), other)
			w.awaitWaiters(name, 1)
			require.Equal(t, 1, shardChannels(t, w.cluster.MasterFor(name)), "it hears of its grant where the lock is")
			w.leave(section, l, ample)
			w.leave(waiter.in(ample), other, ample)
		}
	})

	on("twenty waiters of several clients get in, first come, first served", func(w *field, p, q *clusterPeer) {
		t := w.t
		l := p.NewLock(names[1])
		section := w.enter(t.Context(), l, ample)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 20 {
			waiting := []*clusterPeer{p, q}[i%2].NewLock(names[1])
			all.Go(func() {
				section, err := waiting.Lock(context.Background())
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				_ = waiting.Unlock(section)
			})
			w.awaitWaiters(names[1], i+1)
		}
		w.leave(section, l, ample)
		require.NoError(t, w.call(ample, func() error { all.Wait(); return nil }))
		require.Len(t, order, 20)
		require.IsIncreasing(t, order)
	})

	on("a fixed lease is extended, and ends", func(w *field, p, _ *clusterPeer) {
		t := w.t
		l := p.NewLock(names[2], relock.WithFixedLease(10*time.Second))
		section := w.enter(t.Context(), l, ample)
		require.NoError(t, l.Extend(section, 30*time.Second))
		require.Greater(t, l.Remaining(section), 25*time.Second)
		w.leave(section, l, ample)
		section = w.enter(t.Context(), p.NewLock(names[2], relock.WithFixedLease(50*time.Millisecond)), ample)
		require.Equal(t, relock.LossExpired, w.lost(section, ample).Reason)
	})

	on("force unlock takes it, for the next in the queue", func(w *field, p, q *clusterPeer) {
		t := w.t
		l, other := p.NewLock(names[0], relock.WithTTL(3*time.Second)), q.NewLock(names[0])
		section := w.enter(t.Context(), l, ample)
		waiter := w.start(t.Context(), other)
		w.awaitWaiters(names[0], 1)
		require.NoError(t, other.ForceUnlock(t.Context()))
		w.leave(waiter.in(ample), other, ample)
		require.Equal(t, relock.LossTaken, w.lost(section, ample).Reason, "by its next renewal")
	})

	on("the watchdog carries it past its lease", func(w *field, p, _ *clusterPeer) {
		t := w.t
		const ttl = 2 * time.Second
		l := p.NewLock(names[1], relock.WithTTL(ttl))
		renewals := w.count(p, luaRenew)
		section := w.enter(t.Context(), l, ample)
		sleepUntil(time.Now().Add(ttl + ttl/4))
		require.NoError(t, section.Err())
		require.True(t, l.Held(section))
		require.GreaterOrEqual(t, renewals(), 3)
		w.leave(section, l, ample)
	})

	on("who gives up leaves nothing, and does not keep the others", func(w *field, p, q *clusterPeer) {
		t := w.t
		l := p.NewLock(names[2])
		section := w.enter(t.Context(), l, ample)
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.start(ctx, q.NewLock(names[2]))
		w.awaitWaiters(names[2], 1)
		next := w.start(t.Context(), q.NewLock(names[2]))
		w.awaitWaiters(names[2], 2)
		cancel()
		require.ErrorIs(t, gone.out(ample), context.Canceled)
		w.awaitWaiters(names[2], 1)
		w.leave(section, l, ample)
		w.leave(next.in(ample), next.lock, ample)
	})

	on("a lost reply is asked for again, by us alone", func(w *field, _, q *clusterPeer) {
		t := w.t
		for _, how := range []redistest.Break{redistest.EOF, redistest.Reset, redistest.Silence} {
			p := w.peer()
			l := p.NewLock(names[0])
			acquires, releases := w.count(p, luaAcquire), w.count(p, luaRelease)
			lose := p.faults.Once(w.script(luaAcquire), redistest.DropReply(how))
			outer := w.enter(t.Context(), l, ample)
			require.Equal(t, 1, lose.Hits())
			require.Equal(t, 2, acquires())
			p.faults.Once(w.script(luaAcquire), redistest.DropReply(how))
			inner := w.enter(outer, l, ample)
			require.Equal(t, 4, acquires())
			w.requireCount(names[0], 2)
			p.faults.Once(w.script(luaRelease), redistest.DropReply(how))
			w.leave(inner, l, ample)
			require.Equal(t, 2, releases())
			w.requireCount(names[0], 1)
			p.faults.Once(w.script(luaRelease), redistest.DropReply(how))
			w.leave(outer, l, ample)
			require.Equal(t, 4, releases())
			w.leave(w.enter(t.Context(), q.NewLock(names[0]), ample), q.NewLock(names[0]), ample)
		}
	})

	on("a script that the server has forgotten is sent whole", func(w *field, p, q *clusterPeer) {
		t := w.t
		l, other := p.NewLock(names[0], relock.WithTTL(3*time.Second)), q.NewLock(names[0])
		renewals := w.count(p, luaRenew)
		for range 2 {
			section := w.enter(t.Context(), l, ample)
			flush := func() {
				require.NoError(t, w.all.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
					return node.ScriptFlush(ctx).Err()
				}))
			}
			flush()
			waiter := w.start(t.Context(), other)
			w.awaitWaiters(names[0], 1)
			before := renewals()
			redistest.Eventually(t, ample, func() bool { return renewals() >= before+2 }, "the renewal is sent by its name, and then whole")
			require.NoError(t, section.Err())
			flush()
			w.leave(section, l, ample)
			w.leave(waiter.in(ample), other, ample)
		}
		w.loadScripts()
	})

	on("a client that reads from replicas locks at the master", func(w *field, p, _ *clusterPeer) {
		t := w.t
		reader := w.peerOn(func(o *redis.ClusterOptions) { o.ReadOnly, o.RouteRandomly = true, true })
		for _, name := range names {
			l, other := p.NewLock(name), reader.NewLock(name)
			section := w.enter(t.Context(), l, ample)
			waiter := w.start(t.Context(), other)
			w.awaitWaiters(name, 1)
			w.leave(section, l, ample)
			mine := waiter.in(ample)
			w.requireOwner(name, mine)
			inner := w.enter(mine, other, ample)
			w.leave(inner, other, ample)
			w.leave(mine, other, ample)
		}
	})

	on("names with a hash tag of their own share a slot, and a command", func(w *field, p, q *clusterPeer) {
		t := w.t
		ttl := relock.WithTTL(3 * time.Second)
		cart, mail := p.NewLock("{user:7}:cart", ttl), p.NewLock("{user:7}:mail", ttl)
		renewals := w.count(p, luaRenew)
		first := w.enter(t.Context(), cart, ample)
		second := w.enter(t.Context(), mail, ample)
		var slots []int
		for _, key := range redistest.Keys(t, w.all) {
			if strings.Contains(key, "user:7") {
				slots = append(slots, w.cluster.Slot(key))
			}
		}
		require.Len(t, slots, 4, "base and token of both")
		require.Len(t, slices.Compact(slots), 1)
		redistest.Eventually(t, ample, func() bool { return renewals() > 0 }, "they are renewed")
		redistest.Eventually(t, ample, func() bool {
			return cart.Remaining(first) > 2*time.Second && mail.Remaining(second) > 2*time.Second
		}, "both of them")
		require.Equal(t, 1, renewals(), "by one command")
		other := q.NewLock("{user:7}:cart", ttl)
		waiter := w.start(t.Context(), other)
		redistest.Eventually(t, ample, func() bool {
			return w.all.ZCard(t.Context(), "relock:{user:7}:cart:queue").Val() == 1
		}, "it is queued")
		w.leave(first, cart, ample)
		w.leave(waiter.in(ample), other, ample)
		w.leave(second, mail, ample)
	})

	on("a name whose keys would have different slots is refused", func(w *field, p, _ *clusterPeer) {
		t := w.t
		for name, prefix := range map[string]string{"}": "relock:", "a": "{}", "{a}:queue": "relock:"} {
			l := p.NewLock(name, relock.WithPrefix(prefix))
			require.ErrorIs(t, l.Err(), relock.ErrInvalid, "%s%s", prefix, name)
			_, err := l.Lock(t.Context())
			require.ErrorIs(t, err, relock.ErrInvalid)
		}
	})
}

func onePubSubConnectionForEachMaster(w *field) {
	t := w.t
	const locks = 200
	holder, waiting := w.peer(), w.peer()
	var sections, entered []context.Context
	var waiters []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(fmt.Sprint("lock", i)), ample))
	}
	for i := range locks {
		waiters = append(waiters, w.start(t.Context(), waiting.NewLock(fmt.Sprint("lock", i))))
	}
	masters := w.masters()
	redistest.Eventually(t, ample, func() bool {
		n := 0
		for _, m := range masters {
			n += shardChannels(t, m)
		}
		return n == locks
	}, "each lock that is waited for is heard")
	for _, m := range masters {
		require.Equal(t, 1, w.pubsubs(m, waiting), "at %s", m.Addr())
		require.Zero(t, w.pubsubs(m, holder), "who never waits needs none")
		require.Greater(t, shardChannels(t, m), locks/6, "the locks are spread")
	}
	for i := range locks {
		w.awaitWaiters(fmt.Sprint("lock", i), 1)
	}
	start := time.Now()
	for i := range locks {
		w.leave(sections[i], holder.NewLock(fmt.Sprint("lock", i)), ample)
	}
	for i := range locks {
		entered = append(entered, waiters[i].in(ample))
	}
	require.Less(t, time.Since(start), ample)
	for i := range locks {
		w.leave(entered[i], waiters[i].lock, ample)
	}
	redistest.Eventually(t, ample, func() bool {
		n := 0
		for _, m := range masters {
			n += shardChannels(t, m) + w.pubsubs(m, waiting)
		}
		return n == 0
	}, "when nobody waits any more the connections end")
}

func idleConnectionsThatHaveEnded(w *field) {
	t := w.t
	const idle = 20
	p := w.peerOn(func(o *redis.ClusterOptions) { o.Dialer, o.PoolSize = sealing(o.Dialer), idle })
	l := p.NewLock("a")
	w.leave(w.enter(t.Context(), l, ample), l, ample)
	master, err := p.rdb.MasterForKey(t.Context(), baseKey("a"))
	require.NoError(t, err)
	connectAll(t, master, idle)
	p.faults.Cut()
	section, err := l.TryLock(t.Context())
	require.NoError(t, err)
	w.leave(section, l, ample)
}

// Redis refuses one SUNSUBSCRIBE for several slots, and the answer to it is an error on the connection that all share.
func subscriptionsThatEnd(w *field) {
	t := w.t
	master := w.cluster.MasterFor("kept")
	locks := []string{"kept"}
	for i := 0; len(locks) < 6; i++ {
		if name := fmt.Sprint("ends", i); w.cluster.MasterFor(name) == master {
			locks = append(locks, name)
		}
	}
	var reconnected atomic.Int64
	holder := w.peer()
	waiting := w.peer(relock.WithHooks(relock.Hooks{Reconnected: func(relock.Reconnected) { reconnected.Add(1) }}))
	var sections []context.Context
	var waiters []*asking
	for _, name := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(name), ample))
		waiters = append(waiters, w.start(t.Context(), waiting.NewLock(name)))
		w.awaitWaiters(name, 1)
	}
	require.Equal(t, len(locks), shardChannels(t, master))
	for i, name := range locks[1:] {
		w.leave(sections[i+1], holder.NewLock(name), ample)
		w.leave(waiters[i+1].in(ample), waiters[i+1].lock, ample)
	}
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, master) == 1 }, "one is left, which is waited for")
	w.leave(sections[0], holder.NewLock("kept"), ample)
	w.leave(waiters[0].in(ample), waiters[0].lock, ample)
	require.Zero(t, reconnected.Load(), "on the connection of the start")
}

// Redis answers SUNSUBSCRIBE with MOVED then, on the connection that all share.
func subscriptionThatEndsWhileItsSlotMoves(w *field) {
	t := w.t
	from := w.cluster.MasterFor("kept")
	ends, also, to := "", "", from // the slot of also stays, and Redis answers
	for i := 0; also == "" || to == from; i++ {
		if name := fmt.Sprint("ends", i); w.cluster.MasterFor(name) != from {
			to = w.cluster.MasterFor(name)
		} else {
			ends, also = name, ends
		}
	}
	var reconnected atomic.Int64
	holder := w.peer()
	waiting := w.peer(relock.WithHooks(relock.Hooks{Reconnected: func(relock.Reconnected) { reconnected.Add(1) }}))
	kept := w.enter(t.Context(), holder.NewLock("kept"), ample)
	keeper := w.start(t.Context(), waiting.NewLock("kept"))
	w.awaitWaiters("kept", 1)
	section := w.enter(t.Context(), holder.NewLock(ends), ample)
	waiter := w.start(t.Context(), waiting.NewLock(ends))
	w.awaitWaiters(ends, 1)
	other := w.enter(t.Context(), holder.NewLock(also), ample)
	otherWaits := w.start(t.Context(), waiting.NewLock(also))
	w.awaitWaiters(also, 1)
	moved := waiting.faults.Once(redistest.Named("SUNSUBSCRIBE"), redistest.Before(func([]string) { w.cluster.MoveSlot(ends, to) }))
	w.leave(section, holder.NewLock(ends), ample)
	w.leave(waiter.in(ample), waiter.lock, ample)
	w.leave(other, holder.NewLock(also), ample)
	w.leave(otherWaits.in(ample), otherWaits.lock, ample)
	moved.WaitHits(t, 1)
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, from) == 1 }, "both have ended")
	pinged := waiting.faults.On(redistest.Named("PING"), redistest.Before(func([]string) {}))
	pinged.WaitHits(t, 1) // so the answer has been read
	w.leave(kept, holder.NewLock("kept"), ample)
	w.leave(keeper.in(ample), keeper.lock, ample)
	require.Zero(t, reconnected.Load(), "on the connection of the start")
	w.cluster.MoveSlot(ends, from)
}

// In the middle of an upgrade, one node knows sharded pub/sub and the next does not. Then all that comes is plain, and what
// was sharded before ends as that.
func subscriptionsOfBothKinds(w *field) {
	t := w.t
	holder, waiting := w.peer(), w.peer()
	master := w.cluster.MasterFor("{a}")
	wait := func(name string) (context.Context, *asking) {
		section := w.enter(t.Context(), holder.NewLock(name), ample)
		waiter := w.start(t.Context(), waiting.NewLock(name))
		redistest.Eventually(t, ample, func() bool { return w.all.ZCard(t.Context(), "relock:"+name+":queue").Val() == 1 }, "%q is waited for", name)
		return section, waiter
	}
	handOver := func(section context.Context, waiter *asking) {
		w.leave(section, holder.NewLock(waiter.lock.Name()), ample)
		w.leave(waiter.in(ample), waiter.lock, ample)
	}
	kept, keeper := wait("{a}:kept") // and with it the connection
	sharded, first := wait("{a}:sharded")
	require.Equal(t, 2, shardChannels(t, master))
	waiting.faults.On(redistest.Named("SSUBSCRIBE"), redistest.Answer("-ERR unknown command 'SSUBSCRIBE'"))
	plain, second := wait("{a}:plain")
	handOver(sharded, first)
	handOver(plain, second)
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, master) == 1 }, "it has unsubscribed")
	redistest.Eventually(t, ample, func() bool {
		return len(master.Client().PubSubChannels(t.Context(), "relock:*").Val()) == 0
	}, "from the plain one, too")
	handOver(kept, keeper)
}

func aThousandLocks(w *field) {
	t := w.t
	w.loadScripts()
	const locks, ttl = 1000, 4 * time.Second
	var failed atomic.Int64
	m := w.peer(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{
		Renewed: func(r relock.Renewed) { failed.Add(int64(r.Failed)) },
	}))
	renewals := w.count(m, luaRenew)
	sections := make([]context.Context, locks)
	each := func(f func(i int)) {
		var all sync.WaitGroup
		for first := range 10 {
			all.Go(func() {
				for i := first; i < locks; i += 10 {
					f(i)
				}
			})
		}
		require.NoError(t, w.call(30*time.Second, func() error { all.Wait(); return nil }))
	}
	var errs names
	start := time.Now()
	each(func(i int) {
		var err error
		if sections[i], err = m.NewLock(fmt.Sprint("lock", i)).Lock(context.Background()); err != nil {
			errs.add(err.Error())
		}
	})
	require.Empty(t, errs.all())
	m.faults.Reset()
	began, before := time.Now(), renewals()
	sleepUntil(began.Add(ttl + ttl/4))
	intervals := float64(time.Since(start)) / float64(ttl/3)
	for i := range locks {
		l := m.NewLock(fmt.Sprint("lock", i))
		require.True(t, l.Held(sections[i]), "%s: %v", l.Name(), context.Cause(sections[i]))
	}
	// Each of them is its own slot, and so its own command, but these go out together.
	sent, trips := renewals()-before, m.faults.Stats().RoundTrips
	require.Zero(t, failed.Load())
	require.GreaterOrEqual(t, sent, 3*locks)
	require.LessOrEqual(t, float64(sent), (intervals+1)*locks*1.2, "a little early is fine, to go with others")
	require.Less(t, trips, sent/10, "%d commands", sent)
	t.Logf("%d renewals in %d round trips, %s", sent, trips, time.Since(began))
	slots := map[int]bool{}
	for i := range 50 {
		slots[w.cluster.Slot(fmt.Sprint("lock", i))] = true
	}
	require.Greater(t, len(slots), 45, "the locks are all over the slots")
	each(func(i int) {
		if err := m.NewLock(fmt.Sprint("lock", i)).Unlock(sections[i]); err != nil {
			errs.add(err.Error())
		}
	})
	require.Empty(t, errs.all())
}

// ---------------------------------------------------------------------------------------------------------------------
// A slot moves to another master.

func TestOnAClusterWhoseSlotsMove(t *testing.T) {
	shared := onCluster(t)
	for name, test := range map[string]func(*field){
		"a lock is held and waited for at every step of it":          everyStepOfAMove,
		"a lock is handed over while its slot is about to move":      handedOverBeforeAMove,
		"a lock that is freed on the way is had when it has arrived": freedOnTheWay,
		"no section meets another while slots move to and fro":       toAndFro,
		"a lease is renewed whatever becomes of another in its slot": apartOnTheWay,
	} {
		t.Run(name, func(t *testing.T) { test(shared.in(t)) })
	}
}

// While a slot migrates, a call for several of its locks is refused when some of the keys are not where the others are. Each is renewed all the same.
func apartOnTheWay(w *field) {
	t := w.t
	const ttl = 2 * time.Second
	names := w.oneForEachMaster()
	to := w.cluster.MasterFor(names[2])
	for i, gone := range []bool{false, true} { // the other's key; else it has not moved
		name, p := names[i], w.peer(relock.WithTTL(ttl))
		one, other := p.NewLock(name), p.NewLock("{"+name+"}:other")
		section, otherSection := w.enter(t.Context(), one, ample), w.enter(t.Context(), other, ample)
		if gone {
			require.NoError(t, w.peer().NewLock(other.Name()).ForceUnlock(t.Context()))
		}
		move := w.cluster.BeginMove(name, to)
		if !gone {
			move.MoveKeys(baseKey(name))
		}
		sleepUntil(time.Now().Add(2 * ttl))
		require.NoError(t, context.Cause(section))
		if gone {
			require.ErrorIs(t, context.Cause(otherSection), relock.ErrLockLost)
		} else {
			require.NoError(t, context.Cause(otherSection))
		}
		move.Finish()
		w.leave(section, one, ample)
		if !gone {
			w.leave(otherSection, other, ample)
		}
	}
}

// A slot moves in steps: keys one by one, and the slot at the end. In between the old master answers ASK for a lock whose keys
// have moved, and both answer TRYAGAIN for one whose keys are on both sides or are not all there.
func everyStepOfAMove(w *field) {
	t := w.t
	const ttl = 3 * time.Second
	names := w.oneForEachMaster()
	name, to := names[0], w.cluster.MasterFor(names[1])
	holder, waiting, late := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
	l, wl, ll := holder.NewLock(name), waiting.NewLock(name), late.NewLock(name)
	alone := holder.NewLock("{" + name + "}:alone") // in the same slot
	renewals := w.count(holder, luaRenew)
	renewed := func(what string) {
		t.Helper()
		w.leave(w.enter(t.Context(), holder.NewLock(names[2]), ample), holder.NewLock(names[2]), ample)
		before := renewals()
		redistest.Eventually(t, ample, func() bool { return renewals() > before+1 }, "a renewal is sent while %s", what)
		redistest.Eventually(t, ample, func() bool { return w.all.PTTL(t.Context(), baseKey(name)).Val() > ttl/2 }, "and arrives")
	}

	outer := w.enter(t.Context(), l, ample)
	section := w.enter(outer, l, ample)
	token := l.Token(section)
	other := w.enter(t.Context(), alone, ample)
	first := w.start(t.Context(), wl)
	w.awaitWaiters(name, 1)

	move := w.cluster.BeginMove(name, to)
	second := w.start(t.Context(), wl)
	w.awaitWaiters(name, 2)
	_, err := ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "as long as all its keys are there, nothing has changed")

	move.MoveKeys(baseKey(name) + ":queue")
	_, err = ll.TryLock(t.Context())
	require.ErrorContains(t, err, "TRYAGAIN", "and not that it is free")
	third := w.start(t.Context(), ll)
	renewed("its keys are on both sides")

	move.MoveKeys()
	_, err = ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "ASK leads to where it is")
	renewed("its keys have moved and the slot has not")
	w.leave(section, l, ample) // an inner one
	w.requireCount(name, 1)
	// A lock without a queue has keys that exist on neither side: nobody can serve it until the slot has moved.
	leaving := make(chan error, 1)
	go func() { leaving <- alone.Unlock(other) }()
	before := late.faults.Commands()
	sleepUntil(time.Now().Add(500 * time.Millisecond))
	require.Less(t, late.faults.Commands()-before, 100, "who cannot be served yet does not ask all the time")
	require.True(t, first.waiting() && second.waiting() && third.waiting())
	require.NoError(t, outer.Err())

	move.Finish()
	require.NoError(t, w.call(ample, func() error { return <-leaving }))
	require.Same(t, to, w.cluster.MasterFor(name))
	w.awaitWaiters(name, 3)
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, to) == 2 }, "both clients that wait hear the new master")
	renewed("it is there")
	w.leave(outer, l, ample)
	for _, next := range []*asking{first, second, third} {
		mine := next.in(ample)
		w.requireOwner(name, mine)
		require.Greater(t, next.lock.Token(mine), token)
		token = next.lock.Token(mine)
		w.leave(mine, next.lock, ample)
	}
}

// A slot that is about to move is served where it is, but a script cannot make a key there, and not even look at one that is
// not there (any more). Handing a lock over must do without.
func handedOverBeforeAMove(w *field) {
	t := w.t
	spread := w.oneForEachMaster()
	holder, waiting := w.peer(), w.peer()
	held := func(lock string, waiters ...*clusterPeer) (section context.Context, l *relock.Lock, asked []*asking) {
		l = holder.NewLock("{" + spread[0] + "}:" + lock)
		section = w.enter(t.Context(), l, ample)
		for i, p := range waiters {
			asked = append(asked, w.start(t.Context(), p.NewLock(l.Name())))
			redistest.Eventually(t, ample, func() bool {
				return w.all.ZCard(t.Context(), "relock:"+l.Name()+":queue").Val() == int64(i+1)
			}, "%d wait for %s", i+1, l.Name())
		}
		return section, l, asked
	}
	// A waiter of a client that nothing reaches, before all others.
	gone := func(l *relock.Lock) {
		require.NoError(t, w.all.ZAdd(t.Context(), "relock:"+l.Name()+":queue", redis.Z{Score: 1, Member: "gone:1:1|gone|30000"}).Err())
	}
	one, oneLock, oneWaits := held("one", waiting)
	two, twoLock, twoWait := held("two", waiting, waiting)
	past, pastLock, pastWaits := held("past", waiting)
	gone(pastLock)
	none, noneLock, _ := held("none")
	gone(noneLock)
	force, forceLock, forceWaits := held("force", waiting)

	// This one does not hear of its grant, and gives up: the lock goes on from there.
	deaf := w.peer()
	late, lateLock, _ := held("late")
	ctx, cancel := context.WithCancel(t.Context())
	lateGone := w.start(ctx, deaf.NewLock(lateLock.Name()))
	redistest.Eventually(t, ample, func() bool { return w.all.ZCard(t.Context(), "relock:"+lateLock.Name()+":queue").Val() == 1 }, "it waits")
	lateWaits := w.start(t.Context(), waiting.NewLock(lateLock.Name()))
	redistest.Eventually(t, ample, func() bool { return w.all.ZCard(t.Context(), "relock:"+lateLock.Name()+":queue").Val() == 2 }, "both wait")

	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	w.leave(one, oneLock, ample)
	granted := oneWaits[0].in(ample)
	w.leave(two, twoLock, ample)
	first := twoWait[0].in(ample)
	w.leave(first, twoWait[0].lock, ample)
	second := twoWait[1].in(ample)
	w.leave(past, pastLock, ample)
	passed := pastWaits[0].in(ample)
	w.leave(none, noneLock, ample)
	require.NoError(t, waiting.NewLock(forceLock.Name()).ForceUnlock(t.Context()))
	forced := forceWaits[0].in(ample)
	deaf.faults.StallPubSub()
	w.leave(late, lateLock, ample)
	cancel()
	require.ErrorIs(t, lateGone.out(ample), context.Canceled)
	lately := lateWaits.in(ample)
	deaf.faults.Heal()

	move.Finish()
	w.leave(granted, oneWaits[0].lock, ample)
	w.leave(second, twoWait[1].lock, ample)
	w.leave(passed, pastWaits[0].lock, ample)
	w.leave(forced, forceWaits[0].lock, ample)
	w.leave(lately, lateWaits.lock, ample)
	require.ErrorIs(t, forceLock.Unlock(force), relock.ErrLockLost)
}

// The moment at which nobody can be told: the lock is freed where the slot is going to be, and its waiters can only hear
// where it still is.
func freedOnTheWay(w *field) {
	t := w.t
	names := w.oneForEachMaster()
	name := names[0]
	holder, waiting := w.peer(), w.peer()
	l := holder.NewLock(name)
	section := w.enter(t.Context(), l, ample)
	c := &crowd{w: w.arena}
	c.enter(section, l)
	for range 10 {
		c.joins(waiting.NewLock(name))
	}
	w.awaitWaiters(name, 10)
	move := w.cluster.BeginMove(name, w.cluster.MasterFor(names[1]))
	move.MoveKeys()
	c.leave(section)
	w.leave(section, l, ample)
	move.Finish()
	c.through(ample, 11)
	w.awaitFree(name, ample)
}

func toAndFro(w *field) {
	t := w.t
	const workers = 12
	spread := w.oneForEachMaster()
	there, back := w.cluster.MasterFor(spread[0]), w.cluster.MasterFor(spread[1])
	guards := make([]guarded, 3)
	var peers []*clusterPeer
	for range 3 {
		peers = append(peers, w.peer())
	}
	var done tally
	var errs names
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range workers {
		g, l := &guards[i%3], peers[i/3%3].NewLock(fmt.Sprintf("{%s}:%d", spread[0], i%3))
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := l.Do(context.Background(), func(section context.Context) error {
					g.enter(section, l)
					defer g.leave(section)
					<-time.After(time.Millisecond)
					return section.Err()
				}); err != nil {
					errs.add(err.Error())
				}
				done.add("sections")
			}
		})
	}
	for i := range 8 {
		before := done.of("sections")
		redistest.Eventually(t, ample, func() bool { return done.of("sections") > before+60 }, "work goes on after %d moves", i)
		to := there
		if i%2 == 0 {
			to = back
		}
		w.cluster.MoveSlot(spread[0], to)
	}
	close(stop)
	require.NoError(t, w.call(ample, func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	for i := range guards {
		guards[i].require(t)
	}
	t.Log(&done)
}

// ---------------------------------------------------------------------------------------------------------------------
// A master goes away.

func TestTwentyWaitersGetInOneByOneAfterAClusterFailover(t *testing.T) {
	w := onCluster(t)
	names := w.oneForEachMaster()
	name := names[0]
	ttl := relock.WithTTL(12 * time.Second)
	var peers []*clusterPeer
	for range 4 {
		peers = append(peers, w.peer(ttl))
	}
	holder := w.peer(ttl)
	for _, way := range []struct {
		name     string
		fail     func(string) *redistest.Server
		comeBack func(old *redistest.Server)
	}{
		{"in agreement", w.cluster.FailoverFor, func(*redistest.Server) {}},
		{"killed", w.cluster.KillMasterFor, (*redistest.Server).Restart},
		{"stopped, and resumed as a second master", w.cluster.PauseMasterFor, (*redistest.Server).Resume},
	} {
		t.Run(way.name, func(t *testing.T) {
			w := w.in(t)
			l := holder.NewLock(name)
			outer := w.enter(t.Context(), l, ample)
			section := w.enter(outer, l, ample)
			c := &crowd{w: w.arena}
			c.enter(section, l)
			for i := range 20 {
				c.joins(peers[i%len(peers)].NewLock(name))
			}
			w.awaitWaiters(name, 20)
			// Locks on the other masters feel it too, as the whole cluster is down until the failover.
			elsewhere := w.enter(t.Context(), holder.NewLock(names[1]), ample)
			replicated(t, w.all, "{"+name+"}")
			old := w.cluster.MasterFor(name)
			require.True(t, forgotten(t, w.cluster.ReplicaFor(name)), "so the new master answers NOSCRIPT")

			way.fail(name)
			way.comeBack(old)
			require.NotSame(t, old, w.cluster.MasterFor(name))
			require.NoError(t, section.Err(), "the new master has the lock")
			w.leave(section, l, ample)
			w.requireCount(name, 1)
			c.leave(section)
			w.leave(outer, l, ample)
			c.through(3*ample, 21)
			require.NoError(t, elsewhere.Err())
			w.leave(elsewhere, holder.NewLock(names[1]), ample)
			w.awaitFree(name, ample)
			w.cluster.WaitReplica(name, old)
			require.NoError(t, old.Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// What a client is doing while the slot has no master is done by the next one, or told.
//
// A client that only holds locks sends nothing but renewals. They alone must find the new master, and long before go-redis
// looks at the map of the cluster by itself (ten seconds). The same is true for each other thing that a client may be doing.
func TestWhatIsUnderWayWhenAMasterDiesIsDoneByTheNextOneOrTold(t *testing.T) {
	w := onCluster(t)
	const ttl = 8 * time.Second
	holder, leaver, starter, quitter := w.peer(relock.WithTTL(ttl)), w.peer(), w.peer(), w.peer()
	kept, left, free := holder.NewLock("{a}:kept"), leaver.NewLock("{a}:left"), starter.NewLock("{a}:free")
	section := w.enter(t.Context(), kept, ample)
	leaving := w.enter(t.Context(), left, ample)
	w.leave(w.enter(t.Context(), free, ample), free, ample)
	ctx, cancel := context.WithCancel(t.Context())
	var quitting []*asking
	for range 5 {
		quitting = append(quitting, w.start(ctx, quitter.NewLock("{a}:kept")))
	}
	queued := func() int64 { return w.all.ZCard(t.Context(), "relock:{a}:kept:queue").Val() }
	redistest.Eventually(t, ample, func() bool { return queued() == 5 }, "they are queued")
	replicated(t, w.all, "{a}")

	// This one only the old master knows.
	old, replica := w.cluster.MasterFor("a"), w.cluster.ReplicaFor("a")
	cutReplica(t, old, replica)
	gone := holder.NewLock("{a}:gone")
	losing := w.enter(t.Context(), gone, ample)
	token := gone.Token(losing)
	c := &crowd{w: w.arena}
	for range 5 {
		c.joins(starter.NewLock("{a}:gone"))
	}
	redistest.Eventually(t, ample, func() bool { return w.all.ZCard(t.Context(), "relock:{a}:gone:queue").Val() == 5 }, "they are queued")

	old.Kill()
	killed := time.Now()
	cancel()
	for _, q := range quitting {
		require.ErrorIs(t, q.out(time.Second), context.Canceled, "who gives up does not wait for a master")
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- left.Unlock(leaving) }()
	entering := w.start(t.Context(), free)
	require.Same(t, replica, w.cluster.MasterFor("a"))
	after := time.Now()
	t.Logf("failover after %s", after.Sub(killed))

	redistest.Eventually(t, ttl, func() bool { // a lease from after the failover
		return section.Err() != nil || kept.Remaining(section) > ttl*3/4
	}, "the hold is renewed or lost")
	require.NoError(t, context.Cause(section))
	t.Logf("renewed %s later", time.Since(after))
	require.Less(t, time.Since(after), soon+time.Duration(w.late.Load()), "it is tried all the time")
	require.NoError(t, w.call(ample, func() error { return <-unlocked }))
	w.leave(entering.in(ample), free, ample)
	redistest.Eventually(t, ample, func() bool { return queued() == 0 }, "those who gave up leave nothing")
	w.leave(section, kept, ample)

	lost := w.lost(losing, ample)
	require.Equal(t, relock.LossTaken, lost.Reason)
	require.ErrorIs(t, gone.Unlock(losing), relock.ErrLockLost)
	c.through(ample, 5)
	require.Greater(t, c.token, token, "who is in now has a larger token, although the new master did not know of the old one")
	mendReplica(t, replica)
	old.Restart()
	w.cluster.WaitReplica("a", old)
}

// Nothing answers any more, and nothing refuses: calls end with their contexts, and Close with what go-redis has on the wire.
func TestAClientOfAClusterThatHasGoneSilentCanStillBeLeft(t *testing.T) {
	w := onCluster(t)
	holder, waiting := w.peer(), w.peer()
	l := holder.NewLock("a")
	section := w.enter(t.Context(), l, ample)
	w.start(t.Context(), waiting.NewLock("a"))
	queued := w.start(t.Context(), waiting.NewLock("a"))
	w.awaitWaiters("a", 2)
	waiting.faults.Partition()
	waiting.faults.CutPubSub() // so that it looks for the master
	sleepUntil(time.Now().Add(100 * time.Millisecond))

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	require.ErrorIs(t, w.start(ctx, waiting.NewLock("b")).out(ample), context.DeadlineExceeded)
	require.Less(t, time.Since(start), 200*time.Millisecond+promptly+time.Duration(w.late.Load()))
	start = time.Now()
	closed := make(chan error, 1)
	go func() { closed <- waiting.Close() }()
	require.ErrorIs(t, queued.out(ample), relock.ErrClosed)
	require.Less(t, time.Since(start), promptly+time.Duration(w.late.Load()))
	require.NoError(t, w.call(20*time.Second, func() error { return <-closed }))
	t.Logf("closed after %s, with timeouts of %s", time.Since(start), onWire)
	require.Less(t, time.Since(start), 10*onWire)
	waiting.faults.Heal()
	// Only now do the masters hear that its connections are gone. Until then it is one that is silent, and may be granted the lock.
	redistest.Eventually(t, ample, func() bool { return len(redistest.Subscriptions(t, w.all)) == 0 }, "nobody is subscribed")
	require.NoError(t, section.Err())
	w.leave(section, l, ample)
}

// WAIT has no key. It must go to the master of the lock, and behind the script on the same connection.
func TestReplicaAcksInAClusterAreThoseOfTheSlotsMaster(t *testing.T) {
	w := onCluster(t)
	w.loadScripts()
	p, q := w.peer(acked()), w.peer()
	names := w.oneForEachMaster()
	masters := w.masters()
	waits := func(master *redistest.Server) int {
		info, err := master.Client().Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		_, rest, _ := strings.Cut(info, "cmdstat_wait:calls=")
		digits, _, _ := strings.Cut(rest, ",")
		n, _ := strconv.Atoi(digits)
		return n
	}
	for i, name := range names {
		replicated(t, w.all, "{"+name+"}")
		var before []int
		for _, m := range masters {
			before = append(before, waits(m))
		}
		l := p.NewLock(name)
		section := w.enter(t.Context(), l, ample)
		for j, m := range masters {
			want := 0
			if i == j {
				want = 1
			}
			require.Equal(t, want, waits(m)-before[j], "WAIT for a lock of master %d at master %d", i, j)
		}
		// A grant is confirmed too.
		other := q.NewLock(name, acked())
		waiter := w.start(t.Context(), other)
		w.awaitWaiters(name, 1)
		w.leave(section, l, ample)
		mine := waiter.in(ample)
		require.GreaterOrEqual(t, waits(masters[i])-before[i], 2)
		w.leave(mine, other, ample)
	}

	// One replica is cut off: that is told, and the others do not care.
	replica := w.cluster.ReplicaFor(names[0])
	cutReplica(t, masters[0], replica)
	require.ErrorIs(t, w.start(t.Context(), p.NewLock(names[0])).out(ample), relock.ErrNotReplicated)
	w.awaitFree(names[0], 0)
	w.leave(w.enter(t.Context(), p.NewLock(names[1]), ample), p.NewLock(names[1]), ample)
	mendReplica(t, replica)

	// What was confirmed is there after a failover, and WAIT goes to the new master then.
	section := w.enter(t.Context(), p.NewLock(names[2]), ample)
	master := w.cluster.FailoverFor(names[2])
	w.requireOwner(names[2], section)
	w.leave(section, p.NewLock(names[2]), ample)
	before := waits(master)
	w.leave(w.enter(t.Context(), p.NewLock(names[2]), ample), p.NewLock(names[2]), ample)
	require.Positive(t, waits(master)-before)

	// Also when the old master is dead.
	old := w.cluster.MasterFor(names[1])
	section = w.enter(t.Context(), p.NewLock(names[1]), ample)
	w.cluster.KillMasterFor(names[1])
	w.leave(section, p.NewLock(names[1]), ample)
	require.ErrorIs(t, context.Cause(section), relock.ErrReleased, "and not lost")
	old.Restart()
	w.cluster.WaitReplica(names[1], old)
}

// Two hundred waiters whose master has died ask for the new one, but not all of them all the time.
func TestWaitersWithoutAMasterDoNotFloodTheRestOfTheCluster(t *testing.T) {
	w := onCluster(t)
	back := make(chan relock.Reconnected, 10)
	holder, waiting := w.peer(), w.peer(relock.WithHooks(relock.Hooks{Reconnected: func(r relock.Reconnected) { back <- r }}))
	const locks = 200
	var sections []context.Context
	var waiters []*asking
	name := func(i int) string { return fmt.Sprintf("{a}:%d", i) }
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(name(i)), ample))
		waiters = append(waiters, w.start(t.Context(), waiting.NewLock(name(i))))
	}
	old := w.cluster.MasterFor("a")
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, old) == locks }, "all are heard")
	redistest.Eventually(t, ample, func() bool {
		return w.all.ZCard(t.Context(), "relock:"+name(locks-1)+":queue").Val() == 1
	}, "all are queued")
	replicated(t, w.all, "{a}")
	waiting.faults.Reset()
	began := time.Now()
	master := w.cluster.KillMasterFor("a")
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, master) == locks }, "the new master is found for all")
	took := time.Since(began)
	stats := waiting.faults.Stats()
	t.Logf("%s: %d dials, %v", took, stats.Dials, stats.Commands)
	require.Less(t, stats.Commands["CLUSTER"], 300, "the map of the cluster is asked for")
	require.Less(t, stats.Dials, 300)
	require.Equal(t, 1, w.pubsubs(master, waiting))
	redistest.Eventually(t, ample, func() bool { return len(back) > 0 }, "the hook is told that the connection is back")
	require.Equal(t, master.Addr(), (<-back).Node)
	for i := range locks {
		w.leave(sections[i], holder.NewLock(name(i)), ample)
		w.leave(waiters[i].in(ample), waiters[i].lock, ample)
	}
	require.Empty(t, back, "once for all its locks")
	old.Restart()
	w.cluster.WaitReplica("a", old)
}

func TestWaitersOfASlotThatNobodyServesDoNotFloodItsLastMaster(t *testing.T) {
	w := onCluster(t)
	holder, waiting := w.peer(), w.peer()
	const locks = 20
	name := func(i int) string { return fmt.Sprintf("{a}:%d", i) }
	var sections []context.Context
	var waiters []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(name(i)), ample))
		waiters = append(waiters, w.start(t.Context(), waiting.NewLock(name(i))))
	}
	master, slot := w.cluster.MasterFor("a"), w.cluster.Slot("a")
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, master) == locks }, "all are heard")
	waiting.faults.Reset()
	for _, node := range w.cluster.Nodes() {
		_ = node.Client().Do(t.Context(), "CLUSTER", "DELSLOTS", slot).Err() // replicas have none
	}
	sleepUntil(time.Now().Add(2 * time.Second))
	asked := waiting.faults.Commands("SSUBSCRIBE")
	require.GreaterOrEqual(t, asked, locks, "it is asked for again")
	require.LessOrEqual(t, asked, 20*locks, "no hot loop")
	require.NoError(t, master.Client().Do(t.Context(), "CLUSTER", "ADDSLOTS", slot).Err())
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, master) == locks }, "all are heard again")
	for i := range locks {
		w.leave(sections[i], holder.NewLock(name(i)), ample)
		w.leave(waiters[i].in(ample), waiters[i].lock, ample)
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// ACL.

// aclInCluster is what a Redis user of a cluster needs beside aclCommands. The README shows it.
var aclInCluster = []string{
	"ssubscribe", "sunsubscribe", "spublish", "pubsub|shardnumsub", // sharded pub/sub
	"cluster|slots", "command", "asking", // what go-redis sends by itself
}

// aclNotInCluster is what of aclCommands a cluster does without.
var aclNotInCluster = []string{"subscribe", "unsubscribe", "publish"}

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

// tour does as one user what takes different commands in a cluster than on one server, and returns what went wrong. It waits
// as long as patience for each thing, and twice that for all.
func (w *field) tour(p, q *clusterPeer, c *complaints, tag string, patience time.Duration) []string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	base := func(i int) string { return fmt.Sprintf("{%s}:%d", tag, i) }
	queued := func(i int) bool {
		return w.all.ZCard(context.Background(), "relock:"+base(i)+":queue").Val() == 1
	}
	heard := func(i int) bool {
		node, err := w.all.MasterForKey(context.Background(), base(i))
		if err != nil {
			return false
		}
		channels, err := node.PubSubShardChannels(context.Background(), "relock:{"+tag+"}*").Result()
		return err == nil && slices.ContainsFunc(channels, func(c string) bool { return strings.HasPrefix(c, "relock:"+base(i)+":") })
	}
	within := func(what string, f func() bool) {
		for end := time.Now().Add(patience); !f(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) || ctx.Err() != nil {
				c.add("not: %s", what)
				return
			}
		}
	}
	renewals := w.count(p, luaRenew)
	var sections []context.Context
	var waiters []*asking
	for i := range 2 {
		section, err := p.NewLock(base(i)).Lock(ctx)
		c.check("lock", err)
		sections = append(sections, section)
		waiters = append(waiters, w.start(ctx, q.NewLock(base(i))))
		within("queued", func() bool { return queued(i) })
	}
	within("the lease is renewed", func() bool { return renewals() > 0 })
	c.check("unlock", p.NewLock(base(0)).Unlock(sections[0]))
	within("handed over", func() bool { return !waiters[0].waiting() })
	if !waiters[0].waiting() {
		c.check("waiter", waiters[0].err)
		c.check("unlock", q.NewLock(base(0)).Unlock(waiters[0].section))
	}
	// A subscription that nobody needs ends while the connection is in use for another, and one that is gone is skipped.
	within("the subscription ends", func() bool { return !heard(0) && heard(1) })
	c.check("add", w.all.ZAdd(ctx, "relock:"+base(1)+":queue", redis.Z{Score: 1, Member: "gone:1:1|gone|30000"}).Err())
	c.check("unlock", p.NewLock(base(1)).Unlock(sections[1]))
	within("handed over", func() bool { return !waiters[1].waiting() })
	if !waiters[1].waiting() {
		c.check("waiter", waiters[1].err)
		c.check("unlock", q.NewLock(base(1)).Unlock(waiters[1].section))
	}
	c.check("close", p.Close())
	c.check("close", q.Close())
	return c.all()
}

func TestTheCommandsForAnACLUserOfAClusterAreEnoughAndNoneIsTooMany(t *testing.T) {
	w := onCluster(t)
	w.loadScripts()
	all := append(slices.DeleteFunc(slices.Clone(aclCommands), func(c string) bool { return slices.Contains(aclNotInCluster, c) }), aclInCluster...)
	without := func(command string) []string {
		return allow(slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == command })...)
	}

	var tours sync.WaitGroup
	results := map[string][]string{}
	var mu sync.Mutex
	for _, command := range append([]string{"none", "pubsub|numsub"}, aclInCluster...) {
		if command == "command" || command == "asking" {
			continue // their turn comes below
		}
		c := &complaints{}
		options := []relock.Option{
			relock.WithTTL(3 * time.Second), relock.WithLogger(slog.New(c)),
			relock.WithHooks(relock.Hooks{Renewed: func(e relock.Renewed) { c.check("renew", e.Err) }}),
		}
		name := "no-" + strings.ReplaceAll(command, "|", "-")
		p, q := w.user(name, without(command), options...), w.user(name, without(command), options...)
		patience := 3 * time.Second // what is refused does not come by waiting
		if command == "none" {
			patience = 2 * ample
		}
		tours.Go(func() {
			wrong := w.tour(p, q, c, name, patience)
			mu.Lock()
			defer mu.Unlock()
			results[command] = wrong
		})
	}
	tours.Wait()
	for command, wrong := range results {
		if command == "none" {
			require.Empty(t, wrong, "the list is enough")
		} else {
			require.NotEmpty(t, wrong, "%s could go", command)
		}
	}

	// A slot that moves is followed with ASKING.
	spread := w.oneForEachMaster()
	whole, half := w.user("whole", allow(all...)), w.user("half", without("asking"))
	l := whole.NewLock(spread[0])
	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), l)
	w.awaitWaiters(spread[0], 1)
	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	move.MoveKeys()
	_, err := l.State(t.Context())
	require.NoError(t, err)
	_, err = half.NewLock(spread[0]).State(t.Context())
	require.ErrorContains(t, err, "NOPERM")
	move.Finish()
	w.leave(section, l, ample)
	w.leave(waiter.in(ample), l, ample)

	// go-redis asks for the table of commands, once. Where it may not it asks again and again.
	asked := whole.faults.Commands("COMMAND")
	require.LessOrEqual(t, asked, 1)
	annoying := w.user("annoying", without("command"))
	for range 5 {
		l := annoying.NewLock(spread[0])
		w.leave(w.enter(t.Context(), l, ample), l, ample)
	}
	require.Greater(t, annoying.faults.Commands("COMMAND"), 5, "it works without, but costs a command each time")
	require.NoError(t, w.all.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.FlushAll(ctx).Err() // what the lacking ones could not take back
	}))
}

// ---------------------------------------------------------------------------------------------------------------------
// Messages that arrive, and are not counted.

// A replica takes SSUBSCRIBE for the slots of its master, and hands on what that publishes; but SPUBLISH does not count who
// hears it there. A client with an old map of the cluster gets into that position after a failover.
func TestAGrantHeardThroughAReplicaIsNotBelieved(t *testing.T) {
	const ttl = 3 * time.Second
	w := onCluster(t)
	holder, waiting, third := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer()
	l, wl := holder.NewLock("a"), waiting.NewLock("a")
	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	oldMap := waiting.faults.On(redistest.Named("CLUSTER"), redistest.Answer("-LOADING no map today"))
	old := w.cluster.MasterFor("a")
	master := w.cluster.FailoverFor("a")
	redistest.Eventually(t, ample, func() bool { return oldMap.Hits() > 0 && shardChannels(t, old) == 1 }, "it hears the replica")
	w.leave(section, l, ample)
	// Wherever it hears, it must not get in while Redis says otherwise, and no later than at the end of a lease.
	if !w.within(500*time.Millisecond, waiter.done) {
		oldMap.Remove()
	}
	mine := waiter.in(ttl + ample)
	w.requireOwner("a", mine)
	_, err := third.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	oldMap.Remove()
	w.leave(mine, wl, ample)

	// It has found out where the lock is.
	section = w.enter(t.Context(), l, ample)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	require.Equal(t, 1, w.pubsubs(master, waiting))
	start := time.Now()
	w.leave(section, l, ample)
	mine = waiter.in(ample)
	require.Less(t, time.Since(start), ttl/2+time.Duration(w.late.Load()), "by the grant")
	w.leave(mine, wl, ample)
}

// beforeSeven makes the servers of a cluster as deaf to sharded pub/sub as those before Redis 7. Only the error to PUBSUB
// SHARDNUMSUB is another one.
var beforeSeven = []string{
	"--rename-command", "SSUBSCRIBE", "", "--rename-command", "SUNSUBSCRIBE", "", "--rename-command", "SPUBLISH", "",
	"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-pubsub|shardnumsub",
}

func TestAClusterWithoutShardedPubSubIsServedByPlainPubSub(t *testing.T) {
	shared := onCluster(t, beforeSeven...)
	t.Run("promptly", func(t *testing.T) { plainPubSub(shared.in(t)) })
	t.Run("also when slots move, and then without two holders", func(t *testing.T) { plainPubSubOnAMovedSlot(shared.in(t)) })
}

func plainPubSub(w *field) {
	t := w.t
	holder, waiting := w.peer(), w.peer()
	for _, name := range w.oneForEachMaster() {
		for range 2 { // the first finds out
			l, wl := holder.NewLock(name), waiting.NewLock(name)
			section := w.enter(t.Context(), l, ample)
			c := &crowd{w: w.arena}
			c.enter(section, l)
			for range 5 {
				c.joins(wl)
			}
			w.awaitWaiters(name, 5)
			require.Equal(t, 1, w.pubsubs(w.cluster.MasterFor(name), waiting))
			start := time.Now()
			c.leave(section)
			w.leave(section, l, ample)
			c.through(ample, 6)
			require.Less(t, time.Since(start), ample, "by grants, not by leases")
		}
	}
	// Those who have not waited, and so have not found out, hand on all the same.
	require.Error(t, w.cluster.MasterFor("a").Client().PubSubShardNumSub(t.Context(), "x").Err())
	fresh := w.peer()
	l := fresh.NewLock("a")
	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), waiting.NewLock("a"))
	w.awaitWaiters("a", 1)
	w.leave(section, l, ample)
	w.leave(waiter.in(ample), waiter.lock, ample)
}

// Plain subscriptions stay when a slot moves. Messages still arrive, by way of the bus between the nodes, and nobody counts
// them.
func plainPubSubOnAMovedSlot(w *field) {
	t := w.t
	const ttl = 3 * time.Second
	names := w.oneForEachMaster()
	name := names[0]
	holder, waiting, third := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl)), w.peer()
	l, wl := holder.NewLock(name), waiting.NewLock(name)
	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters(name, 1)
	from, to := w.cluster.MasterFor(name), w.cluster.MasterFor(names[1])
	// This one stays where it is, and keeps the connection there.
	stays := "stays"
	for i := 0; w.cluster.MasterFor(stays) != from; i++ {
		stays = fmt.Sprint("stays", i)
	}
	staying := w.enter(t.Context(), holder.NewLock(stays), ample)
	stayer := w.start(t.Context(), waiting.NewLock(stays))
	w.awaitWaiters(stays, 1)
	heardAt := func(server *redistest.Server, name string) bool {
		channels, err := server.Client().PubSubChannels(t.Context(), baseKey(name)+":*").Result()
		require.NoError(t, err)
		return len(channels) > 0
	}
	require.True(t, heardAt(from, name))
	w.cluster.MoveSlot(name, to)
	w.leave(section, l, ample)
	mine := waiter.in(ttl + ample)
	w.requireOwner(name, mine)
	_, err := third.NewLock(name).TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	w.leave(mine, wl, ample)

	section = w.enter(t.Context(), l, ample)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters(name, 1)
	require.Equal(t, 1, w.pubsubs(to, waiting), "it has found out where the lock is")
	require.True(t, heardAt(to, name))
	redistest.Eventually(t, ample, func() bool { return !heardAt(from, name) }, "and has unsubscribed where it was")
	start := time.Now()
	w.leave(section, l, ample)
	mine = waiter.in(ample)
	require.Less(t, time.Since(start), ttl/2+time.Duration(w.late.Load()), "by the grant")
	w.leave(mine, wl, ample)
	require.True(t, heardAt(from, stays))
	w.leave(staying, holder.NewLock(stays), ample)
	w.leave(stayer.in(ample), stayer.lock, ample)
}
