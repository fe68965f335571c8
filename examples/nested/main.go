// Nested shows how the context carries a section through calls that lock the same thing again.
//
// An order service calls the inventory, and the inventory calls the payment. Each service locks the
// order, because each is also called by itself and does not know whether its caller has the lock.
// The other scenes show which goroutines are inside of a section, and which exclude each other:
// workers that lock the section's own lock, workers that each lock a second lock (as in an
// errgroup), a worker outside of the section (WithoutHolder), and a callback inside of the section
// whose context comes from elsewhere (WithSection).
//
//	go run ./examples/nested
//
// starts an embedded Redis; with REDIS_URL=redis://... the program uses that server. The exit code
// is 1 if anything is not as told.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

func main() { stage.Main("nested", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
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
		outside(ctx, client, log),
		callback(ctx, client, log),
	)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each call
	}
	return err
}

// The services pass the context that Do hands to the function on to every call in the section.

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

// together starts workers inside a section that lock the section's lock again. Their context is
// inside the section, so they enter at once. Two requests for one order never do: a call whose
// context is outside of the section excludes, and is excluded.
func together(ctx context.Context, shop *orders) error {
	shop.log.title("Workers of one section are inside of it, another request is not")
	lock := shop.locks.NewLock("order:8")
	err := lock.Do(ctx, func(section context.Context) error {
		met := make(chan bool)
		err := both(section, func(ctx context.Context) error {
			return lock.Do(ctx, func(ctx context.Context) error {
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
		shop.log.say("two workers with the section's context were inside at once")

		// This is the context from before the section: the mistake to look for if a nested call
		// waits for ever.
		_, err = lock.TryLockFor(ctx, time.Second)
		var locked *relock.LockedError
		if !errors.As(err, &locked) {
			return fmt.Errorf("TryLockFor with another context: %w", orNil(err))
		}
		holder, _ := relock.HolderFrom(section)
		shop.log.say("the context from before the section is refused, by this very section: %v", locked.Holder == holder)
		return nil
	})
	return errors.Join(err, shop.log.expect(
		"two workers with the section's context were inside at once",
		"the context from before the section is refused, by this very section: true",
	))
}

// apart starts workers inside a section that each lock a second lock. The workers exclude each
// other in the second lock, as neither is inside the other's section. Every group of goroutines
// with the section's context behaves so, such as an errgroup.
func apart(ctx context.Context, locks *relock.Client, log *log) error {
	log.title("Workers of one section that lock a second lock take turns")
	order, customer := locks.NewLock("order:9"), locks.NewLock("customer:3")
	err := order.Do(ctx, func(section context.Context) error {
		var inside, balance atomic.Int64
		err := both(section, func(ctx context.Context) error {
			return customer.Do(ctx, func(ctx context.Context) error {
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
		log.say("two workers booked 50 each, one at a time: %d", balance.Load())
		return err
	})
	return errors.Join(err, log.expect("two workers booked 50 each, one at a time: 100"))
}

// outside starts a worker inside a section that must compete for the section's own lock.
// WithoutHolder takes the worker's context out of the section; the context still ends with the
// section.
func outside(ctx context.Context, locks *relock.Client, log *log) error {
	log.title("A worker that must wait for the section that started it: WithoutHolder")
	lock := locks.NewLock("order:10")
	next := make(chan error, 1)
	err := lock.Do(ctx, func(section context.Context) error {
		_, err := lock.TryLock(relock.WithoutHolder(section))
		if !errors.Is(err, relock.ErrLocked) {
			return fmt.Errorf("TryLock outside of the section: %w", orNil(err))
		}
		log.say("outside of the section the lock is taken")
		later := relock.WithoutHolder(context.WithoutCancel(section)) // goes on when the section ends
		go func() {
			next <- lock.Do(later, func(ctx context.Context) error {
				log.say("the worker is in when the section is over, count %d", lock.Count(ctx))
				return nil
			})
		}()
		log.say("the section is over")
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(<-next, log.expect(
		"outside of the section the lock is taken",
		"the section is over",
		"the worker is in when the section is over, count 1",
	))
}

// callback calls a service through a framework that brings a context of its own, as a bus of
// messages does. WithSection says that the call belongs to the section. (A section counts for the
// Client that has made it: this is for one process.)
func callback(ctx context.Context, locks *relock.Client, log *log) error {
	log.title("A callback with a context of its own: WithSection")
	lock := locks.NewLock("order:11")
	bus := func(handle func(context.Context) error) error { // hands over no context
		own, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		return handle(own)
	}
	err := lock.Do(ctx, func(section context.Context) error {
		return bus(func(ctx context.Context) error {
			if _, err := lock.TryLock(ctx); !errors.Is(err, relock.ErrLocked) {
				return fmt.Errorf("TryLock of the callback: %w", orNil(err))
			}
			log.say("by itself the callback is somebody else")
			return lock.Do(relock.WithSection(ctx, section), func(ctx context.Context) error {
				log.say("with the section it enters again, count %d", lock.Count(ctx))
				return nil
			})
		})
	})
	if err != nil {
		return err
	}
	state, err := lock.State(ctx)
	log.say("all is done, locked: %v", state.Locked())
	return errors.Join(err, log.expect(
		"by itself the callback is somebody else",
		"with the section it enters again, count 2",
		"all is done, locked: false",
	))
}

// both runs f twice at once and waits, as an errgroup does: the first error ends the context.
func both(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var errs [2]error
	for i := range errs {
		wg.Go(func() {
			if errs[i] = f(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
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

// log prints, and remembers the lines since the last title.
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

// expect makes the program fail if other lines were printed.
func (l *log) expect(lines ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(lines, l.lines) {
		return fmt.Errorf("told %q instead of %q", l.lines, lines)
	}
	return nil
}
