package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	if err := dbtest.Stop(); err != nil {
		code = max(code, 1)
	}
	os.Exit(code)
}

func TestAServiceMovesWithoutAServer(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, "", "", 3), "%s", &out)
	require.Contains(t, out.String(), "never two at once, and every token grew")
}

func TestAServiceMovesFromRedisToPostgreSQLAndBack(t *testing.T) {
	var out bytes.Buffer
	server := redistest.Start(t)
	require.NoError(t, run(t.Context(), &out, server.URL(), dbtest.Postgres(t), 20), "%s", &out)
	require.Contains(t, out.String(), "never two at once, and every token grew")
	require.NotContains(t, out.String(), "\n0 lines")
}

// A ledger that accepts everything shows nothing.
func TestTheLedgerRefusesTwoAtOnceAndAnOldToken(t *testing.T) {
	l := &ledger{tokens: map[string]int64{"Redis": 7}, lines: map[string]int{}}
	require.NoError(t, l.check("database", 1))
	require.ErrorContains(t, l.check("Redis", 7), "token 7 of Redis after 7")
	l.inside.Add(1)
	require.ErrorContains(t, l.add(t.Context()), "two processes are in at once")
}
