package relocksql_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/dbtest"
	relocksql "github.com/go-relock/relock/sql"
	"github.com/go-relock/relock/sql/pglisten"
)

func lockInPostgres(ctx context.Context, url, directURL string, work func(context.Context) error) error {
	// page: open
	db, err := sql.Open("pgx", url) // may run through a pooler
	if err != nil {
		return err
	}
	defer db.Close()
	if err := relocksql.Create(ctx, db, relocksql.Postgres); err != nil { // or by a migration
		return err
	}
	s, err := relocksql.New(db, relocksql.Postgres, relocksql.WithListener(pglisten.New(directURL)))
	if err != nil {
		return err
	}
	defer s.Close()
	client, err := relock.Open(s)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.NewLock("orders").Do(ctx, work)
	// end
	return err
}

func TestTheCodeOfThePageRuns(t *testing.T) {
	ran := false
	url := dbtest.Postgres(t)
	require.NoError(t, lockInPostgres(t.Context(), url, url, func(context.Context) error { ran = true; return nil }))
	require.True(t, ran)
}
