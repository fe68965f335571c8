package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// The benchmarks of the library alone, for profiles and allocations. What it is compared with is in the program.

func newClient(b *testing.B) *relock.Client {
	b.Helper()
	client, err := relock.New(redistest.Shared(b).Client())
	require.NoError(b, err)
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// pairs locks and unlocks with a context b.N times.
func pairs(ctx context.Context, b *testing.B, lock *relock.Lock) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		section, err := lock.Lock(ctx)
		if err == nil {
			err = lock.Unlock(section)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// section is a context inside the lock until the benchmark ends.
func section(b *testing.B, lock *relock.Lock) context.Context {
	b.Helper()
	ctx, err := lock.Lock(b.Context())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lock.Unlock(ctx)) })
	return ctx
}

func BenchmarkPair(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("pair"))
	pairs(b.Context(), b, lock)
}

func BenchmarkPairFloor(b *testing.B) {
	p, err := openFloor(nil)(setup{rdb: redistest.Shared(b).Client()})
	require.NoError(b, err)
	h := p.handle(freshLock("floor"))
	b.ReportAllocs()
	for b.Loop() {
		ctx, err := h.lock(b.Context())
		if err == nil {
			err = h.unlock(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPairLineByLine is where the time of a pair goes: from two bare commands to the library, each line with one thing
// more than the line before. They take turns, and each is also shown as a ratio to the floor.
func BenchmarkPairLineByLine(b *testing.B) {
	server := redistest.Shared(b)
	rdb := server.Client()
	quick := server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	base := freshLock("lines")
	nothing := redis.NewScript("return 1")
	process := func(script *redis.Script, keys []string, args ...any) error {
		return script.EvalSha(context.Background(), rdb, keys, args...).Err()
	}
	for _, s := range []*redis.Script{nothing, compareAndDelete} {
		require.NoError(b, s.Load(ctx, rdb).Err())
	}
	floor, err := openFloor(nil)(setup{rdb: rdb})
	require.NoError(b, err)
	least := floor.handle(base + ":floor")
	keys := []string{"relock:{" + base + "}", "relock:{" + base + "}:queue", "relock:{" + base + "}:token"}
	hold := "8743c9c0-0795-4907-87fd-6c719a6b4586:1:1" // as long as one of relock's
	pair := func(ctx context.Context, lock *relock.Lock) func() error {
		return func() error {
			section, err := lock.Lock(ctx)
			if err != nil {
				return err
			}
			return lock.Unlock(section)
		}
	}
	client := func(rdb *redis.Client) *relock.Client {
		c, err := relock.New(rdb)
		require.NoError(b, err)
		b.Cleanup(func() { _ = c.Close() })
		return c
	}
	slow, fast := client(rdb), client(quick)
	lines := []struct {
		name string
		run  func() error
		took time.Duration
	}{
		{name: "floor", run: func() error {
			section, err := least.lock(context.Background())
			if err != nil {
				return err
			}
			return least.unlock(section)
		}},
		{name: "two-pings", run: func() error {
			return errors.Join(rdb.Ping(context.Background()).Err(), rdb.Ping(context.Background()).Err())
		}},
		{name: "two-empty-scripts", run: func() error { return errors.Join(process(nothing, nil), process(nothing, nil)) }},
		{name: "with-our-arguments", run: func() error {
			return errors.Join(process(nothing, keys, hold, 30000), process(nothing, keys, hold))
		}},
		{name: "lock-background", run: pair(context.Background(), fast.NewLock(base+":1"))},
		{name: "lock-cancellable-prompt", run: pair(ctx, fast.NewLock(base+":2"))},
		{name: "lock-cancellable", run: pair(ctx, slow.NewLock(base+":3"))},
	}
	const slice = 200
	for b.Loop() {
		for i := range lines {
			begin := time.Now()
			for range slice {
				if err := lines[i].run(); err != nil {
					b.Fatal(lines[i].name, err)
				}
			}
			lines[i].took += time.Since(begin)
		}
	}
	b.ReportMetric(0, "ns/op") // of all lines together it means nothing
	for _, l := range lines {
		b.ReportMetric(float64(l.took.Nanoseconds())/1e3/float64(b.N)/slice, l.name+"-us")
		b.ReportMetric(float64(l.took)/float64(lines[0].took), l.name+"-ratio")
	}
}

// BenchmarkPairParallel is many goroutines of one process with a lock each.
func BenchmarkPairParallel(b *testing.B) {
	client := newClient(b)
	name := freshLock("parallel")
	numbers := make(chan int, 1)
	numbers <- 0
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		n := <-numbers
		numbers <- n + 1
		lock := client.NewLock(fmt.Sprintf("%s:%d", name, n))
		for pb.Next() {
			ctx, err := lock.Lock(b.Context())
			if err == nil {
				err = lock.Unlock(ctx)
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkNestedPair(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("nested"))
	pairs(section(b, lock), b, lock)
}

func BenchmarkNestedPairLocal(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("nested"), relock.WithLocalReentry())
	pairs(section(b, lock), b, lock)
}

// BenchmarkRenewal is what the watchdog takes to keep n locks: client's CPU and allocations. Its time says nothing, as a
// lease is renewed when that is due.
func BenchmarkRenewal(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("locks=%d", n), func(b *testing.B) {
			var renewed, lost atomic.Int64
			round := make(chan struct{}, 1)
			client, err := relock.New(redistest.Shared(b).Client(), relock.WithTTL(3*time.Second), relock.WithHooks(relock.Hooks{
				Renewed: func(r relock.Renewed) {
					renewed.Add(int64(r.Locks))
					lost.Add(int64(r.Lost))
					select {
					case round <- struct{}{}:
					default:
					}
				},
			}))
			require.NoError(b, err)
			b.Cleanup(func() { _ = client.Close() })
			more := func(n int) {
				for until := renewed.Load() + int64(n); renewed.Load() < until; {
					<-round
				}
			}
			locks, sections := make([]*relock.Lock, n), make([]context.Context, n)
			for i := range locks {
				locks[i] = client.NewLock(freshLock("held"))
			}
			require.NoError(b, eachOf(n, func(i int) (err error) {
				sections[i], err = locks[i].Lock(b.Context()) //nolint:fatcontext // one layer for each lock
				return err
			}))
			more(2 * n)
			b.ReportAllocs()
			b.ResetTimer()
			before := clientCPU()
			more(b.N)
			b.ReportMetric(float64((clientCPU()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.StopTimer()
			require.Zero(b, lost.Load())
			runtime.KeepAlive(sections)
		})
	}
}

// BenchmarkHandover is the time from one client's Unlock until another's Lock has returned, with n clients waiting.
func BenchmarkHandover(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			e := newEnv(b)
			r := newRing(freshLock("handover"))
			require.NoError(b, r.open(relockDefaults, setup{addr: e.server.Addr()}, n+1))
			b.Cleanup(func() { require.NoError(b, r.close()) })
			require.NoError(b, r.queueUp(&bench{env: e}, relockDefaults, 0))
			b.ReportAllocs()
			var took durations
			for b.Loop() {
				d, err := r.pass(closeLimit)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, d)
				// The one that had the lock queues again, which is not part of a hand-over.
				b.StopTimer()
				require.NoError(b, r.queued(&bench{env: e}, relockDefaults, n))
				b.StartTimer()
			}
			require.Zero(b, r.guard.broken.Load())
			b.ReportMetric(micros(took.quantile(0.5)), "p50-µs")
			b.ReportMetric(micros(took.quantile(0.99)), "p99-µs")
		})
	}
}
