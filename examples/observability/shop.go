package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/leader"
)

// shop is a service on two instances with a few kinds of locks, and everything that can happen to
// locks. The results of calls are of no interest here, as the metrics have them.
type shop struct {
	options *redis.Options
	hooks   event.Hooks
	prefix  string

	network network       // of the instances
	redis   redis.Cmdable // of the operator, on another network
}

// ttl is short, so that the shop need not wait for long. Services have seconds.
const ttl = 300 * time.Millisecond

// run works until ctx is done. An error says that the shop could not open.
func (s *shop) run(ctx context.Context) error {
	operator := redis.NewClient(s.options)
	defer operator.Close()
	s.redis = operator
	if err := operator.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", s.options.Addr, err)
	}
	defer operator.Del(context.WithoutCancel(ctx), s.key("carts:3"), s.key("carts:4")) // see wrongType and unconfirmed
	var instances [2]instance
	for i := range instances {
		var err error
		if instances[i], err = s.open(&s.network); err != nil {
			return err
		}
		defer instances[i].Close()
	}
	flooded := make(chan struct{})
	slow, err := s.open(&network{}, relock.WithHooks(event.Join(tooSlow(flooded), s.hooks)))
	if err != nil {
		return err
	}
	flood(ctx, slow.NewLock("orders:flood", relock.WithLocalReentry()))
	close(flooded)
	slow.Close()

	var work sync.WaitGroup
	again := func(pause time.Duration, f func(ctx context.Context, c *relock.Client)) {
		for _, c := range instances {
			work.Go(func() {
				for ctx.Err() == nil {
					f(ctx, c.Client)
					sleep(ctx, pause/2+rand.N(pause))
				}
			})
		}
	}
	for range 4 {
		again(time.Millisecond, sell)
	}
	again(20*time.Millisecond, browse)
	again(ttl, report)
	again(ttl, hurry)
	again(5*time.Millisecond, readPrices)
	again(ttl, changePrices)
	again(10*time.Millisecond, pay)
	again(ttl, lead)
	for _, mishap := range []func(ctx context.Context, c *relock.Client){
		s.forcedOut, s.forcedOutUnnoticed, overrun, stuck, abandon, leak, late, s.wrongType, s.unconfirmed, s.crash,
	} {
		again(2*ttl, mishap)
	}
	work.Go(func() { s.outages(ctx) })
	work.Wait()
	return nil
}

// instance is one process of the service, as far as Redis can tell.
type instance struct {
	*relock.Client
	redis *redis.Client
}

// open makes an instance of the service.
func (s *shop) open(n *network, options ...relock.Option) (instance, error) {
	o := *s.options
	o.Dialer = n.dial
	i := instance{redis: redis.NewClient(&o)}
	var err error
	i.Client, err = relock.New(i.redis,
		append([]relock.Option{relock.WithPrefix(s.prefix), relock.WithTTL(ttl), relock.WithHooks(s.hooks)}, options...)...)
	return i, err
}

func (i instance) Close() {
	i.Client.Close()
	i.redis.Close()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// sell takes an order. Some orders are nested a few levels deep, and some buyers do not wait for
// long.
func sell(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("orders:" + strconv.Itoa(rand.IntN(3)))
	var order func(levels int) func(context.Context) error
	order = func(levels int) func(context.Context) error {
		return func(ctx context.Context) error {
			if levels > 0 {
				return lock.Do(ctx, order(levels-1))
			}
			sleep(ctx, rand.N(30*time.Millisecond))
			return ctx.Err()
		}
	}
	_ = lock.DoFor(ctx, 20*time.Millisecond+rand.N(ttl), order(rand.IntN(4)))
}

// browse does not wait at all.
func browse(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("orders:0")
	if section, err := lock.TryLock(ctx); err == nil {
		_ = lock.Unlock(section)
	}
}

// report is held for over twice its TTL, so its waiters wait longer than a TTL. It ends sooner if
// somebody has asked for the lock.
func report(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("reports:daily")
	_ = lock.Do(ctx, func(ctx context.Context) error {
		wanted := lock.Wanted(ctx)
		sleep(ctx, 5*ttl/2)
		select {
		case <-wanted:
		default:
			sleep(ctx, ttl/2)
		}
		return ctx.Err()
	})
}

// hurry asks for the lock of the report.
func hurry(ctx context.Context, c *relock.Client) { _ = c.NewLock("reports:daily").Ask(ctx) }

// readPrices is one of many readers.
func readPrices(ctx context.Context, c *relock.Client) {
	_ = c.NewRWLock("prices:all").RDo(ctx, func(ctx context.Context) error {
		sleep(ctx, rand.N(10*time.Millisecond))
		return ctx.Err()
	})
}

// changePrices waits for all readers, and all new readers wait for changePrices.
func changePrices(ctx context.Context, c *relock.Client) {
	_ = c.NewRWLock("prices:all").Do(ctx, func(ctx context.Context) error {
		sleep(ctx, 20*time.Millisecond)
		return ctx.Err()
	})
}

// pay needs one of two tills.
func pay(ctx context.Context, c *relock.Client) {
	_ = c.NewSemaphore("tills:ground", 2).Do(ctx, func(ctx context.Context) error {
		sleep(ctx, rand.N(20*time.Millisecond))
		return ctx.Err()
	})
}

// lead is the work of a leader, which keeps its lock.
func lead(ctx context.Context, c *relock.Client) {
	_ = leader.Run(ctx, c.NewLock("leader"), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// forcedOut: an operator takes the lock away, and the watchdog notices.
func (s *shop) forcedOut(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("stock:1")
	_ = lock.Do(ctx, func(ctx context.Context) error {
		_ = lock.ForceUnlock(ctx)
		<-ctx.Done()
		return ctx.Err()
	})
}

// forcedOutUnnoticed: a nested call notices first.
func (s *shop) forcedOutUnnoticed(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("stock:2")
	_ = lock.Do(ctx, func(ctx context.Context) error {
		_ = lock.ForceUnlock(ctx)
		return lock.Do(ctx, func(context.Context) error { return nil })
	})
}

// overrun: a fixed lease is too short for its section.
func overrun(ctx context.Context, c *relock.Client) {
	_ = c.NewLock("stock:3", relock.WithFixedLease(ttl/2)).Do(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// stuck: a section hangs, and WithMaxHold ends it.
func stuck(ctx context.Context, c *relock.Client) {
	_ = c.NewLock("stock:4", relock.WithMaxHold(2*ttl)).Do(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// abandon: the request ends, and its section goes on for longer than a lease.
func abandon(ctx context.Context, c *relock.Client) {
	request, cancel := context.WithCancel(ctx)
	defer cancel()
	lock := c.NewLock("stock:5")
	section, err := lock.Lock(request)
	if err != nil {
		return
	}
	cancel()
	sleep(ctx, 2*ttl)
	_ = lock.Unlock(section)
}

// leak: nobody can unlock this one.
func leak(ctx context.Context, c *relock.Client) {
	func() {
		_, _ = enter(ctx, c.NewLock("carts:1"))
	}()
	runtime.GC()
}

// enter takes a lock for a scene that does not unlock, as a leak and a crash do not.
func enter(ctx context.Context, lock *relock.Lock) (context.Context, error) { return lock.Lock(ctx) }

// late: the caller's time is over before Redis is asked.
func late(ctx context.Context, c *relock.Client) {
	ctx, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	_ = c.NewLock("carts:2").Do(ctx, func(context.Context) error { return nil })
}

// key is that of a lock in Redis.
func (s *shop) key(name string) string { return s.prefix + "{" + name + "}" }

// wrongType: somebody else uses the lock's key.
func (s *shop) wrongType(ctx context.Context, c *relock.Client) {
	s.redis.Set(ctx, s.key("carts:3"), "x", time.Minute)
	_ = c.NewLock("carts:3").Do(ctx, func(context.Context) error { return nil })
}

// unconfirmed: the same happens while the lock is held.
func (s *shop) unconfirmed(ctx context.Context, c *relock.Client) {
	lock := c.NewLock("carts:4")
	_ = lock.Do(ctx, func(ctx context.Context) error {
		s.redis.Set(ctx, s.key("carts:4"), "x", time.Minute)
		return nil
	})
	s.redis.Del(ctx, s.key("carts:4"))
}

// crash: an instance is closed while it has a lock, and while it waits for another. The waiter for
// the first lock gets the lock when the lease is over.
func (s *shop) crash(ctx context.Context, c *relock.Client) {
	crashing, err := s.open(&network{})
	if err != nil {
		return
	}
	defer crashing.Close()
	held, err := enter(ctx, crashing.NewLock("carts:5"))
	if err != nil {
		return
	}
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_ = c.NewLock("carts:5").Do(ctx, func(context.Context) error { return nil })
	}()
	_ = c.NewLock("carts:6").Do(ctx, func(ctx context.Context) error {
		closed := make(chan error, 1)
		go func() {
			closed <- crashing.NewLock("carts:6").Do(ctx, func(context.Context) error { return nil })
		}()
		sleep(ctx, 50*time.Millisecond)
		crashing.Close()
		return errors.Join(<-closed, context.Cause(held))
	})
	<-waiting
}

// outages: the network breaks for a moment, or for most of a lease.
func (s *shop) outages(ctx context.Context) {
	defer s.network.up()
	for ctx.Err() == nil {
		sleep(ctx, 2*ttl)
		s.network.cut(false)
		sleep(ctx, 2*ttl)
		s.network.cut(true)
		sleep(ctx, 3*ttl/4)
		s.network.up()
	}
}

// tooSlow is a hook that holds up the hooks behind it, until there are more events than may wait.
func tooSlow(flooded <-chan struct{}) event.Hooks {
	return event.Hooks{AcquireStarted: func(event.AcquireStarted) { <-flooded }}
}

// flood makes more events than may wait for a slow hook.
func flood(ctx context.Context, lock *relock.Lock) {
	_ = lock.Do(ctx, func(ctx context.Context) error {
		for range event.Backlog {
			if err := lock.Do(ctx, func(context.Context) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	})
}
