package wire

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func benchmark(ctx context.Context, b *testing.B, goroutines int) {
	b.Helper()
	rdb := redistest.Shared(b).Client()
	w, err := New(rdb, Options{})
	require.NoError(b, err)
	call := func(i int) *Call {
		return &Call{Script: setScript, Unit: Unit{Keys: []string{"bench:" + strconv.Itoa(i)}, Args: []any{"x"}}}
	}
	_, err = w.Do(ctx, call(0))
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for range b.N / goroutines {
				_, err := w.Do(ctx, call(g))
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkDo(b *testing.B) {
	for _, goroutines := range []int{1, 2, 4, 8, 16, 64, 256} {
		b.Run("endless/"+strconv.Itoa(goroutines), func(b *testing.B) { benchmark(context.Background(), b, goroutines) })
		b.Run("cancellable/"+strconv.Itoa(goroutines), func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			benchmark(ctx, b, goroutines)
		})
	}
}

// BenchmarkFloor is the same script through go-redis alone.
func BenchmarkFloor(b *testing.B) {
	rdb := redistest.Shared(b).Client()
	ctx := context.Background()
	require.NoError(b, rdb.ScriptLoad(ctx, setScript.Source).Err())
	for _, goroutines := range []int{1, 8, 64} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			var all sync.WaitGroup
			for g := range goroutines {
				all.Go(func() {
					key := "bench:" + strconv.Itoa(g)
					for range b.N / goroutines {
						if err := rdb.EvalSha(ctx, setScript.Hash, []string{key}, "x").Err(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}
