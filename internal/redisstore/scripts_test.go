package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// How does a test call a script, and look at what the script left? scripts_acquire_test.go,
// scripts_queue_test.go, scripts_release_test.go, scripts_token_test.go, scripts_loans_test.go and
// scripts_refused_test.go ask what each script promises in its header, on a real server. Each test
// has a lock of its own, so the tests share a server, except for tests that change the server.

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// limit bounds what takes a few round trips.
const limit = 10 * time.Second

// scripts are the scripts in the tree.
var scripts = LoadScripts(os.DirFS("../../scripts"))

// prefix is relock.DefaultPrefix.
const prefix = "relock:"

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
	s, err := New(r.rdb, Options{Layout: Layout{Prefix: prefix}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s.(*nativeStore)
	r.base, err = baseKey(prefix, t.Name())
	require.NoError(t, err)
	clean := func() { require.NoError(t, r.rdb.Del(context.Background(), r.keys()...).Err()) }
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

func (r *rig) claim(id string, ttl time.Duration) store.Claim {
	return store.Claim{Name: r.base, ID: store.ID(id), TTL: ttl, Limit: 1}
}

func (r *rig) held(id string, ttl time.Duration) store.Lease {
	return store.Lease{Claim: r.claim(id, ttl)}
}

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

// keys returns the keys that a lock of any kind may have.
func (r *rig) keys() []string {
	keys := append(r.both(), r.base+tokenSuffix, r.base+loansSuffix)
	for _, kind := range kindKinds {
		limits := r.base + suffix(kind)
		keys = append(keys, limits, limits+queueSuffix)
	}
	return keys
}

// acquire asks for the lock, and queues with an arrival.
func (r *rig) acquire(id string, ttl time.Duration, arrival string) (acquireReply, error) {
	r.Helper()
	reply, err := r.script(scripts.mutex.acquire, r.both(), "PUBLISH", id, lifetime.Millis(ttl), arrival)
	if err != nil {
		return acquireReply{}, err
	}
	if reply == statusAgain {
		return acquireReply{status: statusAgain}, nil
	}
	return parseAcquireReply(scripts.mutex.acquire, reply)
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
	return r.number(scripts.mutex.release, r.both(), "PUBLISH", id)
}

func (r *rig) renew(id string, ttl time.Duration, count int) int64 {
	r.Helper()
	return r.number(scripts.mutex.renew, []string{r.base}, id, lifetime.Millis(ttl), count)
}

func (r *rig) forget(id string) int64 {
	r.Helper()
	return r.number(scripts.mutex.forget, r.both(), "PUBLISH", id, lifetime.Millis(minute))
}

func (r *rig) token(id string) int64 {
	r.Helper()
	return r.number(scripts.mutex.token, []string{r.base, r.base + tokenSuffix}, id, 0)
}

func (r *rig) look() store.State {
	r.Helper()
	state, err := r.store.Look(r.Context(), store.Claim{Name: r.base})
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
	_, err := ps.ReceiveTimeout(t.Context(), limit)
	require.NoError(t, err)
	return ps
}

// listening runs f while a client listens. Afterwards the client is gone.
func (r *rig) listening(client string, f func()) {
	r.Helper()
	ps := r.listen(client)
	f()
	require.NoError(r, ps.Unsubscribe(r.Context()))
	_, err := ps.ReceiveTimeout(r.Context(), limit)
	require.NoError(r, err)
	require.NoError(r, ps.Close())
}

// message returns the next message, which must come.
func message(t *testing.T, ps *redis.PubSub) string {
	t.Helper()
	m, err := ps.ReceiveTimeout(t.Context(), limit)
	require.NoError(t, err)
	require.IsType(t, &redis.Message{}, m)
	granted, _, _ := strings.Cut(m.(*redis.Message).Payload, "\n+") // and the names of a run
	return granted
}

// silent requires that no message is on its way.
func silent(t *testing.T, ps *redis.PubSub) {
	t.Helper()
	require.NoError(t, ps.Ping(t.Context()))
	m, err := ps.ReceiveTimeout(t.Context(), limit)
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
	for _, key := range r.keys() {
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
