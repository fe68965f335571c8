package explore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/sections"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// server keeps locks, in memory or in Redis.
type server struct {
	memory *mem.Store  // nil: Redis
	deaf   atomic.Bool // no message arrives from memory

	mu            sync.Mutex
	away, answers bool   // away: no command runs, or only its answer is lost
	restored      func() // of the store
}

// access is how a run sees the locks of a process, past the accidents.
type access struct {
	server   *server
	store    store.Store
	operator *relock.Client
	forget   func(l lock) error // without a message
	close    func()
}

// lock is what an operator does with a lock of any kind.
type lock interface {
	Name() string
	Key() string
	ForceUnlock(ctx context.Context) error
}

func inMemory(s *server) *access {
	a := &access{server: s, store: s.memory}
	a.operator, _ = relock.Open(s.memory) // memory takes every client
	a.close = func() { _ = a.operator.Close() }
	a.forget = func(l lock) error {
		s.deaf.Store(true)
		defer s.deaf.Store(false)
		s.memory.Lose(l.Key())
		return nil
	}
	return a
}

// inRedis returns the access to the locks of a client with options. own is a client without a hook.
// The client of the program, with the same options, reports an error of the options.
func inRedis(s *server, own *redis.Client, options []relock.Option) *access {
	var layout []relock.Option
	for _, option := range options {
		if of, err := relock.RedisStore(own, option); err == nil {
			_ = of.Close()
			layout = append(layout, option)
		}
	}
	a := &access{server: s}
	a.store, _ = relock.RedisStore(own, layout...)
	a.operator, _ = relock.New(own, layout...)
	a.close = func() {
		_ = a.operator.Close()
		_ = a.store.Close()
		_ = own.Close()
	}
	a.forget = func(l lock) error { return own.Del(context.Background(), l.Key()).Err() }
	return a
}

// nameOf returns the name that a server of Redis has in this run. rdbs may dial one server in
// different ways, and different servers with one address.
func nameOf(own *redis.Client) string {
	ctx, key, name := context.Background(), "relock:explore", rand.Text()
	own.SetNX(ctx, key, name, 0)
	return cmp.Or(own.Get(ctx, key).Val(), name)
}

// look asks the store for a hold. The count is the one that the store should have.
func (a *access) look(s sections.Section) error {
	ctx, lease := context.Background(), s.Lease
	if lending, is := a.store.(store.Lending); is && lease.Lender != "" {
		_, err := lending.Follow(ctx, lease)
		return err
	}
	return a.store.Renew(ctx, []store.Renewal{{Lease: lease, Count: s.Count}})[0]
}

// each calls do with the lock in each kind, until the lock is of that kind.
func (a *access) each(name string, do func(l lock) error) {
	for _, l := range []lock{a.operator.NewLock(name), a.operator.NewRWLock(name), a.operator.NewSemaphore(name, 1)} {
		if !errors.Is(do(l), relock.ErrKind) {
			return
		}
	}
}

var errAway = errors.New("the server is away")

// cut takes the server away from all clients of the program, or loses the answers to them.
func (s *server) cut(answers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.answers = true, answers
	switch {
	case s.memory == nil:
	case answers:
		s.restored = s.memory.Interrupt(store.Unsure(errAway))
	default:
		s.restored = s.memory.Interrupt(errAway)
	}
}

func (s *server) restore() {
	s.mu.Lock()
	was := s.away
	s.away = false
	s.mu.Unlock()
	if was {
		s.restored()
	}
}

func (s *server) isAway() (away, answers bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away, s.answers
}

// hook is the way of the commands of a process to Redis.
type hook struct{ process *process }

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.through([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h.through(cmds, func() error { return next(ctx, cmds) })
	}
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// through is one step for the commands of a round trip. The handshake of a connection is none.
func (h hook) through(cmds []redis.Cmder, next func() error) error {
	if verb := strings.ToUpper(cmds[0].Name()); verb != "HELLO" {
		h.process.step(verb, key(cmds[0]))
	}
	away, answers := h.process.server.isAway()
	if !away {
		err := next()
		h.process.stand()
		return err
	}
	var err error = errRefused
	if answers {
		_ = next()
		err = io.EOF
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// key returns the first key of a script call; empty for other commands.
func key(cmd redis.Cmder) string {
	if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && len(args) > 3 {
		return fmt.Sprint(args[3])
	}
	return ""
}

// link is the way of the commands of a process to the store in memory.
type link struct {
	*mem.Store
	process *process
}

var (
	_ store.Watcher = (*link)(nil)
	_ store.Several = (*link)(nil)
	_ store.Lending = (*link)(nil)
)

func through[T any](l *link, verb, lock string, run func() (T, error)) (T, error) {
	l.process.step(verb, lock)
	result, err := run()
	l.process.stand()
	return result, err
}

// Watch implements [store.Watcher].
func (l *link) Watch(client string, doubt func(store.ID)) (stop func()) {
	return l.Store.Watch(client, func(id store.ID) {
		if !l.process.server.deaf.Load() {
			doubt(id)
		}
	})
}

// Try implements [store.Store].
func (l *link) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return through(l, "Try", a.Name, func() (store.Lease, error) { return l.Store.Try(ctx, a) })
}

// TryAll implements [store.Several].
func (l *link) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	return through(l, "TryAll", claims[0].Name, func() ([]store.Lease, error) { return l.Store.TryAll(ctx, claims) })
}

// Wait implements [store.Store].
func (l *link) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return through(l, "Wait", a.Name, func() (store.Lease, error) { return l.Store.Wait(ctx, a, progress) })
}

// Enter implements [store.Store].
func (l *link) Enter(ctx context.Context, lease store.Lease, count int) (store.Lease, error) {
	return through(l, "Enter", lease.Name, func() (store.Lease, error) { return l.Store.Enter(ctx, lease, count) })
}

// Release implements [store.Store].
func (l *link) Release(ctx context.Context, lease store.Lease) error {
	_, err := through(l, "Release", lease.Name, func() (any, error) { return nil, l.Store.Release(ctx, lease) })
	return err
}

// ReleaseAll implements [store.Several].
func (l *link) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs, _ := through(l, "ReleaseAll", leases[0].Name, func() ([]error, error) { return l.Store.ReleaseAll(ctx, leases), nil })
	return errs
}

// Renew implements [store.Store].
func (l *link) Renew(ctx context.Context, renewals []store.Renewal) []error {
	errs, _ := through(l, "Renew", renewals[0].Lease.Name, func() ([]error, error) { return l.Store.Renew(ctx, renewals), nil })
	return errs
}

// Token implements [store.Store].
func (l *link) Token(ctx context.Context, lease store.Lease) (int64, error) {
	return through(l, "Token", lease.Name, func() (int64, error) { return l.Store.Token(ctx, lease) })
}

// Borrow implements [store.Lending].
func (l *link) Borrow(ctx context.Context, a store.Claim, t store.Ticket) (store.Lease, error) {
	return through(l, "Borrow", a.Name, func() (store.Lease, error) { return l.Store.Borrow(ctx, a, t) })
}

// Follow implements [store.Lending].
func (l *link) Follow(ctx context.Context, lease store.Lease) (time.Duration, error) {
	return through(l, "Follow", lease.Name, func() (time.Duration, error) { return l.Store.Follow(ctx, lease) })
}

// Accept implements [store.Lending].
func (l *link) Accept(ctx context.Context, a store.Claim, old store.ID, t store.Ticket, unaware bool) (lease store.Lease, wait time.Duration, err error) {
	lease, err = through(l, "Accept", a.Name, func() (lease store.Lease, err error) {
		lease, wait, err = l.Store.Accept(ctx, a, old, t, unaware)
		return lease, err
	})
	return lease, wait, err
}
