package relocksql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
)

func claim(ttl time.Duration) store.Claim { return holds.Claim("orders", ttl) }

// beatAtLeast is the shortest time after which a waiter asks again by itself.
const beatAtLeast = 2500 * time.Millisecond

func TestPostgreSQLPollsWithoutAListener(t *testing.T) {
	d := postgres(t, false)
	s, other := d.store(t, relocksql.WithPoll(time.Millisecond, 50*time.Millisecond)), d.store(t)
	for range 10 {
		l := holds.Take(t, other, claim(time.Minute))
		w := holds.Wait(t, s, claim(time.Minute))
		<-time.After(100 * time.Millisecond) // the interval has grown
		released := time.Now()
		require.NoError(t, other.Release(t.Context(), l))
		l = w.Get(t)
		require.Equal(t, store.WakeGrant, l.Woken)
		require.Less(t, w.At.Sub(released), beatAtLeast)
		require.NoError(t, s.Release(t.Context(), l))
	}
}

// A renewal and the end of the lease meet again and again. A confirmed renewal keeps others out for
// the whole of its lease.
func TestARenewalAtTheEndOfTheLeaseKeepsOthersOut(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s, other := d.store(t), d.store(t)
		const ttl = time.Second // time to queue, on a busy machine
		renewed := 0
		for i := range 20 {
			l := holds.Take(t, s, claim(ttl))
			w := holds.Wait(t, other, claim(time.Minute))
			<-time.After(time.Until(l.Sent.Add(ttl + time.Duration(i-10)*time.Millisecond)))
			sent := time.Now()
			err := s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: ttl, Count: 1}})[0]
			next := w.Get(t)
			if err == nil {
				renewed++
				until := store.Lease{Claim: l.Claim, Sent: sent}.Until()
				require.False(t, w.At.Before(until), "another hold is in %s before the end of a renewed lease", until.Sub(w.At))
			} else {
				require.True(t, errors.Is(err, store.ErrGone) || errors.Is(err, store.ErrUnavailable), "%v", err) // a busy machine has no answer in time
			}
			require.NoError(t, other.Release(t.Context(), next))
		}
		t.Logf("%d of 20 renewals were in time", renewed)
	})
}

func TestCleanDeletesRowsOfFreeLocksOnly(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s := d.store(t)
		var token int64
		for i := range 5 {
			a := claim(time.Minute)
			a.Name = fmt.Sprint("once-", i)
			l := holds.Take(t, s, a)
			drawn, err := s.Token(t.Context(), l)
			require.NoError(t, err)
			token = max(token, drawn)
			require.NoError(t, s.Release(t.Context(), l))
		}
		kept := holds.Take(t, s, claim(time.Minute))
		dead := claim(time.Millisecond)
		dead.Name = "dead"
		holds.Take(t, s, dead)
		require.NoError(t, s.Clean(t.Context()))
		require.Equal(t, 7, d.count(t, "SELECT count(*) FROM relock_locks"), "rows of today stay")
		<-time.After(50 * time.Millisecond)
		require.NoError(t, s.CleanOlder(t.Context(), 0))
		require.Equal(t, 1, d.count(t, "SELECT count(*) FROM relock_locks"))
		require.Equal(t, 1, d.count(t, "SELECT count(*) FROM relock_holds"))

		a := claim(time.Minute)
		a.Name = "once-0"
		l := holds.Take(t, s, a)
		again, err := s.Token(t.Context(), l)
		require.NoError(t, err)
		require.Greater(t, again, token, "a token goes back behind a cleanup")
		for _, l := range []store.Lease{l, kept} {
			require.NoError(t, s.Release(t.Context(), l))
		}
	})
}

func TestAStoreCleansAfterManyNewNames(t *testing.T) {
	d := sqlite(t)
	s := d.store(t)
	_, err := d.db.ExecContext(t.Context(), "INSERT INTO relock_locks VALUES ('old', 0, 0, 0, 1)")
	require.NoError(t, err)
	for i := range 100 {
		a := claim(time.Minute)
		a.Name = fmt.Sprint("once-", i)
		require.NoError(t, s.Release(t.Context(), holds.Take(t, s, a)))
	}
	require.Eventually(t, func() bool {
		return d.count(t, "SELECT count(*) FROM relock_locks WHERE used = 1") == 0
	}, 5*time.Second, 10*time.Millisecond)
	require.Equal(t, 100, d.count(t, "SELECT count(*) FROM relock_locks"))
}

func TestAStoreLeavesNoGoroutineAndNoConnection(t *testing.T) {
	for kind, newDatabase := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newDatabase(t)
			redistest.NoGoroutineLeft(t, "relock/sql.", "pglisten", "jackc/pgx", "go-sql-driver/mysql")
			db := d.open(t, d.source)
			var options []relocksql.Option
			if d.listens {
				options = append(options, relocksql.WithListener(pglisten.New(d.source)))
			}
			s, err := relocksql.New(db, d.dialect, options...)
			require.NoError(t, err)
			l := holds.Take(t, s, claim(time.Minute))
			w := holds.Wait(t, s, claim(time.Minute))
			require.NoError(t, s.Release(t.Context(), l))
			l = w.Get(t)
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, s.Close())
			require.Zero(t, db.Stats().InUse, "a connection is not given back")

			l = holds.Take(t, s, claim(time.Minute)) // a closed store still works
			w = holds.Wait(t, s, claim(time.Minute))
			require.NoError(t, s.Release(t.Context(), l))
			l = w.Get(t)
			require.NoError(t, s.Release(t.Context(), l))
			require.NoError(t, db.Close())
			require.NoError(t, d.db.Close())
		})
	}
}

func TestAWaiterOutlivesTheCloseOfItsStore(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s, other := d.store(t), d.store(t)
		l := holds.Take(t, other, claim(time.Minute))
		w := holds.Wait(t, s, claim(time.Minute))
		require.NoError(t, s.Close())
		require.NoError(t, other.Release(t.Context(), l))
		l = w.GetWithin(t, beatAtLeast)
		require.NoError(t, s.Release(t.Context(), l))
	})
}

func TestAFreeLockCostsNoListenerAndNoPoll(t *testing.T) {
	d := postgres(t, false)
	l := &counter{}
	s, err := relocksql.New(d.db, d.dialect, relocksql.WithListener(l))
	require.NoError(t, err)
	lease, err := s.Wait(t.Context(), claim(time.Minute), func(store.Progress) {})
	require.NoError(t, err)
	require.Zero(t, l.calls.Load(), "a lock that is free makes the Listener listen")
	w := holds.Wait(t, s, claim(time.Minute))
	require.Eventually(t, func() bool { return l.calls.Load() == 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, s.Release(t.Context(), lease))
	require.NoError(t, s.Release(t.Context(), w.Get(t)))
	require.NoError(t, s.Close())
}

// counter is a Listener that counts its calls and hears nothing.
type counter struct {
	deaf
	calls atomic.Int64
}

func (c *counter) Listen(ctx context.Context, channel string, ready func(), notify func(string)) error {
	c.calls.Add(1)
	return c.deaf.Listen(ctx, channel, ready, notify)
}

func TestCheckServerNamesWhatIsMissing(t *testing.T) {
	onEach(t, func(d *rig) {
		t := d.T
		s := d.store(t)
		require.NoError(t, s.CheckServer(t.Context(), claim(time.Minute)))
		require.Zero(t, d.count(t, "SELECT count(*) FROM relock_locks"))
		_, err := d.db.ExecContext(t.Context(), "DROP TABLE relock_holds")
		require.NoError(t, err)
		begun := time.Now()
		require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), "relock_holds")
		_, err = s.Wait(t.Context(), claim(time.Minute), func(store.Progress) {})
		require.ErrorContains(t, err, "relock_holds", "a wait for a table that does not exist")
		require.NotErrorIs(t, err, store.ErrUnsure)
		require.Less(t, time.Since(begun), bound.Of(10*time.Second))
	})
}

func TestManyProcessesCreateTheTablesAtOnce(t *testing.T) {
	onEach(t, func(d *rig) {
		for range 3 {
			d.run(d, "DROP TABLE relock_locks", "DROP TABLE relock_holds")
			errs := make(chan error, 12)
			var pools []*sql.DB
			for range cap(errs) {
				db := d.open(d, d.source)
				require.NoError(d, db.PingContext(d.Context()))
				pools = append(pools, db)
			}
			for _, db := range pools {
				go func() { errs <- relocksql.Create(d.Context(), db, d.dialect) }()
			}
			for range pools {
				if err := <-errs; err != nil {
					require.Equal(d, relocksql.SQLite, d.dialect, "%v", err)
					require.ErrorContains(d, err, "database is locked", "its busy_timeout is short here")
				}
			}
			for _, db := range pools {
				require.NoError(d, db.Close())
			}
		}
	})
}

// memory returns a database of SQLite in memory, and makes the tables.
func memory(t testing.TB, source string, connections int) *database {
	t.Helper()
	d := &database{kind: "SQLite", dialect: relocksql.SQLite, driver: "sqlite", source: source}
	d.db = d.open(t, source)
	d.db.SetMaxOpenConns(connections)
	require.NoError(t, relocksql.Create(t.Context(), d.db, d.dialect))
	return d
}

func TestCheckServerNamesConnectionsWithDatabasesOfTheirOwn(t *testing.T) {
	const advice = "SetMaxOpenConns(1) or cache=shared"
	for _, source := range []string{":memory:", "file::memory:", "file:apart?mode=memory"} {
		s := memory(t, source, 0).past(t)
		require.ErrorContains(t, s.CheckServer(t.Context(), claim(time.Minute)), advice)
		require.NoError(t, memory(t, source, 1).past(t).CheckServer(t.Context(), claim(time.Minute)))
	}
	d := memory(t, "file:together?mode=memory&cache=shared", 0)
	require.NoError(t, d.past(t).CheckServer(t.Context(), claim(time.Minute)))
	require.NoError(t, sqlite(t).past(t).CheckServer(t.Context(), claim(time.Minute)))

	d = memory(t, ":memory:", 0)
	first, err := d.db.Conn(t.Context()) // the one with the tables
	require.NoError(t, err)
	_, err = d.past(t).Try(t.Context(), claim(time.Minute))
	require.ErrorContains(t, err, advice)
	require.NoError(t, first.Close())
}

// deaf is a Listener that hears nothing, as one behind a pooler in transaction mode.
type deaf struct{}

func (deaf) Listen(ctx context.Context, _ string, ready func(), _ func(string)) error {
	ready()
	<-ctx.Done()
	return ctx.Err()
}

// broken is a Listener that cannot connect.
type broken struct{}

func (broken) Listen(context.Context, string, func(), func(string)) error {
	return errors.New("connection refused")
}

// The waiters of a Store do not ask one by one for as long as their Listener cannot connect.
func TestAListenerThatCannotConnectIsReplacedByAPoll(t *testing.T) {
	d := postgres(t, false)
	s, other := d.store(t, relocksql.WithListener(broken{})), d.past(t)
	l := holds.Take(t, other, claim(time.Minute))
	var line []*holds.Waiter
	for range 20 {
		line = append(line, holds.Wait(t, s, claim(time.Minute)))
	}
	var packets atomic.Int64
	d.proxy.Watch(func(up bool, _ []byte) bool {
		if up {
			packets.Add(1)
		}
		return false
	})
	<-time.After(time.Second)
	d.proxy.Watch(nil)
	t.Logf("%d packets in a second", packets.Load())
	require.Positive(t, packets.Load())
	require.Less(t, packets.Load(), int64(100))
	for _, w := range line {
		require.NoError(t, other.Release(t.Context(), l))
		l = w.GetWithin(t, beatAtLeast)
	}
	require.NoError(t, other.Release(t.Context(), l))
}

func TestCheckServerFindsADeafListener(t *testing.T) {
	d := postgres(t, false)
	s, err := relocksql.New(d.db, d.dialect, relocksql.WithListener(deaf{}))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorContains(t, s.CheckServer(ctx, claim(time.Minute)), "hears no notification")
}

func TestWrongArgumentsOfNewAreRefused(t *testing.T) {
	db := new(sql.DB)
	for _, c := range []struct {
		db      *sql.DB
		dialect relocksql.Dialect
		option  relocksql.Option
		want    string
	}{
		{nil, relocksql.SQLite, nil, "nil"},
		{db, 0, nil, "no dialect 0"},
		{db, relocksql.SQLite, relocksql.WithListener(deaf{}), "PostgreSQL"},
		{db, relocksql.Postgres, relocksql.WithListener(nil), "Listener"},
		{db, relocksql.SQLite, relocksql.WithPoll(0, time.Second), "WithPoll"},
		{db, relocksql.SQLite, relocksql.WithPoll(time.Second, time.Millisecond), "WithPoll"},
		{db, relocksql.SQLite, relocksql.WithPoll(time.Second, time.Hour), "WithPoll"},
	} {
		options := []relocksql.Option{relocksql.WithPoll(time.Millisecond, time.Second)}
		if c.option != nil {
			options = append(options, c.option)
		}
		_, err := relocksql.New(c.db, c.dialect, options...)
		require.ErrorContains(t, err, c.want)
	}
	require.Empty(t, relocksql.Schema(0))
	require.Error(t, relocksql.Create(t.Context(), db, 0))
}

func TestErrorsOfDriversAreJudged(t *testing.T) {
	of := func(number uint16, state string) error {
		return &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte(state))}
	}
	dial := &net.OpError{Op: "dial", Err: errors.New("no such file or directory")}
	for dialect, verdicts := range map[relocksql.Dialect]map[string][]error{
		relocksql.Postgres: {
			"again": {&pgconn.PgError{Code: "40001"}, &pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "55P03"}},
			"down": {
				&pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "57014"}, &pgconn.PgError{Code: "53300"},
				&pgconn.PgError{Code: "25006"}, &pgconn.PgError{Code: "XX000"}, &pgconn.PgError{Code: "P0001"}, &pgconn.PgError{},
				dial, &net.DNSError{Err: "no such host", Name: "db.example"}, driver.ErrBadConn,
			},
			"refused": {
				&pgconn.PgError{Code: "42P01"}, &pgconn.PgError{Code: "42501"}, &pgconn.PgError{Code: "28P01"},
				&pgconn.PgError{Code: "3D000"}, &pgconn.PgError{Code: "26000"},
				&pgconn.PgError{Code: "08P01", Message: "transaction blocks not allowed in statement pooling mode"},
				errors.New("sql: database is closed"),
			},
			"silent": {
				context.DeadlineExceeded, &net.OpError{Op: "read", Err: errors.New("reset")},
				&pgconn.PgError{Code: "08P01"}, &pgconn.PgError{Code: "40003"},
				errors.New("no such table"), errors.New("database is locked"), // the words of another driver
			},
		},
		relocksql.MySQL: {
			"again": {of(1213, "40001"), of(1020, "HY000"), of(1568, "25001")},
			"down": {
				of(1040, "08004"), of(1203, "42000"), of(1226, "42000"), of(1205, "HY000"), of(1290, "HY000"), of(1317, "70100"), of(1114, "HY000"),
				of(1105, "HY000"), of(9001, "HY000"), dial,
			},
			"refused": {
				of(1146, "42S02"), of(1142, "42000"), of(1045, "28000"), of(1049, "42000"), of(1064, "42000"), of(1665, "HY000"),
				errors.New("sql: database is closed"),
			},
			"silent": {of(2013, "HY000"), of(1159, "08S01"), mysql.ErrInvalidConn, context.Canceled},
		},
		relocksql.SQLite: {
			"again": {errors.New("database is locked (5) (SQLITE_BUSY)"), errors.New("database table is locked")},
			"refused": {
				errors.New("SQL logic error: no such table: relock_locks (1)"), errors.New("file is not a database (26)"),
				errors.New("unable to open database file (14)"), errors.New("sql: database is closed"),
			},
			"silent": {context.DeadlineExceeded, errors.New("disk I/O error (10)")},
		},
	} {
		for want, errs := range verdicts {
			for _, err := range errs {
				require.Equal(t, want, relocksql.Verdict(dialect, fmt.Errorf("wrapped: %w", err)), "%v: %v", dialect, err)
			}
		}
	}
}

func TestTheFirstWaiterSleepsBehindALongerLeaseForItsOwnTTL(t *testing.T) {
	for _, c := range []struct{ ttl, left, from, to time.Duration }{
		{time.Second, time.Minute, time.Second, time.Second},
		{time.Minute, time.Second, time.Second, time.Second + 6*time.Millisecond},
		{time.Minute, time.Minute, beatAtLeast, 2 * beatAtLeast},
	} {
		for range 100 {
			d := relocksql.AskAgain(c.ttl, c.left)
			require.True(t, c.from <= d && d <= c.to, "%+v: %s", c, d)
		}
	}
}
