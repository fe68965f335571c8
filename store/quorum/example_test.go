package quorum_test

import (
	"context"
	"fmt"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
)

func Example() {
	ctx := context.Background()
	one, two, three := mem.New(), mem.New(), mem.New() // in production: relock.RedisStore of three servers
	s, err := quorum.New(one, two, three)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	client, err := relock.Open(s)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	restore := two.Interrupt(nil) // a minority is down
	defer restore()
	err = client.NewLock("orders:42").Do(ctx, func(context.Context) error {
		fmt.Println("nobody else is here")
		return nil
	})
	fmt.Println(err)
	// Output:
	// nobody else is here
	// <nil>
}
