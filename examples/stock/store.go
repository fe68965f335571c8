package main

import (
	"context"
	"sync"
	"time"
)

// store plays a database without transactions. A read and a write are safe each, but a write that
// follows from an earlier read may overwrite the writes of others in between.
type store struct {
	mu    sync.Mutex
	stock map[string]int
}

// latency is the time of a call to a database.
const latency = 2 * time.Millisecond

func (s *store) Stock(ctx context.Context, product string) (int, error) {
	if err := roundTrip(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stock[product], nil
}

func (s *store) SetStock(ctx context.Context, product string, n int) error {
	if err := roundTrip(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stock[product] = n
	return nil
}

// put and get are for the demonstration, beside the service.

func (s *store) put(product string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stock[product] = n
}

func (s *store) get(product string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stock[product]
}

// roundTrip fails as drivers do: with the context's error, "context canceled", in place of the
// cause.
func roundTrip(ctx context.Context) error { return sleep(ctx, latency) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
