//go:build !memory

package soak

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// TestSoak runs in each world for the time in RELOCK_SOAK (default 4s). RELOCK_SEED repeats the
// random choices, and not the timing. TestSoak checks that
//
//   - the history of each round keeps the promises: exclusion of the holds that are believed in,
//     counts, tokens that grow, entries and exits of the own hold only, no loss without a reason,
//     and the answers of the store;
//   - a lost section is told of the loss (TestSoakOfForcedLocks checks that of forced locks);
//   - every call returns soon after the end of its context;
//   - at the end everybody can lock, and nothing is left;
//   - calm rounds keep what trouble would excuse, see calmly.
func TestSoak(t *testing.T) {
	duration, seed := settings(t)
	for _, name := range slices.Sorted(maps.Keys(worlds)) {
		t.Run(name, func(t *testing.T) {
			redistest.NoGoroutineLeft(t)
			s := newSoak(t, seed, worlds[name])
			defer s.keep(name)
			s.run(duration, s.trouble)
			require.Positive(t, s.entered())
		})
	}
}

// worlds are the worlds in real time.
var worlds = map[string]setting{
	"redis":         onRedis,
	"redis-cluster": onACluster,
	"redisson":      inRedissonsLayout,
	"sentinel":      onSentinel,
	"postgres":      onPostgres,
	"pgbouncer":     onPgBouncer,
	"mariadb":       onMariaDB,
	"sqlite":        onSQLite,
	"etcd":          onEtcd,
	"etcd-users":    onEtcdOfUsers,
	"zookeeper":     onZooKeeper,
	"quorum-3":      onThree,
	"quorum-5":      onFive,
}

// TestSoakOfForcedLocks makes no trouble but ForceUnlock, in a third of the time. In TestSoak a
// holder may rightly never learn that its lock was forced. Here the holder must learn of the Force
// within a lease, or with the last Unlock.
func TestSoakOfForcedLocks(t *testing.T) {
	duration, seed := settings(t)
	set := onRedis
	set.patience = nothingTwice
	s := newSoak(t, seed, set)
	s.run(max(duration/3, 3*s.ttl), s.forces)
	require.Positive(t, s.did["ForceUnlock: ok"])
}

// TestSoakConvictsBrokenStores breaks the stores of each world in all ways, or of three worlds in one
// way if RELOCK_SOAK is less than a minute. Each broken store is found out within a minute. Only fake
// time can judge how long a waiter sleeps, and only a store with a queue can serve the wrong waiter.
func TestSoakConvictsBrokenStores(t *testing.T) {
	duration, seed := settings(t)
	all := slices.DeleteFunc(slices.Sorted(maps.Keys(defects)), func(way string) bool { return way == sleeps })
	for i, name := range slices.Sorted(maps.Keys(worlds)) {
		ways := all
		if at := i + int(seed%1000); duration < time.Minute {
			if at%len(worlds) >= 3 {
				continue
			}
			ways = []string{all[at%len(all)]}
		}
		if only := os.Getenv("RELOCK_DEFECT"); only != "" {
			ways = []string{only}
		}
		for _, way := range ways {
			if set := worlds[name]; way == lastFirst && (set.mode.Redisson || set.races) {
				continue
			}
			t.Run(name+"/"+way, func(t *testing.T) {
				redistest.NoGoroutineLeft(t)
				s := newSoak(t, seed, worlds[name].broken(way))
				require.NotEmpty(t, s.find(3*s.ttl), "nothing is found in a minute")
				t.Logf("found after %s", time.Since(s.began).Round(time.Second/10))
			})
		}
	}
}

// find makes rounds until one breaks a promise, for a minute at most. find returns what is broken.
func (s *soak) find(length time.Duration) (wrong string) {
	for round := uint64(0); wrong == "" && time.Since(s.began) < time.Minute; round++ {
		if round%calmEvery == 0 {
			s.calmly(round)
		}
		if len(s.wrong.list()) == 0 {
			s.round(round, length, s.trouble)
		}
		wrong = s.check(round)
	}
	return wrong
}

// lockless is a world whose transactions take no lock.
type lockless struct{ *database }

func (lockless) transact(_ context.Context, _ *peer, _ string, work func()) error {
	work()
	return nil
}

func TestSoakConvictsTransactionsWithoutTheirLock(t *testing.T) {
	_, seed := settings(t)
	set := onSQLite
	set.begin = func(s *soak) world { return lockless{startSQLite(s).(*database)} }
	s := newSoak(t, seed, set)
	require.NotEmpty(t, s.find(s.ttl), "nothing is found in a minute")
}
