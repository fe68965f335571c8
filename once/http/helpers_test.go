package oncehttp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/once"
	"github.com/go-relock/relock/once/http"
)

// service is one process of a service that keeps its responses in Redis.
type service struct {
	*testing.T
	redis *redistest.Server
	locks *relock.Client
	once  *once.Once
}

func newService(t *testing.T, options ...once.Option) *service {
	t.Helper()
	return newServiceOn(t, redistest.Start(t), options...)
}

func newServiceOn(t *testing.T, server *redistest.Server, options ...once.Option) *service {
	t.Helper()
	rdb := server.Client(func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	locks, err := relock.New(rdb, relock.WithTTL(2*time.Second))
	require.NoError(t, err)
	o, err := once.New(locks, options...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, o.Close())
		require.NoError(t, locks.Close())
	})
	return &service{T: t, redis: server, locks: locks, once: o}
}

// tenantOf names the caller by a header.
func tenantOf(r *http.Request) (string, error) {
	if r.Header.Get("Tenant") == "unknown" {
		return "", errors.New("secret reason")
	}
	return r.Header.Get("Tenant"), nil
}

// handle puts the middleware around a handler.
func (s *service) handle(h http.HandlerFunc, options ...oncehttp.Option) http.Handler {
	s.Helper()
	mw, err := oncehttp.New(s.once, tenantOf, options...)
	require.NoError(s, err)
	return mw(h)
}

// counter is a handler that counts its runs.
type counter struct{ runs atomic.Int64 }

func (c *counter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "run ", c.runs.Add(1))
}

// post makes a request of tenant a with key k1, which mods change.
func post(t *testing.T, mods ...func(*http.Request)) *http.Request {
	t.Helper()
	return request(t, http.MethodPost, "/orders?dry=0", "body", mods...)
}

func request(t *testing.T, method, target, body string, mods ...func(*http.Request)) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	r.Header.Set("Tenant", "a")
	r.Header.Set(oncehttp.HeaderKey, `"k1"`)
	for _, mod := range mods {
		mod(r)
	}
	return r
}

func header(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header[name] = values }
}

func key(key string) func(*http.Request) { return header(oncehttp.HeaderKey, key) }

func send(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// requireReplay says that a response is the first one again.
func requireReplay(t *testing.T, first, again *httptest.ResponseRecorder) {
	t.Helper()
	require.Equal(t, first.Code, again.Code)
	require.Equal(t, first.Body.Bytes(), again.Body.Bytes())
	require.Empty(t, first.Header().Get(oncehttp.HeaderReplayed))
	require.Equal(t, "true", again.Header().Get(oncehttp.HeaderReplayed))
}

// requireProblem says that a response is a problem, and returns its detail.
func requireProblem(t *testing.T, w *httptest.ResponseRecorder, status int, problemType, retryAfter string) (detail string) {
	t.Helper()
	require.Equal(t, status, w.Code, w.Body)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(t, retryAfter, w.Header().Get("Retry-After"))
	require.Empty(t, w.Header().Get(oncehttp.HeaderReplayed))
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(t, problemType, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	return p.Detail
}

// running is a request whose handler runs until end.
type running struct {
	*testing.T
	begun chan struct{}
	ended chan struct{}
	next  chan http.HandlerFunc
	got   *httptest.ResponseRecorder
}

// handler returns the handler of the request.
func newRunning(t *testing.T) *running {
	t.Helper()
	return &running{
		T: t, begun: make(chan struct{}), ended: make(chan struct{}), next: make(chan http.HandlerFunc),
	}
}

func (g *running) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	close(g.begun)
	(<-g.next)(w, r)
}

// start sends the request and waits for the begin of its handler.
func (g *running) start(h http.Handler, r *http.Request) {
	go func() {
		defer close(g.ended)
		g.got = send(h, r)
	}()
	<-g.begun
}

// end lets the handler end, and returns the response.
func (g *running) end(how http.HandlerFunc) *httptest.ResponseRecorder {
	g.next <- how
	<-g.ended
	return g.got
}

func created(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
