package main

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
)

// Benchmarks of the library alone, for profiles and allocations. The program has the comparisons.

func newClient(b *testing.B, options ...relock.Option) *relock.Client {
	b.Helper()
	client, err := relock.New(redistest.Shared(b).Client(), options...)
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

func BenchmarkNestedPair(b *testing.B) {
	lock := newClient(b).NewLock(freshLock("nested"))
	pairs(section(b, lock), b, lock)
}

// BenchmarkRenewal measures the client's CPU and allocations for a renewal among n locks. The time
// means nothing, as renewals wait until they are due.
func BenchmarkRenewal(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("locks=%d", n), func(b *testing.B) {
			var renewed, lost atomic.Int64
			round := make(chan struct{}, 1)
			client, err := relock.New(redistest.Shared(b).Client(), relock.WithTTL(3*time.Second), relock.WithHooks(event.Hooks{
				Renewed: func(r event.Renewed) {
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
				sections[i], err = locks[i].Lock(b.Context())
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
