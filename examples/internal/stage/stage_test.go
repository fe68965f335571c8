package stage

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestKeysExpireBetweenScriptsOnly has a slow script look for a key that its TTL has outlived.
func TestKeysExpireBetweenScriptsOnly(t *testing.T) {
	embedded := miniredis.RunT(t)
	expire(embedded)
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	const slow = `redis.call('SET', KEYS[1], 'here', 'PX', 1)
		for i = 1, 1000000 do end
		return redis.call('EXISTS', KEYS[1])`
	begun := time.Now()
	n, err := rdb.Eval(t.Context(), slow, []string{"key"}).Int()
	require.NoError(t, err)
	require.Greater(t, time.Since(begun), time.Millisecond)
	require.Equal(t, 1, n)

	<-time.After(2 * time.Millisecond) // longer than the TTL
	n, err = rdb.Eval(t.Context(), `return redis.call('EXISTS', KEYS[1])`, []string{"key"}).Int()
	require.NoError(t, err)
	require.Zero(t, n)
}
