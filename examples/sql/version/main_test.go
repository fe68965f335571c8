package main

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/examples/sql/stage"
	"github.com/go-relock/relock/internal/dbtest"
	"github.com/go-relock/relock/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func TestEmbedded(t *testing.T) { testTell(t, stage.URLs{}) }

func TestRealServers(t *testing.T) {
	testTell(t, stage.URLs{Redis: redistest.Shared(t).URL(), Database: dbtest.Postgres(t)})
}

// testTell runs the program: the lock saves edits, and the version catches a late editor.
func testTell(t *testing.T, urls stage.URLs) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, stage.Run(ctx, &out, "version", urls, tell), "%s", &out)
	require.Regexp(t, `^without the lock: 24 lines written, \d+ edits made, [1-9]\d* thrown away, after .*
with the lock: 24 lines written, 24 edits made, 0 thrown away, after .*
late: one editor reads version 0, and stands still for longer than its lease
late: another editor gets the lock, and writes
late: the first editor writes: conflict: the document has another version by now
late: the first editor begins again, and both lines are in the document
$`, out.String())
}
