// Quickstart shows a lock at work, between two shops that share nothing but Redis. Buyers exclude
// each other, a nested call enters at once, a lease is renewed, and a holder hears of its loss.
//
//	go run ./examples/quickstart # starts an embedded server
//	REDIS_URL=redis://localhost:6379 go run ./examples/quickstart
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

const ttl, work = 3 * time.Second, 4 * time.Second // with the default TTL, 30 s, you would wait long

func main() { stage.Main("quickstart", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	err = tell(ctx, log.New(out, "", log.Lmicroseconds), options)
	if ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each call
	}
	return err
}

// tell opens both shops, and plays one scene after the other.
func tell(ctx context.Context, out *log.Logger, options *redis.Options) error {
	shops, prefix := [2]*relock.Lock{}, "relock-quickstart:"+rand.Text()+":"
	for i, name := range []string{"A", "B"} {
		rdb := redis.NewClient(options)
		defer rdb.Close()
		client, err := relock.New(rdb, relock.WithPrefix(prefix), relock.WithOwner(name), relock.WithTTL(ttl))
		if err != nil {
			return err
		}
		defer client.Close()
		if err := client.Check(ctx); err != nil {
			return err
		}
		shops[i] = client.NewLock("stock:42")
	}
	a, b := shops[0], shops[1]
	return errors.Join(contend(ctx, out, a, b), nest(ctx, out, a), outlast(ctx, out, a, b), lose(ctx, out, a, b))
}

// contend has four buyers take an item: each reads the stock, and writes it back later.
func contend(ctx context.Context, out *log.Logger, a, b *relock.Lock) error {
	stock, buyers, errs := 100, sync.WaitGroup{}, make([]error, 4)
	for i, lock := range []*relock.Lock{a, b, a, b} {
		buyers.Go(func() {
			errs[i] = lock.Do(ctx, func(context.Context) error {
				seen := stock
				time.Sleep(10 * time.Millisecond)
				stock = seen - 1
				out.Printf("buyer %d takes one of %d", i+1, seen)
				return nil
			})
		})
	}
	buyers.Wait()
	return errors.Join(errs...)
}

// nest locks what its caller has locked. The context says that both are one section.
func nest(ctx context.Context, out *log.Logger, a *relock.Lock) error {
	again := func(ctx context.Context) error {
		out.Printf("A locks again inside of its section, and is in: count %d", a.Count(ctx))
		return nil
	}
	return a.Do(ctx, func(section context.Context) error { return a.Do(section, again) })
}

// outlast works for longer than its lease, which a watchdog renews. B is refused, and then waits.
func outlast(ctx context.Context, out *log.Logger, a, b *relock.Lock) error {
	waiting, waited := sync.WaitGroup{}, error(nil)
	err := a.Do(ctx, func(section context.Context) error {
		_, err := b.TryLock(ctx)
		out.Print("B tries: ", err)
		waiting.Go(func() {
			waited = b.Do(ctx, func(context.Context) error { out.Print("B has waited, and is in"); return nil })
		})
		working, stop := context.WithTimeout(section, work)
		defer stop()
		<-working.Done()
		out.Printf("A has worked for %v with a lease of %v, and has the lock: %v", work, ttl, a.Held(section))
		return section.Err()
	})
	waiting.Wait()
	return errors.Join(err, waited)
}

// lose has an operator take the lock away. The context of the section ends, and Do says why.
func lose(ctx context.Context, out *log.Logger, a, b *relock.Lock) error {
	err := a.Do(ctx, func(section context.Context) error {
		if err := b.ForceUnlock(ctx); err != nil {
			return err
		}
		<-section.Done() // what A does in its section ends here
		return nil
	})
	if errors.Is(err, relock.ErrLockLost) {
		out.Print("A has lost the lock, and hears of it: ", err)
		return nil
	}
	return errors.Join(err, errors.New("a loss was not reported"))
}
