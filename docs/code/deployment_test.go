package code

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store/mem"
)

// This file has the code of docs/OPERATIONS.md.

func TestTheClientOfGoRedisForLocks(t *testing.T) {
	addr := redistest.Shared(t).Addr()
	user, password := "default", ""
	var tlsConfig *tls.Config
	// page: client
	rdb := redis.NewClient(&redis.Options{
		Addr:     addr,
		Username: user, Password: password,
		TLSConfig:             tlsConfig,
		DialTimeout:           2 * time.Second,
		ReadTimeout:           2 * time.Second, // below a third of the TTL
		ContextTimeoutEnabled: true,
		PoolSize:              10, // for locks alone, on one server
	})
	// end
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	ctx := t.Context()
	open := func() (*relock.Client, error) {
		// page: check
		client, err := relock.New(rdb)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := client.Check(ctx); err != nil {
			return nil, errors.Join(err, client.Close()) // the error names all that is missing
		}
		return client, nil
		// end
	}
	client, err := open()
	require.NoError(t, err)
	require.NoError(t, client.Close())
}

// serve answers requests until the process is told to end. Requests that wait for a lock end then
// at once, and requests inside a lock finish.
func serve(listener net.Listener, handler http.Handler, locks *relock.Client) error {
	// page: shutdown
	told, ignore := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer ignore()
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context {
			return relock.WithStop(context.Background(), told)
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return errors.Join(err, locks.Close())
	case <-told.Done():
	}
	// Below terminationGracePeriodSeconds, less the time of the preStop hook.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ctx), locks.Close())
	// end
}

func TestAtTheSignalWaitsEndAndSectionsFinish(t *testing.T) {
	locks, err := relock.Open(mem.New())
	require.NoError(t, err)
	lock := locks.NewLock("orders:42")
	inside, finish := make(chan struct{}), make(chan struct{})
	handler := http.NewServeMux()
	handler.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		err := lock.Do(r.Context(), func(ctx context.Context) error {
			close(inside)
			<-finish
			return ctx.Err()
		})
		respond(w, err)
	})
	handler.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		respond(w, lock.Do(r.Context(), func(context.Context) error { return nil }))
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serve(listener, handler, locks) }()

	get := func(path string) <-chan string {
		body := make(chan string, 1)
		go func() {
			response, err := http.Get("http://" + listener.Addr().String() + path)
			if err != nil {
				body <- err.Error()
				return
			}
			defer func() { _ = response.Body.Close() }()
			text, _ := io.ReadAll(response.Body)
			body <- string(text)
		}()
		return body
	}
	holding := get("/hold")
	<-inside
	waiting := get("/wait")
	redistest.Eventually(t, 10*time.Second, func() bool {
		state, err := lock.State(t.Context())
		return err == nil && state.Waiters == 1
	}, "a request waits")
	require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGTERM))
	require.Contains(t, <-waiting, "stopped")
	close(finish)
	require.Equal(t, "done", <-holding)
	require.NoError(t, <-served)
}

func respond(w http.ResponseWriter, err error) {
	text := "done"
	if err != nil {
		text = err.Error()
	}
	_, _ = io.WriteString(w, text)
}
