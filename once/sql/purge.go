package oncesql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// purgeBatch is the number of rows that one statement of [Store.Purge] removes. Old versions of
// SQLite allow 999 parameters.
const purgeBatch = 500

// Purge removes the keys that were inserted at least olderThan ago, by the clock of the database,
// and returns their number. A removed key is new again: the next [Do] with it runs its function.
// Purge removes 500 rows at a time, each time in a transaction of its own, so that it never holds
// many rows. One Purge at a time is enough for all processes.
//
// Errors: a negative olderThan; a wrong dialect or option; ctx's; errors of the driver. The number
// is right with an error too, but for the rows of a statement whose answer was lost.
func (s *Store) Purge(ctx context.Context, olderThan time.Duration) (removed int64, err error) {
	if s.err != nil {
		return 0, s.err
	}
	if olderThan < 0 {
		return 0, fmt.Errorf("oncesql: Purge: the age %s is negative", olderThan)
	}
	var now int64
	if err := s.db.QueryRowContext(ctx, s.sql.now).Scan(&now); err != nil {
		return 0, fmt.Errorf("oncesql: Purge: read the clock: %w", err)
	}
	until := now - olderThan.Milliseconds()
	if olderThan%time.Millisecond != 0 { // round the age up, so that no row is removed before its time
		until--
	}
	var stuck []byte // the first row of a batch of which no row was removed
	for {
		ids, err := s.old(ctx, until)
		switch {
		case err != nil:
			return removed, fmt.Errorf("oncesql: Purge: find old rows: %w", err)
		case len(ids) == 0:
			return removed, nil
		case bytes.Equal(ids[0].([]byte), stuck): // otherwise another Purge was faster
			return removed, fmt.Errorf("oncesql: Purge: remove rows: %w", errKept)
		}
		n, err := s.remove(ctx, until, ids)
		removed += n
		switch {
		case err != nil:
			return removed, fmt.Errorf("oncesql: Purge: remove rows: %w", err)
		case n == 0:
			stuck = ids[0].([]byte)
		case len(ids) < purgeBatch:
			return removed, nil
		}
	}
}

var errKept = errors.New("the rows stay without an error: a policy or a trigger keeps them")

// old returns the ids of a batch of rows that were created until a time. The read locks nothing: a
// DELETE with this condition would make the inserts of other calls wait in MySQL.
func (s *Store) old(ctx context.Context, until int64) (ids []any, err error) {
	rows, err := s.db.QueryContext(ctx, s.sql.old, until, purgeBatch)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// remove removes rows. The time is compared again, as another Purge and a Do may have put a new row
// in the place of an old one.
func (s *Store) remove(ctx context.Context, until int64, ids []any) (int64, error) {
	done, err := s.db.ExecContext(ctx, s.sql.remover(s.dialect, len(ids)), append([]any{until}, ids...)...)
	if err != nil {
		return 0, err
	}
	return done.RowsAffected()
}
