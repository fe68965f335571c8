package relocketcd_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock/internal/test/etcdtest"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Main(m)) }

// connect returns a client of the servers, or of the shared server.
func connect(t testing.TB, servers ...*etcdtest.Server) *clientv3.Client {
	t.Helper()
	if servers == nil {
		servers = append(servers, etcdtest.Shared(t))
	}
	var endpoints []string
	for _, s := range servers {
		endpoints = append(endpoints, s.URL())
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func newStore(t testing.TB, c *clientv3.Client) *relocketcd.Store {
	t.Helper()
	return newStoreAt(t, c, "relock/")
}

// newStoreAt returns a store that is closed before its client.
func newStoreAt(t testing.TB, c *clientv3.Client, prefix string) *relocketcd.Store {
	t.Helper()
	s, err := relocketcd.New(c, prefix)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
