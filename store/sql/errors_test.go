package relocksql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	relocksql "github.com/go-relock/relock/store/sql"
)

// lockOver returns the error of a Lock over a database, within a time.
func lockOver(t testing.TB, db *sql.DB, dialect relocksql.Dialect, within time.Duration) error {
	t.Helper()
	s, err := relocksql.New(db, dialect)
	require.NoError(t, err)
	defer s.Close()
	c, err := relock.Open(s)
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err = c.NewLock("orders").Lock(ctx)
	return err
}

// isRefused says that a Lock over a database ends at once, with advice.
func isRefused(t testing.TB, db *sql.DB, dialect relocksql.Dialect, advice string) {
	t.Helper()
	err := lockOver(t, db, dialect, time.Minute)
	require.ErrorContains(t, err, advice)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, relock.ErrUnavailable)
}

func TestALockThatIsRefusedEndsAtOnceWithAdvice(t *testing.T) {
	onEach(t, func(d *rig) {
		_, err := d.db.ExecContext(d.Context(), "DROP TABLE relock_holds")
		require.NoError(d, err)
		isRefused(d, d.db, d.dialect, "create the tables")
		closed := d.open(d, d.source)
		require.NoError(d, closed.Close())
		isRefused(d, closed, d.dialect, "before the *sql.DB")
		if d.dialect == relocksql.SQLite {
			notes := filepath.Join(d.TempDir(), "notes.txt")
			require.NoError(d, os.WriteFile(notes, []byte(strings.Repeat("no database\n", 500)), 0o600))
			isRefused(d, d.open(d, "file:"+notes), d.dialect, "a file of its own")
			isRefused(d, d.open(d, "file:"+filepath.Join(d.TempDir(), "none", "locks.db")), d.dialect, "a file of its own")
			return
		}
		isRefused(d, d.open(d, strings.Replace(d.source, "/test", "/none", 1)), d.dialect, "the connection string")
	})
}

// A role may do everything but delete holds.
func TestARoleWithoutARightIsRefusedAndFoundByCheck(t *testing.T) {
	servers(t, func(d *rig) {
		role := "few"
		grants := []string{
			"CREATE ROLE " + role + " LOGIN", "GRANT SELECT, INSERT, UPDATE ON relock_holds TO " + role,
			"GRANT SELECT, INSERT, UPDATE, DELETE ON relock_locks TO " + role,
		}
		login := strings.Replace(d.source, "postgres@", "few@", 1)
		if d.dialect == relocksql.MySQL {
			var schema string
			require.NoError(d, d.db.QueryRowContext(d.Context(), "SELECT DATABASE()").Scan(&schema))
			role = "few@'%'"
			grants = []string{
				"CREATE USER " + role, "GRANT SELECT, INSERT, UPDATE ON " + schema + ".relock_holds TO " + role,
				"GRANT SELECT, INSERT, UPDATE, DELETE ON " + schema + ".relock_locks TO " + role,
			}
			login = strings.Replace(d.source, "root@", "few@", 1)
		}
		for _, grant := range grants {
			_, err := d.db.ExecContext(d.Context(), grant)
			require.NoError(d, err)
		}
		s, err := relocksql.New(d.open(d, login), d.dialect)
		require.NoError(d, err)
		require.ErrorContains(d, s.CheckServer(d.Context(), claim(time.Minute)), "grant SELECT, INSERT, UPDATE and DELETE")
		l := holds.Take(d, s, claim(time.Minute))
		require.ErrorContains(d, s.Release(d.Context(), l), "grant SELECT, INSERT, UPDATE and DELETE")
	})
}

func TestAPoolerInStatementModeIsRefused(t *testing.T) {
	d := pooled(t, 1, "statement")
	isRefused(t, d.open(t, d.through), d.dialect, "pool_mode")
}

// endsWith says that a Lock over a database goes on until its context ends, and has the reason then.
func endsWith(t testing.TB, db *sql.DB, dialect relocksql.Dialect, reason string) {
	t.Helper()
	err := lockOver(t, db, dialect, 1500*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, relock.ErrUnavailable)
	require.ErrorContains(t, err, reason)
}

func TestAWaitThatEndsWithItsContextSaysWhy(t *testing.T) {
	onEach(t, func(d *rig) {
		if d.dialect == relocksql.SQLite {
			defer d.interrupt(d)()
			endsWith(d, d.open(d, d.source), d.dialect, "is locked")
			return
		}
		endsWith(d, d.open(d, address.ReplaceAllString(d.source, "127.0.0.1:1")), d.dialect, "connection refused")
		full := d.open(d, d.source)
		full.SetMaxOpenConns(1)
		conn, err := full.Conn(d.Context())
		require.NoError(d, err)
		endsWith(d, full, d.dialect, "1 of at most 1 in use")
		require.NoError(d, conn.Close())
	})
}

// A name does not resolve for a while, and then a socket is not there for a while.
func TestALockWaitsForANameAndForASocket(t *testing.T) {
	var fails atomic.Int64
	fail := func() error {
		switch n := fails.Add(1); {
		case n < 4:
			return &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "db.example", IsNotFound: true}}
		case n < 8:
			return &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", errors.New("no such file or directory"))}
		default:
			return nil
		}
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := fail(); err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		d := postgres(t, false)
		config, err := pgx.ParseConfig(d.source)
		require.NoError(t, err)
		config.DialFunc = dial
		db := stdlib.OpenDB(*config)
		defer db.Close()
		require.NoError(t, lockOver(t, db, d.dialect, 30*time.Second))
		require.GreaterOrEqual(t, fails.Load(), int64(8))
	})
	fails.Store(0)
	t.Run("MariaDB", func(t *testing.T) {
		d := mariadb(t)
		config, err := mysql.ParseDSN(d.source)
		require.NoError(t, err)
		config.DialFunc = dial
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		defer db.Close()
		require.NoError(t, lockOver(t, db, d.dialect, 30*time.Second))
		require.GreaterOrEqual(t, fails.Load(), int64(8))
	})
}

func TestALockWaitsForAConnectionOfItsAccount(t *testing.T) {
	d := mariadb(t)
	for _, statement := range []string{
		"CREATE USER busy@'%' WITH MAX_USER_CONNECTIONS 1", "GRANT ALL ON *.* TO busy@'%'",
	} {
		_, err := d.db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	source := strings.Replace(d.source, "root@", "busy@", 1)
	conn, err := d.open(t, source).Conn(t.Context())
	require.NoError(t, err)
	db := d.open(t, source)
	endsWith(t, db, d.dialect, "max_user_connections")
	time.AfterFunc(time.Second, func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) })
	require.NoError(t, lockOver(t, db, d.dialect, 30*time.Second))
}

// tapped is a connector of SQLite. Each statement that is no query goes through tap first.
type tapped struct {
	driver driver.Driver
	source string
	tap    func(ctx context.Context, query string) error
}

func (c tapped) Driver() driver.Driver { return c.driver }

func (c tapped) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.source)
	return tappedConn{conn, c.tap}, err
}

type tappedConn struct {
	driver.Conn
	tap func(ctx context.Context, query string) error
}

func (c tappedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.tap(ctx, query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c tappedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func TestARollbackThatFailsEndsItsConnection(t *testing.T) {
	d := sqlite(t)
	var failed atomic.Bool
	db := sql.OpenDB(tapped{d.db.Driver(), d.source, func(ctx context.Context, query string) error {
		if query == "ROLLBACK" && failed.CompareAndSwap(false, true) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	defer db.Close()
	db.SetMaxOpenConns(1)
	s, err := relocksql.New(db, d.dialect)
	require.NoError(t, err)
	require.NoError(t, s.CheckServer(t.Context(), claim(time.Minute)))
	require.True(t, failed.Load())
	var in int
	conn, err := d.db.Conn(t.Context()) // nobody has the database locked
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT count(*) FROM relock_holds").Scan(&in))
	require.Zero(t, in)
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, errors.Join(err, conn.Close()))
	l := holds.Take(t, s, claim(time.Minute))
	require.NoError(t, s.Release(t.Context(), l))
}
