package main

import (
	"context"
	"fmt"
	"testing"

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
