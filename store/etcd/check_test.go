package relocketcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/etcdtest"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

// requireFault requires that a check ends soon, with one line about the first step that fails.
func requireFault(t *testing.T, s *relocketcd.Store, step, cause string) {
	t.Helper()
	begun := time.Now()
	err := s.CheckServer(t.Context(), claim("check", minute))
	t.Log(time.Since(begun), err)
	require.ErrorContains(t, err, step)
	require.ErrorContains(t, err, cause)
	require.NotContains(t, err.Error(), "\n")
	require.Less(t, time.Since(begun), bound.Of(10*time.Second))
}

func TestCheckServerNamesTheRightThatIsMissing(t *testing.T) {
	m, root := startWithUsers(t)
	ctx := t.Context()
	user := func(name string) *relocketcd.Store {
		_, err := root.RoleAdd(ctx, name)
		require.NoError(t, err)
		_, err = root.UserAdd(ctx, name, name)
		require.NoError(t, err)
		_, err = root.UserGrantRole(ctx, name, name)
		require.NoError(t, err)
		s := newStore(t, new(wire).login(t, m, name))
		t.Cleanup(func() { require.NoError(t, s.Close()) }) // before the etcd client
		return s
	}
	grant := func(role, from, to string, kind clientv3.PermissionType) {
		_, err := root.RoleGrantPermission(ctx, role, from, to, kind)
		require.NoError(t, err)
	}
	reader := user("reader")
	grant("reader", "relock/", clientv3.GetPrefixRangeEnd("relock/"), clientv3.PermissionType(clientv3.PermRead))
	requireFault(t, reader, "take the lock relock/check-", "permission denied")
	requireFault(t, user("nobody"), "take the lock relock/check-", "permission denied")

	named := user("named")
	grant("named", "relock/a", "relock/z", clientv3.PermissionType(clientv3.PermReadWrite))
	requireFault(t, named, "break a hold of relock/check-", "permission denied")
	grant("named", "relock//broken/check", clientv3.GetPrefixRangeEnd("relock//broken/check"), clientv3.PermissionType(clientv3.PermReadWrite))
	requireFault(t, named, "read relock//broken/", "permission denied")
	grant("named", "relock//broken/", clientv3.GetPrefixRangeEnd("relock//broken/"), clientv3.PermissionType(clientv3.PermReadWrite))
	requireChecked(t, m, root, named)

	s := newStore(t, new(wire).login(t, m, "orders"))
	requireChecked(t, m, root, s)
	require.NoError(t, s.Close())
	left, err := root.Get(ctx, "relock/", clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range left.Kvs {
		require.NotContains(t, string(kv.Key), "check:2", "the notice is gone")
	}
}

func TestCheckServerNamesAClusterWithoutALeader(t *testing.T) {
	members := etcdtest.Start(t, 3)
	s := newStore(t, connect(t, members[0]))
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.CheckServer(t.Context(), claim("check", minute)))
	members[1].Kill()
	members[2].Kill()
	require.Eventually(t, func() bool {
		resp, err := connect(t, members[0]).Status(t.Context(), members[0].URL())
		return err == nil && resp.Leader == 0
	}, minute, 10*time.Millisecond)
	requireFault(t, s, "take the lock relock/check-", "no leader")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.Wait(ctx, claim("leaderless", minute), nothing)
	require.ErrorContains(t, err, "no leader")
}

func TestCheckServerNamesAFullDatabase(t *testing.T) {
	m := etcdtest.Start(t, 1, "--quota-backend-bytes=100000")[0]
	c := connect(t, m)
	s := newStore(t, c)
	require.Eventually(t, func() bool {
		_, err := c.Put(t.Context(), "full", string(make([]byte, 10_000)))
		return err != nil
	}, minute, time.Millisecond)
	requireFault(t, s, "take the lock relock/check-", "database space exceeded")
}

func TestCheckServerNamesASilentServer(t *testing.T) {
	m := etcdtest.Start(t, 1)[0]
	s := newStore(t, connect(t, m))
	defer m.Pause()()
	requireFault(t, s, "take the lock relock/check-", "deadline exceeded")
}
