package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

// The table entry has no constraint that keeps a transfer from being booked twice: the audit would
// find it.
var schema = []string{
	`CREATE TABLE account (name TEXT PRIMARY KEY, cents BIGINT NOT NULL CHECK (cents >= 0))`,
	`CREATE TABLE entry (transfer TEXT NOT NULL, account TEXT NOT NULL, cents BIGINT NOT NULL)`,
}

// order is what a client asks for. The client chooses the id, and sends the same id if it sends the
// order again.
type order struct {
	ID       string
	From, To string
	Cents    int64
}

// receipt is what the client gets: the balances after the transfer.
type receipt struct {
	From, To int64
}

var errFunds = errors.New("the account has too little money")

// bank is the service that transfers money.
type bank struct {
	db     *sql.DB
	locks  *relock.Client
	fences *fence.Table
	once   *oncesql.Store
	review func(ctx context.Context, accounts []string) error // asks another service
}

// accounts returns the locks of both accounts of an order. A lock has the name of its account, and
// so has the row of the account in the fence's table.
func (b *bank) accounts(o order, options ...relock.Option) *relock.Locks {
	return b.locks.NewLocks([]string{o.From, o.To}, options...)
}

// transfer carries out an order. The second call for an id returns the receipt of the first one,
// with replayed true. The client may send the order again after any error: then transfer finds out
// whether the money has moved.
func (b *bank) transfer(ctx context.Context, o order) (r receipt, replayed bool, err error) {
	both := b.accounts(o)
	err = both.Do(ctx, func(section context.Context) error {
		v, err := b.prepare(section, both, o)
		if err != nil {
			return err
		}
		r, replayed, err = b.book(section, v)
		return err
	})
	return r, replayed, err
}

// voucher is an order with what a section has learned about its accounts.
type voucher struct {
	order
	accounts []string         // both names, in the order of the locks
	tokens   map[string]int64 // of the section, by account
	balances map[string]int64 // when the section read them
}

// prepare does what comes before the booking: it reads the balances, and has the transfer reviewed.
// An order that is sent again is reviewed again, as only the booking is done once.
func (b *bank) prepare(section context.Context, both *relock.Locks, o order) (v voucher, err error) {
	v = voucher{order: o, accounts: both.Names()}
	// Token draws only while the lock is held, so draw before the first use of the database.
	if v.tokens, err = both.Tokens(section); err != nil {
		return v, err
	}
	if v.balances, err = b.read(section, v); err != nil {
		return v, err
	}
	if v.balances[o.From] < o.Cents {
		return v, fmt.Errorf("%s: %w", o.From, errFunds)
	}
	return v, b.review(section, v.accounts)
}

// read reads the balances in a transaction that passes the fences. When it has committed, no
// earlier holder can change the balances any more. Without that, a late holder could write between
// this read and the booking.
func (b *bank) read(ctx context.Context, v voucher) (map[string]int64, error) {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // it has no effect after Commit
	if err := b.enter(ctx, tx, v); err != nil {
		return nil, err
	}
	balances := make(map[string]int64, len(v.accounts))
	for _, name := range v.accounts {
		var cents int64
		if err := tx.QueryRowContext(ctx, `SELECT cents FROM account WHERE name = $1`, name).Scan(&cents); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		balances[name] = cents
	}
	return balances, tx.Commit()
}

// enter passes the fence of each account. Every transaction takes the rows of the fences in the
// order of the locks, so two transactions cannot wait for each other.
func (b *bank) enter(ctx context.Context, tx *sql.Tx, v voucher) error {
	for _, name := range v.accounts {
		if err := b.fences.Enter(ctx, tx, name, v.tokens[name]); err != nil {
			return err
		}
	}
	return nil
}

// book moves the money, once for the id of the order.
//
// Enter should be the first statement of a transaction, and here Do has inserted the row of the id
// before. That does no harm. Do has read nothing but that row, so what the transaction reads of the
// accounts it reads behind their fences. And no transaction waits for the row of an id while it has
// a fence, so the waits make no circle.
func (b *bank) book(ctx context.Context, v voucher) (r receipt, replayed bool, err error) {
	return oncesql.Do(ctx, b.once, v.ID, func(ctx context.Context, tx *sql.Tx) (receipt, error) {
		if err := b.enter(ctx, tx, v); err != nil {
			return receipt{}, err
		}
		r := receipt{From: v.balances[v.From] - v.Cents, To: v.balances[v.To] + v.Cents}
		if err := move(ctx, tx, v.ID, v.From, -v.Cents, r.From); err != nil {
			return receipt{}, err
		}
		return r, move(ctx, tx, v.ID, v.To, v.Cents, r.To)
	}, oncesql.Input(v.order))
}

// move writes the new balance of an account, and an entry for the audit.
func move(ctx context.Context, tx *sql.Tx, id, account string, cents, balance int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE account SET cents = $1 WHERE name = $2`, balance, account)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx,
		`INSERT INTO entry (transfer, account, cents) VALUES ($1, $2, $3)`, id, account, cents)
	return err
}
