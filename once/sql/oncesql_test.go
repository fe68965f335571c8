package oncesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/once/sql"
)

func TestAWrongStoreRefusesEachCall(t *testing.T) {
	db := unreachable(t)
	for _, c := range []struct {
		name  string
		store *oncesql.Store
		err   string
	}{
		{"no database", oncesql.New(nil, fence.Postgres), "oncesql: the database is nil"},
		{"no dialect", oncesql.New(db, 0), "oncesql: there is no dialect 0: it must be fence.Postgres, " +
			"fence.MySQL or fence.SQLite"},
		{"unknown dialect", oncesql.New(db, 4), "oncesql: there is no dialect 4: it must be fence.Postgres, " +
			"fence.MySQL or fence.SQLite"},
		{"read-only", oncesql.New(db, fence.Postgres, oncesql.WithTxOptions(&sql.TxOptions{ReadOnly: true})),
			"oncesql: WithTxOptions: a read-only transaction cannot store a result"},
		{"name", oncesql.New(db, fence.Postgres, oncesql.WithTable("a b")), `oncesql: "a b" is no name of a table: ` +
			"it must be 1 to 55 letters, digits and underscores, not beginning with a digit, with or without a " +
			"schema and a dot before them"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.EqualError(t, c.store.Create(t.Context()), c.err)
			_, err := c.store.Purge(t.Context(), time.Hour)
			require.EqualError(t, err, c.err)
			_, replayed, err := oncesql.Do(t.Context(), c.store, "key", notCalled(t))
			require.EqualError(t, err, c.err)
			require.False(t, replayed)
			require.Empty(t, c.store.Schema())
		})
	}
}

func TestNamesOfTables(t *testing.T) {
	db := unreachable(t)
	long := strings.Repeat("x", 55)
	for _, d := range []fence.Dialect{fence.Postgres, fence.MySQL, fence.SQLite} {
		for _, name := range []string{"a", "_", "A1", "order", "billing.once", long, long + "." + long} {
			require.NotEmpty(t, oncesql.New(db, d, oncesql.WithTable(name)).Schema(), name)
		}
		for _, name := range []string{
			"", " ", "1a", "a-b", "a.b.c", ".a", "a.", "a..b", `a"b`, "a`b", "a;b", "é", "a\n", "\na", long + "x",
			long + "x.a", "a b", "a?", "a\x00",
		} {
			require.Empty(t, oncesql.New(db, d, oncesql.WithTable(name)).Schema(), "%q", name)
		}
	}
}

func TestSchema(t *testing.T) {
	db := unreachable(t)
	for _, c := range []struct {
		name    string
		dialect fence.Dialect
		options []oncesql.Option
		schema  string
	}{
		{"PostgreSQL", fence.Postgres, nil, `CREATE TABLE IF NOT EXISTS "relock_once" (
	id bytea NOT NULL PRIMARY KEY,
	name bytea NOT NULL,
	input bytea NOT NULL,
	attempt bytea NOT NULL,
	result bytea,
	created bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS "relock_once_created" ON "relock_once" (created);
`},
		{"PostgreSQL with a schema", fence.Postgres, []oncesql.Option{oncesql.WithTable("a.b")},
			`CREATE TABLE IF NOT EXISTS "a"."b" (
	id bytea NOT NULL PRIMARY KEY,
	name bytea NOT NULL,
	input bytea NOT NULL,
	attempt bytea NOT NULL,
	result bytea,
	created bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS "b_created" ON "a"."b" (created);
`},
		{"MySQL", fence.MySQL, nil, "CREATE TABLE IF NOT EXISTS `relock_once` (" + `
	id BINARY(32) NOT NULL PRIMARY KEY,
	name VARBINARY(1024) NOT NULL,
	input BINARY(32) NOT NULL,
	attempt BINARY(16) NOT NULL,
	result LONGBLOB,
	created BIGINT NOT NULL,
` + "	INDEX `relock_once_created` (created)\n) ENGINE=InnoDB;\n"},
		{"SQLite with a schema", fence.SQLite, []oncesql.Option{oncesql.WithTable("a.b")},
			`CREATE TABLE IF NOT EXISTS "a"."b" (
	id BLOB NOT NULL PRIMARY KEY,
	name BLOB NOT NULL,
	input BLOB NOT NULL,
	attempt BLOB NOT NULL,
	result BLOB,
	created INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS "a"."b_created" ON "b" (created);
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.schema, oncesql.New(db, c.dialect, c.options...).Schema())
		})
	}
}

func TestWrongArgumentsDoNotReachTheDatabase(t *testing.T) {
	store := oncesql.New(unreachable(t), fence.Postgres)
	for key, text := range map[string]string{
		"":                         "oncesql: a key must have 1 to 1024 bytes, and this one has 0",
		strings.Repeat("x", 1025):  "oncesql: a key must have 1 to 1024 bytes, and this one has 1025",
		strings.Repeat("é", 512+1): "oncesql: a key must have 1 to 1024 bytes, and this one has 1026",
	} {
		_, _, err := oncesql.Do(t.Context(), store, key, notCalled(t))
		require.EqualError(t, err, text)
	}
	_, _, err := oncesql.Do(t.Context(), store, "key", notCalled(t), oncesql.Input(func() {}))
	require.EqualError(t, err, `oncesql: key "key": encode the input: json: unsupported type: func()`)
	_, err = store.Purge(t.Context(), -time.Second)
	require.EqualError(t, err, "oncesql: Purge: the age -1s is negative")
}

func TestErrorsOfTheDriverAreWrapped(t *testing.T) {
	store := oncesql.New(unreachable(t), fence.MySQL)
	_, _, err := oncesql.Do(t.Context(), store, strings.Repeat("k", 1024), notCalled(t))
	require.ErrorIs(t, err, errUnreachable)
	require.EqualError(t, err, `oncesql: key "`+strings.Repeat("k", 64)+`": begin: unreachable`)
	require.NotErrorIs(t, err, oncesql.ErrUnsure)
	require.EqualError(t, store.Create(t.Context()), "oncesql: create the table relock_once: unreachable")
	_, err = store.Purge(t.Context(), 0)
	require.EqualError(t, err, "oncesql: Purge: read the clock: unreachable")
}

var errUnreachable = errors.New("unreachable")

// unreachable returns a database without a server.
func unreachable(t *testing.T) *sql.DB {
	t.Helper()
	db := sql.OpenDB(connector{})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type connector struct{}

func (connector) Connect(context.Context) (driver.Conn, error) { return nil, errUnreachable }
func (connector) Driver() driver.Driver                        { return nil }

// notCalled returns a function that fails the test.
func notCalled(t *testing.T) func(context.Context, *sql.Tx) (int, error) {
	t.Helper()
	return func(context.Context, *sql.Tx) (int, error) {
		t.Error("the function was called")
		return 0, nil
	}
}
