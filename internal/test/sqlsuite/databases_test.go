package sqlsuite

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/test/dbtest"
)

func TestMain(m *testing.M) {
	os.Exit(dbtest.Main(m))
}

// database is a kind of SQL database.
type database struct {
	kind    string
	dialect fence.Dialect
	driver  string
	source  func(testing.TB) string // makes an empty database and returns how to open it
	levels  []sql.IsolationLevel
	schema  string           // selects the name of the schema
	create  string           // creates the log
	add     string           // appends a resource and a token to the log
	locks   string           // enters a resource as package fence does, without the comparison
	again   func(error) bool // reports an error after which a transaction should be tried again
}

// levels are the isolation levels of PostgreSQL and MariaDB.
var levels = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead,
	sql.LevelSerializable,
}

var databases = []database{
	{
		kind: "PostgreSQL", dialect: fence.Postgres,
		driver: "pgx", source: dbtest.Postgres,
		levels: levels,
		schema: `SELECT current_schema()`,
		create: `CREATE TABLE log (id bigserial PRIMARY KEY, resource text NOT NULL, token bigint NOT NULL)`,
		add:    `INSERT INTO log (resource, token) VALUES ($1, $2)`,
		locks: `INSERT INTO relock_fence (resource, token) VALUES ($1, $2)
			ON CONFLICT (resource) DO UPDATE SET token = excluded.token`,
		again: func(err error) bool {
			var failure *pgconn.PgError
			return errors.As(err, &failure) && (failure.Code == "40001" || failure.Code == "40P01")
		},
	},
	{
		kind: "MariaDB", dialect: fence.MySQL,
		driver: "mysql", source: dbtest.MariaDB,
		levels: levels,
		schema: `SELECT database()`,
		create: `CREATE TABLE log (id BIGINT AUTO_INCREMENT PRIMARY KEY, resource VARCHAR(50) NOT NULL,
			token BIGINT NOT NULL) ENGINE=InnoDB`,
		add:   `INSERT INTO log (resource, token) VALUES (?, ?)`,
		locks: `REPLACE INTO relock_fence (resource, token) VALUES (?, ?)`,
		again: func(err error) bool {
			var failure *mysql.MySQLError
			return errors.As(err, &failure) &&
				(failure.Number == 1213 || failure.Number == 1205 || failure.Number == 1020)
		},
	},
	sqliteWith("DELETE"),
	sqliteWith("WAL"),
}

// sqliteWith is SQLite with a kind of journal. Its transactions have one isolation level.
func sqliteWith(journal string) database {
	return database{
		kind: "SQLite " + journal, dialect: fence.SQLite,
		driver: "sqlite", source: sqliteFile(journal),
		levels: []sql.IsolationLevel{sql.LevelDefault},
		schema: `SELECT 'main'`,
		create: `CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL,
			token INTEGER NOT NULL)`,
		add:   `INSERT INTO log (resource, token) VALUES (?, ?)`,
		locks: `REPLACE INTO relock_fence (resource, token) VALUES (?, ?)`,
		again: busy,
	}
}

// rig is a test with a database, the fence's table in it, and the log.
type rig struct {
	*testing.T
	database
	db     *sql.DB
	fences *fence.Table
}

// each runs a test on every kind of database.
func each(t *testing.T, test func(t *rig)) {
	t.Helper()
	for _, d := range databases {
		t.Run(d.kind, func(t *testing.T) {
			t.Parallel()
			db := open(t, d.driver, d.source(t))
			fences := fence.SQL(d.dialect)
			require.NoError(t, fences.Create(t.Context(), db))
			_, err := db.ExecContext(t.Context(), d.create)
			require.NoError(t, err)
			test(&rig{T: t, database: d, db: db, fences: fences})
		})
	}
}

func open(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(10)
	return db
}

// sqliteFile returns the source of a new file whose writers wait for each other.
func sqliteFile(journal string) func(testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		return "file:" + filepath.Join(t.TempDir(), "test.db") +
			"?_pragma=busy_timeout(10000)&_pragma=synchronous(OFF)&_pragma=journal_mode(" + journal + ")"
	}
}

// busy reports SQLITE_BUSY, which has the number 5 in its lowest byte.
func busy(err error) bool {
	var failure *sqlite.Error
	return errors.As(err, &failure) && failure.Code()&0xff == 5
}
