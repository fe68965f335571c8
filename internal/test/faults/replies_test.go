package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if a reply is lost, or a command runs late or twice?

// This chapter is about commands whose replies are lost, that run late, or that run more than once.

// story is two clients and a waiter: what they do, and that it ends well.
func story(w *stage.Arena, p, other *stage.Peer, name string) {
	w.T.Helper()
	l := p.NewLock(name)
	outer := w.Enter(w.T.Context(), l)
	inner := w.Enter(outer, l)
	w.RequireCount(name, 2)
	token := w.Draw(inner, l)
	waiter := w.Start(w.T.Context(), other.NewLock(name))
	w.AwaitWaiters(name, 1)
	w.Leave(inner, l)
	w.RequireCount(name, 1)
	require.True(w.T, waiter.Waits())
	w.Leave(outer, l)
	mine := waiter.Section()
	w.RequireCount(name, 1)
	require.Greater(w.T, w.Draw(mine, waiter.Lock), token)

	ctx, cancel := context.WithCancel(w.T.Context())
	gone := w.Start(ctx, l)
	w.AwaitWaiters(name, 1)
	cancel()
	require.True(w.T, stage.IsDone(gone.Within(stage.Promptly).Failure()))
	w.AwaitWaiters(name, 0)
	state, err := l.State(w.T.Context())
	require.NoError(w.T, err)
	require.Equal(w.T, 1, state.Count)
	require.NoError(w.T, w.Call(func() error { return l.ForceUnlock(w.T.Context()) }))
	if err := waiter.Lock.Unlock(mine); err != nil { // an attempt without an answer may have freed the lock
		require.ErrorIs(w.T, err, relock.ErrLockLost)
	}
	w.RequireFree(name)
}

func TestAConnectionMayBreakAtAnyCommandOfTheStory(t *testing.T) {
	w := stage.OnShared(t)
	for _, fault := range []struct {
		name   string
		match  redistest.Match
		action redistest.Action
	}{
		{"before it", stage.OfInterest, redistest.CutBefore(redistest.EOF)},
		{"after it", stage.OfInterest, redistest.DropReply(redistest.EOF)},
		// A silent SUBSCRIBE takes seconds to find out, and has a test of its own.
		{"after it, silently", w.Script(stage.ScriptNames...), redistest.DropReply(redistest.Silence)},
	} {
		for _, mine := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mine %t", fault.name, mine), func(t *testing.T) {
				w := w.In(t)
				for n := 0; ; n++ {
					p, other := w.Peer(), w.Peer()
					victim := other
					if mine {
						victim = p
					}
					rule := victim.Faults.Once(fault.match, fault.action).Skip(n)
					story(w, p, other, fmt.Sprint(t.Name(), n))
					require.NoError(t, p.Close())
					require.NoError(t, other.Close())
					if rule.Hits() == 0 { // there are no more commands
						t.Logf("%d commands, each of them once", n)
						require.GreaterOrEqual(t, n, 3)
						return
					}
				}
			})
		}
	}
}

func TestScriptsMayBeFlushedBeforeAnyCommandOfTheStory(t *testing.T) {
	w := stage.OnOwn(t)
	patient := func(o *redis.Options) { o.DialTimeout, o.ReadTimeout = stage.Limit, stage.Limit } // no reply is lost
	for n := 0; ; n++ {
		p, other := w.PeerOn(patient), w.PeerOn(patient)
		sent := 0
		var mu sync.Mutex
		flush := redistest.Before(func([]string) {
			mu.Lock()
			defer mu.Unlock()
			if sent++; sent == n+1 {
				_ = w.Plain.ScriptFlush(context.Background()).Err()
			}
		})
		p.Faults.On(stage.OfInterest, flush)
		other.Faults.On(stage.OfInterest, flush)
		story(w, p, other, fmt.Sprint("a", n))
		require.NoError(t, errors.Join(p.Close(), other.Close()))
		mu.Lock()
		last := sent <= n // there are no more commands
		mu.Unlock()
		if last {
			t.Logf("%d commands, a flush before each of them once", n)
			require.GreaterOrEqual(t, n, 10)
			return
		}
	}
}

func TestACommandThatRunsTwiceOrThreeTimesDoesWhatItDoesOnce(t *testing.T) {
	for _, times := range []int{2, 3} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			w := stage.OnShared(t)
			p, other := w.Peer(), w.Peer()
			for _, victim := range []*stage.Peer{p, other} {
				victim.Faults.On(w.Script(stage.ScriptNames...), redistest.Duplicate(times, redistest.First))
			}
			story(w, p, other, "a")
		})
	}
}

// The command is on its way while the client closes, and Redis has confirmed that nothing is left. A
// repeat of the command is on its way, too.
func TestCloseForgetsOnceMoreWhatALateCommandMayTake(t *testing.T) {
	w := stage.OnShared(t)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = stage.Limit })
	late := p.Faults.On(w.Script(stage.LuaAcquire), redistest.Hold())
	forgets := p.Faults.On(w.Script(stage.LuaForget), redistest.After(func([]string, string) {}))
	ctx, cancel := context.WithCancel(t.Context())
	gone := w.Start(ctx, p.NewLock("a"))
	late.WaitHits(t, 1)
	cancel()
	require.True(t, stage.IsDone(gone.Failure()))
	forgets.WaitHits(t, 2) // so the first one was answered
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	stage.SleepUntil(time.Now().Add(100 * time.Millisecond))
	late.LetGo()
	require.NoError(t, <-closed)
	require.Zero(t, w.Plain.Exists(t.Context(), stage.BaseKey("a")).Val(), "for a lease")
}
