package code

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store/mem"
)

// This file has the code of docs/STORES.md.

func inBoth(ctx context.Context, old, next *relock.Lock, work func(ctx context.Context) error) error {
	// page: both
	return old.Do(ctx, func(ctx context.Context) error { // release 2
		return next.Do(ctx, work)
	})
	// end
}

func TestAServiceMovesToAnotherStoreAndBackWhileItWorks(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var at inside
		var fences fence.Memory // refuses a token below the largest of its store
		work := func(locks map[string]*relock.Lock) func(context.Context) error {
			return func(ctx context.Context) error {
				at.add(1)
				defer at.add(-1)
				for store, lock := range locks {
					token, err := lock.Token(ctx)
					if err != nil {
						return err
					}
					leave, err := fences.Enter(ctx, store, token)
					if err != nil {
						return err
					}
					leave()
				}
				return last(ctx, time.Millisecond)
			}
		}
		memory, ctx := mem.New(), t.Context()
		stopped, stop := context.WithCancel(ctx)
		defer stop()
		var fleet [6]atomic.Int64 // the release of each process
		var service sync.WaitGroup
		for i := range fleet {
			old := w.NewClient().NewLock("ledger")
			client, err := relock.Open(memory)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, client.Close()) })
			next := client.NewLock("ledger")
			fleet[i].Store(1)
			service.Go(func() {
				for err := error(nil); stopped.Err() == nil && err == nil; {
					switch fleet[i].Load() {
					case 1:
						err = old.Do(ctx, work(map[string]*relock.Lock{"Redis": old}))
					case 2:
						err = inBoth(ctx, old, next, work(map[string]*relock.Lock{"Redis": old, "memory": next}))
					default:
						err = next.Do(ctx, work(map[string]*relock.Lock{"memory": next}))
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, release := range []int64{2, 3, 2, 1} {
			for i := range fleet { // one after the other, and the others work on
				fleet[i].Store(release)
				stage.Pass(50 * time.Millisecond)
			}
		}
		stop()
		service.Wait()
		require.Equal(t, 1, at.most, "nobody is in beside another")
		require.Greater(t, at.all, 500)
	})
}
