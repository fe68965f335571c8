package redis_test

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/once"
)

// What if a hook of go-redis panics, or ends its goroutine?

// hook is a hook of go-redis that ends the goroutine of each command with a name.
type hook struct {
	mu   sync.Mutex
	name string
	end  func()
	seen map[string]bool // names of commands
	hits int
}

func (h *hook) at(cmds ...redis.Cmder) {
	h.mu.Lock()
	is := slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == h.name })
	for _, c := range cmds {
		h.seen[c.Name()] = true
	}
	if is {
		h.hits++
	}
	h.mu.Unlock()
	if is {
		h.end()
	}
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.at(cmd)
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.at(cmds...)
		return next(ctx, cmds)
	}
}

// has says whether the hook has ended a command.
func (h *hook) has() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hits > 0
}

// everything sends each command that a client of the library has.
func everything(t *testing.T, c, other *relock.Client, names func(string) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	records, err := once.New(c)
	require.NoError(t, err)
	work := func(context.Context) error { return nil }
	theirs, err := other.NewLock(names("busy")).Lock(t.Context())
	require.NoError(t, err)
	reading, err := other.NewRWLock(names("read")).RLocker().Lock(t.Context())
	require.NoError(t, err)
	var calls sync.WaitGroup
	for _, call := range []func(){
		func() { _ = c.NewLock(names("a")).Do(ctx, work) },
		func() { _, _ = c.NewLock(names("busy")).TryLockFor(ctx, 100*time.Millisecond) },
		func() { _ = c.NewRWLock(names("rw")).RLocker().Do(ctx, work) },
		func() { _ = c.NewLocks([]string{names("{s}1"), names("{s}2")}).Do(ctx, work) },
		func() { _ = leader.Run(ctx, c.NewLock(names("lead")), work) },
		func() { leader.Campaign(ctx, c.NewLock(names("campaign"))) },
		func() {
			l := c.NewLock(names("wanted"))
			if section, err := l.Lock(ctx); err == nil {
				defer func() { _ = l.Unlock(section) }()
				l.Wanted(section)
				_, _ = l.Token(section)
				_, _ = l.Lend(section)
				<-ctx.Done() // the client watches the store meanwhile
			}
		},
		func() { _ = c.NewLock(names("busy")).Ask(ctx) },
		func() { _, _ = c.List(ctx, func(string) bool { return true }) },
		func() { _ = c.Check(ctx) },
		func() {
			_, _, _ = once.Do(ctx, records, names("record"), func(context.Context, once.Attempt) (int, error) { return 1, nil })
		},
	} {
		calls.Go(func() {
			defer func() { _ = recover() }() // in the goroutine of a caller
			call()
		})
	}
	calls.Wait()
	require.NoError(t, other.NewLock(names("busy")).Unlock(theirs))
	require.NoError(t, other.NewRWLock(names("read")).RLocker().Unlock(reading))
	require.NoError(t, records.Close())
}

// TestNoHookOfGoRedisEndsTheProcess walks over all commands of the library.
func TestNoHookOfGoRedisEndsTheProcess(t *testing.T) {
	w := stage.OnShared(t)
	other := w.Peer()
	t.Cleanup(func() { require.NoError(t, w.Plain.FlushAll(context.Background()).Err()) }) // records, and a queue without its owner
	calm := &hook{seen: make(map[string]bool)}
	p := w.Peer()
	p.RDB.AddHook(calm)
	everything(t, p.Client, other.Client, func(name string) string { return name })
	require.NoError(t, p.Close())
	for _, name := range []string{"eval", "evalsha", "publish", "scan"} {
		calm.seen[name] = true
	}
	for _, name := range []string{"hello", "client"} { // a new connection is go-redis's own
		delete(calm.seen, name)
	}
	for how, end := range map[string]func(){"panics": func() { panic("of a hook") }, "ends its goroutine": runtime.Goexit} {
		for _, name := range slices.Sorted(maps.Keys(calm.seen)) {
			t.Run(name+" "+how, func(t *testing.T) {
				w := w.In(t)
				h := &hook{name: name, end: end, seen: make(map[string]bool)}
				p := w.Peer(relock.WithTTL(time.Second))
				p.RDB.AddHook(h)
				require.NoError(t, w.Plain.ScriptFlush(t.Context()).Err()) // so that there is EVAL
				names := func(of string) string { return of + " " + name + " " + how }
				for rounds := 0; !h.has(); rounds++ { // a busy machine may not come to it in the first one
					require.Less(t, rounds, 100)
					everything(t, p.Client, other.Client, names)
				}
				require.NoError(t, p.Close())
				for _, of := range []string{"a", "busy", "{s}1", "{s}2", "lead", "campaign", "wanted"} {
					l := other.NewLock(names(of))
					w.Leave(w.Enter(t.Context(), l), l)
				}
			})
		}
	}
}
