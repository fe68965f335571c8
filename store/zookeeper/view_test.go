package relockzk_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/tcptest"
	"github.com/go-relock/relock/internal/test/zktest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/zookeeper"
)

// A user who may not read the node of a waiter sees the lock as before, without its queue.
func TestAWaiterThatMayNotBeReadIsNotNamed(t *testing.T) {
	server := zktest.Start(t)
	closed := open(t, server.Address(), relockzk.WithACL(zk.DigestACL(zk.PermAll, "relock", "secret")...),
		relockzk.WithAuth("digest", []byte("relock:secret")))
	s := open(t, server.Address())
	l := take(t, s, 20*time.Second)
	w := wait(t, closed, 20*time.Second)
	state, err := s.Look(t.Context(), l.Claim)
	require.NoError(t, err)
	require.Equal(t, 1, state.Waiters)
	_, err = s.Waiters(t.Context(), l.Claim, 100)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, s.Release(t.Context(), l))
	require.NoError(t, closed.Release(t.Context(), w.Get(t)))
}

// TestWaitersAreReadTogether has a server that is far away. A State has two seconds for its queue,
// and a hundred reads one after the other would need four.
func TestWaitersAreReadTogether(t *testing.T) {
	server := zktest.Start(t)
	proxy := tcptest.NewProxy(t, server.Address())
	near, far := open(t, server.Address()), open(t, proxy.Address())
	l := take(t, near, 20*time.Second)
	var line []store.ID
	var waits []*holds.Waiter
	for range 32 {
		w := wait(t, near, 20*time.Second)
		line, waits = append(line, w.Claim.ID), append(waits, w)
	}
	_, err := far.Waiters(t.Context(), l.Claim, 1) // the session is there
	require.NoError(t, err)
	var mu sync.Mutex
	asked, most := 0, 0 // bytes of requests without an answer
	proxy.Delay(20 * time.Millisecond)
	proxy.Watch(func(request bool, data []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if asked += len(data); !request {
			asked = 0
		}
		most = max(most, asked)
		return false
	})
	found, err := far.Waiters(t.Context(), l.Claim, 100)
	require.NoError(t, err)
	proxy.Watch(nil)
	proxy.Resume()
	var named []store.ID
	for _, w := range found {
		named = append(named, w.ID)
	}
	require.Equal(t, line, named)
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, most, 8*len("/orders/_c_00000000-0000-0000-0000-000000000000-lock-0000000000"))
	require.NoError(t, near.Release(t.Context(), l))
	for _, w := range waits {
		require.NoError(t, near.Release(t.Context(), w.Get(t)))
	}
}
