package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-relock/relock/internal/schema"
)

// Dialect is the SQL of a database.
type Dialect int

// The dialects.
const (
	Postgres Dialect = iota + 1 // 9.5 or newer
	MySQL                       // MySQL and MariaDB, with InnoDB
	SQLite                      // 3.24 or newer
)

// DefaultTable is the name of the table that [SQL] uses.
const DefaultTable = "relock_fence"

// Table is a table with the largest token of each resource. A Table does not change, and any number
// of goroutines and databases may use it.
//
// The table has one row for each resource that was ever entered. To delete a row is to forget its
// token: do that only when no holder with an old token can be left.
type Table struct {
	dialect Dialect
	quoted  string // the name as it stands in statements
	err     error  // of the dialect or the name
}

// SQL returns the fence in the table [DefaultTable]. With a dialect that does not exist, each call
// of the Table's methods that returns an error fails.
func SQL(d Dialect) *Table { return (&Table{dialect: d}).Named(DefaultTable) }

// identifiers are a table's name, or a schema's and a table's. 63 bytes are what PostgreSQL keeps
// of a name.
var identifiers = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Named returns the same fence in a table of another name. A name is one to 63 ASCII letters,
// digits and underscores, and does not begin with a digit. A schema and a dot may stand before it,
// also of one to 63 such characters. Statements quote the name, so in PostgreSQL its case matters.
// With any other name, each call of the new Table's methods that returns an error fails.
func (t *Table) Named(name string) *Table {
	named := &Table{dialect: t.dialect}
	quote := `"`
	switch t.dialect {
	case Postgres, SQLite:
	case MySQL:
		quote = "`"
	default:
		named.err = fmt.Errorf("fence: there is no dialect %d: it must be Postgres, MySQL or SQLite", t.dialect)
		return named
	}
	if !identifiers.MatchString(name) {
		named.err = fmt.Errorf("fence: %q is no name of a table: it must be 1 to 63 letters, digits and "+
			"underscores, not beginning with a digit, with or without a schema and a dot before them", name)
		return named
	}
	named.quoted = quote + strings.ReplaceAll(name, ".", quote+"."+quote) + quote
	return named
}

// Schema returns the statement that creates the table if it does not exist, for migrations. Schema
// returns an empty string for a Table with a wrong dialect or name.
func (t *Table) Schema() string {
	// The name of a resource is compared byte by byte, so its column is one of bytes.
	columns := map[Dialect]string{
		Postgres: "(\n\tresource bytea NOT NULL PRIMARY KEY,\n\ttoken bigint NOT NULL\n)",
		MySQL:    "(\n\tresource VARBINARY(255) NOT NULL PRIMARY KEY,\n\ttoken BIGINT NOT NULL\n) ENGINE=InnoDB",
		SQLite:   "(\n\tresource BLOB NOT NULL PRIMARY KEY,\n\ttoken INTEGER NOT NULL\n) WITHOUT ROWID",
	}
	if t.err != nil {
		return ""
	}
	return "CREATE TABLE IF NOT EXISTS " + t.quoted + " " + columns[t.dialect]
}

// Create creates the table if it does not exist. Many processes may call Create at once. Errors:
// those of the database; a wrong dialect or name.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	if t.err != nil {
		return t.err
	}
	if err := schema.Create(ctx, db, t.Schema()); err != nil {
		return fmt.Errorf("fence: create the table %s: %w", t.quoted, err)
	}
	return nil
}

// Enter enters the resource with the token, and must be the first statement of the transaction, but
// for the entries of other resources and the key row of package oncesql. Read what the writes
// depend on behind Enter, in the same transaction: a holder with an older token may have written
// since an earlier read.
//
// The promise: no transaction that has entered with an older token commits after a transaction with
// a newer token has entered the same resource. The resource's row is locked until the end of the
// transaction, so transactions with the same resource take turns, and Enter waits for its turn. The
// same token may enter again, in the same and in other transactions. A transaction that is rolled
// back leaves no trace: its entry has not happened, and an older token may enter after it. If a
// transaction enters in a savepoint, a rollback to the savepoint takes the entry back.
//
// The promise holds at every isolation level. In SQLite the lock is that of the whole database.
//
// The name of a resource has 1 to 255 bytes, and any byte may be in it. Names are compared byte by
// byte.
//
// Errors: [ErrStale] if a larger token has entered; [ErrToken]; a wrong name or dialect; and, in
// the error's chain, the driver's error. Roll the transaction back after every one of them. Some
// errors of a driver say that the transaction should be tried again from its beginning:
// serialization failures and deadlocks (PostgreSQL 40001 and 40P01; MySQL and MariaDB 1213, 1205
// and 1020) and a busy database (SQLITE_BUSY). The levels RepeatableRead and Serializable of
// PostgreSQL have one whenever two transactions meet at a resource, so ReadCommitted, its default,
// suits a fence best. A missing table is an error of the driver too: create it with [Table.Create],
// or [Table.Schema] in a migration.
func (t *Table) Enter(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	if t.err != nil {
		return t.err
	}
	if err := check(resource, token); err != nil {
		return err
	}
	enter := t.upsert
	if t.dialect == MySQL {
		enter = t.raise
	}
	err := enter(ctx, tx, []byte(resource), token)
	switch {
	case errors.Is(err, ErrStale):
		return stale(resource, token)
	case err != nil:
		return fmt.Errorf("fence: enter resource %q with token %d: %w", resource, token, err)
	}
	return nil
}

// upsert is Enter for PostgreSQL and SQLite: one statement that locks the row, compares and writes.
// PostgreSQL locks the row also if the token is too small.
func (t *Table) upsert(ctx context.Context, tx *sql.Tx, resource []byte, token int64) error {
	values := "(?, ?)"
	if t.dialect == Postgres {
		values = "($1, $2)"
	}
	result, err := tx.ExecContext(ctx, "INSERT INTO "+t.quoted+" AS fence (resource, token) VALUES "+values+
		" ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token",
		resource, token)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return ErrStale
}

// raise is Enter for MySQL and MariaDB. Its first statement locks the row and never lowers the
// token. The number of rows that it affects depends on an option of the connection, so a second
// statement reads the token. It reads FOR UPDATE, as that returns the newest row at every isolation
// level, and leaves it to the caller's first read to take the snapshot of the transaction.
func (t *Table) raise(ctx context.Context, tx *sql.Tx, resource []byte, token int64) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO "+t.quoted+
		" (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)",
		resource, token, token)
	if err != nil {
		return err
	}
	var newest int64
	err = tx.QueryRowContext(ctx, "SELECT token FROM "+t.quoted+" WHERE resource = ? FOR UPDATE", resource).
		Scan(&newest)
	if err != nil {
		return err
	}
	switch {
	case newest > token:
		return ErrStale
	case newest < token: // a trigger, or a column that is too small
		return fmt.Errorf("the table keeps token %d instead", newest)
	}
	return nil
}
