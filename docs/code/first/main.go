// Command first is the program of the README.
//
// page: whole
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

func main() {
	rdb := redis.NewClient(&redis.Options{ // or the client of Sentinel, or of a Cluster
		Addr:                  os.Getenv("REDIS_ADDR"), // localhost:6379, if empty
		ContextTimeoutEnabled: true,
	})
	client, err := relock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	lock := client.NewLock("orders:42")
	err = lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("nobody else is here, in any process; ctx ends if that stops being true")
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

// end
