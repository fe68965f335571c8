package relock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
)

// embedded starts a Redis server inside the example. A program of yours connects to a real one:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
func embedded() (rdb *redis.Client, stop func()) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // keys expire with the clock
	if err := server.Start(); err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

// connect is what the examples begin with: a client for locks on an embedded server.
func connect(options ...relock.Option) (client *relock.Client, stop func()) {
	rdb, stopServer := embedded()
	client, err := relock.New(rdb, options...)
	if err != nil {
		panic(err)
	}
	return client, func() {
		_ = client.Close()
		stopServer()
	}
}

func Example() {
	rdb, stop := embedded() // or redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer stop()

	client, err := relock.New(rdb) // one for the life of the process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	lock := client.NewLock("orders:42", relock.WithTTL(10*time.Second))
	err = lock.Do(context.Background(), func(ctx context.Context) error {
		// Nobody else is here, in any process. The context ends if the lock is lost: use it for all the work.
		fmt.Println("in:", lock.Held(ctx))
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// in: true
	// error: <nil>
}

func ExampleNew() {
	rdb, stop := embedded()
	defer stop()

	// Options given to New are the defaults of all locks of the client.
	client, err := relock.New(rdb, relock.WithTTL(10*time.Second), relock.WithPrefix("shop:"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close() // before rdb, which stays yours, is closed

	// A wrong option is an error that says what is allowed.
	_, err = relock.New(rdb, relock.WithTTL(time.Millisecond))
	fmt.Println(errors.Is(err, relock.ErrInvalid))
	fmt.Println(err)
	// Output:
	// true
	// relock: invalid: WithTTL(1ms): must be whole milliseconds from 10ms to 168h0m0s
}

func ExampleClient_NewLock() {
	client, stop := connect()
	defer stop()

	// Locks are cheap: make one where you need it.
	lock := client.NewLock("orders:42", relock.WithTTL(5*time.Second))
	fmt.Println(lock.Name(), lock.Err())

	// What is wrong with a name or an option is told by Err, and by every other method.
	lock = client.NewLock("")
	_, err := lock.Lock(context.Background())
	fmt.Println(err)
	// Output:
	// orders:42 <nil>
	// relock: invalid: lock name is empty; 1 to 1024 bytes are allowed
}

// A refusal names the holder, and that begins with the ID of the client that has the lock.
func ExampleClient_ID() {
	here, stop := connect()
	defer stop()
	lock := here.NewLock("orders:42")

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock(ctx)

	var locked *relock.LockedError
	_, err = lock.TryLock(context.Background())
	if errors.As(err, &locked) {
		fmt.Println("it is this process:", strings.HasPrefix(locked.Holder.String(), here.ID()+":"))
	}
	// Output:
	// it is this process: true
}

func ExampleClient_Close() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}

	_ = client.Close()
	fmt.Println("open sections end:", context.Cause(ctx))
	fmt.Println("Unlock still works:", lock.Unlock(ctx))
	_, err = lock.Lock(context.Background())
	fmt.Println("Lock does not:", errors.Is(err, relock.ErrClosed))
	// Output:
	// open sections end: relock: client closed
	// Unlock still works: <nil>
	// Lock does not: true
}

func ExampleLock_Do() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	errNoStock := errors.New("nothing in stock")
	err := lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("held inside:", lock.Held(ctx))
		return errNoStock
	})
	fmt.Println("the function's error comes back:", errors.Is(err, errNoStock))

	state, err := lock.State(context.Background())
	fmt.Println("locked afterwards:", state.Locked(), err)
	// Output:
	// held inside: true
	// the function's error comes back: true
	// locked afterwards: false <nil>
}

// A nested call with the section's context enters at once, so a function that locks can call another that locks the same.
func ExampleLock_Do_reentry() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	reserve := func(ctx context.Context) error {
		return lock.Do(ctx, func(ctx context.Context) error {
			fmt.Println("reserve: count", lock.Count(ctx))
			return nil
		})
	}
	err := lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("place: count", lock.Count(ctx))
		if err := reserve(ctx); err != nil {
			return err
		}
		fmt.Println("place: count", lock.Count(ctx))
		return nil
	})
	fmt.Println(err)
	// Output:
	// place: count 1
	// reserve: count 2
	// place: count 1
	// <nil>
}

// If the lock is lost, the section's context ends. Drivers report that as "context canceled"; Do joins the reason.
func ExampleLock_Do_lost() {
	client, stop := connect(relock.WithTTL(600 * time.Millisecond))
	defer stop()
	lock := client.NewLock("orders:42")

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		_ = lock.ForceUnlock(context.Background()) // an operator, somewhere else
		<-ctx.Done()                               // a query is cut short, say
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, relock.ErrLockLost))
	// Output:
	// true true
}

// DoFor is for whoever cannot wait for ever, such as the handler of a request. The limit is for the wait, not for the work.
func ExampleLock_DoFor() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	handle := func() string {
		err := lock.DoFor(context.Background(), 500*time.Millisecond, func(context.Context) error { return nil })
		switch {
		case errors.Is(err, relock.ErrLocked):
			return "503 busy, ask again"
		case err != nil:
			return "500 " + err.Error()
		}
		return "204"
	}

	holder, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(handle())
	_ = lock.Unlock(holder)
	fmt.Println(handle())
	// Output:
	// 503 busy, ask again
	// 204
}

func ExampleLock_Lock() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	work := func(ctx context.Context) error {
		ctx, err := lock.Lock(ctx) // waits until granted, or ctx is done
		if err != nil {
			return err
		}
		defer lock.Unlock(ctx)

		fmt.Println("in:", lock.Held(ctx)) // do the work with this ctx
		return nil
	}
	fmt.Println(work(context.Background()))
	// Output:
	// in: true
	// <nil>
}

// A wait ends with the caller's context. The error matches both: nobody gave us the lock, and why we stopped waiting.
func ExampleLock_Lock_deadline() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	holder, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock(holder)

	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = lock.Lock(ctx)
	fmt.Println(errors.Is(err, relock.ErrLocked), errors.Is(err, context.DeadlineExceeded))
	// Output:
	// true true
}

// The cause of a section's context says how the section ended.
func ExampleLock_Lock_cause() {
	client, stop := connect(relock.WithTTL(600 * time.Millisecond))
	defer stop()
	lock := client.NewLock("orders:42")

	released, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = lock.Unlock(released)
	fmt.Println(context.Cause(released))

	lost, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = lock.ForceUnlock(context.Background())
	<-lost.Done()
	fmt.Println(lost.Err(), errors.Is(context.Cause(lost), relock.ErrLockLost))
	// Output:
	// relock: lock released
	// context canceled true
}

func ExampleLock_TryLock() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	ctx, err := lock.TryLock(context.Background())
	fmt.Println("the first:", err)

	_, err = lock.TryLock(context.Background()) // not with ctx: that would be a nested entry
	fmt.Println("somebody else is refused:", errors.Is(err, relock.ErrLocked))

	fmt.Println("unlocked:", lock.Unlock(ctx))
	// Output:
	// the first: <nil>
	// somebody else is refused: true
	// unlocked: <nil>
}

func ExampleLock_TryLockFor() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	holder, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = lock.TryLockFor(context.Background(), 200*time.Millisecond)
	fmt.Println("refused:", errors.Is(err, relock.ErrLocked))

	_ = lock.Unlock(holder)
	ctx, err := lock.TryLockFor(context.Background(), 5*time.Second)
	_, limited := ctx.Deadline()
	fmt.Println("granted:", err, "and the section has a deadline:", limited)
	_ = lock.Unlock(ctx)
	// Output:
	// refused: true
	// granted: <nil> and the section has a deadline: false
}

func ExampleLock_Unlock() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	outer, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	inner, err := lock.Lock(outer)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("inner:", lock.Unlock(inner))
	fmt.Println("inner again:", errors.Is(lock.Unlock(inner), relock.ErrNotHeld))
	fmt.Println("outer still in:", lock.Held(outer))
	fmt.Println("outer:", lock.Unlock(outer))
	// Output:
	// inner: <nil>
	// inner again: true
	// outer still in: true
	// outer: <nil>
}

// Unlock tells when the lock was lost before: what the section did last may have happened without it.
func ExampleLock_Unlock_lost() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithFixedLease(50*time.Millisecond))

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	<-ctx.Done() // the lease is over, and there is no watchdog

	var lost *relock.LostError
	if errors.As(lock.Unlock(ctx), &lost) {
		fmt.Println(lost.Name, lost.Reason)
	}
	// Output:
	// orders:42 expired
}

// Write with the token, and let the storage refuse a smaller one than it has seen. examples/fencing does it in SQL.
func ExampleLock_Token() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	var seen int64
	write := func(token int64) error {
		if token < seen {
			return errors.New("refused: the lock has been somebody else's since")
		}
		seen = token
		return nil
	}

	var first int64
	_ = lock.Do(context.Background(), func(ctx context.Context) error {
		first = lock.Token(ctx)
		return write(first)
	})
	_ = lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("larger:", lock.Token(ctx) > first)
		return write(lock.Token(ctx))
	})
	fmt.Println("a late write of the first:", write(first))
	// Output:
	// larger: true
	// a late write of the first: refused: the lock has been somebody else's since
}

// Remaining tells whether a step that cannot be cut short still fits.
func ExampleLock_Remaining() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithFixedLease(10*time.Second))

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("time for 5s:", lock.Remaining(ctx) > 5*time.Second)
		fmt.Println("time for 10s:", lock.Remaining(ctx) > 10*time.Second)
		return nil
	})
	fmt.Println(err, lock.Remaining(context.Background()))
	// Output:
	// time for 5s: true
	// time for 10s: false
	// <nil> 0s
}

func ExampleLock_Count() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		return lock.Do(ctx, func(ctx context.Context) error {
			fmt.Println(lock.Count(ctx))
			return nil
		})
	})
	fmt.Println(err, lock.Count(context.Background()))
	// Output:
	// 2
	// <nil> 0
}

// A function that must only run inside a section can say so.
func ExampleLock_Held() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	setStatus := func(ctx context.Context, status string) error {
		if !lock.Held(ctx) {
			return errors.New("setStatus: call it with the order locked")
		}
		fmt.Println("status:", status)
		return nil
	}
	fmt.Println(setStatus(context.Background(), "paid"))
	fmt.Println(lock.Do(context.Background(), func(ctx context.Context) error { return setStatus(ctx, "paid") }))
	// Output:
	// setStatus: call it with the order locked
	// status: paid
	// <nil>
}

// State asks Redis, so any process can look.
func ExampleLock_State() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(30*time.Second))

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	state, err := lock.State(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	holder, _ := relock.HolderFrom(ctx)
	fmt.Println("locked:", state.Locked(), "by us:", state.Holder == holder, "count:", state.Count, "waiters:", state.Waiters)
	fmt.Println("token:", state.Token == lock.Token(ctx), "lease:", state.TTL > 29*time.Second)

	_ = lock.Unlock(ctx)
	state, err = lock.State(context.Background())
	fmt.Println("locked:", state.Locked(), err)
	// Output:
	// locked: true by us: true count: 1 waiters: 0
	// token: true lease: true
	// locked: false <nil>
}

// A fixed lease ends by itself unless it is extended.
func ExampleLock_Extend() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithFixedLease(5*time.Second))

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		if err := lock.Extend(ctx, time.Minute); err != nil {
			return err
		}
		fmt.Println(lock.Remaining(ctx) > 50*time.Second)
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// ForceUnlock is for operators: the holder hears of it at its next renewal, and works on until then.
func ExampleLock_ForceUnlock() {
	client, stop := connect(relock.WithTTL(600 * time.Millisecond))
	defer stop()
	lock := client.NewLock("orders:42")

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("taken:", lock.ForceUnlock(context.Background()))
	<-ctx.Done()
	fmt.Println("the holder is told:", errors.Is(lock.Unlock(ctx), relock.ErrLockLost))
	fmt.Println("nobody has it:", errors.Is(lock.ForceUnlock(context.Background()), relock.ErrNotHeld))
	// Output:
	// taken: <nil>
	// the holder is told: true
	// nobody has it: true
}

// Two steps that do not share a context enter together if they carry the same holder.
func ExampleNewHolder() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	holder := relock.NewHolder()
	first, err := lock.Lock(relock.WithHolder(context.Background(), holder))
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := lock.Lock(relock.WithHolder(context.Background(), holder))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("count:", lock.Count(second))

	_ = lock.Unlock(first)
	fmt.Println("count:", lock.Count(second)) // the lock is free when both have left
	_ = lock.Unlock(second)
	// Output:
	// count: 2
	// count: 1
}

func ExampleWithHolder() {
	holder := relock.NewHolder()
	ctx := relock.WithHolder(context.Background(), holder)

	carried, ok := relock.HolderFrom(ctx)
	fmt.Println(carried == holder, ok)
	// Output:
	// true true
}

func ExampleHolderFrom() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	_, ok := relock.HolderFrom(context.Background())
	fmt.Println("outside:", ok)
	err := lock.Do(context.Background(), func(ctx context.Context) error {
		holder, ok := relock.HolderFrom(ctx)
		fmt.Println("inside:", ok, strings.Count(holder.String(), ":")) // <uuid>:<number>, as logs and Redis show it
		return nil
	})
	fmt.Println(err)
	// Output:
	// outside: false
	// inside: true 1
	// <nil>
}

// Workers that a leader starts exclude each other, and still end with it. With its own context they would be one holder, and enter
// together.
func ExampleWithoutHolder() {
	client, stop := connect()
	defer stop()
	leader, customer := client.NewLock("billing-run"), client.NewLock("customers:7")

	err := leader.Do(context.Background(), func(ctx context.Context) error {
		booking, err := customer.Lock(relock.WithoutHolder(ctx)) // one worker
		if err != nil {
			return err
		}
		defer customer.Unlock(booking)

		_, err = customer.TryLock(relock.WithoutHolder(ctx)) // another one
		fmt.Println("refused:", errors.Is(err, relock.ErrLocked))
		return nil
	})
	fmt.Println(err)
	// Output:
	// refused: true
	// <nil>
}

// A refusal says who has the lock, and for how long if nothing renews it.
func ExampleLockedError() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(10*time.Second))

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock(ctx)
	holder, _ := relock.HolderFrom(ctx)

	_, err = lock.TryLock(context.Background())
	var locked *relock.LockedError
	if errors.As(err, &locked) {
		fmt.Println(locked.Name, locked.Holder == holder, locked.TTL.Round(time.Second))
	}
	// Output:
	// orders:42 true 10s
}

// A section that was lost says which hold it was, and why.
func ExampleLostError() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(500*time.Millisecond), relock.WithMaxHold(500*time.Millisecond))

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	token := lock.Token(ctx)
	<-ctx.Done() // it hangs until WithMaxHold ends it

	var lost *relock.LostError
	if errors.As(context.Cause(ctx), &lost) {
		fmt.Println(lost.Name, lost.Token == token, lost.Reason)
	}
	// Output:
	// orders:42 true max_hold
}

// fakeLock is free, or somebody else's, as the test wants it.
type fakeLock struct{ locked bool }

func (f fakeLock) Lock(ctx context.Context) (context.Context, error) { return f.TryLock(ctx) }

func (f fakeLock) TryLock(ctx context.Context) (context.Context, error) {
	if f.locked {
		return ctx, &relock.LockedError{Name: "fake"}
	}
	return ctx, nil
}

func (f fakeLock) Unlock(context.Context) error { return nil }

// A service that depends on Locker can be tested without Redis.
func ExampleLocker() {
	cleanUp := func(ctx context.Context, lock relock.Locker) error {
		section, err := lock.TryLock(ctx)
		if errors.Is(err, relock.ErrLocked) {
			fmt.Println("another instance does it")
			return nil
		}
		if err != nil {
			return err
		}
		defer lock.Unlock(section)
		fmt.Println("cleaning up")
		return nil
	}

	fmt.Println(cleanUp(context.Background(), fakeLock{}))
	fmt.Println(cleanUp(context.Background(), fakeLock{locked: true}))
	// Output:
	// cleaning up
	// <nil>
	// another instance does it
	// <nil>
}

// Do with a Locker is the same as the method of Lock, for a service that depends on the interface.
func ExampleDo() {
	ship := func(ctx context.Context, lock relock.Locker) error {
		return relock.Do(ctx, lock, func(context.Context) error {
			fmt.Println("shipping")
			return nil
		})
	}

	fmt.Println(ship(context.Background(), fakeLock{}))
	fmt.Println(ship(context.Background(), fakeLock{locked: true}))
	// Output:
	// shipping
	// <nil>
	// relock: "fake" is locked by another holder
}

// Hooks are for metrics and traces. They run one after another, away from the code that locks.
func ExampleWithHooks() {
	client, stop := connect(relock.WithHooks(relock.Hooks{
		AcquireFinished: func(e relock.AcquireFinished) { fmt.Println("acquire:", e.Name, e.Outcome, e.Depth) },
		Released:        func(e relock.Released) { fmt.Println("released:", e.Name, e.MaxDepth) },
	}))
	defer stop()
	lock := client.NewLock("orders:42")

	_ = lock.Do(context.Background(), func(ctx context.Context) error {
		_, _ = lock.TryLock(context.Background()) // somebody else
		return lock.Do(ctx, func(context.Context) error { return nil })
	})
	_ = client.Close() // when it returns, the hooks have seen everything
	// Output:
	// acquire: orders:42 acquired 1
	// acquire: orders:42 locked 0
	// acquire: orders:42 acquired 2
	// released: orders:42 2
}

// Many goroutines of a process want one lock. Each has it alone, with a token of its own; Redis is asked a few times for all
// of them.
func ExampleWithLocalPass() {
	client, stop := connect(relock.WithLocalPass(0, 0)) // 1,000 times and for 10 ms at most, while others wait
	defer stop()
	stock, last := 500, int64(0)
	lock := client.NewLock("stock:42")

	var buyers sync.WaitGroup
	for range 500 {
		buyers.Go(func() {
			err := lock.Do(context.Background(), func(ctx context.Context) error {
				if token := lock.Token(ctx); token <= last {
					return fmt.Errorf("token %d after %d", token, last)
				}
				stock, last = stock-1, lock.Token(ctx)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	buyers.Wait()
	fmt.Println("left:", stock)
	// Output: left: 0
}

// What a Java service has taken with redisson.getLock("orders:42").lock().
func ExampleWithRedissonLayout() {
	rdb, stop := embedded()
	defer stop()
	client, err := relock.New(rdb, relock.WithRedissonLayout())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	rdb.HSet(ctx, "orders:42", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", 1) // what Redisson writes
	rdb.PExpire(ctx, "orders:42", 30*time.Second)

	lock := client.NewLock("orders:42")
	_, err = lock.TryLock(ctx)
	var locked *relock.LockedError
	fmt.Println(errors.As(err, &locked), locked.Holder)

	rdb.Del(ctx, "orders:42") // unlock()
	rdb.Publish(ctx, "redisson_lock__channel:{orders:42}", "0")
	section, err := lock.Lock(ctx)
	fmt.Println(err, lock.Held(section), lock.Token(section))
	fmt.Println(lock.Unlock(section))
	// Output:
	// true f47ac10b-58cc-4372-a567-0e02b2c3d479:42
	// <nil> true 0
	// <nil>
}

func ExampleWithRedissonFencing() {
	client, stop := connect(relock.WithRedissonLayout())
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("orders:42", relock.WithRedissonFencing()) // redisson.getFencedLock("orders:42")
	for range 2 {
		err := lock.Do(ctx, func(ctx context.Context) error {
			fmt.Println(lock.Token(ctx))
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1
	// 2
}
