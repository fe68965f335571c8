package explore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// server keeps the locks of a run, in memory or in Redis.
type server struct {
	operator *relock.Client
	forget   func(l lock) error // without a message
	close    func()
	store    *mem.Store  // nil: Redis
	deaf     atomic.Bool // no message arrives from the store

	mu            sync.Mutex
	away, answers bool   // away: no command runs, or only its answer is lost
	restored      func() // of the store
}

// lock is what an operator does with a lock of any kind.
type lock interface {
	Name() string
	Key() string
	State(ctx context.Context) (relock.State, error)
	ForceUnlock(ctx context.Context) error
}

func newMemory() *server {
	s := &server{store: mem.New()}
	s.operator, _ = relock.Open(s.store) // memory takes every client
	s.close = func() { _ = s.operator.Close() }
	s.forget = func(l lock) error {
		s.deaf.Store(true)
		defer s.deaf.Store(false)
		s.store.Lose(l.Name())
		return nil
	}
	return s
}

// newRedis returns the server of rdb. The operator has a connection without a hook. The client of
// the program, with the same options, reports an error of the options.
func newRedis(rdb *redis.Client, options []relock.Option) *server {
	own := redis.NewClient(rdb.Options())
	s := &server{restored: func() {}}
	s.operator, _ = relock.New(own, options...)
	s.close = func() {
		if s.operator != nil {
			_ = s.operator.Close()
		}
		_ = own.Close()
	}
	s.forget = func(l lock) error { return own.Del(context.Background(), l.Key()).Err() }
	return s
}

// each calls do with the lock in each kind, until the lock is of that kind.
func (s *server) each(name string, do func(l lock) error) {
	for _, l := range []lock{s.operator.NewLock(name), s.operator.NewRWLock(name), s.operator.NewSemaphore(name, 1)} {
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
	case s.store == nil:
	case answers:
		s.restored = s.store.Interrupt(store.Unsure(errAway))
	default:
		s.restored = s.store.Interrupt(errAway)
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
func (l *link) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	return through(l, "Try", a.Name, func() (store.Lease, error) { return l.Store.Try(ctx, a) })
}

// TryAll implements [store.Several].
func (l *link) TryAll(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	return through(l, "TryAll", asks[0].Name, func() ([]store.Lease, error) { return l.Store.TryAll(ctx, asks) })
}

// Wait implements [store.Store].
func (l *link) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	return through(l, "Wait", a.Name, func() (store.Lease, error) { return l.Store.Wait(ctx, a, progress) })
}

// Enter implements [store.Store].
func (l *link) Enter(ctx context.Context, lease store.Lease, count int) (store.Lease, error) {
	return through(l, "Enter", lease.Name, func() (store.Lease, error) { return l.Store.Enter(ctx, lease, count) })
}

// Release implements [store.Store].
func (l *link) Release(ctx context.Context, lease store.Lease, count int) error {
	_, err := through(l, "Release", lease.Name, func() (any, error) { return nil, l.Store.Release(ctx, lease, count) })
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
func (l *link) Borrow(ctx context.Context, a store.Ask, t store.Ticket) (store.Lease, error) {
	return through(l, "Borrow", a.Name, func() (store.Lease, error) { return l.Store.Borrow(ctx, a, t) })
}
