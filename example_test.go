package relock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store/mem"
)

// embedded starts a Redis server inside the example. A program of yours connects to a real one:
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
func embedded() (rdb *redis.Client, stop func()) {
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true) // keys expire with the clock
	if err := server.Start(); err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
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
	rdb, stop := embedded() // or redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
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

// ErrNotEntered tells a call that has done nothing, and may be repeated, from one whose function
// has run.
func ExampleLock_DoFor_notEntered() {
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
	fmt.Println("nothing was done:", errors.Is(err, relock.ErrNotEntered))

	_ = lock.Unlock(section)
	err = lock.DoFor(context.Background(), 0, work)
	fmt.Println("nothing was done:", errors.Is(err, relock.ErrNotEntered))
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

// inMemory begins examples that are not about Redis.
func inMemory(options ...relock.Option) *relock.Client {
	client, err := relock.Open(mem.New(), options...)
	if err != nil {
		panic(err)
	}
	return client
}

// Draw the token before the first write, write with it, and let the storage refuse a smaller one
// than it has seen. examples/transfer does that in SQL.
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
	_ = lock.Do(context.Background(), func(ctx context.Context) (err error) {
		if first, err = lock.Token(ctx); err != nil {
			return err
		}
		return write(first)
	})
	_ = lock.Do(context.Background(), func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		fmt.Println("larger:", token > first)
		return write(token)
	})
	fmt.Println("a late write of the first:", write(first))
	// Output:
	// larger: true
	// a late write of the first: refused: the lock has been somebody else's since
}

// Remaining tells whether a step that cannot be cut short still fits.
func ExampleLock_Remaining() {
	client := inMemory()
	defer client.Close()
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
	client := inMemory()
	defer client.Close()
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
	client := inMemory()
	defer client.Close()
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
	token, err := lock.Token(ctx)
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
	fmt.Println("token:", state.Token == token, "lease:", state.TTL > 29*time.Second)

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
	client := inMemory()
	defer client.Close()
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

// ForceUnlock is for operators. The holder is told by a message, or at its next renewal.
func ExampleLock_ForceUnlock() {
	client, stop := connect()
	defer stop()
	lock := client.NewLock("orders:42", relock.WithTTL(600*time.Millisecond))

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

// A batch of minutes lets short jobs in: where it can stop, it looks whether somebody has asked,
// and if so queues behind whoever waits.
func ExampleLock_Wanted() {
	client := inMemory()
	defer client.Close()
	lock, ctx := client.NewLock("gpu:0"), context.Background()

	section, err := lock.Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	wanted := lock.Wanted(section) // before the work: what was asked earlier is not heard
	done := make(chan struct{})
	go func() { // the short job, perhaps of another process
		defer close(done)
		_ = lock.Ask(ctx)
		_ = lock.Do(ctx, func(context.Context) error {
			fmt.Println("the short job is in")
			return nil
		})
	}()
	for step := 1; step <= 3; step++ {
		if step == 2 {
			<-wanted // a real batch looks, and does not wait: select with a default
			_ = lock.Unlock(section)
			<-done
			if section, err = lock.Lock(ctx); err != nil {
				fmt.Println(err)
				return
			}
		}
		fmt.Println("step", step)
	}
	fmt.Println(lock.Unlock(section))
	// Output:
	// step 1
	// the short job is in
	// step 2
	// step 3
	// <nil>
}

// RunScript is for a section that is one script, beside others that are not.
func ExampleLock_RunScript() {
	client, stop := connect()
	defer stop()
	stock := client.NewLock("stock:7")

	reply, err := stock.RunScript(context.Background(), "return redis.call('INCRBY', KEYS[1], ARGV[1])", []string{"{stock:7}:count"}, 5)
	fmt.Println(reply, err)
	// Output: 5 <nil>
}

func ExampleHolderFrom() {
	client := inMemory()
	defer client.Close()
	lock := client.NewLock("orders:42")

	_, ok := relock.HolderFrom(context.Background())
	fmt.Println("outside:", ok)
	err := lock.Do(context.Background(), func(ctx context.Context) error {
		holder, ok := relock.HolderFrom(ctx)
		fmt.Println("inside:", ok, strings.HasPrefix(holder.String(), client.ID()+":")) // as logs and State show it
		return nil
	})
	fmt.Println(err)
	// Output:
	// outside: false
	// inside: true true
	// <nil>
}

// A framework calls back with a context of its own. WithSection says that the call belongs to the
// section.
func ExampleWithSection() {
	client := inMemory()
	defer client.Close()
	lock := client.NewLock("orders:42")

	err := lock.Do(context.Background(), func(section context.Context) error {
		callback := func(ctx context.Context) {
			_, err := lock.TryLock(ctx)
			fmt.Println("by itself it is somebody else:", errors.Is(err, relock.ErrLocked))

			err = lock.Do(relock.WithSection(ctx, section), func(ctx context.Context) error {
				fmt.Println("with the section: count", lock.Count(ctx))
				return nil
			})
			fmt.Println(err)
		}
		callback(context.Background())
		return nil
	})
	fmt.Println(err)
	// Output:
	// by itself it is somebody else: true
	// with the section: count 2
	// <nil>
	// <nil>
}

// A goroutine that is started in a section, and must compete for the section's lock, is outside of
// the section.
func ExampleWithoutHolder() {
	client := inMemory()
	defer client.Close()
	lock := client.NewLock("billing-run")

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		inner, err := lock.TryLock(ctx)
		fmt.Println("inside it enters again:", err)
		_ = lock.Unlock(inner)

		_, err = lock.TryLock(relock.WithoutHolder(ctx)) // still ends when ctx ends
		fmt.Println("outside it is refused:", errors.Is(err, relock.ErrLocked))
		return nil
	})
	fmt.Println(err)
	// Output:
	// inside it enters again: <nil>
	// outside it is refused: true
	// <nil>
}

// A refusal says who has the lock, and what is left of the lease.
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
	client := inMemory()
	defer client.Close()
	lock := client.NewLock("orders:42", relock.WithTTL(100*time.Millisecond), relock.WithMaxHold(100*time.Millisecond))

	ctx, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	<-ctx.Done() // it hangs until WithMaxHold ends it

	var lost *relock.LostError
	if errors.As(context.Cause(ctx), &lost) {
		fmt.Println(lost.Name, lost.Reason)
	}
	// Output:
	// orders:42 max_hold
}

// fakeLock is free, or somebody else's, as the test wants it.
type fakeLock struct{ locked bool }

func (f fakeLock) Lock(ctx context.Context) (context.Context, error) { return f.TryLock(ctx) }

func (f fakeLock) TryLock(ctx context.Context) (context.Context, error) {
	if f.locked {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return ended, &relock.LockedError{Name: "fake"}
	}
	return ctx, nil
}

func (f fakeLock) Unlock(context.Context) error { return nil }

// A service that depends on Locker can be tested without a store.
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

func ExampleDoValue() {
	client := inMemory()
	defer client.Close()
	number, err := relock.DoValue(context.Background(), client.NewLock("invoices"), func(context.Context) (int, error) {
		return 4711, nil // the next number, read and written
	})
	fmt.Println(number, err)
	// Output: 4711 <nil>
}

// Hooks are for metrics and traces. They run one after another, away from the code that locks.
func ExampleWithHooks() {
	client := inMemory(relock.WithHooks(event.Hooks{
		AcquireFinished: func(e event.AcquireFinished) { fmt.Println("acquire:", e.Name, e.Outcome, e.Depth) },
		Released:        func(e event.Released) { fmt.Println("released:", e.Name, e.MaxDepth) },
	}))
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

func ExampleWithLogger() {
	plain := func(_ []string, a slog.Attr) slog.Attr { // leave out what differs from run to run
		if a.Key == slog.TimeKey || a.Key == "holder" {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: plain}))
	client := inMemory(relock.WithLogger(logger))
	lock := client.NewLock("orders:42", relock.WithFixedLease(50*time.Millisecond))

	section, err := lock.Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	<-section.Done()
	_ = lock.Unlock(section)
	_ = client.Close()
	// Output:
	// level=ERROR msg="relock: lock lost" lock=orders:42 token=0 reason=expired
}

// Who has the lock? With an owner, refusals, State and logs say so in words.
func ExampleWithOwner() {
	client := inMemory(relock.WithOwner("orders@pod-7"))
	defer client.Close()
	lock := client.NewLock("orders:42")

	err := lock.Do(context.Background(), func(context.Context) error {
		_, err := lock.TryLock(context.Background())
		var locked *relock.LockedError
		if errors.As(err, &locked) {
			owner, _, _ := strings.Cut(locked.Holder.String(), "/")
			fmt.Println("locked by", owner)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// locked by orders@pod-7
	// <nil>
}

// A service that is stopped frees its locks at once, so the next instance does not wait for the end
// of the leases.
func ExampleWithReleaseOnClose() {
	store := mem.New()
	leader, err := relock.Open(store, relock.WithReleaseOnClose())
	if err != nil {
		fmt.Println(err)
		return
	}
	next, err := relock.Open(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer next.Close()

	section, err := leader.NewLock("leader").Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = leader.Close() // after the work has ended
	fmt.Println("the section has ended:", context.Cause(section))

	_, err = next.NewLock("leader").TryLock(context.Background())
	fmt.Println("the next one leads:", err)
	// Output:
	// the section has ended: relock: client closed
	// the next one leads: <nil>
}

// A section that hangs while its process is healthy gives the lock up after a while.
func ExampleWithMaxHold() {
	client := inMemory(relock.WithTTL(50 * time.Millisecond))
	defer client.Close()
	lock := client.NewLock("reports:daily", relock.WithMaxHold(100*time.Millisecond))

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		<-ctx.Done() // waits for something that never comes
		return nil
	})
	fmt.Println(errors.Is(err, relock.ErrLockLost))
	// Output:
	// true
}

// A transfer between two accounts needs the locks of both. All takes them in one order for
// everybody, so a transfer the other way round at the same time is no deadlock.
func ExampleAll() {
	client := inMemory()
	defer client.Close()
	from, to := client.NewLock("account:7"), client.NewLock("account:3")

	both := relock.All(from, to)
	err := both.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("inside of", both.Names(), from.Held(ctx), to.Held(ctx))
		return nil
	})
	fmt.Println(err)
	// Output:
	// inside of [account:3 account:7] true true
	// <nil>
}

// An order locks all its articles, or none of them: a refusal names the article that is taken.
func ExampleClient_NewLocks() {
	client := inMemory()
	defer client.Close()
	articles := client.NewLocks([]string{"article:1", "article:2", "article:3"})

	err := client.NewLock("article:2").Do(context.Background(), func(context.Context) error {
		_, err := articles.TryLock(context.Background())
		var locked *relock.LockedError
		if errors.As(err, &locked) {
			fmt.Println("taken:", locked.Name)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// taken: article:2
	// <nil>
}

// At the signal, requests that wait for a lock end at once, and those that have it finish.
func ExampleWithStop() {
	client := inMemory()
	defer client.Close()
	lock := client.NewLock("orders:42")

	signal, stop := context.WithCancel(context.Background()) // as signal.NotifyContext makes one
	requests := relock.WithStop(context.Background(), signal)

	err := lock.Do(requests, func(ctx context.Context) error {
		stop()
		fmt.Println("the work goes on:", ctx.Err() == nil)
		return lock.Do(ctx, func(context.Context) error { return nil }) // a nested call, too
	})
	fmt.Println(err)
	err = lock.Do(requests, func(context.Context) error { return nil })
	fmt.Println("a new request:", errors.Is(err, context.Canceled))
	// Output:
	// the work goes on: true
	// <nil>
	// a new request: true
}

// A price list is read by many and changed by one. A reader that finds it empty becomes its writer
// without leaving: an upgrade.
func ExampleRWLock() {
	client := inMemory()
	defer client.Close()
	lock, ctx := client.NewRWLock("prices"), context.Background()
	prices := map[string]int{}

	look := func(ctx context.Context) error {
		if len(prices) == 0 {
			err := lock.Do(ctx, func(context.Context) error {
				prices["tea"] = 3
				return nil
			})
			if err != nil { // ErrDeadlock: another reader upgrades first, and waits for this one to leave
				return err
			}
		}
		fmt.Println("tea:", prices["tea"])
		return nil
	}
	fmt.Println(lock.RDo(ctx, look))

	reader, _ := lock.RLock(ctx)
	_, err := lock.TryLock(ctx)
	fmt.Println("a writer beside a reader is refused:", errors.Is(err, relock.ErrLocked))
	another, err := lock.TryRLock(ctx)
	fmt.Println("a reader beside a reader:", err)
	_, _ = lock.Unlock(reader), lock.Unlock(another)
	// Output:
	// tea: 3
	// <nil>
	// a writer beside a reader is refused: true
	// a reader beside a reader: <nil>
}

// A writer that has changed something, and wants to look at it together with other readers, reads
// inside of its section, and leaves the outer entry first: a downgrade.
func ExampleRWLock_RLock() {
	client := inMemory()
	defer client.Close()
	lock, ctx := client.NewRWLock("prices"), context.Background()

	writer, _ := lock.Lock(ctx)
	reader, _ := lock.RLock(writer)
	_ = lock.Unlock(writer)
	fmt.Println("the reader goes on:", reader.Err() == nil)
	another, err := lock.TryRLock(ctx)
	fmt.Println("others may read:", err == nil)
	_, _ = lock.Unlock(another), lock.Unlock(reader)
	// Output:
	// the reader goes on: true
	// others may read: true
}

// At most two imports run at a time, in all processes together.
func ExampleClient_NewSemaphore() {
	client := inMemory()
	defer client.Close()
	imports, ctx := client.NewSemaphore("imports", 2), context.Background()

	first, _ := imports.TryLock(ctx)
	second, _ := imports.TryLock(ctx)
	_, err := imports.TryLock(ctx)
	fmt.Println("a third one:", errors.Is(err, relock.ErrLocked))
	state, _ := imports.State(ctx)
	fmt.Println("permits in use:", 1+len(state.Others))
	_ = imports.Unlock(first)
	third, err := imports.TryLock(ctx)
	fmt.Println("after an Unlock:", err)
	_, _ = imports.Unlock(second), imports.Unlock(third)
	// Output:
	// a third one: true
	// permits in use: 2
	// after an Unlock: <nil>
}
