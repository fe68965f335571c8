package code

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/store/mem"
)

// bucket is an object store whose Put refuses a key that is there.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
}

var errExists = errors.New("the object is there")

func (b *bucket) PutNew(_ context.Context, key string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.objects[key] != nil {
		return errExists
	}
	if b.objects == nil {
		b.objects = make(map[string][]byte)
	}
	b.objects[key] = data
	return nil
}

// page: gpu
func train(ctx context.Context, locks *relock.Client, objects *bucket, run string, step func(context.Context) ([]byte, error)) error {
	return locks.NewSemaphore("gpus", 8).Do(ctx, func(ctx context.Context) error {
		job := locks.NewLock("run:" + run)
		return job.Do(ctx, func(ctx context.Context) error {
			token, err := job.Token(ctx)
			if err != nil {
				return err
			}
			weights, err := step(ctx) // stops when ctx ends
			if err != nil {
				return err
			}
			return objects.PutNew(ctx, fmt.Sprintf("%s/%020d", run, token), weights)
		})
	})
}

// end

// page: device
func (d *device) set(valve int, token int64) error { // on the device, or in its twin
	d.mu.Lock()
	defer d.mu.Unlock()
	if token < d.token {
		return fence.ErrStale
	}
	d.token, d.valve = token, valve
	return nil
}

// end

type device struct {
	mu    sync.Mutex
	token int64
	valve int
}

func TestUses(t *testing.T) {
	client, err := relock.Open(mem.New())
	require.NoError(t, err)
	defer client.Close()

	objects := &bucket{}
	for range 2 {
		require.NoError(t, train(t.Context(), client, objects, "llm", func(ctx context.Context) ([]byte, error) {
			return []byte("weights"), ctx.Err()
		}))
	}
	require.Len(t, objects.objects, 2)

	d := &device{}
	require.NoError(t, d.set(10, 7))
	require.NoError(t, d.set(20, 7))
	require.ErrorIs(t, d.set(30, 6), fence.ErrStale)
	require.Equal(t, 20, d.valve)
}
