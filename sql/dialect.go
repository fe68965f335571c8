package relocksql

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/go-relock/relock/fence"
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
	schema   string
	begin    []string // begin a transaction that sees what was committed before each of its statements
	now      string   // microseconds since 1970, by the clock of the database
	max      string   // the function that returns the larger argument
	lock     string   // the end of a SELECT that locks its row
	insert   string   // the beginning of an INSERT that does nothing if the row exists
	inserted string   // the end of that INSERT
	grant    string   // gives a lock to a waiter
	gone     string   // notifies a client that a hold is gone; empty: the dialect has no notifications
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
		begin:  []string{"BEGIN ISOLATION LEVEL READ COMMITTED; " + idleLimit},
		now:    "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
		max:    "greatest", lock: " FOR UPDATE",
		insert: "INSERT INTO", inserted: " ON CONFLICT DO NOTHING",
		grant: `WITH granted AS (` + plainGrant + ` RETURNING inbox, arrival, id)
			SELECT pg_notify(inbox, 'grant ' || arrival || ' ' || encode(id, 'hex')) FROM granted WHERE ` + byListener,
		gone: `SELECT pg_notify(inbox, 'gone 0 ' || encode(id, 'hex')) FROM relock_holds
			WHERE name = ? AND id = ? AND ` + byListener,
	},
	MySQL: {
		schema: mysqlSchema,
		begin:  []string{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"},
		now:    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
		max:    "GREATEST", lock: " FOR UPDATE",
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
		"{insert}", g.insert, "{/insert}", g.inserted).Replace(statement)
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

// Create creates the tables if they do not exist. Errors: those of the database; a dialect that
// does not exist.
func Create(ctx context.Context, db *sql.DB, d Dialect) error {
	if err := known(d); err != nil {
		return err
	}
	for _, statement := range Schema(d) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("relocksql: create the tables: %w", err)
		}
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
	down                   // the database has not run the statement, and serves nobody now
)

// refusedBySQLite matches errors of a missing table or column, and of a file that is read-only.
var refusedBySQLite = regexp.MustCompile(`SQL logic error|no such|readonly database`)

// judge reads an error of a driver.
func judge(err error) verdict {
	var postgres interface{ SQLState() string }
	var my *mysql.MySQLError
	switch {
	case errors.As(err, &postgres):
		return judgePostgres(postgres.SQLState())
	case errors.As(err, &my):
		return judgeMySQL(my.Number)
	case strings.Contains(err.Error(), "is locked"): // SQLITE_BUSY and SQLITE_LOCKED of each driver
		return again
	case refusedBySQLite.MatchString(err.Error()), errors.Is(err, sql.ErrConnDone):
		return refused
	default:
		return silent
	}
}

// judgePostgres reads an SQLSTATE. A standby is read-only: the connections of a failover get there
// for a while. A pooler that loses the connection to its server says so with class 08.
func judgePostgres(state string) verdict {
	class := state[:min(2, len(state))]
	switch {
	case class == "08", state == "40003": // connection; statement completion unknown
		return silent
	case class == "40", class == "55": // serialization failure, deadlock; lock not available
		return again
	case class == "53", class == "57", class == "25": // resources, shutdown or cancel, read-only or idle for too long
		return down
	default:
		return refused
	}
}

// The errors 2000 to 2999 are those of clients. A proxy sends them as the client of its server.
const firstClientError, lastClientError = 2000, 2999

// judgeMySQL reads the number of an error.
func judgeMySQL(number uint16) verdict {
	switch {
	case number >= firstClientError && number <= lastClientError:
		return silent
	case slices.Contains([]uint16{1213, 1205, 1020, 3101}, number): // deadlock, lock wait, changed row, group conflict
		return again
	case slices.Contains([]uint16{1040, 1053, 1203, 1290, 1836, 1792, 1047, 1927, 4031, 1317, 1969, 3024}, number):
		// connections, shutdown, read-only, killed, canceled, too slow
		return down
	default:
		return refused
	}
}
