package oncehttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/once/http"
)

func TestNewRefusesWrongArguments(t *testing.T) {
	s := newService(t)
	_, err := oncehttp.New(nil, tenantOf)
	require.ErrorIs(t, err, relock.ErrInvalid)
	_, err = oncehttp.New(s.once, nil)
	require.ErrorIs(t, err, relock.ErrInvalid)
	for _, option := range []oncehttp.Option{
		oncehttp.WithMethods(), oncehttp.WithMethods(""), oncehttp.WithHeaders(""),
		oncehttp.WithMaxBody(0), oncehttp.WithWait(-1),
	} {
		_, err = oncehttp.New(s.once, tenantOf, option)
		require.ErrorIs(t, err, relock.ErrInvalid)
	}
}

func TestRepeatsGetTheFirstResponse(t *testing.T) {
	s := newService(t)
	body := strings.Repeat("\x00\xff<ü>\r\n", 1000)
	headers := http.Header{
		"Content-Type": {"application/octet-stream"}, "Content-Language": {"de", "en"}, "Location": {"/orders/7"},
		"Etag": {`"7"`}, "Last-Modified": {"Wed, 25 Nov 2026 02:00:00 GMT"}, "Content-Encoding": {"none"},
	}
	h := func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range headers {
			w.Header()[name] = values
		}
		w.Header().Set("Set-Cookie", "session=secret")
		w.Header().Set("X-Trace", "1")
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, body)
	}
	first := send(s.handle(h), post(t))
	require.Equal(t, http.StatusAccepted, first.Code)
	require.Equal(t, body, first.Body.String())
	require.Equal(t, "session=secret", first.Header().Get("Set-Cookie"))
	require.Equal(t, "1", first.Header().Get("X-Trace"))
	never := func(http.ResponseWriter, *http.Request) { t.Error("runs again") }
	for _, process := range []*service{s, newServiceOn(t, s.redis)} {
		again := send(process.handle(never), post(t))
		requireReplay(t, first, again)
		require.Empty(t, again.Header().Get("Set-Cookie"))
		require.Empty(t, again.Header().Get("X-Trace"))
		for name, values := range headers {
			require.Equal(t, values, again.Header()[name])
		}
	}
}

func TestRepeatsOverANetwork(t *testing.T) {
	s := newService(t)
	server := httptest.NewServer(s.handle(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<html>", strings.Repeat("x", 10000))
	}))
	defer server.Close()
	var first *http.Response
	for i := range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("body"))
		require.NoError(t, err)
		r.Header.Set("Tenant", "a")
		r.Header.Set(oncehttp.HeaderKey, "k1")
		got, err := server.Client().Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		require.NoError(t, got.Body.Close())
		require.Len(t, body, 10006)
		require.EqualValues(t, 10006, got.ContentLength)
		if i == 0 {
			first = got
			continue
		}
		require.Equal(t, "true", got.Header.Get(oncehttp.HeaderReplayed))
		got.Header.Del(oncehttp.HeaderReplayed)
		first.Header.Del("Date")
		got.Header.Del("Date")
		require.Equal(t, first.Header, got.Header, "the type of the body is found in the same way")
	}
}

func TestHeadersToKeepAreAChoice(t *testing.T) {
	s := newService(t)
	h := s.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/x")
		w.Header().Set("Content-Encoding", "x")
		w.Header().Set("Set-Cookie", "a=b")
	}, oncehttp.WithHeaders("set-cookie"))
	send(h, post(t))
	again := send(h, post(t))
	require.Equal(t, "a=b", again.Header().Get("Set-Cookie"))
	require.Equal(t, "x", again.Header().Get("Content-Encoding"))
	require.Empty(t, again.Header().Get("Content-Type"))
}

func TestScopesDoNotShareKeys(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	require.Equal(t, "run 1", send(h, post(t)).Body.String())
	require.Equal(t, "run 2", send(h, post(t, header("Tenant", "b"))).Body.String())
	require.Equal(t, "run 1", send(h, post(t)).Body.String())
}

func TestPathsDoNotShareKeys(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	for i, path := range []string{"/a/b", "/a%2Fb", "/a/b/"} {
		w := send(h, request(t, http.MethodPost, path, ""))
		require.Equal(t, fmt.Sprint("run ", i+1), w.Body.String(), path)
	}
}

func TestKeysOfTriplesDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, triple := range [][3]string{
		{"a", "b", "c"}, {"ab", "", "c"}, {"", "ab", "c"}, {"a", "", "bc"}, {"", "", "abc"}, {"a", "bc", ""},
	} {
		key := oncehttp.Key(triple[0], triple[1], triple[2])
		require.False(t, seen[key], triple)
		require.LessOrEqual(t, len(key), once.MaxKeyLen)
		seen[key] = true
	}
}

// TestKeysStayTheSame is for rolling upgrades and for stored responses: another release must find
// the records of this one.
func TestKeysStayTheSame(t *testing.T) {
	require.Equal(t, "http:d749d25f4d298e100dc0c86323ab0aa747295046f14d5bc1f77c39fb3889a3e1", oncehttp.Key("tenant-7", "/orders", "k1"))
	s := newService(t)
	send(s.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "body")
	}), post(t))
	stored, replayed, err := once.Do(t.Context(), s.once, oncehttp.Key("a", "/orders", "k1"),
		func(context.Context, once.Attempt) (any, error) { return nil, nil }, once.Input("93f5a2faba10dbb208c87202c21e7ea673ba0c648a9adb7f063f1b0f739699b0"))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, map[string]any{"status": 201.0, "header": map[string]any{"Location": []any{"/1"}}, "body": "Ym9keQ=="}, stored)
}

func TestUnknownCallers(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	for _, tenant := range []string{"", "unknown"} {
		w := send(h, post(t, header("Tenant", tenant)))
		detail := requireProblem(t, w, http.StatusUnauthorized, oncehttp.TypeUnknownCaller, "")
		require.NotContains(t, detail, "secret")
	}
	require.Zero(t, c.runs.Load())
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	send(h, post(t))
	for name, r := range map[string]*http.Request{
		"body":   request(t, http.MethodPost, "/orders?dry=0", "body "),
		"query":  request(t, http.MethodPost, "/orders?dry=1", "body"),
		"method": request(t, http.MethodPatch, "/orders?dry=0", "body"),
	} {
		t.Run(name, func(t *testing.T) {
			requireProblem(t, send(h, r), http.StatusUnprocessableEntity, oncehttp.TypeMismatch, "")
		})
	}
	require.EqualValues(t, 1, c.runs.Load())
}

func TestRequestsThatPassThrough(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := func(w http.ResponseWriter, r *http.Request) {
		_, ok := oncehttp.AttemptFrom(r.Context())
		if err := http.NewResponseController(w).Flush(); ok || err != nil {
			t.Error(ok, err)
		}
		c.ServeHTTP(w, r)
	}
	for range 2 { // by their method, also without caller and with a bad key
		send(s.handle(h), request(t, http.MethodPut, "/", "", header("Tenant", ""), key("")))
		send(s.handle(h, oncehttp.WithMethods("PUT")), post(t))
		send(s.handle(h, oncehttp.WithOptionalKey()), post(t, header(oncehttp.HeaderKey)))
	}
	require.EqualValues(t, 6, c.runs.Load())
}

func TestMethodsAreAChoice(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP, oncehttp.WithMethods("PUT", "DELETE"))
	first := send(h, request(t, http.MethodDelete, "/", ""))
	requireReplay(t, first, send(h, request(t, http.MethodDelete, "/", "")))
}

func TestAnOptionalKeyIsStillRight(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP, oncehttp.WithOptionalKey())
	requireProblem(t, send(h, post(t, key(""))), http.StatusBadRequest, oncehttp.TypeMalformedKey, "")
	requireReplay(t, send(h, post(t)), send(h, post(t)))
}

func TestARequestInFlight(t *testing.T) {
	s := newService(t)
	other := newServiceOn(t, s.redis)
	run := newRunning(t)
	run.start(s.handle(run.ServeHTTP), post(t))
	c := new(counter)
	for _, process := range []*service{s, other} {
		w := send(process.handle(c.ServeHTTP), post(t))
		requireProblem(t, w, http.StatusConflict, oncehttp.TypeInFlight, "1")

		begun := time.Now()
		w = send(process.handle(c.ServeHTTP, oncehttp.WithWait(200*time.Millisecond)), post(t))
		requireProblem(t, w, http.StatusConflict, oncehttp.TypeInFlight, "1")
		require.Greater(t, time.Since(begun), 150*time.Millisecond)
	}
	first := run.end(created)
	for _, process := range []*service{s, other} {
		requireReplay(t, first, send(process.handle(c.ServeHTTP), post(t)))
	}
	require.Zero(t, c.runs.Load())
}

func TestTheTimeToWaitDoesNotLimitTheHandler(t *testing.T) {
	s := newService(t)
	h := s.handle(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			t.Error("the context of the handler has ended")
		case <-time.After(200 * time.Millisecond):
		}
		created(w, r)
	}, oncehttp.WithWait(50*time.Millisecond))
	requireReplay(t, send(h, post(t)), send(h, post(t)))
}

func TestAWaitingRequestRunsAfterAResponseThatIsNotStored(t *testing.T) {
	s := newService(t)
	run, c := newRunning(t), new(counter)
	run.start(s.handle(run.ServeHTTP), post(t))
	waiting := make(chan *httptest.ResponseRecorder)
	h, r := s.handle(c.ServeHTTP, oncehttp.WithWait(5*time.Second)), post(t)
	go func() { waiting <- send(h, r) }()
	<-time.After(50 * time.Millisecond)
	w := run.end(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	require.Equal(t, http.StatusBadGateway, w.Code)
	require.Equal(t, "run 1", (<-waiting).Body.String())
}

func TestResponsesThatAreNotStored(t *testing.T) {
	s := newService(t)
	for _, status := range []int{429, 500, 503, 599} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			c := new(counter)
			h := s.handle(func(w http.ResponseWriter, r *http.Request) {
				if a, ok := oncehttp.AttemptFrom(r.Context()); !ok || a.Interrupted {
					t.Error(ok, a)
				}
				if c.runs.Load() == 0 {
					c.runs.Add(1)
					w.Header().Set("Retry-After", "7")
					http.Error(w, "later", status)
					return
				}
				c.ServeHTTP(w, r)
			})
			k := key(fmt.Sprint("k", status))
			w := send(h, post(t, k))
			require.Equal(t, status, w.Code)
			require.Equal(t, "later\n", w.Body.String())
			require.Equal(t, "7", w.Header().Get("Retry-After"))
			second := send(h, post(t, k))
			require.Equal(t, "run 2", second.Body.String())
			requireReplay(t, second, send(h, post(t, k)))
		})
	}
}

func TestRefusalsOfTheHandlerAreStored(t *testing.T) {
	s := newService(t)
	for _, status := range []int{204, 304, 400, 404, 409, 499} {
		h := s.handle(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		k := key(fmt.Sprint("k", status))
		requireReplay(t, send(h, post(t, k)), send(h, post(t, k)))
	}
}
