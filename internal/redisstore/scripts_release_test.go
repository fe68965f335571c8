package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// What do release, renew and forget change, alone and several in one call?

func TestRelease(t *testing.T) {
	t.Run("frees the lock, whatever the count", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		require.EqualValues(t, 1, r.renew(id, 0, 3))
		require.EqualValues(t, 1, r.release(id))
		r.free()
		require.EqualValues(t, 0, r.release(id))
	})
	t.Run("leaves the lock of another hold alone", func(t *testing.T) {
		r := newRig(t)
		old := r.enter("a")
		r.release(old)
		r.enter("a")
		r.listen("b")
		for range 2 { // nobody waits, and then somebody does
			r.unchanged(func() { require.EqualValues(t, 0, r.release(old)) })
			r.waiter("b")
		}
	})
	t.Run("grants in order, each with its own lease", func(t *testing.T) {
		r := newRig(t)
		a, b := r.listen("a"), r.listen("b")
		owner := r.enter("c")
		first, second := newID("a"), newID("b")
		for id, ttl := range map[string]time.Duration{first: 20 * time.Second, second: 40 * time.Second} {
			got, err := r.acquire(id, ttl, map[string]string{first: "1", second: "2"}[id])
			require.NoError(t, err)
			require.Equal(t, statusQueued, got.status)
		}
		require.EqualValues(t, 1, r.release(owner))
		require.EqualValues(t, 0, r.release(owner), "runs again")
		require.Equal(t, first, message(t, a))
		r.owner(first, 1)
		r.lease(20 * time.Second)
		silent(t, b)
		require.EqualValues(t, 1, r.release(first))
		require.Equal(t, second, message(t, b))
		r.owner(second, 1)
		r.lease(40 * time.Second)
		silent(t, a)
		require.EqualValues(t, 1, r.release(second))
		r.free()
	})
	t.Run("passes over waiters that are gone", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.queue("gone")
		r.queue("gone too")
		ps := r.listen("b")
		id := r.waiter("b")
		require.EqualValues(t, 1, r.release(owner))
		require.Equal(t, id, message(t, ps))
		r.queue("gone")
		require.EqualValues(t, 1, r.release(id))
		r.free()
	})
}

func TestRenew(t *testing.T) {
	t.Run("sets the count", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		for _, count := range []int{2, 2, 3, 1} {
			require.EqualValues(t, 1, r.renew(id, 0, count))
			r.owner(id, count)
		}
		r.unchanged(func() { require.EqualValues(t, 1, r.renew(id, 0, 1)) })
	})
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
	t.Run("says that a hold is gone", func(t *testing.T) {
		r := newRig(t)
		require.EqualValues(t, 0, r.renew(newID("a"), minute, 1))
		r.enter("a")
		r.unchanged(func() { require.EqualValues(t, 0, r.renew(newID("a"), 2*minute, 2)) })
	})
	t.Run("of many reports each", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		renewals := []store.Renewal{
			{Lease: r.held(newID("a"), minute), TTL: minute, Count: 1},
			{Lease: r.held(id, minute), TTL: 2 * minute, Count: 2},
			{Lease: store.Lease{Ask: store.Ask{Name: r.base + tokenSuffix, ID: "a:1:1"}}, TTL: minute, Count: 1},
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

func TestForget(t *testing.T) {
	t.Run("takes back what is left", func(t *testing.T) {
		r := newRig(t)
		ps := r.listen("b")
		owner := r.enter("a")
		first, second := r.waiter("b"), r.waiter("b")
		require.EqualValues(t, 0, r.forget(newID("b")), "never asked")
		require.EqualValues(t, 1, r.forget(first), "queued")
		require.EqualValues(t, 0, r.forget(first), "runs again")
		require.EqualValues(t, 1, r.forget(owner), "has the lock")
		require.Equal(t, second, message(t, ps))
		require.EqualValues(t, 0, r.forget(owner))
		r.owner(second, 1)
		require.EqualValues(t, 1, r.forget(second))
		r.free()
	})
	t.Run("serves the queue of a lock whose key was lost", func(t *testing.T) {
		r := newRig(t)
		ps := r.listen("b")
		owner := r.enter("a")
		r.queue("gone")
		next := r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		require.EqualValues(t, 0, r.forget(owner), "its client has found the loss")
		require.Equal(t, next, message(t, ps))
		require.EqualValues(t, 0, r.forget(owner))
		silent(t, ps)
		r.owner(next, 1)
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

// TestAMigratingSlot frees locks whose slot is on its way to another node. There Redis refuses keys
// that do not exist any more.
func TestAMigratingSlot(t *testing.T) {
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client()
	s, err := New(rdb, Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r := &rig{T: t, rdb: cluster.MasterFor("relock:{x}").Client(), store: s.(*nativeStore), base: "relock:{x}"}
	ps := r.listen("b")
	first, last := r.enter("a"), ""
	for range 2 {
		last = r.waiter("b")
	}
	owner := func() string { return r.rdb.HKeys(t.Context(), r.base).Val()[0] }
	move := cluster.BeginMove(r.base, cluster.MasterFor(other(cluster, r.base)))
	for id := first; id != last; id = owner() { // to the last in the queue, whose key is gone then
		require.NoError(t, r.store.Release(t.Context(), r.held(id, minute)))
		require.Equal(t, owner(), message(t, ps))
	}
	move.MoveKeys(r.base)
	move.Finish()
	require.NoError(t, r.store.Release(t.Context(), r.held(last, minute)))
	require.Empty(t, r.look().Owner)
}

// other is a key of another master.
func other(c *redistest.Cluster, key string) string {
	for i := 0; ; i++ {
		if k := strconv.Itoa(i); c.MasterFor(k).Addr() != c.MasterFor(key).Addr() {
			return k
		}
	}
}
