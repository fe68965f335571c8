package relocksql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

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

// verdict is what an error of the database says of its statement.
type verdict int

const (
	silent  verdict = iota // no answer: the connection is lost, or the context is done
	refused                // the database refuses the statement, and would refuse it again
	again                  // the database has undone the transaction, and asks to try it again
	down                   // the database has not run the statement, and may run it later
)

// What is to be done about a refusal.
const (
	createTables = "create the tables with relocksql.Create, or the files of store/sql/schema"
	grantRights  = "grant SELECT, INSERT, UPDATE and DELETE on relock_locks and relock_holds"
	seeAllRows   = "no policy, trigger or rule may hide or keep rows: with row-level security, use the owner of the tables, " +
		"or a role with BYPASSRLS"
	otherLogin = "mend the user, the password or the database of the connection string"
	otherPool  = "set the pool_mode of PgBouncer to transaction or session"
	noPrepared = "a pooler changes the session: add default_query_exec_mode=exec to the connection string"
	otherLog   = "set binlog_format to ROW or MIXED"
	closeLast  = "close the client and the store before the *sql.DB"
	sameFile   = "nothing may clean up or replace the file: open the *sql.DB and the store anew"
	oneMemory  = "in memory, SQLite needs SetMaxOpenConns(1) or cache=shared"
	otherFile  = "SQLite needs a file of its own that it may write"
)

// judge reads an error of a driver. The advice says what is to be done about a refusal. A statement
// of this package is right, so an error that judge does not know may pass.
func judge(d Dialect, err error) (v verdict, advice string) {
	var postgres interface{ SQLState() string }
	var my *mysql.MySQLError
	var network *net.OpError
	var name *net.DNSError
	switch {
	case errors.Is(err, errMoved):
		return refused, sameFile
	case errors.Is(err, errMemory):
		return refused, oneMemory
	case errors.Is(err, errNoEffect), errors.Is(err, errPolicies):
		return refused, seeAllRows
	case errors.As(err, &postgres):
		return judgePostgres(postgres.SQLState(), err.Error())
	case errors.As(err, &my):
		return judgeMySQL(my.Number, string(my.SQLState[:]))
	case strings.HasSuffix(err.Error(), "sql: database is closed"): // database/sql does not export the error
		return refused, closeLast
	case errors.Is(err, driver.ErrBadConn), errors.As(err, &name), errors.As(err, &network) && network.Op == "dial":
		return down, ""
	case d == SQLite:
		return judgeSQLite(err.Error())
	default:
		return silent, ""
	}
}

// judgePostgres reads an SQLSTATE. A standby is read-only: the connections of a failover get there
// for a while. A pooler that loses the connection to its server says so with class 08, and so does
// one that serves no transactions.
func judgePostgres(state, text string) (verdict, string) {
	class := state[:min(2, len(state))]
	switch {
	case state == "08P01" && strings.Contains(text, "statement pooling mode"):
		return refused, otherPool
	case class == "08", state == "40003": // connection; statement completion unknown
		return silent, ""
	case class == "40", class == "55": // serialization failure, deadlock; lock not available
		return again, ""
	case class == "26", state == "42P05": // a prepared statement is missing, or is there already
		return refused, noPrepared
	case state == "42501" && strings.Contains(text, "row-level security"):
		return refused, seeAllRows
	case state == "42501": // insufficient privilege
		return refused, grantRights
	case class == "42", class == "3F": // syntax, or no such table, column or schema
		return refused, createTables
	case class == "28", class == "3D": // authorization, no such database
		return refused, otherLogin
	default:
		return down, ""
	}
}

// The errors 2000 to 2999 are those of clients. A proxy sends them as the client of its server.
const firstClientError, lastClientError = 2000, 2999

// judgeMySQL reads the number of an error, and its SQLSTATE. Class 42 has limits of accounts, too.
func judgeMySQL(number uint16, state string) (verdict, string) {
	class := state[:min(2, len(state))]
	switch {
	case number >= firstClientError && number <= lastClientError:
		return silent, ""
	case slices.Contains([]uint16{1213, 1020, 3101, 1568}, number):
		// deadlock, changed row, group conflict; the transaction of somebody else is open
		return again, ""
	case slices.Contains([]uint16{1040, 1203, 1226, 1053, 1047, 1927, 1205}, number):
		// connections, shutdown, killed, a row that is locked for long
		return down, ""
	case slices.Contains([]uint16{1142, 1143, 1227, 1370}, number): // denied
		return refused, grantRights
	case slices.Contains([]uint16{1044, 1045, 1046, 1049, 1130, 1820, 1862}, number), class == "28", class == "3D":
		return refused, otherLogin
	case number == 1665: // statements in the binary log
		return refused, otherLog
	case class == "42":
		return refused, createTables
	case class == "08":
		return silent, ""
	default:
		return down, ""
	}
}

// isReadOnly says whether a statement was refused because its transaction is read-only.
func isReadOnly(err error) bool {
	var postgres interface{ SQLState() string }
	var my *mysql.MySQLError
	return errors.As(err, &postgres) && postgres.SQLState() == "25006" || errors.As(err, &my) && my.Number == 1792
}

// judgeSQLite reads the text of an error. The texts are those of SQLite, in each of its drivers;
// the drivers give the code different types.
func judgeSQLite(text string) (verdict, string) {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case has("is locked"): // SQLITE_BUSY and SQLITE_LOCKED
		return again, ""
	case has("no such table", "no such column", "SQL logic error"):
		return refused, createTables + "; " + oneMemory
	case has("readonly database", "file is not a database", "unable to open database", "disk image is malformed"):
		return refused, otherFile
	default:
		return silent, ""
	}
}
