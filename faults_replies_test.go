package relock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What if a reply is lost, or a command runs late or twice?

// This chapter is about commands whose replies are lost, that run late, or that run more than once.

// scene is two processes and a lock.
type scene struct {
	*arena
	p, other *peer
	l, far   *relock.Lock // the same lock, in p and in other
}

func (w *arena) scene(options ...relock.Option) *scene {
	s := &scene{arena: w, p: w.peer(options...), other: w.peer(options...)}
	s.l, s.far = s.p.NewLock("a"), s.other.NewLock("a")
	return s
}

// lockBy takes the lock in other, so that p has to wait.
func (s *scene) lockBy() (section context.Context) { return s.enter(s.t.Context(), s.far) }

// nested enters twice.
func (s *scene) nested() (outer, inner context.Context) {
	outer = s.enter(s.t.Context(), s.l)
	return outer, s.enter(outer, s.l)
}

func TestALostReplyIsAskedForAgainAndCountsOnce(t *testing.T) {
	// Each does something as p, with lose before the command that is to lose its reply.
	for what, act := range map[string]func(s *scene, lose func(script string, skip int)){
		"of Lock": func(s *scene, lose func(string, int)) {
			lose(luaAcquire, 0)
			section := s.enter(s.t.Context(), s.l)
			s.requireCount("a", 1)
			s.leave(section, s.l)
		},
		"of Lock of a busy lock": func(s *scene, lose func(string, int)) {
			section := s.lockBy()
			lose(luaAcquire, 0)
			waiter := s.start(s.t.Context(), s.l)
			s.awaitWaiters("a", 1)
			s.leave(section, s.far)
			waiter.leave()
		},
		"of the call that queues": func(s *scene, lose func(string, int)) {
			section := s.lockBy()
			lose(luaAcquire, 1)
			waiter := s.start(s.t.Context(), s.l)
			s.awaitWaiters("a", 1)
			s.leave(section, s.far)
			waiter.leave()
		},
		"of a nested Lock": func(s *scene, lose func(string, int)) {
			outer := s.enter(s.t.Context(), s.l)
			lose(luaRenew, 0)
			inner := s.enter(outer, s.l)
			s.requireCount("a", 2)
			require.Equal(s.t, 2, s.l.Count(inner))
			s.leave(inner, s.l)
			s.leave(outer, s.l)
		},
		"of an inner Unlock": func(s *scene, lose func(string, int)) {
			outer, inner := s.nested()
			lose(luaRenew, 0)
			s.leave(inner, s.l)
			s.requireCount("a", 1)
			require.True(s.t, s.l.Held(outer))
			s.leave(outer, s.l)
		},
		"of the last Unlock": func(s *scene, lose func(string, int)) {
			section := s.enter(s.t.Context(), s.l)
			lose(luaRelease, 0)
			s.leave(section, s.l)
			require.ErrorIs(s.t, context.Cause(section), relock.ErrReleased)
		},
		"of the last Unlock, with a waiter": func(s *scene, lose func(string, int)) {
			section := s.enter(s.t.Context(), s.l)
			waiter := s.start(s.t.Context(), s.far)
			s.awaitWaiters("a", 1)
			lose(luaRelease, 0)
			s.leave(section, s.l)
			mine := waiter.section()
			s.requireCount("a", 1)
			s.leave(mine, s.far)
		},
		"of Token": func(s *scene, lose func(string, int)) {
			section := s.enter(s.t.Context(), s.l)
			lose(luaToken, 0)
			token := s.draw(section, s.l)
			state, err := s.far.State(s.t.Context())
			require.NoError(s.t, err)
			require.Equal(s.t, state.Token, token, "the last one counts")
			s.leave(section, s.l)
		},
		"of Extend": func(s *scene, lose func(string, int)) {
			l := s.p.NewLock("a", relock.WithFixedLease(5*time.Second))
			section := s.enter(s.t.Context(), l)
			lose(luaRenew, 0)
			require.NoError(s.t, s.call(func() error { return l.Extend(section, 10*time.Second) }))
			require.Greater(s.t, s.lease("a"), 7*time.Second)
			require.LessOrEqual(s.t, s.lease("a"), 10*time.Second)
			s.requireCount("a", 1)
			s.leave(section, l)
		},
		"of a Lock that was given up": func(s *scene, lose func(string, int)) {
			section := s.lockBy()
			ctx, cancel := context.WithCancel(s.t.Context())
			gone := s.start(ctx, s.l)
			s.awaitWaiters("a", 1)
			lose(luaForget, 0)
			cancel()
			require.True(s.t, isDone(gone.within(promptly).failure()))
			s.awaitWaiters("a", 0)
			s.leave(section, s.far)
		},
		"of State": func(s *scene, lose func(string, int)) {
			section := s.enter(s.t.Context(), s.l)
			lose(luaState, 0)
			state, err := s.l.State(s.t.Context())
			require.NoError(s.t, err)
			require.Equal(s.t, 1, state.Count)
			s.leave(section, s.l)
		},
		"of ForceUnlock": func(s *scene, lose func(string, int)) {
			section := s.lockBy()
			waiter := s.start(s.t.Context(), s.peer().NewLock("a"))
			s.awaitWaiters("a", 1)
			lose(luaBreak, 0)
			require.NoError(s.t, s.call(func() error { return s.l.ForceUnlock(s.t.Context()) }))
			require.Equal(s.t, relock.LossTaken, s.lost(section))
			require.ErrorIs(s.t, s.far.Unlock(section), relock.ErrLockLost)
			mine := waiter.section()
			s.requireCount("a", 1)
			s.leave(mine, waiter.lock)
		},
	} {
		t.Run(what, func(t *testing.T) {
			for name, how := range breaks {
				t.Run(name, func(t *testing.T) {
					s := onShared(t).scene()
					var calls func() int
					var rule *redistest.Rule
					act(s, func(script string, skip int) {
						calls = s.counter(s.p, script)
						rule = s.p.faults.Once(s.script(script), redistest.DropReply(how)).Skip(skip)
					})
					rule.WaitHits(t, 1)
					redistest.Eventually(t, s.limit, func() bool { return calls() >= 2 }, "asked again")
					s.requireFree("a")
				})
			}
		})
	}
}

func TestALostReplyOfARenewalIsNoLoss(t *testing.T) {
	const ttl = 1200 * time.Millisecond
	w := apart(t)
	var sections []context.Context
	var locks []*relock.Lock
	for _, how := range breaks {
		p := w.peer(relock.WithTTL(ttl))
		l := p.NewLock(fmt.Sprint(how))
		locks, sections = append(locks, l), append(sections, w.enter(t.Context(), l))
		p.faults.On(w.script(luaRenew), redistest.DropReply(how)).Times(2)
	}
	sleepUntil(time.Now().Add(2 * ttl))
	for i, l := range locks {
		require.NoError(t, sections[i].Err())
		require.Greater(t, l.Remaining(sections[i]), ttl/4)
		w.leave(sections[i], l)
	}
}

func TestAnUnlockThatIsNeverAnsweredSaysSoAndLeavesTheLockFree(t *testing.T) {
	const ttl = 800 * time.Millisecond
	s := onShared(t).scene(relock.WithTTL(ttl))
	section := s.enter(t.Context(), s.l)
	s.p.faults.On(s.script(luaRelease), redistest.DropReply(redistest.EOF))
	err := s.within(ttl + 200*time.Millisecond).call(func() error { return s.l.Unlock(section) })
	require.ErrorContains(t, err, "not confirmed")
	require.NotErrorIs(t, err, relock.ErrLockLost, "it was released, and never lost")
	s.within(0).requireFree("a")
	require.ErrorIs(t, s.l.Unlock(section), relock.ErrNotHeld)
}

// giveUp begins to lock, lets the script of the call hang on the wire, and cancels.
func (s *scene) giveUp(ctx context.Context, script string, skip int) (stuck *redistest.Rule) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck = s.p.faults.Once(s.script(script), redistest.Hold()).Skip(skip)
	a := s.start(ctx, s.l)
	stuck.WaitHits(s.t, 1)
	require.True(s.t, a.waits())
	cancel()
	require.True(s.t, isDone(a.within(promptly).failure()), "%v", a.err)
	require.Equal(s.t, ctx, a.ctx, "the context comes back as it was")
	return stuck
}

// unchanged runs f, and fails the test if the owner of the lock or the queue are others then.
func (s *scene) unchanged(f func()) {
	s.t.Helper()
	hold, count := s.owner("a"), s.count("a")
	queue := s.queue("a")
	f()
	require.Equal(s.t, hold, s.owner("a"))
	require.Equal(s.t, count, s.count("a"))
	require.Equal(s.t, queue, s.queue("a"))
}

func TestALateCommandTouchesNothingThatCameLater(t *testing.T) {
	// Each leaves the lock with p or other, and returns what is stuck, and how to go on.
	for what, act := range map[string]func(s *scene) (stuck *redistest.Rule, goOn func()){
		"Lock, when the lock is taken": func(s *scene) (*redistest.Rule, func()) {
			stuck := s.giveUp(s.t.Context(), luaAcquire, 0)
			outer, inner := s.nested()
			return stuck, func() { s.leave(inner, s.l); s.leave(outer, s.l) }
		},
		"a nested Lock, in a later hold": func(s *scene) (*redistest.Rule, func()) {
			outer := s.enter(s.t.Context(), s.l)
			stuck := s.giveUp(outer, luaRenew, 0)
			s.leave(outer, s.l)
			section := s.enter(s.t.Context(), s.l)
			return stuck, func() { s.leave(section, s.l) }
		},
		"a nested Lock, when the lock is free": func(s *scene) (*redistest.Rule, func()) {
			outer := s.enter(s.t.Context(), s.l)
			stuck := s.giveUp(outer, luaRenew, 0)
			s.leave(outer, s.l)
			return stuck, func() {}
		},
		"an inner Unlock, in a later hold": func(s *scene) (*redistest.Rule, func()) {
			outer, inner := s.nested()
			stuck := s.p.faults.Once(s.script(luaRenew), redistest.Hold())
			s.leave(inner, s.l) // the first attempt hangs, the second is answered
			s.leave(outer, s.l)
			outer, inner = s.nested()
			return stuck, func() { s.leave(inner, s.l); s.leave(outer, s.l) }
		},
		"the last Unlock": func(s *scene) (*redistest.Rule, func()) {
			section := s.enter(s.t.Context(), s.l)
			stuck := s.p.faults.Once(s.script(luaRelease), redistest.Hold())
			s.leave(section, s.l)
			section = s.enter(s.t.Context(), s.l)
			return stuck, func() { s.leave(section, s.l) }
		},
		"a Lock that was given up": func(s *scene) (*redistest.Rule, func()) {
			section := s.lockBy()
			ctx, cancel := context.WithCancel(s.t.Context())
			gone := s.start(ctx, s.l)
			s.awaitWaiters("a", 1)
			stuck := s.p.faults.Once(s.script(luaForget), redistest.Hold())
			cancel()
			require.True(s.t, isDone(gone.within(promptly).failure()))
			stuck.WaitHits(s.t, 1)
			s.awaitWaiters("a", 0) // by the next attempt
			waiter := s.start(s.t.Context(), s.l)
			s.awaitWaiters("a", 1)
			return stuck, func() { s.leave(section, s.far); waiter.leave() }
		},
		"ForceUnlock": func(s *scene) (*redistest.Rule, func()) {
			section := s.lockBy()
			stuck := s.p.faults.Once(s.script(luaBreak), redistest.Hold())
			require.NoError(s.t, s.call(func() error { return s.l.ForceUnlock(s.t.Context()) }))
			s.lost(section)
			section = s.lockBy()
			return stuck, func() { s.leave(section, s.far) }
		},
		"State": func(s *scene) (*redistest.Rule, func()) {
			stuck := s.p.faults.Once(s.script(luaState), redistest.Hold())
			_, err := s.l.State(s.t.Context())
			require.NoError(s.t, err)
			section := s.enter(s.t.Context(), s.l)
			return stuck, func() { s.leave(section, s.l) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := onShared(t).scene()
			stuck, goOn := act(s)
			s.unchanged(func() { require.Len(t, stuck.Release(t), 1) })
			goOn()
			s.requireFree("a")
		})
	}
}

func TestCountOfALateCommandIsSetRightWithinAThirdOfTheTTL(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for what, act := range map[string]func(s *scene) (stuck *redistest.Rule, outer context.Context, count int){
		"of an entry": func(s *scene) (*redistest.Rule, context.Context, int) {
			outer := s.enter(s.t.Context(), s.l)
			return s.giveUp(outer, luaRenew, 0), outer, 1
		},
		"of an exit": func(s *scene) (*redistest.Rule, context.Context, int) {
			outer, inner := s.nested()
			stuck := s.p.faults.Once(s.script(luaRenew), redistest.Hold())
			s.leave(inner, s.l)
			inner = s.enter(outer, s.l)
			s.t.Cleanup(func() { _ = s.l.Unlock(inner) })
			return stuck, outer, 2
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := apart(t).scene(relock.WithTTL(ttl))
			stuck, outer, count := act(s)
			stuck.Release(t)
			s.within(ttl/3+atOnce+s.lateness()).awaitCount("a", count)
			require.True(t, s.l.Held(outer))
			s.leave(outer, s.l)
		})
	}
}

func TestALateLockThatNobodyWantsIsTakenBackEarly(t *testing.T) {
	for what, act := range map[string]func(s *scene) *redistest.Rule{
		"given up": func(s *scene) *redistest.Rule { return s.giveUp(s.t.Context(), luaAcquire, 0) },
		"the first attempt of a Lock that was unlocked": func(s *scene) *redistest.Rule {
			stuck := s.p.faults.Once(s.script(luaAcquire), redistest.Hold())
			s.leave(s.enter(s.t.Context(), s.l), s.l)
			return stuck
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := apart(t).scene() // 30 s
			forgotten := s.counter(s.p, luaForget)
			stuck := act(s)
			redistest.Eventually(t, s.limit, func() bool { return forgotten() >= 2 }, "forgotten, more than once")
			s.within(0).requireFree("a")
			require.Len(t, stuck.Release(t), 1) // takes the lock, for nobody
			s.requireFree("a")
		})
	}
}

func TestALateJoinOfTheQueueThatNobodyTakesBackIsPassedOver(t *testing.T) {
	const ttl = 200 * time.Millisecond
	for _, heard := range []bool{false, true} { // by its client, for another waiter
		t.Run(fmt.Sprintf("heard %t", heard), func(t *testing.T) {
			s := apart(t).scene(relock.WithTTL(ttl))
			section := s.lockBy()
			stuck := s.giveUp(t.Context(), luaAcquire, 1)
			given := time.Now()
			var stays *attempt
			if heard {
				stays = s.start(t.Context(), s.l)
				s.awaitWaiters("a", 1)
			}
			sleepUntil(given.Add(ttl + 2200*time.Millisecond)) // cleanup and the subscription are over
			before := s.waiters("a")
			stuck.Release(t)
			waiter := s.start(t.Context(), s.peer().NewLock("a"))
			redistest.Eventually(t, s.limit, func() bool { return s.waiters("a") >= before+1 }, "queued")
			s.leave(section, s.far)
			if heard {
				stays.leave()
			}
			waiter.leave()
			s.requireFree("a")
		})
	}
}

func TestUnlocksThatAllHangFreeTheLockSoonAndTouchNothingLater(t *testing.T) {
	const ttl = 900 * time.Millisecond
	s := onShared(t).scene(relock.WithTTL(ttl))
	section := s.enter(t.Context(), s.l)
	stuck := s.p.faults.On(s.script(luaRelease), redistest.Hold())
	waiter := s.start(t.Context(), s.far)
	s.awaitWaiters("a", 1)
	require.Error(t, s.within(ttl+promptly).call(func() error { return s.l.Unlock(section) }))
	mine := waiter.section()
	s.unchanged(func() { require.GreaterOrEqual(t, len(stuck.Release(t)), 2) })
	stuck.Remove()
	s.leave(mine, s.far)
	s.within(0).requireFree("a")
}

// story is two clients and a waiter: what they do, and that it ends well.
func (w *arena) story(p, other *peer, name string) {
	w.t.Helper()
	l := p.NewLock(name)
	outer := w.enter(w.t.Context(), l)
	inner := w.enter(outer, l)
	w.requireCount(name, 2)
	token := w.draw(inner, l)
	waiter := w.start(w.t.Context(), other.NewLock(name))
	w.awaitWaiters(name, 1)
	w.leave(inner, l)
	w.requireCount(name, 1)
	require.True(w.t, waiter.waits())
	w.leave(outer, l)
	mine := waiter.section()
	w.requireCount(name, 1)
	require.Greater(w.t, w.draw(mine, waiter.lock), token)

	ctx, cancel := context.WithCancel(w.t.Context())
	gone := w.start(ctx, l)
	w.awaitWaiters(name, 1)
	cancel()
	require.True(w.t, isDone(gone.within(promptly).failure()))
	w.awaitWaiters(name, 0)
	state, err := l.State(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, 1, state.Count)
	require.NoError(w.t, w.call(func() error { return l.ForceUnlock(w.t.Context()) }))
	if err := waiter.lock.Unlock(mine); err != nil { // an attempt without an answer may have freed the lock
		require.ErrorIs(w.t, err, relock.ErrLockLost)
	}
	w.requireFree(name)
}

// ofInterest matches all commands but the handshake of a connection.
var ofInterest = redistest.Named("EVALSHA", "EVAL", "SUBSCRIBE", "UNSUBSCRIBE")

func TestAConnectionMayBreakAtAnyCommandOfTheStory(t *testing.T) {
	w := onShared(t)
	for _, fault := range []struct {
		name   string
		match  redistest.Match
		action redistest.Action
	}{
		{"before it", ofInterest, redistest.CutBefore(redistest.EOF)},
		{"after it", ofInterest, redistest.DropReply(redistest.EOF)},
		// A silent SUBSCRIBE takes seconds to find out, and has a test of its own.
		{"after it, silently", w.script(scriptNames...), redistest.DropReply(redistest.Silence)},
	} {
		for _, mine := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, mine %t", fault.name, mine), func(t *testing.T) {
				w := w.in(t)
				for n := 0; ; n++ {
					p, other := w.peer(), w.peer()
					victim := other
					if mine {
						victim = p
					}
					rule := victim.faults.Once(fault.match, fault.action).Skip(n)
					w.story(p, other, fmt.Sprint(t.Name(), n))
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
	w := onOwn(t)
	for n := 0; ; n++ {
		p, other := w.peer(), w.peer()
		sent := 0
		var mu sync.Mutex
		flush := redistest.Before(func([]string) {
			mu.Lock()
			defer mu.Unlock()
			if sent++; sent == n+1 {
				_ = w.plain.ScriptFlush(context.Background()).Err()
			}
		})
		p.faults.On(ofInterest, flush)
		other.faults.On(ofInterest, flush)
		w.story(p, other, fmt.Sprint("a", n))
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
			w := onShared(t)
			p, other := w.peer(), w.peer()
			for _, victim := range []*peer{p, other} {
				victim.faults.On(w.script(scriptNames...), redistest.Duplicate(times, redistest.First))
			}
			w.story(p, other, "a")
		})
	}
}
