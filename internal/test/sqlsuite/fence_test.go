package sqlsuite

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

// blocked is how long a statement that waits for another transaction is watched.
const blocked = 150 * time.Millisecond

func TestANewerTokenShutsTheOlderOut(t *testing.T) {
	each(t, func(t *rig) {
		for _, step := range []struct {
			token int64
			err   error
		}{
			{5, nil}, {5, nil}, {7, nil}, {6, fence.ErrStale}, {5, fence.ErrStale}, {7, nil}, {1<<63 - 1, nil},
			{8, fence.ErrStale},
		} {
			require.ErrorIs(t, t.write(t.fences, "orders", step.token), step.err)
		}
		require.Equal(t, []int64{5, 5, 7, 7, 1<<63 - 1}, t.logged(), "a stale transaction wrote")
	})
}

func TestATransactionMayEnterAgain(t *testing.T) {
	each(t, func(t *rig) {
		tx := t.begin()
		for _, token := range []int64{5, 5, 6} {
			require.NoError(t, t.fences.Enter(t.Context(), tx, "orders", token))
		}
		require.ErrorIs(t, t.fences.Enter(t.Context(), tx, "orders", 5), fence.ErrStale)
	})
}

// A trigger makes each token 7.
func TestATableThatDoesNotKeepItsTokenIsAnError(t *testing.T) {
	each(t, func(t *rig) {
		if t.dialect != fence.MySQL {
			t.Log("NOT TESTED: only MariaDB reads the token")
			return
		}
		_, err := t.db.ExecContext(t.Context(), "CREATE TRIGGER seven BEFORE INSERT ON relock_fence FOR EACH ROW SET NEW.token = 7")
		require.NoError(t, err)
		require.ErrorContains(t, t.write(t.fences, "orders", 8), "keeps token 7")
	})
}

func TestARefusalSaysWhatWasRefused(t *testing.T) {
	each(t, func(t *rig) {
		require.NoError(t, t.write(t.fences, "orders", 5))
		require.EqualError(t, t.write(t.fences, "orders", 4),
			`fence: a newer token has touched the resource: resource "orders", token 4`)
	})
}

func TestATokenThatCannotWriteIsRefused(t *testing.T) {
	each(t, func(t *rig) {
		for _, token := range []int64{0, -1, -5, -1 << 63} {
			require.ErrorIs(t, t.write(t.fences, "orders", token), fence.ErrToken)
		}
		require.NoError(t, t.write(t.fences, "orders", 1), "a refused token left a trace")
	})
}

// A transaction that reads before it enters sees the tables as they were, at some levels. The fence
// has to see the newest token all the same.
func TestAnEarlierReadHidesNoNewerToken(t *testing.T) {
	each(t, func(t *rig) {
		for _, level := range t.levels {
			resource := level.String()
			require.NoError(t, t.write(t.fences, resource, 4))
			older, err := t.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			require.NoError(t, err)
			var n int
			require.NoError(t, older.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM log").Scan(&n), level)
			newer := t.begin()
			require.NoError(t, t.fences.Enter(t.Context(), newer, resource, 6), level)
			committed := make(chan error, 1)
			go func() { committed <- newer.Commit() }()
			if t.kind == "SQLite DELETE" { // there a commit waits for readers
				select {
				case err := <-committed:
					t.Fatalf("the commit did not wait for the reader: %v", err)
				case <-time.After(blocked):
				}
			} else {
				require.NoError(t, <-committed, level)
				committed <- nil
			}
			err = t.fences.Enter(t.Context(), older, resource, 5)
			require.True(t, errors.Is(err, fence.ErrStale) || t.again(err), "%s: %v", level, err)
			require.NoError(t, older.Rollback())
			require.NoError(t, <-committed, level)
		}
	})
}

func TestARollbackLeavesNoTrace(t *testing.T) {
	each(t, func(t *rig) {
		for _, before := range []string{"a new resource", "an old resource"} {
			tx := t.begin()
			require.NoError(t, t.fences.Enter(t.Context(), tx, "orders", 9), before)
			require.NoError(t, tx.Rollback())
			require.NoError(t, t.write(t.fences, "orders", 5), before)
		}
	})
}

func TestResourcesAreComparedByteByByte(t *testing.T) {
	names := []string{
		"orders", "Orders", "orders ", " orders", "orders\x00", "ordérs", "orde\u0301rs", "order", "\x00", "\x00\x00",
		"\xff", "\xff\xfe", "'", `"`, "`", `\`, `\x41`, "A", "%", "_", "?", "$1", ":a", "\n", "ß", "ss",
		strings.Repeat("x", 255), strings.Repeat("x", 254) + "y", strings.Repeat("\xff", 255),
	}
	each(t, func(t *rig) {
		// Each name gets a smaller token than the one before: two names with one row would clash.
		for i, name := range names {
			tx := t.begin()
			require.NoError(t, t.fences.Enter(t.Context(), tx, name, int64(100-i)), "%q", name)
			require.NoError(t, tx.Commit())
		}
		for i, name := range names {
			require.ErrorIs(t, t.write(t.fences, name, int64(99-i)), fence.ErrStale, "%q", name)
		}
		for _, name := range []string{"", strings.Repeat("x", 256)} {
			require.ErrorContains(t, t.write(t.fences, name, 1), "1 to 255 bytes")
		}
	})
}

func TestCreateLeavesAnExistingTableAlone(t *testing.T) {
	each(t, func(t *rig) {
		require.NoError(t, t.write(t.fences, "orders", 5))
		require.NoError(t, t.fences.Create(t.Context(), t.db))
		require.ErrorIs(t, t.write(t.fences, "orders", 4), fence.ErrStale)
	})
}

func TestEachTableIsAFenceOfItsOwn(t *testing.T) {
	each(t, func(t *rig) {
		var schema string
		require.NoError(t, t.db.QueryRowContext(t.Context(), t.schema).Scan(&schema))
		require.NoError(t, t.write(t.fences, "orders", 5))
		for _, name := range []string{"order", "Group", schema + ".fence"} {
			other := t.fences.Named(name)
			require.NoError(t, other.Create(t.Context(), t.db), name)
			require.NoError(t, t.write(other, "orders", 4), name)
			require.ErrorIs(t, t.write(other, "orders", 3), fence.ErrStale, name)
		}
	})
}

func TestAMissingTableIsTheDriversError(t *testing.T) {
	each(t, func(t *rig) {
		err := t.write(t.fences.Named("nowhere"), "orders", 5)
		require.ErrorContains(t, err, `fence: enter resource "orders" with token 5: `)
		require.ErrorContains(t, err, "nowhere")
		require.NotErrorIs(t, err, fence.ErrStale)
		require.False(t, t.again(err))
	})
}

// write enters in a transaction and appends to the log.
func (t *rig) write(fences *fence.Table, resource string, token int64) error {
	tx, err := t.db.BeginTx(t.Context(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // without effect after Commit
	if err := fences.Enter(t.Context(), tx, resource, token); err != nil {
		return err
	}
	if _, err := tx.ExecContext(t.Context(), t.add, resource, token); err != nil {
		return err
	}
	return tx.Commit()
}

// begin begins a transaction that ends with the test, if it has not ended before.
func (t *rig) begin() *sql.Tx {
	t.Helper()
	tx, err := t.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// logged returns the tokens in the log, in the order in which they were appended.
func (t *rig) logged() []int64 {
	t.Helper()
	return tokens(t.T, t.db, "SELECT token FROM log ORDER BY id")
}

// tokens returns the numbers that the query selects.
func tokens(t *testing.T, db *sql.DB, query string) (all []int64) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var token int64
		require.NoError(t, rows.Scan(&token))
		all = append(all, token)
	}
	require.NoError(t, rows.Err())
	return all
}
