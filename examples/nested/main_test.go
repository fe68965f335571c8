package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

// run checks for itself that it tells what it should.
func TestNestedCallsBehaveAsTold(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, ""), "%s", &out)
	require.Contains(t, out.String(), "payment.Charge(7)    in, count 3")
}

func TestNestedCallsBehaveAsToldOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, server.URL()), "%s", &out)
}

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("payment.Charge")) {
			interrupt(cause)
		}
		return len(line), nil
	}), "")
	require.Equal(t, cause, err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
