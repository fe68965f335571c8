package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/quorum"
	"github.com/go-relock/relock/store"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // go-redis logs every connection that a fault breaks
	os.Exit(redistest.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// peer is one process for the store: a relock client with a way of its own to the store, and faults
// on that way.
type peer struct {
	*relock.Client
	rdb    redis.UniversalClient // nil: the store is in memory
	links  []*link               // to the stores in memory; none: the store is Redis
	store  store.Store           // over links
	faults *redistest.Faults

	up, down time.Duration // to the server and back, without trouble
}

// newPeer makes a peer that gives up a silent connection after patience.
func (s *soak) newPeer(patience time.Duration) *peer {
	s.t.Helper()
	p := &peer{faults: redistest.NewFaults()}
	var err error
	if len(s.memory) > 0 {
		p.open(s)
		p.Client, err = relock.Open(p.store, relock.WithTTL(ttl))
		require.NoError(s.t, err)
		return p
	}
	o := &redis.UniversalOptions{
		IsClusterMode: s.cluster,
		ReadTimeout:   patience,
		WriteTimeout:  patience,
		DialTimeout:   max(patience, 500*time.Millisecond),
		DialerRetries: 1,
	}
	if s.fake {
		s.world.options(o)
		o.Dialer = p.faults.Dialer(s.world.dial)
		p.faults.On(s.world.noHotLoop, redistest.Action{})
		p.up, p.down = distance(rand.New(rand.NewPCG(s.seed, uint64(len(s.peers)+len(s.retired)))), patience)
		p.faults.DelayOneWay(p.up, p.down)
	} else {
		o.Addrs, o.Dialer = []string{s.server.Addr()}, p.faults.Dialer(nil)
	}
	p.rdb = redis.NewUniversalClient(o)
	options := []relock.Option{relock.WithTTL(ttl)}
	if s.redisson {
		options = append(options, relock.WithRedissonLayout(), relock.WithRedissonFencing())
	}
	p.Client, err = relock.New(p.rdb, options...)
	require.NoError(s.t, err)
	return p
}

// open makes the store of a peer over the stores in memory.
func (p *peer) open(s *soak) {
	var members []store.Store
	for i, m := range s.memory {
		k := s.newLink(m, len(s.memory)*(len(s.peers)+len(s.retired))+i)
		p.links, members = append(p.links, k), append(members, k)
	}
	p.store = members[0]
	if s.quorum {
		var err error
		p.store, err = quorum.New(members...)
		require.NoError(s.t, err)
	}
}

// end ends the process. Nobody uses the client any more.
func (p *peer) end() {
	p.heal()
	_ = p.Close()
	if p.store != nil {
		_ = p.store.Close()
	}
	if p.rdb != nil {
		_ = p.rdb.Close()
	}
	p.faults.Close()
}

// heal ends all faults.
func (p *peer) heal() {
	p.faults.Heal()
	for _, k := range p.links {
		k.setOdds(0)
	}
}

// within fails the test, with the stacks of all goroutines, if f does not return in time.
func within(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("after %s: %s\n%s", limit, what, stacks())
	}
}

// requireTidy waits until nothing is left that a lock in use would leave.
func (s *soak) requireTidy() {
	s.t.Helper()
	if len(s.memory) == 0 {
		requireTidy(s.t, s.plain)
		return
	}
	redistest.Eventually(s.t, ttl+slack, func() bool {
		for _, name := range s.names() {
			state, err := lockOf(s.admin, name).State(context.Background())
			if err != nil || state.Locked() || state.Waiters > 0 {
				return false
			}
		}
		return true
	}, "every lock is free, and nobody waits")
}

// requireTidy waits until nothing is left in Redis that a lock in use would leave.
func requireTidy(t testing.TB, rdb *redis.Client) {
	t.Helper()
	var left []string
	redistest.Eventually(t, ttl+slack, func() bool {
		left = slices.DeleteFunc(redistest.Keys(t, rdb), func(key string) bool {
			return strings.HasSuffix(key, ":token") || strings.Contains(key, ":loans:") || // used tickets, until they expire
				strings.HasPrefix(key, "redisson_lock_token:")
		})
		left = append(left, redistest.Subscriptions(t, rdb)...)
		return len(left) == 0
	}, "everything is gone from Redis but tokens and used tickets; keys or subscriptions left: %q", &left)
}

// names collects broken promises.
type names struct {
	mu  sync.Mutex
	all []string
}

func (n *names) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

func (n *names) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// baseKey is the key of a lock.
func (s *soak) baseKey(name string) string {
	switch {
	case s.redisson:
		return name
	case strings.Contains(name, "{"):
		return "relock:" + name
	default:
		return "relock:{" + name + "}"
	}
}

// untilDone waits until ctx is done, and says whether that was in time.
func untilDone(ctx context.Context, limit time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	default:
	}
	select {
	case <-ctx.Done():
		return true
	case <-time.After(limit):
		return false
	}
}
