package redis_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// Which events does only a Redis server cause?

func TestTheRetriedEventTellsOfEachTryThatFailed(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		log := stage.Logbook{Least: slog.LevelDebug}
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
		m.Warm(t)
		m.Net.On(stage.ScriptCalls, redistest.DropReply(redistest.EOF)).Times(2)
		section := w.Enter(t.Context(), m.NewLock("a"))
		events := stage.EventsOf[event.Retried](&r)
		require.Len(t, events, 2)
		for i, e := range events {
			require.Equal(t, "a", e.Name)
			require.Equal(t, "acquire", e.Script)
			require.Equal(t, i+1, e.Attempt)
			require.Error(t, e.Err)
		}
		lines := log.About("no answer yet")
		require.Len(t, lines, 2)
		require.Equal(t, slog.LevelDebug, lines[0].Level)
		require.Equal(t, map[string]any{
			"lock": "a", "command": "acquire", "attempt": int64(1), "for": time.Duration(0), "error": events[0].Err,
		}, lines[0].Attrs)

		m.Net.Once(stage.ScriptCalls, redistest.DropReply(redistest.EOF))
		inner := w.Enter(section, m.NewLock("a"))
		w.Leave(inner, m.NewLock("a"))
		require.Len(t, stage.EventsOf[event.Retried](&r), 3, "nested calls too")
		w.Leave(section, m.NewLock("a"))
	})
}

func TestTheRetriedEventHasTheNameOfTheLockAndNotItsKey(t *testing.T) {
	for _, prefix := range []string{relock.DefaultPrefix, "", "{app}:"} {
		for _, name := range []string{"a", "{user:7}:cart", "a{7}b", "a}b", "{", "{}", "a:queue", "relock:a"} {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				var r stage.Recorder
				m := w.NewClient(relock.WithPrefix(prefix), relock.WithHooks(r.Hooks()))
				l := m.NewLock(name)
				if prefix == "" && l.Err() != nil {
					return // the key would have an empty hash tag
				}
				m.Warm(t)
				m.Net.Once(stage.ScriptCalls, redistest.DropReply(redistest.EOF))
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				events := stage.EventsOf[event.Retried](&r)
				require.Len(t, events, 1)
				require.Equal(t, name, events[0].Name, "with prefix %q", prefix)
			})
		}
	}
}

func TestWhatIsToldAsRetriedIsSent(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.Warm(t)
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		_, err := m.NewLock("a").TryLockFor(t.Context(), 100*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		sent := 0
		for _, e := range stage.EventsOf[event.Retried](&r) {
			if e.Script == "acquire" {
				sent++
			}
		}
		acquires := m.Net.Commands("EVALSHA", "EVAL")
		w.Redis.SetError("")
		require.Greater(t, sent, 3)
		require.GreaterOrEqual(t, acquires, sent+1)
	})
}

func TestACallThatRedisDoesNotServeWarnsWithGrowingPauses(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		log := stage.Logbook{Least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(log.Logger()))
		w.Redis.SetError("LOADING Redis is loading the dataset in memory")
		waiting := w.Start(t.Context(), m.NewLock("a"))
		stage.Pass(time.Minute)
		w.Redis.SetError("")
		require.NoError(t, m.NewLock("a").Unlock(waiting.Section()))
		var warned []time.Duration
		lines := log.About("a command has no answer yet")
		for i, line := range lines {
			require.EqualValues(t, i+1, line.Attrs["attempt"])
			if line.Level == slog.LevelWarn {
				warned = append(warned, line.Attrs["for"].(time.Duration))
			} else {
				require.Equal(t, slog.LevelDebug, line.Level)
			}
		}
		require.GreaterOrEqual(t, len(warned), 8, "%v", warned)
		due := time.Second // then after 2, 4, 8 and 16 s, and every 10 s, each at the end of a pause
		for _, at := range warned {
			require.GreaterOrEqual(t, at, due, "%v", warned)
			require.Less(t, at, due+time.Second, "%v", warned)
			due = at + min(at, 10*time.Second)
		}
		require.Less(t, len(lines), 256)
	})
}

func TestTheReconnectedEventSaysForHowLong(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		var log stage.Logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.Logger()))
		_ = w.Enter(t.Context(), w.NewClient().NewLock("a"))
		waiting := w.Start(t.Context(), m.NewLock("a"))
		stage.Pass(time.Second)
		require.Empty(t, stage.EventsOf[event.Reconnected](&r), "the first connection is none that is back")
		m.Net.Refuse()
		m.Net.CutPubSub()
		lost := time.Now()
		stage.Pass(10 * time.Second)
		m.Net.Heal()
		stage.Pass(10 * time.Second)
		events := stage.EventsOf[event.Reconnected](&r)
		require.Len(t, events, 1)
		require.Empty(t, events[0].Node)
		require.Equal(t, stage.TimesOf[event.Reconnected](&r)[0].Sub(lost), events[0].Down)
		require.GreaterOrEqual(t, events[0].Down, 10*time.Second)
		require.Less(t, events[0].Down, 13*time.Second)

		log.RequireOne(t, "is back", slog.LevelInfo, "node")
		var levels []slog.Level
		for _, line := range log.About("connecting again") {
			levels = append(levels, line.Level)
			for _, key := range []string{"error", "attempt", "node"} {
				require.Contains(t, line.Attrs, key)
			}
		}
		require.Equal(t, slog.LevelInfo, levels[0], "once is no trouble")
		require.Equal(t, slog.LevelWarn, levels[len(levels)-1], "again and again is")
		require.Less(t, len(levels), 50)
		require.True(t, waiting.Waits())
	})
}

func TestAWaiterThatAsksAgainIsWokenByTheRecheck(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		crashed := w.NewClient(relock.WithTTL(10 * time.Second))
		_ = w.Enter(t.Context(), crashed.NewLock("a"))
		require.NoError(t, crashed.Close())
		_ = w.Enter(t.Context(), w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a"))
		events := stage.EventsOf[event.AcquireFinished](&r)
		require.Len(t, events, 1)
		require.Equal(t, event.WakeRecheck, events[0].Wake)
		require.True(t, events[0].Waited)
		require.True(t, events[0].Queued)
	})
}

// An alert that leaves out refusals of TryLock must see these calls.
func TestAWaitThatEndsBeforeItIsInTheQueueIsToldAsAWait(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		var r stage.Recorder
		_ = w.Enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		m.Net.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
		_, err := m.NewLock("a").TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = m.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		m.Net.Heal()

		finished := stage.EventsOf[event.AcquireFinished](&r)
		require.Len(t, finished, 2)
		require.True(t, finished[0].Waited, "the call could wait, and others had the lock")
		require.False(t, finished[0].Queued)
		require.False(t, finished[1].Waited, "a refusal of TryLock is the answer that it asks for")
		require.Empty(t, stage.EventsOf[event.Queued](&r))
	})
}
