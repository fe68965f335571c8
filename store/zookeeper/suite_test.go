package relockzk_test

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/storetest"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

// long is a session for the leases of the suites.
var long = relockzk.WithSessionTimeout(20 * time.Minute)

// lose deletes the node with a lock.
func lose(t *testing.T, conn *zk.Conn, lock string) {
	t.Helper()
	node := lock + "/" + nodes(t, conn, lock)[0]
	require.NoError(t, retry(t, func() error { return conn.Delete(node, -1) }))
}

func TestZooKeeperKeepsThePromisesOfStores(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	storetest.Run(t, storetest.Harness{
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			return storetest.Server{
				New: func() store.Store {
					return open(t, server.Address(), relockzk.WithRoot("/stores"), long)
				},
				Interrupt: func() func() { server.Pause(); return server.Resume },
				Lose:      func(name string) { lose(t, conn, "/stores/"+name) },
			}
		},
		Without: map[storetest.Promise]string{
			storetest.Acks:         "a majority of ZooKeeper has every hold already",
			storetest.Several:      "each lock has a queue of its own",
			storetest.WaitGraph:    "the store shows no waits",
			storetest.Semaphores:   "Curator's semaphores have another layout",
			storetest.ReaderTokens: "nothing is left of the last writer",
			storetest.Lending:      "Redis and memory only",
			storetest.Announcing:   "followers look by themselves",
			storetest.Asking:       "a node is not written for a message",
		},
		Parallel:  true,
		BadNames:  []string{"/", "a//b", "a/", "a/./b", "a/../b", ".", "..", "a\x00b", "a\x1fb"},
		SameNames: [][2]string{{"orders", "/orders"}, {"orders/42", "/orders/42"}},
	})
}

func TestLocksInZooKeeperKeepThePromises(t *testing.T) {
	server := zktest.Start(t)
	conn := admin(t, server.Address())
	locktest.Harness{
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			return locktest.Server{
				NewClient: func(options ...relock.Option) *relock.Client {
					c, err := relock.Open(open(t, server.Address(), relockzk.WithRoot("/locks"), long), options...)
					require.NoError(t, err)
					return c
				},
				Lose: func(name string) { lose(t, conn, "/locks/"+name) },
			}
		},
		Short:    true,
		Parallel: true,
		Without: map[locktest.Promise]string{
			locktest.Acks:         "a majority of ZooKeeper has every hold already",
			locktest.Rest:         "ZooKeeper does not tell when a session was last heard of",
			locktest.Semaphores:   "Curator's semaphores have another layout",
			locktest.ReaderTokens: "nothing is left of the last writer",
			locktest.Deadlocks:    "the store shows no waits",
			locktest.Lending:      "Redis and memory only",
		},
	}.Run(t)
}
