package relock_test

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
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// When exactly does a wait end?

// This file is about the exact ends of waits. locktest has the promises that hold over every store,
// and lease_test.go is about leases that are nearly over when they begin.

func TestEnteringAndLeavingAFreeLockAsksTheStoreOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		require.Zero(t, m.link.sent(), "a lock that is not used costs nothing")
		for name, lock := range map[command]locking{cmdWait: l.Lock, cmdTry: l.TryLock} {
			m.link.reset()
			begun := time.Now()
			section, err := lock(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, m.link.sent())
			require.Equal(t, 1, m.link.sent(name))
			require.Equal(t, relock.DefaultTTL, w.lease("a"))
			require.Equal(t, relock.DefaultTTL-margin(relock.DefaultTTL), l.Remaining(section))
			w.leave(section, l)
			require.Equal(t, 2, m.link.sent())
			require.Zero(t, time.Since(begun))
			w.requireFree("a")
		}
	})
}

func TestTheWorkEndsBeforeTheLockIsFree(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		section := w.enter(t.Context(), l)
		m.link.on(delay(time.Second, 0), cmdRelease)
		exit := w.begin(section, unlock(l))
		require.Equal(t, relock.ErrReleased, context.Cause(section))
		require.False(t, w.free("a"))
		require.NoError(t, exit.failure())
		require.True(t, w.free("a"))
	})
}

func TestAWaiterIsServedTheMomentTheLockIsFree(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), l)
		waiting := w.start(t.Context(), m.NewLock("a"))
		m.link.reset()
		pass(time.Hour)
		require.True(t, waiting.waits())
		require.Zero(t, m.link.sent(), "a waiter does not ask again and again")
		w.leave(section, l)
		_ = waiting.section()
		require.Equal(t, time.Hour, waiting.took())
	})
}

func TestAWaitMayBeAsLongAsADurationIs(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section, err := l.TryLockFor(t.Context(), math.MaxInt64)
		require.NoError(t, err)
		waiting := w.begin(t.Context(), tryFor(l, math.MaxInt64))
		pass(time.Minute)
		require.True(t, waiting.waits())
		w.leave(section, l)
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

func TestACallEndsWithItsContextAlsoInSilence(t *testing.T) {
	for name, when := range map[string]time.Duration{"from the start": 0, "while waiting": time.Minute} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient().NewLock("a")
				section := w.enter(t.Context(), l)
				m := w.NewClient()
				ctx, cancel := context.WithCancel(t.Context())
				if when == 0 {
					m.link.cut()
				}
				call := w.start(ctx, m.NewLock("a"))
				pass(when)
				m.link.cut()
				pass(time.Second)
				cancel()
				err := call.failure()
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, relock.ErrUnavailable)
				require.Equal(t, when > 0, errors.Is(err, relock.ErrLocked), "only if the store has said so")
				require.Equal(t, when+time.Second, call.took())
				m.link.heal()
				pass(2 * relock.DefaultTTL)
				require.Zero(t, w.waiters("a"), "the place is taken back")
				w.leave(section, l)
				pass(time.Minute)
				w.requireFree("a")
			})
		})
	}
}

func TestAWaitThatIsOverSaysThatTheStoreIsSilent(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holder := w.enter(t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClient()
		call := w.begin(t.Context(), tryFor(m.NewLock("a"), time.Minute))
		m.link.cut()
		err := call.failure()
		require.Equal(t, time.Minute, call.took())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, relock.ErrUnavailable)
		var refusal *relock.LockedError
		require.ErrorAs(t, err, &refusal)
		require.Equal(t, holderOf(t, holder), refusal.Holder, "as the store has said last")

		call = w.begin(t.Context(), tryFor(m.NewLock("b"), time.Minute))
		err = call.failure()
		require.Equal(t, time.Minute, call.took())
		require.NotErrorIs(t, err, relock.ErrLocked, "nobody has said who has this one")
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "the wait is over")
	})
}

func TestAGrantToAWaiterThatHasGivenUpGoesToTheNext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := w.enter(t.Context(), l)
		quitter := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		first := w.start(ctx, quitter.NewLock("a"))
		second := w.start(t.Context(), w.NewClient().NewLock("a"))

		quitter.link.cut() // what takes its place back does not arrive
		cancel()
		require.ErrorIs(t, first.failure(), relock.ErrLocked)
		w.leave(section, l)
		require.True(t, second.waits())
		pass(time.Second)
		quitter.link.heal()
		_ = second.section()
		require.Less(t, second.took(), 10*time.Second, "well before the lease of the grant ends")
		require.NoError(t, l.ForceUnlock(t.Context()))
		w.requireFree("a")
	})
}

func TestAWaitThatEndsAsTheLockIsGrantedHasOneEnd(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, l *relock.Lock) (context.Context, error){
		"TryLockFor": func(ctx context.Context, l *relock.Lock) (context.Context, error) {
			return l.TryLockFor(ctx, time.Second)
		},
		"deadline": func(ctx context.Context, l *relock.Lock) (context.Context, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			time.AfterFunc(time.Minute, cancel)
			return l.Lock(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				entered := 0
				for range 200 {
					l, other := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
					section := w.enter(t.Context(), l)
					time.AfterFunc(time.Second, func() { _ = l.Unlock(section) })
					got, err := wait(t.Context(), other)
					if err == nil {
						entered++
						require.True(t, other.Held(got))
						w.leave(got, other)
					} else {
						require.True(t, errors.Is(err, relock.ErrLocked) || errors.Is(err, context.DeadlineExceeded), "%v", err)
					}
					pass(time.Millisecond)
					w.requireFree("a")
				}
				t.Logf("entered %d of 200 times", entered)
			})
		})
	}
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
		end  func(m *member, owner *relock.Lock, section context.Context) error
		want error
	}{
		"the wait is over": {wait: time.Second, want: relock.ErrLocked},
		"the client is closed": {
			wait: time.Hour, want: relock.ErrClosed,
			end: func(m *member, _ *relock.Lock, _ context.Context) error { return m.Close() },
		},
		"the call enters": {
			wait: time.Hour,
			end:  func(_ *member, owner *relock.Lock, section context.Context) error { return owner.Unlock(section) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				owner := w.NewClient().NewLock("a")
				section := w.enter(t.Context(), owner)
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				parent := &overheard{Context: context.Background(), done: make(chan struct{})}
				call := w.begin(parent, tryFor(l, c.wait))
				require.True(t, call.waits())
				require.Positive(t, parent.heard.Load())
				if c.end != nil {
					require.NoError(t, c.end(m, owner, section))
				}
				mine, err := call.result()
				require.ErrorIs(t, err, c.want)
				if err != nil {
					require.Equal(t, context.Context(parent), mine)
				} else {
					require.EqualValues(t, 1, parent.heard.Load())
					w.leave(mine, l)
				}
				require.Zero(t, parent.heard.Load())
				for range 3 {
					runtime.GC()
					pass(relock.DefaultTTL)
				}
				require.Empty(t, eventsOf[relock.Leaked](&r))
			})
		})
	}
}

// answering is a store whose Wait answers as the test wants.
type answering struct {
	*mem.Store
	wait func(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error)
}

func (s *answering) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	return s.wait(ctx, a, progress)
}

func TestAnErrorOfTheStoreEndsAWaitAndIsNoRefusal(t *testing.T) {
	broken := errors.New("WRONGTYPE")
	for name, unsure := range map[string]bool{"it did not run": false, "it may have run": true} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				s := &answering{Store: w.Store}
				s.wait = func(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
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
				for _, lock := range []locking{l.Lock, tryFor(l, time.Minute)} {
					ctx, err := lock(t.Context())
					require.ErrorIs(t, err, broken)
					require.NotErrorIs(t, err, relock.ErrLocked)
					require.Equal(t, t.Context(), ctx)
					w.requireFree("a")
				}
			})
		})
	}
}

func TestWhatACallMayHaveTakenIsTakenBack(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		m.link.on(loseAnswer(store.ErrUnavailable), cmdWait, cmdTry)
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
			_, err := lock(t.Context())
			require.ErrorIs(t, err, relock.ErrUnavailable)
			w.requireFree("a")
		}
	})
}

func TestACallBehindTooManyWaitersIsRefused(t *testing.T) {
	for name, options := range map[string][]relock.Option{
		"of the store":   nil,
		"of the process": opts(relock.WithLocalPass(0, time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(append(options, relock.WithMaxWaiters(2))...)
				l := m.NewLock("a")
				owner := w.enter(t.Context(), l)
				first, second := w.start(t.Context(), l), w.start(t.Context(), l)
				for _, lock := range []locking{l.Lock, tryFor(l, time.Minute)} {
					refused := w.begin(t.Context(), lock)
					err := refused.failure()
					require.ErrorIs(t, err, relock.ErrQueueFull)
					require.ErrorIs(t, err, relock.ErrLocked)
					require.NotErrorIs(t, err, context.Canceled)
					var locked *relock.LockedError
					require.ErrorAs(t, err, &locked)
					require.Equal(t, holderOf(t, owner), locked.Holder)
					require.Zero(t, refused.took())
				}
				require.True(t, first.waits() && second.waits(), "those who wait are not disturbed")
				w.leave(owner, l)
				third := w.start(t.Context(), l) // one place is free
				require.True(t, third.waits())
				for _, a := range []*attempt{first, second, third} {
					a.leave()
				}
				w.requireFree("a")
			})
		})
	}
}

func TestARefusalOfAFullQueueIsAnEventOfALockedLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithMaxWaiters(1), relock.WithHooks(r.Hooks())).NewLock("a")
		owner := w.enter(t.Context(), l)
		waiter := w.start(t.Context(), l)
		err := l.Do(t.Context(), func(context.Context) error { return nil })
		require.EqualError(t, err, fmt.Sprintf("relock: %q is locked by %s; its lease has 30s left and may be renewed: relock: the queue is full",
			"a", holderOf(t, owner)))
		require.True(t, relock.NotEntered(err))
		finished := eventsOf[relock.AcquireFinished](&r)
		require.Equal(t, relock.OutcomeLocked, finished[len(finished)-1].Outcome)
		w.leave(owner, l)
		waiter.leave()
	})
}

func TestTheQueueLimitCountsThePlaceInTheLineAndInTheStore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, other := w.NewClient(relock.WithMaxWaiters(2), relock.WithLocalPass(0, 0)), w.NewClient().NewLock("a")
		owner := w.enter(t.Context(), other)
		var before []*attempt
		for range 3 {
			before = append(before, w.start(t.Context(), other))
		}
		l := m.NewLock("a")
		require.ErrorIs(t, w.begin(t.Context(), l.Lock).failure(), relock.ErrQueueFull, "the head of a line has a place in the store's queue")
		first, second := w.begin(t.Context(), l.Lock), w.begin(t.Context(), l.Lock)
		require.ErrorIs(t, first.failure(), relock.ErrQueueFull)
		require.ErrorIs(t, second.failure(), relock.ErrQueueFull)
		w.leave(owner, other)
		for _, a := range before {
			a.leave()
		}
		w.requireFree("a")
	})
}

func TestTheQueueLimitHoldsForLocksThatAreAskedForAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m, other := w.NewClient(relock.WithTTL(time.Second), relock.WithMaxWaiters(1)), w.NewClient().NewLock("a")
		m.link.once(delay(0, 2*time.Second), cmdTryAll) // the leases are over when the answer comes
		both := w.begin(t.Context(), m.NewLocks([]string{"a", "b"}).Lock)
		pass(1500 * time.Millisecond)
		owner := w.enter(t.Context(), other)
		waiter := w.start(t.Context(), other)
		require.ErrorIs(t, both.failure(), relock.ErrQueueFull)
		w.leave(owner, other)
		waiter.leave()
		w.requireFree("a", "b")
	})
}
