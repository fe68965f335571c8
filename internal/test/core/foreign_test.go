package core_test

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
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
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

// ways say whether the store passes leases on.
func ways() map[string]bool { return map[string]bool{"each asks": false, "passed on": true} }

// TestACallThatPanicsLeavesNothing has a context that panics after its n-th call of a method.
func TestACallThatPanicsLeavesNothing(t *testing.T) {
	for name, passes := range ways() {
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
					m := w.NewClient()
					m.Link.Passes = passes
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
	for name, passes := range ways() {
		for what, work := range works {
			for _, command := range []stage.Command{stage.CmdTry, stage.CmdWait, stage.CmdEnter, stage.CmdRelease, stage.CmdTryAll, stage.CmdReleaseAll} {
				for _, hasRun := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, %s %t", name, what, command, hasRun), func(t *testing.T) {
						stage.Fake(t, func(t *testing.T, w *stage.World) {
							m := w.NewClient()
							m.Link.Passes = passes
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

// terse is a store that has no results for many holds, while it is armed.
type terse struct {
	*stage.Link
	armed atomic.Bool
}

func (s *terse) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return s.some(s.Link.Renew(ctx, renewals))
}

func (s *terse) Forget(ctx context.Context, claims []store.Claim) []error {
	return s.some(s.Link.Forget(ctx, claims))
}

func (s *terse) some(errs []error) []error {
	if s.armed.Load() {
		return nil
	}
	return errs
}

func TestAClientOutlastsAStoreWithTooFewResults(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &terse{Link: stage.NewLink(w.Store)}
		c, err := relock.Open(s, relock.WithTTL(time.Minute))
		require.NoError(t, err)
		a := c.NewLock("a")
		section := w.Enter(t.Context(), a)
		s.armed.Store(true)
		s.Once(stage.LoseAnswer(stage.ErrBroken), stage.CmdTry)
		_, err = c.NewLock("b").TryLock(t.Context())
		require.ErrorIs(t, err, stage.ErrBroken)
		stage.Pass(30 * time.Second)
		require.Less(t, a.Remaining(section), time.Minute/2+time.Second, "what the store does not say is no renewal")
		s.armed.Store(false)
		stage.Pass(time.Hour)
		require.NoError(t, a.Unlock(section))
		w.RequireFree("a")
		w.RequireFree("b")
		require.NoError(t, c.Close())
	})
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

// hostile is a store in which one method panics, or ends its goroutine, while it is armed.
type hostile struct {
	*stage.Link
	method string
	end    func()
	armed  atomic.Bool
	hits   atomic.Int64
}

// methods are the methods of a hostile store that talk to a server or listen, and the ends of those
// that listen.
var methods = []string{
	"Try", "TryAll", "Wait", "Enter", "Release", "ReleaseAll", "Renew", "Forget", "Token", "Look", "Break", "Borrow", "Follow",
	"Accept", "Want", "Announce", "Show", "Shown", "List", "WatchWanted", "stop WatchWanted", "Announced", "stop Announced", "Watch", "stop Watch",
}

func newHostile(s *mem.Store, method string, end func()) *hostile {
	h := &hostile{Link: stage.NewLink(s), method: method, end: end}
	h.On(func(_ context.Context, _ *stage.Fault, run func() error) error { h.at(method); return run() }, stage.Command(method))
	return h
}

func (h *hostile) at(method string) {
	if method == h.method && h.armed.Load() {
		h.hits.Add(1)
		h.end()
	}
}

func (h *hostile) listening(method string, listen func() (stop func())) (stop func()) {
	h.at(method)
	end := listen()
	return func() { end(); h.at("stop " + method) }
}

func (h *hostile) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := h.Link.Try(ctx, a)
	if err == nil && a.Name == "unsure" {
		err = store.Unsure(store.ErrUnavailable)
	}
	return l, err
}

func (h *hostile) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	h.at("List")
	return h.Store.List(ctx, a)
}

func (h *hostile) Show(ctx context.Context, w store.Waiting, lifetime time.Duration) error {
	h.at("Show")
	return h.Store.Show(ctx, w, lifetime)
}

func (h *hostile) Shown(ctx context.Context, holds []store.ID) ([]store.Waiting, error) {
	h.at("Shown")
	return h.Store.Shown(ctx, holds)
}

func (h *hostile) Watch(client string, doubt func(store.ID)) (stop func()) {
	return h.listening("Watch", func() func() { return h.Link.Watch(client, doubt) })
}

func (h *hostile) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	return h.listening("WatchWanted", func() func() { return h.Link.WatchWanted(client, wanted) })
}

func (h *hostile) Announced(name string, heard func()) (stop func()) {
	return h.listening("Announced", func() func() { return h.Link.Announced(name, heard) })
}

// TestNoMethodOfAStoreEndsTheProcess walks over all methods of a store, and calls each verb of a lock
// while one of them panics, or ends its goroutine.
func TestNoMethodOfAStoreEndsTheProcess(t *testing.T) {
	for how, end := range map[string]func(){"panics": func() { panic("of the driver") }, "ends its goroutine": runtime.Goexit} {
		for _, method := range methods {
			t.Run(method+" "+how, func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					h := newHostile(w.Store, method, end)
					c, err := relock.Open(h)
					require.NoError(t, err)
					h.armed.Store(true)
					everything(t, w, c)
					require.Positive(t, h.hits.Load(), "the method was called")
					h.armed.Store(false)
					stage.Pass(time.Hour)
					other := w.NewClient()
					for _, name := range []string{"a", "b", "c", "d", "lead", "loan", "away", "unsure"} {
						l := other.NewLock(name)
						w.Leave(w.Enter(t.Context(), l), l)
						l = c.NewLock(name)
						if name != "unsure" {
							w.Leave(w.Enter(t.Context(), l), l)
						}
					}
					h.armed.Store(true)
					inCaller(func() { _ = c.Close() })
					h.armed.Store(false)
					require.NoError(t, c.Close())
				})
			})
		}
	}
}

// inCaller runs a call in a goroutine that the call may end, or let panic.
func inCaller(call func()) {
	go func() {
		defer func() { _ = recover() }()
		call()
	}()
}

// everything calls each verb of a lock, and lets each background work of a client happen.
func everything(t *testing.T, w *stage.World, c *relock.Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := w.NewClient()
	theirs := w.Enter(ctx, other.NewLock("b"))
	lender := other.NewLock("loan")
	lent := w.Enter(ctx, lender)
	loan, err := ticket.Lend(lent, lender)
	require.NoError(t, err)
	away, err := ticket.HandOff(w.Enter(ctx, other.NewLock("away")), other.NewLock("away"))
	require.NoError(t, err)

	a := c.NewLock("a")
	inCaller(func() {
		section, err := a.Lock(ctx)
		if err != nil {
			return
		}
		defer func() { _ = a.Unlock(section) }()
		for _, call := range []func(){
			func() { a.Wanted(section) },
			func() { _ = a.Do(section, func(context.Context) error { return nil }) },
			func() { _, _ = a.Token(section) },
			func() { _, _ = c.NewLock("b").TryLockFor(section, time.Minute) }, // with a search for deadlocks
			func() { <-section.Done() },
		} {
			inCaller(call)
		}
		<-time.After(2 * time.Minute)
	})
	for _, call := range []func(){
		func() { _, _ = c.NewLock("unsure").TryLock(ctx) },
		func() { _ = c.NewLocks([]string{"c", "d"}).Do(ctx, func(context.Context) error { return nil }) },
		func() {
			_ = relock.All(c.NewLock("c"), c.NewSemaphore("s", 1)).Do(ctx, func(context.Context) error { return nil })
		},
		func() {
			if section, err := ticket.Borrow(ctx, c.NewLock("loan"), loan); err == nil {
				<-time.After(time.Minute)
				_ = c.NewLock("loan").Unlock(section)
			}
		},
		func() {
			if section, err := ticket.Accept(ctx, c.NewLock("away"), away); err == nil {
				_ = c.NewLock("away").Unlock(section)
			}
		},
		func() {
			for range leader.Follow(ctx, c.NewLock("lead")) {
			}
		},
		func() { _ = leader.Run(ctx, c.NewLock("lead"), func(context.Context) error { return nil }) },
		func() { _ = c.NewLock("b").Ask(ctx) },
		func() { _, _ = c.NewLock("b").State(ctx) },
		func() { _, _ = c.List(ctx, nil) },
	} {
		inCaller(call)
		stage.Pass(time.Second)
	}
	campaign := leader.Campaign(ctx, c.NewLock("lead"))
	stage.Pass(time.Minute)
	inCaller(func() { _ = c.NewLock("b").ForceUnlock(ctx) })
	inCaller(func() { campaign.Resign() })
	stage.Pass(5 * time.Minute)
	cancel()
	_ = other.NewLock("b").Unlock(theirs)
	_ = lender.Unlock(lent)
	stage.Pass(time.Minute)
	<-campaign.Done()
}
