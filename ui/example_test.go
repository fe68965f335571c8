package ui_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ui"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func login(next http.Handler) http.Handler { return next }

func loggedIn(*http.Request) string { return "ann" }

func TestTheProgramOfTheReadmeShowsThePage(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr()})
	defer func() { _ = rdb.Close() }()
	mux := http.NewServeMux()
	// page: mount
	client, err := relock.New(rdb)
	if err != nil {
		panic(err)
	}
	mux.Handle("/locks/", login(&ui.Handler{Locks: client}))
	// end
	require.NoError(t, client.Close())
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/locks/", nil))
	require.Contains(t, rec.Body.String(), "<title>Locks</title>")
}

func TestTheProgramOfTheReadmeWritesAHistory(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Shared(t).Addr()})
	defer func() { _ = rdb.Close() }()
	defer func() { rdb.Del(context.Background(), "relock:history") }()
	// page: history
	history := &ui.History{Redis: rdb}
	client, err := relock.New(rdb, relock.WithHooks(history.Hooks()), relock.WithOwner("orders@pod-7"))
	if err != nil {
		panic(err)
	}
	page := &ui.Handler{
		Locks: client, History: history,
		Actions: slog.Default(), User: loggedIn, // only for the buttons
	}
	// end
	section, err := client.NewLock("orders:42").Lock(t.Context())
	require.NoError(t, err)
	require.NoError(t, client.NewLock("orders:42").Unlock(section))
	require.NoError(t, client.Close())
	require.NoError(t, history.Close())
	rec := httptest.NewRecorder()
	page.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/past", nil))
	require.Contains(t, rec.Body.String(), `"orders:42"`)
}
