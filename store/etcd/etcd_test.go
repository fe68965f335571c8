package relocketcd_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/storetest"
)

// lose returns a function that deletes the key of the hold that has a lock.
func lose(t *testing.T, c *clientv3.Client) func(name string) {
	t.Helper()
	return func(name string) {
		resp, err := c.Get(t.Context(), "relock/"+name+"/", clientv3.WithFirstCreate()...)
		require.NoError(t, err)
		for _, kv := range resp.Kvs {
			_, err = c.Delete(t.Context(), string(kv.Key))
			require.NoError(t, err)
		}
	}
}

func TestEtcdKeepsThePromisesOfStores(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			m, c := etcdtest.Shared(t), connect(t)
			return storetest.Server{
				New:       func() store.Store { return newStore(t, c) },
				Interrupt: m.Pause,
				Lose:      lose(t, c),
			}
		},
		TTL:      time.Second,
		Parallel: true,
		BadNames: []string{"a/b", "/"},
		Without: map[storetest.Promise]string{
			storetest.Kinds:      "a lock of etcd's own package is a mutex",
			storetest.Acks:       "a majority has each hold on disk anyway",
			storetest.Several:    "each hold has a lease of its own",
			storetest.WaitGraph:  "no waits are shown",
			storetest.Lending:    "Redis and memory only",
			storetest.Announcing: "followers look by themselves",
		},
	})
}

func TestLocksInEtcdKeepThePromises(t *testing.T) {
	locktest.Harness{
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			c := connect(t)
			return locktest.Server{
				NewClient: func(options ...relock.Option) *relock.Client {
					client, err := relock.Open(newStore(t, c), options...)
					require.NoError(t, err)
					return client
				},
				Lose: lose(t, c),
			}
		},
		Short:    true,
		Parallel: true,
		Without: map[locktest.Promise]string{
			locktest.Acks:      "a majority has each hold on disk anyway",
			locktest.Kinds:     "a lock of etcd's own package is a mutex",
			locktest.Deadlocks: "no waits are shown",
			locktest.Lending:   "Redis and memory only",
		},
	}.Run(t)
}
