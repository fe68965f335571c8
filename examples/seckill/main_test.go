package main

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
)

func TestTheSaleOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, server.URL()), "%s", &out)
	require.Contains(t, out.String(), "100 sold, 900 buyers are told it is sold out")
	require.Contains(t, out.String(), "all who have an order click again: 100 get the order they have")
	require.Contains(t, out.String(), "100 orders in Redis, 0 left, each number once, each at its price: 1250 in all")
	require.Contains(t, out.String(), "two sales overlap without the lock: ann has number 1, and bob has number 1")
}

func shopsOn(t *testing.T, n int) []*shop {
	t.Helper()
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	var shops []*shop
	for range n {
		s, err := newShop(server.Options(), "test:", "phone")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.close()) })
		shops = append(shops, s)
	}
	require.NoError(t, shops[0].rdb.Set(t.Context(), shops[0].stockKey, inStock, 0).Err())
	return shops
}

func TestManyClicksOfAUserAreOneOrder(t *testing.T) {
	shops := shopsOn(t, 4)
	c := &counts{orders: map[string]order{}, soldOut: map[string]bool{}}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() { c.click(t.Context(), shops[i%len(shops)], "ann") })
	}
	wg.Wait()
	require.Empty(t, c.errs)
	require.Equal(t, map[string]order{"ann": {User: "ann", Number: 1, Price: 10}}, c.orders)
	require.Equal(t, 199, c.replays)
	left, err := shops[0].rdb.Get(t.Context(), shops[0].stockKey).Int()
	require.NoError(t, err)
	require.Equal(t, inStock-1, left)
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	s := shopsOn(t, 1)[0]
	for range permits {
		permit, err := s.queue.TryLock(t.Context())
		require.NoError(t, err)
		defer s.queue.Unlock(permit)
	}
	began := time.Now()
	_, _, err := s.buy(t.Context(), "ann")
	require.ErrorIs(t, err, errBusy)
	require.Less(t, time.Since(began), bound.Of(10*time.Second))
}

func TestAnAttemptAfterACrashFindsTheOrder(t *testing.T) {
	s := shopsOn(t, 1)[0]
	require.NoError(t, s.rdb.Set(t.Context(), s.stockKey, 1, 0).Err()) // the last item
	var sold order
	require.Panics(t, func() {
		_, _, _ = once.Do(t.Context(), s.once, "buy:phone:ann", func(ctx context.Context, _ once.Attempt) (order, error) {
			var err error
			sold, err = s.sell(ctx, "ann")
			require.NoError(t, err)
			panic("the process dies before it has stored the result")
		})
	})
	again, replayed, err := s.buy(t.Context(), "ann")
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, sold, again)
	left, err := s.rdb.Get(t.Context(), s.stockKey).Int()
	require.NoError(t, err)
	require.Zero(t, left)
	_, _, err = s.buy(t.Context(), "bob")
	require.ErrorIs(t, err, errSoldOut)
}

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer interrupt()
	require.Equal(t, context.DeadlineExceeded, run(ctx, io.Discard, ""))
}
