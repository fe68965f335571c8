package stage_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/examples/sql/stage"
	"github.com/go-relock/relock/internal/test/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func TestErrorsOfURLsDoNotRepeatThem(t *testing.T) {
	for variable, urls := range map[string]stage.URLs{
		"REDIS_URL":    {Redis: "redis://user:secret@localhost:port"},
		"DATABASE_URL": {Database: "postgres://user:secret@localhost:port/test"},
	} {
		err := stage.Run(t.Context(), io.Discard, "test", urls, nil)
		require.ErrorContains(t, err, variable)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestAnInterruptIsReportedAsSuch(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	err := stage.Run(ctx, io.Discard, "test", stage.URLs{}, func(ctx context.Context, _ io.Writer, s *stage.Stage) error {
		in, err := s.NewInstance(ctx)
		require.NoError(t, err)
		interrupt(cause)
		return in.DB.PingContext(ctx)
	})
	require.Equal(t, cause, err)
}

// A user's database is left as it was.
func TestRunRemovesItsTables(t *testing.T) {
	url := dbtest.Postgres(t)
	create := func(ctx context.Context, _ io.Writer, s *stage.Stage) error {
		in, err := s.NewInstance(ctx)
		require.NoError(t, err)
		_, err = in.DB.ExecContext(ctx, `CREATE TABLE account (name TEXT)`)
		require.NoError(t, err)
		return nil
	}
	require.NoError(t, stage.Run(t.Context(), io.Discard, "test", stage.URLs{Database: url}, create))

	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	var left int
	require.NoError(t, db.QueryRowContext(t.Context(),
		`SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'relock%'`).Scan(&left))
	require.Zero(t, left)
}
