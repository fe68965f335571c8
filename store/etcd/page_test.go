package relocketcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/etcdtest"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

func lockInEtcd(ctx context.Context, endpoints []string, work func(context.Context) error) error {
	// page: open
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialKeepAliveTime:    10 * time.Second, // the least that gRPC takes
		DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := relocketcd.New(c, "/locks/")
	if err != nil {
		return err
	}
	defer s.Close()
	client, err := relock.Open(s)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.NewLock("orders").Do(ctx, work)
	// end
	return err
}

func TestTheCodeOfThePageRuns(t *testing.T) {
	ran := false
	require.NoError(t, lockInEtcd(t.Context(), []string{etcdtest.Shared(t).URL()}, func(context.Context) error { ran = true; return nil }))
	require.True(t, ran)
}
