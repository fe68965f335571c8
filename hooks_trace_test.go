package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// Which contexts does Hooks.Trace give to a call?

// spanKey is the key of the innermost "span" of a context, a word.
type spanKey struct{}

func spanOf(ctx context.Context) any { return ctx.Value(spanKey{}) }

// spans is a Trace whose contexts carry a word each.
func spans(acquire, section string) relock.Hooks {
	return relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
		return context.WithValue(e.Context, spanKey{}, acquire), func(ctx context.Context, _ relock.AcquireFinished) context.Context {
			return context.WithValue(ctx, spanKey{}, section)
		}
	}}
}

// spansOfCommands notes the span around each command of a link.
func (k *link) spansOfCommands() map[command]any {
	found := make(map[command]any)
	for _, v := range []command{cmdTry, cmdWait, cmdEnter, cmdRelease} {
		k.on(func(ctx context.Context, _ *fault, run func() error) error {
			found[v] = spanOf(ctx)
			return run()
		}, v)
	}
	return found
}

func TestCommandsOfACallAreUnderItsTrace(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithHooks(spans("acquire", "section")))
		found := m.link.spansOfCommands()
		for _, lock := range []locking{m.NewLock("a").Lock, m.NewLock("b").TryLock, m.NewRWLock("c").RLock} {
			section, err := lock(context.WithValue(t.Context(), spanKey{}, "caller"))
			require.NoError(t, err)
			require.Equal(t, "section", spanOf(section))
		}
		require.Equal(t, map[command]any{cmdWait: "acquire", cmdTry: "acquire"}, found)

		l := m.NewLock("d")
		section := w.enter(t.Context(), l)
		inner := w.enter(section, l)
		require.Equal(t, "acquire", found[cmdEnter])
		found[cmdRelease] = nil
		w.leave(inner, l)
		w.leave(section, l)
		require.Equal(t, "section", found[cmdRelease])
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	})
}

func TestTraceIsCalledOnceForEachCallWithItsResult(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var finished []relock.AcquireFinished
		trace := relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			ctx := context.WithValue(e.Context, spanKey{}, e.Start)
			return ctx, func(section context.Context, f relock.AcquireFinished) context.Context {
				require.Equal(t, e.Start, f.Start)
				require.Equal(t, ctx, f.Context)
				require.Equal(t, f.Err != nil, section == e.Context, "an error returns the caller's context")
				finished = append(finished, f)
				return context.WithValue(section, spanKey{}, "section")
			}
		}}
		m := w.NewClient(relock.WithHooks(relock.JoinHooks(r.Hooks(), trace)))
		l := m.NewLock("a", relock.WithTTL(time.Minute))
		begun := time.Now()
		section := w.enter(t.Context(), l)
		ctx, err := l.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, t.Context(), ctx)
		w.leave(section, l)
		lost := w.enter(t.Context(), l)
		w.Lose("a")
		_, _ = w.ends(lost)
		open := w.enter(t.Context(), l)
		require.NoError(t, m.Close())
		require.ErrorIs(t, context.Cause(open), relock.ErrClosed)

		require.Equal(t, eventsOf[relock.AcquireFinished](&r), finished)
		require.Len(t, finished, 4)
		require.Equal(t, begun, spanOf(eventsOf[relock.Released](&r)[0].Context))
		require.Equal(t, finished[2].Start, spanOf(eventsOf[relock.Lost](&r)[0].Context))
		require.Equal(t, finished[3].Start, spanOf(eventsOf[relock.Closed](&r)[0].Context))
	})
}

func TestEventsOfAHoldWithoutTraceHaveNoContext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		w.leave(w.enter(t.Context(), l), l)
		require.Nil(t, eventsOf[relock.Released](&r)[0].Context)
	})
}

func TestSeveralLocksHaveATraceEach(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var spans []string
		c := w.NewClient(relock.WithHooks(relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(section context.Context, e relock.AcquireFinished) context.Context {
				outer, _ := spanOf(section).(string)
				spans = append(spans, outer+"/"+e.Name)
				return context.WithValue(section, spanKey{}, outer+"/"+e.Name)
			}
		}}))
		locks := c.NewLocks([]string{"b", "a"})
		section, err := locks.Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, "/a/b", spanOf(section))
		require.NoError(t, locks.Unlock(section))
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)

		w.enter(t.Context(), c.NewLock("b"))
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
			fake(t, func(t *testing.T, w *world) {
				hooks := relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
					return strange(e.Context), func(section context.Context, _ relock.AcquireFinished) context.Context { return strange(section) }
				}}
				m := w.NewClient(relock.WithHooks(relock.JoinHooks(spans("acquire", "section"), hooks)))
				found := m.link.spansOfCommands()
				l := m.NewLock("a")
				ctx, cancel := context.WithCancel(t.Context())
				section := w.enter(ctx, l)
				require.Equal(t, "acquire", found[cmdWait])
				require.Equal(t, "section", spanOf(section))
				cancel()
				require.ErrorIs(t, section.Err(), context.Canceled)
				w.leave(section, l)
			})
		})
	}
}

func TestEachTraceIsInsideTheTraceBeforeIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		named := func(name string) relock.Hooks {
			under := func(ctx context.Context) context.Context {
				outer, _ := spanOf(ctx).(string)
				return context.WithValue(ctx, spanKey{}, outer+"/"+name)
			}
			return relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
				return under(e.Context), func(section context.Context, _ relock.AcquireFinished) context.Context { return under(section) }
			}}
		}
		half := relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) { return nil, nil }}
		m := w.NewClient(relock.WithHooks(relock.JoinHooks(named("one"), relock.Hooks{}, half, named("two"))))
		found := m.link.spansOfCommands()
		section := w.enter(t.Context(), m.NewLock("a"))
		require.Equal(t, "/one/two", found[cmdWait])
		require.Equal(t, "/one/two", spanOf(section))
	})
}

func TestATraceThatPanicsChangesNothing(t *testing.T) {
	for name, trace := range map[string]func(relock.AcquireStarted) (context.Context, relock.TraceFinished){
		"at the start": func(relock.AcquireStarted) (context.Context, relock.TraceFinished) { panic("oops") },
		"at the end": func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(context.Context, relock.AcquireFinished) context.Context { panic("oops") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				var log logbook
				hooks := relock.JoinHooks(r.Hooks(), relock.Hooks{Trace: trace})
				m := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(hooks))
				story(t, w, m)
				require.Len(t, log.about("a hook panicked"), 4, "once for each call")
				require.Len(t, eventsOf[relock.AcquireFinished](&r), 4)
				w.requireFree("a")
			})
		})
	}
}

func TestATraceKeepsNoLeakFromBeingFound(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		var kept []context.Context
		hooks := relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(section context.Context, _ relock.AcquireFinished) context.Context {
				kept = append(kept, section) // as a span may
				return context.WithValue(section, spanKey{}, "section")
			}
		}}
		m := w.NewClient(relock.WithHooks(hooks), relock.WithLogger(log.logger()))
		dropSection(t, t.Context(), m.NewLock("a"))
		untilLogged(t, &log, "lock leaked")
		require.Len(t, kept, 1)
	})
}
