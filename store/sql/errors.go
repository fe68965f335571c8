package relocksql

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/go-relock/relock/store"
)

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

// isAnswer says whether an error is an answer of this package. The transaction commits behind an
// answer.
func isAnswer(err error) bool {
	var busy *store.Busy
	return err == nil || errors.Is(err, store.ErrGone) || errors.Is(err, store.ErrKind) ||
		errors.Is(err, store.ErrDeadlock) || errors.As(err, &busy)
}

// refusal is the error of a command that the database refuses.
func refusal(err error, advice string) error {
	if advice == "" {
		return fmt.Errorf("relocksql: %w", err)
	}
	return fmt.Errorf("relocksql: %w (%s)", err, advice)
}

func (s *Store) judge(err error) verdict {
	v, _ := judge(s.dialect, err)
	return v
}

// gone returns the error of a command of a hold. The hold is gone if its file is.
func gone(err error) error {
	if errors.Is(err, errMoved) {
		return store.ErrGone
	}
	return err
}

// errNoEffect is the error of a statement that succeeds, and has no effect.
var errNoEffect = errors.New("a row of relock_locks or relock_holds is there, and cannot be read or written")
