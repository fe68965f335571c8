package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// requireStory runs the program: transfers happen once, and a late one is refused.
func requireStory(t *testing.T, redisURL string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, redisURL), "%s", &out)
	require.Regexp(t, `^late:  has the locks of ann and ben, reads 100\.00 and 100\.00; .*
rush:  60 requests for 48 transfers on 2 instances: 48 booked, 12 got the receipt of the first, after .*
late:  books: fence: a newer token has touched the resource: .*
late:  tries again with new locks: booked, ann has .*
audit: 49 transfers, 98 entries, 0 wrong balances; all accounts together have 400\.00
$`, out.String())
}

func TestTheStoryIsToldWithoutAServer(t *testing.T) { requireStory(t, "") }

func TestTheStoryIsToldOnAServer(t *testing.T) { requireStory(t, redistest.Shared(t).URL()) }

func TestErrorsOfURLsDoNotRepeatThemAsTheyMayHaveAPassword(t *testing.T) {
	err := run(t.Context(), io.Discard, "redis://user:secret@localhost:port")
	require.ErrorContains(t, err, "REDIS_URL")
	require.NotContains(t, err.Error(), "secret")
}

func TestAnInterruptIsReportedAsSuch(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		interrupt(cause)
		return len(line), nil
	}), "")
	require.Equal(t, cause, err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
