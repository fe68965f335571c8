package relock_test

import (
	"context"
	"fmt"
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

// Locks on a cluster. TestLocksInOtherSetupsKeepThePromises runs the whole suite there, and this
// file is about slots, masters and connections.

// field is an arena on a cluster.
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

// count counts the calls of a script that p sends from now on.
func (w *field) count(p *clusterPeer, script string) func() int {
	w.t.Helper()
	return w.counter(&peer{faults: p.faults}, script)
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

// keyOf is the base key of a lock. Many tests here name locks {slot}:lock.
func keyOf(name string) string {
	if strings.Contains(name, "{") {
		return relock.DefaultPrefix + name
	}
	return baseKey(name)
}

// owner is what Redis has for a lock: the hold and its count, or "" and 0.
func (w *field) owner(name string) (hold string, count int) {
	w.t.Helper()
	fields, err := w.all.HGetAll(context.Background(), keyOf(name)).Result()
	require.NoError(w.t, err)
	require.LessOrEqual(w.t, len(fields), 1, "one hold owns the lock: %v", fields)
	for field, value := range fields {
		hold = field
		count, err = strconv.Atoi(value)
		require.NoError(w.t, err)
	}
	return hold, count
}

func (w *field) awaitCount(name string, want int) {
	w.t.Helper()
	redistest.Eventually(w.t, ample, func() bool { _, count := w.owner(name); return count == want }, "the count is %d", want)
}

// requireOwner says that whoever is in has the lock in Redis too.
func (w *field) requireOwner(name string, section context.Context) { //nolint:revive // the section does not bound the call
	w.t.Helper()
	holder, _ := relock.HolderFrom(section)
	hold, _ := w.owner(name)
	require.True(w.t, strings.HasPrefix(hold, holder.String()+":"), "%s is in, and Redis says %q", holder, hold)
}

func (w *field) waiters(name string) int {
	return int(w.all.ZCard(context.Background(), keyOf(name)+":queue").Val())
}

func (w *field) awaitWaiters(name string, n int) {
	w.t.Helper()
	redistest.Eventually(w.t, ample, func() bool { return w.waiters(name) == n }, "%d wait for %q", n, name)
}

func (w *field) awaitFree(name string) {
	w.t.Helper()
	redistest.Eventually(w.t, ample, func() bool {
		n, err := w.all.Exists(context.Background(), keyOf(name), keyOf(name)+":queue").Result()
		return err == nil && n == 0
	}, "%q is free and nobody is queued", name)
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
	section := w.enter(w.t.Context(), l, ample)
	waiter := w.start(w.t.Context(), next)
	w.awaitWaiters(l.Name(), 1)
	w.leave(section, l, ample)
	mine := waiter.in(ample)
	w.requireOwner(l.Name(), mine)
	w.leave(mine, next, ample)
}

func TestOnAClusterThatIsWell(t *testing.T) {
	shared := onCluster(t)
	for name, test := range map[string]func(*field){
		"a hand-over costs what it costs on one server":        handOverInACluster,
		"clients of every kind share their locks":              clientsOfEveryKind,
		"a lost reply is asked for again, by us alone":         lostReplyInACluster,
		"names with a hash tag share a slot and a command":     sharedSlot,
		"one pub/sub connection leads to each master":          onePubSubConnectionForEachMaster,
		"a thousand locks over all slots are held and renewed": aThousandLocks,
	} {
		t.Run(name, func(t *testing.T) {
			w := shared.in(t)
			w.loadScripts()
			test(w)
		})
	}
}

func handOverInACluster(w *field) {
	p, q := w.peer(), w.peer()
	for _, name := range w.oneForEachMaster() {
		l, other := p.NewLock(name), q.NewLock(name)
		w.handOver(l, other) // scripts and connections
		section := w.enter(w.t.Context(), l, ample)
		waiter := w.start(w.t.Context(), other)
		w.awaitWaiters(name, 1)
		before, asked := w.count(p, luaRelease), q.faults.Commands("EVALSHA")
		w.leave(section, l, ample)
		mine := waiter.in(ample)
		require.Equal(w.t, 1, before())
		require.Equal(w.t, asked, q.faults.Commands("EVALSHA"), "the message is enough")
		w.leave(mine, other, ample)
	}
}

func clientsOfEveryKind(w *field) {
	p := w.peer()
	reader := w.peerOn(func(o *redis.ClusterOptions) { o.ReadOnly, o.RouteRandomly = true, true })
	wrapped, err := relock.New(struct{ *redis.ClusterClient }{p.rdb})
	require.NoError(w.t, err)
	w.closing(wrapped, p.faults)
	for _, name := range w.oneForEachMaster() {
		for _, c := range []*relock.Client{reader.Client, wrapped} {
			w.handOver(p.NewLock(name), c.NewLock(name))
			w.handOver(c.NewLock(name), p.NewLock(name))
			w.handOver(c.NewLock(name), c.NewLock(name))
		}
	}
}

func lostReplyInACluster(w *field) {
	t := w.t
	const name = "a"
	for _, how := range breaks {
		p := w.peer()
		l := p.NewLock(name)
		acquires, renewals, releases := w.count(p, luaAcquire), w.count(p, luaRenew), w.count(p, luaRelease)
		lose := func(script string) { p.faults.Once(w.script(script), redistest.DropReply(how)) }
		lose(luaAcquire)
		outer := w.enter(t.Context(), l, ample)
		require.Equal(t, 2, acquires())
		lose(luaRenew)
		before := renewals()
		inner := w.enter(outer, l, ample)
		require.GreaterOrEqual(t, renewals(), before+2)
		w.awaitCount(name, 2)
		lose(luaRenew)
		w.leave(inner, l, ample)
		w.awaitCount(name, 1)
		lose(luaRelease)
		w.leave(outer, l, ample)
		require.Equal(t, 2, releases())
		w.awaitFree(name)
	}
}

func sharedSlot(w *field) {
	t := w.t
	p := w.peer(relock.WithTTL(3 * time.Second))
	cart, mail := p.NewLock("{user:7}:cart"), p.NewLock("{user:7}:mail")
	first, second := w.enter(t.Context(), cart, ample), w.enter(t.Context(), mail, ample)
	w.draw(first, cart)
	slots := map[int]bool{}
	for _, key := range redistest.Keys(t, w.all) {
		if strings.Contains(key, "user:7") {
			slots[w.cluster.Slot(key)] = true
		}
	}
	require.Len(t, slots, 1)
	sleepUntil(time.Now().Add(300 * time.Millisecond)) // behind the renewals that find the control channel
	renewals := w.count(p, luaRenew)
	redistest.Eventually(t, ample, func() bool { return renewals() > 0 }, "they are renewed")
	redistest.Eventually(t, ample, func() bool {
		return cart.Remaining(first) > 2*time.Second && mail.Remaining(second) > 2*time.Second
	}, "both of them")
	require.Equal(t, 1, renewals(), "by one command")
	w.leave(first, cart, ample)
	w.leave(second, mail, ample)
}

func onePubSubConnectionForEachMaster(w *field) {
	t := w.t
	const locks = 30
	holder, waiting := w.peer(), w.peer()
	name := func(i int) string { return fmt.Sprint("lock", i) }
	var sections []context.Context
	var waiters []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(name(i)), ample))
		waiters = append(waiters, w.start(t.Context(), waiting.NewLock(name(i))))
		w.awaitWaiters(name(i), 1)
	}
	control := 0
	for _, m := range w.masters() {
		require.Equal(t, 1, w.pubsubs(m, waiting), "at %s", m.Addr())
		require.Positive(t, shardChannels(t, m), "the locks are spread")
		control += w.pubsubs(m, holder)
	}
	require.LessOrEqual(t, control, 1, "a client that never waits has its control channel only")
	for i := range locks {
		w.leave(sections[i], holder.NewLock(name(i)), ample)
		w.leave(waiters[i].in(ample), waiters[i].lock, ample)
	}
}

func aThousandLocks(w *field) {
	t := w.t
	const locks, ttl = 1000, 3 * time.Second
	var failed atomic.Int64
	p := w.peer(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{
		Renewed: func(r relock.Renewed) { failed.Add(int64(r.Failed)) },
	}))
	renewals := w.count(p, luaRenew)
	sections := make([]context.Context, locks)
	lock := func(i int) *relock.Lock { return p.NewLock(fmt.Sprint("many", i)) }
	var errs names
	each := func(f func(i int) error) {
		t.Helper()
		var all sync.WaitGroup
		for first := range 10 {
			all.Go(func() {
				for i := first; i < locks; i += 10 {
					errs.check(f(i))
				}
			})
		}
		require.NoError(t, w.call(30*time.Second, func() error { all.Wait(); return nil }))
		require.Empty(t, errs.all())
	}
	start := time.Now()
	each(func(i int) (err error) {
		sections[i], err = lock(i).Lock(context.Background()) //nolint:fatcontext // one each
		return err
	})
	p.faults.Reset()
	before := renewals()
	sleepUntil(time.Now().Add(ttl + ttl/4))
	intervals := float64(time.Since(start)) / float64(ttl/3)
	for i := range locks {
		require.True(t, lock(i).Held(sections[i]), "%d: %v", i, context.Cause(sections[i]))
	}
	// Each lock has a slot of its own, and so a command, but commands share round trips.
	sent, trips := renewals()-before, p.faults.Stats().RoundTrips
	require.Zero(t, failed.Load())
	require.GreaterOrEqual(t, sent, 3*locks)
	require.LessOrEqual(t, float64(sent), (intervals+2)*locks*1.2)
	require.Less(t, trips, sent/10, "%d commands", sent)
	each(func(i int) error { return lock(i).Unlock(sections[i]) })
}

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

// apartOnTheWay: while a slot migrates, Redis refuses a call for several locks if some of the keys
// are elsewhere. Each lease is renewed all the same.
func apartOnTheWay(w *field) {
	t := w.t
	const ttl = 1500 * time.Millisecond
	names := w.oneForEachMaster()
	to := w.cluster.MasterFor(names[2])
	for i, gone := range []bool{false, true} { // the key of the other lock is gone, or has not moved
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
		sleepUntil(time.Now().Add(ttl + ttl/2))
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

// everyStepOfAMove: a slot moves key by key, and the slot itself comes last. In between the old
// master answers ASK for a lock whose keys have moved. Both masters answer TRYAGAIN for a lock whose
// keys are on both sides or are not all there.
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
		before := renewals()
		redistest.Eventually(t, ample, func() bool { return renewals() > before+1 }, "a renewal is sent while %s", what)
		redistest.Eventually(t, ample, func() bool { return w.all.PTTL(t.Context(), baseKey(name)).Val() > ttl/2 }, "and arrives")
	}

	outer := w.enter(t.Context(), l, ample)
	section := w.enter(outer, l, ample)
	token := w.draw(section, l)
	other := w.enter(t.Context(), alone, ample)
	first := w.start(t.Context(), wl)
	w.awaitWaiters(name, 1)

	move := w.cluster.BeginMove(name, to)
	second := w.start(t.Context(), wl)
	w.awaitWaiters(name, 2)
	_, err := ll.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "all of its keys are there, so nothing has changed")

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
	w.awaitCount(name, 1)
	// A lock without a queue has a key that exists on neither side: nobody serves it for now.
	leaving := make(chan error, 1)
	go func() { leaving <- alone.Unlock(other) }()
	before := late.faults.Commands()
	sleepUntil(time.Now().Add(500 * time.Millisecond))
	require.Less(t, late.faults.Commands()-before, 100, "a waiter that cannot be served does not ask all the time")
	require.True(t, first.waiting() && second.waiting() && third.waiting())
	require.NoError(t, outer.Err())

	move.Finish()
	require.NoError(t, w.call(ample, func() error { return <-leaving }))
	require.Same(t, to, w.cluster.MasterFor(name))
	w.awaitWaiters(name, 3)
	redistest.Eventually(t, ample, func() bool { return shardChannels(t, to) == 2 }, "both waiting clients listen at the new master")
	renewed("it is there")
	w.leave(outer, l, ample)
	for _, next := range []*asking{first, second, third} {
		mine := next.in(ample)
		w.requireOwner(name, mine)
		drawn := w.draw(mine, next.lock)
		require.Greater(t, drawn, token)
		token = drawn
		w.leave(mine, next.lock, ample)
	}
}

// handedOverBeforeAMove: the old master serves a slot that is about to move, but a script cannot
// make a key there, and cannot look at a key that does not exist (any more).
func handedOverBeforeAMove(w *field) {
	t := w.t
	spread := w.oneForEachMaster()
	holder, waiting := w.peer(), w.peer()
	held := func(lock string, waiters ...*clusterPeer) (section context.Context, l *relock.Lock, asked []*asking) {
		l = holder.NewLock("{" + spread[0] + "}:" + lock)
		section = w.enter(t.Context(), l, ample)
		for i, p := range waiters {
			asked = append(asked, w.start(t.Context(), p.NewLock(l.Name())))
			w.awaitWaiters(l.Name(), i+1)
		}
		return section, l, asked
	}
	gone := func(l *relock.Lock) { // a waiter that nothing reaches, before all others
		require.NoError(t, w.all.ZAdd(t.Context(), keyOf(l.Name())+":queue", redis.Z{Score: 1, Member: "gone:1:1|30000"}).Err())
	}
	one, oneLock, oneWaits := held("one", waiting)
	two, twoLock, twoWait := held("two", waiting, waiting)
	past, pastLock, pastWaits := held("past", waiting)
	gone(pastLock)
	none, noneLock, _ := held("none")
	gone(noneLock)
	force, forceLock, forceWaits := held("force", waiting)
	w.draw(force, forceLock) // State, and so ForceUnlock, looks at the token

	// The first waiter of this lock does not hear of its grant, and gives up.
	deaf := w.peer()
	late, lateLock, _ := held("late")
	ctx, cancel := context.WithCancel(t.Context())
	lateGone := w.start(ctx, deaf.NewLock(lateLock.Name()))
	w.awaitWaiters(lateLock.Name(), 1)
	lateWaits := w.start(t.Context(), waiting.NewLock(lateLock.Name()))
	w.awaitWaiters(lateLock.Name(), 2)

	move := w.cluster.BeginMove(spread[0], w.cluster.MasterFor(spread[1]))
	w.leave(one, oneLock, ample)
	granted := oneWaits[0].in(ample)
	w.leave(two, twoLock, ample)
	w.leave(twoWait[0].in(ample), twoWait[0].lock, ample)
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

// freedOnTheWay: the lock is freed where the slot is going to be, while its waiters can only listen
// where the slot still is.
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
	w.awaitFree(name)
}

func toAndFro(w *field) {
	t := w.t
	const workers = 12
	spread := w.oneForEachMaster()
	there, back := w.cluster.MasterFor(spread[0]), w.cluster.MasterFor(spread[1])
	guards := make([]witness, 3)
	peers := []*clusterPeer{w.peer(), w.peer(), w.peer()}
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
				errs.check(l.Do(context.Background(), func(section context.Context) error {
					g.enter(section, l)
					defer g.leave(section)
					<-time.After(time.Millisecond)
					return section.Err()
				}))
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

func TestWaitersGetInOneByOneAfterAClusterFailover(t *testing.T) {
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
			// Until the failover the cluster is down, also for locks of other masters.
			elsewhere := w.enter(t.Context(), holder.NewLock(names[1]), ample)
			replicated(t, w.all, "{"+name+"}")
			old := w.cluster.MasterFor(name)
			requireForgotten(t, w.cluster.ReplicaFor(name))

			way.fail(name)
			way.comeBack(old)
			require.NotSame(t, old, w.cluster.MasterFor(name))
			require.NoError(t, section.Err(), "the new master has the lock")
			w.leave(section, l, ample)
			w.awaitCount(name, 1)
			c.leave(section)
			w.leave(outer, l, ample)
			c.through(3*ample, 21)
			require.NoError(t, elsewhere.Err())
			w.leave(elsewhere, holder.NewLock(names[1]), ample)
			w.awaitFree(name)
			w.cluster.WaitReplica(name, old)
			require.NoError(t, old.Client().ScriptFlush(t.Context()).Err()) // for the next way
		})
	}
}

// Each thing that a client is doing must find the new master by itself, and long before go-redis
// reads the map of the cluster (ten seconds). A client that only holds locks sends renewals only.
func TestCallsInFlightWhenAMasterDiesAreDoneByTheNextOne(t *testing.T) {
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
		quitting = append(quitting, w.start(ctx, quitter.NewLock(kept.Name())))
	}
	w.awaitWaiters(kept.Name(), 5)
	replicated(t, w.all, "{a}")

	old, replica := w.cluster.MasterFor("a"), w.cluster.ReplicaFor("a")
	old.Kill()
	cancel()
	for _, q := range quitting {
		require.ErrorIs(t, q.out(time.Second), context.Canceled, "a waiter that gives up does not wait for a master")
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- left.Unlock(leaving) }()
	entering := w.start(t.Context(), free)
	require.Same(t, replica, w.cluster.MasterFor("a"))
	after := time.Now()

	redistest.Eventually(t, ttl, func() bool { // a lease from after the failover
		return section.Err() != nil || kept.Remaining(section) > ttl*3/4
	}, "the hold is renewed or lost")
	require.NoError(t, context.Cause(section))
	require.Less(t, time.Since(after), soon+w.lateness(), "renewals are sent all the time")
	require.NoError(t, w.call(ample, func() error { return <-unlocked }))
	w.leave(entering.in(ample), free, ample)
	w.awaitWaiters(kept.Name(), 0) // those who gave up leave nothing
	w.leave(section, kept, ample)
	old.Restart()
	w.cluster.WaitReplica("a", old)
}

// WAIT has no key. WAIT must go to the master of the lock, behind the script and on its connection.
func TestReplicaAcksInAClusterAreThoseOfTheSlotsMaster(t *testing.T) {
	w := onCluster(t)
	w.loadScripts()
	p, q := w.peer(acked()), w.peer(acked())
	names, masters := w.oneForEachMaster(), w.masters()
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
		l, other := p.NewLock(name), q.NewLock(name)
		section := w.enter(t.Context(), l, ample)
		for j, m := range masters {
			want := 0
			if i == j {
				want = 1
			}
			require.Equal(t, want, waits(m)-before[j], "WAIT for a lock of master %d at master %d", i, j)
		}
		waiter := w.start(t.Context(), other) // a grant is confirmed too
		w.awaitWaiters(name, 1)
		w.leave(section, l, ample)
		w.leave(waiter.in(ample), other, ample)
		require.GreaterOrEqual(t, waits(masters[i])-before[i], 2)
	}

	// A lock that was confirmed is there after a failover, and WAIT goes to the new master then.
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

// A replica takes SSUBSCRIBE for the slots of its master, and repeats what the master publishes. A
// client with an old map of the cluster gets there after a failover.
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
	redistest.Eventually(t, ample, func() bool { return oldMap.Hits() > 0 && shardChannels(t, old) == 1 }, "the waiter hears the replica")
	w.leave(section, l, ample)
	// The waiter must not get in while Redis says otherwise, and no later than at the end of a lease.
	if !w.within(500*time.Millisecond, waiter.done) {
		oldMap.Remove()
	}
	mine := waiter.in(ttl + ample)
	w.requireOwner("a", mine)
	_, err := third.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	oldMap.Remove()
	w.leave(mine, wl, ample)

	// The client has found the new master.
	section = w.enter(t.Context(), l, ample)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters("a", 1)
	require.Equal(t, 1, w.pubsubs(master, waiting))
	start := time.Now()
	w.leave(section, l, ample)
	mine = waiter.in(ample)
	require.Less(t, time.Since(start), ttl/2+w.lateness(), "by the message")
	w.leave(mine, wl, ample)
}

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
			section := w.enter(t.Context(), l, ample)
			c := &crowd{w: w.arena}
			c.enter(section, l)
			for range 5 {
				c.joins(waiting.NewLock(name))
			}
			w.awaitWaiters(name, 5)
			start := time.Now()
			c.leave(section)
			w.leave(section, l, ample)
			c.through(ample, 6)
			require.Less(t, time.Since(start), ttl/2+w.lateness(), "by messages, not by leases")
		}
	}
	// A client that has never waited, and so has not found out, hands over all the same.
	w.handOver(third.NewLock(names[0]), waiting.NewLock(names[0]))

	// Plain subscriptions stay when a slot moves. Their messages come over the bus of the cluster, and
	// nobody counts them.
	l, wl := holder.NewLock(names[0]), waiting.NewLock(names[0])
	section := w.enter(t.Context(), l, ample)
	waiter := w.start(t.Context(), wl)
	w.awaitWaiters(names[0], 1)
	w.cluster.MoveSlot(names[0], w.cluster.MasterFor(names[1]))
	w.leave(section, l, ample)
	mine := waiter.in(ttl + ample)
	w.requireOwner(names[0], mine)
	_, err := third.NewLock(names[0]).TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	w.leave(mine, wl, ample)
	section = w.enter(t.Context(), l, ample)
	waiter = w.start(t.Context(), wl)
	w.awaitWaiters(names[0], 1)
	start := time.Now()
	w.leave(section, l, ample)
	mine = waiter.in(ample)
	require.Less(t, time.Since(start), ttl/2+w.lateness(), "the client has found out where the lock is")
	w.leave(mine, wl, ample)
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
		for w.waiters(l.Name()) == 0 && waiter.waiting() {
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
			errs.check(l.Unlock(waiter.section))
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
	section := w.enter(t.Context(), l, ample)
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
	w.leave(section, l, ample)
	w.leave(waiter.in(ample), l, ample)
	require.NoError(t, w.all.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.FlushAll(ctx).Err() // what users who may not do everything have left
	}))
}
