package code

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/once"
	_ "modernc.org/sqlite"
)

// page: nested
type shop struct{ locks *relock.Client }

func (s *shop) placeOrder(ctx context.Context, id string) error {
	return s.locks.NewLock("order:"+id).Do(ctx, func(ctx context.Context) error {
		return s.reserve(ctx, id) // the section's context: reserve enters the same lock again
	})
}

func (s *shop) reserve(ctx context.Context, id string) error {
	return s.locks.NewLock("order:"+id).Do(ctx, func(ctx context.Context) error {
		return ctx.Err() // the work
	})
}

// end

func TestQuickstartNested(t *testing.T) {
	require.NoError(t, (&shop{newClient(t)}).placeOrder(t.Context(), "42"))
}

// page: http
type server struct {
	locks     *relock.Client
	shipOrder func(ctx context.Context, id string) error
}

func (s *server) ship(w http.ResponseWriter, r *http.Request) {
	lock := s.locks.NewLock("order:" + r.PathValue("id"))
	err := lock.DoFor(r.Context(), 2*time.Second, func(ctx context.Context) error {
		return s.shipOrder(ctx, r.PathValue("id"))
	})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, relock.ErrNotEntered): // busy, or Redis is away: shipOrder has not run
		w.Header().Set("Retry-After", "1")
		http.Error(w, "not now, try again", http.StatusServiceUnavailable)
	default: // an error of shipOrder or of Unlock, or the lock was lost meanwhile
		http.Error(w, "the order may have been shipped in part", http.StatusInternalServerError)
	}
}

// end

func TestQuickstartHTTP(t *testing.T) {
	client := newClient(t)
	var shipped error
	s := &server{client, func(context.Context, string) error { return shipped }}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/ship", s.ship)
	ship := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42/ship", http.NoBody))
		return w
	}
	require.Equal(t, http.StatusNoContent, ship().Code)
	require.NoError(t, client.NewLock("order:42").Do(t.Context(), func(context.Context) error {
		busy := ship()
		require.Equal(t, http.StatusServiceUnavailable, busy.Code)
		require.Equal(t, "1", busy.Header().Get("Retry-After"))
		return nil
	}))
	shipped = &relock.LockedError{Name: "van:7"} // of another lock, after a part of the work
	require.Equal(t, http.StatusInternalServerError, ship().Code)
}

// page: shutdown
func serveUntil(stop context.Context, listener net.Listener, handler http.Handler) error {
	requests := relock.WithStop(context.Background(), stop) // waits end with stop, sections go on
	s := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 5 * time.Second,
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	select {
	case err := <-done:
		return err
	case <-stop.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return s.Shutdown(grace) // returns when the last request has ended, or after 20 s
}

// end

func TestQuickstartShutdown(t *testing.T) {
	client := newClient(t)
	signal, stop := context.WithCancel(t.Context())
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	inside, finish := make(chan struct{}), make(chan struct{})
	var entered atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := client.NewLock("order:42").Do(r.Context(), func(ctx context.Context) error {
			if entered.Add(1) == 1 {
				close(inside)
			}
			<-finish
			return ctx.Err()
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	served := make(chan error, 1)
	go func() { served <- serveUntil(signal, listener, handler) }()
	var codes [2]int
	var requests sync.WaitGroup
	get := func(i int) func() {
		return func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), http.NoBody)
			if err == nil {
				var answer *http.Response
				if answer, err = http.DefaultClient.Do(r); err == nil {
					codes[i] = answer.StatusCode
					err = answer.Body.Close()
				}
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	requests.Go(get(0))
	<-inside
	requests.Go(get(1))
	redistest.Eventually(t, 30*time.Second, func() bool {
		state, err := client.NewLock("order:42").State(t.Context())
		return err == nil && state.Waiters == 1
	}, "the second request waits")
	stop()
	redistest.Eventually(t, 30*time.Second, func() bool {
		state, err := client.NewLock("order:42").State(t.Context())
		return err == nil && state.Waiters == 0
	}, "the second request waits no more")
	close(finish)
	requests.Wait()
	require.Equal(t, [2]int{http.StatusOK, http.StatusServiceUnavailable}, codes)
	require.NoError(t, <-served)
	require.EqualValues(t, 1, entered.Load())
}

// page: leader
func lead(ctx context.Context, locks *relock.Client, run func(ctx context.Context) error) error {
	lock := locks.NewLock("leader:reports", relock.WithTTL(15*time.Second))
	return leader.Run(ctx, lock, func(ctx context.Context) error {
		return run(ctx) // while this process leads; ctx ends when it does not lead any more
	})
}

// end

// page: cron
func nightly(ctx context.Context, records *once.Once, every time.Duration, job func(context.Context) error) error {
	return once.Every(ctx, records, "nightly", every, func(ctx context.Context, t once.Tick) {
		if err := job(ctx); err != nil {
			slog.ErrorContext(ctx, "nightly", "period", t.Period, "error", err)
		}
	})
}

// end

func TestQuickstartCron(t *testing.T) {
	client := newClient(t)
	records, err := once.New(client)
	require.NoError(t, err)
	defer records.Close()
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	done := make(chan error, 1)
	failures := 1
	go func() {
		done <- nightly(ctx, records, 50*time.Millisecond, func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("the job has failed")
			}
			ran <- struct{}{}
			return nil
		})
	}()
	<-ran
	<-ran
	stop()
	require.ErrorIs(t, <-done, context.Canceled)

	led := false
	require.NoError(t, lead(t.Context(), client, func(context.Context) error { led = true; return nil }))
	require.True(t, led)
}

// page: workers
func work(ctx context.Context, locks *relock.Client, jobs <-chan string, handle func(ctx context.Context, account string) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for range 8 {
		g.Go(func() error {
			for {
				select {
				case account, more := <-jobs:
					if !more {
						return nil
					}
					err := locks.NewLock("account:"+account).Do(ctx, func(ctx context.Context) error {
						return handle(ctx, account) // one job of an account at a time, in all processes
					})
					if err != nil {
						return err // ends the pool; give the job back to its queue first
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	return g.Wait()
}

// end

func twoLimits(ctx context.Context, locks *relock.Client, account string, job func(context.Context) error) error {
	// page: both
	permits := locks.NewSemaphore("jobs", 5)
	err := relock.All(locks.NewLock("account:"+account), permits).Do(ctx, job)
	// end
	return err
}

// page: permits
func convert(ctx context.Context, locks *relock.Client, job func(ctx context.Context) error) error {
	permits := locks.NewSemaphore("conversions", 4) // at most 4 at a time, in all processes
	return permits.Do(ctx, job)
}

// end

func TestQuickstartWorkers(t *testing.T) {
	client := newClient(t, relock.WithTTL(5*time.Second))
	jobs := make(chan string, 64)
	for i := range cap(jobs) {
		jobs <- fmt.Sprint(i % 3)
	}
	close(jobs)
	var inside [3]atomic.Int32
	err := work(t.Context(), client, jobs, func(_ context.Context, account string) error {
		n := &inside[account[0]-'0']
		if n.Add(1) > 1 {
			return errors.New("two jobs of one account at once")
		}
		n.Add(-1)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, convert(t.Context(), client, ship1))
	require.NoError(t, twoLimits(t.Context(), client, "7", ship1))
}

func exclusive(ctx context.Context, lock *relock.Lock, step func(context.Context, int) error) error {
	// page: loss
	err := lock.Do(ctx, func(ctx context.Context) error {
		for i := range 100 {
			if err := step(ctx, i); err != nil { // a step that gets ctx stops when the lock is lost
				return err
			}
		}
		return nil
	})
	var lost *relock.LostError
	if errors.As(err, &lost) {
		return fmt.Errorf("somebody else may be at work now, do not undo: %w", err)
	}
	return err
	// end
}

func TestQuickstartLoss(t *testing.T) {
	client := newClient(t)
	lock := client.NewLock("a")
	err := exclusive(t.Context(), lock, func(ctx context.Context, i int) error {
		if i < 3 {
			return nil
		}
		if err := lock.ForceUnlock(context.WithoutCancel(ctx)); err != nil { // an operator
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, relock.ErrLockLost)
	require.ErrorContains(t, err, "do not undo")
}

// page: fence
func book(ctx context.Context, lock *relock.Lock, db *sql.DB, tokens *fence.Table, order string) error {
	return lock.Do(ctx, func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := tokens.Enter(ctx, tx, "order:"+order, token); err != nil {
			return err // a later holder has been here: fence.ErrStale
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO bookings VALUES (?)", order); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// end

func TestQuickstartFence(t *testing.T) {
	db, err := sql.Open("sqlite", "file::memory:?cache=shared")
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "CREATE TABLE bookings (id TEXT)")
	require.NoError(t, err)
	tokens := fence.SQL(fence.SQLite)
	require.NoError(t, tokens.Create(t.Context(), db))
	lock := newClient(t).NewLock("order:42")
	require.NoError(t, book(t.Context(), lock, db, tokens, "42"))

	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.ErrorIs(t, tokens.Enter(t.Context(), tx, "order:42", 1), fence.ErrStale)
	require.NoError(t, tx.Rollback())
}

func transfer(ctx context.Context, locks *relock.Client, move func(context.Context) error) error {
	// page: several
	accounts := locks.NewLocks([]string{"account:7", "account:9"}) // in one order for everybody: no deadlock
	err := accounts.Do(ctx, move)
	// end
	return err
}

func catalogue(ctx context.Context, locks *relock.Client, read, write func(context.Context) error) error {
	// page: readers
	prices := locks.NewRWLock("prices")
	err := prices.RDo(ctx, read) // beside other readers
	if err == nil {
		err = prices.Do(ctx, write) // alone
	}
	// end
	return err
}

func TestQuickstartKinds(t *testing.T) {
	client := newClient(t)
	require.NoError(t, transfer(t.Context(), client, ship1))
	require.NoError(t, catalogue(t.Context(), client, ship1, ship1))
}
