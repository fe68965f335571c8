package redisstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// vectorFile is what Redisson's own scripts were seen to do, see testdata.
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

// vectorTolerance is how much time may lie between two steps, there and here.
const vectorTolerance = 2 * time.Second

// redissonTTL is the lease of the vectors.
const redissonTTL = 30 * time.Second

// javaField is the hold of a thread in Java.
const javaField = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"

func readVectors(t *testing.T) vectorFile {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var f vectorFile
	require.NoError(t, json.Unmarshal(data, &f))
	for i := range f.Vectors {
		// A Java client keeps its answer to a release under a key that no other client reads.
		maps.DeleteFunc(f.Vectors[i].State, func(key string, _ keyVector) bool { return strings.HasPrefix(key, "redisson_unlock_latch:") })
	}
	return f
}

// redissonRig is a server with a lock in Redisson's layout, and a subscriber of all channels.
type redissonRig struct {
	*testing.T
	rdb   *redis.Client
	store *redissonStore
	ears  *redis.PubSub
}

const redissonName = "orders:42"

func newRedissonRig(t *testing.T, rdb *redis.Client, fenced bool) *redissonRig {
	t.Helper()
	s, err := New(rdb, Options{Layout: Layout{Prefix: prefix, Redisson: true, Fenced: fenced}, Scripts: scripts})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	return &redissonRig{T: t, rdb: rdb, store: s.(*redissonStore), ears: subscribed(t, rdb.PSubscribe(t.Context(), "*"))}
}

// redissonID is an ID whose field is that.
func redissonID(field string) store.ID {
	i := strings.LastIndexByte(field, ':')
	return store.ID(field[:i] + ":7" + field[i:])
}

func (r *redissonRig) claim(field string) store.Claim {
	return store.Claim{Name: redissonName, ID: redissonID(field), TTL: redissonTTL, Limit: 1}
}

func (r *redissonRig) lease(field string) store.Lease { return store.Lease{Claim: r.claim(field)} }

func (r *redissonRig) take(field string) store.Lease {
	r.Helper()
	l, err := r.store.Try(r.Context(), r.claim(field))
	require.NoError(r, err)
	return l
}

func (r *redissonRig) busy(field string) *store.Busy {
	r.Helper()
	_, err := r.store.Try(r.Context(), r.claim(field))
	var busy *store.Busy
	require.ErrorAs(r, err, &busy)
	return busy
}

func (r *redissonRig) enter(field string, count int) {
	r.Helper()
	_, err := r.store.Enter(r.Context(), r.lease(field), count)
	require.NoError(r, err)
}

func (r *redissonRig) release(field string) error {
	return r.store.Release(r.Context(), r.lease(field))
}

// leave sets a smaller count.
func (r *redissonRig) leave(field string, count int) error {
	_, err := r.store.Enter(r.Context(), r.lease(field), count)
	return err
}

// heard returns the messages since the last call.
func (r *redissonRig) heard() []published {
	r.Helper()
	lastID++
	mark := fmt.Sprint("mark ", lastID)
	require.NoError(r, r.rdb.Publish(r.Context(), mark, "").Err())
	got := []published{}
	for {
		m, err := r.ears.ReceiveTimeout(r.Context(), limit)
		require.NoError(r, err)
		msg, ok := m.(*redis.Message)
		require.True(r, ok, "%T", m)
		if msg.Channel == mark {
			return got
		}
		if strings.HasPrefix(msg.Channel, "mark") { // of another rig
			continue
		}
		got = append(got, published{Channel: msg.Channel, Payload: hex.EncodeToString([]byte(msg.Payload))})
	}
}

// state returns each key of the server.
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

// replays are what we do where Redisson does a step. Before each step Redis is as the step before
// has left it. a and b are holders.
func replays(a, b string) map[string]func(r *redissonRig, v vector) {
	busy := func(r *redissonRig, v vector) {
		got := r.busy(b)
		require.EqualValues(r, a, got.Owner)
		want := v.Reply
		if list, ok := want.([]any); ok { // of a fenced lock: {remaining, no token}
			require.EqualValues(r, -1, list[1])
			want = list[0]
		}
		require.InDelta(r, want, got.TTL.Milliseconds(), float64(vectorTolerance/time.Millisecond))
	}
	gone := func(r *redissonRig, err error) { r.Helper(); require.ErrorIs(r, err, store.ErrGone) }
	done := func(r *redissonRig, err error) { r.Helper(); require.NoError(r, err) }
	return map[string]func(r *redissonRig, v vector){
		"RLock: acquire by A (free)":                                 func(r *redissonRig, _ vector) { r.take(a) },
		"RLock: re-acquire by A":                                     func(r *redissonRig, _ vector) { r.enter(a, 2) },
		"RLock: contended attempt by B: reply is remaining ttl (ms)": busy,
		"RLock: watchdog renewal, two entries, second not held: reply 1/0 per key": func(r *redissonRig, v vector) {
			elsewhere := r.lease(b)
			elsewhere.Name = "nosuch"
			errs := r.store.Renew(r.Context(), []store.Renewal{
				{Lease: r.lease(a), TTL: redissonTTL, Count: 2}, {Lease: elsewhere, TTL: redissonTTL, Count: 1},
			})
			require.Equal(r, []any{1.0, 0.0}, v.Reply)
			require.Equal(r, []error{nil, store.ErrGone}, errs)
		},
		"RLock: release 1 of 2 by A":                                      func(r *redissonRig, _ vector) { done(r, r.leave(a, 1)) },
		"RLock: same request id replayed: latch answers, nothing changes": func(r *redissonRig, _ vector) { done(r, r.leave(a, 1)) },
		"RLock: release by non-owner B: nil": func(r *redissonRig, _ vector) {
			gone(r, r.leave(b, 1))
			gone(r, r.release(b))
		},
		"RLock: final release by A: DEL + publish 0": func(r *redissonRig, _ vector) { done(r, r.release(a)) },
		// There a key says that it was freed. Here the client knows that it has sent the command
		// twice.
		"RLock: same request id replayed after final release": func(r *redissonRig, _ vector) { gone(r, r.release(a)) },
		"RLock: release when free: nil, no publish, no latch": func(r *redissonRig, _ vector) { gone(r, r.release(a)) },
		"RLock: forceUnlock when free: 0, no publish": func(r *redissonRig, _ vector) {
			gone(r, r.store.Break(r.Context(), store.Claim{Name: redissonName, ID: store.ID(a)}))
		},
		"RLock: forceUnlock when held": func(r *redissonRig, _ vector) {
			r.take(b)
			r.enter(b, 2)
			done(r, r.store.Break(r.Context(), store.Claim{Name: redissonName, ID: store.ID(b)}))
		},
		"RLock: attempt while the key has no TTL: reply -1": func(r *redissonRig, v vector) {
			require.EqualValues(r, -1, v.Reply)
			require.NoError(r, r.rdb.HSet(r.Context(), redissonName, b, 1).Err())
			require.Equal(r, &store.Busy{Owner: store.ID(b), TTL: -time.Millisecond}, r.busy(a))
		},
		"RFencedLock: lockAndGetToken by A": func(r *redissonRig, v vector) {
			require.Equal(r, []any{-1.0, 1.0}, v.Reply, "taken, with a token")
			require.EqualValues(r, 1, r.take(a).Token)
		},
		"RFencedLock: re-entrant lockAndGetToken by A: token grows": func(r *redissonRig, _ vector) { r.enter(a, 2) },
		"RFencedLock: contended by B":                               busy,
		"RFencedLock: plain lock() re-entry by A also increments":   func(r *redissonRig, _ vector) { r.enter(a, 3) },
	}
}

func TestRedissonVectors(t *testing.T) {
	f := readVectors(t)
	steps := replays(f.Holders["A"], f.Holders["B"])
	rdb := redistest.Shared(t).Client()
	done := 0
	before := map[string]map[string]keyVector{}
	for _, v := range f.Vectors {
		if v.Group != "RLock" && v.Group != "RFencedLock" {
			continue
		}
		name := v.Group + ": " + v.Op
		t.Run(name, func(t *testing.T) {
			step := steps[name]
			require.NotNil(t, step, "a step that nobody replays")
			r := newRedissonRig(t, rdb, v.Group == "RFencedLock")
			r.restore(before[v.Group])
			step(r, v)
			want := maps.Clone(v.State)
			const token = redissonToken + "{" + redissonName + "}"
			if last, is := before[v.Group][token]; is { // a nested entry draws none here
				want[token] = last
			}
			r.requireState(want)
			control := func(p published) bool { return strings.HasPrefix(p.Channel, prefix) }
			require.Equal(t, v.Published, slices.DeleteFunc(r.heard(), control))
		})
		before[v.Group] = v.State
		done++
	}
	require.Equal(t, len(steps), done, "each step that we replay is in the file")
}

func TestRedissonTokens(t *testing.T) {
	const key = redissonToken + "{" + redissonName + "}"
	t.Run("never go back", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), true)
		for i := range int64(3) {
			field := fmt.Sprint("u:", i)
			l := r.take(field)
			require.Equal(t, i+1, l.Token)
			token, err := r.store.Token(t.Context(), l)
			require.NoError(t, err)
			require.Equal(t, l.Token, token)
			state, err := r.store.Look(t.Context(), store.Claim{Name: redissonName})
			require.NoError(t, err)
			require.Equal(t, l.Token, state.Token)
			require.NoError(t, r.release(field))
			_, err = r.store.Token(t.Context(), l)
			require.ErrorIs(t, err, store.ErrGone)
			require.EqualValues(t, -1, r.state()[key].PTTL, "the key stays")
		}
		r.take("u:4")
		require.NoError(t, r.rdb.Del(t.Context(), key).Err())
		require.Positive(t, r.take("u:4").Token, "asked again, when the key is lost")
	})
	t.Run("are refused where the key holds none", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), true)
		for _, foreign := range []string{"x", "-5", "9000000000000000"} {
			require.NoError(t, r.rdb.Set(t.Context(), key, foreign, 0).Err())
			_, err := r.store.Try(t.Context(), r.claim("u:1"))
			require.Error(t, err, foreign)
			require.NotErrorIs(t, err, store.ErrUnsure)
			require.Zero(t, r.rdb.Exists(t.Context(), redissonName).Val())
		}
	})
	t.Run("are unsupported without fencing", func(t *testing.T) {
		r := newRedissonRig(t, redistest.Shared(t).Client(), false)
		l := r.take("u:1")
		require.Zero(t, l.Token)
		_, err := r.store.Token(t.Context(), l)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}

func TestRedissonSaysThatANameIsAnotherKindOfLock(t *testing.T) {
	const java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1"
	for what, set := range map[string]func(r *redissonRig){
		"read-write": func(r *redissonRig) { r.rdb.HSet(r.Context(), redissonName, "mode", "write", java+":write", 2) },
		"fair": func(r *redissonRig) {
			r.rdb.HSet(r.Context(), redissonName, java, 1)
			r.rdb.RPush(r.Context(), "redisson_lock_queue:{"+redissonName+"}", java)
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRedissonRig(t, redistest.Shared(t).Client(), false)
			set(r)
			_, err := r.store.Try(t.Context(), r.claim("u:1"))
			require.ErrorIs(t, err, store.ErrKind)
			require.ErrorContains(t, err, what)
			require.NotErrorIs(t, err, store.ErrUnsure)
			_, err = r.store.Wait(t.Context(), r.claim("u:1"), func(store.Progress) {})
			require.ErrorIs(t, err, store.ErrKind)
			state, err := r.store.Look(t.Context(), store.Claim{Name: redissonName})
			require.NoError(t, err)
			require.Contains(t, state.Owner, java)
		})
	}
	t.Run("and works for a user who may not look for that", func(t *testing.T) {
		server := redistest.Start(t)
		if !server.AtLeast(6, 2) {
			redistest.NotTested(t, "Redis before 6.2 has no rules for channels")
		}
		require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "u", "on", ">u", "~orders:*", "resetchannels",
			"&redisson_lock__channel:*", "+@all").Err())
		s, err := New(server.Client(func(o *redis.Options) { o.Username, o.Password = "u", "u" }), Options{Layout: Layout{Redisson: true}, Scripts: scripts})
		require.NoError(t, err)
		r := &redissonRig{T: t, store: s.(*redissonStore)}
		r.take("u:1")
		require.EqualValues(t, "u:1", r.busy("u:2").Owner)
		r.enter("u:1", 2)
		require.NoError(t, s.Break(t.Context(), store.Claim{Name: redissonName, ID: redissonID("u:1")}), "though its client cannot be told")
	})
}

func TestRedissonAKeyOfAnotherTypeIsAnErrorAndNothingChanges(t *testing.T) {
	r := newRedissonRig(t, redistest.Shared(t).Client(), true)
	want := map[string]keyVector{redissonName: {Type: "string", Value: "x", PTTL: -1}}
	r.restore(want)
	for what, command := range r.commands() {
		require.ErrorContains(t, command(t.Context()), "WRONGTYPE", what)
		r.requireState(want)
	}
}

// commands are all calls of the store about a hold.
func (r *redissonRig) commands() map[string]func(ctx context.Context) error {
	l := r.lease("u:1")
	return map[string]func(ctx context.Context) error{
		"Try":   func(ctx context.Context) error { _, err := r.store.Try(ctx, l.Claim); return err },
		"Enter": func(ctx context.Context) error { _, err := r.store.Enter(ctx, l, 2); return err },
		"Renew": func(ctx context.Context) error {
			return r.store.Renew(ctx, []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0]
		},
		"Release": func(ctx context.Context) error { return r.store.Release(ctx, l) },
		"Forget":  func(ctx context.Context) error { return r.store.Forget(ctx, []store.Claim{l.Claim})[0] },
		"Break":   func(ctx context.Context) error { return r.store.Break(ctx, store.Claim{Name: l.Name, ID: l.ID}) },
	}
}

func TestRedissonSaysThatAWaiterMayNotBeWoken(t *testing.T) {
	server := redistest.Start(t)
	if !server.AtLeast(7, 0) {
		redistest.NotTested(t, "before Redis 7 there is no SPUBLISH")
	}
	rdb := server.Client()
	for _, c := range []struct {
		publish, without string
		fails            bool
	}{
		{"PUBLISH", "publish", true}, {"PUBLISH", "spublish", false}, {"SPUBLISH", "publish", true}, {"SPUBLISH", "spublish", true},
		{"SPUBLISH", "ping", false},
	} {
		require.NoError(t, rdb.Do(t.Context(), "ACL", "SETUSER", "u", "reset", "on", ">u", "~*", "&*", "+@all", "-"+c.without).Err())
		r := newRedissonRig(t, rdb, false)
		r.take("u:1")
		user := server.Client(func(o *redis.Options) { o.Username, o.Password = "u", "u" })
		err := user.Eval(t.Context(), scripts.redisson.release.Source, []string{redissonName}, c.publish, "", "u:1", "channel").Err()
		require.Equal(t, c.fails, err != nil, "%+v: %v", c, err)
		require.Empty(t, r.state(), "the lock is free all the same")
	}
}

func TestRedissonFields(t *testing.T) {
	for id, want := range map[store.ID]string{
		"8743c9c0-0795-4907-87fd-6c719a6b4586:3:17":             "8743c9c0-0795-4907-87fd-6c719a6b4586:17",
		"web@1/8743c9c0-0795-4907-87fd-6c719a6b4586:3:4":        "web@1/8743c9c0-0795-4907-87fd-6c719a6b4586:4",
		"8743c9c0-0795-4907-87fd-6c719a6b4586:3:17679971603992": "8743c9c0-0795-4907-87fd-6c719a6b4586:17",
		"8743c9c0-0795-4907-87fd-6c719a6b4586:17":               "8743c9c0-0795-4907-87fd-6c719a6b4586:17",
		"x": "x",
		"":  "",
	} {
		require.Equal(t, want, redissonField(id), id)
	}
}

func TestRedissonNames(t *testing.T) {
	one, cluster := &redissonStore{redisStore: &redisStore{}}, &redissonStore{redisStore: &redisStore{}, cluster: true}
	for name, want := range map[string]struct {
		braced  string
		cluster bool // the name can be used there
	}{
		"orders:42":      {"{orders:42}", true},
		"{user:7}:cart":  {"{user:7}:cart", true},
		"cart:{user:7}":  {"cart:{user:7}", true},
		"{a}":            {"{a}", true},
		"a b":            {"{a b}", true},
		"é":              {"{é}", true},
		"a}b":            {"{a}b}", false},
		"}":              {"{}}", false},
		"a{b":            {"a{b", false},
		"a{}b":           {"a{}b", false},
		"{":              {"{", false},
		"relock:{a}":     {"relock:{a}", true},
		"a}{b}":          {"a}{b}", true},
		"{}{b}":          {"{}{b}", false},
		"redisson:queue": {"{redisson:queue}", true},
	} {
		a := store.Claim{Name: name, Limit: 1}
		got, err := one.Check(a)
		require.NoError(t, err, name)
		require.Equal(t, a, got)
		require.Equal(t, want.braced, braced(name))
		require.Equal(t, want.cluster, slot(name) == slot(redissonChannel+braced(name)), name)
		_, err = cluster.Check(a)
		if want.cluster {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("lock name %q", name))
			require.ErrorContains(t, err, "slots of a cluster")
		}
	}
	_, err := one.Check(store.Claim{Limit: 1})
	require.Error(t, err)
}

func TestRedissonNamesAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &redissonStore{redisStore: &redisStore{}, cluster: true}
	fine, bad := 0, 0
	for range 50_000 {
		var b strings.Builder
		for range 1 + rng.IntN(7) {
			b.WriteByte("{}{}ab"[rng.IntN(6)])
		}
		name := b.String()
		if _, err := s.Check(store.Claim{Name: name, Limit: 1}); err != nil {
			bad++
			continue
		}
		fine++
		require.Equal(t, slot(name), slot(redissonChannel+braced(name)), name)
		require.Equal(t, slot(name), slot(redissonToken+braced(name)), name)
	}
	require.Positive(t, fine)
	require.Positive(t, bad)
}

func TestRedissonCommandsMayRunAgain(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		r := newRedissonRig(t, redistest.Shared(t).Client(), fenced)
		again := func(what string, f func() error) {
			t.Helper()
			require.NoError(t, f(), what)
			state := r.state()
			for range 2 {
				if err := f(); err != nil {
					require.ErrorIs(t, err, store.ErrGone, what)
				}
				r.requireState(state)
			}
		}
		var tokens []int64
		again("Try", func() error {
			l, err := r.store.Try(t.Context(), r.claim("u:1"))
			tokens = append(tokens, l.Token)
			return err
		})
		require.Len(t, slices.Compact(tokens), 1)
		again("Enter", func() error { _, err := r.store.Enter(t.Context(), r.lease("u:1"), 3); return err })
		again("Enter with 1", func() error { return r.leave("u:1", 1) })
		require.Empty(t, r.heard())
		again("Release", func() error { return r.release("u:1") })
		require.Len(t, r.heard(), 1, "published once")
		r.take("u:2")
		again("Forget", func() error { return r.store.Forget(t.Context(), []store.Claim{r.claim("u:2")})[0] })
		require.Len(t, r.heard(), 1)
		r.take("u:3")
		again("Break", func() error {
			return r.store.Break(t.Context(), store.Claim{Name: redissonName, ID: redissonID("u:3")})
		})
		require.Len(t, r.heard(), 2, "for waiters, and for the client of the hold")
	}
}
