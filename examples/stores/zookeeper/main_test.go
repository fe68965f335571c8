package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/zktest"
)

func TestTheStoryIsTold(t *testing.T) {
	server := zktest.Start(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, server.Address()), "%s", &out)
	require.Contains(t, out.String(), "invoices 1 to 12, each once")

	conn, _, err := zk.Connect([]string{server.Address()}, 10*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	defer conn.Close()
	exists, _, err := conn.Exists("/relock-example")
	require.NoError(t, err)
	require.True(t, exists, "the lock was in ZooKeeper")
	require.Eventually(t, func() bool {
		exists, _, err := conn.Exists("/relock-example")
		return err == nil && !exists
	}, 20*time.Second, 50*time.Millisecond, "nothing is left")
}
