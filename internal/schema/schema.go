// Package schema creates tables that many processes create at once.
package schema

import (
	"context"
	"database/sql"
	"errors"
	"slices"
)

// tries bounds the attempts at a statement. After an attempt that has met another process, the
// table is there, so the second attempt finds it.
const tries = 10

// Create runs statements that create tables and indexes if they do not exist. In PostgreSQL,
// CREATE … IF NOT EXISTS fails if another transaction creates the same table meanwhile: such a
// statement is run again. Errors: the error of the first statement that fails.
func Create(ctx context.Context, db *sql.DB, statements ...string) error {
	for _, statement := range statements {
		var err error
		for range tries {
			if _, err = db.ExecContext(ctx, statement); !hasMet(err) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hasMet says whether a statement has met the statement of another transaction: a unique index of
// the catalog has the row (23505), the object is there (42P07, 42710), or the row of the catalog
// has changed (XX000, tuple concurrently updated). XX000 has other causes too, which stay.
func hasMet(err error) bool {
	var postgres interface{ SQLState() string }
	return errors.As(err, &postgres) && slices.Contains([]string{"23505", "42P07", "42710", "XX000"}, postgres.SQLState())
}
