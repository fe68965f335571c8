package relocksql_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/tcptest"
	relocksql "github.com/go-relock/relock/store/sql"
	"github.com/go-relock/relock/store/sql/pglisten"
)

// atOnce is the number of tests that run at once. They mostly wait: for leases, and for a server.
const atOnce = 6

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(log.New(io.Discard, "", 0)) // the tests cut connections
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce))
	}
	os.Exit(dbtest.Main(m))
}

// database is an empty database with the tables of the store.
type database struct {
	kind    string
	dialect relocksql.Dialect
	driver  string
	source  string         // past the proxy
	through string         // through the proxy
	proxy   *tcptest.Proxy // nil: SQLite has no server
	listens bool
	db      *sql.DB // past the proxy
}

// kinds are the kinds of databases, by name.
var kinds = map[string]func(t testing.TB) *database{
	"PostgreSQL": func(t testing.TB) *database { t.Helper(); return postgres(t, true) },
	"MariaDB":    mariadb,
	"SQLite":     sqlite,
}

// rig is a test with a database.
type rig struct {
	*testing.T
	*database
}

// onEach runs a test on every kind of database, all at once.
func onEach(t *testing.T, test func(d *rig)) {
	t.Helper()
	for kind, newDatabase := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(&rig{t, newDatabase(t)})
		})
	}
}

func postgres(t testing.TB, listens bool) *database {
	t.Helper()
	d := &database{
		kind: "PostgreSQL", dialect: relocksql.Postgres, driver: "pgx", source: dbtest.Postgres(t), listens: listens,
	}
	return d.behindProxy(t).make(t)
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func mariadb(t testing.TB) *database {
	t.Helper()
	d := &database{kind: "MariaDB", dialect: relocksql.MySQL, driver: "mysql", source: mysqlSource(t) + "?interpolateParams=true"}
	return d.behindProxy(t).make(t)
}

// mysqlSource returns a new database in MariaDB, or in the server that RELOCK_MYSQL names, such as
// MySQL: root@tcp(127.0.0.1:3306)/
func mysqlSource(t testing.TB) string {
	t.Helper()
	server := os.Getenv("RELOCK_MYSQL")
	if server == "" {
		return dbtest.MariaDB(t)
	}
	db, err := sql.Open("mysql", server)
	require.NoError(t, err)
	name := "relock_" + rand.Text()
	_, err = db.ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), "DROP DATABASE "+name)
		require.NoError(t, errors.Join(err, db.Close()))
	})
	return server + name
}

// behindProxy puts a proxy before the server.
func (d *database) behindProxy(t testing.TB) *database {
	t.Helper()
	d.proxy = tcptest.NewProxy(t, address.FindString(d.source))
	d.through = address.ReplaceAllString(d.source, d.proxy.Address())
	return d
}

// own returns the database with a proxy of its own, for a test beside other tests.
func (d *database) own(t testing.TB) *database {
	t.Helper()
	own := *d
	if d.proxy != nil {
		own.behindProxy(t)
	}
	return &own
}

// leavesNothing looks for holds and waiters at the end of a test and of its subtests. The last subtest
// may have left a lease to its end.
func (d *database) leavesNothing(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return d.alive(t) == 0 }, 5*time.Second, 100*time.Millisecond,
			"holds or waiters are left over") // require in a cleanup would hide the report
	})
}

func sqlite(t testing.TB) *database {
	t.Helper()
	file := "file:" + filepath.Join(t.TempDir(), "locks.db") +
		"?_pragma=busy_timeout(50)&_pragma=synchronous(OFF)&_pragma=journal_mode(WAL)"
	d := &database{kind: "SQLite", dialect: relocksql.SQLite, driver: "sqlite", source: file, through: file}
	return d.make(t)
}

func (d *database) make(t testing.TB) *database {
	t.Helper()
	d.db = d.open(t, d.source)
	require.NoError(t, relocksql.Create(t.Context(), d.db, d.dialect))
	require.NoError(t, relocksql.Create(t.Context(), d.db, d.dialect), "creating twice is allowed")
	return d
}

func (d *database) open(t testing.TB, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, source)
	require.NoError(t, err)
	db.SetMaxOpenConns(12)
	db.SetMaxIdleConns(12)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// warm opens the first connections. On a busy machine that takes longer than a short wait for a
// lock.
func warm(t testing.TB, db *sql.DB) {
	t.Helper()
	var conns []*sql.Conn
	for range 3 {
		c, err := db.Conn(t.Context())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
}

// store returns the store of one more process, whose connections run through the proxy.
func (d *database) store(t testing.TB, options ...relocksql.Option) *relocksql.Store {
	t.Helper()
	if d.listens {
		options = append(options, relocksql.WithListener(pglisten.New(d.through)))
	}
	db := d.open(t, d.through)
	warm(t, db)
	s, err := relocksql.New(db, d.dialect, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// interrupt makes the database silent for the stores.
func (d *database) interrupt(t testing.TB) (restore func()) {
	t.Helper()
	if d.proxy != nil {
		d.proxy.Stall()
		return d.proxy.Resume
	}
	conn, err := d.db.Conn(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the stores may be writing
		_, err = conn.ExecContext(context.Background(), "BEGIN IMMEDIATE")
		return err == nil
	}, 10*time.Second, time.Millisecond)
	return func() {
		_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
		_ = conn.Close()
	}
}

// lose takes the holds of a lock out, as a failover does.
func (d *database) lose(t testing.TB, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		mark := "?"
		if d.dialect == relocksql.Postgres {
			mark = "$1"
		}
		_, err := d.db.ExecContext(t.Context(), "DELETE FROM relock_holds WHERE state > 0 AND name = "+mark, []byte(name))
		return err == nil
	}, 10*time.Second, time.Millisecond)
}

// count returns the number that a statement selects.
func (d *database) count(t testing.TB, statement string) (n int) {
	t.Helper()
	require.NoError(t, d.db.QueryRowContext(context.WithoutCancel(t.Context()), statement).Scan(&n))
	return n
}

// alive returns the number of holds and waiters whose leases have not ended.
func (d *database) alive(t testing.TB) int {
	t.Helper()
	return d.count(t, fmt.Sprintf("SELECT count(*) FROM relock_holds WHERE kept_until > %d", time.Now().UnixMicro()))
}
