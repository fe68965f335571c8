package main

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/examples/sql/stage"
	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

func TestEmbedded(t *testing.T) { testTell(t, stage.URLs{}) }

func TestRealServers(t *testing.T) {
	testTell(t, stage.URLs{Redis: redistest.Shared(t).URL(), Database: dbtest.Postgres(t)})
}

// testTell runs the program: transfers happen once, and a late one is refused.
func testTell(t *testing.T, urls stage.URLs) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, stage.Run(ctx, &out, "transfer", urls, tell), "%s", &out)
	require.Regexp(t, `^late:  has the locks of ann and ben, reads 100\.00 and 100\.00; .*
rush:  60 requests for 48 transfers on 2 instances: 48 booked, 12 got the receipt of the first, after .*
late:  books: fence: a newer token has touched the resource: .*
late:  tries again with new locks: booked, ann has .*
audit: 49 transfers, 98 entries, 0 wrong balances; all accounts together have 400\.00
$`, out.String())
}
