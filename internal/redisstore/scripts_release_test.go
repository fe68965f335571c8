package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// What do release, renew and forget change, alone and several in one call?

func TestRenew(t *testing.T) {
	t.Run("moves the lease later, and never earlier", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		require.EqualValues(t, 1, r.renew(id, 2*minute, 1))
		r.lease(2 * minute)
		r.unchanged(func() { require.EqualValues(t, 1, r.renew(id, minute, 1)) })
		require.NoError(t, r.rdb.Persist(t.Context(), r.base).Err(), "somebody takes the lease away")
		require.EqualValues(t, 1, r.renew(id, minute, 1))
		r.lease(minute)
	})
	t.Run("of many reports each", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		renewals := []store.Renewal{
			{Lease: r.held(newID("a"), minute), TTL: minute, Count: 1},
			{Lease: r.held(id, minute), TTL: 2 * minute, Count: 2},
			{Lease: store.Lease{Claim: store.Claim{Name: r.base + tokenSuffix, ID: "a:1:1"}}, TTL: minute, Count: 1},
		}
		require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, "x", minute).Err())
		errs := r.store.Renew(t.Context(), renewals)
		require.ErrorIs(t, errs[0], store.ErrGone)
		require.NoError(t, errs[1])
		require.ErrorContains(t, errs[2], "WRONGTYPE")
		require.NotErrorIs(t, errs[2], store.ErrUnsure)
		r.owner(id, 2)
		r.lease(2 * minute)
	})
}

// TestUnits has several locks in one call.
func TestUnits(t *testing.T) {
	r := newRig(t)
	var keys []string
	args := []any{"PUBLISH"}
	ids := make([]string, 4)
	for i := range ids {
		base := fmt.Sprintf("%s:%d", r.base, i)
		keys = append(keys, base, base+queueSuffix)
		ids[i] = newID("a")
		args = append(args, ids[i], lifetime.Millis(minute), noPlace)
		t.Cleanup(func() { r.rdb.Del(context.Background(), base) })
	}
	require.NoError(t, r.rdb.SAdd(t.Context(), keys[2], "x").Err())
	require.NoError(t, r.rdb.HSet(t.Context(), keys[4], "someone", 1).Err())
	all := func(s *wire.Script, args []any) []any {
		reply, err := r.rdb.Eval(t.Context(), s.Source, keys, args...).Result()
		require.NoError(t, err)
		require.Len(t, reply, len(ids))
		return reply.([]any)
	}
	failed := func(reply any) {
		t.Helper()
		require.IsType(t, "", reply)
		require.Regexp(t, "^-WRONGTYPE ", reply)
	}
	replies := all(scripts.mutex.acquire, args)
	require.Equal(t, []any{int64(1), []any{int64(0), "someone", int64(-1)}, int64(1)}, []any{replies[0], replies[2], replies[3]})
	failed(replies[1])
	replies = all(scripts.mutex.release, []any{"PUBLISH", ids[0], ids[1], ids[2], ids[3]})
	require.Equal(t, []any{int64(1), int64(0), int64(1)}, []any{replies[0], replies[2], replies[3]})
	failed(replies[1])
}

// other is a key of another master.
func other(c *redistest.Cluster, key string) string {
	for i := 0; ; i++ {
		if k := strconv.Itoa(i); c.MasterFor(k).Addr() != c.MasterFor(key).Addr() {
			return k
		}
	}
}
