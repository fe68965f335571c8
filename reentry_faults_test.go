package relock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// What if a nested entry or exit is slow, refused or lost?

// This file is about nested entries and exits whose commands are slow, refused or lost. Whatever
// happens to a command, the count in the store is right again soon, and decides nothing meanwhile.

var errRefused = errors.New("MISCONF no snapshots")

func TestANestedEntryWhoseSectionIsUnlockedMeanwhileIsErrReleased(t *testing.T) {
	for name, act := range map[string]action{
		"the store is silent":                   silence,
		"the entry comes behind the exit":       delay(time.Second, 0),
		"the entry comes before the exit":       delay(0, time.Second),
		"the answer to the entry does not come": mute,
		"the answer comes all the same":         answerLate(time.Second),
	} {
		for _, detached := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, detached %t", name, detached), func(t *testing.T) {
				fake(t, func(t *testing.T, w *world) {
					var r recorder
					m := w.NewClient(relock.WithTTL(5*time.Minute), relock.WithHooks(r.Hooks()))
					l := m.NewLock("a")
					section := w.enter(t.Context(), l)
					ctx := section
					if detached {
						ctx = context.WithoutCancel(section)
					}
					m.link.on(act, cmdEnter)
					calls := []*attempt{w.start(ctx, l), w.begin(ctx, l.TryLock), w.begin(ctx, tryFor(l, time.Hour))}
					for _, call := range calls {
						require.True(t, call.waits())
					}
					w.leave(section, l)
					for _, call := range calls {
						err := call.failure()
						require.ErrorIs(t, err, relock.ErrReleased)
						require.NotErrorIs(t, err, relock.ErrLockLost)
						if name != "the answer comes all the same" {
							require.Zero(t, call.took())
						}
						var failed *relock.OpError
						require.ErrorAs(t, err, &failed)
						require.Equal(t, "a", failed.Name)
					}
					m.link.heal()
					pass(10 * time.Second)
					w.requireFree("a")
					require.Empty(t, eventsOf[relock.Lost](&r))
					require.Len(t, eventsOf[relock.Released](&r), 1)
				})
			})
		}
	}
}

// answerLate makes the answer to a command come late, also if the caller does not want it any more.
func answerLate(d time.Duration) action {
	return func(_ context.Context, _ *fault, run func() error) error {
		err := run()
		<-time.After(d)
		return err
	}
}

func TestANestedEntryUnderAnEntryThatIsLeftMeanwhileIsErrReleased(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		for _, act := range []action{silence, delay(0, time.Second)} {
			m.link.once(act, cmdEnter)
			call := w.start(context.WithoutCancel(inner), l)
			w.leave(inner, l)
			require.ErrorIs(t, call.failure(), relock.ErrReleased)
			m.link.heal()
			pass(time.Second)
			require.True(t, l.Held(outer), "the hold goes on")
			require.Equal(t, 1, l.Count(outer))
			w.requireCount("a", 1)
			inner = w.enter(outer, l) //nolint:fatcontext // in place of the one before
		}
		w.leave(inner, l)
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestAnExitIsCountedThoughTheStoreIsSilent(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		one := w.enter(t.Context(), l)
		two := w.enter(one, l)
		m.link.cut()
		three := w.start(one, l)
		exit := w.begin(two, unlock(l))
		require.ErrorIs(t, exit.failure(), relock.ErrUnavailable)
		require.Equal(t, 10*time.Second, exit.took())
		require.True(t, three.waits())
		require.Equal(t, 1, l.Count(one))
		m.link.heal()
		deepest := three.section()
		require.Equal(t, 2, l.Count(deepest))
		pass(2 * time.Second)
		require.Equal(t, 2, w.count("a"), "the store has the count of the process")
		w.leave(deepest, l)
		w.leave(one, l)
		w.requireFree("a")
	})
}

func TestALastExitIsMadeUpForLongBeforeTheLeaseEnds(t *testing.T) {
	for name, act := range map[string]action{
		"silent": silence, "mute": mute, "refused": refuse(errRefused), "the answer is lost": loseAnswer(errRefused),
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(5 * time.Minute))
				l := m.NewLock("a")
				section := w.enter(t.Context(), l)
				m.link.on(act)
				nested := w.start(context.WithoutCancel(section), l)
				other := w.start(t.Context(), w.NewClient().NewLock("a"))
				err := l.Unlock(section)
				require.ErrorContains(t, err, "not confirmed by the store, so the lock is free within 5m0s at the latest")
				if name == "silent" || name == "mute" {
					require.ErrorIs(t, nested.failure(), relock.ErrReleased)
				}
				m.link.heal()
				pass(10 * time.Second)
				require.False(t, other.waits())
			})
		})
	}
}

func TestANestedCallThatTheStoreDoesNotAnswerIsNotErrLocked(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		m.link.cut(cmdEnter, cmdRenew)
		first := w.start(section, l)
		for name, lock := range map[string]locking{"Lock": l.Lock, "TryLock": l.TryLock, "TryLockFor": tryFor(l, time.Minute)} {
			ctx, cancel := context.WithTimeout(section, 5*time.Second)
			call := w.begin(ctx, lock)
			err := call.failure()
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.ErrorIs(t, err, relock.ErrUnavailable, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s: the holder has the lock itself", name)
			require.Equal(t, 5*time.Second, call.took(), name)
		}
		_, err := l.TryLockFor(section, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the wait is over")
		require.NotErrorIs(t, err, relock.ErrLocked)
		m.link.heal()
		require.NoError(t, l.Unlock(first.section()))
		pass(2 * time.Second)
		w.requireCount("a", 1)
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestANestedCallWhoseLeaseEndsInSilenceIsErrLockLost(t *testing.T) {
	for name, detached := range map[string]bool{"in its section": false, "under a context that does not end with it": true} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithTTL(time.Second), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				for range 20 { // the watchdog and the call find out at the same time
					for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
						section := w.enter(t.Context(), l)
						m.link.cut()
						ctx := section
						if detached {
							ctx = context.WithoutCancel(section)
						}
						_, err := lock(ctx)
						require.ErrorIs(t, err, relock.ErrLockLost)
						require.NotErrorIs(t, err, context.DeadlineExceeded, "nobody has set a deadline")
						finished := eventsOf[relock.AcquireFinished](&r)
						require.Equal(t, relock.OutcomeLost, finished[len(finished)-1].Outcome)
						m.link.heal()
						require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
						pass(time.Minute)
						w.requireFree("a")
					}
				}
			})
		})
	}
}

func TestANestedEntryIsAskedForOnceWhateverTheLease(t *testing.T) {
	const ttl, trip = 300 * time.Millisecond, 45 * time.Millisecond
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		m.link.on(delay(trip/2, trip-trip/2))
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
			for range 5 {
				m.link.reset()
				entry := w.begin(outer, lock)
				inner := entry.section()
				require.Equal(t, trip, entry.took())
				require.Equal(t, 1, m.link.sent(cmdEnter))
				w.requireCount("a", 2)
				exit := w.begin(inner, unlock(l))
				require.NoError(t, exit.failure())
				require.Equal(t, trip, exit.took())
				w.requireCount("a", 1)
				pass(17 * time.Millisecond) // at another part of the lease
			}
		}
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestAnInnerExitThatIsRefusedIsToldLater(t *testing.T) {
	for name, act := range map[string]action{"refused": refuse(errRefused), "silent": silence} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(time.Minute))
				l := m.NewLock("a")
				outer := w.enter(t.Context(), l)
				inner := w.enter(outer, l)
				third := w.enter(relock.WithSection(t.Context(), outer), l)
				bad := m.link.on(act, cmdRelease, cmdRenew)
				for _, section := range []context.Context{third, inner} {
					err := l.Unlock(section)
					require.ErrorContains(t, err, "not confirmed by the store; the entry is left, and the count will be sent again")
					require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
				}
				require.Equal(t, 1, l.Count(outer))
				pass(10 * time.Second)
				w.requireCount("a", 3)
				require.Less(t, bad.hits.Load(), int64(60), "with pauses that grow")
				bad.end()
				pass(time.Second)
				w.requireCount("a", 1)
				m.link.reset()
				pass(5 * time.Second)
				require.Zero(t, m.link.sent(), "once told, nothing more is sent")
				w.leave(outer, l)
				w.requireFree("a")
			})
		})
	}
}

// The store refuses an inner exit, and is told of the exit again after pauses.
func TestAnInnerExitThatIsToldAgain(t *testing.T) {
	begun := func(t *testing.T, w *world) (m *member, l *relock.Lock, outer context.Context, cancel func()) {
		t.Helper()
		m = w.NewClient(relock.WithTTL(time.Minute))
		l = m.NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		outer = w.enter(request, l)
		inner := w.enter(outer, l)
		m.link.on(refuse(errRefused), cmdRelease, cmdRenew)
		require.ErrorIs(t, l.Unlock(inner), errRefused)
		pass(10 * time.Second)
		return m, l, outer, cancel
	}
	t.Run("holds up no Close", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, outer, _ := begun(t, w)
			closing := time.Now()
			require.NoError(t, m.Close())
			require.Zero(t, time.Since(closing))
			require.ErrorIs(t, l.Unlock(outer), errRefused)
			pass(time.Minute)
			w.requireFree("a")
		})
	})
	t.Run("finds a loss", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, outer, _ := begun(t, w)
			w.Lose("a")
			m.link.heal()
			took, cause := w.ends(outer)
			require.ErrorIs(t, cause, relock.ErrLockLost)
			require.LessOrEqual(t, took, time.Second, "long before the next renewal")
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		})
	})
	t.Run("renews nothing that nobody wants", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m, l, outer, cancel := begun(t, w)
			cancel()
			left := w.lease("a")
			m.link.heal()
			pass(time.Second)
			w.requireCount("a", 1)
			require.LessOrEqual(t, w.lease("a"), left-time.Second, "a lock outlives its request by one TTL at most")
			pass(left)
			w.requireFree("a")
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		})
	})
}

func TestAnInnerUnlockGivesUpAtTheEndOfItsLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(3 * time.Second))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		m.link.cut(cmdRelease)
		exit := w.begin(inner, unlock(l))
		err := exit.failure()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled, "nobody has cancelled anything")
		require.LessOrEqual(t, exit.took(), 3*time.Second)
		require.True(t, l.Held(outer))
		pass(2 * time.Second)
		require.Equal(t, 1, w.count("a"), "a renewal tells the count")
		m.link.heal()
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestACommandThatIsSentTwiceCountsOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		m.link.on(sendTwice, cmdWait, cmdTry, cmdEnter, cmdRelease, cmdToken)
		for range 3 {
			outer := w.enter(t.Context(), l)
			inner := w.enter(outer, l)
			w.requireCount("a", 2)
			one, err := l.Token(inner)
			require.NoError(t, err)
			two, err := l.Token(outer)
			require.NoError(t, err)
			require.Equal(t, one, two)
			w.leave(inner, l)
			w.requireCount("a", 1)
			require.NoError(t, l.Unlock(outer), "an exit that finds nothing was its own first attempt")
			w.requireFree("a")
		}
		require.Empty(t, eventsOf[relock.Lost](&r))
		require.Len(t, eventsOf[relock.Released](&r), 3)
	})
}

func TestAnEntryOfWhichTheAnswerIsLostIsNotCounted(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		m.link.once(loseAnswer(store.ErrUnavailable), cmdEnter)
		ctx, err := l.Lock(outer)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.Equal(t, outer, ctx)
		require.Equal(t, 1, l.Count(outer))
		settle()
		require.Equal(t, 1, w.count("a"), "the store is told at once")
		w.leave(outer, l)
		w.requireFree("a")
	})
}

// The store may run the commands of two goroutines in any order.
func TestACommandThatComesBehindTheLastExitIsNoLoss(t *testing.T) {
	for name, call := range map[string]func(w *world, l *relock.Lock, outer, inner context.Context) (*attempt, error){
		"an inner exit": func(w *world, l *relock.Lock, _, inner context.Context) (*attempt, error) {
			w.t.Helper()
			return w.begin(inner, unlock(l)), nil
		},
		"a token": func(w *world, l *relock.Lock, outer, inner context.Context) (*attempt, error) {
			w.t.Helper()
			w.leave(inner, l)
			return w.begin(context.WithoutCancel(outer), func(ctx context.Context) (context.Context, error) {
				_, err := l.Token(ctx)
				return ctx, err
			}), relock.ErrNotHeld
		},
		"a renewal": func(w *world, l *relock.Lock, _, inner context.Context) (*attempt, error) {
			w.t.Helper()
			w.leave(inner, l)
			pass(relock.DefaultTTL / 3)
			return w.begin(inner, func(ctx context.Context) (context.Context, error) { return ctx, nil }), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				outer := w.enter(t.Context(), l)
				inner := w.enter(relock.WithSection(t.Context(), outer), l)
				late := m.link.on(slowly(time.Second), cmdRelease, cmdToken, cmdRenew)
				if name != "an inner exit" {
					late.end()
					m.link.on(slowly(time.Second), cmdToken, cmdRenew)
				}
				first, want := call(w, l, outer, inner)
				m.link.heal()
				m.link.on(delay(500*time.Millisecond, time.Second), cmdRelease)
				last := w.begin(outer, unlock(l))
				require.NoError(t, last.failure())
				require.ErrorIs(t, first.failure(), want)
				pass(2 * time.Second)
				w.requireFree("a")
				require.Empty(t, eventsOf[relock.Lost](&r))
				require.Len(t, eventsOf[relock.Released](&r), 1)
			})
		})
	}
}

// leaveAround enters "a", "b" and "c" together inside outer, a section of "c", and leaves the three.
// leaveAround runs last when the exits of "a" and "b" are in flight and the inner exit of "c" is
// not sent yet.
func leaveAround(outer context.Context, w *world, m *member, last func()) error {
	w.t.Helper()
	all := m.NewLocks([]string{"a", "b", "c"})
	inner := w.enterAll(relock.WithSection(w.t.Context(), outer), all)
	m.link.once(delay(time.Second, 0), cmdReleaseAll)
	unlocking := w.begin(inner, func(ctx context.Context) (context.Context, error) { return ctx, all.Unlock(ctx) })
	last()
	return unlocking.failure()
}

func TestAnInnerExitThatIsSentBehindTheLastOneFreesNothing(t *testing.T) {
	t.Run("the last exit is in flight", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			var r recorder
			m := w.NewClient(relock.WithHooks(r.Hooks()))
			l := m.NewLock("c")
			outer := w.enter(t.Context(), l)
			var last *attempt
			require.NoError(t, leaveAround(outer, w, m, func() {
				m.link.once(delay(2*time.Second, 0), cmdRelease)
				last = w.begin(outer, unlock(l))
			}))
			freed := w.free("c")
			require.NoError(t, last.failure())
			require.False(t, freed, "the last exit frees the lock")
			w.requireFree("a", "b", "c")
			require.Empty(t, eventsOf[relock.Lost](&r))
		})
	})
	t.Run("the last exit has passed the lock on", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			m := w.NewClient()
			l := m.NewLock("c", relock.WithLocalPass(0, 0))
			outer := w.enter(t.Context(), l)
			next := w.start(t.Context(), l)
			require.NoError(t, leaveAround(outer, w, m, func() {
				w.leave(outer, l)
				keep(t, next.section())
			}))
			_, err := w.NewClient().NewLock("c").TryLock(t.Context())
			refusedBy(t, "c", err)
			next.leave()
			w.requireFree("a", "b", "c")
		})
	})
}

func TestAnInnerExitThatIsAnsweredBehindALossIsNoSecondLoss(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(relock.WithSection(t.Context(), outer), l)
		pass(time.Second) // the client watches the store
		m.link.once(delay(0, time.Second), cmdRelease)
		unlocking := w.begin(inner, unlock(l))
		w.Lose("a")
		require.Equal(t, relock.LossTaken, w.lost(outer))
		require.NoError(t, unlocking.failure(), "the store had the lock at the exit")
		m.link.reset()
		pass(2 * relock.DefaultTTL)
		require.Zero(t, m.link.sent(cmdRenew), "a lost hold is not renewed")
		require.Len(t, eventsOf[relock.Lost](&r), 1)
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

// slowly makes a command arrive late, whatever has become of its caller.
func slowly(d time.Duration) action {
	return func(_ context.Context, _ *fault, run func() error) error {
		late := time.After(d)
		<-late
		return run()
	}
}

func TestTokensThatAreDrawnAtOnceAreOne(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
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
		m.link.once(delay(0, 2*time.Second), cmdToken)
		go draw(tokens)()
		settle()
		go draw(tokens)() // its answer is the first
		first := <-tokens
		require.Equal(t, first, <-tokens)
		m.link.reset()
		draw(tokens)()
		require.EqualValues(t, 2, <-tokens)
		require.Zero(t, m.link.sent(), "later calls are local")
		w.leave(section, l)
	})
}
