package quorum_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
	"github.com/go-relock/relock/store/storetest"
)

// The quorum over three real servers.

func startServers(t *testing.T) (servers []*redistest.Server) {
	t.Helper()
	for range 3 {
		servers = append(servers, redistest.Start(t))
	}
	return servers
}

// over returns the store of one process, with connections of its own.
func over(t *testing.T, servers []*redistest.Server, options ...relock.Option) store.Store {
	t.Helper()
	var members []store.Store
	for _, server := range servers {
		m, err := relock.RedisStore(server.Client(), options...)
		require.NoError(t, err)
		members = append(members, m)
	}
	s, err := quorum.New(members...)
	require.NoError(t, err)
	return s
}

// loseOn removes the holds of a lock, also of a name without a prefix.
func loseOn(t *testing.T, servers []*redistest.Server, name string) {
	t.Helper()
	for _, server := range servers {
		require.NoError(t, server.Client().Del(t.Context(), name, "relock:{"+name+"}").Err())
	}
}

func TestQuorumOfRedisKeepsThePromisesOfStores(t *testing.T) {
	servers := startServers(t)
	storetest.Run(t, storetest.Harness{
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			return storetest.Server{
				New: func() store.Store { return over(t, servers) },
				Interrupt: func() func() {
					for _, s := range servers {
						s.Pause()
					}
					return func() {
						for _, s := range servers {
							s.Resume()
						}
					}
				},
				Lose: func(name string) { loseOn(t, servers, name) },
			}
		},
		Without: map[storetest.Promise]string{
			storetest.Kinds:     "a quorum lets one in at a time",
			storetest.Several:   "each lock has a round of its own",
			storetest.WaitGraph: "a quorum shows no waits",
			storetest.Lending:   "Redis and memory only",
		},
		TTL:       time.Second,
		Parallel:  true,
		BadNames:  []string{"}", "{x}:queue"},
		SameNames: [][2]string{{"x", "{x}"}, {"x", "relock:{x}"}},
	})
}

func TestLocksOfAQuorumOfRedisKeepThePromises(t *testing.T) {
	servers := startServers(t)
	locktest.Harness{
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			return locktest.Server{
				NewClient: func(options ...relock.Option) *relock.Client {
					t.Helper()
					s := over(t, servers)
					c, err := relock.Open(s, options...)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, s.Close()) })
					return c
				},
				Lose: func(name string) { loseOn(t, servers, name) },
			}
		},
		Without: map[locktest.Promise]string{
			locktest.Kinds:     "a quorum lets one in at a time",
			locktest.Deadlocks: "a quorum shows no waits",
			locktest.Lending:   "Redis and memory only",
		},
		Short:    true,
		Parallel: true,
	}.Run(t)
}

// node is a member on its own server, as two processes reach it.
type node struct {
	server *redistest.Server
	clock  *redistest.Clock    // nil: the clock of the machine
	nets   []*redistest.Faults // of each process
}

// nodes starts the servers of a quorum for two processes.
func nodes(t *testing.T, n int, withClocks bool) (all []*node, one, other store.Store) {
	t.Helper()
	for range n {
		m := &node{nets: []*redistest.Faults{redistest.NewFaults(), redistest.NewFaults()}}
		if withClocks {
			m.server, m.clock = redistest.StartWithClock(t)
		} else {
			m.server = redistest.Start(t)
		}
		all = append(all, m)
	}
	stores := make([]store.Store, 2)
	for p := range stores {
		var members []store.Store
		for _, m := range all {
			t.Cleanup(m.nets[p].Close)
			rdb := m.server.Client(func(o *redis.Options) { o.Dialer = m.nets[p].Dialer(nil) })
			member, err := relock.RedisStore(rdb)
			require.NoError(t, err)
			members = append(members, member)
		}
		var err error
		stores[p], err = quorum.New(members...)
		require.NoError(t, err)
	}
	return all, stores[0], stores[1]
}

// onNets makes trouble in the networks of a member.
func (m *node) onNets(trouble func(*redistest.Faults)) (restore func()) {
	for _, net := range m.nets {
		trouble(net)
	}
	return func() {
		for _, net := range m.nets {
			net.Heal()
			net.Delay(0)
		}
	}
}

// minorityFaults is what may happen to a minority.
var minorityFaults = map[string]func(m *node) (restore func()){
	"stopped":     func(m *node) func() { m.server.Pause(); return m.server.Resume },
	"killed":      func(m *node) func() { m.server.Kill(); return m.server.Restart },
	"emptied":     func(m *node) func() { m.server.Kill(); m.server.Restart(); return func() {} },
	"partitioned": func(m *node) func() { return m.onNets((*redistest.Faults).Partition) },
	"slow":        func(m *node) func() { return m.onNets(func(f *redistest.Faults) { f.Delay(200 * time.Millisecond) }) },
	"clock ahead": func(m *node) func() { m.clock.Step(time.Hour); return func() {} },
	"clock back":  func(m *node) func() { m.clock.Step(-time.Hour); return func() {} },
}

// TestEachMinorityOfRedisMayFail lets clients lock while minorities of 3 and of 5 servers fail.
func TestEachMinorityOfRedisMayFail(t *testing.T) {
	for _, n := range []int{3, 5} {
		for name, fail := range minorityFaults {
			t.Run(fmt.Sprint(name, " of ", n), func(t *testing.T) {
				t.Parallel()
				all, s, other := nodes(t, n, strings.HasPrefix(name, "clock"))
				var minorities [][]int
				subsets(n, n/2, func(members []int) { minorities = append(minorities, members) })
				rand.Shuffle(len(minorities), func(i, j int) { minorities[i], minorities[j] = minorities[j], minorities[i] })
				var last int64
				for _, minority := range minorities[:2] {
					last = holdsThrough(t, all, minority, fail, s, other, last)
				}
				require.NoError(t, s.Close())
				require.NoError(t, other.Close())
			})
		}
	}
}

// holdsThrough lets a minority fail while one process has a lock and another waits for it, and
// returns the last token.
func holdsThrough(t *testing.T, all []*node, minority []int, fail func(m *node) func(), s, other store.Store, last int64) int64 {
	t.Helper()
	const ttl = minute
	first, a := redisClaim(t, s), redisClaim(t, s)
	first.TTL, a.TTL = ttl, ttl
	held, err := s.Try(t.Context(), first)
	require.NoError(t, err)
	var restores []func()
	for _, i := range minority {
		restores = append(restores, fail(all[i]))
	}
	require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: held, TTL: ttl, Count: 1}})[0], "members %d", minority)
	got := make(chan store.Lease, 1)
	go func() {
		l, err := other.Wait(t.Context(), a, nothing)
		if err == nil {
			got <- l
		}
	}()
	token, err := s.Token(t.Context(), held)
	require.NoError(t, err)
	require.Greater(t, token, last)
	require.NoError(t, s.Release(t.Context(), held))
	select {
	case held = <-got:
	case <-time.After(minute):
		require.FailNow(t, "the waiter does not get the lock", "members %d", minority)
	}
	require.Equal(t, a, held.Claim)
	held, err = other.Enter(t.Context(), held, 1)
	require.NoError(t, err)
	last, err = other.Token(t.Context(), held)
	require.NoError(t, err)
	require.Greater(t, last, token)
	require.NoError(t, other.Release(t.Context(), held))
	for _, restore := range restores {
		restore()
	}
	var servers []*redistest.Server
	for _, m := range all {
		servers = append(servers, m.server)
	}
	recovered(t, servers, s, first, a)
	recovered(t, servers, other, first, a)
	return last
}

// recovered waits until a hold gets the locks of all servers: nothing is left of the fault, nor of
// the claims, which a member may have that a release did not reach.
func recovered(t *testing.T, servers []*redistest.Server, s store.Store, claims ...store.Claim) {
	t.Helper()
	redistest.Eventually(t, minute, func() bool {
		s.Forget(t.Context(), claims)
		l, err := s.Try(t.Context(), redisClaim(t, s))
		all := err == nil
		for _, server := range servers {
			all = all && server.Client().HExists(t.Context(), claims[0].Name, string(l.ID)).Val()
		}
		s.Forget(t.Context(), []store.Claim{l.Claim})
		return all
	}, "all members serve again")
}

func redisClaim(t *testing.T, s store.Store) store.Claim {
	t.Helper()
	a, err := s.Check(claim(minute))
	require.NoError(t, err)
	return a
}

func TestADeadMajorityOfRedisIsUnavailable(t *testing.T) {
	servers := startServers(t)
	s := over(t, servers)
	servers[0].Kill()
	servers[2].Pause()
	_, err := s.Try(t.Context(), redisClaim(t, s))
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Empty(t, redistest.Keys(t, servers[1].Client()))
	servers[2].Resume()
	require.NoError(t, s.Close())
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	servers := startServers(t)
	s := over(t, servers)
	l, err := s.Try(t.Context(), redisClaim(t, s))
	require.NoError(t, err)
	servers[0].Pause()
	defer servers[0].Resume()
	require.NoError(t, s.Release(t.Context(), l))
	begun := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begun), bound.Of(8*time.Second)) // go-redis waits 5 s for a new connection
}

func TestCheckServerNamesTheMember(t *testing.T) {
	servers := startServers(t)
	s := over(t, servers)
	defer func() { require.NoError(t, s.Close()) }()
	checker, ok := s.(store.Checker)
	require.True(t, ok)
	require.NoError(t, checker.CheckServer(t.Context(), redisClaim(t, s)))
	for _, server := range servers {
		require.Empty(t, redistest.Keys(t, server.Client()))
	}
	twice := over(t, []*redistest.Server{servers[0], servers[1], servers[0]})
	defer func() { require.NoError(t, twice.Close()) }()
	require.ErrorContains(t, twice.(store.Checker).CheckServer(t.Context(), redisClaim(t, twice)), "they share a server")
	require.NoError(t, servers[1].Client().Do(t.Context(), "ACL", "SETUSER", "default", "-time").Err())
	err := checker.CheckServer(t.Context(), redisClaim(t, s))
	require.ErrorContains(t, err, "member 2: cannot")
	require.NotContains(t, err.Error(), "member 1")
}

// TestAnEmptyRestartLetsNobodyIn has a hold with two of three members lose one of them: the third
// was away, and the lost one comes back empty. Without the delay the next asker gets both.
func TestAnEmptyRestartLetsNobodyIn(t *testing.T) {
	const ttl = 4 * time.Second
	for what, options := range map[string][]relock.Option{"delayed": {relock.WithRestartDelay(ttl)}, "at once": nil} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers := startServers(t)
			s, other := over(t, servers), over(t, servers, options...)
			servers[2].Kill()
			a := redisClaim(t, s)
			a.TTL = ttl
			held, err := s.Try(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, s.Close()) // no command is on its way to the third
			servers[0].Kill()
			servers[0].Restart()
			servers[2].Restart()
			claim := redisClaim(t, other)
			_, err = other.Try(t.Context(), claim)
			if options == nil {
				require.NoError(t, err, "the fault is there")
				require.True(t, time.Now().Before(held.Until()))
			} else {
				for time.Now().Before(held.Until()) {
					_, err = other.Try(t.Context(), claim)
					require.Error(t, err)
				}
				redistest.Eventually(t, 2*ttl, func() bool {
					_, err = other.Try(t.Context(), redisClaim(t, other))
					return err == nil
				}, "the lock is given when the members have run for long enough")
			}
			require.NoError(t, other.Close())
		})
	}
}
