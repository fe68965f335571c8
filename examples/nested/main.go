// Nested shows how the context carries the holder of a lock through calls that lock the same thing again.
//
// An order service calls the inventory, which calls the payment. Each locks the order, because each is also called by
// itself, and none knows whether its caller has the lock. Then: goroutines of one section that enter together, goroutines
// that must not (WithoutHolder), and steps that belong together without a common context (WithHolder).
//
//	go run ./examples/nested
//
// starts an embedded Redis; with REDIS_URL=redis://... it uses that one. The exit code is 1 if anything is not as told.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends it at once, also while Redis is silent
	err := run(ctx, os.Stdout, os.Getenv("REDIS_URL"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nested:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options := &redis.Options{}
	if redisURL != "" {
		var err error
		if options, err = redis.ParseURL(redisURL); err != nil {
			return errors.New("REDIS_URL cannot be read: it must be such as redis://localhost:6379") // err repeats it, and with it a password
		}
	} else {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // keys expire with the clock
		options.Addr = server.Addr()
	}
	options.ContextTimeoutEnabled = true // as the README says: fewer switches of goroutines, and a quicker Close
	rdb := redis.NewClient(options)
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", options.Addr, err)
	}
	client, err := relock.New(rdb, relock.WithPrefix("relock-nested:"+rand.Text()[:8]+":"))
	if err != nil {
		return err
	}
	defer client.Close()

	log := &log{out: out}
	pay := &payment{client, log}
	stock := &inventory{client, log, pay}
	shop := &orders{client, log, stock}
	err = errors.Join(
		chain(ctx, shop),
		together(ctx, shop),
		apart(ctx, client, log),
		steps(ctx, client, log),
	)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // once, and not what each call makes of it
	}
	return err
}

// The services. In each, the context that Do hands to the function goes into every call that is made in the section.

type orders struct {
	locks *relock.Client
	log   *log
	stock *inventory
}

func (o *orders) Place(ctx context.Context, order string) error {
	lock := o.locks.NewLock("order:" + order)
	return lock.Do(ctx, func(ctx context.Context) error {
		o.log.say("orders.Place(%s)          in, count %d", order, lock.Count(ctx))
		if err := o.stock.Reserve(ctx, order); err != nil {
			return err
		}
		o.log.say("orders.Place(%s)          still in, count %d", order, lock.Count(ctx))
		return nil
	})
}

type inventory struct {
	locks   *relock.Client
	log     *log
	payment *payment
}

func (i *inventory) Reserve(ctx context.Context, order string) error {
	lock := i.locks.NewLock("order:" + order)
	return lock.Do(ctx, func(ctx context.Context) error {
		i.log.say("  inventory.Reserve(%s)   in, count %d", order, lock.Count(ctx))
		return i.payment.Charge(ctx, order)
	})
}

type payment struct {
	locks *relock.Client
	log   *log
}

func (p *payment) Charge(ctx context.Context, order string) error {
	lock := p.locks.NewLock("order:" + order)
	return lock.Do(ctx, func(ctx context.Context) error {
		p.log.say("    payment.Charge(%s)    in, count %d", order, lock.Count(ctx))
		return nil
	})
}

// chain calls the services: through each other, and the innermost by itself.
func chain(ctx context.Context, shop *orders) error {
	shop.log.title("Calls through three services, one lock")
	if err := shop.Place(ctx, "7"); err != nil {
		return err
	}
	if err := shop.stock.payment.Charge(ctx, "7"); err != nil {
		return err
	}
	return shop.log.expect(
		"orders.Place(7)          in, count 1",
		"  inventory.Reserve(7)   in, count 2",
		"    payment.Charge(7)    in, count 3",
		"orders.Place(7)          still in, count 1",
		"    payment.Charge(7)    in, count 1",
	)
}

// together starts goroutines inside a section. They have its context, so they are its holder and enter at once. Two
// requests for one order never do: each call without a holder in its context gets a holder of its own.
func together(ctx context.Context, shop *orders) error {
	shop.log.title("Goroutines of one section enter together, another request does not")
	lock := shop.locks.NewLock("order:8")
	err := lock.Do(ctx, func(section context.Context) error {
		met := make(chan bool)
		err := both(func() error {
			return lock.Do(section, func(ctx context.Context) error {
				select { // one sends, the other receives: both are inside
				case met <- true:
				case <-met:
				case <-ctx.Done():
				}
				return context.Cause(ctx)
			})
		})
		if err != nil {
			return err
		}
		shop.log.say("two goroutines with the section's context were inside at once")

		// The mistake to look for when a nested call waits for ever: this is the context from before the section.
		_, err = lock.TryLockFor(ctx, 20*time.Millisecond)
		var locked *relock.LockedError
		if !errors.As(err, &locked) {
			return fmt.Errorf("TryLockFor with another context: %w", orNil(err))
		}
		holder, _ := relock.HolderFrom(section)
		shop.log.say("with the context from before the section, the lock is refused: its holder is another: %v", locked.Holder == holder)
		return nil
	})
	return errors.Join(err, shop.log.expect(
		"two goroutines with the section's context were inside at once",
		"with the context from before the section, the lock is refused: its holder is another: true",
	))
}

// apart starts goroutines inside a section that must exclude each other in a second lock. They keep the section's end and
// values, and drop its holder.
func apart(ctx context.Context, locks *relock.Client, log *log) error {
	log.title("Goroutines of one section that must compete for a second lock: WithoutHolder")
	order, customer := locks.NewLock("order:9"), locks.NewLock("customer:3")
	err := order.Do(ctx, func(section context.Context) error {
		var inside, balance atomic.Int64
		err := both(func() error {
			return customer.Do(relock.WithoutHolder(section), func(ctx context.Context) error {
				if inside.Add(1) > 1 {
					return errors.New("two are inside at once")
				}
				defer inside.Add(-1)
				before := balance.Load()
				if err := work(ctx, 10*time.Millisecond); err != nil {
					return err
				}
				balance.Store(before + 50)
				return nil
			})
		})
		log.say("two goroutines booked 50 each, one at a time: %d", balance.Load())
		return err
	})
	return errors.Join(err, log.expect("two goroutines booked 50 each, one at a time: 100"))
}

// steps are two steps of one workflow. They run in different goroutines with contexts of their own, as handlers of
// messages do. The message carries the holder, so that they enter together, and the lock is free when both are done.
// (A holder enters again only through the Client that has taken the lock: this is for one process.)
func steps(ctx context.Context, locks *relock.Client, log *log) error {
	log.title("Steps that share no context: NewHolder and WithHolder")
	lock := locks.NewLock("order:10")
	type message struct{ holder relock.Holder }
	messages := make(chan message)
	second := make(chan error, 1)
	go func() {
		var m message
		select {
		case m = <-messages:
		case <-ctx.Done():
			second <- ctx.Err()
			return
		}
		if _, err := lock.TryLock(ctx); !errors.Is(err, relock.ErrLocked) {
			second <- fmt.Errorf("TryLock without the holder: %w", orNil(err))
			return
		}
		log.say("the second step is refused as somebody else")
		second <- lock.Do(relock.WithHolder(ctx, m.holder), func(ctx context.Context) error {
			log.say("the second step is in as the same holder, count %d", lock.Count(ctx))
			return nil
		})
	}()

	h := relock.NewHolder()
	err := lock.Do(relock.WithHolder(ctx, h), func(ctx context.Context) error {
		log.say("the first step is in, count %d", lock.Count(ctx))
		select {
		case messages <- message{h}:
			return <-second
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil {
		return err
	}
	state, err := lock.State(ctx)
	log.say("both are done, locked: %v", state.Locked())
	return errors.Join(err, log.expect(
		"the first step is in, count 1",
		"the second step is refused as somebody else",
		"the second step is in as the same holder, count 2",
		"both are done, locked: false",
	))
}

// both runs f twice at once and waits.
func both(f func() error) error {
	var wg sync.WaitGroup
	var errs [2]error
	for i := range errs {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

func work(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// orNil makes a missing error readable.
func orNil(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// log prints, and remembers what it has printed since the last title.
type log struct {
	out io.Writer

	mu    sync.Mutex
	lines []string
}

func (l *log) title(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = nil
	fmt.Fprintf(l.out, "\n%s\n", text)
}

func (l *log) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	l.lines = append(l.lines, line)
	fmt.Fprintf(l.out, "  %s\n", line)
}

// expect is the check that makes the program fail if it has told anything else.
func (l *log) expect(lines ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(lines, l.lines) {
		return fmt.Errorf("told %q instead of %q", l.lines, lines)
	}
	return nil
}
