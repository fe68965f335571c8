package relock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store/mem"
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

// connect begins most examples: a client for locks on an embedded server.
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
		// Nobody else is here, in any process. The context ends if the lock is lost: use it for all
		// the work.
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

// A unit test needs no server: it keeps its locks in memory, and plays their loss.
func ExampleOpen() {
	store := mem.New()
	client, err := relock.Open(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lock := client.NewLock("orders:42")

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	store.Lose("orders:42") // as a server that crashes does
	fmt.Println("lost:", errors.Is(lock.Unlock(ctx), relock.ErrLockLost))
	// Output:
	// lost: true
}

func ExampleClient_NewLock() {
	client, stop := connect()
	defer stop()

	// Locks are cheap: make one where you need it.
	lock := client.NewLock("orders:42", relock.WithTTL(5*time.Second))
	fmt.Println(lock.Name(), lock.Err())

	// Err, and every other method, tells what is wrong with a name or an option.
	lock = client.NewLock("")
	_, err := lock.Lock(context.Background())
	fmt.Println(err)
	// Output:
	// orders:42 <nil>
	// relock: invalid: lock name is empty; 1 to 1024 bytes are allowed
}

// Check belongs to the start of a process: it asks the server for everything that locks will need.
func ExampleClient_Check() {
	client, stop := connect()
	defer stop()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := client.Check(ctx); err != nil {
		fmt.Println("locks will not work here:", err)
		return
	}
	fmt.Println("ready")
	// Output:
	// ready
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

// A nested call with the section's context enters at once, so a function that locks can call
// another that locks the same.
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

// If the lock is lost, the section's context ends. Drivers report that as "context canceled"; Do
// joins the reason.
func ExampleLock_Do_lost() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(600*time.Millisecond))

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		_ = lock.ForceUnlock(context.Background()) // an operator, somewhere else
		<-ctx.Done()                               // a query is cut short, say
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, context.Canceled), errors.Is(err, relock.ErrLockLost))
	// Output:
	// true true
}

// DoFor is for a caller that cannot wait for ever, such as the handler of a request. The wait is
// limited, and the work is not.
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

// NotEntered tells a call that has done nothing, and may be repeated, from one whose function has
// run.
func ExampleNotEntered() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42")

	section, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	work := func(context.Context) error { return errors.New("the payment was refused") }
	err = lock.DoFor(context.Background(), 0, work)
	fmt.Println("nothing was done:", relock.NotEntered(err))

	_ = lock.Unlock(section)
	err = lock.DoFor(context.Background(), 0, work)
	fmt.Println("nothing was done:", relock.NotEntered(err))
	// Output:
	// nothing was done: true
	// nothing was done: false
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

// A wait ends with the caller's context. The error matches both: nobody gave us the lock, and why
// we stopped waiting.
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
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(600*time.Millisecond))

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
	_, err = lock.TryLockFor(context.Background(), 500*time.Millisecond)
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

// Unlock tells when the lock was lost before: the last steps of the section may have happened
// without the lock.
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

// A Java service has taken this lock with redisson.getLock("orders:42").lock().
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
	rdb.HSet(ctx, "orders:42", "f47ac10b-58cc-4372-a567-0e02b2c3d479:42", 1) // as Redisson writes it
	rdb.PExpire(ctx, "orders:42", 30*time.Second)

	lock := client.NewLock("orders:42")
	_, err = lock.TryLock(ctx)
	var locked *relock.LockedError
	fmt.Println(errors.As(err, &locked), locked.Holder)

	rdb.Del(ctx, "orders:42") // unlock()
	rdb.Publish(ctx, "redisson_lock__channel:{orders:42}", "0")
	section, err := lock.Lock(ctx)
	fmt.Println(err, lock.Held(section))
	_, err = lock.Token(section)
	fmt.Println("has tokens:", !errors.Is(err, errors.ErrUnsupported))
	fmt.Println(lock.Unlock(section))
	// Output:
	// true f47ac10b-58cc-4372-a567-0e02b2c3d479:42
	// <nil> true
	// has tokens: false
	// <nil>
}

func ExampleWithRedissonFencing() {
	client, stop := connect(relock.WithRedissonFencing())
	defer stop()
	ctx := context.Background()
	lock := client.NewLock("orders:42") // redisson.getFencedLock("orders:42")
	for range 2 {
		err := lock.Do(ctx, func(ctx context.Context) error {
			token, err := lock.Token(ctx)
			fmt.Println(token)
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1
	// 2
}
