// Fencing shows the use of the fencing token: a holder that has lost its lock without noticing
// writes to an account that somebody else has written to since.
//
// No lock with a lease can prevent that by itself. A process that stands still (a pause of the
// garbage collector, a virtual machine that is moved, a statement that is long on its way) does not
// see its context end. But the resource can tell. A section draws a token from its lock before its
// first write, and each token is larger than all that were drawn before. The resource refuses a
// token smaller than the last it has seen.
//
// The example shows the principle in one comparison. A section that reads first has to raise the
// token of the account before its read, as a late holder may write between the read and the write:
// package fence does that in a SQL transaction, see examples/transfer.
//
//	go run ./examples/fencing
//
// needs no server; with REDIS_URL=redis://... the locks are on that server. The exit code is 1 if
// anything is not as told.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

func main() { stage.Main("fencing", run) }

// account is the resource, and the token is the largest that its fenced writes have seen. In a
// table both are columns of one row, and setFenced is one statement:
//
//	UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?
type account struct {
	mu      sync.Mutex
	balance int
	token   int64
}

var errStaleToken = errors.New("refused: a later holder of the lock has written already")

func (a *account) get() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.balance
}

// set writes with any token.
func (a *account) set(balance int, _ int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.balance = balance
	return nil
}

// setFenced writes unless a holder with a larger token has written, and keeps the token.
func (a *account) setFenced(balance int, token int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token <= 0 {
		return errors.New("refused: no token, so no lock")
	}
	if token < a.token {
		return errStaleToken
	}
	a.balance, a.token = balance, token
	return nil
}

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
	locks, err := relock.New(rdb, relock.WithPrefix("relock-fencing:"+rand.Text()[:8]+":"))
	if err != nil {
		return err
	}
	defer locks.Close()

	err = tell(ctx, &scene{out, locks})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // in place of the error of the call that ended
	}
	return err
}

// tell plays the scene without the token and with it.
func tell(ctx context.Context, s *scene) error {
	fmt.Fprintln(s.out, "Without the token:")
	plain := &account{balance: 100}
	late, err := s.play(ctx, plain, plain.set)
	if err != nil {
		return err
	}
	if balance := plain.get(); late != nil || balance != 70 {
		return fmt.Errorf("the balance is %d, and the late write: %s", balance, outcome(late))
	}
	fmt.Fprintln(s.out, "  The deposit is gone: 100 + 50 - 30 is 120, not 70.")

	fmt.Fprintln(s.out, "\nWith the token:")
	fenced := &account{balance: 100}
	late, err = s.play(ctx, fenced, fenced.setFenced)
	if err != nil {
		return err
	}
	if balance := fenced.get(); !errors.Is(late, errStaleToken) || balance != 150 {
		return fmt.Errorf("the balance is %d, and the late write: %s", balance, outcome(late))
	}
	fmt.Fprintln(s.out, "  Nothing is lost. The withdrawal knows that it did not happen, and is tried again:")
	return s.again(ctx, fenced)
}

type scene struct {
	out   io.Writer
	locks *relock.Client
}

// play has a withdrawal lose its lock between its read and its write, and a deposit happen in
// between. Both write with set. Returned is the error of the late write.
func (s *scene) play(ctx context.Context, a *account, set func(balance int, token int64) error) (late, err error) {
	const lease = 500 * time.Millisecond
	// No watchdog: a process that stands still does not renew either.
	withdrawing := s.locks.NewLock("account", relock.WithFixedLease(lease))
	depositing := s.locks.NewLock("account")

	withdrawal, err := withdrawing.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer withdrawing.Unlock(withdrawal)
	// Token draws only while the lock is held, so draw before the first write.
	old, err := withdrawing.Token(withdrawal)
	if err != nil {
		return nil, err
	}
	before := a.get()
	fmt.Fprintf(s.out, "  withdrawal: has the lock, token %d; reads %d; now stands still for longer than its lease\n", old, before)

	err = depositing.Do(ctx, func(ctx context.Context) error { // waits until the lease has run out
		token, err := depositing.Token(ctx)
		if err != nil {
			return err
		}
		balance := a.get()
		if err := set(balance+50, token); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "  deposit:    has the lock, token %d; reads %d, writes %d\n", token, balance, balance+50)
		return nil
	})
	if err != nil {
		return nil, err
	}

	// The withdrawal goes on. Its context ended long ago, but this write was already on its way.
	late = set(before-30, old)
	fmt.Fprintf(s.out, "  withdrawal: writes %d with token %d: %s\n", before-30, old, outcome(late))
	if err := withdrawing.Unlock(withdrawal); !errors.Is(err, relock.ErrLockLost) {
		return late, fmt.Errorf("the Unlock of the lost section: %s", outcome(err))
	}
	fmt.Fprintf(s.out, "  the balance is %d\n", a.get())
	return late, nil
}

// again repeats the withdrawal with a new hold, from the present balance.
func (s *scene) again(ctx context.Context, a *account) error {
	lock := s.locks.NewLock("account")
	return lock.Do(ctx, func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		before := a.get()
		if err := a.setFenced(before-30, token); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "  withdrawal: has the lock, token %d; reads %d, writes %d\n", token, before, before-30)
		if before != 150 {
			return fmt.Errorf("read %d", before)
		}
		return nil
	})
}

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}
