package mem_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

func Example() {
	ctx, s := context.Background(), mem.New()
	first := store.Claim{Name: "orders", ID: "web:1:1", TTL: time.Minute, Limit: 1}
	second := store.Claim{Name: "orders", ID: "worker:1:1", TTL: time.Minute, Limit: 1}

	lease, err := s.Try(ctx, first)
	fmt.Println(lease.ID, err)

	_, err = s.Try(ctx, second)
	fmt.Println(err)

	fmt.Println(s.Release(ctx, lease))
	lease, err = s.Try(ctx, second)
	fmt.Println(lease.ID, err)
	// Output:
	// web:1:1 <nil>
	// another hold has the lock
	// <nil>
	// worker:1:1 <nil>
}

func ExampleStore_Lose() {
	ctx, s := context.Background(), mem.New()
	lease, err := s.Try(ctx, store.Claim{Name: "orders", ID: "web:1:1", TTL: time.Minute, Limit: 1})
	fmt.Println(err)

	s.Lose("orders")
	err = s.Release(ctx, lease)
	fmt.Println(errors.Is(err, store.ErrGone))
	// Output:
	// <nil>
	// true
}

func ExampleStore_Interrupt() {
	ctx, s := context.Background(), mem.New()
	claim := store.Claim{Name: "orders", ID: "web:1:1", TTL: time.Minute, Limit: 1}

	restore := s.Interrupt(errors.New("connection refused"))
	_, err := s.Try(ctx, claim)
	fmt.Println(err, errors.Is(err, store.ErrUnavailable))

	restore()
	_, err = s.Try(ctx, claim)
	fmt.Println(err)
	// Output:
	// connection refused true
	// <nil>
}
