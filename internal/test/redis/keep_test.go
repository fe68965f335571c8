package redis_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// How does a client keep a lock in Redis until somebody else asks?

const keptFor = time.Hour

// keeping returns a client that keeps the lock a, and has left a section of it just now.
func keeping(w *stage.Embedded, options ...relock.Option) (*stage.EmbeddedPeer, *relock.Lock) {
	w.T.Helper()
	m := w.NewClient(append([]relock.Option{relock.WithKeep(keptFor)}, options...)...)
	l := m.NewLock("a")
	visit(w.T, l)
	stage.Pass(time.Second)
	visit(w.T, l)
	stage.Settle()
	return m, l
}

func onKept(t *testing.T, test func(t *testing.T, w *stage.Embedded, m *stage.EmbeddedPeer, l *relock.Lock)) {
	t.Helper()
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		m, l := keeping(w)
		test(t, w, m, l)
	})
}

// visit is a section of a millisecond.
func visit(t *testing.T, l *relock.Lock) {
	t.Helper()
	require.NoError(t, l.Do(t.Context(), func(context.Context) error { <-time.After(time.Millisecond); return nil }))
}

func TestSomebodyElseGetsAKeptLockInRedisAtOnce(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, _ *stage.EmbeddedPeer, l *relock.Lock) {
		other := w.NewClient().NewLock("a")
		waiting := w.Start(t.Context(), other)
		require.Less(t, waiting.Took(), 10*time.Millisecond)
		waiting.Leave()
		visit(t, l)
		section, err := other.TryLock(t.Context())
		require.NoError(t, err)
		w.Leave(section, other)
		w.RequireTokensOnly()
	})
}

func TestManyCallsOfTwoClientsShareAKeptLock(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, _ *stage.EmbeddedPeer, l *relock.Lock) {
		locks := []*relock.Lock{l, w.NewClient().NewLock("a"), w.NewClient(relock.WithKeep(time.Minute)).NewLock("a")}
		begun := time.Now()
		var all sync.WaitGroup
		counts := make([]int, len(locks))
		for i := range 60 {
			all.Go(func() {
				for time.Since(begun) < 10*time.Second {
					require.NoError(t, locks[i%3].Do(t.Context(), func(context.Context) error {
						counts[i%3]++
						<-time.After(time.Millisecond)
						return nil
					}))
				}
			})
		}
		all.Wait()
		require.Greater(t, counts[0]+counts[1]+counts[2], 9_900, "nobody sleeps for a lease")
		require.Greater(t, slices.Min(counts), 3_000, "all get the same")
		w.RequireTokensOnly()
	})
}

// A message is lost before the client listens, or while its connection is. The client frees what it
// keeps when it listens.
func TestAMessageThatIsLostWithAConnectionCostsLittle(t *testing.T) {
	for _, isCut := range []bool{false, true} {
		t.Run(fmt.Sprint("the connection is cut: ", isCut), func(t *testing.T) {
			stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
				m := w.NewClient(relock.WithKeep(keptFor))
				visit(t, m.NewLock("a"))
				if isCut {
					stage.Pass(time.Minute)
					m.Net.Refuse()
					m.Net.CutPubSub()
					stage.Settle()
				}
				waiting := w.Start(t.Context(), w.NewClient().NewLock("a"))
				m.Net.Heal()
				require.Less(t, waiting.Took(), 6*time.Second)
				waiting.Leave()
			})
		})
	}
}

func TestAClientThatWasRefusedItsChannelHearsAgain(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, m *stage.EmbeddedPeer, l *relock.Lock) {
		refusal := m.Net.On(redistest.Named("SUBSCRIBE"), redistest.Answer("-NOPERM this user has no permissions\r\n"))
		m.Net.CutPubSub()
		stage.Pass(20 * time.Second)
		require.Positive(t, refusal.Hits())
		visit(t, l)
		waiting := w.Start(t.Context(), w.NewClient().NewLock("a"))
		require.LessOrEqual(t, waiting.Took(), 11*time.Second, "a client that does not hear keeps nothing for long")
		waiting.Leave()

		refusal.Remove()
		stage.Pass(20 * time.Second)
		visit(t, l)
		waiting = w.Start(t.Context(), w.NewClient().NewLock("a"))
		require.Zero(t, waiting.Took())
		waiting.Leave()
	})
}

func TestAClientWhoseConnectionStaysLostKeepsNothingForLong(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, m *stage.EmbeddedPeer, l *relock.Lock) {
		m.Net.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
		m.Net.CutPubSub()
		stage.Pass(time.Minute)
		visit(t, l)
		waiting := w.Start(t.Context(), w.NewClient().NewLock("a"))
		require.Less(t, waiting.Took(), 5*time.Second)
		waiting.Leave()
	})
}

func TestScriptsOfTheCallerOnAKeptLock(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, m *stage.EmbeddedPeer, l *relock.Lock) {
		isKept := func() bool {
			state, err := l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, state.Kept, state.Locked())
			return state.Kept
		}
		const incr = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
		keys := []string{"{a}:token"} // that may be left
		section := w.Enter(t.Context(), l)
		_, err := l.Eval(section, incr, keys, 1)
		require.NoError(t, err)
		w.Leave(section, l)
		require.True(t, isKept(), "a script that has run keeps nobody from keeping")
		reply, err := l.RunScript(t.Context(), incr, keys, 1)
		require.NoError(t, err)
		require.EqualValues(t, "2", fmt.Sprint(reply))

		require.True(t, isKept())
		section, _, err = l.TryLockIf(t.Context(), "return locked, 1", nil)
		require.NoError(t, err, "the script finds the lock free")
		w.Leave(section, l)
		require.False(t, isKept(), "a lock that a script has taken is not kept")

		section = w.Enter(t.Context(), l)
		stuck := m.Net.Once(redistest.WithArg("late"), redistest.Hold())
		t.Cleanup(stuck.LetGo)
		bound, cancel := context.WithTimeout(section, time.Second)
		defer cancel()
		_, err = l.Eval(bound, incr, keys, "late")
		require.ErrorIs(t, err, relock.ErrUnsure)
		w.Leave(section, l)
		require.False(t, isKept(), "nor one whose script may run yet")
	})
}

func TestATryLockIfElsewhereGetsAKeptLock(t *testing.T) {
	for name, script := range map[string]string{"the script would keep the lock": "return true, 1", "the script wants a free lock": "return locked, 1", "without a reply": "return locked, locked and 1 or nil"} {
		t.Run(name, func(t *testing.T) {
			onKept(t, func(t *testing.T, w *stage.Embedded, _ *stage.EmbeddedPeer, l *relock.Lock) {
				other := w.NewClient().NewLock("a")
				section, reply, err := other.TryLockIf(t.Context(), script, nil)
				require.NoError(t, err)
				require.EqualValues(t, "1", fmt.Sprint(reply))
				_, reply, err = l.TryLockIf(t.Context(), "return locked, 2", nil)
				var declined *relock.DeclinedError
				require.ErrorAs(t, err, &declined)
				require.EqualValues(t, "2", fmt.Sprint(declined.Reply))
				require.Nil(t, reply)
				_, _, err = l.TryLockIf(t.Context(), "return locked", nil)
				require.ErrorAs(t, err, &declined)
				require.Nil(t, declined.Reply)
				w.Leave(section, other)
			})
		})
	}
}

func TestAServerThatComesBackEmptyHasNoKeptLocks(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, m *stage.EmbeddedPeer, l *relock.Lock) {
		w.Redis.FlushAll()
		m.Net.CutPubSub()
		stage.Pass(time.Second)
		other := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), other)
		own := start(w, l)
		require.True(t, own.Waits())
		w.Leave(section, other)
		own.Leave()
		w.RequireTokensOnly()
	})
}

// A head queues without an answer, and is granted the lock. Whoever has queued behind it was refused
// by the hold before, and has asked nobody.
func TestALockThatWasQueuedForWithoutAnAnswerIsNotKept(t *testing.T) {
	stage.OnEmbedded(t, func(t *testing.T, w *stage.Embedded) {
		m := w.NewClient(relock.WithKeep(keptFor))
		before, l, other := w.NewClient().NewLock("a"), m.NewLock("a"), w.NewClient().NewLock("a")
		visit(t, m.NewLock("scripts", relock.WithKeep(0)))
		visit(t, m.NewLock("requests"))
		stage.Pass(time.Second)
		theirs := w.Enter(t.Context(), before)
		n := 0
		second := func(args []string) bool { // the call that queues; go-redis cannot dial again
			if !strings.EqualFold(args[0], "EVALSHA") {
				return false
			}
			if n++; n == 2 {
				m.Net.Refuse()
			}
			return n == 2
		}
		m.Net.Once(second, redistest.DropReply(redistest.EOF))
		mine := w.Start(t.Context(), l)
		stage.Pass(time.Millisecond)
		waiting := w.Start(t.Context(), other)
		stage.Pass(time.Millisecond)
		require.True(t, waiting.Waits())
		w.Leave(theirs, before)
		stage.Pass(time.Millisecond)
		require.True(t, mine.Waits())
		m.Net.Heal()
		w.Leave(mine.Section(), l)
		freed := time.Now()
		waiting.Leave()
		require.Less(t, waiting.Ended.Sub(freed), time.Second, "nobody sleeps while nobody is in")
	})
}

func TestManyWaitersOfAClientSendFewRequests(t *testing.T) {
	onKept(t, func(t *testing.T, w *stage.Embedded, _ *stage.EmbeddedPeer, l *relock.Lock) {
		section := w.Enter(t.Context(), l)
		f := w.NewClient()
		var all []*stage.Attempt
		for range 200 {
			all = append(all, start(w, f.NewLock("a")))
		}
		stage.Pass(time.Minute)
		w.Leave(section, l)
		for _, a := range all {
			a.Leave()
		}
		require.LessOrEqual(t, f.Net.Commands("PUBLISH"), 20)
	})
}
