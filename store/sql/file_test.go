package relocksql_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
)

// fileOf returns the path of a database of SQLite.
func (d *database) fileOf(t testing.TB) string {
	t.Helper()
	var n int
	var name, path string
	require.NoError(t, d.db.QueryRowContext(t.Context(), "PRAGMA database_list").Scan(&n, &name, &path))
	return path
}

// A store whose file is not at its path any more has no locks that others see.
func TestALockIsGoneWithItsFile(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, path string){
		"deleted": func(t *testing.T, path string) { t.Helper(); require.NoError(t, os.Remove(path)) },
		"moved":   func(t *testing.T, path string) { t.Helper(); require.NoError(t, os.Rename(path, path+".old")) },
		"replaced": func(t *testing.T, path string) {
			t.Helper()
			empty := filepath.Join(filepath.Dir(path), "empty")
			require.NoError(t, os.WriteFile(empty, nil, 0o600))
			require.NoError(t, os.Rename(empty, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := sqlite(t)
			s := d.past(t)
			l, next := holds.Take(t, s, claim(time.Minute)), holds.Take(t, s, named("next"))
			path := d.fileOf(t)
			take(t, path)
			for _, suffix := range []string{"-wal", "-shm"} {
				_ = os.Remove(path + suffix)
			}
			renewals := []store.Renewal{{Lease: l, TTL: time.Minute, Count: 1}, {Lease: next, TTL: time.Minute, Count: 1}}
			for _, err := range s.Renew(t.Context(), renewals) {
				require.Equal(t, store.ErrGone, err)
			}
			_, err := s.Enter(t.Context(), l, 2)
			require.Equal(t, store.ErrGone, err)
			_, err = s.Token(t.Context(), l)
			require.Equal(t, store.ErrGone, err)
			require.Equal(t, store.ErrGone, s.Release(t.Context(), l))
			_, err = s.Try(t.Context(), claim(time.Minute)) // nobody else would see this hold
			require.ErrorContains(t, err, "open the *sql.DB and the store anew")
			_, err = s.Wait(t.Context(), claim(time.Minute), func(store.Progress) {})
			require.ErrorContains(t, err, "open the *sql.DB and the store anew")
			require.NotErrorIs(t, err, store.ErrGone)
			require.Error(t, s.CheckServer(t.Context(), claim(time.Minute)))

			other := &database{kind: d.kind, dialect: d.dialect, driver: d.driver, source: d.source}
			other.db = other.open(t, d.source)
			require.NoError(t, relocksql.Create(t.Context(), other.db, d.dialect))
			tx, err := other.db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.ErrorContains(t, s.LockTx(t.Context(), tx, "orders"), "open the *sql.DB")
			require.NoError(t, tx.Rollback())
			o := other.past(t)
			require.NoError(t, o.Release(t.Context(), holds.Take(t, o, claim(time.Minute))))
		})
	}
}

// Each transaction has to win the lock of SQLite from other processes.
func TestRenewalsInSQLiteAreOneTransaction(t *testing.T) {
	d := sqlite(t)
	s := d.past(t)
	var renewals []store.Renewal
	for range 20 {
		a := claim(time.Minute)
		a.Name = string(a.ID)
		renewals = append(renewals, store.Renewal{Lease: holds.Take(t, s, a), TTL: time.Minute, Count: 3})
	}
	require.NoError(t, s.Release(t.Context(), renewals[7].Lease))
	var begun atomic.Int64
	db := sql.OpenDB(tapped{d.db.Driver(), d.source, func(_ context.Context, query string) error {
		if query == "BEGIN IMMEDIATE" {
			begun.Add(1)
		}
		return nil
	}})
	defer func() { require.NoError(t, db.Close()) }()
	s, err := relocksql.New(db, d.dialect)
	require.NoError(t, err)
	for i, err := range s.Renew(t.Context(), renewals) {
		if i == 7 {
			require.Equal(t, store.ErrGone, err)
			continue
		}
		require.NoError(t, err)
		state, err := s.Look(t.Context(), renewals[i].Lease.Claim)
		require.NoError(t, err)
		require.Equal(t, 3, state.Count)
	}
	require.EqualValues(t, 1+len(renewals)-1, begun.Load(), "one for the renewals, and one for each look")
}

// Another process has the database for nearly the whole time of a renewal.
func TestARenewalInSQLiteAsksAgainWithoutLongPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const busy, longestPause = 900 * time.Millisecond, 3 * time.Millisecond
		free, tries := time.Now().Add(busy), 0
		db := sql.OpenDB(steady{tap: func(query string) error {
			if query != "BEGIN IMMEDIATE" || time.Now().After(free) {
				return nil
			}
			tries++
			return errors.New("database is locked (5) (SQLITE_BUSY)")
		}})
		s, err := relocksql.New(db, relocksql.SQLite)
		require.NoError(t, err)
		l := store.Lease{Claim: claim(3 * time.Second), Sent: time.Now()}
		require.NoError(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: l.TTL, Count: 1}})[0])
		require.GreaterOrEqual(t, tries, int(busy/longestPause))

		free = time.Now().Add(time.Hour)
		begun := time.Now()
		require.ErrorIs(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: l.TTL, Count: 1}})[0], store.ErrUnavailable)
		require.LessOrEqual(t, time.Since(begun), time.Second+longestPause, "by the fake clock: an attempt has an end")
		require.NoError(t, errors.Join(s.Close(), db.Close()))
	})
}
