package code

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

func openQuorum(a, b, c *redis.Client) (*relock.Client, error) {
	// page: open
	var members []store.Store
	for _, rdb := range []*redis.Client{a, b, c} { // independent servers, not replicas of one
		member, err := relock.RedisStore(rdb)
		if err != nil {
			return nil, err
		}
		members = append(members, member)
	}
	s, err := quorum.New(members...)
	if err != nil {
		return nil, err
	}
	client, err := relock.Open(s)
	// end
	return client, err
}

func TestQuorumOpen(t *testing.T) {
	var rdbs [3]*redis.Client
	for i := range rdbs {
		rdbs[i] = redistest.Start(t).Client()
	}
	client, err := openQuorum(rdbs[0], rdbs[1], rdbs[2])
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.NewLock("a").Do(t.Context(), ship1))
}
