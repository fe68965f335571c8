package relocketcd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/etcdtest"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

// TestALockInEtcd takes the lock of `etcdctl lock /locks/orders`.
func TestALockInEtcd(t *testing.T) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdtest.Shared(t).URL()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	s, err := relocketcd.New(c, "/locks/")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	client, err := relock.Open(s)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()

	err = client.NewLock("orders").Do(t.Context(), func(ctx context.Context) error {
		resp, err := c.Get(ctx, "/locks/orders/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1)
		return nil
	})
	require.NoError(t, err)
}

func TestNewRefusesAPrefixWithoutASlash(t *testing.T) {
	_, err := relocketcd.New(connect(t), "locks")
	require.ErrorContains(t, err, "slash")
	_, err = relocketcd.New(nil, "")
	require.ErrorContains(t, err, "nil")
}
