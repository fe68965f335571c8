package relock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

func TestHooksAreCalledInOrder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, l.Unlock(inner))
		pass(relock.DefaultTTL / 3)
		require.NoError(t, l.Unlock(outer))
		require.Equal(t, []string{
			"AcquireStarted", "AcquireFinished", // the outer one
			"AcquireStarted", "AcquireFinished", // the inner one
			"Renewed",
			"Released",
		}, r.kinds())
	})
}

func TestAcquireHooksSayWhatHappened(t *testing.T) {
	type key struct{}
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		ctx := context.WithValue(t.Context(), key{}, "trace")
		// last is the last acquire, with what is the same in each checked.
		last := func() relock.AcquireFinished {
			t.Helper()
			started, finished := eventsOf[relock.AcquireStarted](&r), eventsOf[relock.AcquireFinished](&r)
			require.Len(t, started, len(finished))
			s, f := started[len(started)-1], finished[len(finished)-1]
			require.Equal(t, "a", s.Name)
			require.Equal(t, "a", f.Name)
			require.Equal(t, s.Start, f.Start)
			require.Equal(t, "trace", s.Context.Value(key{}))
			require.Equal(t, "trace", f.Context.Value(key{}))
			require.Equal(t, relock.DefaultTTL, f.TTL)
			f.Context, f.Start, f.TTL = nil, time.Time{}, 0
			return f
		}

		section := enter(t, ctx, l)
		holder, _ := relock.HolderFrom(section)
		token := l.Token(section)
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: holder, Outcome: relock.OutcomeAcquired, Depth: 1, Token: token,
		}, last())

		inner := enter(t, section, l)
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: holder, Outcome: relock.OutcomeAcquired, Reentrant: true, Depth: 2, Token: token,
		}, last())
		require.NoError(t, l.Unlock(inner))

		_, err := l.TryLock(ctx)
		event := last()
		require.NotEqual(t, holder, event.Holder)
		require.NotZero(t, event.Holder)
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: event.Holder, Outcome: relock.OutcomeLocked, Err: err,
		}, event)

		_, err = l.TryLockFor(ctx, time.Second)
		event = last()
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: event.Holder, Outcome: relock.OutcomeLocked, Waited: true, Queued: true, Duration: time.Second, Err: err,
		}, event)

		waiting := begin(t, ctx, l.Lock)
		pass(2 * time.Second)
		require.NoError(t, l.Unlock(section))
		section = waiting.section()
		holder, _ = relock.HolderFrom(section)
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: holder, Outcome: relock.OutcomeAcquired, Waited: true, Queued: true, Wake: relock.WakeGrant,
			Duration: 2 * time.Second, Depth: 1, Token: l.Token(section),
		}, last())

		w.FlushAll()
		for range 2 { // this one finds out, the other one's context has ended
			_, err = l.Lock(section)
			require.ErrorIs(t, err, relock.ErrLockLost)
			require.Equal(t, relock.AcquireFinished{Name: "a", Holder: holder, Outcome: relock.OutcomeLost, Reentrant: true, Err: err}, last())
		}

		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = l.Lock(cancelled)
		event = last()
		require.Equal(t, relock.AcquireFinished{Name: "a", Holder: event.Holder, Outcome: relock.OutcomeCanceled, Err: err}, event)

		w.SetError("NOAUTH Authentication required.")
		_, err = l.Lock(ctx)
		w.SetError("")
		event = last()
		require.Equal(t, relock.AcquireFinished{Name: "a", Holder: event.Holder, Outcome: relock.OutcomeError, Err: err}, event)

		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		waiting = begin(t, ctx, l.Lock)
		require.NoError(t, m.Close())
		_, err = waiting.result()
		event = last()
		require.Equal(t, relock.AcquireFinished{
			Name: "a", Holder: event.Holder, Outcome: relock.OutcomeClosed, Waited: true, Queued: true, Err: err,
		}, event, "Close waits for it")
	})
}

func TestTheTTLOfANestedEntryIsThatOfItsHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		short, long := m.NewLock("a", relock.WithTTL(time.Minute)), m.NewLock("a", relock.WithTTL(time.Hour))
		outer := enter(t, t.Context(), short)
		inner := enter(t, outer, long)
		_, err := long.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, long.Unlock(inner))
		require.NoError(t, short.Unlock(outer))
		var told []time.Duration
		for _, event := range eventsOf[relock.AcquireFinished](&r) {
			told = append(told, event.TTL)
		}
		require.Equal(t, []time.Duration{time.Minute, time.Minute, time.Hour}, told, "the last one is what it would have had")
		require.Equal(t, time.Minute, eventsOf[relock.Released](&r)[0].TTL)
	})
}

func TestANestedCallThatEndsBeforeItHasAskedIsAnAttemptAtReentryToo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		cancelled, cancel := context.WithCancel(section)
		cancel()
		_, err := l.Lock(cancelled)
		require.ErrorIs(t, err, context.Canceled)
		silent := m.net.Once(redistest.Named("EVALSHA"), redistest.Hold())
		first := begin(t, section, l.Lock)
		silent.WaitHits(t, 1)
		_, err = l.TryLockFor(section, time.Second) // waits for its turn
		require.ErrorIs(t, err, context.DeadlineExceeded)
		silent.LetGo()
		inner := first.section()
		require.NoError(t, l.Unlock(inner))
		require.NoError(t, l.Unlock(section))
		_, err = l.Lock(section)
		require.ErrorIs(t, err, relock.ErrReleased)

		var reentrant []bool
		for _, event := range eventsOf[relock.AcquireFinished](&r) {
			reentrant = append(reentrant, event.Reentrant)
		}
		require.Equal(t, []bool{false, true, true, true, false}, reentrant, "the last one found nothing to enter again")
	})
}

func TestTheOutcomeIsThatOfTheCallAndNotOfWhateverEndedItsContext(t *testing.T) {
	for _, test := range []struct {
		name string
		want relock.Outcome
		lock func(t *testing.T, w *world, m *member) // b
	}{
		{"in a section of a lock that was lost", relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) {
			t.Helper()
			section := enter(t, t.Context(), m.NewLock("a"))
			w.Del(base("a"))
			_, _ = ends(t, section)
			_, err := m.NewLock("b").Lock(section)
			require.ErrorIs(t, err, relock.ErrLockLost)
		}},
		{"without the holder of a section of this lock that was lost", relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) {
			t.Helper()
			section := enter(t, t.Context(), m.NewLock("b"))
			w.Del(base("b"))
			_, _ = ends(t, section)
			_, err := m.NewLock("b").Lock(relock.WithoutHolder(section))
			require.ErrorIs(t, err, relock.ErrLockLost)
		}},
		{"a wait that the loss of another lock ends", relock.OutcomeLocked, func(t *testing.T, w *world, m *member) {
			t.Helper()
			_ = enter(t, t.Context(), w.NewClient().NewLock("b"))
			section := enter(t, t.Context(), m.NewLock("a"))
			waiting := begin(t, section, m.NewLock("b").Lock)
			w.Del(base("a"))
			_, err := waiting.result()
			require.ErrorIs(t, err, relock.ErrLockLost)
		}},
		{"in a section of another client that was closed", relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) {
			t.Helper()
			other := w.NewClient()
			section := enter(t, t.Context(), other.NewLock("a"))
			require.NoError(t, other.Close())
			_, err := m.NewLock("b").Lock(section)
			require.ErrorIs(t, err, relock.ErrClosed)
		}},
		{"a wait that another client's Close ends", relock.OutcomeLocked, func(t *testing.T, w *world, m *member) {
			t.Helper()
			_ = enter(t, t.Context(), w.NewClient().NewLock("b"))
			other := w.NewClient()
			waiting := begin(t, enter(t, t.Context(), other.NewLock("a")), m.NewLock("b").Lock)
			require.NoError(t, other.Close())
			_, err := waiting.result()
			require.ErrorIs(t, err, relock.ErrLocked)
			require.ErrorIs(t, err, relock.ErrClosed)
			require.ErrorIs(t, err, context.Canceled)
		}},
		{"another client's Close ends the tries to reach Redis", relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) {
			t.Helper()
			w.warm(m)
			other := w.NewClient()
			section := enter(t, t.Context(), other.NewLock("a"))
			w.SetError("LOADING Redis is loading the dataset in memory")
			waiting := begin(t, section, m.NewLock("b").Lock)
			pass(3*time.Second + time.Millisecond) // it pauses between two tries
			require.NoError(t, other.Close())
			_, err := waiting.result()
			require.ErrorIs(t, err, relock.ErrClosed)
			require.ErrorIs(t, err, context.Canceled)
		}},
		{"a sibling was refused its lock", relock.OutcomeCanceled, func(t *testing.T, w *world, m *member) {
			t.Helper()
			_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := m.NewLock("a").TryLock(ctx)
			cancel(err) // as an errgroup does
			_, err = m.NewLock("b").Lock(ctx)
			require.ErrorIs(t, err, relock.ErrLocked)
		}},
		{"too few replicas confirm, and the wait ends before that is undone", relock.OutcomeError, func(t *testing.T, w *world, m *member) {
			t.Helper()
			w.warm(m)
			m.net.On(redistest.Named("WAIT"), redistest.Answer(":0"))
			m.net.On(redistest.Named("EVALSHA"), redistest.Hold()).Skip(1)
			_, err := m.NewLock("b", relock.WithReplicaAcks(1, time.Millisecond)).TryLockFor(t.Context(), time.Second)
			require.ErrorIs(t, err, relock.ErrNotReplicated)
		}},
		{"the wait ends while Redis is silent", relock.OutcomeCanceled, func(t *testing.T, _ *world, m *member) {
			t.Helper()
			m.net.Partition()
			defer m.net.Heal()
			_, err := m.NewLock("b").TryLockFor(t.Context(), time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}},
		{"in its own section that was lost", relock.OutcomeLost, func(t *testing.T, w *world, m *member) {
			t.Helper()
			section := enter(t, t.Context(), m.NewLock("b"))
			w.Del(base("b"))
			_, _ = ends(t, section)
			_, err := m.NewLock("b").Lock(section)
			require.ErrorIs(t, err, relock.ErrLockLost)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				test.lock(t, w, w.NewClient(relock.WithHooks(r.Hooks())))
				finished := eventsOf[relock.AcquireFinished](&r)
				last := finished[len(finished)-1]
				require.Equal(t, "b", last.Name)
				require.Equal(t, test.want, last.Outcome, "%v", last.Err)
			})
		})
	}
}

func TestTheOutcomeOfACallThatFindsNoConnectionIsAnErrorAlthoughItIsADeadlineOfTheNetworks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		late := &net.Dialer{Deadline: time.Now().Add(-time.Second)}
		m := w.NewClientOn(func(o *redis.Options) { o.Dialer = late.DialContext }, relock.WithHooks(r.Hooks()))
		_, err := m.NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded, "the error of a dial that took too long")
		require.Equal(t, relock.OutcomeError, eventsOf[relock.AcquireFinished](&r)[0].Outcome)
	})
}

func TestAWaiterThatAsksAgainIsWokenByTheRecheck(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		const ttl = 10 * time.Second
		crashed := w.NewClient(relock.WithTTL(ttl))
		_ = enter(t, t.Context(), crashed.NewLock("a"))
		require.NoError(t, crashed.Close())
		_ = enter(t, t.Context(), w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a"))
		events := eventsOf[relock.AcquireFinished](&r)
		require.Len(t, events, 1)
		require.Equal(t, relock.WakeRecheck, events[0].Wake)
		require.True(t, events[0].Waited)
	})
}

// An alert that leaves out refusals of TryLock must see these.
func TestAWaitThatEndsBeforeItHasAPlaceInTheQueueIsToldAsAWait(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	var finished []relock.AcquireFinished
	queued := 0
	p := w.peer(relock.WithHooks(relock.Hooks{
		AcquireFinished: func(e relock.AcquireFinished) { finished = append(finished, e) },
		Queued:          func(relock.Queued) { queued++ },
	}))
	cut := p.faults.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
	_, err := p.NewLock("a").TryLockFor(t.Context(), 200*time.Millisecond)
	require.ErrorIs(t, err, relock.ErrLocked)
	_, err = p.NewLock("a").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	cut.Remove()

	waiting := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	w.leave(section, owner, soon)
	w.leave(waiting.in(soon), waiting.lock, soon)
	require.NoError(t, p.Close()) // all is told

	require.Len(t, finished, 3)
	require.True(t, finished[0].Waited, "it could wait, and others had the lock")
	require.False(t, finished[0].Queued)
	require.False(t, finished[1].Waited, "a refusal of TryLock is the answer that it asks for")
	require.True(t, finished[2].Waited)
	require.True(t, finished[2].Queued)
	require.Equal(t, 1, queued)
}

func TestACallThatWaitsForAnotherOfItsHolderHasWaitedAndHasNoPlaceOfItsOwn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section := enter(t, t.Context(), l)
		ctx := relock.WithHolder(t.Context(), relock.NewHolder())
		first := begin(t, ctx, l.Lock)
		settle()
		_, err := l.TryLockFor(ctx, time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = l.TryLock(ctx)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(first.section()))
		settle()
		var told [][2]bool
		for _, e := range eventsOf[relock.AcquireFinished](&r) {
			told = append(told, [2]bool{e.Waited, e.Queued})
		}
		require.Equal(t, [][2]bool{{false, false}, {true, false}, {false, false}, {true, true}}, told)
		require.Len(t, eventsOf[relock.Queued](&r), 1)
	})
}

func TestTheQueuedHookSaysHowManyAreBefore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section := enter(t, t.Context(), l)
		var want []relock.Queued
		var waiting []*attempt
		for i := range 4 {
			h := relock.NewHolder()
			waiting = append(waiting, begin(t, relock.WithHolder(t.Context(), h), l.Lock))
			want = append(want, relock.Queued{Name: "a", Holder: h, Position: i})
		}
		pass(5 * time.Minute)
		require.Equal(t, want, eventsOf[relock.Queued](&r), "once for each wait, however often it asks")
		require.NoError(t, l.Unlock(section))
		for _, a := range waiting {
			require.NoError(t, l.Unlock(a.section()))
		}
	})
}

func TestTheReleasedHookTellsOfTheWholeHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		one := enter(t, t.Context(), l)
		holder, _ := relock.HolderFrom(one)
		token := l.Token(one)
		pass(time.Minute)
		two := enter(t, one, l)
		three := enter(t, two, l)
		require.NoError(t, l.Unlock(one))
		require.NoError(t, l.Unlock(three))
		pass(time.Minute)
		require.Empty(t, eventsOf[relock.Released](&r))
		require.NoError(t, l.Unlock(two))
		require.Equal(t, []relock.Released{{
			Name: "a", Holder: holder, Token: token, TTL: relock.DefaultTTL, Held: 2 * time.Minute, MaxDepth: 3,
		}}, eventsOf[relock.Released](&r))

		section := enter(t, t.Context(), l)
		w.SetError("NOAUTH Authentication required.")
		err := l.Unlock(section)
		w.SetError("")
		require.ErrorContains(t, err, "NOAUTH")
		released := eventsOf[relock.Released](&r)
		require.Len(t, released, 2)
		require.ErrorContains(t, released[1].Err, "NOAUTH")
		require.Equal(t, 1, released[1].MaxDepth)
	})
}

func TestTheReconnectedHookSaysForHowLong(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var log logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Second)
		require.Empty(t, eventsOf[relock.Reconnected](&r), "the first connection is none that is back")
		m.net.Refuse()
		m.net.CutPubSub()
		lost := time.Now()
		pass(10 * time.Second)
		m.net.Heal()
		pass(10 * time.Second)
		events := eventsOf[relock.Reconnected](&r)
		require.Len(t, events, 1)
		require.Empty(t, events[0].Node)
		require.Equal(t, timesOf[relock.Reconnected](&r)[0].Sub(lost), events[0].Down)
		require.GreaterOrEqual(t, events[0].Down, 10*time.Second)
		require.Less(t, events[0].Down, 13*time.Second)

		back := log.about("is back")
		require.Len(t, back, 1)
		require.Equal(t, slog.LevelInfo, back[0].level)
		require.Equal(t, map[string]any{"node": ""}, back[0].attrs)
		var levels []slog.Level
		for _, line := range log.about("connecting again") {
			levels = append(levels, line.level)
			require.Contains(t, line.attrs, "error")
			require.Contains(t, line.attrs, "attempt")
			require.Contains(t, line.attrs, "node")
		}
		require.Equal(t, slog.LevelInfo, levels[0], "once is no trouble")
		require.Equal(t, slog.LevelWarn, levels[len(levels)-1], "again and again is")
		require.Less(t, len(levels), 50)
		require.True(t, waiting.waits())
	})
}

func TestTheRetriedHookTellsOfEachTryThatFailed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		log := logbook{least: slog.LevelDebug}
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		w.warm(m)
		m.net.On(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF)).Times(2)
		section := enter(t, t.Context(), m.NewLock("a"))
		events := eventsOf[relock.Retried](&r)
		require.Len(t, events, 2)
		for i, event := range events {
			require.Equal(t, "a", event.Name)
			require.Equal(t, "acquire", event.Script)
			require.Equal(t, i+1, event.Attempt)
			require.Error(t, event.Err)
		}
		lines := log.about("again")
		require.Len(t, lines, 2)
		require.Equal(t, slog.LevelDebug, lines[0].level)
		require.Equal(t, "a", lines[0].attrs["lock"])
		require.Equal(t, "acquire", lines[0].attrs["script"])
		require.EqualValues(t, 1, lines[0].attrs["attempt"])
		require.Contains(t, lines[0].attrs, "error")

		// Nested as well.
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		inner := enter(t, section, m.NewLock("a"))
		require.NoError(t, m.NewLock("a").Unlock(inner))
		require.Len(t, eventsOf[relock.Retried](&r), 3)
		require.NoError(t, m.NewLock("a").Unlock(section))
	})
}

func TestWhatIsToldAsRetriedIsSent(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		w.warm(m)
		w.SetError("LOADING Redis is loading the dataset in memory")
		_, err := m.NewLock("a").TryLockFor(t.Context(), 100*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		sent := m.scripts()
		w.SetError("")
		require.Greater(t, sent, 3)
		require.Len(t, eventsOf[relock.Retried](&r), sent-1)
	})
}

func TestTheClosedHookTellsOfEachHoldThatIsOpenAtClose(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a", relock.WithTTL(time.Hour))
		section := enter(t, t.Context(), l)
		require.NoError(t, l.Unlock(enter(t, section, l)))
		require.NoError(t, m.NewLock("b").Do(t.Context(), func(context.Context) error { return nil }))
		holder, _ := relock.HolderFrom(section)
		token := l.Token(section)
		waiting := begin(t, t.Context(), l.Lock) // it holds nothing
		pass(time.Minute)
		require.NoError(t, m.Close())
		_, err := waiting.result()
		require.ErrorIs(t, err, relock.ErrClosed)
		require.Equal(t, []relock.Closed{{
			Name: "a", Holder: holder, Token: token, TTL: time.Hour, Held: time.Minute, MaxDepth: 2,
		}}, eventsOf[relock.Closed](&r))
	})
}

// endsOf is how the holds of a lock ended, for each token that was given.
func endsOf(r *recorder, name string) map[int64][]string {
	ends := make(map[int64][]string)
	note := func(of string, token int64, end ...string) {
		if of == name {
			ends[token] = append(ends[token], end...)
		}
	}
	for _, event := range r.all() {
		switch e := event.(type) {
		case relock.AcquireFinished:
			if e.Outcome == relock.OutcomeAcquired {
				note(e.Name, e.Token)
			}
		case relock.Released:
			note(e.Name, e.Token, "Released")
		case relock.Lost:
			note(e.Name, e.Token, "Lost")
		case relock.Closed:
			note(e.Name, e.Token, "Closed")
		}
	}
	return ends
}

func TestAHoldWhoseClientIsClosedHasOneEnd(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(t *testing.T, w *world, m *member, l *relock.Lock)
	}{
		{"its Unlock is on the way", func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			section := enter(t, t.Context(), l)
			m.net.DelayOneWay(0, time.Second)
			unlock := begin(t, section, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
			require.NoError(t, m.Close())
			_ = unlock.section()
		}},
		{"it is unlocked while Close waits for something else", func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			_ = enter(t, t.Context(), w.NewClient().NewLock("b"))
			waiting := begin(t, t.Context(), m.NewLock("b").Lock) // Close takes its place in the queue back
			do := begin(t, t.Context(), func(ctx context.Context) (context.Context, error) {
				return ctx, l.Do(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
			})
			m.net.DelayOneWay(0, 10*time.Millisecond)
			require.NoError(t, m.Close())
			_ = do.section()
			_, err := waiting.result()
			require.ErrorIs(t, err, relock.ErrClosed)
		}},
		{"its renewal finds it lost", func(t *testing.T, w *world, m *member, l *relock.Lock) {
			t.Helper()
			_ = enter(t, t.Context(), l)
			pass(relock.DefaultTTL/3 + time.Second) // so that the script is known
			w.Del(base("a"))
			pass(relock.DefaultTTL/3 - 2*time.Second)
			m.net.DelayOneWay(0, 2*time.Second)
			pass(2 * time.Second)
			require.NoError(t, m.Close())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = time.Minute }, relock.WithHooks(r.Hooks()))
				w.warm(m)
				test.do(t, w, m, m.NewLock("a"))
				pass(time.Minute)
				for _, ends := range endsOf(&r, "a") {
					require.Equal(t, []string{"Closed"}, ends)
				}
			})
		})
	}
}

func TestEveryHoldHasOneEndWheneverItsClientIsClosed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		kinds := make(map[string]int)
		for range 50 {
			var r recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()))
			m.net.DelayOneWay(0, 3*time.Millisecond)
			l := m.NewLock("a")
			var working sync.WaitGroup
			for range 4 {
				working.Go(func() {
					for t.Context().Err() == nil {
						err := l.Do(t.Context(), func(ctx context.Context) error {
							select {
							case <-ctx.Done():
							case <-time.After(time.Millisecond):
							}
							return nil
						})
						if errors.Is(err, relock.ErrClosed) {
							return
						}
					}
				})
			}
			pass(100*time.Millisecond + rand.N(20*time.Millisecond))
			require.NoError(t, m.Close())
			working.Wait()
			for token, ends := range endsOf(&r, "a") {
				require.Len(t, ends, 1, "token %d", token)
				kinds[ends[0]]++
			}
		}
		require.Positive(t, kinds["Released"])
		require.Positive(t, kinds["Closed"])
	})
}

func TestHooksOfALockReplaceThoseOfItsClient(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var clients, locks recorder
		c := w.NewClient(relock.WithHooks(clients.Hooks()))
		l := c.NewLock("a", relock.WithHooks(locks.Hooks()))
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Empty(t, clients.kinds())
		require.Equal(t, []string{"AcquireStarted", "AcquireFinished", "Released"}, locks.kinds())
		require.NoError(t, c.NewLock("a").Do(t.Context(), func(context.Context) error { return nil }))
		require.Len(t, clients.kinds(), 3)
		require.Len(t, locks.kinds(), 3)
		c.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Len(t, eventsOf[relock.Retried](&clients), 1, "what is sent is the client's")
		require.Len(t, locks.kinds(), 6)
	})
}

func TestAHookThatIsNotThereIsNotCalled(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		log := logbook{least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(log.logger()))
		w.warm(m)
		l := m.NewLock("a")
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), l.Lock)
		m.net.Cut()
		pass(time.Second)
		require.NotEmpty(t, log.about("sending a script again"))
		require.NotEmpty(t, log.about("is back"))
		require.NoError(t, l.Unlock(section))
		section = waiting.section()
		pass(relock.DefaultTTL) // it is renewed
		w.Del(base("a"))
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		enter(t, t.Context(), l)
		require.NoError(t, m.Close())
		require.Empty(t, log.about("panicked"))
	})
}

func TestACallThatRedisDoesNotServeForLongWarnsWithGrowingPauses(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		log := logbook{least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(log.logger()))
		w.SetError("LOADING Redis is loading the dataset in memory")
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Minute)
		w.SetError("")
		require.NoError(t, m.NewLock("a").Unlock(waiting.section()))
		settle()
		var warned []int64
		lines := log.about("sending a script again")
		for i, line := range lines {
			require.EqualValues(t, i+1, line.attrs["attempt"])
			if line.level == slog.LevelWarn {
				warned = append(warned, int64(i+1))
			} else {
				require.Equal(t, slog.LevelDebug, line.level)
			}
		}
		require.Equal(t, []int64{8, 16, 32, 64, 128}, warned)
		require.Less(t, len(lines), 256)
	})
}

func TestAWaitForASectionOfItsOwnContextIsLogged(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		m := w.NewClient(relock.WithLogger(log.logger()))
		one, other := m.NewLock("a"), w.NewClient().NewLock("a")
		section := enter(t, t.Context(), other)
		holder, _ := relock.HolderFrom(section)

		_, err := one.TryLock(section)
		require.ErrorIs(t, err, relock.ErrLocked)
		_, err = one.TryLockFor(t.Context(), time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		settle()
		require.Empty(t, log.about("same holder"), "the one does not wait, the other is somebody else")

		waiting := begin(t, section, one.Lock)
		pass(3 * relock.DefaultTTL)
		lines := log.about("same holder")
		require.Len(t, lines, 1, "once")
		require.Equal(t, slog.LevelWarn, lines[0].level)
		require.Equal(t, "a", lines[0].attrs["lock"])
		require.Equal(t, holder.String(), lines[0].attrs["holder"])
		require.NoError(t, other.Unlock(section))
		_, err = waiting.result()
		require.ErrorIs(t, err, context.Canceled)
	})
}

// It learns from the one before it who has the lock.
func TestAWaitForASectionOfItsOwnContextIsLoggedAlsoBehindAnotherWaiter(t *testing.T) {
	for name, test := range map[string]struct{ all, one []relock.Option }{
		"in a line": {nil, []relock.Option{relock.WithLocalPass(0, 0)}},
		"in a race": {inRedisson(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var log logbook
				one := w.NewClient(slices.Concat(test.all, test.one, []relock.Option{relock.WithLogger(log.logger())})...).NewLock("a")
				other := w.NewClient(test.all...).NewLock("a")
				section := enter(t, t.Context(), other)
				before := begin(t, t.Context(), tryFor(one, time.Second))
				waiting := begin(t, section, one.Lock)
				_, err := before.result()
				require.ErrorIs(t, err, relock.ErrLocked)
				pass(3 * relock.DefaultTTL)
				require.Len(t, log.about("same holder"), 1)
				require.NoError(t, other.Unlock(section))
				_, err = waiting.result()
				require.ErrorIs(t, err, context.Canceled)
			})
		})
	}
}

func TestJoinedHooksAreAllCalledInOrder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var one, two recorder
		var order []string
		l := w.NewClient(relock.WithHooks(relock.JoinHooks(
			one.Hooks(),
			relock.Hooks{}, // has nothing to say
			relock.Hooks{Released: func(relock.Released) { order = append(order, "first") }},
			relock.Hooks{Released: func(relock.Released) { order = append(order, "second") }},
			two.Hooks(),
		))).NewLock("a")
		require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
		require.Equal(t, one.all(), two.all())
		require.Len(t, one.all(), 3)
		require.Equal(t, []string{"first", "second"}, order)

		joined := relock.JoinHooks(relock.Hooks{}, relock.Hooks{Lost: func(relock.Lost) {}})
		require.NotNil(t, joined.Lost)
		require.Nil(t, joined.Released, "nobody wants it")
	})
}

// story is a run of the library through everything that calls a hook.
func story(t *testing.T, w *world, m *member) {
	t.Helper()
	begun := time.Now()
	l := m.NewLock("a")
	outer := enter(t, t.Context(), l)
	inner := enter(t, outer, l)
	waiting := begin(t, t.Context(), l.Lock)
	_, err := l.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	require.NoError(t, l.Unlock(inner))
	pass(relock.DefaultTTL)
	require.NoError(t, outer.Err())
	require.NoError(t, l.Unlock(outer))
	next := waiting.section()
	require.Equal(t, relock.DefaultTTL, time.Since(begun))
	w.Del(base("a"))
	took, cause := ends(t, next)
	require.LessOrEqual(t, took, relock.DefaultTTL/3)
	require.ErrorIs(t, cause, relock.ErrLockLost)
	require.ErrorIs(t, l.Unlock(next), relock.ErrLockLost)
}

// each makes every hook call f.
func each(f func()) relock.Hooks {
	return relock.Hooks{
		AcquireStarted:  func(relock.AcquireStarted) { f() },
		AcquireFinished: func(relock.AcquireFinished) { f() },
		Queued:          func(relock.Queued) { f() },
		Released:        func(relock.Released) { f() },
		Renewed:         func(relock.Renewed) { f() },
		Lost:            func(relock.Lost) { f() },
		Leaked:          func(relock.Leaked) { f() },
		Reconnected:     func(relock.Reconnected) { f() },
		Retried:         func(relock.Retried) { f() },
		Closed:          func(relock.Closed) { f() },
		Dropped:         func(relock.Dropped) { f() },
	}
}

func TestEveryHookCanBeJoined(t *testing.T) {
	all := reflect.TypeFor[relock.Hooks]()
	for i := range all.NumField() {
		kind := all.Field(i)
		var called []string
		hook := func(name string) (h relock.Hooks) {
			reflect.ValueOf(&h).Elem().Field(i).Set(reflect.MakeFunc(kind.Type, func([]reflect.Value) []reflect.Value {
				called = append(called, name)
				return nil
			}))
			return h
		}
		joined := reflect.ValueOf(relock.JoinHooks(hook("one"), relock.Hooks{}, hook("two")))
		for j := range all.NumField() {
			require.Equal(t, j != i, joined.Field(j).IsNil(), "%s, of %s", all.Field(j).Name, kind.Name)
		}
		joined.Field(i).Call([]reflect.Value{reflect.Zero(kind.Type.In(0))})
		require.Equal(t, []string{"one", "two"}, called, kind.Name)
	}
}

func TestHooksThatPanicChangeNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		var calls atomic.Int64
		m := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(each(func() {
			calls.Add(1)
			panic("oops")
		})))
		story(t, w, m)
		lines := log.about("a hook panicked")
		require.Len(t, lines, int(calls.Load()))
		require.Greater(t, len(lines), 10)
		require.Equal(t, slog.LevelError, lines[0].level)
		require.Equal(t, map[string]any{"panic": "oops"}, lines[0].attrs)
	})
}

func TestHooksThatAreSlowChangeNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		quick := w.NewClient(relock.WithHooks(r.Hooks()))
		story(t, w, quick)
		require.NoError(t, quick.Close())
		var calls atomic.Int64
		slow := w.NewClient(relock.WithHooks(each(func() {
			time.Sleep(200 * time.Millisecond) //nolint:forbidigo // fake time
			calls.Add(1)
		})))
		story(t, w, slow)
		require.NoError(t, slow.Close())
		require.EqualValues(t, len(r.all()), calls.Load(), "Close has waited until the hooks have seen everything")
	})
}

func TestHooksThatBlockChangeNothingAndCloseDoesNotWaitForThemForEver(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		block := make(chan struct{})
		m := w.NewClient(relock.WithHooks(each(func() { <-block })))
		story(t, w, m)
		begun := time.Now()
		require.NoError(t, m.Close())
		require.LessOrEqual(t, time.Since(begun), 5*time.Second)
		close(block)
	})
}

func TestALossThatIsFoundAfterCloseIsTheErrorOfItsUnlockOnly(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var log logbook
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, m.Close())
		w.Del(base("a"))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		settle()
		require.Empty(t, eventsOf[relock.Lost](&r))
		require.Empty(t, log.about("lost"))
	})
}

func TestEventsBehindABlockedHookAreDroppedAndCounted(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const more = 100
		block := make(chan struct{})
		var calls atomic.Int64
		var log logbook
		var r recorder
		m := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(relock.Hooks{
			AcquireStarted: func(relock.AcquireStarted) {
				calls.Add(1)
				<-block
			},
			Dropped: func(e relock.Dropped) {
				require.EqualValues(t, 1+relock.EventBacklog, calls.Load(), "after all that was not dropped")
				r.add(e)
			},
		}))
		l := m.NewLock("a", relock.WithLocalReentry())
		outer := enter(t, t.Context(), l)
		settle() // the hook has the first event
		for range relock.EventBacklog + more {
			inner := enter(t, outer, l)
			require.NoError(t, l.Unlock(inner))
		}
		require.Empty(t, log.about("dropped"))
		close(block)
		settle()
		require.EqualValues(t, 1+relock.EventBacklog, calls.Load())
		lines := log.about("dropped")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelWarn, lines[0].level)
		require.Equal(t, map[string]any{"events": int64(more)}, lines[0].attrs)
		require.Equal(t, []relock.Dropped{{Events: more}}, eventsOf[relock.Dropped](&r))
		require.NoError(t, l.Unlock(outer))
	})
}

func TestEventsAreDroppedAlsoWhereNoHookIsToldOfThat(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		block := make(chan struct{})
		var log logbook
		l := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(relock.Hooks{
			AcquireStarted: func(relock.AcquireStarted) { <-block },
		})).NewLock("a", relock.WithLocalReentry())
		outer := enter(t, t.Context(), l)
		for range relock.EventBacklog + 100 {
			require.NoError(t, l.Unlock(enter(t, outer, l)))
		}
		close(block)
		require.Len(t, log.about("dropped"), 1)
		require.Empty(t, log.about("panicked"))
		require.NoError(t, l.Unlock(outer))
	})
}

func TestDroppedEventsAreToldWhileTheOverloadLasts(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var seen, dropped, times atomic.Int64
		var log logbook
		m := w.NewClient(relock.WithLogger(log.logger()), relock.WithHooks(relock.Hooks{
			AcquireStarted: func(relock.AcquireStarted) {
				seen.Add(1)
				time.Sleep(2 * time.Millisecond) //nolint:forbidigo // fake time
			},
			Dropped: func(e relock.Dropped) {
				dropped.Add(int64(e.Events))
				times.Add(1)
			},
		}))
		l := m.NewLock("a", relock.WithLocalReentry())
		outer := enter(t, t.Context(), l)
		wanted := 1
		for ; wanted < 7*relock.EventBacklog; wanted++ {
			require.NoError(t, l.Unlock(enter(t, outer, l)))
			pass(time.Millisecond)
		}
		require.EqualValues(t, 2, times.Load(), "not for each event")
		require.Positive(t, dropped.Load())
		pass(time.Minute)
		require.EqualValues(t, wanted, seen.Load()+dropped.Load(), "in the end of all")
		require.Len(t, log.about("dropped"), int(times.Load()))
		require.NoError(t, l.Unlock(outer))
	})
}

func TestAHookThatPanicsOrEndsItsGoroutineKeepsNoEventFromOthers(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("oops") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var before, behind recorder
				l := w.NewClient(relock.WithHooks(relock.JoinHooks(before.Hooks(), each(fail), each(fail), behind.Hooks()))).NewLock("a")
				for range 2 {
					require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
				}
				require.Equal(t, []string{
					"AcquireStarted", "AcquireFinished", "Released", "AcquireStarted", "AcquireFinished", "Released",
				}, behind.kinds())
				require.Equal(t, before.all(), behind.all())
			})
		})
	}
}

// panicking is a hook of the go-redis client that panics at the next script once it is armed.
type panicking struct{ armed atomic.Bool }

func (p *panicking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *panicking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(strings.ToUpper(cmd.Name()), "EVAL") && p.armed.Swap(false) {
			panic("a hook of go-redis")
		}
		return next(ctx, cmd)
	}
}

func (p *panicking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAWaitThatAHookOfGoRedisEndsByAPanicHasAnEnd(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		p := &panicking{}
		m.redis.AddHook(p)
		panicked := make(chan any)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = m.NewLock("a").Lock(context.Background()) // which nothing can end: so the caller sends its command itself
		}()
		settle()
		require.Len(t, eventsOf[relock.Queued](&r), 1)
		p.armed.Store(true)
		require.NotNil(t, <-panicked)
		finished := eventsOf[relock.AcquireFinished](&r)
		require.Len(t, finished, 1)
		require.Equal(t, relock.OutcomeError, finished[0].Outcome)
		require.True(t, finished[0].Waited)
		require.Error(t, finished[0].Err)
	})
}

func TestAnExitThatAHookOfGoRedisEndsByAPanicIsMadeUpFor(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithTTL(5*time.Minute))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		p := &panicking{}
		m.redis.AddHook(p)

		p.armed.Store(true)
		require.Panics(t, func() { _ = l.Unlock(inner) })
		pass(10 * time.Second)
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Count, "Redis was told though nothing else happened")
		require.NoError(t, outer.Err())

		p.armed.Store(true)
		require.Panics(t, func() { _ = l.Unlock(outer) })
		pass(10 * time.Second)
		w.requireNothingLeft("a")
		released := eventsOf[relock.Released](&r)
		require.Len(t, released, 1)
		require.Error(t, released[0].Err)
		require.NoError(t, l.Unlock(enter(t, t.Context(), l)))
	})
}

// ending is a hook of the go-redis client that ends the goroutine of some scripts and pipelines, instead of sending them.
type ending struct{ seen, some atomic.Int64 }

func (e *ending) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e *ending) end() {
	if some := e.some.Load(); some > 0 && e.seen.Add(1)%some == 0 {
		runtime.Goexit()
	}
}

func (e *ending) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(strings.ToUpper(cmd.Name()), "EVAL") {
			e.end()
		}
		return next(ctx, cmd)
	}
}

func (e *ending) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		e.end()
		return next(ctx, cmds)
	}
}

func TestAHookOfGoRedisThatEndsTheGoroutineOfACommandHoldsUpNobody(t *testing.T) {
	for name, roundTrip := range map[string]time.Duration{
		"a server nearby": 0, "those who queue leave together": time.Millisecond, "those who queue cannot wait": 10 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				w.warm(m)
				e := &ending{}
				e.some.Store(2)
				m.redis.AddHook(e)
				m.net.Delay(roundTrip)
				var all sync.WaitGroup
				for i := range 30 {
					all.Go(func() {
						l := m.NewLock(fmt.Sprint(i))
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						section, err := l.Lock(ctx)
						if err == nil {
							err = l.Unlock(section)
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				pass(time.Minute)
				e.some.Store(0)
				m.net.Delay(0)
				begun := time.Now()
				require.NoError(t, m.NewLock("a").Unlock(enter(t, t.Context(), m.NewLock("a"))))
				require.Zero(t, time.Since(begun), "a lane is free")
			})
		})
	}
}

func TestAHoldWhoseLastExitIsOnTheWireAtItsDeadlineHasOneEnd(t *testing.T) {
	for range 20 { // what happens at the same instant does so in any order
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithTTL(2*time.Second))
			l := m.NewLock("a")
			section := enter(t, t.Context(), l)
			m.net.Partition()
			require.NotErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			m.net.Heal()
			pass(4 * time.Second)
			require.Len(t, eventsOf[relock.Released](&r), 1)
			require.Empty(t, eventsOf[relock.Lost](&r))
			w.requireNothingLeft("a")
		})
	}
}

func TestAHookMayUseTheLibraryAndEvenCloseTheClient(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var m *member
		errs := make(chan error, 10)
		m = w.NewClient(relock.WithHooks(relock.Hooks{Released: func(e relock.Released) {
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

func TestNoHookIsCalledAfterClose(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, m.Close())
		require.Equal(t, []string{"AcquireStarted", "AcquireFinished", "Closed"}, r.kinds())
		before := len(r.all())
		require.NoError(t, l.Unlock(section))
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		pass(time.Minute)
		require.Len(t, r.all(), before)
	})
}

// wildHandler is a slog handler that panics.
type wildHandler struct{ logbook }

func (*wildHandler) Handle(context.Context, slog.Record) error { panic("no disk") }

// guardedHandler is a slog handler that has to do something before it knows what it wants.
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
		"handling":             &wildHandler{},
		"saying what it wants": &guardedHandler{enter: func() { panic("no disk") }},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithLogger(slog.New(handler)), relock.WithHooks(each(func() { panic("oops") })))
				story(t, w, m)
			})
		})
	}
}

func TestALoggerThatBlocksBeforeItSaysWhatItWantsChangesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		block := make(chan struct{})
		defer close(block)
		m := w.NewClient(relock.WithLogger(slog.New(&guardedHandler{enter: func() { <-block }})))
		fixed := enter(t, t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		renewed := enter(t, t.Context(), m.NewLock("b"))
		_, cause := ends(t, fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost) // which is logged
		pass(2 * relock.DefaultTTL)
		require.NoError(t, renewed.Err())
		require.Positive(t, w.lease("b"), "the watchdog goes on")
		fixed = enter(t, t.Context(), m.NewLock("a", relock.WithFixedLease(10*time.Second)))
		_, cause = ends(t, fixed)
		require.ErrorIs(t, cause, relock.ErrLockLost)
	})
}

func TestALoggerSeesTheLevelsItWantsOnly(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		log := logbook{least: slog.LevelError}
		m := w.NewClient(relock.WithLogger(log.logger()))
		section := enter(t, t.Context(), m.NewLock("a"))
		w.SetError("LOADING Redis is loading the dataset in memory")
		_, cause := ends(t, section)
		w.SetError("")
		require.ErrorIs(t, cause, relock.ErrLockLost)
		lines := log.about("")
		require.Len(t, lines, 1)
		require.Equal(t, slog.LevelError, lines[0].level)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, lost.Holder.String(), lines[0].attrs["holder"])
	})
}

func TestTheLoggerOfALockGetsItsLossesItsLeaksAndWhatMayBeLeftOfItAndNothingElse(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		logs, own := logbook{least: slog.LevelDebug}, logbook{least: slog.LevelDebug}
		m := w.NewClient(relock.WithLogger(logs.logger()))
		w.warm(m)
		lock := func(name string) *relock.Lock { return m.NewLock(name, relock.WithLogger(own.logger())) }

		forget(t, t.Context(), lock("leaked"))
		section := enter(t, t.Context(), lock("lost"))
		w.SetError("LOADING Redis is loading the dataset in memory")
		pass(relock.DefaultTTL / 2) // its renewal is tried again
		w.SetError("")
		for range 1000 {
			runtime.GC()
			if pass(relock.DefaultTTL / 3); len(own.about("leaked")) > 0 {
				break
			}
		}
		w.Del(base("lost"))
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		pass(relock.DefaultTTL) // and so does the one that was leaked

		enter(t, t.Context(), w.NewClient().NewLock("left"))
		ctx, cancel := context.WithCancel(t.Context())
		waits := begin(t, ctx, lock("left").Lock)
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		_, err := lock("b").State(t.Context()) // is asked again
		require.NoError(t, err)
		refuse := m.net.On(redistest.Named("EVALSHA", "EVAL"), redistest.Answer("-NOPERM no"))
		cancel()
		_, err = waits.result()
		require.ErrorIs(t, err, context.Canceled)
		pass(relock.DefaultTTL + time.Minute + 11*time.Second)
		refuse.Remove()

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
		require.NotEmpty(t, logs.about("sending a script again"))
	})
}

// As an Extend does that finds nothing at the moment when the last Unlock begins.
func TestAHoldThatIsLostWhileItsLastUnlockIsOnTheWireHasOneEnd(t *testing.T) {
	for name, answer := range map[string]func(m *member){
		"the release is confirmed": func(*member) {},
		"it is refused":            func(m *member) { m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots")) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				section := enter(t, t.Context(), l)
				answer(m)
				m.net.Delay(time.Second)
				exit := begin(t, section, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
				settle()
				relock.LoseHold(section)
				_, err := exit.result()
				require.ErrorIs(t, err, relock.ErrLockLost)
				settle()
				require.Len(t, eventsOf[relock.Lost](&r), 1)
				require.Empty(t, eventsOf[relock.Released](&r))
			})
		})
	}
}
