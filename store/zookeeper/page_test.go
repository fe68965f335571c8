package relockzk_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/zktest"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func lockInZooKeeper(ctx context.Context, servers string, work func(context.Context) error) error {
	// page: open
	s, err := relockzk.New(servers, relockzk.WithRoot("/locks")) // servers: "zk1:2181,zk2:2181,zk3:2181/app"
	if err != nil {
		return err
	}
	defer s.Close()
	client, err := relock.Open(s)
	if err != nil {
		return err
	}
	defer client.Close()
	lock := client.NewLock("orders") // Java, in /app: new InterProcessMutex(curator, "/locks/orders")
	err = lock.Do(ctx, work)
	// end
	return err
}

func TestTheCodeOfThePageRuns(t *testing.T) {
	ran := false
	server := zktest.Start(t)
	require.NoError(t, lockInZooKeeper(t.Context(), server.Address(), func(context.Context) error { ran = true; return nil }))
	require.True(t, ran)
}
