package fence_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
)

func TestHandlerAsksForOnePositiveToken(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []string
		status int
	}{
		{"no header", nil, http.StatusPreconditionRequired},
		{"empty", []string{""}, http.StatusBadRequest},
		{"no number", []string{"five"}, http.StatusBadRequest},
		{"fraction", []string{"5.0"}, http.StatusBadRequest},
		{"hexadecimal", []string{"0x5"}, http.StatusBadRequest},
		{"plus", []string{"+5"}, http.StatusBadRequest},
		{"space", []string{" 5"}, http.StatusBadRequest},
		{"zero", []string{"0"}, http.StatusBadRequest},
		{"of a reader", []string{"-5"}, http.StatusBadRequest},
		{"too large", []string{"9223372036854775808"}, http.StatusBadRequest},
		{"two in one header", []string{"5, 6"}, http.StatusBadRequest},
		{"two headers", []string{"5", "5"}, http.StatusBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPut, "/orders", nil)
			for _, value := range c.values {
				r.Header.Add(fence.Header, value)
			}
			w := serve(r, func(http.ResponseWriter, *http.Request, int64) error {
				t.Error("a request without a good token was served")
				return nil
			})
			require.Equal(t, c.status, w.Code)
			require.Contains(t, w.Body.String(), fence.Header)
		})
	}
}

func TestHandlerHandsTheTokenOn(t *testing.T) {
	for _, token := range []int64{1, 42, 1<<63 - 1} {
		r := httptest.NewRequest(http.MethodPut, "/orders", nil)
		fence.SetToken(r.Header, token-1)
		fence.SetToken(r.Header, token) // in the place of the first
		w := serve(r, func(w http.ResponseWriter, got *http.Request, given int64) error {
			require.Same(t, r, got)
			require.Equal(t, token, given)
			w.WriteHeader(http.StatusAccepted)
			return nil
		})
		require.Equal(t, http.StatusAccepted, w.Code)
		require.Empty(t, w.Body.String())
	}
}

func TestHandlerAnswersForAnError(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		status int
		body   string
	}{
		{"stale", fmt.Errorf("secret: %w", fence.ErrStale), http.StatusPreconditionFailed,
			"the token is stale: a later holder of the lock has been here\n"},
		{"another", errors.New("secret"), http.StatusInternalServerError, "the request failed\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPut, "/orders", nil)
			fence.SetToken(r.Header, 5)
			w := serve(r, func(http.ResponseWriter, *http.Request, int64) error { return c.err })
			require.Equal(t, c.status, w.Code)
			require.Equal(t, c.body, w.Body.String())
		})
	}
}

func serve(r *http.Request, with func(http.ResponseWriter, *http.Request, int64) error) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	fence.Handler(with).ServeHTTP(w, r)
	return w
}
