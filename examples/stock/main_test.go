package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

func TestNothingIsOversoldWithTheLock(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, ""), "%s", &out)
	require.Regexp(t, `with the lock:    25 in stock, 60 buyers: 25 sold, 35 told it is sold out, 0 left`, out.String())
	require.Regexp(t, `without the lock: 25 in stock, 60 buyers: \d+ sold and still \d+ left, in .*: oversold`, out.String())
	require.Regexp(t, `waits 250ms, then 503 busy, ask again later \(Retry-After: 1\)`, out.String())
	require.Regexp(t, `the same sale: 204, 2 left`, out.String())
	require.Regexp(t, `a sale gets through: 204\n  taking stock ends:   500 interrupted: context canceled; relock: .* lost`, out.String())
}

func TestEachOutcomeHasItsStatus(t *testing.T) {
	locked := &relock.LockedError{Name: "product:x", TTL: 2600 * time.Millisecond}
	for _, c := range []struct {
		err        error
		status     int
		retryAfter string
	}{
		{nil, http.StatusNoContent, ""},
		{errSoldOut, http.StatusConflict, ""},
		{locked, http.StatusServiceUnavailable, "3"},
		{&relock.LockedError{Name: "product:x"}, http.StatusServiceUnavailable, "1"},
		{errors.Join(context.Canceled, &relock.LostError{Name: "product:x"}), http.StatusInternalServerError, ""},
		{errors.New("no space left"), http.StatusInternalServerError, ""},
	} {
		w := httptest.NewRecorder()
		answer(w, c.err)
		require.Equal(t, c.status, w.Code, "%v", c.err)
		require.Equal(t, c.retryAfter, w.Header().Get("Retry-After"), "%v", c.err)
	}
}

func TestItIsTheSameOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, server.URL()), "%s", &out)
	require.Contains(t, out.String(), "25 sold, 35 told it is sold out, 0 left")
}

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	server := miniredis.RunT(t)
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	go func() {
		for len(server.Keys()) == 0 {
			runtime.Gosched()
		}
		interrupt(cause) // one has the lock, the others wait
	}()
	require.Equal(t, cause, run(ctx, io.Discard, "redis://"+server.Addr()))
}

func TestBuyersThatHaveConnectedAndNotAskedDoNotHoldUpTheEnd(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	server := miniredis.RunT(t)
	d := &demo{out: io.Discard, options: &redis.Options{Addr: server.Addr()}, store: &store{stock: map[string]int{}}}
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		for d.store.get("shirt") == 0 {
			runtime.Gosched()
		}
		interrupt() // they are just connecting
	}()
	began := time.Now()
	require.Error(t, d.sales(ctx))
	require.Less(t, time.Since(began), 4*time.Second) // Shutdown waits 5 s for them
}

func TestAURLThatCannotBeReadIsNotRepeatedAsItMayHaveAPassword(t *testing.T) {
	for _, url := range []string{"redis://user:secret@localhost:port", "redis://user:secret/1@localhost", "http://user:secret@localhost"} {
		err := run(t.Context(), io.Discard, url)
		require.ErrorContains(t, err, "REDIS_URL")
		require.NotContains(t, err.Error(), "secret")
	}
}
