package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if a nested entry or exit is slow, refused or lost?

// This file is about nested entries and exits whose commands are slow, refused or lost. Whatever
// happens to a command, the count in the store is right again soon, and decides nothing meanwhile.

func TestANestedEntryWhoseSectionIsUnlockedMeanwhileIsErrReleased(t *testing.T) {
	for name, act := range map[string]stage.Action{
		"the store is silent":                   stage.Silence,
		"the entry comes behind the exit":       stage.Delay(time.Second, 0),
		"the entry comes before the exit":       stage.Delay(0, time.Second),
		"the answer to the entry does not come": stage.Mute,
		"the answer comes all the same":         answerLate(time.Second),
	} {
		for _, detached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, detached %t", name, detached), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					var r stage.Recorder
					m := w.NewClient(relock.WithTTL(5*time.Minute), relock.WithHooks(r.Hooks()))
					l := m.NewLock("a")
					section := w.Enter(t.Context(), l)
					ctx := section
					if detached {
						ctx = context.WithoutCancel(section)
					}
					m.Link.On(act, stage.CmdEnter)
					calls := []*stage.Attempt{w.Start(ctx, l), w.Begin(ctx, l.TryLock), w.Begin(ctx, stage.TryFor(l, time.Hour))}
					for _, call := range calls {
						require.True(t, call.Waits())
					}
					w.Leave(section, l)
					for _, call := range calls {
						err := call.Failure()
						require.ErrorIs(t, err, relock.ErrReleased)
						require.NotErrorIs(t, err, relock.ErrLockLost)
						if name != "the answer comes all the same" {
							require.Zero(t, call.Took())
						}
						var failed *relock.OpError
						require.ErrorAs(t, err, &failed)
						require.Equal(t, "a", failed.Name)
					}
					m.Link.Heal()
					stage.Pass(10 * time.Second)
					w.RequireFree("a")
					require.Empty(t, stage.EventsOf[event.Lost](&r))
					require.Len(t, stage.EventsOf[event.Released](&r), 1)
				})
			})
		}
	}
}

// answerLate makes the answer to a command come late, also if the caller does not want it any more.
func answerLate(d time.Duration) stage.Action {
	return func(_ context.Context, _ *stage.Fault, run func() error) error {
		err := run()
		<-time.After(d)
		return err
	}
}

func TestANestedEntryUnderAnEntryThatIsLeftMeanwhileIsErrReleased(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		for _, act := range []stage.Action{stage.Silence, stage.Delay(0, time.Second)} {
			m.Link.Once(act, stage.CmdEnter)
			call := w.Start(context.WithoutCancel(inner), l)
			w.Leave(inner, l)
			require.ErrorIs(t, call.Failure(), relock.ErrReleased)
			m.Link.Heal()
			stage.Pass(time.Second)
			require.True(t, l.Held(outer), "the hold goes on")
			require.Equal(t, 1, l.Count(outer))
			w.RequireCount("a", 1)
			inner = w.Enter(outer, l)
		}
		w.Leave(inner, l)
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestAnExitIsCountedThoughTheStoreIsSilent(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		one := w.Enter(t.Context(), l)
		two := w.Enter(one, l)
		m.Link.Cut()
		three := w.Start(one, l)
		exit := w.Begin(two, stage.Unlock(l))
		require.ErrorIs(t, exit.Failure(), relock.ErrUnavailable)
		require.Equal(t, 10*time.Second, exit.Took())
		require.True(t, three.Waits())
		require.Equal(t, 1, l.Count(one))
		m.Link.Heal()
		deepest := three.Section()
		require.Equal(t, 2, l.Count(deepest))
		stage.Pass(5 * time.Minute / 3)
		require.Equal(t, 2, w.Count("a"), "the store has the count of the process")
		w.Leave(deepest, l)
		w.Leave(one, l)
		w.RequireFree("a")
	})
}

func TestAnExitThatIsNotConfirmedDuringARenewalIsSentAgainAfterIt(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		m.Link.Once(stage.Delay(0, 10*time.Second), stage.CmdRenew)
		stage.Pass(5*time.Minute/3 + time.Second) // the renewal has the old count
		m.Link.Once(stage.Refuse(stage.ErrBroken), stage.CmdEnter)
		require.Error(t, l.Unlock(inner))
		stage.Pass(8 * time.Second)
		w.RequireCount("a", 2)
		stage.Pass(2 * time.Second)
		w.RequireCount("a", 1)
		w.Leave(outer, l)
	})
}

func TestALastExitIsMadeUpForLongBeforeTheLeaseEnds(t *testing.T) {
	for name, act := range map[string]stage.Action{
		"silent": stage.Silence, "mute": stage.Mute, "refused": stage.Refuse(stage.ErrRefused), "the answer is lost": stage.LoseAnswer(stage.ErrRefused),
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(5 * time.Minute))
				l := m.NewLock("a")
				section := w.Enter(t.Context(), l)
				m.Link.On(act)
				nested := w.Start(context.WithoutCancel(section), l)
				other := w.Start(t.Context(), w.NewClient().NewLock("a"))
				err := l.Unlock(section)
				require.ErrorContains(t, err, "not confirmed by the store, so the lock is free within 5m0s at the latest")
				if name == "silent" || name == "mute" {
					require.ErrorIs(t, nested.Failure(), relock.ErrReleased)
				}
				m.Link.Heal()
				stage.Pass(10 * time.Second)
				require.False(t, other.Waits())
			})
		})
	}
}

func TestANestedCallThatTheStoreDoesNotAnswerIsNotErrLocked(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		m.Link.Cut(stage.CmdEnter, stage.CmdRenew)
		first := w.Start(section, l)
		for name, lock := range map[string]stage.Locking{"Lock": l.Lock, "TryLock": l.TryLock, "TryLockFor": stage.TryFor(l, time.Minute)} {
			ctx, cancel := context.WithTimeout(section, 1500*time.Millisecond)
			call := w.Begin(ctx, lock)
			err := call.Failure()
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.ErrorIs(t, err, relock.ErrUnavailable, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s: the holder has the lock itself", name)
			require.Equal(t, 1500*time.Millisecond, call.Took(), name)
		}
		_, err := l.TryLockFor(section, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the wait is over")
		require.NotErrorIs(t, err, relock.ErrLocked)
		m.Link.Heal()
		require.NoError(t, l.Unlock(first.Section()))
		stage.Pass(100 * time.Second) // until the next renewal
		w.RequireCount("a", 1)
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestANestedCallWhoseLeaseEndsInSilenceIsErrLockLost(t *testing.T) {
	for name, detached := range map[string]bool{"in its section": false, "under a context that does not end with it": true} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				m := w.NewClient(relock.WithTTL(time.Second), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				for range 20 { // the watchdog and the call find out at the same time
					for _, lock := range []stage.Locking{l.Lock, l.TryLock, stage.TryFor(l, time.Minute)} {
						section := w.Enter(t.Context(), l)
						m.Link.Cut()
						ctx := section
						if detached {
							ctx = context.WithoutCancel(section)
						}
						_, err := lock(ctx)
						require.ErrorIs(t, err, relock.ErrLockLost)
						require.NotErrorIs(t, err, context.DeadlineExceeded, "nobody has set a deadline")
						finished := stage.EventsOf[event.AcquireFinished](&r)
						require.Equal(t, event.OutcomeLost, finished[len(finished)-1].Outcome)
						m.Link.Heal()
						require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
						stage.Pass(time.Minute)
						w.RequireFree("a")
					}
				}
			})
		})
	}
}

func TestANestedEntryIsAskedForOnceWhateverTheLease(t *testing.T) {
	const ttl, trip = 300 * time.Millisecond, 45 * time.Millisecond
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		m.Link.On(stage.Delay(trip/2, trip-trip/2))
		for _, lock := range []stage.Locking{l.Lock, l.TryLock, stage.TryFor(l, time.Minute)} {
			for range 5 {
				m.Link.Reset()
				entry := w.Begin(outer, lock)
				inner := entry.Section()
				require.Equal(t, trip, entry.Took())
				require.Equal(t, 1, m.Link.Sent(stage.CmdEnter))
				w.RequireCount("a", 2)
				exit := w.Begin(inner, stage.Unlock(l))
				require.NoError(t, exit.Failure())
				require.Equal(t, trip, exit.Took())
				w.RequireCount("a", 1)
				stage.Pass(17 * time.Millisecond) // at another part of the lease
			}
		}
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestARenewalWithoutAnAnswerIsSentAgainAThirdOfTheTTLLater(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		const ttl = time.Minute
		m, p := w.NewTape(relock.WithTTL(ttl))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		p.Keep(stage.CmdRenew)
		stage.Pass(ttl / 3)
		w.Leave(inner, l)
		w.RequireCount("a", 1)
		require.Equal(t, 1, p.Play()) // the renewal arrives behind the exit, and its answer is lost
		w.RequireCount("a", 2)
		stage.Pass(ttl / 3)
		w.RequireCount("a", 1)
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestAnInnerExitThatIsRefusedIsToldLater(t *testing.T) {
	for name, act := range map[string]stage.Action{"refused": stage.Refuse(stage.ErrRefused), "silent": stage.Silence} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithTTL(time.Minute))
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				inner := w.Enter(outer, l)
				third := w.Enter(relock.WithSection(t.Context(), outer), l)
				bad := m.Link.On(act, stage.CmdEnter, stage.CmdRenew)
				for _, section := range []context.Context{third, inner} {
					err := l.Unlock(section)
					require.ErrorContains(t, err, "not confirmed by the store; the entry is left, and the count will be sent again")
					require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
				}
				require.Equal(t, 1, l.Count(outer))
				stage.Pass(10 * time.Second)
				w.RequireCount("a", 3)
				require.Less(t, bad.Hits.Load(), int64(60), "with pauses that grow")
				bad.End()
				stage.Pass(time.Second)
				w.RequireCount("a", 1)
				m.Link.Reset()
				stage.Pass(5 * time.Second)
				require.Zero(t, m.Link.Sent(), "once told, nothing more is sent")
				w.Leave(outer, l)
				w.RequireFree("a")
			})
		})
	}
}

// The store refuses an inner exit, and is told of the exit again after pauses.
func TestAnInnerExitThatIsToldAgain(t *testing.T) {
	begun := func(t *testing.T, w *stage.World) (m *stage.Member, l *relock.Lock, outer context.Context, cancel func()) {
		t.Helper()
		m = w.NewClient(relock.WithTTL(time.Minute))
		l = m.NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		outer = w.Enter(request, l)
		inner := w.Enter(outer, l)
		m.Link.On(stage.Refuse(stage.ErrRefused), stage.CmdEnter, stage.CmdRelease, stage.CmdRenew)
		require.ErrorIs(t, l.Unlock(inner), stage.ErrRefused)
		stage.Pass(10 * time.Second)
		return m, l, outer, cancel
	}
	t.Run("holds up no Close", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m, l, outer, _ := begun(t, w)
			closing := time.Now()
			require.NoError(t, m.Close())
			require.Zero(t, time.Since(closing))
			require.ErrorIs(t, l.Unlock(outer), stage.ErrRefused)
			stage.Pass(time.Minute)
			w.RequireFree("a")
		})
	})
	t.Run("finds a loss", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m, l, outer, _ := begun(t, w)
			w.Store.Lose("a")
			m.Link.Heal()
			took, cause := w.Ends(outer)
			require.ErrorIs(t, cause, relock.ErrLockLost)
			require.LessOrEqual(t, took, time.Second, "long before the next renewal")
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		})
	})
	t.Run("renews nothing that nobody wants", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m, l, outer, cancel := begun(t, w)
			cancel()
			left := w.Lease("a")
			m.Link.Heal()
			stage.Pass(time.Second)
			w.RequireCount("a", 1)
			require.LessOrEqual(t, w.Lease("a"), left-time.Second, "a lock outlives its request by one TTL at most")
			stage.Pass(left)
			w.RequireFree("a")
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		})
	})
}

func TestAnInnerUnlockGivesUpAtTheEndOfItsLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(3 * time.Second))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		m.Link.Cut(stage.CmdEnter)
		exit := w.Begin(inner, stage.Unlock(l))
		err := exit.Failure()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled, "nobody has cancelled anything")
		require.LessOrEqual(t, exit.Took(), 3*time.Second)
		require.True(t, l.Held(outer))
		stage.Pass(2 * time.Second)
		require.Equal(t, 1, w.Count("a"), "a renewal tells the count")
		m.Link.Heal()
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestACommandThatIsSentTwiceCountsOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		m.Link.On(stage.SendTwice, stage.CmdWait, stage.CmdTry, stage.CmdEnter, stage.CmdRelease, stage.CmdToken)
		for range 3 {
			outer := w.Enter(t.Context(), l)
			inner := w.Enter(outer, l)
			w.RequireCount("a", 2)
			one, err := l.Token(inner)
			require.NoError(t, err)
			two, err := l.Token(outer)
			require.NoError(t, err)
			require.Equal(t, one, two)
			w.Leave(inner, l)
			w.RequireCount("a", 1)
			require.NoError(t, l.Unlock(outer), "an exit that finds nothing was its own first attempt")
			w.RequireFree("a")
		}
		require.Empty(t, stage.EventsOf[event.Lost](&r))
		require.Len(t, stage.EventsOf[event.Released](&r), 3)
	})
}

// The store may run the commands of two goroutines in any order. Commands of callers are in
// TestACommandThatMeetsAnUnlockIsNoLoss.
func TestARenewalThatComesBehindTheLastExitIsNoLoss(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		late := m.Link.On(slowly(time.Second), stage.CmdRenew)
		stage.Pass(relock.DefaultTTL / 3)
		require.EqualValues(t, 1, late.Hits.Load())
		late.End()
		m.Link.On(stage.Delay(500*time.Millisecond, time.Second), stage.CmdRelease)
		w.Leave(section, l)
		stage.Pass(2 * time.Second)
		w.RequireFree("a")
		require.Empty(t, stage.EventsOf[event.Lost](&r))
		require.Empty(t, stage.EventsOf[event.Renewed](&r))
		require.Len(t, stage.EventsOf[event.Released](&r), 1)
	})
}

// leaveAround enters "a", "b" and "c" together inside outer, a section of "c", and leaves the
// three. leaveAround runs last when the exits of "a" and "b" are in flight and the inner exit of
// "c" is not sent yet.
func leaveAround(outer context.Context, w *stage.World, m *stage.Member, last func()) error {
	w.T.Helper()
	all := m.NewLocks([]string{"a", "b", "c"})
	inner := w.EnterAll(relock.WithSection(w.T.Context(), outer), all)
	m.Link.Once(stage.Delay(time.Second, 0), stage.CmdReleaseAll)
	unlocking := w.Begin(inner, func(ctx context.Context) (context.Context, error) { return ctx, all.Unlock(ctx) })
	last()
	return unlocking.Failure()
}

func TestAnInnerExitThatIsSentBehindTheLastOneFreesNothing(t *testing.T) {
	t.Run("the last exit is in flight", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			var r stage.Recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()))
			l := m.NewLock("c")
			outer := w.Enter(t.Context(), l)
			var last *stage.Attempt
			require.NoError(t, leaveAround(outer, w, m, func() {
				m.Link.Once(stage.Delay(2*time.Second, 0), stage.CmdRelease)
				last = w.Begin(outer, stage.Unlock(l))
			}))
			freed := w.Free("c")
			require.NoError(t, last.Failure())
			require.False(t, freed, "the last exit frees the lock")
			w.RequireFree("a", "b", "c")
			require.Empty(t, stage.EventsOf[event.Lost](&r))
		})
	})
	t.Run("the last exit has passed the lock on", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			m := w.NewPassing()
			l := m.NewLock("c")
			outer := w.Enter(t.Context(), l)
			next := w.Start(t.Context(), l)
			require.NoError(t, leaveAround(outer, w, m, func() {
				w.Leave(outer, l)
				stage.Keep(t, next.Section())
			}))
			_, err := w.NewClient().NewLock("c").TryLock(t.Context())
			stage.RequireRefusedBy(t, "c", err)
			next.Leave()
			w.RequireFree("a", "b", "c")
		})
	})
}

func TestAnInnerExitThatIsAnsweredBehindALossIsNoSecondLoss(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(relock.WithSection(t.Context(), outer), l)
		stage.Pass(time.Second) // the client watches the store
		m.Link.Once(stage.Delay(0, time.Second), stage.CmdEnter)
		unlocking := w.Begin(inner, stage.Unlock(l))
		w.Store.Lose("a")
		require.Equal(t, event.LossTaken, w.Lost(outer))
		require.NoError(t, unlocking.Failure(), "the store had the lock at the exit")
		m.Link.Reset()
		stage.Pass(2 * relock.DefaultTTL)
		require.Zero(t, m.Link.Sent(stage.CmdRenew), "a lost hold is not renewed")
		require.Len(t, stage.EventsOf[event.Lost](&r), 1)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

// slowly makes a command arrive late, whatever has become of its caller.
func slowly(d time.Duration) stage.Action {
	return func(_ context.Context, _ *stage.Fault, run func() error) error {
		late := time.After(d)
		<-late
		return run()
	}
}

func TestTokensThatAreDrawnAtOnceAreOne(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		draw := func(tokens chan<- int64) func() {
			return func() {
				n, err := l.Token(section)
				if err != nil {
					t.Errorf("token: %v", err)
				}
				tokens <- n
			}
		}
		tokens := make(chan int64, 2)
		m.Link.Once(stage.Delay(0, 2*time.Second), stage.CmdToken)
		go draw(tokens)()
		stage.Settle()
		go draw(tokens)() // its answer is the first
		first := <-tokens
		require.Equal(t, first, <-tokens)
		m.Link.Reset()
		draw(tokens)()
		require.EqualValues(t, 2, <-tokens)
		require.Zero(t, m.Link.Sent(), "later calls are local")
		w.Leave(section, l)
	})
}
