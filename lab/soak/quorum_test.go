package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

// The worlds of quorums of Redis servers. At most a minority of the members is in trouble at a time,
// unless all of them are, for less than a lease.
var (
	onThree = setting{begin: startQuorum(3), ttl: time.Second, patience: severalTries, mode: history.Mode{Quorum: true}}
	onFive  = setting{begin: startQuorum(5), ttl: time.Second, patience: severalTries, mode: history.Mode{Quorum: true}}
)

type quorumWorld struct {
	*soak
	members []*redistest.Server
	plain   []*redis.Client // without faults
}

func startQuorum(n int) func(*soak) world {
	return func(s *soak) world {
		w := &quorumWorld{soak: s}
		for range n {
			member := redistest.Start(s.t)
			w.members = append(w.members, member)
			w.plain = append(w.plain, member.Client(func(o *redis.Options) { o.ReadTimeout = nothingTwice }))
		}
		return w
	}
}

// quorumWay is the way of one peer to each member.
type quorumWay struct {
	nets []*redistest.Faults
	stop func()
}

func (y *quorumWay) heal() {
	for _, net := range y.nets {
		net.Heal()
		net.Delay(0)
	}
}

func (y *quorumWay) near() {}
func (y *quorumWay) last() { y.heal() }
func (y *quorumWay) end()  { y.stop() }

func (w *quorumWorld) join(patience time.Duration) *peer {
	w.t.Helper()
	y := &quorumWay{}
	var members []store.Store
	var clients []*redis.Client
	for _, m := range w.members {
		net := redistest.NewFaults()
		rdb := redis.NewClient(&redis.Options{
			Addr: m.Addr(), Dialer: net.Dialer(nil), ReadTimeout: patience, WriteTimeout: patience,
			DialTimeout: max(patience, 500*time.Millisecond), DialerRetries: 1,
		})
		// A member that was emptied says nothing for as long as a lease may last.
		s, err := relock.RedisStore(rdb, relock.WithRestartDelay(2*w.ttl))
		require.NoError(w.t, err)
		y.nets, clients, members = append(y.nets, net), append(clients, rdb), append(members, s)
	}
	over, err := quorum.New(members...)
	require.NoError(w.t, err)
	y.stop = func() {
		_ = over.Close()
		for i, rdb := range clients {
			_ = rdb.Close()
			y.nets[i].Close()
		}
	}
	return &peer{w.open(over), y}
}

func (w *quorumWorld) settle() {
	for _, rdb := range w.plain {
		require.NoError(w.t, rdb.Ping(context.Background()).Err())
	}
}

func (w *quorumWorld) left() (all []string) {
	for i, rdb := range w.plain {
		one := redisWorld{soak: w.soak, plain: rdb}
		for _, key := range one.left() {
			all = append(all, fmt.Sprintf("member %d: %s", i, key))
		}
	}
	return all
}

func (w *quorumWorld) troubles() []troubles {
	return []troubles{{60 * time.Millisecond, w.onNetworks}, {600 * time.Millisecond, w.atServers}}
}

func (w *quorumWorld) onNetworks(random *rand.Rand) []fault {
	scripts := redistest.Named("EVALSHA", "EVAL")
	net := func() *redistest.Faults {
		nets := w.anyone(random).way.(*quorumWay).nets
		return nets[random.IntN(len(nets))]
	}
	how := func() redistest.Break {
		return []redistest.Break{redistest.EOF, redistest.Reset, redistest.Silence}[random.IntN(3)]
	}
	return []fault{
		{"reply lost", 6, func() { net().Once(scripts, redistest.DropReply(how())) }},
		{"script sent twice", 3, func() { net().Once(scripts, redistest.Duplicate(2, redistest.First)) }},
		{"connections cut", 3, func() { net().Cut() }},
		{"pub/sub cut", 2, func() { net().CutPubSub() }},
		{"partition", 3, func() {
			n := net()
			n.Partition()
			w.pause(upTo(random, 3*w.ttl/2))
			n.Heal()
		}},
		{"slow network", 3, func() {
			n := net()
			n.Delay(upTo(random, 50*time.Millisecond))
			w.pause(upTo(random, 200*time.Millisecond))
			n.Delay(0)
		}},
	}
}

func (w *quorumWorld) atServers(random *rand.Rand) []fault {
	anyIndex := func() int { return random.IntN(len(w.members)) }
	return append(w.anywhere(random), []fault{
		{"member stopped", 3, func() {
			m := w.members[anyIndex()]
			m.Pause()
			w.pause(upTo(random, 2*w.ttl))
			m.Resume()
		}},
		{"all members stopped", 1, func() {
			for _, m := range w.members {
				m.Pause()
			}
			w.pause(upTo(random, w.ttl/2))
			for _, m := range w.members {
				m.Resume()
			}
		}},
		{"member restarted empty", 1, func() { w.restart(anyIndex()) }},
		{"lock deleted on a member", 2, func() {
			// A hold may be on two members of three. A member that forgets it, and serves, lets others in.
			name, one := w.anyName(random), redisWorld{soak: w.soak}
			w.gone(history.Op{Kind: history.Wipe}, []string{name}, func() error {
				return w.plain[anyIndex()].Del(context.Background(), one.baseKey(name)).Err()
			})
		}},
	}...)
}

// restart restarts a member without its data, and returns when the member serves again.
func (w *quorumWorld) restart(i int) {
	w.members[i].Kill()
	w.pause(upTo(w.another(), w.ttl/4))
	w.members[i].Restart()
	<-time.After(3 * w.ttl)
}
