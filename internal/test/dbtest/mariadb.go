package dbtest

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

var mariadb = engine{
	name:     "MariaDB",
	account:  "mysql",
	install:  "apt-get install mariadb-server mariadb-client, brew install mariadb",
	programs: []string{"mariadb-install-db", "mariadbd", "mariadb"},
	prepare: func(s *server) []string {
		return []string{
			s.path["mariadb-install-db"], "--no-defaults", "--datadir=" + s.data(), "--tmpdir=" + s.dir,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
			"--innodb-flush-log-at-trx-commit=0",
		}
	},
	serve: func(s *server) []string {
		commit := "--innodb-flush-log-at-trx-commit=0"
		if s.durable {
			commit = "--innodb-flush-log-at-trx-commit=2"
		}
		return []string{
			s.path["mariadbd"], "--no-defaults", "--datadir=" + s.data(), "--tmpdir=" + s.dir,
			"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(s.port),
			"--socket=" + filepath.Join(s.dir, "socket"), "--pid-file=" + filepath.Join(s.dir, "pid"),
			"--max-connections=400", "--skip-name-resolve", commit,
		}
	},
	query: func(s *server, statement string) []string {
		return []string{
			s.path["mariadb"], "--no-defaults", "--protocol=tcp", "--host=127.0.0.1",
			"--port=" + strconv.Itoa(s.port), "--user=root", "--batch", "--skip-column-names",
			"--execute=" + statement,
		}
	},
	where: "SELECT @@datadir",
	stop:  syscall.SIGKILL, // there is no data to save
}

// MariaDB returns the name of a new and empty database of MariaDB for the root user, in the form of
// github.com/go-sql-driver/mysql.
func MariaDB(t testing.TB) (dsn string) {
	t.Helper()
	s, database := mariadb.database(t)
	return s.mariadbDSN(database)
}

// StartMariaDB starts a server of MariaDB for one test, and returns the name of its database.
func StartMariaDB(t testing.TB) (s *Server, dsn string) {
	t.Helper()
	s = mariadb.own(t)
	return s, s.s.mariadbDSN(ownDatabase)
}

func (s *server) mariadbDSN(database string) string {
	return fmt.Sprintf("root@tcp(127.0.0.1:%d)/%s", s.port, database)
}
