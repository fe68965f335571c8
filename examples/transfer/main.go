// Transfer moves money between accounts. Each transfer takes the locks of both accounts, reads the
// balances, asks another service for a review, and books the new balances in a transaction.
//
// Two instances serve many requests at once, between few accounts and in both directions. Three
// things go wrong in a service like this, and each has an answer:
//
//   - Two transfers want the same accounts in opposite directions. [relock.Client.NewLocks] takes
//     both locks or none, in one order for all callers, so no two calls wait for each other.
//   - A client sends a request again, because the answer was lost. The booking runs through
//     [oncesql.Do] with the id of the transfer, so it happens once.
//   - A holder stands still, loses its locks without noticing, and books what it read before. The
//     transaction passes the fence of each account with the holder's token first, and
//     [fence.Table.Enter] refuses the token if a later holder has been there.
//
// The lock is not needed for a transfer that is one transaction in one database: SELECT ... FOR
// UPDATE of both rows, in a fixed order, does the same without another server. The lock pays where
// the work spans more than the transaction. Here that is the review: without the lock, a
// transaction with locked rows would stay open while another service thinks.
//
//	go run .
//
// (in examples/transfer, a module of its own because of the driver of SQLite) needs no server. With
// REDIS_URL=redis://... the locks are on that server. The exit code is 1 if anything is not as told.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

func main() { stage.Main("transfer", run) }

const (
	opening  = 100_00 // cents of each account at the beginning
	orders   = 48
	sendings = 60 // the first orders are sent twice
)

var names = []string{"ann", "ben", "cleo", "dan"}

func run(ctx context.Context, out io.Writer, redisURL string) error {
	s, err := openServers(redisURL)
	defer s.close()
	if err == nil {
		err = tell(ctx, out, s)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // in place of the error of the call that ended
	}
	return err
}

// tell plays the example: one instance falls asleep in the middle of a transfer, two instances
// serve the other requests, and then the first transfer goes on.
func tell(ctx context.Context, out io.Writer, s *servers) error {
	banks, err := openBanks(ctx, s, 3)
	if err != nil {
		return err
	}
	if err := createTables(ctx, banks[0]); err != nil {
		return err
	}
	late, err := fallAsleep(ctx, out, banks[0])
	if err != nil {
		return err
	}
	if err := rush(ctx, out, banks[1:]); err != nil {
		return err
	}
	if err := late.wakeUp(ctx, out); err != nil {
		return err
	}
	return audit(ctx, out, banks[0].db, orders+1)
}

// openBanks connects n instances of the bank.
func openBanks(ctx context.Context, s *servers, n int) ([]*bank, error) {
	d, banks := new(desk), make([]*bank, n)
	for i := range banks {
		db, locks, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		banks[i] = &bank{
			db: db, locks: locks, fences: fence.SQL(fence.SQLite),
			once: oncesql.New(db, fence.SQLite), review: d.review,
		}
	}
	return banks, nil
}

func createTables(ctx context.Context, b *bank) error {
	if err := b.fences.Create(ctx, b.db); err != nil {
		return err
	}
	if err := b.once.Create(ctx); err != nil {
		return err
	}
	for _, statement := range schema {
		if _, err := b.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	for _, name := range names {
		_, err := b.db.ExecContext(ctx, `INSERT INTO account (name, cents) VALUES ($1, $2)`, name, opening)
		if err != nil {
			return err
		}
	}
	return nil
}

// rush sends all orders at once to the instances in turn, and some orders twice.
func rush(ctx context.Context, out io.Writer, banks []*bank) error {
	var (
		group    sync.WaitGroup
		mu       sync.Mutex
		failures error
		replays  int
	)
	begun := time.Now()
	for i := range sendings {
		group.Go(func() {
			// The two sendings of an order reach different instances.
			b := banks[(i+i/orders)%len(banks)]
			_, replayed, err := b.transfer(ctx, newOrder(i%orders))
			mu.Lock()
			defer mu.Unlock()
			failures = errors.Join(failures, err)
			if replayed {
				replays++
			}
		})
	}
	group.Wait()
	if failures != nil {
		return failures
	}
	fmt.Fprintf(out, "rush:  %d requests for %d transfers on %d instances: %d booked, %d got the receipt of the first, "+
		"after %v\n", sendings, orders, len(banks), sendings-replays, replays, time.Since(begun).Round(time.Millisecond))
	if replays != sendings-orders {
		return fmt.Errorf("%d requests were replayed, and %d were sent again", replays, sendings-orders)
	}
	return nil
}

// newOrder returns the order with a number. Together the orders go from each account to each other.
func newOrder(i int) order {
	n := len(names)
	from := i % n
	to := (from + 1 + i/n%(n-1)) % n
	return order{ID: fmt.Sprintf("transfer-%d", i), From: names[from], To: names[to], Cents: int64(10 + i)}
}

// sleeper is a transfer that stands still between its review and its booking.
type sleeper struct {
	bank    *bank
	both    *relock.Locks
	section context.Context
	voucher voucher
}

// fallAsleep begins a transfer with a lease that nobody renews, as a process that stands still does
// not renew its lease either.
func fallAsleep(ctx context.Context, out io.Writer, b *bank) (*sleeper, error) {
	const lease = 500 * time.Millisecond
	o := order{ID: "transfer-late", From: names[0], To: names[1], Cents: 30_00}
	s := &sleeper{bank: b, both: b.accounts(o, relock.WithFixedLease(lease))}
	var err error
	if s.section, err = s.both.Lock(ctx); err != nil {
		return nil, err
	}
	if s.voucher, err = b.prepare(s.section, s.both, o); err != nil {
		return nil, errors.Join(err, s.both.Unlock(s.section))
	}
	fmt.Fprintf(out, "late:  has the locks of %s and %s, reads %s and %s; stands still for longer than its lease\n",
		o.From, o.To, money(s.voucher.balances[o.From]), money(s.voucher.balances[o.To]))
	return s, nil
}

// wakeUp books what the section read long ago, which the fence must refuse, and then sends the
// order again, which must succeed.
func (s *sleeper) wakeUp(ctx context.Context, out io.Writer) error {
	// The context of the section ended long ago, but this booking was already on its way.
	_, _, err := s.bank.book(context.WithoutCancel(s.section), s.voucher)
	fmt.Fprintln(out, "late:  books:", outcome(err))
	if !errors.Is(err, fence.ErrStale) {
		return fmt.Errorf("the late booking: %s", outcome(err))
	}
	if err := s.both.Unlock(s.section); !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("the Unlock of the lost section: %s", outcome(err))
	}
	r, replayed, err := s.bank.transfer(ctx, s.voucher.order)
	if err != nil {
		return err
	}
	if replayed {
		return errors.New("the refused booking has left a receipt")
	}
	fmt.Fprintf(out, "late:  tries again with new locks: booked, %s has %s and %s has %s\n",
		s.voucher.From, money(r.From), s.voucher.To, money(r.To))
	return nil
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}

// audit checks that no money was made or lost, that each transfer was booked once, and that each
// balance is what the entries say.
func audit(ctx context.Context, out io.Writer, db *sql.DB, transfers int) error {
	var sum int64
	var entries, booked, wrong int
	for _, q := range []struct {
		query  string
		result any
	}{
		{`SELECT CAST(SUM(cents) AS BIGINT) FROM account`, &sum},
		{`SELECT COUNT(*) FROM entry`, &entries},
		{`SELECT COUNT(DISTINCT transfer) FROM entry`, &booked},
		{`SELECT COUNT(*) FROM account WHERE cents <> CAST($1 AS BIGINT) +
			(SELECT COALESCE(SUM(entry.cents), 0) FROM entry WHERE entry.account = account.name)`, &wrong},
	} {
		var args []any
		if q.result == &wrong {
			args = append(args, opening)
		}
		if err := db.QueryRowContext(ctx, q.query, args...).Scan(q.result); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "audit: %d transfers, %d entries, %d wrong balances; all accounts together have %s\n",
		booked, entries, wrong, money(sum))
	if want := int64(len(names) * opening); sum != want || booked != transfers || entries != 2*transfers || wrong != 0 {
		return fmt.Errorf("the audit must find %d transfers with 2 entries each, no wrong balance, and %s",
			transfers, money(want))
	}
	return nil
}
