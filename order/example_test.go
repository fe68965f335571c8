package order_test

import (
	"context"
	"fmt"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/order"
	"github.com/go-relock/relock/store/mem"
)

func ExampleChecker() {
	checker := order.Checker{Report: func(err error) {
		circle := err.(*order.CircleError) // there is one kind of lock here
		for _, step := range circle.Steps {
			fmt.Printf("%s inside of %s\n", step.Inner, step.Outer)
		}
	}}
	client, _ := relock.Open(mem.New(), relock.WithHooks(checker.Hooks()))
	defer client.Close()

	both := func(outer, inner string) error {
		return client.NewLock(outer).Do(context.Background(), func(ctx context.Context) error {
			return client.NewLock(inner).Do(ctx, func(context.Context) error { return nil })
		})
	}
	_ = both("order:1", "stock:5")
	_ = both("stock:7", "order:2") // and nobody has waited
	// Output:
	// order:2 inside of stock:7
	// stock:5 inside of order:1
}
