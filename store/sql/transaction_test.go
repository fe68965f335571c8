package relocksql_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// begin begins a transaction beside the store, and returns it with the lock.
func (d *rig) begin(s *relocksql.Store, name string) *sql.Tx {
	d.Helper()
	tx, err := d.db.BeginTx(d.Context(), nil)
	require.NoError(d, err)
	require.NoError(d, s.LockTx(d.Context(), tx, name))
	return tx
}

// refused calls LockTx in a transaction that is rolled back.
func (d *rig) refused(s *relocksql.Store, name string) error {
	d.Helper()
	tx, err := d.db.BeginTx(d.Context(), nil)
	require.NoError(d, err)
	err = s.LockTx(d.Context(), tx, name)
	require.NoError(d, tx.Rollback())
	return err
}

func TestATransactionHasALockUntilItsEnd(t *testing.T) {
	onEach(t, func(d *rig) {
		d.leavesNothing(d)
		s := d.store(d)
		for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
			tx := d.begin(s, "orders")
			waiting := make(chan error, 1)
			var l store.Lease
			var at time.Time
			go func() {
				var err error
				l, err = s.Wait(d.Context(), claim(time.Minute), func(store.Progress) {})
				at = time.Now()
				waiting <- err
			}()
			select {
			case err := <-waiting:
				require.Fail(d, "another hold is in", "%v", err)
			case <-time.After(300 * time.Millisecond):
			}
			ended := time.Now()
			require.NoError(d, end(tx))
			require.NoError(d, <-waiting)
			require.False(d, at.Before(ended))
			require.NoError(d, s.Release(d.Context(), l))
		}
	})
}

func TestATransactionIsRefusedALockOfASection(t *testing.T) {
	onEach(t, func(d *rig) {
		d.leavesNothing(d)
		s := d.store(d)
		l := holds.Take(d, s, claim(time.Minute))
		var locked *relock.LockedError
		require.ErrorAs(d, d.refused(s, "orders"), &locked)
		require.Equal(d, "orders", locked.Name)
		require.Greater(d, locked.TTL, 30*time.Second)
		next := holds.Wait(d, s, claim(time.Minute))
		require.ErrorIs(d, d.refused(s, "orders"), relock.ErrLocked)
		require.NoError(d, s.Release(d.Context(), l))
		<-next.Done
		require.NoError(d, next.Err)
		require.NoError(d, s.Release(d.Context(), next.Lease))
		require.NoError(d, d.begin(s, "orders").Rollback())
		require.ErrorIs(d, d.refused(s, ""), relock.ErrInvalid)
		require.ErrorIs(d, s.LockTx(d.Context(), nil, "orders"), relock.ErrInvalid)
		reader := claim(time.Minute)
		reader.Kind, reader.Limit = store.ReadWrite, store.Unlimited
		l = holds.Take(d, s, reader)
		require.ErrorIs(d, d.refused(s, "orders"), relock.ErrKind)
		require.NoError(d, s.Release(d.Context(), l))
	})
}

// The transaction begins and reads before a section takes the lock.
func TestATransactionSeesAHoldThatIsNewerThanItsReads(t *testing.T) {
	onEach(t, func(d *rig) {
		d.leavesNothing(d)
		s := d.store(d)
		want := map[relocksql.Dialect]map[sql.IsolationLevel]error{
			relocksql.Postgres: {
				sql.LevelReadCommitted: relock.ErrLocked, sql.LevelRepeatableRead: relock.ErrInvalid, sql.LevelSerializable: relock.ErrInvalid,
			},
			relocksql.MySQL:  {sql.LevelReadCommitted: relock.ErrLocked, sql.LevelRepeatableRead: relock.ErrLocked},
			relocksql.SQLite: {sql.LevelDefault: nil}, // busy, in the words of the driver
		}
		require.NoError(d, s.Release(d.Context(), holds.Take(d, s, claim(time.Minute)))) // the name has a row
		for level, expected := range want[d.dialect] {
			tx, err := d.db.BeginTx(d.Context(), &sql.TxOptions{Isolation: level})
			require.NoError(d, err)
			var n int
			require.NoError(d, tx.QueryRowContext(d.Context(), "SELECT count(*) FROM relock_holds").Scan(&n))
			l := holds.Take(d, s, claim(time.Minute))
			err = s.LockTx(d.Context(), tx, "orders")
			require.NoError(d, tx.Rollback())
			require.Error(d, err, level)
			if expected != nil {
				require.ErrorIs(d, err, expected, level)
			}
			require.NoError(d, s.Release(d.Context(), l))
		}
	})
}

func TestARefusedTransactionDoesNotHoldUpRenewals(t *testing.T) {
	onEach(t, func(d *rig) {
		if d.dialect == relocksql.SQLite {
			return // which has one writer at a time
		}
		s := d.store(d)
		l := holds.Take(d, s, claim(time.Minute))
		tx, err := d.db.BeginTx(d.Context(), nil)
		require.NoError(d, err)
		require.ErrorIs(d, s.LockTx(d.Context(), tx, "orders"), relock.ErrLocked)
		require.NoError(d, s.Renew(d.Context(), []store.Renewal{{Lease: l, TTL: time.Minute, Count: 1}})[0])
		require.NoError(d, tx.Rollback())
		require.NoError(d, s.Release(d.Context(), l))
	})
}

func TestATransactionLeavesOtherNamesAlone(t *testing.T) {
	onEach(t, func(d *rig) {
		if d.dialect == relocksql.SQLite {
			return // which has one writer at a time
		}
		s := d.store(d)
		tx, err := d.db.BeginTx(d.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		require.NoError(d, err)
		require.NoError(d, s.LockTx(d.Context(), tx, "order"))
		l := holds.Take(d, s, claim(time.Minute))
		require.NoError(d, s.Release(d.Context(), l))
		require.NoError(d, tx.Commit())
	})
}

func TestTransactionsCleanAfterManyNewNames(t *testing.T) {
	d := &rig{t, postgres(t, false)}
	s := d.store(t)
	_, err := d.db.ExecContext(t.Context(), "INSERT INTO relock_locks VALUES ('old', 0, 0, 0, 1)")
	require.NoError(t, err)
	for i := range 101 {
		require.NoError(t, d.begin(s, fmt.Sprint("once-", i)).Commit())
	}
	require.Eventually(t, func() bool {
		return d.count(t, "SELECT count(*) FROM relock_locks WHERE name = 'old'") == 0
	}, 10*time.Second, 10*time.Millisecond)
}
