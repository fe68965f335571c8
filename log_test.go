package relock_test

import (
	"context"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// What does the library log?

// require1 returns the only line about text, after its level and its keys were checked.
func (b *logbook) require1(t *testing.T, text string, level slog.Level, keys ...string) logLine {
	t.Helper()
	lines := b.about(text)
	require.Len(t, lines, 1, text)
	require.Equal(t, level, lines[0].level)
	require.Len(t, lines[0].attrs, len(keys))
	for _, key := range keys {
		require.Contains(t, lines[0].attrs, key)
	}
	return lines[0]
}

func TestALossIsLoggedWithWhoseItWas(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		l := w.NewClient(relock.WithLogger(log.logger())).NewLock("a")
		section := w.enter(t.Context(), l)
		holder := holderOf(t, section)
		token, err := l.Token(section)
		require.NoError(t, err)
		w.Lose("a")
		_, _ = w.ends(section)
		line := log.require1(t, "lock lost", slog.LevelError, "lock", "holder", "token", "reason")
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String(), "token": token, "reason": "taken"}, line.attrs)
	})
}

func TestARenewalThatIsNotConfirmedIsLogged(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		m := w.NewClient(relock.WithLogger(log.logger()))
		w.enter(t.Context(), m.NewLock("a"))
		w.enter(t.Context(), m.NewLock("b"))
		m.link.once(refuse(errOdd), cmdRenew)
		pass(relock.DefaultTTL / 2)
		line := log.require1(t, "renewal not confirmed", slog.LevelWarn, "locks", "error")
		require.Equal(t, map[string]any{"locks": int64(2), "error": errOdd}, line.attrs)
	})
}

func TestAPanicOfAHookIsLogged(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		l := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(relock.Hooks{
			Released: func(relock.Released) { panic("oops") },
		})).NewLock("a")
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		log.require1(t, "a hook panicked", slog.LevelError, "panic")
	})
}

func TestAWaitForASectionOfItsOwnContextIsLogged(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		one := w.NewClient(relock.WithLogger(log.logger())).NewLock("a")
		other := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), other)
		holder := holderOf(t, section)

		_, err := one.TryLock(section)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = one.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Empty(t, log.about("same holder"), "one call does not wait, and the other is somebody else's")

		waiting := w.start(section, one)
		pass(3 * relock.DefaultTTL)
		line := log.require1(t, "same holder", slog.LevelWarn, "lock", "holder")
		require.Equal(t, map[string]any{"lock": "a", "holder": holder.String()}, line.attrs)
		w.leave(section, other)
		require.ErrorIs(t, waiting.failure(), context.Canceled)
	})
}

// The waiter learns from the one before it who has the lock.
func TestAWaitForItsOwnContextIsLoggedAlsoInALine(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		one := w.NewClient(relock.WithLocalPass(0, 0), relock.WithLogger(log.logger())).NewLock("a")
		other := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), other)
		before := w.begin(t.Context(), tryFor(one, time.Second))
		waiting := w.start(section, one)
		require.ErrorIs(t, before.failure(), relock.ErrLocked)
		pass(3 * relock.DefaultTTL)
		require.Len(t, log.about("same holder"), 1)
		w.leave(section, other)
		require.ErrorIs(t, waiting.failure(), context.Canceled)
	})
}

// dropSection locks, and drops the section.
func dropSection(t *testing.T, ctx context.Context, l *relock.Lock) { //nolint:revive // t comes first in a test helper
	t.Helper()
	_, err := l.Lock(ctx)
	require.NoError(t, err)
}

// untilLogged lets time pass. A note of the garbage collector arrives from outside of the bubble,
// and the watchdog looks at the note.
func untilLogged(t *testing.T, log *logbook, text string) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if pass(relock.DefaultTTL / 30); len(log.about(text)) > 0 {
			return
		}
	}
	t.Fatalf("nothing is logged about %q", text)
}

func TestTheLoggerOfALockGetsWhatIsAboutItOnly(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		logs, own := logbook{least: slog.LevelDebug}, logbook{least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(logs.logger()))
		lock := func(name string) *relock.Lock { return m.NewLock(name, relock.WithLogger(own.logger())) }

		kept := w.enter(t.Context(), m.NewLock("kept"))
		dropSection(t, t.Context(), lock("leaked"))
		untilLogged(t, &own, "lock leaked")
		section := w.enter(t.Context(), lock("lost"))
		m.link.once(refuse(errOdd), cmdRenew)
		pass(relock.DefaultTTL / 2)
		require.NoError(t, kept.Err())
		w.Lose("lost")
		_, _ = w.ends(section)
		pass(3 * relock.DefaultTTL) // the lease of "leaked" runs out, and cleanup is done

		_ = w.enter(t.Context(), w.NewClient().NewLock("left"))
		ctx, cancel := context.WithCancel(t.Context())
		waits := w.start(ctx, lock("left"))
		silent := m.link.cut(cmdForget, cmdWait)
		cancel()
		require.ErrorIs(t, waits.failure(), context.Canceled)
		pass(relock.DefaultTTL + 2*time.Minute)
		silent.end()

		told := 0
		for what, locks := range map[string][]string{
			"lock leaked": {"leaked"}, "lock lost": {"lost", "leaked"}, "could not confirm": {"left"},
		} {
			var of []string
			for _, line := range own.about(what) {
				of = append(of, line.attrs["lock"].(string))
			}
			require.ElementsMatch(t, locks, of, what)
			require.Empty(t, logs.about(what))
			told += len(of)
		}
		require.Len(t, own.about(""), told, "nothing else")
		require.NotEmpty(t, logs.about("renewal not confirmed"))
	})
}

// wildHandler is a slog handler that panics.
type wildHandler struct{ logbook }

func (*wildHandler) Handle(context.Context, slog.Record) error { panic("no disk") }

// guardedHandler is a slog handler that does something before it knows its level.
type guardedHandler struct {
	logbook
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
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithLogger(slog.New(handler)), relock.WithHooks(each(func() { panic("oops") })))
				story(t, w, m)
			})
		})
	}
}

func TestALoggerThatBlocksChangesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		block := make(chan struct{})
		defer close(block)
		m := w.NewClient(relock.WithLogger(slog.New(&guardedHandler{enter: func() { <-block }})))
		fixed := w.enter(t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		renewed := w.enter(t.Context(), m.NewLock("b"))
		_, cause := w.ends(fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost) // which is logged
		pass(2 * relock.DefaultTTL)
		require.NoError(t, renewed.Err())
		require.Positive(t, w.lease("b"), "the watchdog goes on")
		fixed = w.enter(t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		_, cause = w.ends(fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost)
	})
}

func TestALoggerSeesTheLevelsItWantsOnly(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		log := logbook{least: slog.LevelError}
		m := w.NewClient(relock.WithLogger(log.logger()))
		section := w.enter(t.Context(), m.NewLock("a"))
		m.link.on(refuse(errOdd), cmdRenew)
		_, cause := w.ends(section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		lines := log.about("")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].level)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, lost.Holder.String(), lines[0].attrs["holder"])
	})
}
