// Fencing shows the use of the fencing token: a holder that has lost its lock without noticing
// writes to a database that somebody else has written to since.
//
// No lock with a lease can prevent that by itself. A process that stands still (a pause of the
// garbage collector, a virtual machine that is moved, a statement that is long on its way) does not
// see its context end. But the resource can tell. A section draws a token from its lock before its
// first write, and each token is larger than all that were drawn before. The resource refuses a
// token smaller than the last it has seen.
//
// The example shows the principle in one statement. A section that reads first has to raise the token
// of the row before its read, as a late holder may write between the read and the write: package
// fence does that in a transaction, see examples/sql/transfer.
//
//	go run .
//
// (in examples/fencing, a module of its own because of the embedded database) needs no server; with
// REDIS_URL=redis://... the locks are on that server. The exit code is 1 if anything is not as
// told.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the database/sql driver

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

func main() { stage.Main("fencing", run) }

// The table has a column for the last token that has written the row.
const schema = `
	CREATE TABLE account (
		id      TEXT    PRIMARY KEY,
		balance INTEGER NOT NULL,
		token   INTEGER NOT NULL DEFAULT 0
	);
	INSERT INTO account (id, balance) VALUES ('plain', 100), ('fenced', 100)`

var errStaleToken = errors.New("refused: a later holder of the lock has written already")

// setBalance writes with any token.
func setBalance(ctx context.Context, db *sql.DB, id string, balance int, _ int64) error {
	_, err := db.ExecContext(ctx, `UPDATE account SET balance = ? WHERE id = ?`, balance, id)
	return err
}

// setBalanceFenced writes unless a holder with a larger token has written, and leaves its own
// token. One statement does both, so nothing comes between.
func setBalanceFenced(ctx context.Context, db *sql.DB, id string, balance int, token int64) error {
	if token <= 0 {
		return errors.New("refused: no token, so no lock")
	}
	result, err := db.ExecContext(ctx,
		`UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?`, balance, token, id, token)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return errStaleToken
}

func balanceOf(ctx context.Context, db *sql.DB, id string) (balance int, err error) {
	err = db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = ?`, id).Scan(&balance)
	return balance, err
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

	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}

	err = tell(ctx, &scene{out: out, locks: locks, db: db})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // in place of the error of the call that ended
	}
	return err
}

// tell plays the scene without the token and with it.
func tell(ctx context.Context, s *scene) error {
	fmt.Fprintln(s.out, "Without the token:")
	balance, late, err := s.play(ctx, "plain", setBalance)
	if err != nil {
		return err
	}
	if late != nil || balance != 70 {
		return fmt.Errorf("the balance is %d, and the late write: %s", balance, outcome(late))
	}
	fmt.Fprintln(s.out, "  The deposit is gone: 100 + 50 - 30 is 120, not 70.")

	fmt.Fprintln(s.out, "\nWith the token:")
	balance, late, err = s.play(ctx, "fenced", setBalanceFenced)
	if err != nil {
		return err
	}
	if !errors.Is(late, errStaleToken) || balance != 150 {
		return fmt.Errorf("the balance is %d, and the late write: %s", balance, outcome(late))
	}
	fmt.Fprintln(s.out, "  Nothing is lost. The withdrawal knows that it did not happen, and is tried again:")
	return s.again(ctx, "fenced")
}

type scene struct {
	out   io.Writer
	locks *relock.Client
	db    *sql.DB
}

// set is setBalance or setBalanceFenced.
type set func(ctx context.Context, db *sql.DB, id string, balance int, token int64) error

// play has a withdrawal lose its lock between its read and its write, and a deposit happen in
// between. The balance after that and the error of the late write are returned.
func (s *scene) play(ctx context.Context, id string, set set) (balance int, late, err error) {
	const lease = 200 * time.Millisecond
	// No watchdog: a process that stands still does not renew either.
	withdrawing := s.locks.NewLock("account:"+id, relock.WithFixedLease(lease))
	depositing := s.locks.NewLock("account:" + id)

	withdrawal, err := withdrawing.Lock(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer withdrawing.Unlock(withdrawal)
	// Token draws only while the lock is held, so draw before the first write.
	old, err := withdrawing.Token(withdrawal)
	if err != nil {
		return 0, nil, err
	}
	before, err := balanceOf(withdrawal, s.db, id)
	if err != nil {
		return 0, nil, err
	}
	fmt.Fprintf(s.out, "  withdrawal: has the lock, token %d; reads %d; now stands still for longer than its lease\n", old, before)

	err = depositing.Do(ctx, func(ctx context.Context) error { // waits until the lease has run out
		token, err := depositing.Token(ctx)
		if err != nil {
			return err
		}
		balance, err := balanceOf(ctx, s.db, id)
		if err != nil {
			return err
		}
		if err := set(ctx, s.db, id, balance+50, token); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "  deposit:    has the lock, token %d; reads %d, writes %d\n", token, balance, balance+50)
		return nil
	})
	if err != nil {
		return 0, nil, err
	}

	// The withdrawal goes on. Its context ended long ago, but this write was already on its way.
	late = set(context.WithoutCancel(withdrawal), s.db, id, before-30, old)
	fmt.Fprintf(s.out, "  withdrawal: writes %d with token %d: %s\n", before-30, old, outcome(late))
	if err := withdrawing.Unlock(withdrawal); !errors.Is(err, relock.ErrLockLost) {
		return 0, late, fmt.Errorf("the Unlock of the lost section: %s", outcome(err))
	}
	balance, err = balanceOf(ctx, s.db, id)
	fmt.Fprintf(s.out, "  the balance is %d\n", balance)
	return balance, late, err
}

// again repeats the withdrawal with a new hold, from the present balance.
func (s *scene) again(ctx context.Context, id string) error {
	lock := s.locks.NewLock("account:" + id)
	return lock.Do(ctx, func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		before, err := balanceOf(ctx, s.db, id)
		if err != nil {
			return err
		}
		if err := setBalanceFenced(ctx, s.db, id, before-30, token); err != nil {
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
