package dbtest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestEachCallMakesANewDatabase(t *testing.T) {
	for _, c := range []struct {
		engine *engine
		make   func(testing.TB) string
	}{{&postgres, Postgres}, {&mariadb, MariaDB}} {
		t.Run(c.engine.name, func(t *testing.T) {
			t.Parallel()
			first, second := c.make(t), c.make(t)
			require.NotEqual(t, first, second)
			out, err := c.engine.server.ask(t.Context(), "SELECT 1 + 1")
			require.NoError(t, err)
			require.Equal(t, "2", strings.TrimSpace(out))
			_, err = c.engine.server.ask(t.Context(), "CREATE DATABASE test1")
			require.ErrorContains(t, err, "test1")
		})
	}
}

func TestAServerEndsWithItsData(t *testing.T) {
	e := engine{
		name: postgres.name, account: postgres.account, programs: postgres.programs,
		prepare: postgres.prepare, serve: postgres.serve, query: postgres.query,
		where: postgres.where, stop: postgres.stop,
	}
	s, _ := e.database(t)
	require.NoError(t, e.end())
	require.NoDirExists(t, s.dir)
	_, err := s.ask(t.Context(), "SELECT 1")
	require.Error(t, err)
	require.NoError(t, e.end(), "there is nothing left to stop")
}

func TestACommitOutlastsACrash(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *Server{
		"PostgreSQL": func(t testing.TB) *Server { t.Helper(); s, _ := StartPostgres(t); return s },
		"MariaDB":    func(t testing.TB) *Server { t.Helper(); s, _ := StartMariaDB(t); return s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.s.create(t, "kept")
			s.Crash()
			_, err := s.s.ask(t.Context(), "SELECT 1")
			require.Error(t, err)
			s.Restart()
			_, err = s.s.ask(t.Context(), "CREATE DATABASE kept")
			require.ErrorContains(t, err, "exists")
		})
	}
}

func TestAPoolerThatEndsByItselfIsStartedAnew(t *testing.T) {
	p := StartPooler(t, "127.0.0.1:1", "transaction", 1)
	first := p.proc
	require.NoError(t, first.Kill()) // and not by Crash
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.proc != first && p.proc.Alive()
	}, 30*time.Second, 10*time.Millisecond)
	p.Crash()
	require.False(t, p.proc.Alive())
	p.Restart()
}
