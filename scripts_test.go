package relock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// What each script promises in its header, on a real server. Each test has a lock of its own, so the
// tests share a server, but for those that bend it.

// soon bounds what takes a few round trips.
const soon = 10 * time.Second

// minute is the lease of most holds here: no test waits for its end.
const minute = time.Minute

// rig is one lock, seen through its scripts and from outside.
type rig struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client
	store  *nativeStore
	base   string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, redistest.Shared(t))
}

func newRigOn(t *testing.T, server *redistest.Server) *rig {
	t.Helper()
	r := &rig{T: t, server: server, rdb: server.Client()}
	s, err := newRedisStore(r.rdb, redisOptions{prefix: DefaultPrefix})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s.(*nativeStore)
	r.base, err = baseKey(DefaultPrefix, t.Name())
	require.NoError(t, err)
	clean := func() {
		require.NoError(t, r.rdb.Del(context.Background(), r.base, r.base+queueSuffix, r.base+tokenSuffix).Err())
	}
	clean() // with -count
	t.Cleanup(clean)
	return r
}

var lastID int

// newID names a new hold of a client.
func newID(client string) string {
	lastID++
	return fmt.Sprintf("%s:1:%d", client, lastID)
}

func (r *rig) ask(id string, ttl time.Duration) store.Ask {
	return store.Ask{Name: r.base, ID: store.ID(id), TTL: ttl, Limit: 1}
}

func (r *rig) held(id string, ttl time.Duration) store.Lease { return store.Lease{Ask: r.ask(id, ttl)} }

// script runs a script for one unit, and returns what it says of that.
func (r *rig) script(s *wire.Script, keys []string, args ...any) (any, error) {
	r.Helper()
	reply, err := r.rdb.EvalSha(r.Context(), s.Hash, keys, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = r.rdb.Eval(r.Context(), s.Source, keys, args...).Result()
	}
	return reply, err
}

func (r *rig) number(s *wire.Script, keys []string, args ...any) int64 {
	r.Helper()
	reply, err := r.script(s, keys, args...)
	require.NoError(r, err)
	require.IsType(r, int64(0), reply)
	return reply.(int64)
}

func (r *rig) both() []string { return []string{r.base, r.base + queueSuffix} }

// acquire asks for the lock, and queues with an arrival.
func (r *rig) acquire(id string, ttl time.Duration, arrival string) (acquired, error) {
	r.Helper()
	reply, err := r.script(acquireScript, r.both(), "PUBLISH", id, millis(ttl), arrival)
	if err != nil {
		return acquired{}, err
	}
	if reply == callAgain {
		return acquired{status: callAgain}, nil
	}
	return parseAcquired(acquireScript, reply)
}

// status is what acquire says to a hold with a lease of a minute.
func (r *rig) status(id, arrival string) int64 {
	r.Helper()
	got, err := r.acquire(id, minute, arrival)
	require.NoError(r, err)
	return got.status
}

// enter takes the lock, which must be free.
func (r *rig) enter(client string) string {
	r.Helper()
	id := newID(client)
	require.Equal(r, statusOurs, r.status(id, noPlace))
	return id
}

// queue joins the queue as a client that listens for that moment.
func (r *rig) queue(client string) string {
	r.Helper()
	id := newID(client)
	r.listening(client, func() { require.Equal(r, statusQueued, r.status(id, newPlace)) })
	return id
}

func (r *rig) release(id string) int64 {
	r.Helper()
	return r.number(releaseScript, r.both(), "PUBLISH", id)
}

func (r *rig) renew(id string, ttl time.Duration, count int) int64 {
	r.Helper()
	return r.number(renewScript, []string{r.base}, id, millis(ttl), count)
}

func (r *rig) forget(id string) int64 {
	r.Helper()
	return r.number(forgetScript, r.both(), "PUBLISH", id, millis(minute))
}

func (r *rig) token(id string) int64 {
	r.Helper()
	return r.number(tokenScript, []string{r.base, r.base + tokenSuffix}, id)
}

func (r *rig) look() store.State {
	r.Helper()
	state, err := r.store.Look(r.Context(), r.base)
	require.NoError(r, err)
	return state
}

// owner requires that a hold has the lock, with a count.
func (r *rig) owner(id string, count int) {
	r.Helper()
	state := r.look()
	require.Equal(r, id, string(state.Owner))
	require.Equal(r, count, state.Count)
}

func (r *rig) free() {
	r.Helper()
	require.Zero(r, r.rdb.Exists(r.Context(), r.both()...).Val(), "the lock is free, and nobody waits")
}

// lease requires that the lease was set to ttl just now.
func (r *rig) lease(ttl time.Duration) {
	r.Helper()
	require.InDelta(r, ttl, r.look().TTL, float64(2*time.Second))
}

// waiters are the holds in the queue, in order.
func (r *rig) waiters() []string {
	r.Helper()
	members, err := r.rdb.ZRange(r.Context(), r.base+queueSuffix, 0, -1).Result()
	require.NoError(r, err)
	ids := []string{}
	for _, m := range members {
		id, _, _ := strings.Cut(m, "|")
		ids = append(ids, id)
	}
	return ids
}

// listen subscribes to the lock's channel of a client.
func (r *rig) listen(client string) *redis.PubSub {
	r.Helper()
	return subscribed(r.T, r.rdb.Subscribe(r.Context(), r.base+":"+client))
}

func subscribed(t *testing.T, ps *redis.PubSub) *redis.PubSub {
	t.Helper()
	t.Cleanup(func() { _ = ps.Close() })
	_, err := ps.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	return ps
}

// listening runs f while a client listens. Afterwards the client is gone.
func (r *rig) listening(client string, f func()) {
	r.Helper()
	ps := r.listen(client)
	f()
	require.NoError(r, ps.Unsubscribe(r.Context()))
	_, err := ps.ReceiveTimeout(r.Context(), soon)
	require.NoError(r, err)
	require.NoError(r, ps.Close())
}

// message returns the next message, which must come.
func message(t *testing.T, ps *redis.PubSub) string {
	t.Helper()
	m, err := ps.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	require.IsType(t, &redis.Message{}, m)
	return m.(*redis.Message).Payload
}

// silent requires that no message is on its way.
func silent(t *testing.T, ps *redis.PubSub) {
	t.Helper()
	require.NoError(t, ps.Ping(t.Context()))
	m, err := ps.ReceiveTimeout(t.Context(), soon)
	require.NoError(t, err)
	require.IsType(t, &redis.Pong{}, m, "a message too many: %v", m)
}

// unchanged requires that f leaves each key of the lock as it was.
func (r *rig) unchanged(f func()) {
	r.Helper()
	before := r.dump()
	f()
	require.Equal(r, before, r.dump())
}

// dump returns the keys of the lock with their contents and ends.
func (r *rig) dump() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, key := range append(r.both(), r.base+tokenSuffix) {
		content, err := r.rdb.Dump(r.Context(), key).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		require.NoError(r, err)
		end, _ := r.rdb.Do(r.Context(), "PEXPIRETIME", key).Int64() // 0 before Redis 7
		all[key] = fmt.Sprintf("%x until %d", content, end)
	}
	return all
}

func TestAcquire(t *testing.T) {
	t.Run("takes a free lock", func(t *testing.T) {
		for _, arrival := range []string{noPlace, newPlace, "1700000000000000"} {
			r := newRig(t)
			id := newID("a")
			got, err := r.acquire(id, 20*time.Second, arrival)
			require.NoError(t, err)
			require.Equal(t, acquired{status: statusOurs}, got)
			r.owner(id, 1)
			r.lease(20 * time.Second)
			require.Empty(t, r.waiters())
			r.release(id)
		}
	})
	t.Run("says who has a busy lock", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.unchanged(func() {
			got, err := r.acquire(newID("a"), minute, noPlace)
			require.NoError(t, err)
			require.Equal(t, statusBusy, got.status)
			require.Equal(t, owner, got.owner)
			require.InDelta(t, minute, got.remaining, float64(2*time.Second))
		})
	})
	t.Run("does not extend the lease when it runs again", func(t *testing.T) {
		r := newRig(t)
		id := newID("a")
		_, err := r.acquire(id, 5*time.Second, noPlace)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.renew(id, 0, 3))
		for _, arrival := range []string{noPlace, newPlace} {
			r.unchanged(func() {
				got, err := r.acquire(id, minute, arrival)
				require.NoError(t, err)
				require.Equal(t, statusOurs, got.status)
				require.True(t, got.known)
				require.InDelta(t, 5*time.Second, got.remaining, float64(2*time.Second))
			})
		}
	})
	t.Run("does not queue without a subscriber", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.unchanged(func() { require.Equal(t, statusBusy, r.status(newID("b"), newPlace)) })
	})
	t.Run("gives a free lock to whoever queues", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		ps := r.listen("b")
		first, second := r.waiter("b"), r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err(), "the lease of %s ends", owner)
		got, err := r.acquire(newID("c"), 2*minute, noPlace)
		require.NoError(t, err)
		require.Equal(t, statusBusy, got.status)
		require.Equal(t, first, got.owner)
		require.Equal(t, first, message(t, ps))
		r.owner(first, 1)
		r.lease(minute)
		require.Equal(t, []string{second}, r.waiters())
	})
	t.Run("gives a free lock to the caller whose turn it is", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.queue("gone")
		ps := r.listen("b")
		id := r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		require.Equal(t, statusOurs, r.status(id, newPlace))
		r.owner(id, 1)
		silent(t, ps)
		require.Empty(t, r.waiters())
	})
	t.Run("passes over waiters that are gone", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.queue("gone")
		r.queue("gone")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		id := r.enter("b")
		r.owner(id, 1)
		require.Empty(t, r.waiters())
	})
}

// waiter joins the queue as a client that listens.
func (r *rig) waiter(client string) string {
	r.Helper()
	id := newID(client)
	require.Equal(r, statusQueued, r.status(id, newPlace))
	return id
}

func TestQueue(t *testing.T) {
	t.Run("has the order of arrival", func(t *testing.T) {
		r := newRig(t)
		owner := r.enter("a")
		r.listen("a")
		r.listen("b")
		var order []string
		for i := range 5 {
			id := newID([]string{"a", "b"}[i%2])
			order = append(order, id)
			for range 2 { // also when it runs again
				got, err := r.acquire(id, minute, newPlace)
				require.NoError(t, err)
				require.Equal(t, statusQueued, got.status)
				require.Equal(t, owner, got.owner)
				require.Equal(t, i, got.position)
				score, err := r.rdb.ZScore(t.Context(), r.base+queueSuffix, id+"|60000").Result()
				require.NoError(t, err)
				require.Equal(t, int64(score), got.number)
				require.InDelta(t, time.Now().UnixMicro(), got.number, 1e7)
			}
		}
		require.Equal(t, order, r.waiters())
		require.Equal(t, 5, r.look().Waiters)
	})
	t.Run("gives a waiter its old place", func(t *testing.T) {
		r := newRig(t)
		r.enter("a")
		r.listen("b")
		first := newID("b")
		got, err := r.acquire(first, minute, newPlace)
		require.NoError(t, err)
		second, third := r.waiter("b"), r.waiter("b")
		require.EqualValues(t, 1, r.forget(first))
		require.Equal(t, []string{second, third}, r.waiters())
		for range 2 {
			again, err := r.acquire(first, minute, strconv.FormatInt(got.number, 10))
			require.NoError(t, err)
			require.Equal(t, statusQueued, again.status)
			require.Equal(t, got.number, again.number)
			require.Zero(t, again.position)
		}
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
	t.Run("does not take in the owner", func(t *testing.T) {
		r := newRig(t)
		r.listen("a")
		id := r.enter("a")
		require.Equal(t, statusOurs, r.status(id, newPlace))
		require.Empty(t, r.waiters())
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
			require.Equal(t, callAgain, r.release(id))
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
			"Release": func(r *rig, id string) error { return r.store.Release(t.Context(), r.held(id, minute), 0) },
			"Break":   func(r *rig, id string) error { return r.store.Break(t.Context(), r.base, store.ID(id)) },
			"Forget":  func(r *rig, id string) error { return r.store.Forget(t.Context(), []store.Ask{r.ask(id, minute)})[0] },
			"Forget of a lost hold": func(r *rig, id string) error {
				require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
				return r.store.Forget(t.Context(), []store.Ask{r.ask(id, minute)})[0]
			},
			"Try": func(r *rig, _ string) error {
				require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
				l, err := r.store.Try(t.Context(), r.ask(newID("b"), minute))
				require.NoError(t, err)
				return r.store.Release(t.Context(), l, 0)
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
				reply, err := r.script(acquireScript, r.both(), publish, id, 60000, newPlace)
				require.NoError(t, err)
				require.Equal(t, statusQueued, reply.([]any)[0])
				require.EqualValues(t, 1, r.number(releaseScript, r.both(), publish, owner))
				require.Equal(t, id, message(t, ps))
				r.owner(id, 1)
				silent(t, ps)
			})
		}
	}
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

func TestToken(t *testing.T) {
	t.Run("is above the clock and all before", func(t *testing.T) {
		r := newRig(t)
		now, err := r.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		last := now.UnixMicro()
		for range 3 {
			id := r.enter("a")
			for range 3 {
				token := r.token(id)
				require.Greater(t, token, last)
				require.Equal(t, token, r.look().Token)
				last = token
			}
			r.release(id)
		}
		require.InDelta(t, 24*time.Hour, r.rdb.PTTL(t.Context(), r.base+tokenSuffix).Val(), float64(2*time.Second))
	})
	t.Run("does not go back with the clock", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		ahead := time.Now().Add(time.Hour).UnixMicro()
		require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, ahead, minute).Err())
		require.Equal(t, ahead+1, r.token(id))
		require.Equal(t, ahead+2, r.token(id))
		require.InDelta(t, 25*time.Hour, r.rdb.PTTL(t.Context(), r.base+tokenSuffix).Val(), float64(2*time.Second))
	})
	t.Run("does not go back when its key is lost", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		last := r.token(id)
		require.NoError(t, r.rdb.Del(t.Context(), r.base+tokenSuffix).Err())
		require.Greater(t, r.token(id), last)
	})
	t.Run("is only for the hold that has the lock", func(t *testing.T) {
		r := newRig(t)
		require.EqualValues(t, 0, r.token(newID("a")))
		r.enter("a")
		r.unchanged(func() { require.EqualValues(t, 0, r.token(newID("a"))) })
	})
	t.Run("is refused where the key holds none", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		for _, foreign := range []string{"", "x", "1.5", "-1", "1e3", "9000000000000001", "99999999999999999999999"} {
			require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, foreign, minute).Err())
			r.unchanged(func() {
				_, err := r.store.Token(t.Context(), r.held(id, minute))
				require.ErrorContains(t, err, "holds no token", "%q", foreign)
				require.NotErrorIs(t, err, store.ErrUnsure)
			})
		}
	})
}

func TestBreak(t *testing.T) {
	r := newRig(t)
	ps := r.listen("b")
	control := subscribed(t, r.rdb.Subscribe(t.Context(), r.store.control("web@1/x")))
	owner := r.enter("web@1/x")
	next := r.waiter("b")
	r.unchanged(func() {
		for _, other := range []string{next, newID("web@1/x"), ""} {
			require.ErrorIs(t, r.store.Break(t.Context(), r.base, store.ID(other)), store.ErrGone)
		}
	})
	require.NoError(t, r.store.Break(t.Context(), r.base, store.ID(owner)))
	require.Equal(t, owner, message(t, control))
	require.Equal(t, next, message(t, ps))
	r.owner(next, 1)
	require.ErrorIs(t, r.store.Break(t.Context(), r.base, store.ID(owner)), store.ErrGone)
	silent(t, control)
}

func TestLook(t *testing.T) {
	r := newRig(t)
	require.Equal(t, store.State{TTL: -2 * time.Millisecond}, r.look())
	id := r.enter("a")
	token := r.token(id)
	r.renew(id, 0, 2)
	r.queue("gone")
	r.unchanged(func() {
		state := r.look()
		require.InDelta(t, minute, state.TTL, float64(2*time.Second))
		state.TTL = 0
		require.Equal(t, store.State{Owner: store.ID(id), Count: 2, Token: token, Waiters: 1}, state)
	})
	require.NoError(t, r.rdb.Do(t.Context(), "EXPIRE", r.base, 1000*365*24*3600).Err())
	require.Greater(t, r.look().TTL, time.Duration(math.MaxInt64-2e6), "as long as a Duration can be")
}

// TestForeignHash has a key of somebody else's making where a lock is to be.
func TestForeignHash(t *testing.T) {
	for what, c := range map[string]struct {
		fields []any
		owner  string
	}{
		"one field":         {[]any{"someone", "x"}, "someone"},
		"several fields":    {[]any{"one", "1", "two", "2"}, "one"},
		"an empty field":    {[]any{"", "1"}, ""},
		"a read-write lock": {[]any{"mode", "read", "someone", "x"}, "someone"},
		"a mode alone":      {[]any{"mode", "read"}, "mode"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.listen("b")
			require.NoError(t, r.rdb.HSet(t.Context(), r.base, c.fields...).Err())
			want := &store.Busy{Owner: store.ID(c.owner), TTL: -time.Millisecond}
			_, err := r.store.Try(t.Context(), r.ask(newID("b"), minute))
			require.Equal(t, want, err)
			got, err := r.acquire(newID("b"), minute, newPlace)
			require.NoError(t, err)
			require.Equal(t, statusQueued, got.status)
			require.Equal(t, want, got.busy())
			require.EqualValues(t, 0, r.renew(newID("b"), minute, 1))
			require.EqualValues(t, 0, r.release(newID("b")))
			require.EqualValues(t, c.owner, r.look().Owner)
			require.Len(t, r.rdb.HGetAll(t.Context(), r.base).Val(), len(c.fields)/2)
		})
	}
}

// commands are all calls of the store about a lock that id has, or is to have.
func (r *rig) commands(id string) map[string]func(ctx context.Context) error {
	s, l := r.store, r.held(id, minute)
	other := r.ask(newID("b"), minute)
	return map[string]func(ctx context.Context) error{
		"Try":     func(ctx context.Context) error { _, err := s.Try(ctx, other); return err },
		"acquire": func(ctx context.Context) error { _, _, err := s.acquire(ctx, other, newPlace, 1); return err },
		"Enter":   func(ctx context.Context) error { _, err := s.Enter(ctx, l, 2); return err },
		"Renew": func(ctx context.Context) error {
			return s.Renew(ctx, []store.Renewal{{Lease: l, TTL: 2 * minute, Count: 2}})[0]
		},
		"Release": func(ctx context.Context) error { return s.Release(ctx, l, 0) },
		"Forget":  func(ctx context.Context) error { return s.Forget(ctx, []store.Ask{l.Ask})[0] },
		"Token":   func(ctx context.Context) error { _, err := s.Token(ctx, l); return err },
		"Look":    func(ctx context.Context) error { _, err := s.Look(ctx, r.base); return err },
		"Break":   func(ctx context.Context) error { return s.Break(ctx, r.base, l.ID) },
	}
}

func TestAKeyOfAnotherTypeIsAnErrorAndNothingChanges(t *testing.T) {
	uses := map[string]string{
		"":          "Try acquire Enter Renew Release Forget Token Look Break",
		queueSuffix: "acquire Release Forget Look Break",
		tokenSuffix: "Token Look",
	}
	for suffix, users := range uses {
		for _, what := range strings.Fields(users) {
			t.Run(what+suffix, func(t *testing.T) {
				r := newRig(t)
				r.listen("b")
				id := r.enter("a")
				if suffix == "" {
					require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
					r.waitInQueue()
				}
				require.NoError(t, r.rdb.SAdd(t.Context(), r.base+suffix, "x").Err())
				r.unchanged(func() {
					err := r.commands(id)[what](t.Context())
					require.ErrorContains(t, err, "WRONGTYPE")
					require.NotErrorIs(t, err, store.ErrUnsure)
				})
			})
		}
	}
}

// waitInQueue puts a waiter into the queue, whoever has the lock.
func (r *rig) waitInQueue() string {
	r.Helper()
	id := newID("b")
	require.NoError(r, r.rdb.ZAdd(r.Context(), r.base+queueSuffix, redis.Z{Score: 1, Member: id + "|60000"}).Err())
	return id
}

func TestOutOfMemory(t *testing.T) {
	server := redistest.Start(t)
	full := func(t *testing.T, rdb *redis.Client, limit string) {
		t.Helper()
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", limit).Err())
	}
	for what, oom := range map[string]bool{
		"Try": false, "acquire": true, "Enter": false, "Renew": false, "Release": false, "Forget": false, "Token": true,
		"Look": false, "Break": false,
	} {
		t.Run(what, func(t *testing.T) {
			r := newRigOn(t, server)
			full(t, r.rdb, "0")
			ps := r.listen("b")
			id := r.enter("a")
			next := r.waiter("b")
			full(t, r.rdb, "1")
			defer full(t, r.rdb, "0")
			err := r.commands(id)[what](t.Context())
			var busy *store.Busy
			switch {
			case oom:
				require.ErrorContains(t, err, "OOM")
				require.NotErrorIs(t, err, store.ErrUnsure)
			case what == "Try":
				require.ErrorAs(t, err, &busy)
			default:
				require.NoError(t, err)
			}
			switch what {
			case "Enter", "Renew":
				r.owner(id, 2)
			case "Release", "Forget", "Break":
				require.Equal(t, next, message(t, ps))
				r.owner(next, 1)
				r.lease(minute)
			}
		})
	}
	t.Run("a free lock is not taken", func(t *testing.T) {
		r := newRigOn(t, server)
		full(t, r.rdb, "1")
		defer full(t, r.rdb, "0")
		_, err := r.store.Try(t.Context(), r.ask(newID("a"), minute))
		require.ErrorContains(t, err, "OOM")
		r.free()
	})
	t.Run("a waiter keeps its place and gets its grant", func(t *testing.T) {
		r := newRigOn(t, server)
		ps := r.listen("b")
		owner, id := r.enter("a"), newID("b")
		got, err := r.acquire(id, minute, newPlace)
		require.NoError(t, err)
		full(t, r.rdb, "1")
		defer full(t, r.rdb, "0")
		arrival := strconv.FormatInt(got.number, 10)
		require.Equal(t, statusQueued, r.status(id, arrival))
		require.EqualValues(t, 1, r.release(owner))
		require.Equal(t, id, message(t, ps))
		require.Equal(t, statusOurs, r.status(id, arrival))
	})
	t.Run("a free lock goes to a waiter", func(t *testing.T) {
		r := newRigOn(t, server)
		ps := r.listen("b")
		r.enter("a")
		next := r.waiter("b")
		require.NoError(t, r.rdb.Del(t.Context(), r.base).Err())
		full(t, r.rdb, "1")
		defer full(t, r.rdb, "0")
		require.Equal(t, statusBusy, r.status(newID("a"), noPlace))
		require.Equal(t, next, message(t, ps))
	})
}

// TestAReplicaIsNotBelieved asks a server that has just become a replica, and has no data yet.
func TestAReplicaIsNotBelieved(t *testing.T) {
	server := redistest.Start(t)
	r := newRigOn(t, server)
	require.NoError(t, r.rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	t.Cleanup(func() { require.NoError(t, r.rdb.ReplicaOf(context.Background(), "NO", "ONE").Err()) })
	for what, command := range r.commands(newID("a")) {
		if what == "Look" { // reads, and decides nothing
			continue
		}
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			err := command(ctx)
			require.ErrorContains(t, err, "READONLY")
			require.NotErrorIs(t, err, store.ErrGone)
			require.True(t, ctx.Err() != nil || !errors.Is(err, store.ErrUnsure), "the server says that nothing has run")
		})
	}
}

// withUser is a rig of a user of Redis with these rules.
func withUser(t *testing.T, rules ...any) *rig {
	t.Helper()
	server := redistest.Start(t)
	if !server.AtLeast(6, 2) {
		redistest.NotTested(t, "Redis before 6.2 has no rules for channels")
	}
	r := newRigOn(t, server)
	require.NoError(t, r.rdb.Do(t.Context(), append([]any{"ACL", "SETUSER", "app", "on", ">pw", "resetchannels"}, rules...)...).Err())
	rdb := server.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	s, err := newRedisStore(rdb, redisOptions{prefix: DefaultPrefix})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s.(*nativeStore)
	return r
}

func TestAUserNeedsNoMoreThanItsPrefix(t *testing.T) {
	r := withUser(t, "&"+DefaultPrefix+"*", "~"+DefaultPrefix+"*", "+@all")
	ps := r.listen("b")
	for _, what := range []string{"Release", "Forget", "Break"} {
		id := newID("a")
		l, err := r.store.Try(t.Context(), r.ask(id, minute))
		require.NoError(t, err)
		require.EqualValues(t, id, l.ID)
		commands := r.commands(id)
		for _, other := range []string{"acquire", "Enter", "Renew", "Token", "Look", what} {
			require.NoError(t, commands[other](t.Context()), other)
		}
		granted := message(t, ps)
		r.owner(granted, 1)
		require.NoError(t, r.store.Forget(t.Context(), []store.Ask{r.ask(granted, minute)})[0])
		r.free()
	}
}

func TestALeaseThatCannotBeSetLeavesNoLockWithoutEnd(t *testing.T) {
	r := withUser(t, "&*", "~*", "+@all", "-pexpire")
	_, err := r.store.Try(t.Context(), r.ask(newID("a"), minute))
	require.ErrorContains(t, err, "can't run this command")
	r.free()

	for _, what := range []string{"Release", "Forget", "Break"} {
		owner := r.enter("a") // as another user
		ps := r.listen("b")
		r.waiter("b")
		require.ErrorContains(t, r.commands(owner)[what](t.Context()), "can't run this command", what)
		silent(t, ps)
		r.free()
	}
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
		args = append(args, ids[i], millis(minute), noPlace)
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
	replies := all(acquireScript, args)
	require.Equal(t, []any{int64(1), []any{int64(0), "someone", int64(-1)}, int64(1)}, []any{replies[0], replies[2], replies[3]})
	failed(replies[1])
	replies = all(releaseScript, []any{"PUBLISH", ids[0], ids[1], ids[2], ids[3]})
	require.Equal(t, []any{int64(1), int64(0), int64(1)}, []any{replies[0], replies[2], replies[3]})
	failed(replies[1])
}

// TestAMigratingSlot frees locks whose slot is on its way to another node. There Redis refuses keys
// that do not exist any more.
func TestAMigratingSlot(t *testing.T) {
	cluster := redistest.StartCluster(t)
	rdb := cluster.Client()
	s, err := newRedisStore(rdb, redisOptions{prefix: DefaultPrefix})
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
		require.NoError(t, r.store.Release(t.Context(), r.held(id, minute), 0))
		require.Equal(t, owner(), message(t, ps))
	}
	move.MoveKeys(r.base)
	move.Finish()
	require.NoError(t, r.store.Release(t.Context(), r.held(last, minute), 0))
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

func TestOddRepliesAreErrors(t *testing.T) {
	for _, reply := range []any{
		nil, "", "x", int64(0), int64(2), int64(4), int64(-1), []any{}, []any{int64(1)}, []any{int64(0), "x"},
		[]any{int64(2), "x", int64(1)}, []any{"0", "x", int64(1)}, []any{int64(0), int64(1), int64(1)},
		[]any{int64(2), "x", int64(1), int64(0), int64(0)}, []any{int64(2), "x", int64(1), int64(1), int64(-1)},
		[]any{int64(0), "x", int64(1), int64(1), int64(1)}, []any{int64(1), "x", int64(1), int64(-1)},
		[]any{int64(2), "x", int64(1), int64(1), int64(1), int64(1)}, []any{nil, nil, nil},
	} {
		_, err := parseAcquired(acquireScript, reply)
		require.ErrorIs(t, err, store.ErrUnsure, "%v", reply)
		require.ErrorContains(t, err, "acquire")
	}
}

func FuzzParseAcquired(f *testing.F) {
	for _, seed := range [][]byte{{1}, {2, 0, 's', 1}, {3, 2, 's', 100, 5, 0}, {255, 255, 0}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var reply []any
		for _, b := range data {
			if b == 's' {
				reply = append(reply, "x")
			} else {
				reply = append(reply, int64(int8(b)))
			}
		}
		r, err := parseAcquired(acquireScript, reply)
		if err != nil {
			require.Equal(t, acquired{}, r)
			return
		}
		require.Contains(t, []int64{statusBusy, statusOurs, statusQueued, statusKind}, r.status)
		require.GreaterOrEqual(t, r.position, 0)
		require.GreaterOrEqual(t, r.number, int64(0))
	})
}

func TestLeaseOfAReply(t *testing.T) {
	first := time.Now()
	sent := first.Add(10 * time.Second)
	answer := wire.Answer{First: first, Sent: sent}
	a := store.Ask{TTL: minute}
	for _, c := range []struct {
		reply acquired
		want  time.Time
	}{
		{acquired{status: statusOurs}, first}, // a repeat sets a shorter lease
		{acquired{status: statusOurs, known: true, remaining: minute}, sent},
		{acquired{status: statusOurs, known: true, remaining: 2 * minute}, sent},
		{acquired{status: statusOurs, known: true, remaining: minute / 4}, sent.Add(-minute * 3 / 4)},
		{acquired{status: statusOurs, known: true, remaining: -time.Millisecond}, sent.Add(-minute)},
	} {
		require.Equal(t, c.want, c.reply.lease(a, answer).Sent, "%+v", c.reply)
	}
}

func TestMillis(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000, minute: 60000,
	} {
		require.Equal(t, want, millis(d), d)
	}
	for elapsed, want := range map[time.Duration]int64{
		0: 60000, time.Second: 59000, minute - 1: 1, minute: 60000, minute + time.Second: 59000,
	} {
		require.Equal(t, want, repeatMillis(minute, elapsed), elapsed)
	}
}
