package relocketcd_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/store"
)

func requireOwner(t testing.TB, s store.Store, a store.Claim) {
	t.Helper()
	state, err := s.Look(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, a.ID, state.Owner)
}

func begins(t testing.TB, c *call) {
	t.Helper()
	select {
	case <-c.begun:
	case <-time.After(10 * time.Second):
		require.FailNow(t, "does not happen: the call begins")
	}
}

// A Release frees a hold, and its etcd lease and its key serve the next hold. A Forget of the old
// hold is on its way meanwhile.
func TestAForgetBesideAReleaseSparesTheNextHold(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	first := claim("beside", minute)
	l, err := s.Try(t.Context(), first)
	require.NoError(t, err)
	late := w.hold("/Txn", false)
	forgotten := make(chan error, 1)
	go func() { forgotten <- s.Forget(t.Context(), []store.Claim{first})[0] }()
	begins(t, late)
	require.NoError(t, s.Release(t.Context(), l))
	next, err := s.Try(t.Context(), claim("beside", minute))
	require.NoError(t, err)
	close(late.goOn)
	require.NoError(t, <-forgotten)
	requireOwner(t, s, next.Claim)
	require.NoError(t, s.Release(t.Context(), next))
	require.NoError(t, s.Close())
}

// A command that is given up comes late. Forget confirms only when its etcd lease is gone, so that
// the command has no effect.
func TestAForgottenCommandCannotComeLate(t *testing.T) {
	var w wire
	c := w.client(t)
	s := newStore(t, c)
	a := claim("late", minute)
	late := w.hold("/Txn", true)
	_, err := s.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	w.refuse("/LeaseRevoke", rpctypes.ErrGRPCRequestTooManyRequests)
	require.Error(t, s.Forget(t.Context(), []store.Claim{a})[0], "the command may come yet")
	require.NoError(t, s.Forget(t.Context(), []store.Claim{a})[0])
	close(late.goOn)
	<-late.done
	require.Empty(t, keys(t, c, a.Name))
}

// A Try is not sent, and is repeated. The first one may come yet, so the etcd lease serves no other
// hold.
func TestATryThatIsRepeatedIsUnsure(t *testing.T) {
	var w wire
	c := w.client(t)
	s := newStore(t, c)
	a := claim("repeated", minute)
	late := w.hold("/Txn", true)
	_, err := s.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	l, err := s.Try(t.Context(), a)
	require.NoError(t, err)
	require.True(t, l.Unsure)
	require.NoError(t, s.Release(t.Context(), l))
	other, err := s.Try(t.Context(), claim("beside the repeated", minute))
	require.NoError(t, err)
	close(late.goOn)
	<-late.done
	requireOwner(t, s, a)
	require.NoError(t, s.Forget(t.Context(), []store.Claim{a})[0])
	requireOwner(t, s, other.Claim)
	require.NoError(t, s.Release(t.Context(), other))
	require.Empty(t, keys(t, c, a.Name))
}

// The process has passed the lock on, and nothing else has changed in etcd.
func TestATokenThatIsDrawnIsNewerThanTheHold(t *testing.T) {
	s := newStore(t, connect(t))
	l, err := s.Try(t.Context(), claim("drawn", minute))
	require.NoError(t, err)
	passed := l
	passed.Token = 0
	token, err := s.Token(t.Context(), passed)
	require.NoError(t, err)
	require.Greater(t, token, l.Token)
	require.NoError(t, s.Release(t.Context(), l))
}

// A renewal meets an Enter that gives the hold a longer etcd lease.
func TestARenewalBesideALongerLeaseIsNoLoss(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	l, err := s.Try(t.Context(), claim("longer", 5*time.Second))
	require.NoError(t, err)
	renewal := []store.Renewal{{Lease: l, TTL: 5 * time.Second, Count: 1}}
	late := w.hold("/LeaseKeepAlive", false)
	renewed := make(chan error, 1)
	go func() { renewed <- s.Renew(t.Context(), renewal)[0] }()
	begins(t, late)
	longer := l
	longer.TTL = minute
	_, err = s.Enter(t.Context(), longer, 1)
	require.NoError(t, err)
	close(late.goOn)
	require.NotErrorIs(t, <-renewed, store.ErrGone)
	require.NoError(t, s.Renew(t.Context(), renewal)[0])
	require.NoError(t, s.Release(t.Context(), l))
}

// A Release frees a hold, and its etcd lease serves the next hold. An Enter has given the old hold a
// longer etcd lease, and does not know that yet.
func TestALongerLeaseBesideAReleaseSparesTheNextHold(t *testing.T) {
	var w wire
	s := newStore(t, w.client(t))
	l, err := s.Try(t.Context(), claim("longer-released", 5*time.Second))
	require.NoError(t, err)
	longer := l
	longer.TTL = minute
	grant := w.hold("/LeaseGrant", false)
	entered := make(chan error, 1)
	go func() { _, err := s.Enter(t.Context(), longer, 1); entered <- err }()
	begins(t, grant)
	answer := w.holdReply("/Txn")
	close(grant.goOn)
	begins(t, answer)
	require.NoError(t, s.Release(t.Context(), l))
	next, err := s.Try(t.Context(), claim("longer-released", 5*time.Second))
	require.NoError(t, err)
	close(answer.goOn)
	require.NoError(t, <-entered)
	requireOwner(t, s, next.Claim)
	require.NoError(t, s.Release(t.Context(), next))
}

// A thousand locks with names of their own, some at once, leave a few etcd leases, and no key.
func TestAThousandLocksLeaveNoKeyAndFewLeases(t *testing.T) {
	const goroutines, locks = 10, 100
	c := connect(t, etcdtest.Start(t, 1)...)
	s := newStore(t, c)
	client, err := relock.Open(s)
	require.NoError(t, err)
	var group sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range goroutines {
		group.Go(func() {
			for n := range locks {
				lock := client.NewLock(fmt.Sprintf("once-%d-%d", i, n))
				section, err := lock.Lock(t.Context())
				if err == nil {
					err = lock.Unlock(section)
				}
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, client.Close())
	resp, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	require.Zero(t, resp.Count)
	leases, err := c.Leases(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, leases.Leases)
	require.LessOrEqual(t, len(leases.Leases), goroutines, "one for each lock at once")
	require.NoError(t, s.Close())
	leases, err = c.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}
