package schema_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/schema"
)

// state is an error of PostgreSQL.
type state string

func (s state) Error() string    { return "state " + string(s) }
func (s state) SQLState() string { return string(s) }

var errLocked = errors.New("database is locked")

// answers is a driver whose statements return one error after another.
type answers struct {
	errs []error
	sent []string
}

func (a *answers) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (*answers) Driver() driver.Driver                          { return nil }
func (*answers) Prepare(string) (driver.Stmt, error)            { return nil, errors.ErrUnsupported }
func (*answers) Close() error                                   { return nil }
func (*answers) Begin() (driver.Tx, error)                      { return nil, errors.ErrUnsupported }

func (a *answers) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	err := a.errs[min(len(a.sent), len(a.errs)-1)]
	a.sent = append(a.sent, query)
	return driver.RowsAffected(0), err
}

func TestAStatementThatMeetsAnotherProcessRunsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		errs []error
		sent []string
		err  error
	}{
		"nobody else":           {[]error{nil}, []string{"a", "b"}, nil},
		"a unique index":        {[]error{state("23505"), nil}, []string{"a", "a", "b"}, nil},
		"twice, and the second": {[]error{state("42P07"), state("XX000"), nil, state("42710"), nil}, []string{"a", "a", "a", "b", "b"}, nil},
		"no right":              {[]error{nil, state("42501")}, []string{"a", "b"}, state("42501")},
		"another database":      {[]error{errLocked}, []string{"a"}, errLocked},
	} {
		t.Run(name, func(t *testing.T) {
			a := &answers{errs: c.errs}
			db := sql.OpenDB(a)
			defer func() { require.NoError(t, db.Close()) }()
			require.Equal(t, c.err, schema.Create(t.Context(), db, "a", "b"))
			require.Equal(t, c.sent, a.sent)
		})
	}
}

func TestAnErrorThatStaysIsReturned(t *testing.T) {
	a := &answers{errs: []error{state("XX000")}}
	db := sql.OpenDB(a)
	defer func() { require.NoError(t, db.Close()) }()
	require.Equal(t, state("XX000"), schema.Create(t.Context(), db, "a", "b"))
	require.Len(t, a.sent, 10)
}
