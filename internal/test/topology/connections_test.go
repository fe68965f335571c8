package topology_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What do locks cost on a cluster that is well, in commands and connections?

func TestOnAClusterThatIsWell(t *testing.T) {
	shared := stage.OnCluster(t)
	for name, test := range map[string]func(*stage.ClusterArena){
		"a hand-over costs what it costs on one server":    handOverInACluster,
		"clients of every kind share their locks":          clientsOfEveryKind,
		"names with a hash tag share a slot and a command": sharedSlot,
		"one pub/sub connection leads to each master":      onePubSubConnectionForEachMaster,
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
