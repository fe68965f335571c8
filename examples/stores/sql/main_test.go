package main

import (
	"bytes"
	"database/sql"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func TestTheStoryIsToldWithoutAServer(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""), "%s", &out)
	require.Contains(t, out.String(), "invoices 1 to 12, each once")
}

func TestTheStoryIsToldInPostgreSQL(t *testing.T) {
	url := dbtest.Postgres(t)
	for range 2 { // the tables are there at the second run
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, url), "%s", &out)
		require.Contains(t, out.String(), "invoices 1 to 12, each once")
	}
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	var locks, holds int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM relock_locks), (SELECT count(*) FROM relock_holds)").Scan(&locks, &holds))
	require.Equal(t, []int{2, 0}, []int{locks, holds}, "the locks were there, and are free")
}

func TestAURLThatCannotBeReadIsNotRepeatedAsItMayHaveAPassword(t *testing.T) {
	err := run(t.Context(), io.Discard, "postgres://user:secret@localhost:port/test")
	require.ErrorContains(t, err, "DATABASE_URL")
	require.NotContains(t, err.Error(), "secret")
}
