package relock

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

// ---------------------------------------------------------------------------------------------------------------------
// The vectors: what Redisson's own scripts were seen to do.

type vectorFile struct {
	Holders map[string]string `json:"holders"`
	Vectors []vector          `json:"vectors"`
}

// vector is one step of Redisson.
type vector struct {
	Group string `json:"group"`
	Op    string `json:"op"`
	Reply any    `json:"reply"`

	Published []published          `json:"published"`
	State     map[string]keyVector `json:"state_after"`
}

type published struct {
	Channel string `json:"channel"`
	Payload string `json:"payload_hex"`
}

type keyVector struct {
	Type  string `json:"type"`
	Value any    `json:"value"` // of a hash: fields; of a string: the string
	PTTL  int64  `json:"pttl"`
}

// vectorTolerance is how much time the run that made the vectors took between two steps, and ours.
const vectorTolerance = 2 * time.Second

func readVectors(t *testing.T) vectorFile {
	t.Helper()
	data, err := os.ReadFile("testdata/redisson/vectors.json")
	require.NoError(t, err)
	var f vectorFile
	require.NoError(t, json.Unmarshal(data, &f))
	for i := range f.Vectors {
		// The key with which Redisson answers a release that it sends twice. Nobody but the client that sent it reads it.
		maps.DeleteFunc(f.Vectors[i].State, func(key string, _ keyVector) bool { return strings.HasPrefix(key, "redisson_unlock_latch:") })
	}
	return f
}

// redissonRig is a server with a lock in Redisson's layout, and somebody who hears everything.
type redissonRig struct {
	*testing.T
	rdb    *redis.Client
	client *Client
	lock   *Lock
	ears   *redis.PubSub
}

func newRedissonRig(t *testing.T, rdb *redis.Client, options ...Option) *redissonRig {
	t.Helper()
	client, err := New(rdb, append([]Option{WithRedissonLayout()}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	r := &redissonRig{T: t, rdb: rdb, client: client, lock: client.NewLock("orders:42")}
	require.NoError(t, r.lock.Err())
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	r.ears = rdb.PSubscribe(t.Context(), "*")
	t.Cleanup(func() { _ = r.ears.Close() })
	_, err = r.ears.ReceiveTimeout(t.Context(), 10*time.Second)
	require.NoError(t, err)
	return r
}

// hold is a hold of that name with so many entries made, whose next change is the one after these.
func (r *redissonRig) hold(id string, entries int) *hold {
	r.Helper()
	h := r.lock.newHold(Holder{id: id}, id)
	h.frames = &frame{hold: h, ctx: context.Background()}
	h.steps = int64(max(entries, 1))
	return h
}

// entered is hold with its entries made in Redis.
func (r *redissonRig) entered(id string, entries int) *hold {
	r.Helper()
	h := r.hold(id, 0)
	for i := range entries {
		require.Equal(r, acquireOurs, r.ask(h, i+1).status)
	}
	return h
}

func (r *redissonRig) ask(h *hold, target int) acquisition {
	r.Helper()
	got, _, err := r.client.wire.acquire(r.Context(), h, target, false, 0, once)
	require.NoError(r, err)
	return got
}

func (r *redissonRig) release(h *hold, target int) bool {
	r.Helper()
	there, _, err := r.client.wire.release(r.Context(), h, target, once)
	require.NoError(r, err)
	return there
}

// heard is what was published since it was last asked.
func (r *redissonRig) heard() []published {
	r.Helper()
	const mark = "the end"
	require.NoError(r, r.rdb.Publish(r.Context(), mark, "").Err())
	got := []published{}
	for {
		m, err := r.ears.ReceiveTimeout(r.Context(), 10*time.Second)
		require.NoError(r, err)
		msg, ok := m.(*redis.Message)
		require.True(r, ok, "%T", m)
		if msg.Channel == mark {
			return got
		}
		got = append(got, published{Channel: msg.Channel, Payload: hex.EncodeToString([]byte(msg.Payload))})
	}
}

// state is every key of the server.
func (r *redissonRig) state() map[string]keyVector {
	r.Helper()
	ctx := r.Context()
	all := map[string]keyVector{}
	for _, key := range redistest.Keys(r, r.rdb) {
		k := keyVector{Type: r.rdb.Type(ctx, key).Val(), PTTL: r.rdb.Do(ctx, "PTTL", key).Val().(int64)}
		switch k.Type {
		case "hash":
			fields := map[string]any{}
			for field, value := range r.rdb.HGetAll(ctx, key).Val() {
				fields[field] = value
			}
			k.Value = fields
		case "string":
			k.Value = r.rdb.Get(ctx, key).Val()
		default:
			require.Fail(r, "no key of a lock is a "+k.Type)
		}
		all[key] = k
	}
	return all
}

// restore makes Redis what it was after a step.
func (r *redissonRig) restore(state map[string]keyVector) {
	r.Helper()
	ctx := r.Context()
	require.NoError(r, r.rdb.FlushAll(ctx).Err())
	for key, k := range state {
		if k.Type == "hash" {
			require.NoError(r, r.rdb.HSet(ctx, key, k.Value).Err())
		} else {
			require.NoError(r, r.rdb.Set(ctx, key, k.Value, 0).Err())
		}
		if k.PTTL > 0 {
			require.NoError(r, r.rdb.PExpire(ctx, key, time.Duration(k.PTTL)*time.Millisecond).Err())
		}
	}
}

func (r *redissonRig) requireState(want map[string]keyVector) {
	r.Helper()
	got := r.state()
	require.ElementsMatch(r, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(got)), "the keys")
	for key, w := range want {
		g := got[key]
		require.Equal(r, w.Type, g.Type, key)
		require.Equal(r, w.Value, g.Value, key)
		if w.PTTL < 0 {
			require.Equal(r, w.PTTL, g.PTTL, key)
		} else {
			require.InDelta(r, w.PTTL, g.PTTL, float64(vectorTolerance/time.Millisecond), "the lease of %s", key)
		}
	}
}

// remaining says that what is left of a lease is as in the vector.
func (r *redissonRig) remaining(want any, got time.Duration) {
	r.Helper()
	if list, ok := want.([]any); ok { // of a fenced lock: {remaining, no token}
		require.EqualValues(r, -1, list[1])
		want = list[0]
	}
	require.InDelta(r, want, got.Milliseconds(), float64(vectorTolerance/time.Millisecond))
}

func TestEveryStepOfRedissonsLocksIsReplayed(t *testing.T) {
	f := readVectors(t)
	a, b := f.Holders["A"], f.Holders["B"]
	ours := func(r *redissonRig, h *hold, target int, token int64) {
		r.Helper()
		require.Equal(r, acquisition{status: acquireOurs, token: token}, r.ask(h, target))
	}
	busy := func(r *redissonRig, h *hold, owner string, v vector) {
		r.Helper()
		got := r.ask(h, 1)
		require.Equal(r, acquireBusy, got.status)
		require.Equal(r, owner, got.owner)
		r.remaining(v.Reply, got.remaining)
	}
	// What we do where Redisson does this step, and what the reply means. Before it, Redis is as the step before has left it.
	replay := map[string]func(r *redissonRig, v vector){
		"RLock: acquire by A (free)": func(r *redissonRig, v vector) {
			require.Nil(r, v.Reply, "taken")
			ours(r, r.hold(a, 0), 1, 0)
		},
		"RLock: re-acquire by A": func(r *redissonRig, v vector) {
			require.Nil(r, v.Reply, "taken")
			ours(r, r.hold(a, 1), 2, 0)
		},
		"RLock: contended attempt by B: reply is remaining ttl (ms)": func(r *redissonRig, v vector) { busy(r, r.hold(b, 0), a, v) },
		"RLock: watchdog renewal, two entries, second not held: reply 1/0 per key": func(r *redissonRig, v vector) {
			elsewhere := r.hold(b, 1)
			k, err := r.client.layout.place(r.lock.settings, "nosuch")
			require.NoError(r, err)
			elsewhere.keys = k
			batch := []renewal{{hold: r.hold(a, 2), ttl: DefaultTTL}, {hold: elsewhere, ttl: DefaultTTL}}
			r.client.wire.renew(r.Context(), batch)
			for i, renewed := range v.Reply.([]any) {
				require.NoError(r, batch[i].err)
				require.Equal(r, renewed.(float64) == 0, batch[i].lost)
			}
		},
		"RLock: release 1 of 2 by A": func(r *redissonRig, v vector) {
			require.EqualValues(r, 0, v.Reply, "left, and not free")
			require.True(r, r.release(r.hold(a, 2), 1))
		},
		"RLock: same request id replayed: latch answers, nothing changes": func(r *redissonRig, v vector) {
			require.EqualValues(r, 0, v.Reply)
			h := r.hold(a, 2)
			require.True(r, r.release(h, 1))
		},
		"RLock: release by non-owner B: nil": func(r *redissonRig, v vector) {
			require.Nil(r, v.Reply)
			require.False(r, r.release(r.hold(b, 2), 1))
			require.False(r, r.release(r.hold(b, 1), 0))
		},
		"RLock: final release by A: DEL + publish 0": func(r *redissonRig, v vector) {
			require.EqualValues(r, 1, v.Reply)
			require.True(r, r.release(r.hold(a, 1), 0))
		},
		"RLock: same request id replayed after final release": func(r *redissonRig, _ vector) {
			// Without a latch the reply is that nothing is there. That it was freed is for the client to know, which sent
			// it twice: TestALostReplyOfTheLastUnlockIsNoLoss.
			require.False(r, r.release(r.hold(a, 1), 0))
		},
		"RLock: release when free: nil, no publish, no latch": func(r *redissonRig, v vector) {
			require.Nil(r, v.Reply)
			require.False(r, r.release(r.hold(a, 1), 0))
		},
		"RLock: forceUnlock when free: 0, no publish": func(r *redissonRig, v vector) {
			require.EqualValues(r, 0, v.Reply)
			require.ErrorIs(r, r.lock.ForceUnlock(r.Context()), ErrNotHeld)
			require.NoError(r, r.client.wire.forceRelease(r.Context(), r.lock.keys, a, once))
		},
		"RLock: forceUnlock when held": func(r *redissonRig, v vector) {
			require.EqualValues(r, 1, v.Reply)
			r.entered(b, 2)
			require.NoError(r, r.lock.ForceUnlock(r.Context()))
		},
		"RLock: attempt while the key has no TTL: reply -1": func(r *redissonRig, v vector) {
			require.EqualValues(r, -1, v.Reply)
			require.NoError(r, r.rdb.HSet(r.Context(), r.lock.Name(), b, 1).Err())
			got := r.ask(r.hold(a, 0), 1)
			require.Equal(r, acquisition{status: acquireBusy, remaining: -time.Millisecond, owner: b}, got)
		},
		"RFencedLock: lockAndGetToken by A": func(r *redissonRig, v vector) {
			require.Equal(r, []any{-1.0, 1.0}, v.Reply, "taken, with a token")
			ours(r, r.hold(a, 0), 1, 1)
		},
		"RFencedLock: re-entrant lockAndGetToken by A: token grows": func(r *redissonRig, v vector) {
			require.Equal(r, []any{-1.0, 2.0}, v.Reply)
			ours(r, r.hold(a, 1), 2, 2)
		},
		"RFencedLock: contended by B": func(r *redissonRig, v vector) { busy(r, r.hold(b, 0), a, v) },
		"RFencedLock: plain lock() re-entry by A also increments": func(r *redissonRig, _ vector) {
			ours(r, r.hold(a, 2), 3, 3)
		},
	}
	rdb := redistest.Shared(t).Client()
	done := 0
	before := map[string]map[string]keyVector{}
	for _, v := range f.Vectors {
		if v.Group != "RLock" && v.Group != "RFencedLock" {
			continue
		}
		name := v.Group + ": " + v.Op
		t.Run(name, func(t *testing.T) {
			step := replay[name]
			require.NotNil(t, step, "a step that nobody replays")
			var options []Option
			if v.Group == "RFencedLock" {
				options = []Option{WithRedissonFencing()}
			}
			r := newRedissonRig(t, rdb, options...)
			r.restore(before[v.Group])
			step(r, v)
			r.requireState(v.State)
			require.Equal(t, v.Published, r.heard())
		})
		before[v.Group] = v.State
		done++
	}
	require.Equal(t, len(replay), done, "every step that we replay is in the file")
}

// ---------------------------------------------------------------------------------------------------------------------
// What goes beyond the vectors.

func TestInRedissonsLayoutEveryCommandMayRunTwice(t *testing.T) {
	for _, options := range [][]Option{nil, {WithRedissonFencing()}} {
		r := newRedissonRig(t, redistest.Shared(t).Client(), options...)
		run := func(request *request) any {
			t.Helper()
			var first any
			var state map[string]keyVector
			for i := range 3 {
				reply, err := r.rdb.Do(t.Context(), plainArgs(request.command(t.Context(), true).Args())...).Result()
				require.NoError(t, err)
				if i == 0 {
					first, state = reply, r.state()
					continue
				}
				if request.script != redissonRelease { // the second time nothing is there any more to release
					require.Equal(t, first, reply, request.script.name)
				}
				r.requireState(state)
			}
			return first
		}
		h, w, layout := r.hold("u:1", 0), r.client.wire, r.client.layout
		run(layout.acquire(w, h, change{target: 1, step: 1, lease: DefaultTTL}, false, 0))
		run(layout.acquire(w, h, change{target: 2, step: 2, lease: DefaultTTL}, false, 0))
		h.doubt = true
		run(layout.acquire(w, h, change{target: 3, step: 3, lease: DefaultTTL}, false, 0))
		run(layout.release(w, h, change{target: 1, step: 4, lease: DefaultTTL}))
		require.Empty(t, r.heard())
		require.EqualValues(t, 1, run(layout.release(w, h, change{target: 0, step: 5})))
		require.Len(t, r.heard(), 1, "told once")
		run(layout.acquire(w, r.hold("u:2", 0), change{target: 1, step: 1, lease: DefaultTTL}, false, 0))
		run(layout.forceRelease(w, h.keys, "u:2"))
		require.Len(t, r.heard(), 1, "told once")
		run(layout.state(h.keys))
	}
}

func TestInRedissonsLayoutAStepIsNotedOnlyOnceACommandMayRunLate(t *testing.T) {
	r := newRedissonRig(t, redistest.Shared(t).Client())
	h := r.entered("u:1", 3)
	require.True(t, r.release(h, 2))
	fields := func() map[string]string { return r.rdb.HGetAll(t.Context(), r.lock.Name()).Val() }
	require.Equal(t, map[string]string{"u:1": "2"}, fields(), "nothing that Redisson would not have written")

	late := r.client.layout.acquire(r.client.wire, h, change{target: 3, step: h.nextStep(), lease: DefaultTTL}, false, 0)
	h.doubt = true
	require.True(t, r.release(h, 1))
	require.Equal(t, map[string]string{"u:1": "1", "relock:step": strconv.FormatInt(h.steps, 10)}, fields())
	_, err := r.client.wire.run(t.Context(), late, once)
	require.NoError(t, err)
	require.Equal(t, "1", fields()["u:1"], "what ran late has changed nothing")

	// Redisson does not mind: it is refused, and has the lock when it is free.
	other := "f47ac10b-58cc-4372-a567-0e02b2c3d479:42"
	require.Equal(t, acquireBusy, r.ask(r.hold(other, 0), 1).status)
	require.True(t, r.release(h, 0))
	require.Empty(t, fields())
	_, err = r.client.wire.run(t.Context(), late, once)
	require.NoError(t, err)
	require.Empty(t, fields(), "a nested entry takes no free lock")
}

func TestInRedissonsLayoutEachCommandOfAHoldSetsItsLeaseAndOnlyMovesItLater(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		r := newRedissonRig(t, redistest.Shared(t).Client())
		h := r.entered("u:1", 2)
		h.doubt = doubt
		name, w, layout := r.lock.Name(), r.client.wire, r.client.layout
		after := func(lease time.Duration, request *request) time.Duration {
			t.Helper()
			require.NoError(t, r.rdb.PExpire(t.Context(), name, lease).Err())
			_, err := w.run(t.Context(), request, once)
			require.NoError(t, err)
			return r.rdb.PTTL(t.Context(), name).Val()
		}
		for what, request := range map[string]func(lease time.Duration) *request{
			"nested entry": func(lease time.Duration) *request {
				return layout.acquire(w, h, change{target: 2, step: h.nextStep(), lease: lease}, false, 0)
			},
			"inner exit": func(lease time.Duration) *request {
				return layout.release(w, h, change{target: 2, step: h.nextStep(), lease: lease})
			},
		} {
			sent := request(DefaultTTL)
			for range 2 { // the reply of the first is lost: the lease counts from the second
				require.Greater(t, after(time.Second, sent), DefaultTTL-vectorTolerance, what)
			}
			require.Greater(t, after(time.Hour, request(DefaultTTL)), time.Hour-vectorTolerance, what)
			require.LessOrEqual(t, after(time.Second, request(0)), time.Second, what)
		}
	}
}

func TestInRedissonsLayoutNobodyIsLetInUnderAKeyOfAnotherType(t *testing.T) {
	r := newRedissonRig(t, redistest.Shared(t).Client(), WithRedissonFencing())
	require.NoError(t, r.rdb.Set(t.Context(), "orders:42", "x", 0).Err())
	_, err := r.lock.Lock(t.Context())
	require.ErrorContains(t, err, "WRONGTYPE")
	r.requireState(map[string]keyVector{"orders:42": {Type: "string", Value: "x", PTTL: -1}})

	require.NoError(t, r.rdb.Del(t.Context(), "orders:42").Err())
	token := map[string]keyVector{"redisson_lock_token:{orders:42}": {Type: "string", Value: "x", PTTL: -1}}
	require.NoError(t, r.rdb.Set(t.Context(), "redisson_lock_token:{orders:42}", "x", 0).Err())
	_, err = r.lock.Lock(t.Context())
	require.ErrorContains(t, err, "not an integer")
	r.requireState(token)

	// The same for a nested entry.
	require.NoError(t, r.rdb.Del(t.Context(), "redisson_lock_token:{orders:42}").Err())
	h := r.entered("u:1", 1)
	require.NoError(t, r.rdb.Set(t.Context(), "redisson_lock_token:{orders:42}", "x", 0).Err())
	_, _, err = r.client.wire.acquire(t.Context(), h, 2, false, 0, once)
	require.ErrorContains(t, err, "not an integer")
	require.Equal(t, map[string]string{"u:1": "1"}, r.rdb.HGetAll(t.Context(), "orders:42").Val())

	// A lock of Redisson's getReadWriteLock is under the name by mistake.
	require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
	require.NoError(t, r.rdb.HSet(t.Context(), "orders:42", "mode", "write", javaHolder+":write", 2).Err())
	require.Equal(t, acquisition{status: acquireBusy, remaining: -time.Millisecond, owner: javaHolder + ":write"}, r.ask(r.hold("u:2", 0), 1))
	state, err := r.lock.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, State{Holder: Holder{id: javaHolder + ":write"}, Count: 2, TTL: -time.Millisecond}, state)
}

func TestInRedissonsLayoutATokenNeverGoesBack(t *testing.T) {
	r := newRedissonRig(t, redistest.Shared(t).Client(), WithRedissonFencing())
	var last int64
	for i := range 3 {
		h := r.hold(fmt.Sprint("u:", i), 0)
		first := r.ask(h, 1).token
		require.Greater(t, first, last)
		require.Equal(t, first, r.ask(h, 1).token, "asked again, it says the same")
		second := r.ask(h, 2).token
		require.Greater(t, second, first)
		require.Equal(t, second, r.ask(h, 2).token)
		require.True(t, r.release(h, 1))
		last = r.ask(h, 2).token
		require.Greater(t, last, second)
		require.True(t, r.release(h, 0))
		require.EqualValues(t, -1, r.state()["redisson_lock_token:{orders:42}"].PTTL, "it stays")
	}

	// Its counter is lost, and so is a reply: better a small token than none.
	h := r.entered("u:3", 1)
	require.NoError(t, r.rdb.Del(t.Context(), "redisson_lock_token:{orders:42}").Err())
	require.Positive(t, r.ask(h, 1).token)
}

func TestInRedissonsLayoutAUserWhoMayNotPublishIsTold(t *testing.T) {
	server := redistest.Start(t)
	if !server.AtLeast(7, 0) {
		redistest.NotTested(t, "before 7.0 a user cannot be kept from commands in scripts in this way, and there is no SPUBLISH")
	}
	rdb := server.Client()
	for _, c := range []struct {
		sharded bool
		without string
		told    bool
	}{
		{false, "publish", true}, {false, "spublish", false}, {true, "publish", true}, {true, "spublish", true}, {true, "ping", false},
	} {
		require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "u", "reset", "on", ">u", "~*", "&*", "+@all", "-"+c.without).Err())
		r := newRedissonRig(t, rdb)
		user := server.Client(func(o *redis.Options) { o.Username, o.Password = "u", "u" })
		client, err := New(user, WithRedissonLayout())
		require.NoError(t, err)
		client.wire.sharded.Store(c.sharded)
		h := r.entered("u:1", 1)
		_, _, err = client.wire.release(t.Context(), h, 0, once)
		if c.told {
			require.Error(t, err, c)
		} else {
			require.NoError(t, err)
		}
		require.Empty(t, r.state(), "it is free all the same")
		require.NoError(t, client.Close())
	}
}

func TestInRedissonsLayoutAWaiterWhoseLeaseIsOverBeforeItEntersAsksAgainAtOnce(t *testing.T) {
	const ttl = time.Second
	r := newRedissonRig(t, redistest.Shared(t).Client())
	require.NoError(t, r.rdb.HSet(t.Context(), r.lock.Name(), javaHolder, 1).Err())
	require.NoError(t, r.rdb.PExpire(t.Context(), r.lock.Name(), time.Minute).Err())
	queued := make(chan struct{})
	l := r.client.NewLock(r.lock.Name(), WithTTL(ttl), WithHooks(Hooks{Queued: func(Queued) { close(queued) }}))
	waiter := make(chan error, 1)
	go func() { waiter <- l.Do(t.Context(), func(context.Context) error { return nil }) }()
	<-queued
	redistest.Eventually(t, 5*time.Second, func() bool { return r.client.hub.hears(l.keys.topic) }, "it hears the channel")
	<-time.After(ttl / 5) // and has asked since, and sleeps

	table := r.client.table
	table.mu.Lock() // nobody enters meanwhile, as if the process stood still
	freed := r.rdb.Del(t.Context(), l.Name()).Err()
	told := r.rdb.Publish(t.Context(), l.keys.topic, "0").Err()
	<-time.After(ttl + ttl/5) // longer than the lease that it is given
	table.mu.Unlock()
	require.NoError(t, freed)
	require.NoError(t, told)
	select {
	case err := <-waiter:
		require.NoError(t, err)
	case <-time.After(5 * time.Second):
		require.Fail(t, "it sleeps although the lock is free")
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// Names.

func TestRedissonsNamesForALock(t *testing.T) {
	one, cluster := newRedisson(false), newRedisson(true)
	for name, want := range map[string]struct {
		channel, token string
		cluster        bool // it can be used there
	}{
		"orders:42":      {"redisson_lock__channel:{orders:42}", "redisson_lock_token:{orders:42}", true},
		"{user:7}:cart":  {"redisson_lock__channel:{user:7}:cart", "redisson_lock_token:{user:7}:cart", true},
		"cart:{user:7}":  {"redisson_lock__channel:cart:{user:7}", "redisson_lock_token:cart:{user:7}", true},
		"{a}":            {"redisson_lock__channel:{a}", "redisson_lock_token:{a}", true},
		"a b":            {"redisson_lock__channel:{a b}", "redisson_lock_token:{a b}", true},
		"é":              {"redisson_lock__channel:{é}", "redisson_lock_token:{é}", true},
		"a}b":            {"redisson_lock__channel:{a}b}", "redisson_lock_token:{a}b}", false},
		"}":              {"redisson_lock__channel:{}}", "redisson_lock_token:{}}", false},
		"a{b":            {"redisson_lock__channel:a{b", "redisson_lock_token:a{b", false},
		"a{}b":           {"redisson_lock__channel:a{}b", "redisson_lock_token:a{}b", false},
		"{":              {"redisson_lock__channel:{", "redisson_lock_token:{", false},
		"relock:{a}":     {"redisson_lock__channel:relock:{a}", "redisson_lock_token:relock:{a}", true},
		"a}{b}":          {"redisson_lock__channel:a}{b}", "redisson_lock_token:a}{b}", true},
		"{}{b}":          {"redisson_lock__channel:{}{b}", "redisson_lock_token:{}{b}", false},
		"redisson:queue": {"redisson_lock__channel:{redisson:queue}", "redisson_lock_token:{redisson:queue}", true},
	} {
		k, err := one.place(&settings{fenced: true}, name)
		require.NoError(t, err, name)
		require.Equal(t, []string{name, want.channel, want.token}, []string{k.base, k.channel("x"), k.token})
		plain, err := one.place(&settings{}, name)
		require.NoError(t, err, name)
		require.Empty(t, plain.token)

		_, err = cluster.place(&settings{}, name)
		require.Equal(t, want.cluster, slot(name) == slot(want.channel), name)
		if want.cluster {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, ErrInvalid, name)
			require.ErrorContains(t, err, fmt.Sprintf("%q", name))
			require.ErrorContains(t, err, "slots of a cluster")
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", MaxNameLen+1)} {
		_, err := one.place(&settings{}, bad)
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestInAClusterAllNamesOfRedissonsThatAreNotRefusedAreInOneSlot(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	layout := newRedisson(true)
	fine, bad := 0, 0
	for range 50_000 {
		var name strings.Builder
		for range 1 + rng.IntN(7) {
			name.WriteByte("{}{}ab"[rng.IntN(6)])
		}
		k, err := layout.place(&settings{fenced: true}, name.String())
		if err != nil {
			bad++
			require.ErrorIs(t, err, ErrInvalid)
			continue
		}
		fine++
		require.Equal(t, slot(k.base), slot(k.channel("")), k.base)
		require.Equal(t, slot(k.base), slot(k.token), k.base)
	}
	require.Positive(t, fine)
	require.Positive(t, bad)
}

func TestInRedissonsLayoutAHoldIsAUUIDAndANumberThatIsNeverUsedAgain(t *testing.T) {
	layout := newRedisson(false)
	seen := map[string]bool{}
	add := func(id string) {
		t.Helper()
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:[1-9][0-9]*$`, id)
		_, number, _ := strings.Cut(id, ":")
		_, err := strconv.ParseInt(number, 10, 64)
		require.NoError(t, err)
		require.False(t, seen[id], id)
		seen[id] = true
	}
	for range 100 {
		h, hold := layout.newHolder(processID())
		add(hold)
		require.Equal(t, h, layout.holderOf(hold), "what Redis shows of the holder that Lock has made is its name")
		add(layout.newHold(h))
		add(layout.newHold(h))
	}
}

// ---------------------------------------------------------------------------------------------------------------------
// Replies.

func TestOddRepliesInRedissonsLayoutAreErrorsAndNoLock(t *testing.T) {
	layout := newRedisson(false)
	for _, reply := range []any{
		nil, "", "1", int64(-2), []any{}, []any{int64(1)}, []any{"1", "x"}, []any{int64(1), int64(2)}, []any{int64(1), "x", int64(3)}, true,
	} {
		got, err := layout.acquisition(reply)
		require.ErrorContains(t, err, "unexpected reply", "%v", reply)
		require.ErrorContains(t, err, fmt.Sprint(reply), "as it is")
		require.Equal(t, acquisition{}, got)
	}
}

// It is in a race before it has its turn, and another one may come in between.
func TestWhoGivesUpBehindOneThatHasOvertakenItHasWaited(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &race{turn: make(chan struct{}, 1), refusal: &LockedError{Name: r.keys.name, Holder: NewHolder()}}
	p.turn <- struct{}{}
	a := &acquiring{lock: r.client.NewLock(r.keys.name), ctx: ctx, waiting: ctx, mayWait: true}
	require.ErrorIs(t, newRedisson(false).takeTurn(p, a), context.Canceled)
	require.Equal(t, p.refusal, a.refusal)
	require.True(t, a.waited)
}
