package oncehttp_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/once/http"
)

// These tests are about the forms of requests and responses.

func TestMalformedKeys(t *testing.T) {
	s := newService(t)
	c := new(counter)
	h := s.handle(c.ServeHTTP)
	for name, values := range map[string][]string{
		"more than one":          {`"a"`, `"b"`},
		"the same twice":         {`"a"`, `"a"`},
		"empty":                  {""},
		"blank":                  {" \t"},
		"empty string":           {`""`},
		"too long":               {strings.Repeat("k", 256)},
		"too long with quotes":   {`"` + strings.Repeat("k", 256) + `"`},
		"control character":      {"a\x01b"},
		"quoted control":         {"\"a\tb\""},
		"delete":                 {"a\x7f"},
		"quoted delete":          {"\"a\x7f\""},
		"not ASCII":              {"schlüssel"},
		"quoted not ASCII":       {`"schlüssel"`},
		"no closing quote":       {`"a`},
		"one quote":              {`"`},
		"escaped closing quote":  {`"a\"`},
		"backslash at the end":   {`"a\`},
		"wrong escape":           {`"a\n"`},
		"parameters":             {`"a";b=1`},
		"list":                   {`"a", "b"`},
		"bare list":              {"a, b"},
		"joined by a proxy":      {"a,b"},
		"bare with a space":      {"a b"},
		"bare with a quote":      {`a"b`},
		"text before the string": {`a"b"`},
	} {
		t.Run(name, func(t *testing.T) {
			w := send(h, post(t, header(oncehttp.HeaderKey, values...)))
			requireProblem(t, w, http.StatusBadRequest, oncehttp.TypeMalformedKey, "")
		})
	}
	w := send(h, post(t, header(oncehttp.HeaderKey)))
	requireProblem(t, w, http.StatusBadRequest, oncehttp.TypeMissingKey, "")
	require.Zero(t, c.runs.Load())
}

func TestFormsOfKeys(t *testing.T) {
	s := newService(t)
	var keys []string // of the attempts
	h := s.handle(func(w http.ResponseWriter, r *http.Request) {
		a, _ := oncehttp.AttemptFrom(r.Context())
		keys = append(keys, a.Key)
		created(w, r)
	})
	long := strings.Repeat("k", 255)
	for want, forms := range map[string][]string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324": {
			"8e03978e-40d5-43dd-bc93-6894a57f9324", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`, " \"8e03978e-40d5-43dd-bc93-6894a57f9324\"\t",
		},
		`a b,"c"\d`: {`"a b,\"c\"\\d"`},
		long:        {long, `"` + long + `"`},
		`a\b'c=;`:   {`a\b'c=;`, `"a\\b'c=;"`},
	} {
		keys = nil
		for _, form := range forms {
			require.Equal(t, http.StatusCreated, send(h, post(t, key(form))).Code, form)
		}
		require.Equal(t, []string{oncehttp.Key("a", "/orders", want)}, keys)
	}
}

func TestBodies(t *testing.T) {
	s := newService(t)
	runs := 0
	h := s.handle(func(w http.ResponseWriter, r *http.Request) {
		runs++
		body, err := io.ReadAll(r.Body)
		if err != nil || r.ContentLength != int64(len(body)) || r.TransferEncoding != nil {
			t.Error(err, r.ContentLength, r.TransferEncoding)
		}
		_, _ = w.Write(body)
	}, oncehttp.WithMaxBody(10))
	chunked := func(r *http.Request) { r.ContentLength, r.TransferEncoding = -1, []string{"chunked"} }
	empty := func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 }

	w := send(h, request(t, http.MethodPost, "/", "0123456789", chunked))
	require.Equal(t, "0123456789", w.Body.String())
	requireReplay(t, w, send(h, request(t, http.MethodPost, "/", "0123456789")))
	require.Equal(t, http.StatusOK, send(h, request(t, http.MethodPost, "/", "", key("k2"), empty)).Code)
	none := func(r *http.Request) { r.Body = nil }
	require.Equal(t, http.StatusOK, send(h, request(t, http.MethodPost, "/", "", key("k2"), none)).Code)
	require.Equal(t, 2, runs)

	for _, mod := range []func(*http.Request){func(*http.Request) {}, chunked} {
		w = send(h, request(t, http.MethodPost, "/", "0123456789a", mod))
		requireProblem(t, w, http.StatusRequestEntityTooLarge, oncehttp.TypeBodyTooLarge, "")
	}
	w = send(h, post(t, func(r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(errors.New("cut"))) }))
	requireProblem(t, w, http.StatusBadRequest, oncehttp.TypeUnreadableBody, "")
	require.Equal(t, 2, runs)
}

func TestResponseWriterOfAHandler(t *testing.T) {
	s := newService(t)
	for name, h := range map[string]http.HandlerFunc{
		"nothing written": func(http.ResponseWriter, *http.Request) {},
		"the first status counts": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
			w.WriteHeader(http.StatusInternalServerError)
		},
		"headers after the status are lost": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.Header().Set("Location", "/late")
		},
		"no streams": func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			_, _, err := c.Hijack()
			if !errors.Is(err, http.ErrNotSupported) || !errors.Is(c.Flush(), http.ErrNotSupported) {
				t.Error("the handler can stream")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, k := s.handle(h), key(strings.ReplaceAll(name, " ", "-"))
			first := send(h, post(t, k))
			require.Equal(t, http.StatusOK, first.Code)
			require.Empty(t, first.Header())
			requireReplay(t, first, send(h, post(t, k)))
		})
	}
}

func TestAStatusWithoutABody(t *testing.T) {
	s := newService(t)
	var err error
	h := s.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_, err = w.Write([]byte("body"))
	})
	first := send(h, post(t))
	require.ErrorIs(t, err, http.ErrBodyNotAllowed)
	require.Equal(t, http.StatusNoContent, first.Code)
	require.Empty(t, first.Header())
	requireReplay(t, first, send(h, post(t)))
}

func TestAStatusThatIsNonePanics(t *testing.T) {
	s := newService(t)
	for _, status := range []int{0, 99, 1000} {
		h := s.handle(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		require.Panics(t, func() { send(h, post(t)) })
	}
}

func TestHeadersOfOuterMiddleware(t *testing.T) {
	s := newService(t)
	inner := s.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("X-Removed")
		w.Header().Add("X-Outer", "inner")
		w.Header().Add("Location", "/1")
	})
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "yes")
		w.Header().Set("X-Removed", "yes")
		inner.ServeHTTP(w, r)
	})
	first, again := send(outer, post(t)), send(outer, post(t))
	require.Equal(t, http.Header{"X-Outer": {"yes", "inner"}, "Location": {"/1"}}, first.Header())
	require.Equal(t, http.Header{
		"X-Outer": {"yes"}, "X-Removed": {"yes"}, "Location": {"/1"}, oncehttp.HeaderReplayed: {"true"},
	}, again.Header())
}
