package core_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/leader"
)

// What does the library log?

func TestALossIsLoggedWithWhoseItWas(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		l := w.NewClient(relock.WithLogger(log.Logger())).NewLock("a")
		section := w.Enter(t.Context(), l)
		holder := stage.HolderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		w.Store.Lose("a")
		_, _ = w.Ends(section)
		line := log.RequireOne(t, "lock lost", slog.LevelError, "lock", "holder", "token", "reason")
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String(), "token": token, "reason": "taken"}, line.Attrs)
	})
}

func TestARenewalThatIsNotConfirmedIsLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		m := w.NewClient(relock.WithLogger(log.Logger()))
		w.Enter(t.Context(), m.NewLock("a"))
		w.Enter(t.Context(), m.NewLock("b"))
		m.Link.Once(stage.Refuse(stage.ErrOdd), stage.CmdRenew)
		stage.Pass(relock.DefaultTTL / 2)
		line := log.RequireOne(t, "renewal not confirmed", slog.LevelWarn, "locks", "error")
		require.Equal(t, map[string]any{"locks": int64(2), "error": stage.ErrOdd}, line.Attrs)
	})
}

func TestAnUnlockOutsideOfItsSectionIsLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		l := w.NewClient(relock.WithLogger(log.Logger())).NewLock("a")
		section := w.Enter(t.Context(), l)
		for range 3 {
			require.ErrorIs(t, l.Unlock(t.Context()), relock.ErrNotHeld)
		}
		log.RequireOne(t, "Unlock with a context that is in no section", slog.LevelWarn, "lock")
		w.Leave(section, l)
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		require.Len(t, log.About("Unlock with"), 1, "the second Unlock of a section is in it")
	})
}

func TestASectionThatItsCallerHasEndedSaysSo(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		log := stage.Logbook{Least: slog.LevelDebug}
		l := w.NewClient(relock.WithLogger(log.Logger())).NewLock("a")
		wait, cancel := context.WithTimeout(t.Context(), time.Second)
		section := w.Enter(wait, l)
		cancel() // of the wait, as the caller believes
		w.Leave(section, l)
		line := log.RequireOne(t, "the caller's context has ended before the Unlock", slog.LevelDebug, "lock", "holder", "cause")
		require.Equal(t, context.Canceled, line.Attrs["cause"])

		outer := w.NewClient().NewLock("b")
		for name, end := range map[string]func(context.CancelCauseFunc){
			"the caller": func(cancel context.CancelCauseFunc) { cancel(stage.ErrOdd) },
			"a loss":     func(context.CancelCauseFunc) { w.Store.Lose("a"); stage.Pass(relock.DefaultTTL) },
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := outer.Do(ctx, func(ctx context.Context) error {
				return l.Do(ctx, func(ctx context.Context) error {
					end(cancel)
					<-ctx.Done()
					return ctx.Err()
				})
			})
			require.ErrorIs(t, err, context.Canceled)
			if name == "the caller" {
				require.ErrorIs(t, err, stage.ErrOdd)
				require.EqualError(t, err, "context canceled; the caller's context has ended: "+stage.ErrOdd.Error())
			} else {
				require.NotContains(t, err.Error(), "caller")
			}
		}
	})
}

// What waits for itself: texts of the log.
const (
	waitsForItsClient  = "this very client"
	waitsForItsSection = "a section around it"
)

func TestAPanicOfTheStoreIsLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		m := w.NewClient(relock.WithLogger(log.Logger()))
		m.Link.Once(func(context.Context, *stage.Fault, func() error) error { panic("of the driver") }, stage.CmdAnnounce)
		require.NoError(t, leader.Run(t.Context(), m.NewLock("a"), func(context.Context) error { return nil }))
		stage.Settle()
		line := log.RequireOne(t, "the store panicked", slog.LevelError, "panic", "stack")
		require.Equal(t, "of the driver", line.Attrs["panic"])
	})
}

func TestAWaitForASectionAroundItIsLoggedAfterASecond(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		one := w.NewClient(relock.WithLogger(log.Logger())).NewLock("a")
		other := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), other)
		holder := stage.HolderOf(t, section)

		_, err := one.TryLock(section)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = one.TryLockFor(section, 900*time.Millisecond)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = one.TryLockFor(t.Context(), time.Minute)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Empty(t, log.About(waitsForItsSection), "one call does not wait, one is brief, and the last is somebody else's")

		waiting := w.Start(section, one)
		stage.Pass(3 * relock.DefaultTTL)
		line := log.RequireOne(t, waitsForItsSection, slog.LevelWarn, "lock", "holder", "held", "place")
		require.Equal(t, "a", line.Attrs["lock"])
		require.Equal(t, holder.String(), line.Attrs["holder"])
		require.Equal(t, 61900*time.Millisecond, line.Attrs["held"])
		w.Leave(section, other)
		require.ErrorIs(t, waiting.Failure(), context.Canceled)
	})
}

// A call in a section, with the context from before it, waits for itself.
func TestAWaitForAHoldOfTheSameClientIsLoggedAfterASecond(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		c := w.NewClient(relock.WithLogger(log.Logger()))
		l, other := c.NewLock("a"), w.NewClient().NewLock("b")
		elsewhere := w.Enter(t.Context(), other)
		foreign := w.Start(t.Context(), c.NewLock("b"))
		section := w.Enter(t.Context(), l)
		brief := w.Begin(t.Context(), stage.TryFor(l, 900*time.Millisecond))
		require.ErrorIs(t, brief.Failure(), relock.ErrLocked)
		stage.Pass(time.Second)
		require.Empty(t, log.About(waitsForItsClient), "no call has waited for a second for this client")

		nested := w.Start(t.Context(), l)
		stage.Pass(1100 * time.Millisecond)
		line := log.RequireOne(t, waitsForItsClient, slog.LevelWarn, "lock", "holder", "held", "place")
		require.Equal(t, "a", line.Attrs["lock"])
		require.Equal(t, stage.HolderOf(t, section).String(), line.Attrs["holder"])
		require.Greater(t, line.Attrs["held"], 2*time.Second)

		w.Leave(section, l)
		w.Leave(nested.Section(), l)
		w.Leave(elsewhere, other)
		w.Leave(foreign.Section(), c.NewLock("b"))
	})
}

func TestEachLineOfTheProgramIsWarnedOfOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		l := w.NewClient(relock.WithLogger(log.Logger())).NewLock("a")
		section := w.Enter(t.Context(), l)
		one := func() error { return l.DoFor(t.Context(), 2*time.Second, nothing) }
		two := func() error { return l.DoFor(t.Context(), 2*time.Second, nothing) }
		var places []any
		for range 3 {
			require.ErrorIs(t, one(), relock.ErrLocked)
			require.ErrorIs(t, two(), relock.ErrLocked)
		}
		for _, line := range log.About(waitsForItsClient) {
			require.Regexp(t, `/log_test\.go:[0-9]+$`, line.Attrs["place"])
			places = append(places, line.Attrs["place"])
		}
		require.Len(t, places, 2)
		require.NotEqual(t, places[0], places[1])
		w.Leave(section, l)
	})
}

// The second section has its lease and its ID from the first one.
func TestAWaitForAHoldWhoseLeaseWasPassedOnIsLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		m, l, section, waiting := stage.Passing(t, w, 1, relock.WithLogger(log.Logger()))
		w.Leave(section, l)
		second := waiting[0].Section()
		require.Zero(t, m.Link.Sent())
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, stage.HolderOf(t, second), state.Holder)
		nested := w.Begin(t.Context(), stage.TryFor(l, 2*time.Second))
		require.ErrorIs(t, nested.Failure(), relock.ErrLocked)
		line := log.RequireOne(t, waitsForItsClient, slog.LevelWarn, "lock", "holder", "held", "place")
		require.Equal(t, stage.HolderOf(t, second).String(), line.Attrs["holder"])
		w.Leave(second, l)
	})
}

// Goroutines of one section have one holder, and none of their sections is around another.
func TestGoroutinesOfASectionThatTakeTurnsAreNotWarnedOf(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		c := w.NewClient(relock.WithLogger(log.Logger()))
		outer := w.Enter(t.Context(), c.NewLock("a"))
		var workers sync.WaitGroup
		for range 10 {
			workers.Go(func() {
				for range 10 {
					_ = c.NewLock("b").Do(outer, func(context.Context) error { <-time.After(50 * time.Millisecond); return nil })
				}
			})
		}
		workers.Wait()
		require.Empty(t, log.About("wait"))
		w.Leave(outer, c.NewLock("a"))
	})
}

func TestTheLoggerOfALockGetsWhatIsAboutItOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		logs, own := stage.Logbook{Least: slog.LevelDebug}, stage.Logbook{Least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(logs.Logger()))
		lock := func(name string) *relock.Lock { return m.NewLock(name, relock.WithLogger(own.Logger())) }

		kept := w.Enter(t.Context(), m.NewLock("kept"))
		stage.DropSection(t, t.Context(), lock("leaked"))
		stage.UntilLogged(t, &own, "lock leaked")
		section := w.Enter(t.Context(), lock("lost"))
		m.Link.Once(stage.Refuse(stage.ErrOdd), stage.CmdRenew)
		stage.Pass(relock.DefaultTTL / 2)
		require.NoError(t, kept.Err())
		w.Store.Lose("lost")
		_, _ = w.Ends(section)
		stage.Pass(3 * relock.DefaultTTL) // the lease of "leaked" runs out, and cleanup is done

		_ = w.Enter(t.Context(), w.NewClient().NewLock("left"))
		ctx, cancel := context.WithCancel(t.Context())
		waits := w.Start(ctx, lock("left"))
		silent := m.Link.Cut(stage.CmdForget, stage.CmdWait)
		cancel()
		require.ErrorIs(t, waits.Failure(), context.Canceled)
		stage.Pass(relock.DefaultTTL + 2*time.Minute)
		silent.End()

		told := 0
		for what, locks := range map[string][]string{
			"lock leaked": {"leaked"}, "lock lost": {"lost", "leaked"}, "could not confirm": {"left"},
		} {
			var of []string
			for _, line := range own.About(what) {
				of = append(of, line.Attrs["lock"].(string))
			}
			require.ElementsMatch(t, locks, of, what)
			require.Empty(t, logs.About(what))
			told += len(of)
		}
		require.Len(t, own.About(""), told, "nothing else")
		require.NotEmpty(t, logs.About("renewal not confirmed"))
	})
}

// wildHandler is a slog handler that panics.
type wildHandler struct{ stage.Logbook }

func (*wildHandler) Handle(context.Context, slog.Record) error { panic("no disk") }

// guardedHandler is a slog handler that does something before it knows its level.
type guardedHandler struct {
	stage.Logbook
	enter func()
}

func (h *guardedHandler) Enabled(context.Context, slog.Level) bool {
	h.enter()
	return true
}

func TestALoggerThatPanicsChangesNothing(t *testing.T) {
	for name, handler := range map[string]slog.Handler{
		"handling":         &wildHandler{},
		"saying its level": &guardedHandler{enter: func() { panic("no disk") }},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithLogger(slog.New(handler)), relock.WithHooks(stage.Each(func() { panic("oops") })))
				stage.Story(t, w, m)
			})
		})
	}
}

func TestALoggerThatBlocksChangesNothing(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		block := make(chan struct{})
		defer close(block)
		m := w.NewClient(relock.WithLogger(slog.New(&guardedHandler{enter: func() { <-block }})))
		fixed := w.Enter(t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		renewed := w.Enter(t.Context(), m.NewLock("b"))
		_, cause := w.Ends(fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost) // which is logged
		stage.Pass(2 * relock.DefaultTTL)
		require.NoError(t, renewed.Err())
		require.Positive(t, w.Lease("b"), "the watchdog goes on")
		fixed = w.Enter(t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		_, cause = w.Ends(fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost)
	})
}

func TestALoggerSeesTheLevelsItWantsOnly(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		log := stage.Logbook{Least: slog.LevelError}
		m := w.NewClient(relock.WithLogger(log.Logger()))
		section := w.Enter(t.Context(), m.NewLock("a"))
		m.Link.On(stage.Refuse(stage.ErrOdd), stage.CmdRenew)
		_, cause := w.Ends(section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		lines := log.About("")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].Level)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, lost.Holder.String(), lines[0].Attrs["holder"])
	})
}

func TestOptionsOfANestedCallThatDoNotCountAreLogged(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		log := stage.Logbook{Least: slog.LevelDebug}
		c := w.NewClient(relock.WithLogger(log.Logger()))
		section := w.Enter(t.Context(), c.NewLock("a"))
		for _, options := range [][]relock.Option{
			nil, {relock.WithTTL(relock.DefaultTTL)},
		} {
			w.Leave(w.Enter(section, c.NewLock("a", options...)), c.NewLock("a"))
		}
		require.Empty(t, log.About("its own options"))
		for n, option := range []relock.Option{
			relock.WithTTL(time.Minute), relock.WithFixedLease(relock.DefaultTTL), relock.WithMaxHold(time.Hour), relock.WithLockDelay(time.Second),
		} {
			w.Leave(w.Enter(section, c.NewLock("a", option)), c.NewLock("a"))
			lines := log.About("its own options")
			require.Len(t, lines, n+1)
			require.Equal(t, slog.LevelDebug, lines[n].Level)
			require.Equal(t, relock.DefaultTTL, lines[n].Attrs["ttl"])
		}
		w.Leave(section, c.NewLock("a"))
	})
}

// Of two calls that wait for each other none misses a context: they are told of their circle.
func TestACircleOfWaitsIsNoNestedCallForTheLog(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var log stage.Logbook
		c := w.NewClient(relock.WithLogger(log.Logger()))
		a, b := c.NewLock("a"), c.NewLock("b")
		inA, inB := w.Enter(t.Context(), a), w.Enter(t.Context(), b)
		first, second := w.Start(inA, b), w.Start(inB, a)
		require.ErrorIs(t, second.Failure(), relock.ErrDeadlock)
		require.Empty(t, log.About(waitsForItsClient))
		w.Leave(inB, b)
		w.Leave(first.Section(), b)

		nested := w.Start(inA, b) // b is free
		w.Leave(nested.Section(), b)
		inB = w.Enter(t.Context(), b)
		waiting := w.Start(inA, b)
		stage.Pass(7 * time.Second)
		log.RequireOne(t, waitsForItsClient, slog.LevelWarn, "lock", "holder", "held", "place")
		w.Leave(inB, b)
		w.Leave(waiting.Section(), b)
		w.Leave(inA, a)
	})
}
