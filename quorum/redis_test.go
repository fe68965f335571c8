package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/quorum"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/storetest"
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
			storetest.Kinds:   "a quorum lets one in at a time",
			storetest.Several: "each lock has a round of its own",
			storetest.Waits:   "a quorum shows no waits",
		},
		TTL:       time.Second,
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
		},
		TTL: 500 * time.Millisecond,
	}.Run(t)
}

// TestEachMinorityOfRedisMayFail lets clients lock while each server in turn is stopped, killed, or
// loses its data.
func TestEachMinorityOfRedisMayFail(t *testing.T) {
	faults := map[string]func(s *redistest.Server) (restore func()){
		"stopped": func(s *redistest.Server) func() { s.Pause(); return s.Resume },
		"killed":  func(s *redistest.Server) func() { s.Kill(); return s.Restart },
		"emptied": func(s *redistest.Server) func() { s.Kill(); s.Restart(); return func() {} },
	}
	for name, fail := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := startServers(t)
			s, other := over(t, servers), over(t, servers)
			var last int64
			for i, server := range servers {
				held, err := s.Try(t.Context(), redisAsk(t, s))
				require.NoError(t, err)
				restore := fail(server)
				require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: held, TTL: minute, Count: 1}})[0], "member %d", i+1)
				a := redisAsk(t, s)
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
				require.NoError(t, s.Release(t.Context(), held, 0))
				select {
				case held = <-got:
				case <-time.After(10 * time.Second):
					require.FailNow(t, "the waiter does not get the lock", "member %d", i+1)
				}
				require.Equal(t, a, held.Ask)
				held, err = other.Enter(t.Context(), held, 1)
				require.NoError(t, err)
				last, err = other.Token(t.Context(), held)
				require.NoError(t, err)
				require.Greater(t, last, token)
				require.NoError(t, other.Release(t.Context(), held, 0))
				restore()
				recovered(t, servers, s, a)
				recovered(t, servers, other, a)
			}
			require.NoError(t, s.Close())
			require.NoError(t, other.Close())
		})
	}
}

// recovered waits until a hold gets the locks of all servers: nothing is left of the fault, nor of
// the ask a.
func recovered(t *testing.T, servers []*redistest.Server, s store.Store, a store.Ask) {
	t.Helper()
	redistest.Eventually(t, 10*time.Second, func() bool {
		s.Forget(t.Context(), []store.Ask{a})
		l, err := s.Try(t.Context(), redisAsk(t, s))
		all := err == nil
		for _, server := range servers {
			all = all && server.Client().HExists(t.Context(), a.Name, string(l.ID)).Val()
		}
		s.Forget(t.Context(), []store.Ask{l.Ask})
		return all
	}, "all members serve again")
}

func redisAsk(t *testing.T, s store.Store) store.Ask {
	t.Helper()
	a, err := s.Check(ask(minute))
	require.NoError(t, err)
	return a
}

func TestADeadMajorityOfRedisIsUnavailable(t *testing.T) {
	servers := startServers(t)
	s := over(t, servers)
	servers[0].Kill()
	servers[2].Pause()
	_, err := s.Try(t.Context(), redisAsk(t, s))
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.Empty(t, redistest.Keys(t, servers[1].Client()))
	servers[2].Resume()
	require.NoError(t, s.Close())
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	servers := startServers(t)
	s := over(t, servers)
	l, err := s.Try(t.Context(), redisAsk(t, s))
	require.NoError(t, err)
	servers[0].Pause()
	defer servers[0].Resume()
	require.NoError(t, s.Release(t.Context(), l, 0))
	begun := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begun), 5*time.Second)
}

func TestCheckServerNamesTheMember(t *testing.T) {
	servers := startServers(t)
	s := over(t, servers)
	defer func() { require.NoError(t, s.Close()) }()
	checker, ok := s.(store.Checker)
	require.True(t, ok)
	require.NoError(t, checker.CheckServer(t.Context(), redisAsk(t, s)))
	require.NoError(t, servers[1].Client().Do(t.Context(), "ACL", "SETUSER", "default", "-time").Err())
	err := checker.CheckServer(t.Context(), redisAsk(t, s))
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
			a := redisAsk(t, s)
			a.TTL = ttl
			held, err := s.Try(t.Context(), a)
			require.NoError(t, err)
			servers[0].Kill()
			servers[0].Restart()
			servers[2].Restart()
			ask := redisAsk(t, other)
			_, err = other.Try(t.Context(), ask)
			if options == nil {
				require.NoError(t, err, "the fault is there")
				require.True(t, time.Now().Before(held.Until()))
			} else {
				for time.Now().Before(held.Until()) {
					_, err = other.Try(t.Context(), ask)
					require.Error(t, err)
				}
				redistest.Eventually(t, 2*ttl, func() bool {
					_, err = other.Try(t.Context(), redisAsk(t, other))
					return err == nil
				}, "the lock is given when the members have run for long enough")
			}
			require.NoError(t, s.Close())
			require.NoError(t, other.Close())
		})
	}
}
