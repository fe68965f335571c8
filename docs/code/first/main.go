// Command first is the program of the README.
//
// page: whole
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")}) // localhost:6379, if empty
	client, err := relock.New(rdb)                                        // any client of go-redis v9: one server, Sentinel, Cluster
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lock := client.NewLock("orders:42", relock.WithTTL(10*time.Second))
	err = lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("nobody else is here, in any process; ctx ends if that stops being true")
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

// end
