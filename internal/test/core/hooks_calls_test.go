package core_test

import (
	"context"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
)

// How and when are hooks called, and which contexts does Hooks.Trace give to a call?

func TestHooksOfALockReplaceThoseOfItsClient(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var clients, locks stage.Recorder
		c := w.NewClient(relock.WithHooks(clients.Hooks()))
		l := c.NewLock("a", relock.WithHooks(locks.Hooks()))
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Empty(t, clients.Kinds())
		require.Equal(t, []string{"AcquireStarted", "AcquireFinished", "Released"}, locks.Kinds())
		require.NoError(t, c.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.Len(t, clients.Kinds(), 3)
		require.Len(t, locks.Kinds(), 3)

		w.Enter(t.Context(), l)
		stage.Pass(relock.DefaultTTL / 3)
		require.Len(t, stage.EventsOf[event.Renewed](&clients), 1, "a batch of renewals is the client's")
		require.Empty(t, stage.EventsOf[event.Renewed](&locks))
	})
}

func TestAHookThatIsNotThereIsNotCalled(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		m := w.NewClient(relock.WithLogger(log.Logger()))
		stage.Story(t, w, m)
		w.Enter(t.Context(), m.NewLock("a"))
		require.NoError(t, m.Close())
		require.Empty(t, log.About("panicked"))
	})
}

func TestNoHookIsCalledAfterClose(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		require.NoError(t, m.Close())
		require.Equal(t, []string{"AcquireStarted", "AcquireFinished", "Closed"}, r.Kinds())
		before := len(r.All())
		w.Leave(section, l)
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		stage.Pass(time.Minute)
		require.Len(t, r.All(), before)
	})
}

func TestNoHookIsCalledForAWrongCall(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		_, err := m.NewLock("").Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrInvalid)
		_, err = m.NewLock("a").TryLockFor(t.Context(), -1)
		require.ErrorIs(t, err, relock.ErrInvalid)
		_, err = m.NewLock("a").Lock(nil) //lint:ignore SA1012 a nil context is what the test is about
		require.ErrorIs(t, err, relock.ErrInvalid)
		require.Empty(t, r.All())
	})
}

func TestAHookMayUseTheLibraryAndEvenCloseTheClient(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var m *stage.Member
		errs := make(chan error, 10)
		m = w.NewClient(relock.WithHooks(event.Hooks{Released: func(e event.Released) {
			if e.Name == "a" {
				errs <- m.NewLock("b").Do(t.Context(), func(context.Context) error { return nil })
				errs <- m.Close()
			}
		}}))
		require.NoError(t, m.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		_, err := m.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
	})
}

func TestJoinedHooksAreAllCalledInOrder(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var one, two stage.Recorder
		var order []string
		l := w.NewClient(relock.WithHooks(event.Join(
			one.Hooks(),
			event.Hooks{}, // has nothing to say
			event.Hooks{Released: func(event.Released) { order = append(order, "first") }},
			event.Hooks{Released: func(event.Released) { order = append(order, "second") }},
			two.Hooks(),
		))).NewLock("a")
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Equal(t, one.All(), two.All())
		require.Len(t, one.All(), 3)
		require.Equal(t, []string{"first", "second"}, order)

		joined := event.Join(event.Hooks{}, event.Hooks{Lost: func(event.Lost) {}})
		require.NotNil(t, joined.Lost)
		require.Nil(t, joined.Released, "nobody wants it")
	})
}

func TestEveryHookCanBeJoined(t *testing.T) {
	all := reflect.TypeFor[event.Hooks]()
	for i := range all.NumField() {
		kind := all.Field(i)
		if !kind.IsExported() || kind.Name == "Trace" { // see TestEachTraceIsInsideTheTraceBeforeIt
			continue
		}
		var called []string
		hook := func(name string) (h event.Hooks) {
			reflect.ValueOf(&h).Elem().Field(i).Set(reflect.MakeFunc(kind.Type, func([]reflect.Value) []reflect.Value {
				called = append(called, name)
				results := make([]reflect.Value, kind.Type.NumOut())
				for i := range results {
					results[i] = reflect.Zero(kind.Type.Out(i))
				}
				return results
			}))
			return h
		}
		joined := reflect.ValueOf(event.Join(hook("one"), event.Hooks{}, hook("two")))
		for j := range all.NumField() {
			require.Equal(t, j != i, joined.Field(j).IsNil(), "%s, of %s", all.Field(j).Name, kind.Name)
		}
		joined.Field(i).Call([]reflect.Value{reflect.Zero(kind.Type.In(0))})
		require.Equal(t, []string{"one", "two"}, called, kind.Name)
	}
}

func TestHooksThatPanicChangeNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		var calls atomic.Int64
		m := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(stage.Each(func() {
			calls.Add(1)
			panic("oops")
		})))
		stage.Story(t, w, m)
		lines := log.About("a hook panicked")
		require.Len(t, lines, int(calls.Load()))
		require.Greater(t, len(lines), 10)
		require.Equal(t, "oops", lines[0].Attrs["panic"])
		require.Contains(t, lines[0].Attrs["stack"], "hooks_calls_test.go")
	})
}

func TestHooksThatAreSlowChangeNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		quick := w.NewClient(relock.WithHooks(r.Hooks()))
		stage.Story(t, w, quick)
		require.NoError(t, quick.Close())
		var calls atomic.Int64
		slow := w.NewClient(relock.WithHooks(stage.Each(func() {
			<-time.After(200 * time.Millisecond)
			calls.Add(1)
		})))
		stage.Story(t, w, slow)
		require.NoError(t, slow.Close())
		require.EqualValues(t, len(r.All()), calls.Load(), "Close has waited until the hooks have seen everything")
	})
}

func TestHooksThatBlockChangeNothingAndHoldUpCloseForALimit(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		block := make(chan struct{})
		m := w.NewClient(relock.WithHooks(stage.Each(func() { <-block })))
		defer close(block)
		stage.Story(t, w, m)
		begun := time.Now()
		require.NoError(t, m.Close())
		require.InDelta(t, 5*time.Second, time.Since(begun), float64(200*time.Millisecond))
	})
}

func TestAHookThatPanicsOrExitsKeepsNoEventFromOthers(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("oops") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var before, behind stage.Recorder
				hooks := event.Join(before.Hooks(), stage.Each(fail), stage.Each(fail), behind.Hooks())
				l := w.NewClient(relock.WithHooks(hooks)).NewLock("a")
				for range 2 {
					require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				}
				require.Equal(t, []string{
					"AcquireStarted", "AcquireFinished", "Released", "AcquireStarted", "AcquireFinished", "Released",
				}, behind.Kinds())
				require.Equal(t, before.All(), behind.All())
			})
		})
	}
}

func TestEventsBehindABlockedHookAreDroppedAndCounted(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const more = 100
		block := make(chan struct{})
		var calls atomic.Int64
		var log stage.Logbook
		var r stage.Recorder
		m := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(event.Hooks{
			AcquireStarted: func(event.AcquireStarted) {
				calls.Add(1)
				<-block
			},
			Dropped: func(e event.Dropped) {
				require.EqualValues(t, 1+event.Backlog, calls.Load(), "after all events before the drop")
				r.Add(e)
			},
		}))
		l := m.NewLock("a", relock.WithLocalReentry())
		outer := w.Enter(t.Context(), l)
		stage.Settle() // the hook has the first event
		for range event.Backlog + more {
			require.NoError(t, l.Unlock(enterQuietly(t, outer, l)))
		}
		require.Empty(t, log.About("dropped"))
		close(block)
		stage.Settle()
		require.EqualValues(t, 1+event.Backlog, calls.Load())
		require.Equal(t, []event.Dropped{{Events: more}}, stage.EventsOf[event.Dropped](&r))
		lines := log.About("dropped")
		require.Len(t, lines, 1)
		require.Equal(t, map[string]any{"events": int64(more)}, lines[0].Attrs)
		w.Leave(outer, l)
	})
}

// enterQuietly is enter that keeps nothing for the end of the test.
func enterQuietly(t *testing.T, ctx context.Context, l *relock.Lock) context.Context {
	t.Helper()
	section, err := l.Lock(ctx)
	require.NoError(t, err)
	return section
}

func TestEventsAreDroppedAlsoWhereNoHookIsToldOfDrops(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		block := make(chan struct{})
		var log stage.Logbook
		l := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(event.Hooks{
			AcquireStarted: func(event.AcquireStarted) { <-block },
		})).NewLock("a", relock.WithLocalReentry())
		outer := w.Enter(t.Context(), l)
		for range event.Backlog + 100 {
			require.NoError(t, l.Unlock(enterQuietly(t, outer, l)))
		}
		close(block)
		require.Len(t, log.About("dropped"), 1)
		require.Empty(t, log.About("panicked"))
		w.Leave(outer, l)
	})
}

func TestDroppedEventsAreToldWhileTheOverloadLasts(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var seen, dropped, times atomic.Int64
		var log stage.Logbook
		m := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(event.Hooks{
			AcquireStarted: func(event.AcquireStarted) {
				seen.Add(1)
				<-time.After(2 * time.Millisecond)
			},
			Dropped: func(e event.Dropped) {
				dropped.Add(int64(e.Events))
				times.Add(1)
			},
		}))
		l := m.NewLock("a", relock.WithLocalReentry())
		outer := w.Enter(t.Context(), l)
		wanted := 1
		for ; wanted < 7*event.Backlog; wanted++ {
			require.NoError(t, l.Unlock(enterQuietly(t, outer, l)))
			stage.Pass(time.Millisecond)
		}
		require.EqualValues(t, 2, times.Load(), "not for each event")
		require.Positive(t, dropped.Load())
		stage.Pass(time.Minute)
		require.EqualValues(t, wanted, seen.Load()+dropped.Load(), "in the end of all")
		require.Len(t, log.About("dropped"), int(times.Load()))
		w.Leave(outer, l)
	})
}

// The contexts of Hooks.Trace.

// spanKey is the key of the innermost "span" of a context, a word.
type spanKey struct{}

func spanOf(ctx context.Context) any { return ctx.Value(spanKey{}) }

// spans is a Trace whose contexts carry a word each.
func spans(acquire, section string) event.Hooks {
	return event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
		return context.WithValue(e.Context, spanKey{}, acquire), func(ctx context.Context, _ event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
			return context.WithValue(ctx, spanKey{}, section), nil
		}
	}}
}

// spansOfCommands notes the span around each command of a link.
func spansOfCommands(k *stage.Link) map[stage.Command]any {
	found := make(map[stage.Command]any)
	for _, v := range []stage.Command{stage.CmdTry, stage.CmdWait, stage.CmdEnter, stage.CmdRelease} {
		k.On(func(ctx context.Context, _ *stage.Fault, run func() error) error {
			found[v] = spanOf(ctx)
			return run()
		}, v)
	}
	return found
}

func TestCommandsOfACallAreUnderItsTrace(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithHooks(spans("acquire", "section")))
		found := spansOfCommands(m.Link)
		for _, lock := range []stage.Locking{m.NewLock("a").Lock, m.NewLock("b").TryLock, m.NewRWLock("c").RLock} {
			section, err := lock(context.WithValue(t.Context(), spanKey{}, "caller"))
			require.NoError(t, err)
			require.Equal(t, "section", spanOf(section))
		}
		require.Equal(t, map[stage.Command]any{stage.CmdWait: "acquire", stage.CmdTry: "acquire"}, found)

		l := m.NewLock("d")
		section := w.Enter(t.Context(), l)
		inner := w.Enter(section, l)
		require.Equal(t, "acquire", found[stage.CmdEnter])
		w.Leave(inner, l)
		require.Equal(t, "section", found[stage.CmdEnter])
		w.Leave(section, l)
		require.Equal(t, "section", found[stage.CmdRelease])
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	})
}

func TestTraceIsCalledOnceForEachCallWithItsResult(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		var finished []event.AcquireFinished
		ends := make(map[time.Time][]event.TraceEnded) // by the starts of the calls
		trace := event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
			ctx := context.WithValue(e.Context, spanKey{}, e.Start)
			return ctx, func(section context.Context, f event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
				require.Equal(t, e.Start, f.Start)
				require.Equal(t, ctx, f.Context)
				require.Equal(t, f.Err != nil, section == e.Context, "a call that has failed has the caller's context")
				finished = append(finished, f)
				ended := func(end event.TraceEnded) { ends[f.Start] = append(ends[f.Start], end) }
				return context.WithValue(section, spanKey{}, "section"), ended
			}
		}}
		m := w.NewClient(relock.WithHooks(event.Join(r.Hooks(), trace)))
		l := m.NewLock("a", relock.WithTTL(time.Minute))
		begun := time.Now()
		section := w.Enter(t.Context(), l)
		ctx, err := l.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, err, context.Cause(ctx))
		inner := w.Enter(section, l)
		stage.Pass(time.Second)
		w.Leave(inner, l)
		w.Leave(section, l)
		lost := w.Enter(t.Context(), l)
		w.Store.Lose("a")
		_, _ = w.Ends(lost)
		stage.Pass(time.Second)
		open := w.Enter(t.Context(), l)
		require.NoError(t, m.Close())
		require.ErrorIs(t, context.Cause(open), relock.ErrClosed)

		require.Equal(t, stage.EventsOf[event.AcquireFinished](&r), finished)
		require.Len(t, finished, 5)
		held := stage.EventsOf[event.Lost](&r)[0].Held
		require.Equal(t, map[time.Time][]event.TraceEnded{
			begun:             {{Held: 2 * time.Second, MaxDepth: 2}},
			finished[3].Start: {{Held: held, MaxDepth: 1, Reason: event.LossTaken}},
			finished[4].Start: {{MaxDepth: 1, Closed: true}},
		}, ends, "once for each hold, and not for a nested entry")
	})
}

func TestATraceHearsOfAnEndBeforeItHasFinished(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var ends []event.TraceEnded
		m := w.NewClient(relock.WithHooks(event.Hooks{Trace: func(event.AcquireStarted) (context.Context, event.TraceFinished) {
			return nil, func(section context.Context, _ event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
				w.Store.Lose("a")
				<-section.Done() // a Trace that is slow
				return nil, func(end event.TraceEnded) { ends = append(ends, end) }
			}
		}}))
		section := w.Enter(t.Context(), m.NewLock("a"))
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		stage.Settle()
		require.Len(t, ends, 1)
		require.Equal(t, event.LossTaken, ends[0].Reason)
	})
}

func TestSeveralLocksHaveATraceEach(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var spans []string
		c := w.NewClient(relock.WithHooks(event.Hooks{Trace: func(event.AcquireStarted) (context.Context, event.TraceFinished) {
			return nil, func(section context.Context, e event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
				outer, _ := spanOf(section).(string)
				spans = append(spans, outer+"/"+e.Name)
				return context.WithValue(section, spanKey{}, outer+"/"+e.Name), nil
			}
		}}))
		locks := c.NewLocks([]string{"b", "a"})
		section, err := locks.Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, "/a/b", spanOf(section))
		require.NoError(t, locks.Unlock(section))
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)

		w.Enter(t.Context(), c.NewLock("b"))
		_, err = locks.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, []string{"/a", "/a/b", "/b", "/b"}, spans, "the refusal is of the taken lock")
	})
}

func TestAContextWithAnotherEndIsIgnored(t *testing.T) {
	for name, strange := range map[string]func(context.Context) context.Context{
		"nil": func(context.Context) context.Context { return nil },
		"of nobody": func(context.Context) context.Context {
			return context.WithValue(context.Background(), spanKey{}, "strange")
		},
		"ended": func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(context.WithValue(ctx, spanKey{}, "strange"))
			cancel()
			return ctx
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				hooks := event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
					return strange(e.Context), func(section context.Context, _ event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
						return strange(section), nil
					}
				}}
				m := w.NewClient(relock.WithHooks(event.Join(spans("acquire", "section"), hooks)))
				found := spansOfCommands(m.Link)
				l := m.NewLock("a")
				ctx, cancel := context.WithCancel(t.Context())
				section := w.Enter(ctx, l)
				require.Equal(t, "acquire", found[stage.CmdWait])
				require.Equal(t, "section", spanOf(section))
				cancel()
				require.ErrorIs(t, section.Err(), context.Canceled)
				w.Leave(section, l)
			})
		})
	}
}

func TestEachTraceIsInsideTheTraceBeforeIt(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		named := func(name string) event.Hooks {
			under := func(ctx context.Context) context.Context {
				outer, _ := spanOf(ctx).(string)
				return context.WithValue(ctx, spanKey{}, outer+"/"+name)
			}
			return event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
				return under(e.Context), func(section context.Context, _ event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
					return under(section), nil
				}
			}}
		}
		half := event.Hooks{Trace: func(event.AcquireStarted) (context.Context, event.TraceFinished) { return nil, nil }}
		m := w.NewClient(relock.WithHooks(event.Join(named("one"), event.Hooks{}, half, named("two"))))
		found := spansOfCommands(m.Link)
		section := w.Enter(t.Context(), m.NewLock("a"))
		require.Equal(t, "/one/two", found[stage.CmdWait])
		require.Equal(t, "/one/two", spanOf(section))
	})
}

func TestATraceThatPanicsChangesNothing(t *testing.T) {
	for name, trace := range map[string]func(event.AcquireStarted) (context.Context, event.TraceFinished){
		"at the start": func(event.AcquireStarted) (context.Context, event.TraceFinished) { panic("oops") },
		"at the end": func(event.AcquireStarted) (context.Context, event.TraceFinished) {
			return nil, func(context.Context, event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
				panic("oops")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				var log stage.Logbook
				hooks := event.Join(spans("acquire", "section"), r.Hooks(), event.Hooks{Trace: trace}, spans("behind", "behind it"))
				m := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(hooks))
				other := m.NewLock("b")
				section := w.Enter(t.Context(), other)
				require.Equal(t, "behind it", spanOf(section), "the other traces go on")
				w.Leave(section, other)
				stage.Story(t, w, m)
				require.Len(t, log.About("a hook panicked"), 5, "once for each call")
				require.Len(t, stage.EventsOf[event.AcquireFinished](&r), 5)
				w.RequireFree("a")
			})
		})
	}
}

func TestATraceKeepsNoLeakFromBeingFound(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		var kept []context.Context
		hooks := event.Hooks{Trace: func(e event.AcquireStarted) (context.Context, event.TraceFinished) {
			ctx := context.WithValue(e.Context, spanKey{}, "acquire")
			return ctx, func(section context.Context, _ event.AcquireFinished) (context.Context, func(event.TraceEnded)) {
				if e.Name == "a" {
					kept = append(kept, section) // as a span may
				}
				return context.WithValue(section, spanKey{}, "section"), func(event.TraceEnded) {}
			}
		}}
		m := w.NewClient(relock.WithHooks(hooks), relock.WithLogger(log.Logger()))
		func() {
			section := enterAndForget(t.Context(), w, m.NewLock("a"))
			enterAndForget(section, w, m.NewLock("b", relock.WithTTL(10*time.Minute)))
		}()
		for n := 0; n < 1000 && len(log.About("lock leaked")) < 2; n++ {
			stage.UntilLogged(t, &log, "lock leaked")
			stage.Pass(time.Second)
		}
		require.Len(t, log.About("lock leaked"), 2)
		for _, lost := range log.About("lock lost") {
			require.NotEqual(t, "b", lost.Attrs["lock"], "the outer leak is found as soon as the inner one, and not with its end")
		}
		require.Len(t, kept, 1)
	})
}

// enterAndForget locks, and leaves the section to the garbage collector.
func enterAndForget(ctx context.Context, w *stage.World, l *relock.Lock) context.Context {
	w.T.Helper()
	section, err := l.Lock(ctx)
	require.NoError(w.T, err)
	return section
}
