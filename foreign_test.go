package relock_test

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
	"github.com/go-relock/relock/store"
)

// What is left when a caller's context panics, or a hook ends its goroutine?

// pooled is a context that panics once its request is over, as pooled contexts of web frameworks do.
type pooled struct {
	context.Context
	isOver func(method string) bool
}

func (c *pooled) check(method string) {
	if c.isOver(method) {
		panic("the request is over")
	}
}

func (c *pooled) Deadline() (time.Time, bool) { c.check("Deadline"); return c.Context.Deadline() }
func (c *pooled) Done() <-chan struct{}       { c.check("Done"); return c.Context.Done() }
func (c *pooled) Err() error                  { c.check("Err"); return c.Context.Err() }
func (c *pooled) Value(key any) any           { c.check("Value"); return c.Context.Value(key) }

// until returns a pooled context, and ends its request.
func until(ctx context.Context) (request context.Context, end func()) {
	var over atomic.Bool
	return &pooled{ctx, func(string) bool { return over.Load() }}, func() { over.Store(true) }
}

// own is a context that package context does not know, and so waits for in a goroutine.
type own struct{ context.Context }

func (c own) Done() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		<-c.Context.Done()
		close(done)
	}()
	return done
}

// outlast recovers a call.
func outlast(lock stage.Locking) stage.Locking {
	return func(ctx context.Context) (section context.Context, err error) {
		defer func() { _ = recover() }()
		return lock(ctx)
	}
}

func TestAContextThatPanicsAfterItsRequestEndsNoProcess(t *testing.T) {
	wrappings := map[string]func(context.Context) context.Context{
		"of package context": func(ctx context.Context) context.Context { return ctx },
		"of another package": func(ctx context.Context) context.Context { return own{ctx} },
	}
	for name, end := range map[string]func(w *stage.World, m *stage.Member, cancel func()){
		"the lock is lost":       func(_ *stage.World, m *stage.Member, _ func()) { m.Link.Cut() },
		"the client is closed":   func(_ *stage.World, m *stage.Member, _ func()) { _ = m.Close() },
		"the context is ended":   func(_ *stage.World, _ *stage.Member, cancel func()) { cancel() },
		"the wait comes to pass": func(w *stage.World, _ *stage.Member, _ func()) { w.Store.Lose("b") },
		"time passes":            func(*stage.World, *stage.Member, func()) {},
	} {
		for kind, wrap := range wrappings {
			t.Run(name+", "+kind, func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					other := w.NewClient().NewLock("b")
					theirs := w.Enter(t.Context(), other)
					m := w.NewClient()
					parent, cancel := context.WithCancel(t.Context())
					defer cancel()
					request, over := until(wrap(parent))
					rw := m.NewRWLock("rw")
					a := w.Enter(request, m.NewLock("a"))
					writer := w.Enter(request, rw.Writer())
					reader := w.Enter(writer, rw.RLocker())
					several := w.EnterAll(request, m.NewLocks([]string{"c", "d"}))
					for _, lock := range []stage.Locking{m.NewLock("b").Lock, stage.TryFor(m.NewLock("b"), time.Minute)} {
						require.True(t, w.Begin(request, outlast(lock)).Waits())
						require.True(t, w.Begin(a, outlast(lock)).Waits())
						require.True(t, w.Begin(relock.WithStop(t.Context(), request), outlast(lock)).Waits())
					}
					over()
					end(w, m, cancel)
					stage.Pass(time.Hour)
					cancel()
					stage.Pass(time.Hour)
					for _, section := range []context.Context{a, writer, reader, several} {
						require.Error(t, section.Err())
					}
					_ = other.Unlock(theirs)
				})
			})
		}
	}
}

// lines are the ways in which the calls of one client wait for each other.
func lines() map[string][]relock.Option {
	return map[string][]relock.Option{"each asks": nil, "in a line": {relock.WithLocalPass(0, 0)}}
}

// TestACallThatPanicsLeavesNothing has a context that panics after its n-th call of a method.
func TestACallThatPanicsLeavesNothing(t *testing.T) {
	for name, options := range lines() {
		for what, lock := range map[string]func(c *relock.Client) stage.Locking{
			"Lock":    func(c *relock.Client) stage.Locking { return c.NewLock("a").Lock },
			"TryLock": func(c *relock.Client) stage.Locking { return c.NewLock("a").TryLock },
			"several": func(c *relock.Client) stage.Locking { return c.NewLocks([]string{"a", "b"}).Lock },
			"in turn": func(c *relock.Client) stage.Locking {
				return relock.All(c.NewLock("a"), c.NewSemaphore("b", 1)).Lock
			},
			"nested": func(c *relock.Client) stage.Locking {
				return func(ctx context.Context) (context.Context, error) {
					outer, err := c.NewLock("a").Lock(context.Background())
					if err != nil {
						return ctx, err
					}
					defer func() { _ = c.NewLock("a").Unlock(outer) }()
					return c.NewLock("a").Lock(relock.WithSection(ctx, outer))
				}
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m := w.NewClient(options...)
					for n, ended := int64(0), false; !ended; n++ {
						require.Less(t, n, int64(1000))
						var calls atomic.Int64
						ctx := &pooled{t.Context(), func(string) bool { return calls.Add(1) > n }}
						func() {
							defer func() { _ = recover() }()
							_, err := lock(m.Client)(ctx)
							ended = err == nil // a panic in a goroutine of the library is an end of the context
						}()
						if ended {
							return
						}
						requireUsable(t, w, m)
					}
				})
			})
		}
	}
}

// TestACommandThatEndsItsGoroutineLeavesNothing has a store that ends the goroutine of a command, as
// a hook of its driver can.
func TestACommandThatEndsItsGoroutineLeavesNothing(t *testing.T) {
	works := map[string]func(ctx context.Context, c *relock.Client) error{
		"Lock": func(ctx context.Context, c *relock.Client) error {
			return inAndOut(ctx, c.NewLock("a"), c.NewLock("a").Lock)
		},
		"TryLock": func(ctx context.Context, c *relock.Client) error {
			return inAndOut(ctx, c.NewLock("a"), c.NewLock("a").TryLock)
		},
		"nested": func(ctx context.Context, c *relock.Client) error {
			l := c.NewLock("a")
			return l.Do(ctx, func(ctx context.Context) error { return inAndOut(ctx, l, l.Lock) })
		},
		"several": func(ctx context.Context, c *relock.Client) error {
			several := c.NewLocks([]string{"a", "b"})
			return inAndOut(ctx, several, several.Lock)
		},
	}
	for name, options := range lines() {
		for what, work := range works {
			for _, command := range []stage.Command{stage.CmdTry, stage.CmdWait, stage.CmdRelease, stage.CmdTryAll, stage.CmdReleaseAll} {
				for _, hasRun := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, %s %t", name, what, command, hasRun), func(t *testing.T) {
						stage.Fake(t, func(t *testing.T, w *stage.World) {
							m := w.NewClient(options...)
							fault := m.Link.Once(func(_ context.Context, _ *stage.Fault, run func() error) error {
								if hasRun {
									_ = run()
								}
								runtime.Goexit()
								return nil
							}, command)
							w.Begin(t.Context(), func(ctx context.Context) (context.Context, error) { return ctx, work(ctx, m.Client) })
							fault.End()
							requireUsable(t, w, m)
						})
					})
				}
			}
		}
	}
}

// requireUsable fails unless the locks a and b can be had within a second, and then are free.
func requireUsable(t *testing.T, w *stage.World, m *stage.Member) {
	t.Helper()
	for _, name := range []string{"a", "b"} {
		l := m.NewLock(name)
		require.NoError(t, l.DoFor(t.Context(), time.Second, func(context.Context) error { return nil }), name)
	}
	stage.Pass(time.Second)
	w.RequireFree("a", "b")
}

func inAndOut(ctx context.Context, l relock.Locker, lock stage.Locking) error {
	section, err := lock(ctx)
	if err != nil {
		return err
	}
	return l.Unlock(section)
}

// TestAClientOutlastsAStoreThatPanics has a store that panics, or ends its goroutine, in commands
// of goroutines of the client.
func TestAClientOutlastsAStoreThatPanics(t *testing.T) {
	for how, end := range map[string]func(){"panics": func() { panic("of the driver") }, "ends its goroutine": runtime.Goexit} {
		for _, command := range []stage.Command{stage.CmdRenew, stage.CmdForget, stage.CmdLook} {
			t.Run(fmt.Sprint(command, " ", how), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m, other := w.NewClient(relock.WithTTL(time.Minute)), w.NewClient()
					a := m.NewLock("a")
					section := w.Enter(t.Context(), a)
					theirs := w.Enter(t.Context(), other.NewLock("b"))
					var ended atomic.Int64
					fault := m.Link.On(func(context.Context, *stage.Fault, func() error) error {
						ended.Add(1)
						end()
						return nil
					}, command)
					m.Link.Once(func(_ context.Context, _ *stage.Fault, run func() error) error {
						return cmp.Or(run(), store.Unsure(store.ErrUnavailable))
					}, stage.CmdTry)
					require.ErrorIs(t, inAndOut(section, m.NewLock("c"), m.NewLock("c").TryLock), relock.ErrUnavailable)
					require.ErrorIs(t, inAndOut(section, m.NewLock("b"), stage.TryFor(m.NewLock("b"), 30*time.Second)), relock.ErrLocked)
					stage.Pass(time.Second)
					require.Positive(t, ended.Load())
					fault.End()
					stage.Pass(5 * time.Second)
					w.RequireFree("c")
					require.NoError(t, other.NewLock("b").Unlock(theirs))
					stage.Pass(time.Hour)
					require.NoError(t, section.Err(), "the lock is renewed")
					require.NoError(t, a.Unlock(section))
					requireUsable(t, w, m)
				})
			})
		}
	}
}

// TestAContextThatPanicsInACallOfAnOperator has a context that panics while the store waits for
// the context's end.
func TestAContextThatPanicsInACallOfAnOperator(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *relock.Client) error{
		"State":       func(ctx context.Context, c *relock.Client) error { _, err := c.NewLock("a").State(ctx); return err },
		"ForceUnlock": func(ctx context.Context, c *relock.Client) error { return c.NewLock("a").ForceUnlock(ctx) },
		"Check":       func(ctx context.Context, c *relock.Client) error { return c.Check(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				request, over := until(t.Context())
				m.Link.On(func(ctx context.Context, _ *stage.Fault, _ func() error) error {
					bounded, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					over()
					<-bounded.Done()
					return bounded.Err()
				}, stage.CmdLook)
				require.Error(t, call(request, m.Client))
			})
		})
	}
}
