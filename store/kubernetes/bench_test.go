package relockk8s_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// BenchmarkLockAndUnlock is a pair without other clients, on an etcd that keeps its data in memory.
func BenchmarkLockAndUnlock(b *testing.B) {
	client, err := relock.Open(shared(b).store())
	require.NoError(b, err)
	defer func() { require.NoError(b, client.Close()) }()
	lock := client.NewLock("pair")
	for b.Loop() {
		section, err := lock.Lock(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Unlock(section))
	}
}
