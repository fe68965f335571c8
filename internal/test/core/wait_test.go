package core_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// When exactly does a wait end?

// This file is about the exact ends of waits. locktest has the promises that hold over every store,
// and lease_test.go is about leases that are nearly over when they begin.

func TestEnteringAndLeavingAFreeLockAsksTheStoreOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		require.Zero(t, m.Link.Sent(), "a lock that is not used costs nothing")
		for name, lock := range map[stage.Command]stage.Locking{stage.CmdWait: l.Lock, stage.CmdTry: l.TryLock} {
			m.Link.Reset()
			begun := time.Now()
			section, err := lock(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, m.Link.Sent())
			require.Equal(t, 1, m.Link.Sent(name))
			require.Equal(t, relock.DefaultTTL, w.Lease("a"))
			require.Equal(t, relock.DefaultTTL-stage.Margin(relock.DefaultTTL), l.Remaining(section))
			w.Leave(section, l)
			require.Equal(t, 2, m.Link.Sent())
			require.Zero(t, time.Since(begun))
			w.RequireFree("a")
		}
	})
}

func TestTheWorkEndsBeforeTheLockIsFree(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.Enter(t.Context(), l)
		m.Link.On(stage.Delay(time.Second, 0), stage.CmdRelease)
		exit := w.Begin(section, stage.Unlock(l))
		require.Equal(t, relock.ErrReleased, context.Cause(section))
		require.False(t, w.Free("a"))
		require.NoError(t, exit.Failure())
		require.True(t, w.Free("a"))
	})
}

func TestAWaiterIsServedTheMomentTheLockIsFree(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := w.NewClient().NewLock("a")
		section := w.Enter(t.Context(), l)
		waiting := w.Start(t.Context(), m.NewLock("a"))
		m.Link.Reset()
		stage.Pass(time.Hour)
		require.True(t, waiting.Waits())
		require.Zero(t, m.Link.Sent(), "a waiter does not ask again and again")
		w.Leave(section, l)
		_ = waiting.Section()
		require.Equal(t, time.Hour, waiting.Took())
	})
}

func TestAWaitMayBeAsLongAsADurationIs(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		l := w.NewClient().NewLock("a")
		section, err := l.TryLockFor(t.Context(), math.MaxInt64)
		require.NoError(t, err)
		waiting := w.Begin(t.Context(), stage.TryFor(l, math.MaxInt64))
		stage.Pass(time.Minute)
		require.True(t, waiting.Waits())
		w.Leave(section, l)
		require.NoError(t, l.Unlock(waiting.Section()))
	})
}

func TestACallEndsWithItsContextAlsoInSilence(t *testing.T) {
	for name, when := range map[string]time.Duration{"from the start": 0, "while waiting": time.Minute} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				l := w.NewClient().NewLock("a")
				section := w.Enter(t.Context(), l)
				m := w.NewClient()
				ctx, cancel := context.WithCancel(t.Context())
				if when == 0 {
					m.Link.Cut()
				}
				call := w.Start(ctx, m.NewLock("a"))
				stage.Pass(when)
				m.Link.Cut()
				stage.Pass(time.Second)
				cancel()
				err := call.Failure()
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, relock.ErrUnavailable)
				require.Equal(t, when > 0, errors.Is(err, relock.ErrLocked), "only if the store has said so")
				require.Equal(t, when+time.Second, call.Took())
				m.Link.Heal()
				stage.Pass(2 * relock.DefaultTTL)
				require.Zero(t, w.Waiters("a"), "the place is taken back")
				w.Leave(section, l)
				stage.Pass(time.Minute)
				w.RequireFree("a")
			})
		})
	}
}

func TestAWaitThatIsOverSaysThatTheStoreIsSilent(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		holder := w.Enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		call := w.Begin(t.Context(), stage.TryFor(m.NewLock("a"), time.Minute))
		m.Link.Cut()
		err := call.Failure()
		require.Equal(t, time.Minute, call.Took())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, stage.HolderOf(t, holder), refusal.Holder, "as the store has said last")

		call = w.Begin(t.Context(), stage.TryFor(m.NewLock("b"), time.Minute))
		err = call.Failure()
		require.Equal(t, time.Minute, call.Took())
		require.NotErrorIs(t, err, relock.ErrLocked, "nobody has said who has this one")
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the wait is over")
	})
}

func TestACallWhoseTimeIsOverWithoutAWordOfTheStoreSaysSo(t *testing.T) {
	for _, wait := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 700 * time.Millisecond, 3 * time.Second} {
		for name, call := range map[string]func(c *stage.Member, ctx context.Context) error{
			"the wait":     func(c *stage.Member, ctx context.Context) error { return c.NewLock("a").DoFor(ctx, wait, nothing) },
			"the deadline": func(c *stage.Member, ctx context.Context) error { return c.NewLock("a").Do(ctx, nothing) },
			"of TryLock":   func(c *stage.Member, ctx context.Context) error { return stage.ErrorOf(c.NewLock("a").TryLock(ctx)) },
			"of several": func(c *stage.Member, ctx context.Context) error {
				return c.NewLocks([]string{"a", "b"}).Do(ctx, nothing)
			},
		} {
			t.Run(fmt.Sprint(name, " of ", wait), func(t *testing.T) {
				stage.Fake(t, func(t *testing.T, w *stage.World) {
					c := w.NewClient()
					defer c.Link.Heal()
					c.Link.Cut()
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					if name == "the wait" {
						ctx = t.Context()
					}
					err := call(c, ctx)
					require.ErrorIs(t, err, relock.ErrUnavailable)
					require.NotErrorIs(t, err, relock.ErrLocked)
					require.True(t, wait > 2*time.Second && name == "of TryLock" || errors.Is(err, context.DeadlineExceeded), "%v", err)
				})
			})
		}
	}
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		defer cancel()
		require.NotErrorIs(t, w.NewClient().NewLock("a").Do(ctx, nothing), relock.ErrUnavailable, "nobody was asked")
	})
}

// overheard is a context that counts who wants to know of its end.
type overheard struct {
	context.Context
	done  chan struct{}
	heard atomic.Int32
}

func (o *overheard) Done() <-chan struct{} { return o.done }

// AfterFunc is called by package context.
func (o *overheard) AfterFunc(func()) (stop func() bool) {
	o.heard.Add(1)
	return sync.OnceValue(func() bool {
		o.heard.Add(-1)
		return true
	})
}

func TestACallThatGivesUpLeavesNothingInItsContextAndIsNoLeak(t *testing.T) {
	for name, c := range map[string]struct {
		wait time.Duration
		end  func(m *stage.Member, owner *relock.Lock, section context.Context) error
		want error
	}{
		"the wait is over": {wait: time.Second, want: relock.ErrLocked},
		"the client is closed": {
			wait: time.Hour, want: relock.ErrClosed,
			end: func(m *stage.Member, _ *relock.Lock, _ context.Context) error { return m.Close() },
		},
		"the call enters": {
			wait: time.Hour,
			end:  func(_ *stage.Member, owner *relock.Lock, section context.Context) error { return owner.Unlock(section) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				var r stage.Recorder
				owner := w.NewClient().NewLock("a")
				section := w.Enter(t.Context(), owner)
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				parent := &overheard{Context: context.Background(), done: make(chan struct{})}
				call := w.Begin(parent, stage.TryFor(l, c.wait))
				require.True(t, call.Waits())
				require.Positive(t, parent.heard.Load())
				if c.end != nil {
					require.NoError(t, c.end(m, owner, section))
				}
				mine, err := call.Result()
				require.ErrorIs(t, err, c.want)
				if err != nil {
					require.Equal(t, err, context.Cause(mine))
				} else {
					require.EqualValues(t, 1, parent.heard.Load())
					w.Leave(mine, l)
				}
				require.Zero(t, parent.heard.Load())
				for range 3 {
					runtime.GC()
					stage.Pass(relock.DefaultTTL)
				}
				require.Empty(t, stage.EventsOf[event.Leaked](&r))
			})
		})
	}
}

// answering is a store whose Wait answers as the test wants.
type answering struct {
	*mem.Store
	wait func(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error)
}

func (s *answering) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	return s.wait(ctx, a, progress)
}

func TestAnErrorOfTheStoreEndsAWaitAndIsNoRefusal(t *testing.T) {
	broken := errors.New("WRONGTYPE")
	for name, unsure := range map[string]bool{"it did not run": false, "it may have run": true} {
		t.Run(name, func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				s := &answering{Store: w.Store}
				s.wait = func(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
					progress(store.Progress{Busy: &store.Busy{Owner: "x:1:1", TTL: time.Second}, Queued: true})
					if unsure {
						_, err := w.Store.Wait(ctx, a, progress)
						require.NoError(t, err)
						return store.Lease{}, store.Unsure(broken)
					}
					return store.Lease{}, broken
				}
				c, err := relock.Open(s)
				require.NoError(t, err)
				defer c.Close()
				l := c.NewLock("a")
				for _, lock := range []stage.Locking{l.Lock, stage.TryFor(l, time.Minute)} {
					ctx, err := lock(t.Context())
					require.ErrorIs(t, err, broken)
					require.NotErrorIs(t, err, relock.ErrLocked)
					require.Equal(t, err, context.Cause(ctx))
					w.RequireFree("a")
				}
			})
		})
	}
}

func TestWhatACallMayHaveTakenIsTakenBack(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m := w.NewClient()
		l := m.NewLock("a")
		m.Link.On(stage.LoseAnswer(store.ErrUnavailable), stage.CmdWait, stage.CmdTry)
		for _, lock := range []stage.Locking{l.Lock, l.TryLock, stage.TryFor(l, time.Minute)} {
			_, err := lock(t.Context())
			require.ErrorIs(t, err, relock.ErrUnavailable)
			w.RequireFree("a")
		}
	})
}

func TestACallBehindTooManyWaitersIsRefused(t *testing.T) {
	for _, passes := range []bool{false, true} {
		t.Run(fmt.Sprint("the store passes leases on: ", passes), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				m := w.NewClient(relock.WithMaxWaiters(2))
				m.Link.Passes = passes
				l := m.NewLock("a")
				owner := w.Enter(t.Context(), l)
				first, second := w.Start(t.Context(), l), w.Start(t.Context(), l)
				for _, lock := range []stage.Locking{l.Lock, stage.TryFor(l, time.Minute)} {
					refused := w.Begin(t.Context(), lock)
					err := refused.Failure()
					require.ErrorIs(t, err, relock.ErrQueueFull)
					require.ErrorIs(t, err, relock.ErrLocked)
					require.NotErrorIs(t, err, context.Canceled)
					var locked *relock.LockedError
					require.ErrorAs(t, err, &locked)
					require.Equal(t, stage.HolderOf(t, owner), locked.Holder)
					require.Zero(t, refused.Took())
				}
				require.True(t, first.Waits() && second.Waits(), "those who wait are not disturbed")
				w.Leave(owner, l)
				third := w.Start(t.Context(), l) // one place is free
				require.True(t, third.Waits())
				for _, a := range []*stage.Attempt{first, second, third} {
					a.Leave()
				}
				w.RequireFree("a")
			})
		})
	}
}

func TestARefusalOfAFullQueueIsAnEventOfALockedLock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		l := w.NewClient(relock.WithMaxWaiters(1), relock.WithHooks(r.Hooks())).NewLock("a")
		owner := w.Enter(t.Context(), l)
		waiter := w.Start(t.Context(), l)
		err := l.Do(t.Context(), func(context.Context) error { return nil })
		require.EqualError(t, err, fmt.Sprintf("relock: %q is locked by %s; its lease has 30s left and may be renewed "+
			"(held by this process): relock: the queue is full", "a", stage.HolderOf(t, owner)))
		require.ErrorIs(t, err, relock.ErrNotEntered)
		finished := stage.EventsOf[event.AcquireFinished](&r)
		require.Equal(t, event.OutcomeLocked, finished[len(finished)-1].Outcome)
		w.Leave(owner, l)
		waiter.Leave()
	})
}

func TestTheQueueLimitHoldsForLocksThatAreAskedForAgain(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		m, other := w.NewClient(relock.WithTTL(time.Second), relock.WithMaxWaiters(1)), w.NewClient().NewLock("a")
		m.Link.Once(stage.Delay(0, 2*time.Second), stage.CmdTryAll) // the leases are over when the answer comes
		both := w.Begin(t.Context(), m.NewLocks([]string{"a", "b"}).Lock)
		stage.Pass(1500 * time.Millisecond)
		owner := w.Enter(t.Context(), other)
		waiter := w.Start(t.Context(), other)
		require.ErrorIs(t, both.Failure(), relock.ErrQueueFull)
		w.Leave(owner, other)
		waiter.Leave()
		w.RequireFree("a", "b")
	})
}
