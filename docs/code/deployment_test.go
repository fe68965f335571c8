package code

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
)

// This file has the code of docs/OPERATIONS.md.

func TestTheClientOfGoRedisForLocks(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	user, password := "default", ""
	var tlsConfig *tls.Config
	// page: client
	rdb := redis.NewClient(&redis.Options{
		Addr:     addr,
		Username: user, Password: password,
		TLSConfig:             tlsConfig,
		DialTimeout:           2 * time.Second,
		ReadTimeout:           2 * time.Second, // below a third of the TTL
		ContextTimeoutEnabled: true,
		PoolSize:              10, // for locks alone, on one server
	})
	// end
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	ctx := t.Context()
	open := func() (*relock.Client, error) {
		// page: check
		client, err := relock.New(rdb)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := client.Check(ctx); err != nil {
			return nil, errors.Join(err, client.Close()) // the error names all that is missing
		}
		return client, nil
		// end
	}
	client, err := open()
	require.NoError(t, err)
	require.NoError(t, client.Close())
}
