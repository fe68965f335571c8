package dbtest

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

var postgres = engine{
	name:     "PostgreSQL",
	account:  "postgres",
	install:  "apt-get install postgresql postgresql-client, brew install postgresql",
	programs: []string{"initdb", "postgres", "psql"},
	prepare: func(s *server) []string {
		return []string{
			s.path["initdb"], "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8",
			"--locale=C", "--pgdata=" + s.data(),
		}
	},
	serve: func(s *server) []string {
		args := []string{s.path["postgres"], "-D", s.data(), "-p", strconv.Itoa(s.port)}
		commit := "synchronous_commit=off"
		if s.durable {
			commit = "synchronous_commit=on"
		}
		for _, setting := range []string{
			"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=400",
			"fsync=off", commit, "full_page_writes=off",
		} {
			args = append(args, "-c", setting)
		}
		return args
	},
	query: func(s *server, statement string) []string {
		return []string{
			s.path["psql"], "--no-psqlrc", "--quiet", "--no-align", "--tuples-only",
			"--dbname=" + s.postgresURL("postgres"), "--command=" + statement,
		}
	},
	where: "SHOW data_directory",
	stop:  syscall.SIGQUIT, // its processes end at once, and shared memory is given back
}

// Postgres returns the URL of a new and empty database of PostgreSQL, for a superuser.
func Postgres(t testing.TB) (url string) {
	t.Helper()
	s, database := postgres.database(t)
	return s.postgresURL(database)
}

// StartPostgres starts a server of PostgreSQL for one test, and returns the URL of its database.
func StartPostgres(t testing.TB) (s *Server, url string) {
	t.Helper()
	s = postgres.own(t)
	return s, s.s.postgresURL(ownDatabase)
}

func (s *server) postgresURL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }
