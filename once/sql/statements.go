package oncesql

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-relock/relock/fence"
)

// statements are the statements for one table.
type statements struct {
	create []string

	insert string // id, name, input, attempt: does nothing if the id exists
	read   string // id: returns name, input, attempt, result
	finish string // result, id, attempt

	now    string // returns the time in milliseconds
	old    string // time, limit: returns the ids that were created until then
	remove string // up to a list of ids; see remover
}

// identifiers are a table's name, or a schema's and a table's. PostgreSQL keeps 63 bytes of a name,
// and the name of the index is 8 bytes longer than that of the table.
var identifiers = regexp.MustCompile(`^(?:([A-Za-z_][A-Za-z0-9_]{0,54})\.)?([A-Za-z_][A-Za-z0-9_]{0,54})$`)

// clocks are expressions of the milliseconds since 1970. They do not depend on the time zone of the
// session.
var clocks = map[fence.Dialect]string{
	fence.Postgres: "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
	fence.MySQL:    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) DIV 1000",
	fence.SQLite:   "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}

// newStatements returns the statements for a table. Errors: a wrong dialect or name.
func newStatements(d fence.Dialect, table string) (statements, error) {
	clock, ok := clocks[d]
	if !ok {
		return statements{}, fmt.Errorf(
			"oncesql: there is no dialect %d: it must be fence.Postgres, fence.MySQL or fence.SQLite", d)
	}
	parts := identifiers.FindStringSubmatch(table)
	if parts == nil {
		return statements{}, fmt.Errorf("oncesql: %q is no name of a table: it must be 1 to 55 letters, digits "+
			"and underscores, not beginning with a digit, with or without a schema and a dot before them", table)
	}
	quoted := quote(d, parts[2])
	if parts[1] != "" {
		quoted = quote(d, parts[1]) + "." + quoted
	}
	locking := ""
	if d == fence.MySQL {
		// A transaction may have a snapshot from before the wait of the insert, for example if a
		// proxy began it WITH CONSISTENT SNAPSHOT. A locking read returns the newest row at every
		// isolation level. It also leaves it to the first read of the function to take the
		// snapshot.
		locking = " FOR UPDATE"
	}
	return statements{
		create: create(d, parts[1], parts[2]),
		insert: bind(d, "INSERT INTO "+quoted+" (id, name, input, attempt, created) VALUES (?, ?, ?, ?, "+clock+")"+
			unlessExists(d)),
		read: bind(d, "SELECT name, input, attempt, result FROM "+quoted+" WHERE id = ?"+locking),
		// The attempt is compared so that a row of another call is never written.
		finish: bind(d, "UPDATE "+quoted+" SET result = ? WHERE id = ? AND attempt = ?"),
		now:    "SELECT " + clock,
		old:    bind(d, "SELECT id FROM "+quoted+" WHERE created <= ? ORDER BY created LIMIT ?"),
		remove: removal(d, quoted) + " WHERE created <= ? AND id IN (?",
	}, nil
}

// unlessExists returns the end of an insert that does nothing if the id exists. Each form waits for
// another transaction that has inserted the id.
func unlessExists(d fence.Dialect) string {
	if d == fence.MySQL {
		// INSERT IGNORE would also turn other errors into warnings, and store what does not fit. To
		// catch the error of a duplicate key would need the error type of the driver. The update
		// changes nothing, and locks the row until the end of the transaction.
		return " ON DUPLICATE KEY UPDATE id = id"
	}
	// DO UPDATE would leave a dead row in PostgreSQL for each call that finds a result.
	return " ON CONFLICT (id) DO NOTHING"
}

// removal returns the start of the statement that removes rows by their ids.
func removal(d fence.Dialect, quoted string) string {
	if d == fence.MySQL {
		// MySQL locks each row that it looks at. The hint keeps it from looking at rows that other
		// transactions have just inserted, and only this form of a DELETE may have a hint.
		return "DELETE once FROM " + quoted + " AS once FORCE INDEX (PRIMARY)"
	}
	return "DELETE FROM " + quoted
}

// create returns the statements that create the table and the index that [Store.Purge] uses.
func create(d fence.Dialect, schema, table string) []string {
	prefix := ""
	if schema != "" {
		prefix = quote(d, schema) + "."
	}
	quoted, index := quote(d, table), quote(d, table+"_created")
	start := "CREATE TABLE IF NOT EXISTS " + prefix + quoted + " (\n"
	switch d {
	case fence.MySQL: // it has no CREATE INDEX IF NOT EXISTS
		return []string{start +
			"\tid BINARY(32) NOT NULL PRIMARY KEY,\n" +
			"\tname VARBINARY(" + strconv.Itoa(maxKey) + ") NOT NULL,\n" +
			"\tinput BINARY(32) NOT NULL,\n" +
			"\tattempt BINARY(16) NOT NULL,\n" +
			"\tresult LONGBLOB,\n" +
			"\tcreated BIGINT NOT NULL,\n" +
			"\tINDEX " + index + " (created)\n" +
			") ENGINE=InnoDB"}
	case fence.SQLite: // the schema stands before the index, and the table is in the same schema
		return []string{start + columns("BLOB", "INTEGER") + ")",
			"CREATE INDEX IF NOT EXISTS " + prefix + index + " ON " + quoted + " (created)"}
	default: // the index is in the schema of the table
		return []string{start + columns("bytea", "bigint") + ")",
			"CREATE INDEX IF NOT EXISTS " + index + " ON " + prefix + quoted + " (created)"}
	}
}

// columns returns the columns, with the types for bytes and for a number.
func columns(bytes, number string) string {
	return "\tid " + bytes + " NOT NULL PRIMARY KEY,\n" +
		"\tname " + bytes + " NOT NULL,\n" +
		"\tinput " + bytes + " NOT NULL,\n" +
		"\tattempt " + bytes + " NOT NULL,\n" +
		"\tresult " + bytes + ",\n" +
		"\tcreated " + number + " NOT NULL\n"
}

// remover returns the statement that removes n ids, at least one, if they were created until a
// time.
func (s statements) remover(d fence.Dialect, n int) string {
	return bind(d, s.remove+strings.Repeat(", ?", n-1)+")")
}

// quote returns a name as it stands in statements.
func quote(d fence.Dialect, name string) string {
	if d == fence.MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// bind replaces each question mark by the parameter of the dialect. Statements have no question
// marks but for parameters.
func bind(d fence.Dialect, statement string) string {
	if d != fence.Postgres {
		return statement
	}
	var out strings.Builder
	for i, part := range strings.Split(statement, "?") {
		if i > 0 {
			out.WriteString("$" + strconv.Itoa(i))
		}
		out.WriteString(part)
	}
	return out.String()
}
