package faults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Does a flood of callers cost an unrelated lock its renewals?

func TestAFloodOfCallersCostsNoOtherLock(t *testing.T) {
	const callers = 3000
	for _, pool := range []int{1, 2, 10} {
		t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
			server := redistest.Start(t)
			requireRoom(t, callers, func(options ...relock.Option) *relock.Client {
				c, err := relock.New(server.Client(func(o *redis.Options) { o.PoolSize = pool }), options...)
				require.NoError(t, err)
				return c
			})
		})
	}
	t.Run("cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t)
		requireRoom(t, callers, func(options ...relock.Option) *relock.Client {
			c, err := relock.New(cluster.Client(func(o *redis.ClusterOptions) { o.PoolSize = 2 }), options...)
			require.NoError(t, err)
			return c
		})
	})
}

// requireRoom fails if a flood of callers costs a client one of its quiet holds. A third of the
// callers waits for a lock that another client holds, a third waits briefly again and again, and a
// third takes and frees locks of its own. The flood lasts a little longer than a lease. open makes
// clients, each of another process.
func requireRoom(t *testing.T, callers int, open func(...relock.Option) *relock.Client) {
	t.Helper()
	const ttl = 5 * time.Second
	owner, c := open(), open(relock.WithTTL(ttl))
	defer func() { require.NoError(t, c.Close()) }()
	defer func() { require.NoError(t, owner.Close()) }()
	_, err := owner.NewLock("busy").Lock(t.Context())
	require.NoError(t, err)
	var sections []context.Context
	for i := range 10 {
		section, err := c.NewLock(fmt.Sprint("quiet", i)).Lock(t.Context())
		require.NoError(t, err)
		sections = append(sections, section)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*ttl/5)
	defer cancel()
	var all sync.WaitGroup
	for i := range callers {
		busy, own := c.NewLock("busy"), c.NewLock(fmt.Sprint("own", i))
		all.Go(func() {
			for ctx.Err() == nil {
				switch i % 3 {
				case 0:
					_, _ = busy.Lock(ctx)
				case 1:
					_, _ = busy.TryLockFor(ctx, 100*time.Millisecond)
				case 2:
					if section, err := own.TryLock(ctx); err == nil {
						_ = own.Unlock(section)
					}
				}
			}
		})
	}
	all.Wait()
	for i, section := range sections {
		require.NoError(t, context.Cause(section))
		require.NoError(t, c.NewLock(fmt.Sprint("quiet", i)).Unlock(section))
	}
}
