package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
)

// Which calls are inside of a section?

// This file shows which calls are inside of a section. reentry_faults_test.go is about entries
// whose commands are slow or get lost.

func TestACallWhileTheLastExitIsInFlightMakesANewHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		detached := context.WithoutCancel(section)
		other := w.Start(t.Context(), w.NewClient().NewLock("a"))
		m.Link.Once(stage.Delay(time.Second, time.Second), stage.CmdRelease)
		exit := w.Begin(section, stage.Unlock(l))
		late := w.Start(detached, l)
		_, err := l.TryLock(detached)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, exit.Failure())
		require.NoError(t, other.Section().Err())
		require.True(t, late.Waits(), "behind the one that waited before")
		require.NoError(t, l.ForceUnlock(t.Context()))
		require.Equal(t, 1, l.Count(late.Section()))
		require.NoError(t, l.Unlock(late.Section()))
	})
}

func TestWithSectionPutsCallbacksInside(t *testing.T) {
	type key struct{}
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)

		// A framework calls back with a context of its own, as a gRPC stream does.
		own, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "stream"))
		callback := relock.WithSection(own, section)
		require.Equal(t, "stream", callback.Value(key{}))
		require.Equal(t, stage.HolderOf(t, section), stage.HolderOf(t, callback))
		require.Equal(t, 1, l.Count(callback))
		inner := w.Enter(callback, l)
		w.RequireCount("a", 2)
		require.Equal(t, "stream", inner.Value(key{}))

		cancel()
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.NoError(t, section.Err(), "the section goes on")
		w.Leave(inner, l)
		w.Leave(section, l)

		// A context outside of all sections puts nothing inside.
		for _, over := range []context.Context{section, t.Context(), relock.WithoutHolder(section)} {
			require.False(t, l.Held(relock.WithSection(t.Context(), over)))
		}
		other := w.Enter(t.Context(), l)
		require.False(t, l.Held(relock.WithSection(other, t.Context())))
		_, err := l.TryLock(relock.WithSection(t.Context(), section))
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, l.Unlock(relock.WithSection(t.Context(), other)), "Unlock takes such a context, too")
		w.RequireFree("a")
	})
}

func TestASectionInsideOfWithSectionOutlivesTheOuterOne(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(relock.WithSection(t.Context(), outer), l)
		w.Leave(outer, l)
		require.NoError(t, inner.Err())
		stage.Pass(10 * ttl)
		require.NoError(t, inner.Err(), "the lease is renewed")
		require.Equal(t, 1, l.Count(inner))
		w.Store.Lose("a")
		_, cause := w.Ends(inner)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(inner), relock.ErrLockLost)
	})
}

func TestASectionThatOnlyWithSectionRefersToIsNoLeak(t *testing.T) {
	var r stage.Recorder
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		callback := func() context.Context {
			section, err := l.Lock(t.Context())
			require.NoError(t, err)
			return relock.WithSection(t.Context(), section)
		}()
		for range 3 {
			runtime.GC()
			stage.Pass(relock.DefaultTTL)
		}
		w.Leave(callback, l)
		require.Empty(t, stage.EventsOf[event.Leaked](&r))
	})
}

func TestWithoutHolderPutsCallsOutside(t *testing.T) {
	type key struct{}
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		require.Equal(t, t.Context(), relock.WithoutHolder(t.Context()), "there is nothing to take away")
		l := w.NewClient().NewLock("a")
		section := w.Enter(context.WithValue(t.Context(), key{}, "trace"), l)
		outside := relock.WithoutHolder(section)
		require.Equal(t, "trace", outside.Value(key{}))
		_, inside := relock.HolderFrom(outside)
		require.False(t, inside)
		require.False(t, l.Held(outside))
		require.ErrorIs(t, l.Unlock(outside), relock.ErrNotHeld)
		_, err := l.TryLock(outside)
		require.ErrorIs(t, err, relock.ErrLocked)
		own := w.Start(outside, l)
		require.True(t, own.Waits())

		w.Leave(section, l)
		err = own.Failure()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, context.Canceled, "the context still ends with the section")
		require.ErrorIs(t, err, relock.ErrReleased)
		w.RequireFree("a")

		section = w.Enter(t.Context(), l)
		own = w.Start(relock.WithoutHolder(context.WithoutCancel(section)), l)
		stage.Pass(time.Minute)
		require.True(t, own.Waits())
		w.Leave(section, l)
		require.NoError(t, l.Unlock(own.Section()))
		w.RequireFree("a")
	})
}

func TestANilContextIsAPanicWithAText(t *testing.T) {
	var none context.Context
	for name, call := range map[string]func(){
		"WithSection, no context": func() { relock.WithSection(none, t.Context()) },
		"WithSection, no section": func() { relock.WithSection(t.Context(), none) },
		"WithoutHolder":           func() { relock.WithoutHolder(none) },
		"HolderFrom":              func() { relock.HolderFrom(none) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() { require.Contains(t, fmt.Sprint(recover()), "nil") }()
			call()
		})
	}
}

func TestEveryHoldOfAChainIsNamedAfterItsFirst(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		var r stage.Recorder
		c := w.NewClient(relock.WithOwner("orders"), relock.WithLogger(log.Logger()), relock.WithHooks(r.Hooks()))
		ctx := t.Context()
		for _, name := range []string{"a", "b", "c"} {
			ctx = w.Enter(ctx, c.NewLock(name))
		}
		holder := stage.HolderOf(t, ctx)
		require.Equal(t, c.ID()+":1", holder.String())
		for _, name := range []string{"a", "b", "c"} {
			state, err := c.NewLock(name).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, holder, state.Holder)
			_, err = w.NewClient().NewLock(name).TryLock(t.Context())
			require.ErrorContains(t, err, fmt.Sprintf("%q is locked by %s;", name, holder))
		}
		for _, e := range stage.EventsOf[event.AcquireFinished](&r) {
			require.Equal(t, holder, e.Holder)
		}
		w.Store.Lose("c")
		_, cause := w.Ends(ctx)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, holder, lost.Holder)
		lines := log.About("lock lost")
		require.Len(t, lines, 1)
		require.Equal(t, holder.String(), lines[0].Attrs["holder"])
		require.ErrorContains(t, c.NewLock("d").Unlock(ctx), "not held by this context")

		// The name lasts as long as a section of the chain is open.
		outside := context.WithoutCancel(ctx)
		w.Leave(ctx, c.NewLock("a"))
		require.Equal(t, holder, stage.HolderOf(t, outside), "b is still open")
		w.Leave(ctx, c.NewLock("b"))
		next := w.Enter(outside, c.NewLock("a"))
		require.NotEqual(t, holder, stage.HolderOf(t, next))
		w.Leave(next, c.NewLock("a"))
	})
}

// slowContext tells of its end late, as on a busy machine.
type slowContext struct{ context.Context }

func (c slowContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(c.Context, func() {
		<-time.After(time.Second)
		f()
	})
}

func TestADowngradedReaderOutlivesWhatWasLeftBehindItsWriter(t *testing.T) {
	for _, writerFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("the writer first: %t", writerFirst), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				c := w.NewClient()
				rw, other := c.NewRWLock("a"), c.NewLock("b")
				writer := w.Begin(t.Context(), rw.Lock).Section()
				between := w.Enter(writer, other)
				reader := w.Enter(slowContext{between}, rw.RLocker())
				if writerFirst {
					require.NoError(t, rw.Unlock(writer))
					w.Leave(between, other)
				} else {
					w.Leave(between, other)
					require.NoError(t, rw.Unlock(writer))
				}
				stage.Pass(2 * time.Second)
				require.Equal(t, writerFirst, reader.Err() == nil, "the Unlock that came first counts")
				w.Leave(reader, rw.RLocker())
				w.RequireFree("a", "b")
			})
		})
	}
}

// A context that has ended with an outer section stops renewal, as every done context does.
func TestALeaseIsNotRenewedUnderAnOuterSectionThatWasLeft(t *testing.T) {
	const ttl = 10 * time.Second
	for name, names := range map[string][2]string{"the same lock": {"a", "a"}, "another lock": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				c := w.NewClient(relock.WithTTL(ttl))
				outer, inner := c.NewLock(names[0]), c.NewLock(names[1])
				for _, late := range []bool{false, true} {
					inOuter := w.Enter(t.Context(), outer)
					inInner := w.Enter(inOuter, inner)
					w.Leave(inOuter, outer)
					require.ErrorIs(t, context.Cause(inInner), relock.ErrReleased)
					require.True(t, inner.Held(inInner), "there is time to clean up")
					require.Equal(t, 1, inner.Count(inInner))
					stage.Pass(ttl / 2)
					require.True(t, inner.Held(inInner))
					if !late {
						w.Leave(inInner, inner)
						continue
					}
					stage.Pass(ttl/2 + time.Millisecond)
					require.False(t, inner.Held(inInner))
					w.RequireFree(names[0], names[1])
					require.ErrorIs(t, inner.Unlock(inInner), relock.ErrLockLost)
				}
			})
		})
	}
}

func TestCountIsRightAfterManyEntriesAndExits(t *testing.T) {
	for name, options := range map[string][]relock.Option{"": nil, "WithLocalReentry": {relock.WithLocalReentry()}} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				const ttl = 30 * time.Second
				m := w.NewClient(append(options, relock.WithTTL(ttl))...)
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				m.Link.On(func(ctx context.Context, f *stage.Fault, run func() error) error { // in any order
					return stage.Delay(rand.N(time.Second), rand.N(time.Second))(ctx, f, run)
				}, stage.CmdEnter, stage.CmdRelease)
				var wg sync.WaitGroup
				var kept []context.Context
				var mu sync.Mutex
				errs := make([]error, 30)
				for i := range errs {
					wg.Go(func() {
						var open []context.Context
						for range 10 {
							if len(open) > 0 && rand.IntN(2) == 0 {
								at := rand.IntN(len(open))
								errs[i] = errors.Join(errs[i], l.Unlock(open[at]))
								open = slices.Delete(open, at, at+1)
								continue
							}
							inner, err := l.Lock(relock.WithSection(t.Context(), outer))
							errs[i] = errors.Join(errs[i], err)
							open = append(open, inner)
						}
						mu.Lock()
						defer mu.Unlock()
						kept = append(kept, open...)
					})
				}
				wg.Wait()
				require.NoError(t, errors.Join(errs...))
				require.Equal(t, 1+len(kept), l.Count(outer))
				stage.Pass(ttl / 3)
				if options == nil { // else the store knows one entry
					require.Equal(t, 1+len(kept), w.Count("a"))
				}
				for _, section := range append(kept, outer) {
					w.Leave(section, l)
				}
				w.RequireFree("a")
			})
		})
	}
}
