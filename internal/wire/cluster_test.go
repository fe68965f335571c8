package wire

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/test/redistest"
)

// autoPipeline looks like that of go-redis.
type autoPipeline struct {
	redis.UniversalClient
	blocking bool
}

func (a autoPipeline) IsBlocking() bool { return a.blocking }

func TestAClientOfGoRedisThatCannotBeUsedIsRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: time.Second})
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -1})
	defer func() { _, _, _ = ring.Close(), one.Close(), cluster.Close() }()
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
	}{
		"nothing":                       {nil, "nil"},
		"a nil Client":                  {(*redis.Client)(nil), "nil"},
		"a nil cluster":                 {(*redis.ClusterClient)(nil), "nil"},
		"a nil Ring":                    {(*redis.Ring)(nil), "nil"},
		"a Ring":                        {ring, "redis.Ring is not supported: use a redis.Client, or a redis.ClusterClient"},
		"a Ring inside":                 {struct{ *redis.Ring }{ring}, "redis.Ring is not supported"},
		"one that does not wait":        {autoPipeline{one, false}, "an AsyncAutoPipeline is not supported"},
		"the AutoPipeline of a cluster": {autoPipeline{cluster, true}, "wire.autoPipeline of several servers is not supported"},
		"any cluster":                   {struct{ redis.UniversalClient }{cluster}, "use the redis.ClusterClient itself"},
	} {
		_, err := New(c.rdb, Options{})
		require.ErrorContains(t, err, c.says, name)
	}
	for rdb, timeout := range map[redis.UniversalClient]time.Duration{
		one:                                     time.Second,
		struct{ *redis.Client }{one}:            time.Second,
		cluster:                                 math.MaxInt64,
		autoPipeline{one, true}:                 math.MaxInt64,
		struct{ redis.UniversalClient }{one}:    math.MaxInt64,
		struct{ *redis.ClusterClient }{cluster}: math.MaxInt64,
	} {
		w, err := New(rdb, Options{})
		require.NoError(t, err, "%T", rdb)
		require.Equal(t, timeout, w.ReadTimeout(), "%T", rdb)
	}
}

func TestWhoWaitsForTheMapOfTheClusterWaitsNoLongerThanItMay(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer func() { _ = cluster.Close() }()
	w, err := New(cluster, Options{})
	require.NoError(t, err)
	w.reading <- struct{}{} // somebody reads it
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err = w.Node(ctx, "x", true)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTheSlotOfAKeyIsThatOfItsHashTag(t *testing.T) {
	for key, want := range map[string]string{
		"a": "a", "p{a}": "a", "{a}{b}": "a", "a}{b}": "b", "{}{b}": "{}{b}", "{a": "{a", "x{a}:queue": "a",
	} {
		require.Equal(t, want, SlotOf(key))
	}
}

func TestOneServerIsTheNodeOfEveryKey(t *testing.T) {
	r := newRig(t)
	for _, anew := range []bool{false, true} {
		name, rdb, err := r.wire.Node(t.Context(), "x", anew)
		require.NoError(t, err)
		require.Empty(t, name)
		require.Equal(t, redis.UniversalClient(r.rdb), rdb)
	}
	require.False(t, r.wire.Sharded())
}

func TestACluster(t *testing.T) {
	redistest.NoGoroutineLeft(t, "relock/internal/wire.")
	c := redistest.StartCluster(t)
	faults := redistest.NewFaults()
	t.Cleanup(faults.Close)
	rdb := c.Client(func(o *redis.ClusterOptions) { o.Dialer = faults.Dialer(nil) })
	w, err := New(rdb, Options{})
	require.NoError(t, err)
	var names []string // one of each master
	for n := 0; len(names) < 3; n++ {
		name := fmt.Sprintf("{%d}", n)
		if !slices.ContainsFunc(names, func(other string) bool { return c.MasterFor(other) == c.MasterFor(name) }) {
			names = append(names, name)
		}
	}
	call := func(name string) *Call {
		return &Call{Script: setScript, Unit: Unit{Keys: []string{name}, Args: []any{"x"}}}
	}

	t.Run("calls of any slot are answered, and share nothing", func(t *testing.T) {
		var all sync.WaitGroup
		for range 20 {
			for _, name := range names {
				all.Go(func() {
					if _, err := w.Do(t.Context(), call(name)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		require.Zero(t, w.batcher.sends)
		require.Zero(t, w.batcher.lenLocked())
	})
	t.Run("WAIT goes to the master of the key", func(t *testing.T) {
		for _, name := range names {
			master := c.MasterFor(name)
			waits := func() string {
				info, err := master.Client().Info(t.Context(), "commandstats").Result()
				require.NoError(t, err)
				_, rest, _ := strings.Cut(info, "cmdstat_wait:calls=")
				digits, _, _ := strings.Cut(rest, ",")
				return digits
			}
			before, acked := waits(), call(name)
			acked.Acks = attempts.Acks{Replicas: 1, Timeout: time.Second}
			a, err := w.Do(t.Context(), acked)
			require.NoError(t, err)
			require.Equal(t, 1, a.Acked)
			require.NotEqual(t, before, waits())
		}
	})
	t.Run("units of one slot share a script call", func(t *testing.T) {
		var units []Unit
		for n := range 2*maxUnits + 50 {
			for _, name := range names {
				units = append(units, Unit{Keys: []string{fmt.Sprint(name, n)}, Args: []any{fmt.Sprint(name, n)}})
			}
		}
		for range 2 {
			faults.Reset()
			for i, result := range w.All(t.Context(), setScript, nil, units) {
				require.NoError(t, result.Err)
				require.Contains(t, []any{"", units[i].Args[0]}, result.Reply)
			}
		}
		require.Equal(t, 9, faults.Commands("EVALSHA"))
	})
	t.Run("a silent node delays its own units alone", func(t *testing.T) {
		silent := faults.Once(scripts.And(redistest.WithArg(names[0])), redistest.Hold())
		defer silent.LetGo()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var units []Unit
		for _, name := range names {
			units = append(units, Unit{Keys: []string{name}, Args: []any{"x"}})
		}
		results := w.All(ctx, setScript, nil, units)
		require.Error(t, results[0].Err)
		require.NoError(t, results[1].Err)
		require.NoError(t, results[2].Err)
	})
	t.Run("units that are refused together are sent alone", func(t *testing.T) {
		refuse := faults.On(scripts.And(redistest.WithArg("{")), redistest.Answer("-TRYAGAIN Multiple keys request")).Times(2)
		var units []Unit
		for n := range 3 {
			units = append(units, Unit{Keys: []string{fmt.Sprint(names[0], n)}, Args: []any{"x"}})
		}
		results := w.All(t.Context(), setScript, nil, units)
		require.Equal(t, 2, refuse.Hits())
		require.Equal(t, "TRYAGAIN", Code(results[0].Err), "once")
		require.NoError(t, results[1].Err)
		require.NoError(t, results[2].Err)
	})
	t.Run("a node is asked for anew when it has changed", func(t *testing.T) {
		name, node, err := w.Node(t.Context(), names[0], false)
		require.NoError(t, err)
		require.Equal(t, c.MasterFor(names[0]).Addr(), name)
		require.NoError(t, node.Set(t.Context(), names[0], "x", 0).Err())
		c.MoveSlot(names[0], c.MasterFor(names[1]))
		redistest.Eventually(t, ample, func() bool {
			name, _, err = w.Node(t.Context(), names[0], true)
			return err == nil && name == c.MasterFor(names[1]).Addr()
		}, "it is found")
		_, err = w.Do(t.Context(), call(names[0]))
		require.NoError(t, err)
	})
	t.Run("a dead master is replaced", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c.KillMasterFor(names[2])
		_, err := w.Do(ctx, call(names[2]))
		require.NoError(t, err)
	})
	require.True(t, w.Sharded())
	w.NotSharded()
	require.False(t, w.Sharded())
}
