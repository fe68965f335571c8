package quorum_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
	"github.com/go-relock/relock/store/storetest"
)

const minute = time.Minute

// rig is a quorum of stores in memory.
type rig struct {
	*testing.T
	members []*mem.Store
	store   store.Store
}

func newRig(t *testing.T, n int) *rig {
	t.Helper()
	r := &rig{T: t}
	for range n {
		r.members = append(r.members, mem.New())
	}
	r.store = r.open()
	return r
}

// open returns the store of one more process.
func (r *rig) open() store.Store {
	r.Helper()
	return r.over(func(_ int, m *mem.Store) store.Store { return m })
}

// over returns the store of a process that sees its members through wrap.
func (r *rig) over(wrap func(i int, m *mem.Store) store.Store) store.Store {
	r.Helper()
	var members []store.Store
	for i, m := range r.members {
		members = append(members, wrap(i, m))
	}
	s, err := quorum.New(members...)
	require.NoError(r, err)
	r.Cleanup(func() { require.NoError(r, s.Close()) })
	return s
}

func (r *rig) interrupt(members ...int) (restore func()) {
	var restores []func()
	for _, i := range members {
		restores = append(restores, r.members[i].Interrupt(nil))
	}
	return func() {
		for _, restore := range restores {
			restore()
		}
	}
}

func (r *rig) lose(name string) {
	for _, m := range r.members {
		m.Lose(name)
	}
}

func claim(ttl time.Duration) store.Claim { return holds.Claim("orders", ttl) }

func (r *rig) try(ttl time.Duration) store.Lease {
	r.Helper()
	return holds.Take(r, r.store, claim(ttl))
}

// owners returns the owner of the lock at each member.
func (r *rig) owners() (owners []store.ID) {
	r.Helper()
	for _, m := range r.members {
		state, err := m.Look(r.Context(), store.Claim{Name: "orders"})
		if err != nil {
			state.Owner = "?"
		}
		owners = append(owners, state.Owner)
	}
	return owners
}

// memory is the harness of a quorum in memory, in fake time.
func memory() storetest.Harness {
	return storetest.Harness{
		Around: synctest.Test,
		Start: func(t *testing.T) storetest.Server {
			t.Helper()
			r := newRig(t, 3)
			return storetest.Server{
				New:       func() store.Store { return r.reopen() },
				Interrupt: func() func() { return r.interrupt(0, 1, 2) },
				Lose:      r.lose,
			}
		},
		Without: map[storetest.Promise]string{
			storetest.Acks:      "memory has no replicas",
			storetest.Kinds:     "a quorum lets one in at a time",
			storetest.Several:   "each lock has a round of its own",
			storetest.WaitGraph: "a quorum shows no waits",
			storetest.Lending:   "Redis and memory only",
		},
	}
}

// reopen is open, for a suite that closes the store.
func (r *rig) reopen() store.Store {
	s, err := quorum.New(r.members[0], r.members[1], r.members[2])
	require.NoError(r, err)
	return s
}

func TestQuorumInMemoryKeepsThePromisesOfStores(t *testing.T) {
	storetest.Run(t, memory())
}

func TestLocksOfAQuorumInMemoryKeepThePromises(t *testing.T) {
	locktest.Harness{
		Around: synctest.Test,
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			r := newRig(t, 3)
			return locktest.Server{
				NewClient: func(options ...relock.Option) *relock.Client {
					c, err := relock.Open(r.open(), options...)
					require.NoError(t, err)
					return c
				},
				Lose: r.lose,
			}
		},
		Without: map[locktest.Promise]string{
			locktest.Acks:      "memory has no replicas",
			locktest.Kinds:     "a quorum lets one in at a time",
			locktest.Deadlocks: "a quorum shows no waits",
			locktest.Lending:   "Redis and memory only",
		},
	}.Run(t)
}

// TestOnlyTheFenceStopsAHolderThatPauses has a holder pause beyond its lease, and go on to write.
// No number of servers keeps it from that: the resource does, as it knows the newer token.
func TestOnlyTheFenceStopsAHolderThatPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3)
		var resource fence.Memory
		enter := func() (l *relock.Lock, section context.Context, token int64) {
			c, err := relock.Open(r.open())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			l = c.NewLock("orders", relock.WithFixedLease(time.Second)) // as nothing renews the lease in a pause
			section, err = l.Lock(t.Context())
			require.NoError(t, err)
			token, err = l.Token(section)
			require.NoError(t, err)
			return l, section, token
		}
		late, paused, old := enter()
		next, section, token := enter() // waits for the end of the lease
		leave, err := resource.Enter(section, "orders", token)
		require.NoError(t, err)
		leave()
		require.NoError(t, next.Unlock(section))
		_, err = resource.Enter(context.WithoutCancel(paused), "orders", old) // it does not look at its context
		require.ErrorIs(t, err, fence.ErrStale)
		require.ErrorIs(t, late.Unlock(paused), relock.ErrLockLost)
	})
}
