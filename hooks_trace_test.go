package relock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/stage"
)

// Which contexts does Hooks.Trace give to a call?

// spanKey is the key of the innermost "span" of a context, a word.
type spanKey struct{}

func spanOf(ctx context.Context) any { return ctx.Value(spanKey{}) }

// spans is a Trace whose contexts carry a word each.
func spans(acquire, section string) relock.Hooks {
	return relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
		return context.WithValue(e.Context, spanKey{}, acquire), func(ctx context.Context, _ relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
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
		found[stage.CmdRelease] = nil
		w.Leave(inner, l)
		w.Leave(section, l)
		require.Equal(t, "section", found[stage.CmdRelease])
		require.ErrorIs(t, context.Cause(section), relock.ErrReleased)
	})
}

func TestTraceIsCalledOnceForEachCallWithItsResult(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		var finished []relock.AcquireFinished
		ends := make(map[time.Time][]relock.TraceEnded) // by the starts of the calls
		trace := relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			ctx := context.WithValue(e.Context, spanKey{}, e.Start)
			return ctx, func(section context.Context, f relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
				require.Equal(t, e.Start, f.Start)
				require.Equal(t, ctx, f.Context)
				require.Equal(t, f.Err != nil, section == e.Context, "an error returns the caller's context")
				finished = append(finished, f)
				ended := func(end relock.TraceEnded) { ends[f.Start] = append(ends[f.Start], end) }
				return context.WithValue(section, spanKey{}, "section"), ended
			}
		}}
		m := w.NewClient(relock.WithHooks(relock.JoinHooks(r.Hooks(), trace)))
		l := m.NewLock("a", relock.WithTTL(time.Minute))
		begun := time.Now()
		section := w.Enter(t.Context(), l)
		ctx, err := l.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, t.Context(), ctx)
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

		require.Equal(t, stage.EventsOf[relock.AcquireFinished](&r), finished)
		require.Len(t, finished, 5)
		held := stage.EventsOf[relock.Lost](&r)[0].Held
		require.Equal(t, map[time.Time][]relock.TraceEnded{
			begun:             {{Held: 2 * time.Second, MaxDepth: 2}},
			finished[3].Start: {{Held: held, MaxDepth: 1, Reason: relock.LossTaken}},
			finished[4].Start: {{MaxDepth: 1, Closed: true}},
		}, ends, "once for each hold, and not for a nested entry")
	})
}

func TestATraceHearsOfAnEndBeforeItHasFinished(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var ends []relock.TraceEnded
		m := w.NewClient(relock.WithHooks(relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(section context.Context, _ relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
				w.Store.Lose("a")
				<-section.Done() // a Trace that is slow
				return nil, func(end relock.TraceEnded) { ends = append(ends, end) }
			}
		}}))
		section := w.Enter(t.Context(), m.NewLock("a"))
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		stage.Settle()
		require.Len(t, ends, 1)
		require.Equal(t, relock.LossTaken, ends[0].Reason)
	})
}

func TestSeveralLocksHaveATraceEach(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var spans []string
		c := w.NewClient(relock.WithHooks(relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(section context.Context, e relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
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
				hooks := relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
					return strange(e.Context), func(section context.Context, _ relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
						return strange(section), nil
					}
				}}
				m := w.NewClient(relock.WithHooks(relock.JoinHooks(spans("acquire", "section"), hooks)))
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
		named := func(name string) relock.Hooks {
			under := func(ctx context.Context) context.Context {
				outer, _ := spanOf(ctx).(string)
				return context.WithValue(ctx, spanKey{}, outer+"/"+name)
			}
			return relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
				return under(e.Context), func(section context.Context, _ relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
					return under(section), nil
				}
			}}
		}
		half := relock.Hooks{Trace: func(relock.AcquireStarted) (context.Context, relock.TraceFinished) { return nil, nil }}
		m := w.NewClient(relock.WithHooks(relock.JoinHooks(named("one"), relock.Hooks{}, half, named("two"))))
		found := spansOfCommands(m.Link)
		section := w.Enter(t.Context(), m.NewLock("a"))
		require.Equal(t, "/one/two", found[stage.CmdWait])
		require.Equal(t, "/one/two", spanOf(section))
	})
}

func TestATraceThatPanicsChangesNothing(t *testing.T) {
	for name, trace := range map[string]func(relock.AcquireStarted) (context.Context, relock.TraceFinished){
		"at the start": func(relock.AcquireStarted) (context.Context, relock.TraceFinished) { panic("oops") },
		"at the end": func(relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			return nil, func(context.Context, relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
				panic("oops")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				var log stage.Logbook
				hooks := relock.JoinHooks(spans("acquire", "section"), r.Hooks(), relock.Hooks{Trace: trace}, spans("behind", "behind it"))
				m := w.NewClient(relock.WithLogger(log.Logger()), relock.WithHooks(hooks))
				other := m.NewLock("b")
				section := w.Enter(t.Context(), other)
				require.Equal(t, "behind it", spanOf(section), "the other traces go on")
				w.Leave(section, other)
				stage.Story(t, w, m)
				require.Len(t, log.About("a hook panicked"), 5, "once for each call")
				require.Len(t, stage.EventsOf[relock.AcquireFinished](&r), 5)
				w.RequireFree("a")
			})
		})
	}
}

func TestATraceKeepsNoLeakFromBeingFound(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		var kept []context.Context
		hooks := relock.Hooks{Trace: func(e relock.AcquireStarted) (context.Context, relock.TraceFinished) {
			ctx := context.WithValue(e.Context, spanKey{}, "acquire")
			return ctx, func(section context.Context, _ relock.AcquireFinished) (context.Context, func(relock.TraceEnded)) {
				if e.Name == "a" {
					kept = append(kept, section) // as a span may
				}
				return context.WithValue(section, spanKey{}, "section"), func(relock.TraceEnded) {}
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
