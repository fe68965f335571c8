package once_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
)

// client returns a client on an embedded server, and the function that ends both.
func client() (*relock.Client, func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	locks, err := relock.New(rdb)
	if err != nil {
		panic(err)
	}
	return locks, func() {
		_ = locks.Close()
		_ = rdb.Close()
		server.Close()
	}
}

func ExampleDo() {
	locks, end := client()
	defer end()
	payments, err := once.New(locks, once.FailIfInterrupted())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer payments.Close()

	pay := func(amount int) {
		receipt, replayed, err := once.Do(context.Background(), payments, "order:42",
			func(context.Context, once.Attempt) (string, error) {
				fmt.Println("charging", amount)
				return fmt.Sprintf("receipt for %d", amount), nil
			}, once.Input(amount))
		fmt.Printf("%q %t %v\n", receipt, replayed, err)
	}
	pay(10)
	pay(10) // the client repeats its request
	pay(99) // a mistake: the same key for another payment
	// Output:
	// charging 10
	// "receipt for 10" false <nil>
	// "receipt for 10" true <nil>
	// "" false once: the key was used with another input
}

// An attempt after an interrupted attempt asks the outside world first.
// Two instances have the schedule, and one of them runs each period.
func ExampleEvery() {
	locks, end := client()
	defer end()
	jobs, err := once.New(locks)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer jobs.Close()

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var runs atomic.Int64
	var instances sync.WaitGroup
	for range 2 {
		instances.Go(func() {
			_ = once.Every(ctx, jobs, "report", 50*time.Millisecond, func(context.Context, once.Tick) {
				if runs.Add(1); runs.Load() == 3 {
					stop()
				}
			})
		})
	}
	instances.Wait()
	fmt.Println(runs.Load(), "runs")
	// Output: 3 runs
}

func ExampleAttempt() {
	locks, end := client()
	defer end()
	o, err := once.New(locks)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()

	send := func(ctx context.Context, a once.Attempt) (string, error) {
		if a.Interrupted { // was the mail sent by the attempt before?
			return "asked the mail server", nil
		}
		return "sent", nil
	}
	result, _, _ := once.Do(context.Background(), o, "mail:7", send)
	fmt.Println(result)
	// Output: sent
}

func ExampleOnce_Redeem() {
	locks, end := client()
	defer end()
	o, err := once.New(locks)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer o.Close()
	ctx := context.Background()

	token, err := o.Issue(ctx, "reset the password of user 7", time.Hour)
	fmt.Println(len(token), err)
	for _, caller := range []string{"request a", "request a", "request b"} {
		fmt.Println(o.Redeem(ctx, token, caller))
	}
	// Output:
	// 26 <nil>
	// reset the password of user 7 <nil>
	// reset the password of user 7 <nil>
	//  once: the token was redeemed by another caller
}
