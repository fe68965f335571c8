package oncesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/schema"
)

// DefaultTable is the name of the table without [WithTable].
const DefaultTable = "relock_once"

// Kinds of failures, for [errors.Is].
var (
	// ErrMismatch reports a key that was used before with another input, see [Input]. The function
	// has not run.
	ErrMismatch = errors.New("oncesql: the key was used with another input")

	// ErrUnsure reports a transaction that may have committed or not: Commit failed. The error of
	// the driver is wrapped beside it. Another [Do] with the same key settles it: it returns the
	// stored result, or runs its function.
	ErrUnsure = errors.New("oncesql: the transaction may have committed")
)

// Store is a table with the keys and results of one database. Any number of goroutines may use a
// Store.
type Store struct {
	db        *sql.DB
	dialect   fence.Dialect
	table     string // as the caller wrote it
	txOptions *sql.TxOptions
	sql       statements
	err       error // of the arguments of New
}

// Option is an option of [New].
type Option func(*Store)

// WithTable sets the name of the table, [DefaultTable] otherwise. A name is 1 to 55 ASCII letters,
// digits and underscores, and does not begin with a digit. A schema and a dot may stand before it,
// also of 1 to 55 such characters. Statements quote the name, so in PostgreSQL its case matters.
func WithTable(name string) Option { return func(s *Store) { s.table = name } }

// WithTxOptions sets the options of the transactions. Without it, or with nil, they are those of
// the database. A transaction that is read-only is a wrong option.
func WithTxOptions(o *sql.TxOptions) Option { return func(s *Store) { s.txOptions = o } }

// New returns the store in db. New does not use the database: create the table with [Store.Create],
// or with [Store.Schema] in a migration. With a wrong dialect or a wrong option, each call that
// returns an error fails with the reason.
func New(db *sql.DB, d fence.Dialect, options ...Option) *Store {
	s := &Store{db: db, dialect: d, table: DefaultTable}
	for _, option := range options {
		option(s)
	}
	if db == nil {
		s.err = errors.New("oncesql: the database is nil")
		return s
	}
	if s.txOptions != nil && s.txOptions.ReadOnly {
		s.err = errors.New("oncesql: WithTxOptions: a read-only transaction cannot store a result")
		return s
	}
	s.sql, s.err = newStatements(d, s.table)
	return s
}

// Schema returns the statements that create the table and its index if they do not exist, for
// migrations. A semicolon ends each statement. Schema returns an empty string for a Store with a
// wrong dialect or option.
//
// The table has one row for each key:
//
//   - id is the SHA-256 of the key: every database can index it, whatever bytes the key has;
//   - name is the key;
//   - input is the SHA-256 of the JSON of [Input];
//   - attempt is a random number of the call that made the row;
//   - result is JSON in UTF-8, stored as bytes so that no database changes it;
//   - created is the time of the insert in milliseconds since 1970, by the clock of the database.
func (s *Store) Schema() string {
	schema := ""
	for _, statement := range s.sql.create {
		schema += statement + ";\n"
	}
	return schema
}

// Create creates the table and its index if they do not exist. Create does not change a table that
// exists. Many processes may call Create at once. Errors: those of the database; a wrong dialect or
// option.
func (s *Store) Create(ctx context.Context) error {
	if s.err != nil {
		return s.err
	}
	if err := schema.Create(ctx, s.db, s.sql.create...); err != nil {
		return fmt.Errorf("oncesql: create the table %s: %w", s.table, err)
	}
	return nil
}
