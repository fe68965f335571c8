package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
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

func redisClaim(t *testing.T, s store.Store) store.Claim {
	t.Helper()
	a, err := s.Check(claim(minute))
	require.NoError(t, err)
	return a
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
