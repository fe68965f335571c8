package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// What do waits inside of sections send to Redis, and do they come to an end?

func TestAWaitInsideASectionSendsNothingInItsFirstSecond(t *testing.T) {
	server := redistest.Start(t)
	c, err := relock.New(server.Client())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	outer, err := c.NewLock("outer").Lock(t.Context())
	require.NoError(t, err)
	inner, err := c.NewLock("inner").Lock(t.Context())
	require.NoError(t, err)
	_, err = c.NewLock("inner").TryLockFor(outer, 500*time.Millisecond)
	require.ErrorIs(t, err, relock.ErrLocked)
	keys, err := server.Client().Keys(t.Context(), "*:waits").Result()
	require.NoError(t, err)
	require.Empty(t, keys)
	require.NoError(t, c.NewLock("inner").Unlock(inner))
	require.NoError(t, c.NewLock("outer").Unlock(outer))
}
