package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock/internal/test/etcdtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestTheStoryIsTold(t *testing.T) {
	server := etcdtest.Start(t, 1)[0]
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, server.URL()), "%s", &out)
	require.Contains(t, out.String(), "invoices 1 to 12, each once")

	c, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	left, err := c.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, left.Kvs)
	require.Greater(t, left.Header.Revision, int64(12), "the lock was in etcd")
}
