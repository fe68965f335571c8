package redistest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// callLimit bounds one call of a helper to Redis.
const callLimit = 10 * time.Second

// Eventually waits until cond is true. Eventually fails the test, with the message, after within.
func Eventually(t testing.TB, within time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	err := poll(within, func() error {
		if !cond() {
			return fmt.Errorf(msg, args...)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("redistest: not %v", err)
	}
}

// Keys returns all keys, sorted. In a cluster, Keys returns the keys of all masters.
func Keys(t testing.TB, rdb redis.UniversalClient) []string {
	t.Helper()
	return everywhere(t, rdb, false, "SCAN", func(ctx context.Context, node *redis.Client) ([]string, error) {
		var keys []string
		it := node.Scan(ctx, 0, "*", 1000).Iterator()
		for it.Next(ctx) {
			keys = append(keys, it.Val())
		}
		return keys, it.Err()
	})
}

// Subscriptions returns all channels with a subscriber, sharded channels included, sorted. In a
// cluster, Subscriptions asks all nodes. The channels by which sentinels talk are left out.
func Subscriptions(t testing.TB, rdb redis.UniversalClient) []string {
	t.Helper()
	return everywhere(t, rdb, true, "PUBSUB", func(ctx context.Context, node *redis.Client) ([]string, error) {
		channels, err := node.PubSubChannels(ctx, "*").Result()
		if err != nil {
			return nil, err
		}
		sharded, err := node.PubSubShardChannels(ctx, "*").Result()
		if err != nil && !strings.Contains(strings.ToLower(err.Error()), "unknown") {
			return nil, err // Redis 6 has no sharded channels
		}
		return slices.DeleteFunc(append(channels, sharded...), func(c string) bool {
			return strings.HasPrefix(c, "__sentinel__:")
		}), nil
	})
}

// everywhere collects from the server, or from each master of a cluster, or from
// its replicas too.
func everywhere(t testing.TB, rdb redis.UniversalClient, replicas bool, what string, from func(context.Context, *redis.Client) ([]string, error)) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	var mu sync.Mutex
	all := []string{}
	collect := func(ctx context.Context, node *redis.Client) error {
		some, err := from(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, some...)
		return err
	}
	var err error
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		if replicas {
			err = c.ForEachShard(ctx, collect)
		} else {
			err = c.ForEachMaster(ctx, collect)
		}
	case *redis.Client:
		err = collect(ctx, c)
	case *redis.Ring:
		err = c.ForEachShard(ctx, collect)
	default:
		t.Fatalf("redistest: cannot look into a %T", rdb)
	}
	if err != nil {
		t.Fatalf("redistest: %s: %v", what, err)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// library are texts of which each goroutine of the library has one in its stack. The names of other
// packages of the repository have no dot behind relock.
var library = []string{"go-relock/relock.", "relock/internal/redisstore.", "relock/internal/wire.", "relock/internal/subs."}

// leakLimit is how long a goroutine may take to end.
var leakLimit = 5 * time.Second

// NoGoroutineLeft remembers the goroutines of now. The test fails if, a few seconds after its end,
// new goroutines have the library in their stack, or any of the texts in more, such as
// "redis/go-redis". Call NoGoroutineLeft first: functions given to t.Cleanup later run before the
// check. NoGoroutineLeft is not for tests that run in parallel with others.
func NoGoroutineLeft(t testing.TB, more ...string) {
	t.Helper()
	texts := append(slices.Clone(library), more...)
	before := map[string]bool{}
	for id := range goroutines(texts) {
		before[id] = true
	}
	t.Cleanup(func() {
		err := poll(leakLimit, func() error {
			var left []string
			for id, stack := range goroutines(texts) {
				if !before[id] {
					left = append(left, stack)
				}
			}
			if len(left) > 0 {
				slices.Sort(left)
				return fmt.Errorf("%d goroutines are left over:\n\n%s", len(left), strings.Join(left, "\n\n"))
			}
			return nil
		})
		if err != nil {
			t.Errorf("redistest: %v", err)
		}
	})
}

// goroutines returns the stacks, by goroutine id, that contain one of texts. The
// tests' own goroutines do not count.
func goroutines(texts []string) map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	found := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		// "goroutine 18 [select]:"
		rest, ok := strings.CutPrefix(stack, "goroutine ")
		if !ok || strings.Contains(stack, "testing.tRunner(") || strings.Contains(stack, "testing.(*M).Run(") {
			continue
		}
		id, _, _ := strings.Cut(rest, " ")
		if slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(stack, text) }) {
			found[id] = stack
		}
	}
	return found
}
