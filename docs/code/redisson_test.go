package code

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

func inRedissonsLayout(ctx context.Context, rdb redis.UniversalClient) error {
	// page: layout
	client, err := relock.New(rdb, relock.WithRedissonLayout())
	if err != nil {
		return err
	}
	defer client.Close()

	err = client.NewLock("orders:42").Do(ctx, func(ctx context.Context) error {
		return ship(ctx, 42) // nobody else is here, in Go or in Java
	})
	// end
	return err
}

func TestRedissonLayout(t *testing.T) {
	require.NoError(t, inRedissonsLayout(t.Context(), redistest.Shared(t).Client()))
}
