package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/zktest"
)

func TestTheStoryIsTold(t *testing.T) {
	server := zktest.Start(t)
	conn, _, err := zk.Connect([]string{server.Address()}, 10*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	defer conn.Close()
	_, _, created, err := conn.ExistsW("/relock-example")
	require.NoError(t, err)

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, server.Address()), "%s", &out)
	require.Contains(t, out.String(), "invoices 1 to 12, each once")
	select {
	case event := <-created:
		require.Equal(t, zk.EventNodeCreated, event.Type, "the lock was in ZooKeeper")
	case <-time.After(20 * time.Second):
		require.Fail(t, "the lock was not in ZooKeeper")
	}
	require.Eventually(t, func() bool {
		exists, _, err := conn.Exists("/relock-example")
		return err == nil && !exists
	}, 20*time.Second, 50*time.Millisecond, "nothing is left")
}
