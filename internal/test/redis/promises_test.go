package redis_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/locktest"
)

// Do locks in other setups keep the promises of package locktest?

// onRedis is the harness of locks in Redis. Each process has a go-redis client of its own, which
// dial makes. The subtests share a server, as locktest uses new names for each.
func onRedis(dial func() redis.UniversalClient, options ...relock.Option) locktest.Harness {
	return locktest.Harness{
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			rdb := dial()
			return locktest.Server{
				NewClient: func(more ...relock.Option) *relock.Client {
					t.Helper()
					c, err := relock.New(dial(), append(options, more...)...)
					require.NoError(t, err)
					return c
				},
				Lose: func(name string) {
					t.Helper()
					for _, key := range []string{name, stage.BaseKey(name)} { // in either layout
						require.NoError(t, rdb.Del(t.Context(), key).Err())
					}
				},
			}
		},
		Without:  map[locktest.Promise]string{},
		Short:    true,
		Parallel: true,
	}
}

// overRedisson is onRedis in Redisson's layout.
func overRedisson(dial func() redis.UniversalClient, options ...relock.Option) locktest.Harness {
	h := onRedis(dial, stage.InRedisson(options...)...)
	h.Without = map[locktest.Promise]string{
		locktest.FIFO:      "Redisson's lock has no queue: whoever asks first has the lock",
		locktest.Names:     "Redis knows a hold by a field that looks like one of Redisson's",
		locktest.Kinds:     "relock's own layout only",
		locktest.Deadlocks: "the fields that Redis shows are not the holds that wait",
		locktest.Lending:   "relock's own layout only",
	}
	return h
}

// TestLocksInOtherSetupsKeepThePromises is about all but one server with relock's own layout; an
// AutoPipeline is in bench/, whose go-redis has one. The suites run in parallel,
// as they mostly wait for leases.
func TestLocksInOtherSetupsKeepThePromises(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	on := func(name string, test func(t *testing.T, server *redistest.Server)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, redistest.Start(t))
		})
	}
	dialer := func(server *redistest.Server) func() redis.UniversalClient {
		return func() redis.UniversalClient { return server.Client() }
	}
	on("Redisson's layout", func(t *testing.T, server *redistest.Server) {
		t.Helper()
		h := overRedisson(dialer(server))
		h.Without[locktest.Tokens] = "only a fenced lock of Redisson has tokens"
		h.Run(t)
	})
	on("Redisson's layout, fenced", func(t *testing.T, server *redistest.Server) {
		t.Helper()
		overRedisson(dialer(server), relock.WithRedissonFencing()).Run(t)
	})
	t.Run("a cluster", func(t *testing.T) {
		if testing.Short() {
			redistest.NotTested(t, "a cluster takes long to start")
		}
		t.Parallel()
		cluster := redistest.StartCluster(t)
		h := onRedis(func() redis.UniversalClient {
			rdb := cluster.Client()
			require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
				return node.Ping(ctx).Err() // calls with a short wait find connections
			}))
			return rdb
		})
		h.Replicas = 1
		h.Run(t)
	})
}
