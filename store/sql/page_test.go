package relocksql_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/dbtest"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
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

func lockInTransaction(ctx context.Context, db *sql.DB, s *relocksql.Store, id, price int) error {
	// page: transaction
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()                // changes nothing after Commit
	if err := s.LockTx(ctx, tx, "prices"); err != nil { // relock.ErrLocked: a section has it, or waits for it
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE prices SET price = $1 WHERE id = $2", price, id); err != nil {
		return err
	}
	return tx.Commit() // the data, and the unlock
	// end
}

func TestTheTransactionOfThePageRuns(t *testing.T) {
	db, err := sql.Open("pgx", dbtest.Postgres(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, relocksql.Create(t.Context(), db, relocksql.Postgres))
	_, err = db.ExecContext(t.Context(), "CREATE TABLE prices AS SELECT 7 AS id, 1 AS price")
	require.NoError(t, err)
	s, err := relocksql.New(db, relocksql.Postgres)
	require.NoError(t, err)
	require.NoError(t, lockInTransaction(t.Context(), db, s, 7, 2))
	var price int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT price FROM prices").Scan(&price))
	require.Equal(t, 2, price)
	require.NoError(t, s.Close())
}

func TestTheCodeOfThePageRuns(t *testing.T) {
	ran := false
	url := dbtest.Postgres(t)
	require.NoError(t, lockInPostgres(t.Context(), url, url, func(context.Context) error { ran = true; return nil }))
	require.True(t, ran)
}
