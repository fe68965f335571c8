package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ticket"
)

func TestEveryScenarioOnAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, server.URL()), "%s", &out)
	require.Equal(t, 1+len(scenarios()), strings.Count(out.String(), "\n"), "%s", &out)
	require.Regexp(t, `dies before payment do +all three have happened; the next worker asks: payment do has not arrived`, out.String())
	require.Regexp(t, `dies after payment do +all three have happened; the next worker asks: payment do is done`, out.String())
	require.Regexp(t, `the worker is shut down after stock +all three have happened`, out.String())
	require.Regexp(t, `shipping refuses, the worker is shut down after payment +none remains`, out.String())
	require.Regexp(t, `shipping refuses, .* after payment undo +none remains; the next worker asks: payment undo is done`, out.String())
}

func TestAnOrderIsHandedOnWithItsLock(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	server := redistest.Start(t)
	newLock := func() *relock.Lock {
		w, err := newWorker(server.Options(), "test:", nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, w.close()) })
		return w.locks.NewLock("order")
	}
	former, next := newLock(), newLock()
	section, err := former.Lock(t.Context())
	require.NoError(t, err)
	given, err := ticket.HandOff(section, former)
	require.NoError(t, err)
	for _, isSame := range []bool{true, false} { // the second time the ticket is used up
		section, err := enter(t.Context(), next, &given)
		require.NoError(t, err)
		token, err := next.Token(section)
		require.NoError(t, err)
		require.Equal(t, isSame, token == given.Token)
		require.NoError(t, next.Unlock(section))
	}
}

func TestTheStoryWithoutAServer(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""), "%s", &out)
}

// Workers that get an order at the same time, and most of which die somewhere, leave all steps or
// none.
func TestWorkersThatDieAtRandomLeaveAllOrNothing(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis")
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	server := redistest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	d := &demo{options: server.Options(), prefix: "test:", asked: map[string]string{}}
	var points []string
	for _, name := range names {
		s, err := startService(ctx, name)
		require.NoError(t, err)
		defer s.web.Close()
		d.services = append(d.services, s)
		for _, verb := range []string{do, undo} {
			points = append(points, "before "+name+" "+verb, "after "+name+" "+verb)
		}
	}
	var wg sync.WaitGroup
	for i := range 20 {
		order := fmt.Sprintf("order%d", i)
		refuser := d.services[rand.IntN(len(names))]
		isRefused := i%2 == 0
		refuser.mu.Lock()
		refuser.refuses[order] = isRefused
		refuser.mu.Unlock()
		for range 3 {
			wg.Go(func() { d.deliver(ctx, order, scenario{diesAt: points[rand.IntN(len(points))]}, nil) })
		}
	}
	wg.Wait()
	for i := range 20 {
		wg.Go(func() {
			order, isRefused := fmt.Sprintf("order%d", i), i%2 == 0
			e := d.deliver(ctx, order, scenario{}, nil)
			if _, err := d.judge(order, !isRefused, false); e.err != nil || e.all == isRefused || err != nil {
				t.Errorf("%s, refused %t: %+v, %v", order, isRefused, e, err)
			}
		})
	}
	wg.Wait()
}

func TestAnInterruptIsToldOnce(t *testing.T) {
	redistest.NoGoroutineLeft(t, "redis/go-redis", "alicebob/miniredis")
	ctx, interrupt := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer interrupt()
	require.Equal(t, context.DeadlineExceeded, run(ctx, io.Discard, ""))
}
