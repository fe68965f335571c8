package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// Do the short ways of acquire and release, without the functions of lib, leave what the long ways
// leave?

// longWay returns a script without its short way.
func longWay(t *testing.T, name string) *redis.Script {
	t.Helper()
	source := scripts.Text(name)
	for _, condition := range []string{"if exist == 0 then", "if waiting == 0 then"} {
		source = strings.Replace(source, condition, "if false then", 1)
	}
	require.NotEqual(t, scripts.Text(name), source)
	return redis.NewScript(source)
}

// shortRig is a lock of a kind for each way, in one state.
type shortRig struct {
	*testing.T
	rdb  *redis.Client
	rng  *rand.Rand
	kind string
}

func (r *shortRig) keys(way int) []string {
	base := fmt.Sprintf("{way%d}", way)
	return []string{base, base + ":" + r.kind, base + ":" + r.kind + ":queue", base + ":token"}
}

func (r *shortRig) pick(from ...string) string { return from[r.rng.IntN(len(from))] }

func (r *shortRig) mode() string {
	if r.kind == "rw" {
		return r.pick("r", "w")
	}
	return r.pick("1", "2", "3")
}

func (r *shortRig) hold() string { return r.pick("a:1:1", "a:1:2", "b:1:3") }

// arrange puts both locks into one state at random: leases that are over, limits that stay behind,
// keys without an end, keys of other types, and tokens of all sorts.
func (r *shortRig) arrange() (state []string) {
	now := r.rdb.Time(r.Context()).Val().UnixMilli()
	do := func(key int, command string, args ...any) {
		state = append(state, fmt.Sprint(key, command, args))
		for way := range 2 {
			require.NoError(r, r.rdb.Do(r.Context(), append([]any{command, r.keys(way)[key]}, args...)...).Err())
		}
	}
	ends := func(key int) {
		if r.rng.IntN(3) > 0 {
			do(key, "PEXPIRE", r.pick("50000", "90000000"))
		}
	}
	switch r.rng.IntN(8) {
	case 0, 1, 2:
		for range 1 + r.rng.IntN(3) {
			mode := r.mode()
			member := r.hold() + "|" + mode
			do(0, "ZADD", r.pick(fmt.Sprint(now-1000), fmt.Sprint(now+30000), fmt.Sprint(now+90000)), member)
			if mode != "r" && r.rng.IntN(5) > 0 {
				do(1, "ZADD", map[string]string{"w": "1"}[mode]+strings.Trim(mode, "w"), member)
			}
		}
		ends(0)
	case 3:
		do(0, r.pick("SET", "SADD"), "x")
	case 4:
		do(0, "HSET", r.pick("mode", "a:1:1"), "1")
	}
	switch r.rng.IntN(12) {
	case 0:
		do(1, "SET", "x")
	case 1:
		do(1, "ZADD", "1", "gone:1:1|1")
	}
	switch r.rng.IntN(6) {
	case 0:
		do(2, "ZADD", "2", r.hold()+"|60000|"+r.mode()+"|")
		ends(2)
	case 1:
		do(2, r.pick("SET", "SADD"), "x")
	}
	if r.rng.IntN(2) == 0 {
		do(3, "SET", r.pick("1", "0", "abc", "", "12.5", "-4", "007", "9e15", fmt.Sprint(now+3600000)+"000", "8999999999999999", "9000000000000001", "99999999999999999999"))
		ends(3)
	} else if r.rng.IntN(6) == 0 {
		do(3, "HSET", "a", "b")
	}
	return state
}

// found is all that the keys of a way hold, but for what depends on the time of the call.
func (r *shortRig) found(way int, begun int64) (all []string) {
	since := func(n float64, unit int64) string { // what a call makes of its time
		switch d := n/float64(unit) - float64(begun); {
		case d > -500 && d < 25_000:
			return "now"
		case d > 59_000 && d < 85_000:
			return "now and the lease"
		}
		return fmt.Sprintf("%.0f", n)
	}
	for i, key := range r.keys(way) {
		kind := r.rdb.Type(r.Context(), key).Val()
		ttl := r.rdb.PTTL(r.Context(), key).Val().Seconds()
		line := fmt.Sprint(i, kind, " ttl ", int(ttl/30+0.5))
		switch kind {
		case "zset":
			var members []string
			for _, z := range r.rdb.ZRangeWithScores(r.Context(), key, 0, -1).Val() {
				members = append(members, fmt.Sprint(" ", z.Member, "=", since(z.Score, 1)))
			}
			slices.Sort(members) // a millisecond may lie between the ways
			line += strings.Join(members, "")
		case "string":
			n, err := r.rdb.Get(r.Context(), key).Float64()
			if err == nil && n < 9e15 {
				line += " " + since(n, 1000)
			} else {
				line += " " + r.rdb.Get(r.Context(), key).Val()
			}
		}
		all = append(all, line)
	}
	return all
}

func TestTheShortWaysOfKindsLeaveWhatTheLongWaysLeave(t *testing.T) {
	server := redistest.Start(t)
	r := &shortRig{T: t, rdb: server.Client(), rng: rand.New(rand.NewPCG(1, 2))}
	ways := map[string][2]*redis.Script{}
	for _, name := range []string{"kinds/acquire", "kinds/release"} {
		ways[name] = [2]*redis.Script{redis.NewScript(scripts.Text(name)), longWay(t, name)}
	}
	short := 0
	for range 1000 {
		r.kind = r.pick("rw", "permits")
		require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
		state := r.arrange()
		name := r.pick("kinds/acquire", "kinds/release")
		args := []any{"PUBLISH", r.hold(), "60000", r.mode(), r.pick("", "", "a:1:2", "b:1:3"), r.pick("", "0", "1700000000000000")}
		if r.kind == "permits" {
			args[4] = ""
		}
		begun := r.rdb.Time(t.Context()).Val().UnixMilli()
		var replies [2]string
		var found [2][]string
		for way := range 2 {
			reply, err := ways[name][way].Run(t.Context(), r.rdb, r.keys(way), args...).Result()
			text := fmt.Sprint(reply)
			if err != nil {
				text, _, _ = strings.Cut(err.Error(), "script:")
			}
			if list, is := reply.([]any); is && len(list) > 2 {
				text = fmt.Sprint(list[:2])
			}
			replies[way] = strings.ReplaceAll(text, fmt.Sprintf("{way%d}", way), "base")
			found[way] = r.found(way, begun)
		}
		require.Equal(t, replies[1], replies[0], "%s %v of %v", name, args, state)
		require.Equal(t, found[1], found[0], "%s %v of %v: %s", name, args, state, replies[0])
		if replies[0] == "1" {
			short++
		}
	}
	require.Greater(t, short, 50)
}
