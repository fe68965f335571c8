package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func requireStory(t *testing.T, url string) {
	t.Helper()
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, url), "%s", &out)
	require.Equal(t, 5, strings.Count(out.String(), "\n"), "%s", &out)
	require.Regexp(t, `shipping refuses +the payment is undone`, out.String())
}

func TestTheStoryWithoutAServer(t *testing.T) { requireStory(t, "") }

func TestTheStoryOnAServer(t *testing.T) { requireStory(t, redistest.Start(t).URL()) }

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer interrupt()
	require.Equal(t, context.DeadlineExceeded, run(ctx, io.Discard, ""))
}
