package relockk8s_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/storetest"
)

// lose deletes the Lease of a lock.
func (s *server) lose(name string) {
	s.t.Helper()
	require.NoError(s.t, s.leases().Delete(s.t.Context(), name, meta.DeleteOptions{}))
}

func TestKubernetesKeepsThePromisesOfStores(t *testing.T) {
	s := shared(t)
	storetest.Run(t, storetest.Harness{
		Start: func(*testing.T) storetest.Server {
			return storetest.Server{
				New:       func() store.Store { return s.store() },
				Interrupt: s.pause,
				Lose:      s.lose,
			}
		},
		TTL:      time.Second,
		Parallel: true,
		BadNames: []string{"Orders", "a/b", "a_b", "-a", "a.", "a:b"},
		Without: map[storetest.Promise]string{
			storetest.FIFO:       "waiters race",
			storetest.Kinds:      "a Lease has one holder",
			storetest.Acks:       "a majority of etcd has each hold on disk anyway",
			storetest.Several:    "each lock is an object of its own",
			storetest.WaitGraph:  "no waits are shown",
			storetest.Lending:    "Redis and memory only",
			storetest.Announcing: "followers look by themselves",
			storetest.Queueing:   "waiters race",
			storetest.Asking:     "a Lease is not written for a message",
		},
	})
}

func TestLocksInKubernetesKeepThePromises(t *testing.T) {
	s := shared(t)
	locktest.Harness{
		Start: func(*testing.T) locktest.Server {
			return locktest.Server{
				NewClient: func(options ...relock.Option) *relock.Client {
					c, err := relock.Open(s.store(), options...)
					require.NoError(t, err)
					return c
				},
				Lose: s.lose,
			}
		},
		Short:    true,
		Parallel: true,
		Without: map[locktest.Promise]string{
			locktest.FIFO:      "waiters race",
			locktest.AnyName:   "a lock is an object, and has the name of one",
			locktest.Rest:      "a client counts a lease from its first look",
			locktest.Acks:      "a majority of etcd has each hold on disk anyway",
			locktest.Kinds:     "a Lease has one holder",
			locktest.Deadlocks: "no waits are shown",
			locktest.Lending:   "Redis and memory only",
		},
	}.Run(t)
}
