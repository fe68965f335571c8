package fence_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

func TestMemoryRefusesAnOlderToken(t *testing.T) {
	var m fence.Memory
	for _, token := range []int64{5, 5, 7} {
		leave, err := m.Enter(t.Context(), "orders", token)
		require.NoError(t, err)
		leave()
	}
	leave, err := m.Enter(t.Context(), "orders", 6)
	require.ErrorIs(t, err, fence.ErrStale)
	require.EqualError(t, err, `fence: a newer token has touched the resource: resource "orders", token 6`)
	require.Nil(t, leave)

	leave, err = m.Enter(t.Context(), "Orders", 6)
	require.NoError(t, err, "another resource")
	leave()
	leave, err = m.Enter(t.Context(), "orders", 7)
	require.NoError(t, err, "the refused entry must have left")
	leave()
}

func TestMemoryLetsOneEntryInAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m fence.Memory
		leave, err := m.Enter(t.Context(), "orders", 5)
		require.NoError(t, err)
		elsewhere, err := m.Enter(t.Context(), "stock", 1)
		require.NoError(t, err, "another resource does not wait")
		elsewhere()

		entered := make(chan error)
		go func() {
			_, err := m.Enter(t.Context(), "orders", 6)
			entered <- err
		}()
		synctest.Wait()
		select {
		case err := <-entered:
			t.Fatalf("entered beside another entry: %v", err)
		default:
		}
		leave()
		require.NoError(t, <-entered)

		leave() // again: it must not let a third one in beside the second
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.Enter(ctx, "orders", 7)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, `fence: waiting for resource "orders": context deadline exceeded`)
	})
}

func TestMemoryDoesNotEnterWithAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var m fence.Memory
	_, err := m.Enter(ctx, "orders", 9)
	require.ErrorIs(t, err, context.Canceled)
	leave, err := m.Enter(t.Context(), "orders", 8)
	require.NoError(t, err, "token 9 has never entered")
	leave()
}

func TestMemoryTokensNeverGoDown(t *testing.T) {
	var m fence.Memory
	var last int64 // the entry that is in guards it
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 500 {
				token := rand.Int64N(1000) + 1
				leave, err := m.Enter(t.Context(), "orders", token)
				if err != nil {
					continue
				}
				if token < last {
					t.Errorf("token %d entered after %d", token, last)
				}
				last = token
				leave()
			}
		})
	}
	group.Wait()
	require.Positive(t, last)
}
