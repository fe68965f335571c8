// Package stage gives each example its main function, and a Redis server. Without an address the
// server is embedded, and nothing has to be installed.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// Main is the main function of an example: Main calls run with the address in REDIS_URL, and exits
// with 1 if anything is not as told.
func Main(name string, run func(ctx context.Context, out io.Writer, redisURL string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt kills the program, also while Redis is silent
	err := run(ctx, os.Stdout, os.Getenv("REDIS_URL"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Redis returns how to reach the server of a URL, or an embedded server if the URL is empty, until
// end. The error of a URL does not repeat the URL, as a password may be in it.
func Redis(url string) (options *redis.Options, end func(), err error) {
	if url != "" {
		if options, err = redis.ParseURL(url); err != nil {
			return nil, nil, errors.New("REDIS_URL cannot be read: it must be such as redis://localhost:6379")
		}
		options.ContextTimeoutEnabled = true // a call ends at the deadline of its context
		return options, func() {}, nil
	}
	embedded, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	expire(embedded)
	return &redis.Options{Addr: embedded.Addr(), ContextTimeoutEnabled: true}, embedded.Close, nil
}

// expire lets the keys of the server expire with the clock, before each script and search for keys.
// [miniredis.Miniredis.ClockTTL] would let a key expire in the middle of a script too. Redis never
// does that, and the scripts of a lock rely on it.
func expire(embedded *miniredis.Miniredis) {
	var mu sync.Mutex
	last := time.Now()
	embedded.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if strings.HasPrefix(command, "EVAL") || command == "SCAN" { // no command inside of a script
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			embedded.FastForward(now.Sub(last))
			last = now
		}
		return false // the server executes the command
	})
}
