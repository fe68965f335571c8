package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/locktest"
)

// TestLocksOverAnAutoPipelineKeepThePromises is here, as the oldest go-redis that the root module
// works with has no AutoPipeline.
func TestLocksOverAnAutoPipelineKeepThePromises(t *testing.T) {
	server := redistest.Start(t)
	locktest.Harness{
		Start: func(t *testing.T) locktest.Server {
			t.Helper()
			return locktest.Server{NewClient: func(options ...relock.Option) *relock.Client {
				t.Helper()
				pipeline, err := server.Client().AutoPipeline()
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, pipeline.Close()) })
				client, err := relock.New(pipeline, options...)
				require.NoError(t, err)
				return client
			}}
		},
		Without:  map[locktest.Promise]string{},
		Short:    true,
		Parallel: true,
	}.Run(t)
}
