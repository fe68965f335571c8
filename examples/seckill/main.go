// Seckill is a flash sale: 1,000 buyers want 100 items, and some of them click twice at once, at
// different instances of the shop. Exactly 100 orders are written, no user has two, and all clicks
// of a user get the same order. At last two sales overlap without the lock, and both are of item 1.
//
//   - A semaphore bounds the queue. A click that finds the queue full is told "busy" at once.
//   - A key of product and user (package once) makes the second click the same purchase.
//   - A lock orders the sales, as the price is calculated outside of Redis and depends on the
//     stock.
//   - A script beside the lock (Lock.Eval) writes the sale, only while the lock is held.
//
// The command
//
//	go run ./examples/seckill
//
// starts an embedded Redis; with REDIS_URL=redis://... the program uses that server. The sale
// is in shop.go. The exit code is 1 if anything is not as it should be.
//
// The lock is not needed if the whole sale is in Redis: one script then looks for the order of the
// user, takes the item out of stock and writes the order, and no key of package once is needed
// either. With the stock in a SQL database, a transaction with "UPDATE ... SET stock = stock - 1
// WHERE stock > 0" and a unique index on the orders do it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/examples/internal/stage"
)

const (
	inStock   = 100
	buyers    = 1000
	instances = 4
)

func main() { stage.Main("seckill", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	prefix := "relock-seckill:" + rand.Text()[:8] + ":"
	fmt.Fprintf(out, "Redis at %s, keys begin with %s\n", options.Addr, prefix)

	bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err = sale(bounded, out, options, prefix)
	if err == nil {
		err = overlap(bounded, out, options, prefix)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each click
	}
	return err
}

// sale opens the shops, lets all buyers in at once, and looks at what was sold.
func sale(ctx context.Context, out io.Writer, options *redis.Options, prefix string) error {
	var shops []*shop
	for range instances {
		s, err := newShop(options, prefix, "phone")
		if err != nil {
			return err
		}
		defer s.close() // the connections of a program at its end
		shops = append(shops, s)
	}
	s := shops[0]
	if err := s.rdb.Set(ctx, s.stockKey, inStock, time.Hour).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", options.Addr, err)
	}
	defer s.rdb.Del(context.WithoutCancel(ctx), s.stockKey, s.ordersKey)

	began := time.Now()
	c := &counts{orders: map[string]order{}, soldOut: map[string]bool{}}
	clicks := c.rush(ctx, shops)
	fmt.Fprintf(out, "%d buyers, %d clicks at %d instances, %d items: %d sold, %d buyers are told it is sold out, in %s\n",
		buyers, clicks, instances, inStock, len(c.orders), len(c.soldOut), time.Since(began).Round(time.Millisecond))
	fmt.Fprintf(out, "%d clicks found the shop busy, and were told so at once\n", c.busy)
	c.replays = 0
	c.again(ctx, shops)
	fmt.Fprintf(out, "all who have an order click again: %d get the order they have\n", c.replays)
	if len(c.errs) > 0 {
		return fmt.Errorf("%d clicks failed, such as that of %w", len(c.errs), c.errs[0])
	}
	return c.audit(ctx, out, s)
}

// rush lets all buyers in at once. Every fifth buyer clicks at two instances at once.
func (c *counts) rush(ctx context.Context, shops []*shop) (clicks int) {
	var wg sync.WaitGroup
	for i := range buyers {
		user := fmt.Sprintf("user%d", i)
		for n := range 1 + (i%5)/4 {
			clicks++
			wg.Go(func() { c.click(ctx, shops[(i+n)%len(shops)], user) })
		}
	}
	wg.Wait()
	return clicks
}

// again has all who got an order click again.
func (c *counts) again(ctx context.Context, shops []*shop) {
	var wg sync.WaitGroup
	for _, o := range slices.Collect(maps.Values(c.orders)) {
		wg.Go(func() { c.click(ctx, shops[o.Number%len(shops)], o.User) })
	}
	wg.Wait()
}

// click clicks until the shop has an answer, also where a click has had an error: with package once
// a second click does no harm. The pauses grow, as clicks without them would take all the time of
// Redis.
func (c *counts) click(ctx context.Context, s *shop, user string) {
	pause, busy := 100*time.Millisecond, 0
	o, replayed, err := s.buy(ctx, user)
	for ; err != nil && !errors.Is(err, errSoldOut) && ctx.Err() == nil; o, replayed, err = s.buy(ctx, user) {
		busy++
		select {
		case <-time.After(pause/2 + mathrand.N(pause)):
			pause = min(2*pause, 5*time.Second)
		case <-ctx.Done():
		}
	}
	c.add(user, o, replayed, busy, err)
}

// counts is what the buyers were told.
type counts struct {
	mu            sync.Mutex
	orders        map[string]order // by user
	soldOut       map[string]bool
	replays, busy int
	errs          []error
}

func (c *counts) add(user string, o order, replayed bool, busy int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += busy
	if replayed {
		c.replays++
	}
	other, has := c.orders[user]
	switch {
	case errors.Is(err, errSoldOut):
		c.soldOut[user] = true
	case err != nil:
		c.errs = append(c.errs, fmt.Errorf("%s: %w", user, err))
	case has && o != other:
		c.errs = append(c.errs, fmt.Errorf("%s has two orders, %+v and %+v", user, other, o))
	default:
		c.orders[user] = o
	}
}

// audit compares what the buyers were told with what is in Redis.
func (c *counts) audit(ctx context.Context, out io.Writer, s *shop) error {
	left, err := s.rdb.Get(ctx, s.stockKey).Int()
	if err != nil {
		return err
	}
	written, err := s.rdb.HLen(ctx, s.ordersKey).Result()
	if err != nil {
		return err
	}
	if left != 0 || written != inStock || len(c.orders) != inStock || len(c.soldOut) != buyers-inStock {
		return fmt.Errorf("%d left, %d orders written, %d buyers with an order, %d without", left, written, len(c.orders), len(c.soldOut))
	}
	numbers, sum := map[int]bool{}, 0
	for user, o := range c.orders {
		if o.User != user || numbers[o.Number] || o.Price != price(inStock-o.Number+1) {
			return fmt.Errorf("%s has %+v", user, o)
		}
		numbers[o.Number] = true
		sum += o.Price
	}
	fmt.Fprintf(out, "%d orders in Redis, %d left, each number once, each at its price: %d in all\n", written, left, sum)
	return nil
}

// overlap sells two items without the lock, in the order of steps that the lock prevents.
func overlap(ctx context.Context, out io.Writer, options *redis.Options, prefix string) error {
	s, err := newShop(options, prefix, "tablet")
	if err != nil {
		return err
	}
	defer s.close() // the connections of a program at its end
	if err := s.rdb.Set(ctx, s.stockKey, inStock, time.Hour).Err(); err != nil {
		return err
	}
	defer s.rdb.Del(context.WithoutCancel(ctx), s.stockKey, s.ordersKey)

	ann, err1 := s.offer(ctx, "ann")
	bob, err2 := s.offer(ctx, "bob") // ann's sale is not written yet
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	unlocked := func(ctx context.Context, script string, keys []string, args ...any) (any, error) {
		return s.rdb.Eval(ctx, script, keys, args...).Result()
	}
	ann, err1 = s.write(ctx, ann, unlocked)
	bob, err2 = s.write(ctx, bob, unlocked)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	fmt.Fprintf(out, "two sales overlap without the lock: ann has number %d, and bob has number %d\n", ann.Number, bob.Number)
	if ann.Number != bob.Number {
		return errors.New("nothing went wrong without the lock")
	}
	return nil
}
