package redisstore

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// How many commands does Redis run for a script of the hot paths? The table has the number of each. A
// change of a script that changes a number says why in its commit.

var scriptCosts = map[string]int{
	"acquire: free":               3,  // EXISTS, HSET, PEXPIRE
	"release: free":               2,  // ZCARD, HDEL
	"acquire: first in the queue": 9,  // EXISTS, HGETALL, PTTL, PUBSUB, TIME, ZADD, ZCARD, PTTL, PEXPIRE
	"acquire: next in the queue":  8,  // the same without PEXPIRE
	"release: to the first":       9,  // ZCARD, HEXISTS, ZPOPMIN, PUBSUB, HSET, HDEL, PEXPIRE, ZRANGE, PUBLISH
	"release: to the last":        8,  // the same without ZRANGE
	"reader: free":                4,  // EXISTS, TIME, ZADD, PEXPIRE
	"reader: leaves":              2,  // ZCARD, ZREM
	"writer: free":                8,  // EXISTS, TIME, GET, SET, ZADD and PEXPIRE twice
	"writer: leaves":              3,  // ZCARD, ZREM twice
	"permit: free":                6,  // EXISTS, TIME, ZADD and PEXPIRE twice
	"permit: leaves":              3,  // ZCARD, ZREM twice
	"permit: beside another":      13, // the whole of acquire
}

// commandsOf counts the commands of the scripts that f calls.
func (r *rig) commandsOf(f func()) (count int) {
	r.Helper()
	require.NoError(r, r.rdb.ConfigResetStat(r.Context()).Err())
	f()
	info, err := r.rdb.Info(r.Context(), "commandstats").Result()
	require.NoError(r, err)
	for line := range strings.SplitSeq(info, "\r\n") {
		name, rest, is := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if is && name != "evalsha" && name != "eval" && name != "config|resetstat" && name != "config" && name != "info" {
			digits, _, _ := strings.Cut(rest, ",")
			calls, err := strconv.Atoi(digits)
			require.NoError(r, err)
			count += calls
		}
	}
	return count
}

func TestScriptsRunAsFewCommandsAsTheTableSays(t *testing.T) {
	server := redistest.Start(t) // whose commands are these scripts' alone
	got := make(map[string]int)
	count := func(r *rig, name string, f func()) {
		r.Helper()
		got[name] = r.commandsOf(f)
	}

	r := newRigOn(t, server)
	require.Equal(t, statusOurs, r.release(r.enter("a"))) // connections and scripts are there now
	var first, second, third string
	count(r, "acquire: free", func() { first = r.enter("a") })
	count(r, "release: free", func() { r.release(first) })
	first = r.enter("a")
	r.listen("b")
	r.listen("c")
	second, third = newID("b"), newID("c")
	count(r, "acquire: first in the queue", func() { require.Equal(t, statusQueued, r.status(second, newPlace)) })
	count(r, "acquire: next in the queue", func() { // for a short lease, so that the key of the queue lasts
		got, err := r.acquire(third, minute/2, newPlace)
		require.NoError(t, err)
		require.Equal(t, statusQueued, got.status)
	})
	count(r, "release: to the first", func() { require.Equal(t, statusOurs, r.release(first)) })
	count(r, "release: to the last", func() { require.Equal(t, statusOurs, r.release(second)) })
	r.owner(third, 1)

	for _, a := range []struct {
		name string
		kind store.Kind
		max  int
	}{
		{"reader", store.ReadWrite, store.Unlimited}, {"writer", store.ReadWrite, 1}, {"permit", store.Semaphore, 3},
	} {
		r := newRigOn(t, server)
		require.NoError(t, r.rdb.Del(t.Context(), r.both()...).Err())
		k := kindOf(r, a.kind)
		k.release(k.enters(k.hold("a", a.max)))
		first := k.hold("a", a.max)
		count(r, a.name+": free", func() { k.enters(first) })
		if a.name == "permit" {
			second := k.hold("b", a.max)
			second.TTL /= 2 // so that the keys last
			count(r, "permit: beside another", func() { k.enters(second) })
		}
		count(r, a.name+": leaves", func() { require.Equal(t, statusOurs, k.release(first)) })
	}
	require.Equal(t, scriptCosts, got)
}
