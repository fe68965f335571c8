package relocksql_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/storetest"
)

// around runs a subtest of a suite beside the other subtests. Those of SQLite run one by one, as they
// need the processor, and the others wait for a server.
func (d *database) around(t *testing.T, body func(*testing.T)) {
	t.Helper()
	if d.proxy != nil {
		t.Parallel()
	}
	body(t)
}

func TestStoreKeepsThePromisesOfStores(t *testing.T) {
	t.Parallel()
	onEach(t, func(d *rig) {
		t := d.T
		d.leavesNothing(t)
		without := map[storetest.Promise]string{
			storetest.Acks:       "whether a COMMIT waits for replicas is a setting of the database",
			storetest.Several:    "each lock is a transaction of its own",
			storetest.WaitGraph:  "the store shows no waits",
			storetest.Lending:    "Redis and memory only",
			storetest.Announcing: "followers look by themselves",
		}
		if !d.listens {
			without[storetest.Watch] = "without a Listener the next renewal finds that a hold is gone"
			without[storetest.Asking] = "without a Listener nobody hears"
		}
		storetest.Run(t, storetest.Harness{
			TTL: time.Second,
			Start: func(t *testing.T) storetest.Server {
				t.Helper()
				d := d.own(t)
				return storetest.Server{
					New:       func() store.Store { return d.store(t) },
					Interrupt: func() func() { return d.interrupt(t) },
					Lose:      func(name string) { d.lose(t, name) },
				}
			},
			Around:  d.around,
			Without: without,
		})
	})
}

func TestLocksKeepThePromises(t *testing.T) {
	t.Parallel()
	onEach(t, func(d *rig) {
		t := d.T
		d.leavesNothing(t)
		without := map[locktest.Promise]string{
			locktest.Acks:      "whether a COMMIT waits for replicas is a setting of the database",
			locktest.Deadlocks: "the store shows no waits",
			locktest.Lending:   "Redis and memory only",
		}
		if !d.listens {
			without[locktest.Watch] = "without a Listener the next renewal finds that a hold is gone"
		}
		locktest.Harness{
			Start: func(t *testing.T) locktest.Server {
				t.Helper()
				d := d.own(t)
				return locktest.Server{
					NewClient: func(options ...relock.Option) *relock.Client {
						c, err := relock.Open(d.store(t), options...)
						require.NoError(t, err)
						return c
					},
					Lose: func(name string) { d.lose(t, name) },
				}
			},
			Around:  d.around,
			Short:   true,
			Without: without,
		}.Run(t)
	})
}
