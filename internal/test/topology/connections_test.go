package topology_test

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
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What do locks cost on a cluster that is well, in commands and connections?

func TestOnAClusterThatIsWell(t *testing.T) {
	shared := stage.OnCluster(t)
	for name, test := range map[string]func(*stage.ClusterArena){
		"a hand-over costs what it costs on one server":        handOverInACluster,
		"clients of every kind share their locks":              clientsOfEveryKind,
		"a lost reply is asked for again, by us alone":         lostReplyInACluster,
		"names with a hash tag share a slot and a command":     sharedSlot,
		"one pub/sub connection leads to each master":          onePubSubConnectionForEachMaster,
		"a thousand locks over all slots are held and renewed": aThousandLocks,
	} {
		t.Run(name, func(t *testing.T) {
			w := shared.In(t)
			w.LoadScripts()
			test(w)
		})
	}
}

func handOverInACluster(w *stage.ClusterArena) {
	p, q := w.Peer(), w.Peer()
	for _, name := range w.OneForEachMaster() {
		l, other := p.NewLock(name), q.NewLock(name)
		w.HandOver(l, other) // scripts and connections
		section := w.Enter(w.T.Context(), l)
		waiter := w.Start(w.T.Context(), other)
		w.AwaitWaiters(name, 1)
		before, asked := w.Counter(p, stage.LuaRelease), q.Faults.Commands("EVALSHA")
		w.Leave(section, l)
		mine := waiter.Section()
		require.Equal(w.T, 1, before())
		require.Equal(w.T, asked, q.Faults.Commands("EVALSHA"), "the message is enough")
		w.Leave(mine, other)
	}
}

func clientsOfEveryKind(w *stage.ClusterArena) {
	p := w.Peer()
	reader := w.PeerOn(func(o *redis.ClusterOptions) { o.ReadOnly, o.RouteRandomly = true, true })
	wrapped, err := relock.New(struct{ *redis.ClusterClient }{p.RDB})
	require.NoError(w.T, err)
	w.Closing(wrapped, p.Faults)
	for _, name := range w.OneForEachMaster() {
		for _, c := range []*relock.Client{reader.Client, wrapped} {
			w.HandOver(p.NewLock(name), c.NewLock(name))
			w.HandOver(c.NewLock(name), p.NewLock(name))
			w.HandOver(c.NewLock(name), c.NewLock(name))
		}
	}
}

func lostReplyInACluster(w *stage.ClusterArena) {
	t := w.T
	const name = "a"
	for _, how := range stage.Breaks {
		p := w.Peer()
		l := p.NewLock(name)
		acquires, renewals, releases := w.Counter(p, stage.LuaAcquire), w.Counter(p, stage.LuaRenew), w.Counter(p, stage.LuaRelease)
		lose := func(script string) { p.Faults.Once(w.Script(script), redistest.DropReply(how)) }
		lose(stage.LuaAcquire)
		outer := w.Enter(t.Context(), l)
		require.Equal(t, 2, acquires())
		lose(stage.LuaRenew)
		before := renewals()
		inner := w.Enter(outer, l)
		require.GreaterOrEqual(t, renewals(), before+2)
		w.AwaitCount(name, 2)
		lose(stage.LuaRenew)
		w.Leave(inner, l)
		w.AwaitCount(name, 1)
		lose(stage.LuaRelease)
		w.Leave(outer, l)
		require.Equal(t, 2, releases())
		w.RequireFree(name)
	}
}

func sharedSlot(w *stage.ClusterArena) {
	t := w.T
	p := w.Peer(relock.WithTTL(3 * time.Second))
	cart, mail := p.NewLock("{user:7}:cart"), p.NewLock("{user:7}:mail")
	first, second := w.Enter(t.Context(), cart), w.Enter(t.Context(), mail)
	w.Draw(first, cart)
	slots := map[int]bool{}
	for _, key := range redistest.Keys(t, w.All) {
		if strings.Contains(key, "user:7") {
			slots[w.Cluster.Slot(key)] = true
		}
	}
	require.Len(t, slots, 1)
	stage.SleepUntil(time.Now().Add(300 * time.Millisecond)) // behind the renewals that find the control channel
	renewals := w.Counter(p, stage.LuaRenew)
	redistest.Eventually(t, w.Limit, func() bool { return renewals() > 0 }, "they are renewed")
	redistest.Eventually(t, w.Limit, func() bool {
		return cart.Remaining(first) > 2*time.Second && mail.Remaining(second) > 2*time.Second
	}, "both of them")
	require.Equal(t, 1, renewals(), "by one command")
	w.Leave(first, cart)
	w.Leave(second, mail)
}

func onePubSubConnectionForEachMaster(w *stage.ClusterArena) {
	t := w.T
	const locks = 30
	holder, waiting := w.Peer(), w.Peer()
	name := func(i int) string { return fmt.Sprint("lock", i) }
	var sections []context.Context
	var waiters []*stage.Attempt
	for i := range locks {
		sections = append(sections, w.Enter(t.Context(), holder.NewLock(name(i))))
		waiters = append(waiters, w.Start(t.Context(), waiting.NewLock(name(i))))
		w.AwaitWaiters(name(i), 1)
	}
	control := 0
	for _, m := range w.Masters() {
		require.Equal(t, 1, w.Pubsubs(m, waiting), "at %s", m.Addr())
		require.Positive(t, stage.ShardChannels(t, m), "the locks are spread")
		control += w.Pubsubs(m, holder)
	}
	require.LessOrEqual(t, control, 1, "a client that never waits has its control channel only")
	for i := range locks {
		w.Leave(sections[i], holder.NewLock(name(i)))
		w.Leave(waiters[i].Section(), waiters[i].Lock)
	}
}

func aThousandLocks(w *stage.ClusterArena) {
	t := w.T
	const locks, ttl = 1000, 3 * time.Second
	var failed atomic.Int64
	p := w.Peer(relock.WithTTL(ttl), relock.WithHooks(event.Hooks{
		Renewed: func(r event.Renewed) { failed.Add(int64(r.Failed)) },
	}))
	renewals := w.Counter(p, stage.LuaRenew)
	sections := make([]context.Context, locks)
	lock := func(i int) *relock.Lock { return p.NewLock(fmt.Sprint("many", i)) }
	var errs stage.Texts
	each := func(f func(i int) error) {
		t.Helper()
		var all sync.WaitGroup
		for first := range 10 {
			all.Go(func() {
				for i := first; i < locks; i += 10 {
					errs.Check(f(i))
				}
			})
		}
		require.NoError(t, w.Within(30*time.Second).Call(func() error { all.Wait(); return nil }))
		require.Empty(t, errs.All())
	}
	start := time.Now()
	each(func(i int) (err error) {
		sections[i], err = lock(i).Lock(context.Background())
		return err
	})
	p.Faults.Reset()
	before := renewals()
	stage.SleepUntil(time.Now().Add(ttl + ttl/4))
	intervals := float64(time.Since(start)) / float64(ttl/3)
	for i := range locks {
		require.True(t, lock(i).Held(sections[i]), "%d: %v", i, context.Cause(sections[i]))
	}
	// Each lock has a slot of its own, and so a command, but commands share round trips.
	sent, trips := renewals()-before, p.Faults.Stats().RoundTrips
	require.Zero(t, failed.Load())
	require.GreaterOrEqual(t, sent, 3*locks)
	require.LessOrEqual(t, float64(sent), (intervals+2)*locks*1.2)
	require.Less(t, trips, sent/10, "%d commands", sent)
	each(func(i int) error { return lock(i).Unlock(sections[i]) })
}
