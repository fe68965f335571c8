package relock_test

import (
	"context"
	"fmt"
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

// What do locks cost on a cluster that is well, in commands and connections?

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
		section := w.enter(w.t.Context(), l)
		waiter := w.start(w.t.Context(), other)
		w.awaitWaiters(name, 1)
		before, asked := w.counter(p, luaRelease), q.faults.Commands("EVALSHA")
		w.leave(section, l)
		mine := waiter.section()
		require.Equal(w.t, 1, before())
		require.Equal(w.t, asked, q.faults.Commands("EVALSHA"), "the message is enough")
		w.leave(mine, other)
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
		acquires, renewals, releases := w.counter(p, luaAcquire), w.counter(p, luaRenew), w.counter(p, luaRelease)
		lose := func(script string) { p.faults.Once(w.script(script), redistest.DropReply(how)) }
		lose(luaAcquire)
		outer := w.enter(t.Context(), l)
		require.Equal(t, 2, acquires())
		lose(luaRenew)
		before := renewals()
		inner := w.enter(outer, l)
		require.GreaterOrEqual(t, renewals(), before+2)
		w.awaitCount(name, 2)
		lose(luaRenew)
		w.leave(inner, l)
		w.awaitCount(name, 1)
		lose(luaRelease)
		w.leave(outer, l)
		require.Equal(t, 2, releases())
		w.requireFree(name)
	}
}

func sharedSlot(w *field) {
	t := w.t
	p := w.peer(relock.WithTTL(3 * time.Second))
	cart, mail := p.NewLock("{user:7}:cart"), p.NewLock("{user:7}:mail")
	first, second := w.enter(t.Context(), cart), w.enter(t.Context(), mail)
	w.draw(first, cart)
	slots := map[int]bool{}
	for _, key := range redistest.Keys(t, w.all) {
		if strings.Contains(key, "user:7") {
			slots[w.cluster.Slot(key)] = true
		}
	}
	require.Len(t, slots, 1)
	sleepUntil(time.Now().Add(300 * time.Millisecond)) // behind the renewals that find the control channel
	renewals := w.counter(p, luaRenew)
	redistest.Eventually(t, w.limit, func() bool { return renewals() > 0 }, "they are renewed")
	redistest.Eventually(t, w.limit, func() bool {
		return cart.Remaining(first) > 2*time.Second && mail.Remaining(second) > 2*time.Second
	}, "both of them")
	require.Equal(t, 1, renewals(), "by one command")
	w.leave(first, cart)
	w.leave(second, mail)
}

func onePubSubConnectionForEachMaster(w *field) {
	t := w.t
	const locks = 30
	holder, waiting := w.peer(), w.peer()
	name := func(i int) string { return fmt.Sprint("lock", i) }
	var sections []context.Context
	var waiters []*attempt
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), holder.NewLock(name(i))))
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
		w.leave(sections[i], holder.NewLock(name(i)))
		w.leave(waiters[i].section(), waiters[i].lock)
	}
}

func aThousandLocks(w *field) {
	t := w.t
	const locks, ttl = 1000, 3 * time.Second
	var failed atomic.Int64
	p := w.peer(relock.WithTTL(ttl), relock.WithHooks(relock.Hooks{
		Renewed: func(r relock.Renewed) { failed.Add(int64(r.Failed)) },
	}))
	renewals := w.counter(p, luaRenew)
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
		require.NoError(t, w.within(30*time.Second).call(func() error { all.Wait(); return nil }))
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
