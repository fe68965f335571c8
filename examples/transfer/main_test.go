package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// requireStory runs the program: transfers happen once, and a late one is refused.
func requireStory(t *testing.T, redisURL, databaseURL string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, redisURL, databaseURL), "%s", &out)
	require.Regexp(t, `^late:  has the locks of ann and ben, reads 100\.00 and 100\.00; .*
rush:  60 requests for 48 transfers on 2 instances: 48 booked, 12 got the receipt of the first, after .*
late:  books: fence: a newer token has touched the resource: .*
late:  tries again with new locks: booked, ann has .*
audit: 49 transfers, 98 entries, 0 wrong balances; all accounts together have 400\.00
$`, out.String())
}

func TestTheStoryIsToldWithoutAServer(t *testing.T) { requireStory(t, "", "") }

// A user's database is left as it was.
func TestTheStoryIsToldOnServersWhereNoTableIsLeft(t *testing.T) {
	url := dbtest.Postgres(t)
	requireStory(t, redistest.Shared(t).URL(), url)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	var left int
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'relock%'`).Scan(&left))
	require.Zero(t, left)
}

func TestErrorsOfURLsDoNotRepeatThemAsTheyMayHaveAPassword(t *testing.T) {
	for variable, urls := range map[string][2]string{
		"REDIS_URL":    {"redis://user:secret@localhost:port", ""},
		"DATABASE_URL": {"", "postgres://user:secret@localhost:port/test"},
	} {
		err := run(t.Context(), io.Discard, urls[0], urls[1])
		require.ErrorContains(t, err, variable)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestAnInterruptIsReportedAsSuch(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		interrupt(cause)
		return len(line), nil
	}), "", "")
	require.Equal(t, cause, err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
