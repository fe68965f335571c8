package relocksql

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/schema"
)

// Dialect is the SQL of a database. The dialects are those of package fence.
type Dialect = fence.Dialect

// The dialects.
const (
	Postgres = fence.Postgres // 10 or newer
	MySQL    = fence.MySQL    // MySQL 5.7 or newer, MariaDB 10.3 or newer, with InnoDB
	SQLite   = fence.SQLite   // 3.42 or newer
)

//go:embed schema/postgres.sql
var postgresSchema string

//go:embed schema/mysql.sql
var mysqlSchema string

//go:embed schema/sqlite.sql
var sqliteSchema string

// grammar is the part of the statements in which the dialects differ.
type grammar struct {
	schema     string
	begin      []string // begin a transaction that sees what was committed before each of its statements
	end        string   // follows COMMIT and ROLLBACK: the session begins nothing by itself
	alone      string   // the end of a WHERE that finds nothing in a session without autocommit
	open       string   // the end of a SELECT that adds a row without an ID in such a session
	autocommit string   // makes each statement of a session commit by itself
	now        string   // microseconds since 1970, by the clock of the database
	max        string   // the function that returns the larger argument
	lock       string   // the end of a SELECT that locks its row
	wait       string   // the end of lock that bounds the wait in seconds: an attempt that gives up leaves its wait to the server
	insert     string   // the beginning of an INSERT that does nothing if the row exists
	inserted   string   // the end of that INSERT
	returning  string   // the end of an INSERT that fails if its row cannot be read
	grant      string   // gives a lock to a waiter
	tell       string   // notifies the client of a hold by a verb; empty: the dialect has no notifications
}

// idleLimit ends a PostgreSQL transaction of a process that was stopped between two statements.
const idleLimit = "SET LOCAL idle_in_transaction_session_timeout = 5000"

const plainGrant = `UPDATE relock_holds SET state = 1, kept_until = {now} + keep, changes = changes + 1
	WHERE name = ? AND id = ?`

// byListener compares the beginning of the inbox: that of a store without a listener differs.
const byListener = `left(inbox, 7) = 'relock_'`

var grammars = map[Dialect]grammar{
	Postgres: {
		schema: postgresSchema,
		begin:  []string{"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; " + idleLimit},
		now:    "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
		max:    "greatest", lock: " FOR UPDATE",
		insert: "INSERT INTO", inserted: " ON CONFLICT DO NOTHING", returning: " RETURNING id",
		grant: `WITH granted AS (` + plainGrant + ` RETURNING inbox, arrival, id)
			SELECT CASE WHEN ` + byListener + `
				THEN pg_notify(inbox, 'grant ' || arrival || ' ' || encode(id, 'hex'))::text END FROM granted`,
		tell: `SELECT pg_notify(inbox, ?::text || ' 0 ' || encode(id, 'hex')) FROM relock_holds
			WHERE name = ? AND id = ? AND ` + byListener,
	},
	MySQL: {
		schema: mysqlSchema,
		begin:  []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION READ WRITE"},
		end:    " AND NO CHAIN NO RELEASE", wait: " /*M!100300 WAIT %d */",
		alone: " AND @@autocommit = 1", open: " UNION ALL SELECT '', 0 FROM DUAL WHERE @@autocommit = 0",
		autocommit: "SET autocommit = 1",
		now:        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		max:        "GREATEST", lock: " FOR UPDATE",
		insert: "INSERT IGNORE INTO", grant: plainGrant,
	},
	SQLite: {
		schema: sqliteSchema,
		begin:  []string{"BEGIN IMMEDIATE"},
		now:    "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
		max:    "max", insert: "INSERT OR IGNORE INTO", grant: plainGrant,
	},
}

// text writes a statement in the dialect of the store.
func (s *Store) text(statement string) string {
	g := &s.grammar
	statement = strings.NewReplacer("{now}", g.now, "{max}", g.max, "{lock}", g.lock,
		"{insert}", g.insert, "{/insert}", g.inserted, "{returning}", g.returning, "{alone}", g.alone, "{open}", g.open,
		"{all}", " LIMIT 2147483647").Replace(statement)
	if s.dialect != Postgres {
		return statement
	}
	parts := strings.Split(statement, "?")
	for i := range parts[1:] {
		parts[i] += "$" + strconv.Itoa(i+1)
	}
	return strings.Join(parts, "")
}

// Schema returns the statements that create the tables if they do not exist, for migrations. Schema
// returns nothing for a dialect that does not exist.
func Schema(d Dialect) []string {
	if grammars[d].schema == "" {
		return nil
	}
	return strings.Split(strings.TrimSpace(grammars[d].schema), ";\n")
}

// Create creates the tables if they do not exist. Many processes may call Create at once. Errors:
// those of the database; a dialect that does not exist. In a new file of SQLite that another process
// has just opened, Create may fail with "database is locked": call it again.
func Create(ctx context.Context, db *sql.DB, d Dialect) error {
	if err := known(d); err != nil {
		return err
	}
	if err := schema.Create(ctx, db, Schema(d)...); err != nil {
		return fmt.Errorf("relocksql: create the tables: %w", err)
	}
	return nil
}

func known(d Dialect) error {
	if _, ok := grammars[d]; !ok {
		return fmt.Errorf("relocksql: there is no dialect %d: it must be Postgres, MySQL or SQLite", d)
	}
	return nil
}
