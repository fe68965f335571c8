package relockk8s_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/go-relock/relock"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

func lockInKubernetes(ctx context.Context, config *rest.Config, namespace string, work func(context.Context) error) error {
	// page: open
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 200, 400 // of this client: 5 and 10 would hold up locks
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	s, err := relockk8s.New(clients.CoordinationV1().Leases(namespace))
	if err != nil {
		return err
	}
	client, err := relock.Open(s)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.NewLock("import").Do(ctx, work)
	// end
	return err
}

func TestTheCodeOfThePageRuns(t *testing.T) {
	s, ran := shared(t), false
	work := func(context.Context) error { ran = true; return nil }
	require.NoError(t, lockInKubernetes(t.Context(), &rest.Config{Host: s.url()}, s.namespace, work))
	require.True(t, ran)
}
