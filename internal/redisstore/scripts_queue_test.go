package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// Who is served next, and what becomes of waiters that are gone?

// waiter joins the queue as a client that listens.
func (r *rig) waiter(client string) string {
	r.Helper()
	id := newID(client)
	require.Equal(r, statusQueued, r.status(id, newPlace))
	return id
}

func TestQueue(t *testing.T) {
	t.Run("gives a waiter its old place", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.listen("b")
		first, second := r.waiter("b"), newID("b")
		got, err := r.acquire(second, minute, newPlace)
		require.NoError(t, err)
		third := r.waiter("b")
		require.EqualValues(t, 1, r.forget(second))
		again, err := r.acquire(second, minute, fmt.Sprint(got.number))
		require.NoError(t, err)
		require.True(t, again.lost)
		again.remaining, again.lost = got.remaining, false
		require.Equal(t, got, again)
		require.Equal(t, []string{first, second, third}, r.waiters())
	})
	t.Run("outlives the leases of its waiters", func(t *testing.T) {
		r := newRig(t)
		id := newID("a")
		_, err := r.acquire(id, 10*minute, noPlace)
		require.NoError(t, err)
		r.listen("b")
		lives := func(ttl time.Duration) {
			t.Helper()
			require.InDelta(t, ttl, r.rdb.PTTL(t.Context(), r.base+queueSuffix).Val(), float64(2*time.Second))
		}
		r.waiter("b")
		lives(10*minute + minute + minute)
		_, err = r.acquire(newID("b"), 20*minute, newPlace)
		require.NoError(t, err)
		lives(20*minute + 20*minute + minute)
		r.waiter("b")
		lives(20*minute + 20*minute + minute)
	})
	t.Run("passes over what is no waiter", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		for i, foreign := range []string{"", "x", "b:1:1", "b:1:1|", "b:1:1|x", "b:1|60000", "|60000", owner + "|60000"} {
			require.NoError(t, r.rdb.ZAdd(t.Context(), r.base+queueSuffix, redis.Z{Score: float64(i), Member: foreign}).Err())
		}
		ps := r.listen("b")
		id := r.waiter("b")
		require.EqualValues(t, 1, r.release(owner))
		require.Equal(t, id, message(t, ps))
		r.owner(id, 1)
	})
}

// TestDeadWaiters has a queue of so many waiters that one script for all of them would hold up the
// server.
func TestDeadWaiters(t *testing.T) {
	const atMost = 100
	fill := func(r *rig, dead int) {
		r.Helper()
		members := make([]redis.Z, 1000)
		for n := 0; n < dead; n += len(members) {
			for i := range members {
				members[i] = redis.Z{Score: float64(n + i + 1), Member: fmt.Sprintf("gone:1:%d|60000", n+i)}
			}
			require.NoError(r, r.rdb.ZAdd(r.Context(), r.base+queueSuffix, members...).Err())
		}
	}
	left := func(r *rig) int64 { return r.rdb.ZCard(r.Context(), r.base+queueSuffix).Val() }
	t.Run("release", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		const dead = 100_000
		fill(r, dead)
		for n := int64(dead); n > atMost; n -= atMost {
			require.Equal(t, statusAgain, r.release(id))
			require.Equal(t, n-atMost, left(r))
			if n%10_000 == 0 {
				r.owner(id, 1)
				require.Equal(t, statusBusy, r.status(newID("b"), noPlace), "nobody gets in between")
			}
		}
		require.EqualValues(t, 1, r.release(id))
		r.free()
	})
	t.Run("the stores call again", func(t *testing.T) {
		for what, free := range map[string]func(r *rig, id string) error{
			"Release": func(r *rig, id string) error { return r.store.Release(t.Context(), r.held(id, minute)) },
			"Break": func(r *rig, id string) error {
				return r.store.Break(t.Context(), store.Claim{Name: r.base, ID: store.ID(id)})
			},
			"Forget": func(r *rig, id string) error {
				return r.store.Forget(t.Context(), []store.Claim{r.claim(id, minute)})[0]
			},
			"Forget of a lost hold": func(r *rig, id string) error {
				require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
				return r.store.Forget(t.Context(), []store.Claim{r.claim(id, minute)})[0]
			},
			"Try": func(r *rig, _ string) error {
				require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
				l, err := r.store.Try(t.Context(), r.claim(newID("b"), minute))
				require.NoError(t, err)
				return r.store.Release(t.Context(), l)
			},
			"TryEval of a hold that has the lock": func(r *rig, id string) error {
				_, _, err := r.store.TryEval(t.Context(), r.claim(id, minute), store.Script{Source: "return false"})
				require.ErrorAs(t, err, new(*store.Declined))
				return nil
			},
		} {
			t.Run(what, func(t *testing.T) {
				r := newRig(t)
				id := r.enter("a")
				fill(r, 1000)
				require.NoError(t, free(r, id))
				r.free()
			})
		}
	})
}

// TestReach has waiters and callers that know, or do not know, sharded pub/sub.
func TestReach(t *testing.T) {
	for _, publish := range []string{"PUBLISH", "SPUBLISH"} {
		for _, listens := range []string{"plain", "sharded"} {
			t.Run(publish+", listens "+listens, func(t *testing.T) {
				r := newRig(t)
				if !r.server.AtLeast(7, 0) {
					redistest.NotTested(t, "Redis before 7 has no sharded pub/sub")
				}
				listen := r.rdb.Subscribe
				if listens == "sharded" {
					listen = r.rdb.SSubscribe
				}
				ps := subscribed(t, listen(t.Context(), r.base+":b"))
				owner, id := r.enter("a"), newID("b")
				reply, err := r.script(scripts.mutex.acquire, r.both(), publish, id, 60000, newPlace)
				require.NoError(t, err)
				require.Equal(t, statusQueued, reply.([]any)[0])
				require.EqualValues(t, 1, r.number(scripts.mutex.release, r.both(), publish, owner))
				require.Equal(t, id, message(t, ps))
				r.owner(id, 1)
				silent(t, ps)
			})
		}
	}
}
