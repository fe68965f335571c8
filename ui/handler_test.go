package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// hang bounds each wait.
const hang = time.Minute

// world is a Redis with a Handler about it.
type world struct {
	*testing.T
	rdb     *redis.Client
	handler *Handler
	server  *httptest.Server
	scans   atomic.Int64 // commands that list the keys
}

func init() { streamLife = hang } // a stream lasts as long as a busy machine needs

func newWorld(t *testing.T, change ...func(*Handler)) *world {
	w := &world{T: t, rdb: redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})}
	t.Cleanup(func() { _ = w.rdb.Close() })
	w.rdb.AddHook(counting{&w.scans})
	w.handler = &Handler{Locks: w.client(), Every: 20 * time.Millisecond}
	for _, f := range change {
		f(w.handler)
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/locks/", w.handler)
	w.server = httptest.NewServer(mux)
	t.Cleanup(w.server.Close)
	t.Cleanup(w.server.CloseClientConnections)
	return w
}

// counting counts the commands that list the keys.
type counting struct{ scans *atomic.Int64 }

func (c counting) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "scan" {
			c.scans.Add(1)
		}
		return next(ctx, cmd)
	}
}
func (c counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *world) client(options ...relock.Option) *relock.Client {
	c, err := relock.New(w.rdb, options...)
	require.NoError(w, err)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// lock takes a lock until the end of the test.
func (w *world) lock(l *relock.Lock) context.Context {
	section, err := l.Lock(w.Context())
	require.NoError(w, err)
	w.Cleanup(func() { _ = l.Unlock(section) })
	return section
}

// get asks for a path below that of the page.
func (w *world) get(path string) *http.Response {
	r, err := http.Get(w.server.URL + "/admin/locks/" + path)
	require.NoError(w, err)
	w.Cleanup(func() { _ = r.Body.Close() })
	return r
}

// seen is an event as the page gets it.
type seen struct {
	look
	Whole   bool
	Changed []lockView
	Gone    []string
}

// watch opens the page. Each call of next returns the next event.
func (w *world) watch() (next func() seen) {
	lines := bufio.NewReader(w.get("events").Body)
	return func() (e seen) {
		for {
			line, err := lines.ReadString('\n')
			require.NoError(w, err)
			if text, is := strings.CutPrefix(line, "data: "); is {
				require.NoError(w, json.Unmarshal([]byte(text), &e))
				return e
			}
		}
	}
}

// until returns the first event that has what is asked for.
func (w *world) until(next func() seen, is func(seen) bool) seen {
	w.Helper()
	for end := time.Now().Add(hang); time.Now().Before(end); {
		if e := next(); is(e) {
			return e
		}
	}
	w.Fatal("not seen")
	return seen{}
}

func body(t testing.TB, r *http.Response) string {
	var b strings.Builder
	_, err := bufio.NewReader(r.Body).WriteTo(&b)
	require.NoError(t, err)
	return b.String()
}

func TestThePageIsServedAtAnyPath(t *testing.T) {
	w := newWorld(t)
	for name, kind := range map[string]string{"": "text/html", "page.js": "text/javascript", "page.css": "text/css"} {
		r := w.get(name)
		require.Equal(t, http.StatusOK, r.StatusCode)
		require.Contains(t, r.Header.Get("Content-Type"), kind)
		require.Contains(t, r.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'")
		require.Equal(t, "no-store", r.Header.Get("Cache-Control"))
	}
	require.Equal(t, http.StatusNotFound, w.get("other").StatusCode)
	require.Equal(t, http.StatusNotFound, w.get("past").StatusCode, "there is no history")

	asked := httptest.NewRequest(http.MethodGet, "/admin/locks?x", nil)
	rec := httptest.NewRecorder()
	http.StripPrefix("/admin/locks", w.handler).ServeHTTP(rec, asked)
	require.Equal(t, http.StatusSeeOther, rec.Code)
	require.Equal(t, "locks/", rec.Header().Get("Location"))

	rec = httptest.NewRecorder()
	(&Handler{}).ServeHTTP(rec, asked)
	require.Equal(t, http.StatusInternalServerError, rec.Code)
}

func TestWhomTheLoginRefusesSeesNothing(t *testing.T) {
	w := newWorld(t)
	w.lock(w.client().NewLock("orders:42"))
	login := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) { http.Error(out, "log in", http.StatusForbidden) })
	mux := http.NewServeMux()
	mux.Handle("/locks/", login) // in front of the Handler, which is not asked
	for _, path := range []string{"", "events", "past", "act", "page.js", "page.css"} {
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/locks/"+path, nil))
		require.Equal(t, http.StatusForbidden, rec.Code)
		require.Equal(t, "log in\n", rec.Body.String())
	}
	require.Zero(t, w.scans.Load())
}

func TestEventsSendWhatHasChangedSinceTheLookBefore(t *testing.T) {
	w := newWorld(t)
	c := w.client(relock.WithOwner("orders@pod-7"), relock.WithTTL(time.Hour))
	l := c.NewLock("orders:42")
	section := w.lock(l)
	next := w.watch()
	e := next()
	require.True(t, e.Whole)
	require.Len(t, e.Changed, 1)
	v := e.Changed[0]
	require.Equal(t, "orders:42", v.Name)
	require.Equal(t, "mutex", v.Kind)
	require.Equal(t, c.ID()+":1", v.Holders[0].Holder)
	require.True(t, v.Holders[0].Before, "who knows for how long")
	require.InDelta(t, time.Now().Add(time.Hour).UnixMilli(), v.Holders[0].Until, float64(hang.Milliseconds()))

	e = next()
	require.False(t, e.Whole)
	require.Empty(t, e.Changed, "nothing has changed")

	other := w.client()
	w.lock(other.NewRWLock("prices").RLocker())
	v = w.until(next, func(e seen) bool { return len(e.Changed) == 1 }).Changed[0]
	require.Equal(t, "read-write lock", v.Kind)
	require.Equal(t, "shared", v.Holders[0].Mode)
	require.False(t, v.Holders[0].Before)

	go func() { _, _ = other.NewLock("orders:42").Lock(t.Context()) }()
	v = w.until(next, func(e seen) bool { return len(e.Changed) == 1 && len(e.Changed[0].Queue) == 1 }).Changed[0]
	require.Equal(t, 1, v.Waiters)
	require.True(t, strings.HasPrefix(v.Queue[0].Holder, other.ID()))

	require.NoError(t, l.Unlock(section))
	w.until(next, func(e seen) bool {
		return len(e.Changed) == 1 && len(e.Changed[0].Queue) == 0 && strings.HasPrefix(e.Changed[0].Holders[0].Holder, other.ID())
	})
	require.NoError(t, other.NewLock("orders:42").ForceUnlock(t.Context()))
	require.Equal(t, []string{"orders:42"}, w.until(next, func(e seen) bool { return len(e.Gone) > 0 }).Gone)
}

func TestAllViewersShareALookThatAsksForAtMostMostLocks(t *testing.T) {
	w := newWorld(t, func(h *Handler) { h.Every, h.Most = time.Hour, 3 })
	c := w.client()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.lock(c.NewLock(name))
	}
	_, err := c.List(t.Context(), nil)
	require.NoError(t, err)
	one := w.scans.Swap(0)
	var viewers sync.WaitGroup
	for range 5 {
		next := w.watch()
		viewers.Go(func() {
			e := next()
			if len(e.Changed) != 3 || e.Total != 5 || e.Most != 3 || e.Pause != time.Hour.Milliseconds() {
				t.Errorf("saw %+v", e)
			}
		})
	}
	viewers.Wait()
	require.Equal(t, one, w.scans.Load(), "one look for all")
}

func TestNothingIsLeftWhenTheViewersAreGone(t *testing.T) {
	w := newWorld(t)
	w.watch()()
	w.watch()()
	w.server.CloseClientConnections()
	redistest.Eventually(t, hang, func() bool { return w.handler.viewers.Load() == 0 }, "gone")
	require.NotZero(t, w.handler.looks.latest().number)
}

func TestTooManyViewersAreToldToComeLater(t *testing.T) {
	w := newWorld(t)
	w.handler.viewers.Store(mostViewers)
	r := w.get("events")
	require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
	require.Equal(t, "10", r.Header.Get("Retry-After"))
	require.EqualValues(t, mostViewers, w.handler.viewers.Load())
}

func TestAStoreThatIsAwayIsSaidAndTheLastLookStays(t *testing.T) {
	w := newWorld(t)
	w.lock(w.client(relock.WithTTL(time.Hour)).NewLock("orders:42"))
	next := w.watch()
	require.Len(t, next().Changed, 1)
	require.NoError(t, w.rdb.Do(t.Context(), "acl", "setuser", "default", "-scan").Err())
	e := w.until(next, func(e seen) bool { return e.Trouble != "" })
	require.Contains(t, e.Trouble, "NOPERM")
	require.Empty(t, e.Gone)
	require.NoError(t, w.rdb.Do(t.Context(), "acl", "setuser", "default", "+scan").Err())
	require.Empty(t, w.until(next, func(e seen) bool { return e.Trouble == "" }).Gone)
}

func TestNamesThatAreNoTextAreQuotedAndCannotBeActedOn(t *testing.T) {
	w := newWorld(t)
	w.lock(w.client().NewLock("odd\xff"))
	v := w.watch()().Changed[0]
	require.Equal(t, `"odd\xff"`, v.Name)
	require.True(t, v.Odd)
	require.Nil(t, w.handler.looks.find(w.handler.Locks, v.Name))
}

func TestNamesInEventsAreOneLineOfJSON(t *testing.T) {
	w := newWorld(t)
	evil := "</script><script>alert('1')</script>\"\n\ndata: {}\r\n\u2028"
	w.lock(w.client().NewLock(evil))
	require.Equal(t, evil, w.watch()().Changed[0].Name)
}

// acting sends a request to act.
func (w *world) acting(change func(r *http.Request), body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/admin/locks/act", strings.NewReader(body))
	r.AddCookie(&http.Cookie{Name: cookie, Value: "secret"})
	r.Header.Set(tokenHeader, "secret")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if change != nil {
		change(r)
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return rec
}

func TestActingNeedsTheFlagTheTokenAndTheName(t *testing.T) {
	var log strings.Builder
	w := newWorld(t)
	l := w.client().NewLock("orders:42")
	section := w.lock(l)
	w.watch()()
	w.server.CloseClientConnections() // no later look
	redistest.Eventually(t, hang, func() bool { return w.handler.viewers.Load() == 0 }, "gone")
	holder := w.handler.looks.latest().views["orders:42"].Holders[0].Holder
	right := `{"lock":"orders:42","typed":"orders:42","do":"unlock","holder":"` + holder + `"}`
	require.Equal(t, http.StatusForbidden, w.acting(nil, right).Code, "the page only shows")
	require.NotContains(t, body(t, w.get("")), cookie)
	require.Empty(t, w.get("").Cookies())

	w.handler.Actions = slog.New(slog.NewTextHandler(&log, nil))
	w.handler.User = func(*http.Request) string { return "ann" }
	for why, change := range map[string]func(r *http.Request){
		"no cookie":     func(r *http.Request) { r.Header.Del("Cookie") },
		"no token":      func(r *http.Request) { r.Header.Del(tokenHeader) },
		"another token": func(r *http.Request) { r.Header.Set(tokenHeader, "guess") },
		"another site":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		require.Equal(t, http.StatusForbidden, w.acting(change, right).Code, why)
	}
	require.Equal(t, http.StatusMethodNotAllowed, w.get("act").StatusCode)
	for text, code := range map[string]int{
		`{"lock":"orders:42","typed":"orders:4","do":"unlock"}`:                   http.StatusBadRequest,
		`{"lock":"orders:42","typed":"orders:42","do":"drop"}`:                    http.StatusBadRequest,
		`{"lock":"` + strings.Repeat("x", 20<<10) + `","typed":"","do":"unlock"}`: http.StatusBadRequest,
		`{"lock":"free","typed":"free","do":"unlock"}`:                            http.StatusNotFound,
	} {
		require.Equal(t, code, w.acting(nil, text).Code)
	}
	require.Equal(t, http.StatusConflict, w.acting(nil, strings.Replace(right, holder, "other", 1)).Code)
	require.Empty(t, log.String())
	require.NoError(t, section.Err())

	require.Equal(t, "asked\n", w.acting(nil, strings.Replace(right, "unlock", "ask", 1)).Body.String())
	require.Equal(t, "taken\n", w.acting(nil, right).Body.String())
	<-section.Done()
	w.lock(w.client().NewLock("orders:42"))
	require.Equal(t, http.StatusConflict, w.acting(nil, right).Code, "another process has it by now")
	for _, part := range []string{"unlock begins", "lock=orders:42", "user=ann", "unlock has ended", "from="} {
		require.Contains(t, log.String(), part)
	}
}

func TestTheTokenIsTextInThePage(t *testing.T) {
	w := newWorld(t, func(h *Handler) { h.Actions = slog.New(slog.DiscardHandler) })
	r := w.get("")
	require.Len(t, r.Cookies(), 1)
	c := r.Cookies()[0]
	require.True(t, c.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, c.SameSite)
	require.Contains(t, body(t, r), `content="`+c.Value+`"`)

	asked := httptest.NewRequest(http.MethodGet, "/locks/", nil)
	asked.AddCookie(&http.Cookie{Name: cookie, Value: "<script>&"})
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, asked)
	require.Contains(t, rec.Body.String(), `content="&lt;script&gt;&amp;"`)
}

func TestALocalPageIsForLocalNamesOnly(t *testing.T) {
	h := OnLoopback(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {}))
	for host, code := range map[string]int{
		"localhost:8080": http.StatusOK, "127.0.0.1": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]:8080": http.StatusOK, "[::1]": http.StatusOK,
		"evil.example": http.StatusForbidden, "evil.example:8080": http.StatusForbidden, "10.0.0.1:8080": http.StatusForbidden, "": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		require.Equal(t, code, rec.Code, host)
	}
}

func TestACircleIsFoundAlsoWhereAHoldHasSeveralWays(t *testing.T) {
	w := func(id, name, holds string, waitsFor ...store.ID) store.Waiting {
		return store.Waiting{ID: store.ID(id), Name: name, Holds: []store.ID{store.ID(holds)}, For: waitsFor}
	}
	waits := []store.Waiting{
		w("a:1:9", "orders", "A", "X", "B"), // X waits for nobody
		w("x:1:9", "idle", "X", "nobody"),
		w("b:2:9", "stock", "B", "C"),
		w("c:3:9", "prices", "C", "A"),
		w("d:4:9", "orders", "D", "A"), // waits for the circle, and is not in it
	}
	require.Equal(t, [][]wait{{{"a:1", "orders"}, {"b:2", "stock"}, {"c:3", "prices"}}}, circlesOf(waits))
	require.Empty(t, circlesOf(waits[1:]))
	require.Equal(t, [][]wait{{{"a:1", "self"}}}, circlesOf([]store.Waiting{w("a:1:9", "self", "A", "A")}))
}
