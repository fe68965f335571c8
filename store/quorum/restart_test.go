package quorum_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/quorum"
)

// server is a member that may be away, and come back empty.
type server struct {
	mu   sync.Mutex
	mem  *mem.Store // nil: away
	gone chan struct{}
}

func newServer() *server {
	s := &server{gone: make(chan struct{})}
	s.start()
	return s
}

func (s *server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem = mem.New()
}

// stop ends the calls that wait.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gone)
	s.mem, s.gone = nil, make(chan struct{})
}

// run runs a command, if the server is there.
func run[T any](s *server, command func(m *mem.Store) (T, error)) (T, error) {
	s.mu.Lock()
	m := s.mem
	s.mu.Unlock()
	if m == nil {
		var none T
		return none, errDown
	}
	return command(m)
}

// again runs a command until the server is there.
func again[T any](ctx context.Context, s *server, command func(ctx context.Context, m *mem.Store) (T, error)) (T, error) {
	for {
		s.mu.Lock()
		gone := s.gone
		s.mu.Unlock()
		here, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-gone:
				cancel()
			case <-here.Done():
			}
		}()
		v, err := run(s, func(m *mem.Store) (T, error) { return command(here, m) })
		lost := here.Err() != nil
		cancel()
		if err == nil || !lost && err != errDown { // this very error
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *server) Check(a store.Claim) (store.Claim, error) { return a, nil }
func (s *server) Close() error                             { return nil }

func (s *server) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return run(s, func(m *mem.Store) (store.Lease, error) { return m.Try(ctx, a) })
}

func (s *server) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return again(ctx, s, func(ctx context.Context, m *mem.Store) (store.Lease, error) { return m.Wait(ctx, a, progress) })
}

func (s *server) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	return again(ctx, s, func(ctx context.Context, m *mem.Store) (store.Lease, error) { return m.Enter(ctx, l, count) })
}

func (s *server) Release(ctx context.Context, l store.Lease) error {
	_, err := again(ctx, s, func(ctx context.Context, m *mem.Store) (none struct{}, err error) {
		return none, m.Release(ctx, l)
	})
	return err
}

func (s *server) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return all(s, len(renewals), func(m *mem.Store) []error { return m.Renew(ctx, renewals) })
}

func (s *server) Forget(ctx context.Context, claims []store.Claim) []error {
	return all(s, len(claims), func(m *mem.Store) []error { return m.Forget(ctx, claims) })
}

func all(s *server, n int, command func(m *mem.Store) []error) []error {
	errs, err := run(s, func(m *mem.Store) ([]error, error) { return command(m), nil })
	for range n {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (s *server) Token(ctx context.Context, l store.Lease) (int64, error) {
	return run(s, func(m *mem.Store) (int64, error) { return m.Token(ctx, l) })
}

func (s *server) Look(ctx context.Context, a store.Claim) (store.State, error) {
	return run(s, func(m *mem.Store) (store.State, error) { return m.Look(ctx, a) })
}

func (s *server) Break(ctx context.Context, a store.Claim) error {
	_, err := run(s, func(m *mem.Store) (none struct{}, err error) { return none, m.Break(ctx, a) })
	return err
}

// fleet is three servers, a holder and waiters.
type fleet struct {
	*testing.T
	servers []*server
	ttl     time.Duration
	section context.Context
	owner   store.ID
	end     func() // the holder leaves, and all waiters have the lock in turn
}

// lockOn has one client take the lock while the servers away are away, and others wait for it.
func lockOn(t *testing.T, ttl time.Duration, waiters int, away ...int) *fleet {
	t.Helper()
	f := &fleet{T: t, servers: []*server{newServer(), newServer(), newServer()}, ttl: ttl}
	open := func() (store.Store, *relock.Client) {
		s, err := quorum.New(f.servers[0], f.servers[1], f.servers[2])
		require.NoError(t, err)
		c, err := relock.Open(s, relock.WithTTL(ttl))
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
		})
		return s, c
	}
	for _, i := range away {
		f.servers[i].stop()
	}
	s, c := open()
	lock := c.NewLock("orders")
	var err error
	f.section, err = lock.Lock(t.Context())
	require.NoError(t, err)
	for _, i := range away {
		f.servers[i].start()
	}
	var group sync.WaitGroup
	for range waiters {
		_, c := open()
		waiter := c.NewLock("orders")
		group.Go(func() {
			err := waiter.Do(t.Context(), func(context.Context) error { return nil })
			if t.Context().Err() == nil {
				assert.NoError(t, err)
			}
		})
		synctest.Wait()
	}
	t.Cleanup(group.Wait)
	state, err := s.Look(t.Context(), store.Claim{Name: "orders"})
	require.NoError(t, err)
	f.owner = state.Owner
	f.end = func() {
		require.NoError(t, lock.Unlock(f.section))
		group.Wait()
	}
	return f
}

// has reports whether the holder has the lock of a server.
func (f *fleet) has(i int) bool {
	state, err := f.servers[i].Look(f.Context(), store.Claim{Name: "orders"})
	return err == nil && state.Owner == f.owner
}

// filled waits until the holder has the locks of all servers.
func (f *fleet) filled(within time.Duration) {
	f.Helper()
	begun := time.Now()
	for !f.has(0) || !f.has(1) || !f.has(2) {
		require.NoError(f, f.section.Err())
		require.Less(f, time.Since(begun), within, "the holder has: %v, %v, %v", f.has(0), f.has(1), f.has(2))
		pass(10 * time.Millisecond)
	}
}

// TestAHoldThatIsWaitedForGetsAllMembers has waiters get the lock of a member that the hold misses.
func TestAHoldThatIsWaitedForGetsAllMembers(t *testing.T) {
	for _, waiters := range []int{0, 1, 20} {
		for missed := range 3 {
			t.Run(fmt.Sprintf("%d waiters, member %d", waiters, missed+1), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const ttl = 3 * time.Second
					f := lockOn(t, ttl, waiters, missed)
					f.filled(ttl/3 + time.Second + time.Duration(waiters)*ttl/8 + time.Second)
					for range 100 {
						pass(ttl / 20)
						f.filled(0)
					}
					f.servers[(missed+1)%3].stop() // the others are a majority
					pass(3 * ttl)
					require.NoError(t, f.section.Err())
					f.end()
				})
			})
		}
	}
}

// TestRestartsInAnyOrderKeepASection restarts all members one after the other, empty. A member gives
// no locks for the longest lease, or serves at once.
func TestRestartsInAnyOrderKeepASection(t *testing.T) {
	const ttl = 4 * time.Second
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, away := range []time.Duration{0, ttl} {
			for _, waiters := range []int{1, 5} {
				t.Run(fmt.Sprintf("%v, %d waiters, away for %v", order, waiters, away), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := lockOn(t, ttl, waiters)
						for _, i := range order {
							f.servers[i].stop()
							pass(away)
							f.servers[i].start()
							f.filled(2 * ttl)
						}
						pass(ttl)
						require.NoError(t, f.section.Err())
						f.end()
					})
				})
			}
		}
	}
}
