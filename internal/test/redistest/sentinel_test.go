package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// One start serves all tests of sentinels: starting is the slowest part.
func TestSentinelsFailOverOnDemandAndWhenTheMasterIsKilledOrStops(t *testing.T) {
	t.Parallel() // it mostly waits
	s := redistest.StartSentinel(t)
	rdb := s.Client()
	ctx := t.Context()
	works := func() {
		t.Helper()
		redistest.Eventually(t, 10*time.Second, func() bool { return rdb.Set(ctx, "k", "v", 0).Err() == nil }, "the client found the master")
	}
	works()
	require.Len(t, s.Addrs(), 3)
	require.NotSame(t, s.Master(), s.Replica())

	replica := s.Replica()
	require.Same(t, replica, s.Failover())
	require.Same(t, replica, s.Master())
	works()

	replica = s.Replica()
	require.Same(t, replica, s.KillMaster())
	works()
	s.Replica().Restart()
	s.WaitReplica()

	replica = s.Replica()
	require.Same(t, replica, s.PauseMaster())
	s.Replica().Resume()
	works()
	s.WaitReplica()
	require.Empty(t, redistest.Subscriptions(t, s.Master().Client()))
}
