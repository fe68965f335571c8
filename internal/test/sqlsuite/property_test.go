package sqlsuite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

func TestTokensNeverGoDown(t *testing.T) {
	each(t, func(r *rig) {
		for _, level := range r.levels {
			r.Run(level.String(), func(t *testing.T) {
				p := property{name: level.String(), rig: r, enter: r.fences.Enter, level: level}
				require.NoError(t, p.check(t.Context()))
			})
		}
	})
}

// The check has to find each of these faults. The faults are tried in every database, as the check
// reads its log.
func TestTheCheckFindsABadFence(t *testing.T) {
	faults := map[string]func(d database) enterFunc{
		"no fence": func(database) enterFunc {
			return func(context.Context, *sql.Tx, string, int64) error { return nil }
		},
		"a lock without a comparison": func(d database) enterFunc {
			return func(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
				_, err := tx.ExecContext(ctx, d.locks, []byte(resource), token)
				return err
			}
		},
		"a comparison without a lock": func(database) enterFunc { return compareOnly() },
	}
	each(t, func(r *rig) {
		for name, fault := range faults {
			r.Run(name, func(t *testing.T) {
				p := property{name: name, rig: r, enter: fault(r.database), level: sql.LevelDefault}
				var found violation
				require.ErrorAs(t, p.check(t.Context()), &found)
			})
		}
	})
}

// compareOnly returns a fence that forgets a transaction as soon as it has entered.
func compareOnly() enterFunc {
	var mu sync.Mutex
	newest := map[string]int64{}
	return func(_ context.Context, _ *sql.Tx, resource string, token int64) error {
		mu.Lock()
		defer mu.Unlock()
		if token < newest[resource] {
			return fence.ErrStale
		}
		newest[resource] = token
		return nil
	}
}

type enterFunc func(ctx context.Context, tx *sql.Tx, resource string, token int64) error

// violation is a broken promise of the fence.
type violation string

func (v violation) Error() string { return string(v) }

// Writers and their transactions in one check.
const (
	writers      = 8
	transactions = 25
)

// property is the promise of [fence.Table.Enter], checked with transactions that run side by side.
type property struct {
	name  string // begins the names of its resources
	rig   *rig
	enter enterFunc
	level sql.IsolationLevel

	clock  atomic.Int64    // of tokens
	inside [2]atomic.Int64 // transactions in each resource

	committed, stale atomic.Int64
}

// check returns a violation if two transactions were inside a resource at once, or if the tokens in
// the log go down. Together they are the promise.
func (p *property) check(ctx context.Context) error {
	errs := make([]error, writers)
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() { errs[i] = p.writer(ctx) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := p.read(ctx); err != nil {
		return err
	}
	if p.committed.Load() == 0 || p.stale.Load() == 0 {
		return fmt.Errorf("nothing was tested: %d committed, %d stale", p.committed.Load(), p.stale.Load())
	}
	return nil
}

// writer runs transactions with tokens that are at times older than others'.
func (p *property) writer(ctx context.Context) error {
	for range transactions {
		token := p.clock.Add(1) - rand.Int64N(6)
		switch err := p.transaction(ctx, rand.IntN(len(p.inside)), max(token, 1)); {
		case err == nil:
			p.committed.Add(1)
		case errors.Is(err, fence.ErrStale):
			p.stale.Add(1)
		case p.rig.again(err): // the next transaction has another token
		default:
			return err
		}
	}
	return nil
}

// transaction enters, appends to the log, and looks for another transaction inside.
func (p *property) transaction(ctx context.Context, i int, token int64) error {
	tx, err := p.rig.db.BeginTx(ctx, &sql.TxOptions{Isolation: p.level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after Commit
	resource := fmt.Sprint(p.name, " ", i)
	if err := p.enter(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := p.append(ctx, tx, i, resource, token); err != nil {
		return err
	}
	return tx.Commit()
}

// append is what a transaction does inside.
func (p *property) append(ctx context.Context, tx *sql.Tx, i int, resource string, token int64) error {
	n := p.inside[i].Add(1)
	defer p.inside[i].Add(-1) // before the end of the transaction, which lets the next one in
	if n > 1 {
		return violation(fmt.Sprintf("%d transactions are inside of %s", n, resource))
	}
	_, err := tx.ExecContext(ctx, p.rig.add, resource, token)
	return err
}

// read checks the log. Its numbers are drawn behind the fence, so they are in the order of commits.
func (p *property) read(ctx context.Context) error {
	rows, err := p.rig.db.QueryContext(ctx, "SELECT resource, token FROM log ORDER BY id")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	last := map[string]int64{}
	for rows.Next() {
		var resource string
		var token int64
		if err := rows.Scan(&resource, &token); err != nil {
			return err
		}
		if token < last[resource] {
			return violation(fmt.Sprintf("token %d was written after %d in %s", token, last[resource], resource))
		}
		last[resource] = token
	}
	return rows.Err()
}
