// Package adapters has the adapters of docs/FAQ.md: locks in the form in which other projects want
// them. Each adapter has tests with its project.
package adapters

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/handler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	_ "modernc.org/sqlite" // the driver sqlite

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/store/mem"
)

// Do the adapters do what their projects expect?

const soon = time.Minute

// processes returns clients of one store, each of another process, and fails the test if a section
// is left open.
func processes(t *testing.T, n int) (clients []*relock.Client) {
	t.Helper()
	s := mem.New()
	for range n {
		client, err := relock.Open(s, relock.WithHooks(locktest.NoneOpen(t)))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		clients = append(clients, client)
	}
	return clients
}

// Uploads locks the uploads of tusd for all of its instances. Where another request wants an upload,
// tusd gives it up.
type Uploads struct{ Locks *relock.Client }

func (u Uploads) NewLock(id string) (handler.Lock, error) {
	return &upload{lock: u.Locks.NewLock("upload:" + id)}, nil
}

type upload struct {
	lock    *relock.Lock
	section context.Context
}

func (u *upload) Lock(ctx context.Context, requestUnlock func()) error {
	waiting, entered := context.WithCancel(ctx)
	defer entered()
	go func() { // a message may be lost
		for ; waiting.Err() == nil; wait(waiting, time.Second) {
			_ = u.lock.Ask(waiting)
		}
	}()
	section, err := u.lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx)) // ctx is for the wait only
	switch {
	case err != nil && ctx.Err() != nil:
		return handler.ErrLockTimeout
	case err != nil:
		return err
	}
	u.section = section
	wanted := u.lock.Wanted(section)
	go func() {
		select {
		case <-wanted:
			requestUnlock()
		case <-section.Done():
			if errors.Is(context.Cause(section), relock.ErrLockLost) {
				requestUnlock()
			}
		}
	}()
	return nil
}

func (u *upload) Unlock() error { return u.lock.Unlock(u.section) }

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func TestAnUploadIsGivenUpForAnotherRequest(t *testing.T) {
	both := processes(t, 2)
	locks := [2]handler.Lock{}
	for i := range locks {
		var locker handler.Locker = Uploads{both[i]}
		var err error
		locks[i], err = locker.NewLock("7")
		require.NoError(t, err)
	}
	given := make(chan struct{})
	request, end := context.WithCancel(t.Context())
	require.NoError(t, locks[0].Lock(request, sync.OnceFunc(func() { close(given) })))
	end() // the request's context is for the wait only
	gone, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	require.Equal(t, handler.ErrLockTimeout, locks[1].Lock(gone, nil))

	go func() {
		<-given
		if err := locks[0].Unlock(); err != nil {
			t.Error(err)
		}
	}()
	require.NoError(t, locks[1].Lock(t.Context(), func() {}))
	require.NoError(t, locks[1].Unlock())

	require.NoError(t, both[0].Close())
	require.ErrorIs(t, locks[0].Lock(t.Context(), nil), relock.ErrClosed, "and no timeout")
}

// Elector has the jobs of gocron run where this process leads: gocron.WithDistributedElector.
type Elector struct{ Candidate *leader.Candidacy }

func (e Elector) IsLeader(context.Context) error {
	if e.Candidate.IsLeader() {
		return nil
	}
	return errors.New("another process leads")
}

// Jobs has one process at a time run a job of gocron: gocron.WithDistributedLocker. Once a period is
// another promise: once.Every.
type Jobs struct{ Locks *relock.Client }

func (j Jobs) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock := j.Locks.NewLock("job:" + key)
	section, err := lock.TryLock(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return job{lock, section}, nil
}

type job struct {
	lock    *relock.Lock
	section context.Context
}

func (j job) Unlock(context.Context) error { return j.lock.Unlock(j.section) }

func TestAJobRunsWhereTheLeaderIs(t *testing.T) {
	both := processes(t, 2)
	var ran [2]atomic.Int64
	for i, client := range both {
		ctx, end := context.WithCancel(t.Context())
		candidate := leader.Campaign(ctx, client.NewLock("leader"))
		if i == 0 {
			require.Eventually(t, candidate.IsLeader, soon, time.Millisecond)
		}
		s, err := gocron.NewScheduler(gocron.WithDistributedElector(Elector{candidate}))
		require.NoError(t, err)
		_, err = s.NewJob(gocron.DurationJob(10*time.Millisecond), gocron.NewTask(func() { ran[i].Add(1) }))
		require.NoError(t, err)
		s.Start()
		defer func() {
			require.NoError(t, s.Shutdown())
			end()
			<-candidate.Done()
		}()
	}
	require.Eventually(t, func() bool { return ran[0].Load() > 3 }, soon, time.Millisecond)
	require.Zero(t, ran[1].Load())
}

func TestAJobRunsInOneProcessAtATime(t *testing.T) {
	both := processes(t, 2)
	var inside, ran atomic.Int64
	for _, client := range both {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(Jobs{client}))
		require.NoError(t, err)
		_, err = s.NewJob(gocron.DurationJob(5*time.Millisecond), gocron.NewTask(func() {
			if inside.Add(1) != 1 {
				t.Error("two at a time")
			}
			<-time.After(time.Millisecond)
			inside.Add(-1)
			ran.Add(1)
		}), gocron.WithName("report"))
		require.NoError(t, err)
		s.Start()
		defer func() { require.NoError(t, s.Shutdown()) }()
	}
	require.Eventually(t, func() bool { return ran.Load() > 10 }, soon, time.Millisecond)
}

// Migrations has one instance at a time run the migrations of goose: goose.WithLocker.
type Migrations struct {
	Of      *relock.Lock
	section context.Context
}

func (m *Migrations) Lock(ctx context.Context, _ *sql.DB) (err error) {
	m.section, err = m.Of.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	return err
}

func (m *Migrations) Unlock(context.Context, *sql.DB) error { return m.Of.Unlock(m.section) }

func TestMigrationsRunOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.db")
	migrations := fstest.MapFS{"1_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER);\n")}}
	applied := atomic.Int64{}
	var all sync.WaitGroup
	for _, client := range processes(t, 3) {
		db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(10000)")
		require.NoError(t, err)
		defer db.Close()
		p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations, goose.WithLocker(&Migrations{Of: client.NewLock("migrations")}))
		require.NoError(t, err)
		all.Go(func() {
			results, err := p.Up(t.Context())
			if err != nil {
				t.Error(err)
			}
			applied.Add(int64(len(results)))
		})
	}
	all.Wait()
	require.EqualValues(t, 1, applied.Load())
}

// Certificates is a storage of certmagic whose locks are those of relock.
type Certificates struct {
	certmagic.Storage
	Locks *relock.Client

	mu      sync.Mutex
	unlocks map[string]func() error
}

func (c *Certificates) Lock(ctx context.Context, name string) error {
	lock := c.Locks.NewLock("certificate:" + name)
	section, err := lock.Lock(relock.WithStop(context.WithoutCancel(ctx), ctx))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unlocks == nil {
		c.unlocks = make(map[string]func() error)
	}
	c.unlocks[name] = func() error { return lock.Unlock(section) }
	return nil
}

func (c *Certificates) Unlock(_ context.Context, name string) error {
	c.mu.Lock()
	unlock := c.unlocks[name]
	delete(c.unlocks, name)
	c.mu.Unlock()
	if unlock == nil {
		return relock.ErrNotHeld
	}
	return unlock()
}

func TestOneProcessOrdersACertificate(t *testing.T) {
	both := processes(t, 2)
	var one, other certmagic.Storage
	one, other = &Certificates{Locks: both[0]}, &Certificates{Locks: both[1]}
	request, end := context.WithCancel(t.Context())
	require.NoError(t, one.Lock(request, "example.org"))
	end()
	gone, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	require.Error(t, other.Lock(gone, "example.org"))
	require.NoError(t, one.Unlock(t.Context(), "example.org"))
	require.NoError(t, other.Lock(t.Context(), "example.org"))
	require.NoError(t, other.Unlock(t.Context(), "example.org"))
}

// OneAtATime serves the requests with one key behind each other. Without a key a request is served
// at once.
func OneAtATime(locks *relock.Client, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := key(r)
		if name == "" {
			next.ServeHTTP(w, r)
			return
		}
		err := doFor(r.Context(), locks.NewLock("request:"+name), func(ctx context.Context) error {
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		if errors.Is(err, relock.ErrNotEntered) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		}
	})
}

// OneCallAtATime is OneAtATime for gRPC. A lock that is lost at the end of a call is its error.
func OneCallAtATime(locks *relock.Client, key func(request any) string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
		err = doFor(ctx, locks.NewLock("call:"+key(request)), func(ctx context.Context) (err error) {
			reply, err = next(ctx, request)
			return err
		})
		switch {
		case errors.Is(err, relock.ErrNotEntered):
			return nil, status.Error(codes.Unavailable, err.Error())
		case errors.Is(err, relock.ErrLockLost):
			return nil, status.Error(codes.Aborted, err.Error())
		}
		return reply, err
	}
}

// doFor waits for the lock for a second, and keeps it until fn returns, also if the client has left
// before. The context of fn ends with the lock, and when the client leaves.
func doFor(ctx context.Context, lock *relock.Lock, fn func(ctx context.Context) error) error {
	return lock.DoFor(relock.WithStop(context.WithoutCancel(ctx), ctx), time.Second, func(section context.Context) error {
		work, end := context.WithCancelCause(section)
		defer end(nil)
		defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
		return fn(work)
	})
}

func TestRequestsWithOneKeyAreServedBehindEachOther(t *testing.T) {
	both := processes(t, 2)
	var inside atomic.Int64
	serve := func(client *relock.Client) http.Handler {
		return OneAtATime(client, func(r *http.Request) string { return r.Header.Get("Order") }, http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Order") != "" && inside.Add(1) != 1 {
					t.Error("two at a time")
				}
				<-time.After(time.Millisecond)
				if r.Header.Get("Order") != "" {
					inside.Add(-1)
				}
			}))
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			r.Header.Set("Order", []string{"", "7"}[i%2])
			w := httptest.NewRecorder()
			serve(both[i/2%2]).ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Error(w.Code)
			}
		})
	}
	all.Wait()

	lock := both[0].NewLock("request:7")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, lock.Unlock(section)) }()
	gone, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	r := httptest.NewRequestWithContext(gone, http.MethodPost, "/", nil)
	r.Header.Set("Order", "7")
	w := httptest.NewRecorder()
	serve(both[1]).ServeHTTP(w, r)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

func TestAHandlerThatOutlivesItsClientKeepsItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := processes(t, 1)
		ctx, leave := context.WithCancel(t.Context())
		h := OneAtATime(clients[0], func(*http.Request) string { return "7" }, http.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				<-time.After(5 * relock.DefaultTTL) // deaf to its context
				if !clients[0].NewLock("request:7").Held(r.Context()) {
					t.Error("the lock was lost")
				}
			}))
		time.AfterFunc(time.Second, leave)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
		require.NoError(t, clients[0].Close())
	})
}

func TestCallsWithOneKeyAreServedBehindEachOther(t *testing.T) {
	both := processes(t, 2)
	intercept := OneCallAtATime(both[0], func(request any) string { return request.(string) })
	reply, err := intercept(t.Context(), "7", &grpc.UnaryServerInfo{}, func(ctx context.Context, request any) (any, error) {
		_, inside := relock.HolderFrom(ctx)
		require.True(t, inside)
		return "done " + request.(string), nil
	})
	require.NoError(t, err)
	require.Equal(t, "done 7", reply)

	lock := both[1].NewLock("call:7")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, lock.Unlock(section)) }()
	gone, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err = intercept(gone, "7", nil, nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
}
