package relock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// What if a command runs late?

// Commands that run late.

func TestALateLockThatNobodyWantsIsTakenBackSoon(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *world, m *member, l *relock.Lock, tape *tape){
		"its caller gave up": func(t *testing.T, w *world, _ *member, l *relock.Lock, tape *tape) {
			t.Helper()
			tape.keep(cmdWait)
			w.giveUp(t.Context(), l.Lock)
		},
		"a later attempt had the lock, and it was unlocked": func(t *testing.T, w *world, _ *member, l *relock.Lock, tape *tape) {
			t.Helper()
			tape.keep(cmdWait)
			require.NoError(t, l.Unlock(w.enter(t.Context(), l)))
		},
		"and it was lost": func(t *testing.T, w *world, _ *member, l *relock.Lock, tape *tape) {
			t.Helper()
			tape.keep(cmdTry)
			section, err := l.TryLock(t.Context())
			require.NoError(t, err)
			pass(time.Second)
			w.Lose("a")
			w.lostBecause(section, relock.LossTaken)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m, tape := w.NewTape()
				end(t, w, m, m.NewLock("a"), tape)
				pass(time.Second)
				require.True(t, w.free("a"))
				require.Equal(t, 1, tape.play())
				require.False(t, w.free("a"), "the late command has the lock, for nobody")
				pass(5 * time.Second)
				w.requireFree("a")
			})
		})
	}
}

func TestALateLockTouchesNothingOfALaterHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		tape.keep(cmdWait)
		w.giveUp(t.Context(), l.Lock)
		section := w.enter(t.Context(), l)
		owner := w.owner("a")
		require.Equal(t, 1, tape.play())
		require.Equal(t, owner, w.owner("a"))
		require.Zero(t, w.waiters("a"))
		pass(time.Minute)
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestALateLockOfAClosedClientIsFreeAfterItsLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape()
		tape.keep(cmdWait)
		w.giveUp(t.Context(), m.NewLock("a").Lock)
		require.NoError(t, m.Close())
		require.Equal(t, 1, tape.play())
		pass(relock.DefaultTTL - 1)
		require.False(t, w.free("a"))
		pass(1)
		w.requireFree("a")
	})
}

func TestCountIsWrongAfterALateNestedLockForAThirdOfTheTTL(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		pass(time.Second)
		tape.keep(cmdEnter)
		w.giveUp(outer, l.Lock)
		require.Equal(t, 1, l.Count(outer))
		require.Equal(t, 1, m.link.sent(cmdRenew), "the store is told of the count at once")
		tape.play()
		w.requireCount("a", 2)
		pass(relock.DefaultTTL / 3)
		w.requireCount("a", 1)
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestCountIsWrongAfterALostAnswerForOneCommand(t *testing.T) {
	for name, lose := range map[string]func(k *link, c command) *fault{
		"the command has run":     func(k *link, c command) *fault { return k.once(mute, c) },
		"the command has not run": func(k *link, c command) *fault { return k.once(silence, c) },
		"the store is broken":     func(k *link, c command) *fault { return k.once(refuse(errBroken), c) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				l := m.NewLock("a")
				outer := w.enter(t.Context(), l)
				m.link.on(delay(5*ms, 5*ms), cmdRenew)
				lose(m.link, cmdEnter)
				ctx, cancel := context.WithTimeout(outer, time.Second)
				_, err := l.Lock(ctx)
				require.Error(t, err)
				cancel()
				pass(20 * ms)
				w.requireCount("a", 1)
				inner := w.enter(outer, l)
				lose(m.link, cmdRelease)
				require.ErrorContains(t, l.Unlock(inner), "the entry is left, and the count will be sent again")
				require.Equal(t, 1, l.Count(outer))
				pass(20 * ms)
				w.requireCount("a", 1)
				w.leave(outer, l)
				w.requireFree("a")
			})
		})
	}
}

func TestCountIsSetRightForAsLongAsTheLockIsHeld(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithFixedLease(time.Hour)) // nothing else is renewed
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		broken := m.link.on(refuse(errBroken), cmdRelease, cmdRenew)
		require.Error(t, l.Unlock(inner))
		pass(30 * time.Minute)
		w.requireCount("a", 2)
		require.Less(t, m.link.sent(cmdRenew), 2000, "no hot loop")
		broken.end()
		pass(time.Second)
		w.requireCount("a", 1)
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestCountIsRightAfterEntriesAndExitsAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		// The first command is the last one to reach the store.
		m.link.once(delay(100*ms, 0), cmdEnter)
		first := w.start(outer, l)
		inner := w.enter(outer, l)
		w.leave(inner, l)
		inner = w.enter(outer, l)
		first.section()
		pass(ms)
		require.Equal(t, 3, l.Count(outer))
		w.requireCount("a", 3)
		m.link.once(delay(100*ms, 0), cmdRelease)
		late := w.begin(inner, unlock(l))
		require.NoError(t, l.Unlock(first.ctx))
		require.NoError(t, late.failure())
		pass(ms)
		w.requireCount("a", 1)
		w.leave(outer, l)
		w.requireFree("a")
	})
}

func TestARenewalThatCarriesAnOldCountIsCorrectedAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		m.link.once(delay(100*ms, 0), cmdRenew)
		pass(relock.DefaultTTL / 3)
		inner := w.enter(outer, l)
		w.requireCount("a", 2)
		pass(100 * ms)
		require.Equal(t, 2, m.link.sent(cmdRenew))
		w.requireCount("a", 2)
		m.link.once(delay(100*ms, 0), cmdRenew)
		pass(relock.DefaultTTL / 3)
		w.leave(inner, l)
		pass(100 * ms)
		w.requireCount("a", 1)
	})
}

func TestALateExitDoesNotTouchWhatIsEnteredByThen(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		tape.keep(cmdRelease)
		require.NoError(t, l.Unlock(w.enter(outer, l)), "the second attempt is answered")
		inner := w.enter(outer, l)
		require.Equal(t, 1, tape.play())
		pass(relock.DefaultTTL / 3)
		w.requireCount("a", 2)
		w.leave(inner, l)
		tape.keep(cmdRelease)
		w.leave(outer, l)
		w.requireFree("a")
		section := w.enter(t.Context(), l)
		require.Equal(t, 1, tape.play())
		w.requireCount("a", 1)
		w.leave(section, l)
		w.requireFree("a")
	})
}

func TestALateCommandDoesNotTouchTheNextHold(t *testing.T) {
	for _, v := range []command{cmdEnter, cmdRelease, cmdRenew, cmdForget} {
		t.Run(string(v), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m, tape := w.NewTape()
				l := m.NewLock("a")
				outer := w.enter(t.Context(), l)
				tape.keep(v)
				switch v { //nolint:exhaustive // the verbs of the list above
				case cmdEnter:
					w.giveUp(outer, l.Lock)
				case cmdRelease:
					w.enter(outer, l)
					require.NoError(t, l.Unlock(w.enter(outer, l)))
					outer = w.enter(context.WithoutCancel(outer), l)
				case cmdRenew:
					pass(relock.DefaultTTL / 3)
				case cmdForget:
					m.link.once(mute, cmdRelease)
				}
				_ = w.Break(t.Context(), store.Ask{Name: "a", ID: store.ID(w.owner("a"))})
				pass(5 * time.Second)
				_ = l.Unlock(outer)
				next := w.enter(t.Context(), w.NewClient(relock.WithFixedLease(time.Minute)).NewLock("a"))
				owner := w.owner("a")
				settle()
				require.Positive(t, tape.play())
				require.Equal(t, owner, w.owner("a"))
				w.requireCount("a", 1)
				require.Equal(t, time.Minute, w.lease("a"))
				require.NoError(t, next.Err())
			})
		})
	}
}

func TestAPausedProcessLearnsThatItsLockIsLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		m, tape := w.NewTape(relock.WithTTL(ttl))
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		other := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		waiting := w.start(t.Context(), other)
		tape.keep(cmdRenew) // a renewal that reaches the store after more than a lease
		pass(ttl / 3)
		m.link.cut()
		w.lostBecause(section, relock.LossExpired)
		next := waiting.section()
		pass(ttl)
		tape.play()
		m.link.heal()
		pass(5 * ttl)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.NoError(t, next.Err())
		w.leave(next, other)
		w.requireFree("a")
	})
}

func TestALeaseThatRunsOutBehindCloseIsLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(10 * time.Second))
		l := m.NewLock("a")
		outer := w.enter(t.Context(), l)
		inner := w.enter(outer, l)
		require.NoError(t, m.Close()) // so that no watchdog finds the loss
		pass(9 * time.Second)
		w.leave(inner, l)
		require.Equal(t, time.Second, w.lease("a"), "nothing renews it any more")
		pass(time.Second)
		detached := context.WithoutCancel(outer)
		require.False(t, l.Held(detached))
		require.Zero(t, l.Remaining(detached))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		w.requireFree("a")
	})
}

func TestANestedCallDoesNotEnterAHoldThatIsOver(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, w *world, m *member, outer context.Context)
		want error
	}{
		"its lease ran out": {func(*testing.T, *world, *member, context.Context) {}, relock.ErrLockLost},
		"unlocked": {func(t *testing.T, _ *world, m *member, outer context.Context) {
			t.Helper()
			require.NoError(t, m.NewLock("a").Unlock(outer))
		}, relock.ErrReleased},
		"closed": {func(t *testing.T, _ *world, m *member, _ context.Context) {
			t.Helper()
			m.Client.Close()
		}, relock.ErrClosed},
	} {
		for _, options := range [][]relock.Option{nil, {relock.WithReleaseOnClose()}} {
			t.Run(fmt.Sprint(name, len(options)), func(t *testing.T) {
				fake(t, func(t *testing.T, w *world) {
					m := w.NewClient(append(options, relock.WithTTL(10*time.Second))...)
					l := m.NewLock("a")
					request, cancel := context.WithCancel(t.Context())
					outer := w.enter(request, l)
					cancel() // so that the nested call does not end with the section's context
					answer := 5 * time.Second
					if name == "its lease ran out" {
						answer = 20 * time.Second
					}
					m.link.once(func(_ context.Context, _ *fault, run func() error) error { // whatever becomes of its context
						err := run()
						<-time.After(answer)
						return err
					}, cmdEnter)
					nested := w.start(context.WithoutCancel(outer), l)
					go test.end(t, w, m, outer)
					require.ErrorIs(t, nested.failure(), test.want)
					_ = l.Unlock(outer)
					pass(10 * time.Second)
					w.requireFree("a")
				})
			})
		}
	}
}

// Every command of a story, one after another.

// nestedStory is what a client does, and that it ends well in a store that answers. It returns the
// errors.
func nestedStory(t *testing.T, l *relock.Lock) (errs []error) {
	t.Helper()
	note := func(err error) { errs = append(errs, err) }
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		section, err := l.Lock(ctx)
		note(err)
		if err == nil {
			inner, err := l.Lock(section)
			note(err)
			if err == nil {
				note(l.Unlock(inner))
			}
			_, err = l.Token(section)
			note(err)
			note(l.Unlock(section))
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), 4*time.Second)
		section, err = l.TryLock(ctx)
		note(err)
		if err == nil {
			note(l.Unlock(section))
		}
		cancel()
		pass(relock.DefaultTTL) // a renewal, and cleanup
	}
	return errs
}

func TestACommandMayFailAnywhereInAStory(t *testing.T) {
	for name, act := range map[string]action{
		"refused":          refuse(store.Unavailable(errBroken)),
		"the answer lost":  loseAnswer(store.Unavailable(errBroken)),
		"run twice":        sendTwice,
		"never answered":   mute,
		"never run":        silence,
		"slow to arrive":   delay(3*time.Second, 0),
		"slow to answer":   delay(0, 3*time.Second),
		"run when over":    delay(relock.DefaultTTL, 0),
		"answered so late": delay(0, relock.DefaultTTL),
	} {
		t.Run(name, func(t *testing.T) {
			n := 1
			for i := 0; i < n; i++ {
				fake(t, func(t *testing.T, w *world) {
					m := w.NewClient()
					var all atomic.Int64
					m.link.on(func(ctx context.Context, f *fault, run func() error) error {
						if all.Add(1) == int64(i+1) {
							return act(ctx, f, run)
						}
						return run()
					})
					errs := nestedStory(t, m.NewLock("a"))
					for _, err := range errs {
						require.NotErrorIs(t, err, relock.ErrLockLost, "command %d", i)
						require.NotErrorIs(t, err, relock.ErrNotHeld, "command %d", i)
					}
					n = max(n, int(all.Load()))
					m.link.heal()
					pass(2 * relock.DefaultTTL)
					ctx, cancel := context.WithTimeout(t.Context(), relock.DefaultTTL)
					defer cancel()
					section, err := w.NewClient().NewLock("a").Lock(ctx)
					require.NoError(t, err, "command %d", i)
					keep(t, section)
				})
			}
			t.Log(n, "commands")
		})
	}
}
