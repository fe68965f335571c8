package oncehttp_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/once/http"
)

func TestAStoreThatIsAwayFailsClosed(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h, waiting := s.handle(c.ServeHTTP), s.handle(c.ServeHTTP, oncehttp.WithWait(300*time.Millisecond))
	first := send(h, post(t))
	s.redis.Kill()
	for _, k := range []string{"k1", "k2"} {
		requireProblem(t, send(h, post(t, key(k))), http.StatusServiceUnavailable, oncehttp.TypeUnavailable, "1")
		requireProblem(t, send(waiting, post(t, key(k))), http.StatusServiceUnavailable, oncehttp.TypeUnavailable, "1")
	}
	require.EqualValues(t, 1, c.runs.Load())
	s.redis.Restart() // empty
	redistest.Eventually(t, time.Minute, func() bool { return send(h, post(t)).Code == first.Code }, "it is served again")
}

// interrupt lets an attempt of the request end without an end.
func interrupt(s *service, r *http.Request) {
	s.Helper()
	h := s.handle(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	require.PanicsWithValue(s, http.ErrAbortHandler, func() { send(h, r) })
}

func TestAPanicGoesOnAndInterruptsTheAttempt(t *testing.T) {
	s := newService(t)
	broken := s.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		panic("broken")
	})
	require.PanicsWithValue(t, "broken", func() { send(broken, post(t)) })
	interrupt(s, post(t))
	var attempt once.Attempt
	var token int64
	var err error
	h := s.handle(func(w http.ResponseWriter, r *http.Request) {
		attempt, _ = oncehttp.AttemptFrom(r.Context())
		token, err = attempt.Token(r.Context())
		created(w, r)
	})
	requireReplay(t, send(h, post(t)), send(h, post(t)))
	require.True(t, attempt.Interrupted)
	require.Equal(t, 3, attempt.Number)
	require.Equal(t, oncehttp.Key("a", "/orders", "k1"), attempt.Key)
	require.NoError(t, err)
	require.Positive(t, token)
}

func TestAnInterruptedAttemptMayBeTheLast(t *testing.T) {
	s := newService(t, once.FailIfInterrupted())
	interrupt(s, post(t))
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	for range 2 {
		detail := requireProblem(t, send(h, post(t)), http.StatusConflict, oncehttp.TypeInterrupted, "")
		require.Contains(t, detail, "may have been carried out")
	}
	require.Zero(t, c.runs.Load())
	require.NoError(t, s.once.Forget(t.Context(), oncehttp.Key("a", "/orders", "k1")))
	require.Equal(t, "run 1", send(h, post(t)).Body.String())
}

func TestAResponseThatIsTooLargeToKeep(t *testing.T) {
	s := newService(t, once.WithMaxResult(1000))
	runs := 0
	h := s.handle(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(make([]byte, 1000))
	})
	first := send(h, post(t))
	require.Equal(t, http.StatusCreated, first.Code)
	require.Equal(t, 1000, first.Body.Len())
	for range 2 {
		detail := requireProblem(t, send(h, post(t)), http.StatusConflict, oncehttp.TypeNoResult, "")
		require.Contains(t, detail, "was carried out")
	}
	require.Equal(t, 1, runs)
}

func TestAResponseThatCouldNotBeStoredIsSent(t *testing.T) {
	s := newService(t, once.FailIfInterrupted())
	run := newRunning(t)
	run.start(s.handle(run.ServeHTTP), post(t))
	plain := s.redis.Client()
	for _, k := range redistest.Keys(t, plain) { // the lock is lost
		if strings.HasSuffix(k, "}") {
			require.NoError(t, plain.Del(t.Context(), k).Err())
		}
	}
	first := run.end(created)
	require.Equal(t, http.StatusCreated, first.Code)
	require.Empty(t, first.Header().Get(oncehttp.HeaderReplayed))
	w := send(s.handle(new(counter).ServeHTTP), post(t))
	requireProblem(t, w, http.StatusConflict, oncehttp.TypeInterrupted, "")
}

func TestAClientThatGoesAway(t *testing.T) {
	s := newService(t, once.FailIfInterrupted())
	// leave sends a request whose client goes away, and lets the handler answer.
	leave := func(k string, how http.HandlerFunc) {
		t.Helper()
		ctx, cancel := context.WithCancelCause(t.Context())
		run := newRunning(t)
		run.start(s.handle(run.ServeHTTP), post(t, key(k)).WithContext(ctx))
		cancel(errors.New("gone"))
		run.end(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			how(w, r)
		})
	}
	h := s.handle(new(counter).ServeHTTP)

	leave("done", created)
	w := send(h, post(t, key("done")))
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, "true", w.Header().Get(oncehttp.HeaderReplayed))

	leave("unknown", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	requireProblem(t, send(h, post(t, key("unknown"))), http.StatusConflict, oncehttp.TypeInterrupted, "")
}
