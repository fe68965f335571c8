package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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

// TestRandomOrdersComeToAnEndOnRedis takes locks inside each other in random order. Each call of a
// circle that ends lets the others go on.
func TestRandomOrdersComeToAnEndOnRedis(t *testing.T) {
	const processes, rounds = 4, 2
	server := redistest.Start(t)
	var group sync.WaitGroup
	for range processes {
		c, err := relock.New(server.Client())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		group.Go(func() {
			for range rounds {
				if err := nest(t.Context(), c, rand.Perm(4)[:3]); err != nil && !errors.Is(err, relock.ErrDeadlock) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Eventually(t, func() bool {
		return len(server.Client().Keys(t.Context(), "*").Val()) == 0
	}, 10*time.Second, 50*time.Millisecond, "nothing is left")
}

// nest enters locks inside each other, and stays for a moment in each.
func nest(ctx context.Context, c *relock.Client, locks []int) error {
	if len(locks) == 0 {
		return nil
	}
	return c.NewLock(fmt.Sprint("lock", locks[0])).Do(ctx, func(ctx context.Context) error {
		<-time.After(20 * time.Millisecond)
		return nest(ctx, c, locks[1:])
	})
}
