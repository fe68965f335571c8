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

func TestALostReplyIsAskedForAgainAndCountsOnce(t *testing.T) {
	// Each does something as P, with lose before the command that is to lose its reply.
	for what, act := range map[string]func(s *stage.Scene, lose func(script string, skip int)){
		"of Lock": func(s *stage.Scene, lose func(string, int)) {
			lose(stage.LuaAcquire, 0)
			section := s.Enter(s.T.Context(), s.L)
			s.RequireCount("a", 1)
			s.Leave(section, s.L)
		},
		"of Lock of a busy lock": func(s *stage.Scene, lose func(string, int)) {
			section := s.LockBy()
			lose(stage.LuaAcquire, 0)
			waiter := s.Start(s.T.Context(), s.L)
			s.AwaitWaiters("a", 1)
			s.Leave(section, s.Far)
			waiter.Leave()
		},
		"of the call that queues": func(s *stage.Scene, lose func(string, int)) {
			section := s.LockBy()
			lose(stage.LuaAcquire, 1)
			waiter := s.Start(s.T.Context(), s.L)
			s.AwaitWaiters("a", 1)
			s.Leave(section, s.Far)
			waiter.Leave()
		},
		"of a nested Lock": func(s *stage.Scene, lose func(string, int)) {
			outer := s.Enter(s.T.Context(), s.L)
			lose(stage.LuaRenew, 0)
			inner := s.Enter(outer, s.L)
			s.RequireCount("a", 2)
			require.Equal(s.T, 2, s.L.Count(inner))
			s.Leave(inner, s.L)
			s.Leave(outer, s.L)
		},
		"of an inner Unlock": func(s *stage.Scene, lose func(string, int)) {
			outer, inner := s.Nested()
			lose(stage.LuaRenew, 0)
			s.Leave(inner, s.L)
			s.RequireCount("a", 1)
			require.True(s.T, s.L.Held(outer))
			s.Leave(outer, s.L)
		},
		"of the last Unlock": func(s *stage.Scene, lose func(string, int)) {
			section := s.Enter(s.T.Context(), s.L)
			lose(stage.LuaRelease, 0)
			s.Leave(section, s.L)
			require.ErrorIs(s.T, context.Cause(section), relock.ErrReleased)
		},
		"of the last Unlock, with a waiter": func(s *stage.Scene, lose func(string, int)) {
			section := s.Enter(s.T.Context(), s.L)
			waiter := s.Start(s.T.Context(), s.Far)
			s.AwaitWaiters("a", 1)
			lose(stage.LuaRelease, 0)
			s.Leave(section, s.L)
			mine := waiter.Section()
			s.RequireCount("a", 1)
			s.Leave(mine, s.Far)
		},
		"of Token": func(s *stage.Scene, lose func(string, int)) {
			section := s.Enter(s.T.Context(), s.L)
			lose(stage.LuaToken, 0)
			token := s.Draw(section, s.L)
			state, err := s.Far.State(s.T.Context())
			require.NoError(s.T, err)
			require.Equal(s.T, state.Token, token, "the last one counts")
			s.Leave(section, s.L)
		},
		"of Extend": func(s *stage.Scene, lose func(string, int)) {
			l := s.P.NewLock("a", relock.WithFixedLease(5*time.Second))
			section := s.Enter(s.T.Context(), l)
			lose(stage.LuaRenew, 0)
			require.NoError(s.T, s.Call(func() error { return l.Extend(section, 10*time.Second) }))
			require.Greater(s.T, s.Lease("a"), 7*time.Second)
			require.LessOrEqual(s.T, s.Lease("a"), 10*time.Second)
			s.RequireCount("a", 1)
			s.Leave(section, l)
		},
		"of a Lock that was given up": func(s *stage.Scene, lose func(string, int)) {
			section := s.LockBy()
			ctx, cancel := context.WithCancel(s.T.Context())
			gone := s.Start(ctx, s.L)
			s.AwaitWaiters("a", 1)
			lose(stage.LuaForget, 0)
			cancel()
			require.True(s.T, stage.IsDone(gone.Within(stage.Promptly).Failure()))
			s.AwaitWaiters("a", 0)
			s.Leave(section, s.Far)
		},
		"of State": func(s *stage.Scene, lose func(string, int)) {
			section := s.Enter(s.T.Context(), s.L)
			lose(stage.LuaState, 0)
			state, err := s.L.State(s.T.Context())
			require.NoError(s.T, err)
			require.Equal(s.T, 1, state.Count)
			s.Leave(section, s.L)
		},
		"of ForceUnlock": func(s *stage.Scene, lose func(string, int)) {
			section := s.LockBy()
			waiter := s.Start(s.T.Context(), s.Peer().NewLock("a"))
			s.AwaitWaiters("a", 1)
			lose(stage.LuaBreak, 0)
			require.NoError(s.T, s.Call(func() error { return s.L.ForceUnlock(s.T.Context()) }))
			require.Equal(s.T, relock.LossTaken, s.Lost(section))
			require.ErrorIs(s.T, s.Far.Unlock(section), relock.ErrLockLost)
			mine := waiter.Section()
			s.RequireCount("a", 1)
			s.Leave(mine, waiter.Lock)
		},
	} {
		t.Run(what, func(t *testing.T) {
			for name, how := range stage.Breaks {
				t.Run(name, func(t *testing.T) {
					s := stage.OnShared(t).Scene()
					var calls func() int
					var rule *redistest.Rule
					act(s, func(script string, skip int) {
						calls = s.Counter(s.P, script)
						rule = s.P.Faults.Once(s.Script(script), redistest.DropReply(how)).Skip(skip)
					})
					rule.WaitHits(t, 1)
					redistest.Eventually(t, s.Limit, func() bool { return calls() >= 2 }, "asked again")
					s.RequireFree("a")
				})
			}
		})
	}
}

func TestALostReplyOfARenewalIsNoLoss(t *testing.T) {
	const ttl = 1200 * time.Millisecond
	w := stage.Apart(t)
	var sections []context.Context
	var locks []*relock.Lock
	for _, how := range stage.Breaks {
		p := w.Peer(relock.WithTTL(ttl))
		l := p.NewLock(fmt.Sprint(how))
		locks, sections = append(locks, l), append(sections, w.Enter(t.Context(), l))
		p.Faults.On(w.Script(stage.LuaRenew), redistest.DropReply(how)).Times(2)
	}
	stage.SleepUntil(time.Now().Add(2 * ttl))
	for i, l := range locks {
		require.NoError(t, sections[i].Err())
		require.Greater(t, l.Remaining(sections[i]), ttl/4)
		w.Leave(sections[i], l)
	}
}

func TestASlowLinkCostsNoSection(t *testing.T) {
	const ttl = 2 * time.Second
	w := stage.Apart(t)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = ttl }, relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.Enter(t.Context(), l)
	p.Faults.Delay(ttl / 4)
	stage.SleepUntil(time.Now().Add(3 * ttl))
	require.NoError(t, context.Cause(section))
	w.Leave(section, l)
}

func TestAnUnlockThatIsNeverAnsweredSaysSoAndLeavesTheLockFree(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	s := stage.OnShared(t).Scene(relock.WithTTL(ttl))
	section := s.Enter(t.Context(), s.L)
	s.P.Faults.On(s.Script(stage.LuaRelease), redistest.DropReply(redistest.EOF))
	err := s.Within(ttl + stage.AtOnce).Call(func() error { return s.L.Unlock(section) })
	require.ErrorContains(t, err, "not confirmed")
	require.NotErrorIs(t, err, relock.ErrLockLost, "it was released, and never lost")
	s.Within(0).RequireFree("a")
	require.ErrorIs(t, s.L.Unlock(section), relock.ErrNotHeld)
}

func TestALateCommandTouchesNothingThatCameLater(t *testing.T) {
	// Each leaves the lock with p or other, and returns what is stuck, and how to go on.
	for what, act := range map[string]func(s *stage.Scene) (stuck *redistest.Rule, goOn func()){
		"Lock, when the lock is taken": func(s *stage.Scene) (*redistest.Rule, func()) {
			stuck := s.GiveUp(s.T.Context(), stage.LuaAcquire, 0)
			outer, inner := s.Nested()
			return stuck, func() { s.Leave(inner, s.L); s.Leave(outer, s.L) }
		},
		"a nested Lock, in a later hold": func(s *stage.Scene) (*redistest.Rule, func()) {
			outer := s.Enter(s.T.Context(), s.L)
			stuck := s.GiveUp(outer, stage.LuaRenew, 0)
			s.Leave(outer, s.L)
			section := s.Enter(s.T.Context(), s.L)
			return stuck, func() { s.Leave(section, s.L) }
		},
		"a nested Lock, when the lock is free": func(s *stage.Scene) (*redistest.Rule, func()) {
			outer := s.Enter(s.T.Context(), s.L)
			stuck := s.GiveUp(outer, stage.LuaRenew, 0)
			s.Leave(outer, s.L)
			return stuck, func() {}
		},
		"an inner Unlock, in a later hold": func(s *stage.Scene) (*redistest.Rule, func()) {
			outer, inner := s.Nested()
			stuck := s.P.Faults.Once(s.Script(stage.LuaRenew), redistest.Hold())
			s.Leave(inner, s.L) // the first attempt hangs, the second is answered
			s.Leave(outer, s.L)
			outer, inner = s.Nested()
			return stuck, func() { s.Leave(inner, s.L); s.Leave(outer, s.L) }
		},
		"the last Unlock": func(s *stage.Scene) (*redistest.Rule, func()) {
			section := s.Enter(s.T.Context(), s.L)
			stuck := s.P.Faults.Once(s.Script(stage.LuaRelease), redistest.Hold())
			s.Leave(section, s.L)
			section = s.Enter(s.T.Context(), s.L)
			return stuck, func() { s.Leave(section, s.L) }
		},
		"a Lock that was given up": func(s *stage.Scene) (*redistest.Rule, func()) {
			section := s.LockBy()
			ctx, cancel := context.WithCancel(s.T.Context())
			gone := s.Start(ctx, s.L)
			s.AwaitWaiters("a", 1)
			stuck := s.P.Faults.Once(s.Script(stage.LuaForget), redistest.Hold())
			cancel()
			require.True(s.T, stage.IsDone(gone.Within(stage.Promptly).Failure()))
			stuck.WaitHits(s.T, 1)
			s.AwaitWaiters("a", 0) // by the next attempt
			waiter := s.Start(s.T.Context(), s.L)
			s.AwaitWaiters("a", 1)
			return stuck, func() { s.Leave(section, s.Far); waiter.Leave() }
		},
		"ForceUnlock": func(s *stage.Scene) (*redistest.Rule, func()) {
			section := s.LockBy()
			stuck := s.P.Faults.Once(s.Script(stage.LuaBreak), redistest.Hold())
			require.NoError(s.T, s.Call(func() error { return s.L.ForceUnlock(s.T.Context()) }))
			s.Lost(section)
			section = s.LockBy()
			return stuck, func() { s.Leave(section, s.Far) }
		},
		"State": func(s *stage.Scene) (*redistest.Rule, func()) {
			stuck := s.P.Faults.Once(s.Script(stage.LuaState), redistest.Hold())
			_, err := s.L.State(s.T.Context())
			require.NoError(s.T, err)
			section := s.Enter(s.T.Context(), s.L)
			return stuck, func() { s.Leave(section, s.L) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := stage.OnShared(t).Scene()
			stuck, goOn := act(s)
			s.Unchanged(func() { require.NotEmpty(t, stuck.Release(t)) })
			goOn()
			s.RequireFree("a")
		})
	}
}

func TestCountOfALateCommandIsSetRightWithinAThirdOfTheTTL(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for what, act := range map[string]func(s *stage.Scene) (stuck *redistest.Rule, outer context.Context, count int){
		"of an entry": func(s *stage.Scene) (*redistest.Rule, context.Context, int) {
			outer := s.Enter(s.T.Context(), s.L)
			return s.GiveUp(outer, stage.LuaRenew, 0), outer, 1
		},
		"of an exit": func(s *stage.Scene) (*redistest.Rule, context.Context, int) {
			outer, inner := s.Nested()
			stuck := s.P.Faults.Once(s.Script(stage.LuaRenew), redistest.Hold())
			s.Leave(inner, s.L)
			inner = s.Enter(outer, s.L)
			s.T.Cleanup(func() { _ = s.L.Unlock(inner) })
			return stuck, outer, 2
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := stage.Apart(t).Scene(relock.WithTTL(ttl))
			stuck, outer, count := act(s)
			stuck.Release(t)
			s.Within(ttl/3+stage.AtOnce+s.Lateness()).AwaitCount("a", count)
			require.True(t, s.L.Held(outer))
			s.Leave(outer, s.L)
		})
	}
}

func TestALateLockThatNobodyWantsIsTakenBackEarly(t *testing.T) {
	for what, act := range map[string]func(s *stage.Scene) *redistest.Rule{
		"given up": func(s *stage.Scene) *redistest.Rule { return s.GiveUp(s.T.Context(), stage.LuaAcquire, 0) },
		"the first attempt of a Lock that was unlocked": func(s *stage.Scene) *redistest.Rule {
			stuck := s.P.Faults.Once(s.Script(stage.LuaAcquire), redistest.Hold())
			s.Leave(s.Enter(s.T.Context(), s.L), s.L)
			return stuck
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := stage.Apart(t).Scene() // 30 s
			forgotten := s.Counter(s.P, stage.LuaForget)
			stuck := act(s)
			redistest.Eventually(t, s.Limit, func() bool { return forgotten() >= 2 }, "forgotten, more than once")
			s.Within(0).RequireFree("a")
			require.NotEmpty(t, stuck.Release(t)) // takes the lock, for nobody
			s.RequireFree("a")
		})
	}
}

func TestALateJoinOfTheQueueThatNobodyTakesBackIsPassedOver(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for _, heard := range []bool{false, true} { // by its client, for another waiter
		t.Run(fmt.Sprintf("heard %t", heard), func(t *testing.T) {
			s := stage.Apart(t).Scene(relock.WithTTL(ttl))
			section := s.LockBy()
			stuck := s.GiveUp(t.Context(), stage.LuaAcquire, 1)
			given := time.Now()
			var stays *stage.Attempt
			if heard {
				stays = s.Start(t.Context(), s.L)
				s.AwaitWaiters("a", 1)
			}
			stage.SleepUntil(given.Add(ttl + 2200*time.Millisecond)) // cleanup and the subscription are over
			before := s.Waiters("a")
			stuck.Release(t)
			waiter := s.Start(t.Context(), s.Peer().NewLock("a"))
			redistest.Eventually(t, s.Limit, func() bool { return s.Waiters("a") >= before+1 }, "queued")
			s.Leave(section, s.Far)
			if heard {
				stays.Leave()
			}
			waiter.Leave()
			s.RequireFree("a")
		})
	}
}

func TestUnlocksThatAllHangFreeTheLockSoonAndTouchNothingLater(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	s := stage.OnShared(t).Scene(relock.WithTTL(ttl))
	section := s.Enter(t.Context(), s.L)
	stuck := s.P.Faults.On(s.Script(stage.LuaRelease), redistest.Hold())
	waiter := s.Start(t.Context(), s.Far)
	s.AwaitWaiters("a", 1)
	require.Error(t, s.Within(ttl+stage.Promptly).Call(func() error { return s.L.Unlock(section) }))
	mine := waiter.Section()
	s.Unchanged(func() { require.GreaterOrEqual(t, len(stuck.Release(t)), 2) })
	stuck.Remove()
	s.Leave(mine, s.Far)
	s.Within(0).RequireFree("a")
}

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
	for n := 0; ; n++ {
		p, other := w.Peer(), w.Peer()
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
