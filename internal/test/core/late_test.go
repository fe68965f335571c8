package core_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/ticket"
)

// What if a command runs late?

func TestALateLockThatNobodyWantsIsTakenBackSoon(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock, tape *stage.Tape){
		"its caller gave up": func(t *testing.T, w *stage.World, _ *stage.Member, l *relock.Lock, tape *stage.Tape) {
			tape.Keep(stage.CmdWait)
			w.GiveUp(t.Context(), l.Lock)
		},
		"a later attempt had the lock, and it was unlocked": func(t *testing.T, w *stage.World, _ *stage.Member, l *relock.Lock, tape *stage.Tape) {
			tape.Keep(stage.CmdWait)
			require.NoError(t, l.Unlock(w.Enter(t.Context(), l)))
		},
		"and it was lost": func(t *testing.T, w *stage.World, _ *stage.Member, l *relock.Lock, tape *stage.Tape) {
			tape.Keep(stage.CmdTry)
			section, err := l.TryLock(t.Context())
			require.NoError(t, err)
			stage.Pass(time.Second)
			w.Store.Lose("a")
			w.LostBecause(section, event.LossTaken)
		},
		"its lease was over before it began, and the next one was unlocked": func(t *testing.T, w *stage.World, m *stage.Member, l *relock.Lock, tape *stage.Tape) {
			tape.Keep(stage.CmdWait)
			m.Link.Once(stage.Delay(0, 2*relock.DefaultTTL), stage.CmdWait)
			require.NoError(t, l.Unlock(w.Enter(t.Context(), l)))
			require.Equal(t, 2, m.Link.Sent(stage.CmdWait))
		},
		"and it was handed off to nobody": func(t *testing.T, w *stage.World, _ *stage.Member, l *relock.Lock, tape *stage.Tape) {
			tape.Keep(stage.CmdWait)
			_, err := ticket.HandOff(w.Enter(t.Context(), l), l)
			require.NoError(t, err)
			stage.Pass(relock.DefaultTTL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, tape := w.NewTape()
				end(t, w, m, m.NewLock("a"), tape)
				stage.Pass(time.Second)
				require.True(t, w.Free("a"))
				require.Equal(t, 1, tape.Play())
				require.False(t, w.Free("a"), "the late command has the lock, for nobody")
				stage.Pass(5 * time.Second)
				w.RequireFree("a")
			})
		})
	}
}

func TestALateLockTouchesNothingOfALaterHold(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		tape.Keep(stage.CmdWait)
		w.GiveUp(t.Context(), l.Lock)
		section := w.Enter(t.Context(), l)
		owner := w.Owner("a")
		require.Equal(t, 1, tape.Play())
		require.Equal(t, owner, w.Owner("a"))
		require.Zero(t, w.Waiters("a"))
		stage.Pass(time.Minute)
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestALateLockOfAClosedClientIsFreeAfterItsLease(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape()
		tape.Keep(stage.CmdWait)
		w.GiveUp(t.Context(), m.NewLock("a").Lock)
		require.NoError(t, m.Close())
		require.Equal(t, 1, tape.Play())
		stage.Pass(relock.DefaultTTL - 1)
		require.False(t, w.Free("a"))
		stage.Pass(1)
		w.RequireFree("a")
	})
}

func TestCountIsWrongAfterALateNestedLockForAThirdOfTheTTL(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		stage.Pass(time.Second)
		tape.Keep(stage.CmdEnter)
		w.GiveUp(outer, l.Lock)
		require.Equal(t, 1, l.Count(outer))
		require.Equal(t, 1, m.Link.Sent(stage.CmdRenew), "the store is told of the count at once")
		tape.Play()
		w.RequireCount("a", 2)
		stage.Pass(relock.DefaultTTL / 3)
		w.RequireCount("a", 1)
		w.Leave(outer, l)
		w.RequireFree("a")
	})
}

func TestCountIsWrongAfterALostAnswerForOneCommand(t *testing.T) {
	for name, lose := range map[string]func(k *stage.Link, c stage.Command) *stage.Fault{
		"the command has run":     func(k *stage.Link, c stage.Command) *stage.Fault { return k.Once(stage.Mute, c) },
		"the command has not run": func(k *stage.Link, c stage.Command) *stage.Fault { return k.Once(stage.Silence, c) },
		"the store is broken":     func(k *stage.Link, c stage.Command) *stage.Fault { return k.Once(stage.Refuse(stage.ErrBroken), c) },
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				m.Link.On(stage.Delay(5*time.Millisecond, 5*time.Millisecond), stage.CmdRenew)
				lose(m.Link, stage.CmdEnter)
				ctx, cancel := context.WithTimeout(outer, time.Second)
				_, err := l.Lock(ctx)
				require.Error(t, err)
				cancel()
				stage.Pass(20 * time.Millisecond)
				w.RequireCount("a", 1)
				inner := w.Enter(outer, l)
				lose(m.Link, stage.CmdEnter)
				require.ErrorContains(t, l.Unlock(inner), "the entry is left, and the count will be sent again")
				require.Equal(t, 1, l.Count(outer))
				stage.Pass(20 * time.Millisecond)
				w.RequireCount("a", 1)
				w.Leave(outer, l)
				w.RequireFree("a")
			})
		})
	}
}

func TestCountIsRightWithTheNextCommandAfterEntriesAndExitsAtOnce(t *testing.T) {
	for name, next := range map[string]func(w *stage.World, l *relock.Lock, outer context.Context) int{
		"a renewal": func(*stage.World, *relock.Lock, context.Context) int {
			stage.Pass(relock.DefaultTTL / 3)
			return 3
		},
		"an entry": func(w *stage.World, l *relock.Lock, outer context.Context) int {
			stage.Keep(w.T, w.Enter(outer, l))
			return 4
		},
		"an exit": func(w *stage.World, l *relock.Lock, outer context.Context) int {
			w.Leave(w.Enter(outer, l), l)
			return 3
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient()
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				// The first command is the last one to reach the store.
				m.Link.Once(stage.Delay(100*time.Millisecond, 0), stage.CmdEnter)
				first := w.Start(outer, l)
				stage.Keep(t, w.Enter(outer, l))
				stage.Keep(t, first.Section())
				require.Equal(t, 3, l.Count(outer))
				w.RequireCount("a", 2)
				w.RequireCount("a", next(w, l, outer))
				w.Leave(outer, l)
			})
		})
	}
}

func TestALateExitDoesNotTouchWhatIsEnteredByThen(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, tape := w.NewTape()
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		tape.Keep(stage.CmdEnter)
		require.NoError(t, l.Unlock(inner), "the second attempt is answered")
		inner = w.Enter(outer, l)
		require.Equal(t, 1, tape.Play())
		stage.Pass(relock.DefaultTTL / 3)
		w.RequireCount("a", 2)
		w.Leave(inner, l)
		tape.Keep(stage.CmdRelease)
		w.Leave(outer, l)
		w.RequireFree("a")
		section := w.Enter(t.Context(), l)
		require.Equal(t, 1, tape.Play())
		w.RequireCount("a", 1)
		w.Leave(section, l)
		w.RequireFree("a")
	})
}

func TestALateCommandDoesNotTouchTheNextHold(t *testing.T) {
	for _, v := range []stage.Command{stage.CmdEnter, stage.CmdRelease, stage.CmdRenew, stage.CmdForget} {
		t.Run(string(v), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m, tape := w.NewTape()
				l := m.NewLock("a")
				outer := w.Enter(t.Context(), l)
				tape.Keep(v)
				switch v {
				case stage.CmdEnter:
					w.GiveUp(outer, l.Lock)
				case stage.CmdRelease:
					w.Leave(outer, l)
				case stage.CmdRenew:
					stage.Pass(relock.DefaultTTL / 3)
				case stage.CmdForget:
					m.Link.Once(stage.Mute, stage.CmdRelease)
				}
				_ = w.Store.Break(t.Context(), store.Claim{Name: "a", ID: store.ID(w.Owner("a"))})
				stage.Pass(5 * time.Second)
				_ = l.Unlock(outer)
				next := w.Enter(t.Context(), w.NewClient(relock.WithFixedLease(time.Minute)).NewLock("a"))
				owner := w.Owner("a")
				stage.Settle()
				require.Positive(t, tape.Play())
				require.Equal(t, owner, w.Owner("a"))
				w.RequireCount("a", 1)
				require.Equal(t, time.Minute, w.Lease("a"))
				require.NoError(t, next.Err())
			})
		})
	}
}

func TestALeaseThatRunsOutBehindCloseIsLost(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient(relock.WithTTL(10 * time.Second))
		l := m.NewLock("a")
		outer := w.Enter(t.Context(), l)
		inner := w.Enter(outer, l)
		require.NoError(t, m.Close()) // so that no watchdog finds the loss
		stage.Pass(9 * time.Second)
		w.Leave(inner, l)
		require.Equal(t, time.Second, w.Lease("a"), "nothing renews it any more")
		stage.Pass(time.Second)
		detached := context.WithoutCancel(outer)
		require.False(t, l.Held(detached))
		require.Zero(t, l.Remaining(detached))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		w.RequireFree("a")
	})
}

func TestANestedCallDoesNotEnterAHoldThatIsOver(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(t *testing.T, w *stage.World, m *stage.Member, outer context.Context)
		want error
	}{
		"its lease ran out": {func(*testing.T, *stage.World, *stage.Member, context.Context) {}, relock.ErrLockLost},
		"unlocked": {func(t *testing.T, _ *stage.World, m *stage.Member, outer context.Context) {
			require.NoError(t, m.NewLock("a").Unlock(outer))
		}, relock.ErrReleased},
		"closed": {func(_ *testing.T, _ *stage.World, m *stage.Member, _ context.Context) {
			m.Client.Close()
		}, relock.ErrClosed},
	} {
		for _, options := range [][]relock.Option{nil, {relock.WithReleaseOnClose()}} {
			t.Run(fmt.Sprint(name, len(options)), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m := w.NewClient(append(options, relock.WithTTL(10*time.Second))...)
					l := m.NewLock("a")
					request, cancel := context.WithCancel(t.Context())
					outer := w.Enter(request, l)
					cancel() // so that the nested call does not end with the section's context
					answer := 5 * time.Second
					if name == "its lease ran out" {
						answer = 20 * time.Second
					}
					m.Link.Once(func(_ context.Context, _ *stage.Fault, run func() error) error { // whatever becomes of its context
						err := run()
						<-time.After(answer)
						return err
					}, stage.CmdEnter)
					nested := w.Start(context.WithoutCancel(outer), l)
					go test.end(t, w, m, outer)
					require.ErrorIs(t, nested.Failure(), test.want)
					_ = l.Unlock(outer)
					stage.Pass(10 * time.Second)
					w.RequireFree("a")
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
		stage.Pass(relock.DefaultTTL) // a renewal, and cleanup
	}
	return errs
}

func TestACommandMayFailAnywhereInAStory(t *testing.T) {
	for name, act := range map[string]stage.Action{
		"refused":          stage.Refuse(store.Unavailable(stage.ErrBroken)),
		"the answer lost":  stage.LoseAnswer(store.Unavailable(stage.ErrBroken)),
		"run twice":        stage.SendTwice,
		"never answered":   stage.Mute,
		"never run":        stage.Silence,
		"slow to arrive":   stage.Delay(3*time.Second, 0),
		"slow to answer":   stage.Delay(0, 3*time.Second),
		"run when over":    stage.Delay(relock.DefaultTTL, 0),
		"answered so late": stage.Delay(0, relock.DefaultTTL),
	} {
		t.Run(name, func(t *testing.T) {
			n := 1
			for i := 0; i < n; i++ {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					m := w.NewClient()
					var all atomic.Int64
					m.Link.On(func(ctx context.Context, f *stage.Fault, run func() error) error {
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
					m.Link.Heal()
					stage.Pass(2 * relock.DefaultTTL)
					ctx, cancel := context.WithTimeout(t.Context(), relock.DefaultTTL)
					defer cancel()
					section, err := w.NewClient().NewLock("a").Lock(ctx)
					require.NoError(t, err, "command %d", i)
					stage.Keep(t, section)
				})
			}
			t.Log(n, "commands")
		})
	}
}

// The process stands still for two leases at each look at the caller's context in turn, the last of
// which are behind the grant.
func TestACallThatWaitsOutlastsAStandstill(t *testing.T) {
	for name, lock := range map[string]func(*relock.Client) relock.Locker{
		"one":     func(c *relock.Client) relock.Locker { return c.NewLock("a") },
		"reader":  func(c *relock.Client) relock.Locker { return c.NewRWLock("a").RLocker() },
		"several": func(c *relock.Client) relock.Locker { return c.NewLocks([]string{"a", "b"}) },
	} {
		t.Run(name, func(t *testing.T) {
			looks := int64(0)
			for at, stood := int64(1), true; stood; at++ {
				stood = false
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					l := lock(w.NewClient().Client)
					ctx := &slowValue{Context: t.Context(), slow: func(n int64) {
						if looks = n; n == at {
							stood = true
							<-time.After(2 * relock.DefaultTTL)
						}
					}}
					section, err := l.Lock(ctx)
					require.NoError(t, err, "look %d", at)
					require.NoError(t, l.Unlock(section))
					stage.Pass(time.Second)
				})
			}
			require.Greater(t, looks, int64(1))
		})
	}
}

// A store is silent. What does not wait ends by itself, and leaves nothing when the store is back.
func TestWhatDoesNotWaitGivesTheStoreTwoSeconds(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *relock.Client) error{
		"TryLock": func(ctx context.Context, c *relock.Client) error { _, err := c.NewLock("a").TryLock(ctx); return err },
		"TryLockFor": func(ctx context.Context, c *relock.Client) error {
			_, err := c.NewLock("a").TryLockFor(ctx, 0)
			return err
		},
		"a reader": func(ctx context.Context, c *relock.Client) error {
			_, err := c.NewRWLock("a").RLocker().TryLock(ctx)
			return err
		},
		"All": func(ctx context.Context, c *relock.Client) error {
			_, err := c.NewLocks([]string{"a", "b"}).TryLock(ctx)
			return err
		},
		"State":       func(ctx context.Context, c *relock.Client) error { _, err := c.NewLock("a").State(ctx); return err },
		"ForceUnlock": func(ctx context.Context, c *relock.Client) error { return c.NewLock("a").ForceUnlock(ctx) },
	} {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, of a context that ends: %v", name, ends), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					ctx := context.Background()
					if ends {
						ctx = t.Context()
					}
					m := w.NewClient()
					m.Link.Cut()
					begun := time.Now()
					err := call(ctx, m.Client)
					require.GreaterOrEqual(t, time.Since(begun), 2*time.Second)
					require.LessOrEqual(t, time.Since(begun), 2100*time.Millisecond)
					require.ErrorIs(t, err, relock.ErrUnavailable)
					require.ErrorContains(t, err, "no answer from the store within 2s")
					require.NotErrorIs(t, err, context.Canceled)
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					if name != "State" && name != "ForceUnlock" {
						require.ErrorIs(t, err, relock.ErrUnsure, "it may have run")
					}
					m.Link.Heal()
					stage.Pass(relock.DefaultTTL)
					w.RequireFree("a")
				})
			})
		}
	}
}
