package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// ---------------------------------------------------------------------------------------------------------------------
// Entering and leaving.

func TestALockThatIsFreeIsEnteredAtOnceAndUnlockFreesIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		require.Equal(t, "a", l.Name())
		require.NoError(t, l.Err())
		begun := time.Now()

		ctx, err := l.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, ctx.Err())
		require.True(t, l.Held(ctx))
		require.Equal(t, 1, l.Count(ctx))
		require.Positive(t, l.Token(ctx))
		holder, ok := relock.HolderFrom(ctx)
		require.True(t, ok)
		state, err := l.State(ctx)
		require.NoError(t, err)
		require.Equal(t, relock.State{Holder: holder, Count: 1, TTL: relock.DefaultTTL, Token: l.Token(ctx)}, state)
		require.True(t, state.Locked())

		require.NoError(t, l.Unlock(ctx))
		require.False(t, l.Held(ctx))
		w.requireNothingLeft("a")
		state, err = l.State(t.Context())
		require.NoError(t, err)
		require.False(t, state.Locked())
		require.Zero(t, state.Count)
		require.Zero(t, state.TTL)
		require.Zero(t, time.Since(begun), "nothing had to be waited for")
	})
}

func TestEveryNewHoldHasALargerToken(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		one, two := w.NewClient().NewLock("a"), w.NewClient().NewLock("a")
		last := int64(0)
		for i := range 10 {
			l := one
			if i%2 == 1 {
				l = two
			}
			if i == 5 {
				w.FlushAll() // the last token is forgotten, and the clock has moved on as it would in life
				pass(time.Millisecond)
			}
			ctx := enter(t, t.Context(), l)
			require.Greater(t, l.Token(ctx), last)
			last = l.Token(ctx)
			require.NoError(t, l.Unlock(ctx))
		}
	})
}

func TestANestedCallEntersAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		begun := time.Now()
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)

		require.Equal(t, 2, l.Count(inner))
		require.Equal(t, 2, l.Count(outer), "the count is the holder's, not the entry's")
		require.Equal(t, l.Token(outer), l.Token(inner), "it is one hold, so it has one token")
		outerHolder, _ := relock.HolderFrom(outer)
		innerHolder, _ := relock.HolderFrom(inner)
		require.Equal(t, outerHolder, innerHolder)
		state, err := l.State(inner)
		require.NoError(t, err)
		require.Equal(t, 2, state.Count)

		require.NoError(t, l.Unlock(inner))
		require.ErrorIs(t, context.Cause(inner), relock.ErrReleased)
		require.NoError(t, outer.Err())
		require.Equal(t, 1, l.Count(outer))
		state, err = l.State(outer)
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)

		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
		require.Zero(t, time.Since(begun))
	})
}

func TestTryLockAndTryLockForReenterTheirHoldersLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		one := enter(t, t.Context(), l)
		two, err := l.TryLock(one)
		require.NoError(t, err)
		three, err := l.TryLockFor(two, time.Minute)
		require.NoError(t, err)
		require.Equal(t, 3, l.Count(three))
		for _, ctx := range []context.Context{three, two, one} {
			require.NoError(t, l.Unlock(ctx))
		}
		w.requireNothingLeft("a")
	})
}

func TestASecondUnlockIsErrNotHeldAndTheOuterSectionKeepsItsHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, l.Unlock(inner))
		for range 3 {
			require.ErrorIs(t, l.Unlock(inner), relock.ErrNotHeld)
		}
		require.False(t, l.Held(inner))
		require.Zero(t, l.Token(inner), "the section that it was is over")
		require.NoError(t, outer.Err())
		require.Equal(t, 1, l.Count(outer))
		state, err := l.State(outer)
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)

		require.NoError(t, l.Unlock(outer))
		require.ErrorIs(t, l.Unlock(outer), relock.ErrNotHeld)
		w.requireNothingLeft("a")
	})
}

func TestASecondUnlockDoesNotTouchTheHoldThatTheSameHolderHasNow(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		first := enter(t, request, l)
		require.NoError(t, l.Unlock(first))
		second := enter(t, request, l)
		require.ErrorIs(t, l.Unlock(first), relock.ErrNotHeld)
		require.True(t, l.Held(second))
		require.NoError(t, l.Unlock(second))
	})
}

func TestTwoUnlocksOfOneFrameAtOnceLeaveItOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		errs := make(chan error, 8)
		for range cap(errs) {
			go func() { errs <- l.Unlock(inner) }()
		}
		left := 0
		for range cap(errs) {
			if err := <-errs; err == nil {
				left++
			} else {
				require.ErrorIs(t, err, relock.ErrNotHeld)
			}
		}
		require.Equal(t, 1, left)
		require.Equal(t, 1, l.Count(outer))
		require.NoError(t, l.Unlock(outer))
	})
}

func TestAnOuterFrameLeftFirstLeavesTheLockToTheInner(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, l.Unlock(outer))
		require.ErrorIs(t, context.Cause(outer), relock.ErrReleased)
		require.ErrorIs(t, context.Cause(inner), relock.ErrReleased, "it is a child of the outer one's context")
		require.True(t, l.Held(inner))
		require.Equal(t, 1, l.Count(inner))

		// The request lives, so the lease is renewed as before.
		other := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)
		pass(10 * ttl)
		require.True(t, other.waits())
		require.True(t, l.Held(inner))

		require.NoError(t, l.Unlock(inner))
		require.NoError(t, other.section().Err())
		require.Equal(t, 10*ttl, other.took())
	})
}

func TestAnInnerFrameThatIsLeftOpenIsNotRenewedAnyMoreOnceTheRequestIsDone(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		request, done := context.WithCancel(t.Context())
		outer := enter(t, request, l)
		inner := enter(t, outer, l)
		require.NoError(t, l.Unlock(outer))
		other := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl)).NewLock("a").Lock)
		pass(3 * ttl)
		require.True(t, other.waits())

		done()
		_ = other.section()
		require.LessOrEqual(t, other.took(), 3*ttl+ttl+10*time.Millisecond, "at most one TTL after the request")
		require.ErrorIs(t, l.Unlock(inner), relock.ErrLockLost)
	})
}

func TestManyGoroutinesOfOneSectionReenterAndLeaveInAnyOrder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		outer := enter(t, t.Context(), l)
		var wg sync.WaitGroup
		var inside, most atomic.Int64
		for range 50 {
			wg.Go(func() {
				for range 3 {
					ctx, err := l.Lock(outer)
					if err != nil {
						t.Errorf("nested lock: %v", err)
						return
					}
					most.Store(max(most.Load(), inside.Add(1)))
					time.Sleep(time.Duration(1+rand.IntN(5)) * time.Second) //nolint:forbidigo // fake time
					deeper, err := l.TryLock(ctx)
					if err != nil {
						t.Errorf("deeper lock: %v", err)
						return
					}
					if rand.IntN(2) == 0 {
						ctx, deeper = deeper, ctx
					}
					inside.Add(-1)
					if err := errors.Join(l.Unlock(ctx), l.Unlock(deeper)); err != nil {
						t.Errorf("unlock: %v", err)
					}
				}
			})
		}
		wg.Wait()
		require.Greater(t, most.Load(), int64(10), "they were inside together")
		require.Equal(t, 1, l.Count(outer))
		state, err := l.State(outer)
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)
		require.NoError(t, outer.Err())
		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
	})
}

func TestTheLastOfManyFramesFreesTheLockWhicheverItIs(t *testing.T) {
	for last := range 4 {
		t.Run(fmt.Sprintf("frame %d", last), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient().NewLock("a")
				ctx := relock.WithHolder(t.Context(), relock.NewHolder())
				var frames []context.Context
				for range 4 {
					frames = append(frames, enter(t, ctx, l))
				}
				for i, frame := range frames {
					if i != last {
						require.NoError(t, l.Unlock(frame))
						require.True(t, l.Held(frames[last]))
						require.NoError(t, frames[last].Err(), "siblings do not end each other")
					}
				}
				require.Equal(t, 1, l.Count(frames[last]))
				require.NoError(t, l.Unlock(frames[last]))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestUnlockWithAContextWithoutAFrameIsErrNotHeld(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		h, _ := relock.HolderFrom(section)
		for name, ctx := range map[string]context.Context{
			"no holder":       t.Context(),
			"the holder only": relock.WithHolder(t.Context(), h),
			"without holder":  relock.WithoutHolder(section),
			"another holder":  relock.WithHolder(section, relock.NewHolder()),
		} {
			err := l.Unlock(ctx)
			require.ErrorIs(t, err, relock.ErrNotHeld, name)
			require.ErrorContains(t, err, `"a"`, name)
			require.False(t, l.Held(ctx), name)
			require.Zero(t, l.Count(ctx), name)
			require.Zero(t, l.Token(ctx), name)
			require.Zero(t, l.Remaining(ctx), name)
		}
		require.True(t, l.Held(section))
		require.NoError(t, l.Unlock(section))
	})
}

func TestUnlockOfAnotherLocksFrameIsErrNotHeld(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c, other := w.NewClient(), w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		section := enter(t, t.Context(), a)
		require.ErrorIs(t, b.Unlock(section), relock.ErrNotHeld, "another name")
		require.ErrorIs(t, other.NewLock("a").Unlock(section), relock.ErrNotHeld, "another client")
		require.ErrorIs(t, c.NewLock("a", relock.WithPrefix("p:")).Unlock(section), relock.ErrNotHeld, "another prefix")
		require.True(t, a.Held(section))
		require.NoError(t, a.Unlock(section))
	})
}

func TestUnlockTakesTheFrameOfItsOwnLockOutOfANest(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		inA := enter(t, t.Context(), a)
		inB := enter(t, inA, b)

		// A context from inside serves to leave the lock outside of it.
		require.NoError(t, a.Unlock(inB))
		require.ErrorIs(t, context.Cause(inA), relock.ErrReleased)
		require.True(t, w.free("a"))
		require.True(t, b.Held(inB))
		require.NoError(t, b.Unlock(inB))
		w.requireNothingLeft("b")
	})
}

func TestUnlockWorksWithADerivedContextAndWithACancelledOne(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		request, cancel := context.WithCancel(t.Context())
		section := enter(t, request, l)
		derived, cancelDerived := context.WithTimeout(section, time.Hour)
		defer cancelDerived()
		cancel()
		require.ErrorIs(t, derived.Err(), context.Canceled)
		require.NoError(t, l.Unlock(derived))
		w.requireNothingLeft("a")
	})
}

func TestTwoLockObjectsOfOneNameAreTheSameLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		section := enter(t, t.Context(), c.NewLock("a"))
		twin := c.NewLock("{a}") // the same key
		require.True(t, twin.Held(section))
		_, err := twin.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		inner := enter(t, section, twin)
		require.Equal(t, 2, twin.Count(inner))
		require.NoError(t, c.NewLock("a").Unlock(inner))
		require.NoError(t, twin.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestLocksOfDifferentNamesAndPrefixesDoNotMeet(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		for _, l := range []*relock.Lock{
			c.NewLock("a"), c.NewLock("b"), c.NewLock("a", relock.WithPrefix("p:")), c.NewLock("a", relock.WithPrefix("")),
			c.NewLock("a:queue"), c.NewLock("a:token"),
		} {
			section, err := l.TryLock(t.Context())
			require.NoError(t, err, l.Name())
			defer func() { require.NoError(t, l.Unlock(section)) }()
		}
	})
}

func TestHandOverHandOneHolderWalksAlongAChainOfLocks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		c := w.NewClient(relock.WithTTL(ttl))
		// Each lock is taken with the request's context, not with the section before, as that ends on the way.
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		last, lastLock := context.Context(nil), (*relock.Lock)(nil)
		for i := range 5 {
			l := c.NewLock(fmt.Sprint("node ", i))
			section := enter(t, request, l)
			if last != nil {
				require.NoError(t, lastLock.Unlock(last))
			}
			pass(3 * ttl)
			require.NoError(t, section.Err())
			require.True(t, l.Held(section))
			last, lastLock = section, l //nolint:fatcontext // each is made from the request
		}
		require.NoError(t, lastLock.Unlock(last))
		for i := range 5 {
			w.requireNothingLeft(fmt.Sprint("node ", i))
		}
	})
}

func TestALockTakenInsideAnotherOnesSectionOutlivesIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		c := w.NewClient(relock.WithTTL(ttl))
		a, b := c.NewLock("a"), c.NewLock("b")
		inA := enter(t, t.Context(), a)
		inB := enter(t, inA, b)
		require.NoError(t, a.Unlock(inA))
		require.True(t, w.free("a"))
		// Its context has ended with the one it was made from, and the lock is held until its own Unlock.
		require.ErrorIs(t, context.Cause(inB), relock.ErrReleased)
		pass(5 * ttl)
		require.True(t, b.Held(inB))
		require.NoError(t, b.Unlock(inB))
	})
}

func TestAnExitThatCannotWaitForAnEntryOnTheWireIsCountedAllTheSame(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		one := enter(t, t.Context(), l)
		two := enter(t, one, l)
		m.net.Partition()
		three := begin(t, one, l.Lock) // asks until Redis answers
		require.Error(t, l.Unlock(two))
		require.True(t, three.waits())
		m.net.Heal()
		deepest := three.section()
		require.Equal(t, 2, l.Count(deepest))
		pass(10 * time.Second)
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, state.Count, "what the holder did is what Redis counts")
		require.NoError(t, l.Unlock(deepest))
		require.NoError(t, l.Unlock(one))
		w.requireNothingLeft("a")
	})
}

func TestALastExitThatCannotWaitForAnEntryOnTheWireFreesTheLockLongBeforeItsLeaseEnds(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		one := enter(t, t.Context(), l)
		m.net.Partition()
		two := begin(t, context.WithoutCancel(one), l.Lock) // asks until Redis answers
		require.Error(t, l.Unlock(one))
		require.True(t, two.waits())
		m.net.Heal()
		_, err := two.result()
		require.ErrorIs(t, err, relock.ErrReleased)
		var failed *relock.OpError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "a", failed.Name)
		pass(10 * time.Second)
		w.requireNothingLeft("a")
	})
}

func TestANestedCallThatRedisDoesNotAnswerIsNotErrLocked(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		m.net.Partition()
		first := begin(t, section, l.Lock) // has the hold's turn
		for name, lock := range map[string]locking{"Lock": l.Lock, "TryLockFor": tryFor(l, 10*time.Second)} {
			ctx, cancel := context.WithTimeout(section, 5*time.Second)
			_, err := lock(ctx)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s: the holder has it itself", name)
		}
		_, err := l.TryLockFor(section, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, relock.ErrLocked)
		m.net.Heal()
		require.NoError(t, l.Unlock(first.section()))
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, state.Count)
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestANestedCallWhoseLeaseEndsWhileRedisIsSilentIsErrLockLost(t *testing.T) {
	for name, detached := range map[string]bool{"in its section": false, "under a context that does not end with it": true} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithTTL(time.Second), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				for range 20 { // the watchdog and the call find out at the same time
					for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
						section := enter(t, t.Context(), l)
						m.net.Partition()
						ctx := section
						if detached {
							ctx = context.WithoutCancel(section)
						}
						_, err := lock(ctx)
						require.ErrorIs(t, err, relock.ErrLockLost)
						require.NotErrorIs(t, err, context.DeadlineExceeded, "nobody has set one")
						finished := eventsOf[relock.AcquireFinished](&r)
						require.Equal(t, relock.OutcomeLost, finished[len(finished)-1].Outcome)
						m.net.Heal()
						require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
						pass(time.Minute)
						w.requireNothingLeft("a")
					}
				}
			})
		})
	}
}

// The lease that was known when it asked is over before Redis can answer, and has been renewed by then. It must not give up and ask
// again each time: it would never enter.
func TestANestedEntryAndItsExitAreAskedForOnceAlsoWhereRedisIsHalfALeaseAway(t *testing.T) {
	const ttl, trip = 100 * time.Millisecond, 45 * time.Millisecond
	for name, nested := range map[string]func(*relock.Lock) locking{
		"Lock":       func(l *relock.Lock) locking { return l.Lock },
		"TryLock":    func(l *relock.Lock) locking { return l.TryLock },
		"TryLockFor": func(l *relock.Lock) locking { return tryFor(l, time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(ttl))
				w.warm(m)
				l, observer := m.NewLock("a"), w.NewClient().NewLock("a")
				count := func() int {
					state, err := observer.State(t.Context())
					require.NoError(t, err)
					return state.Count
				}
				outer := enter(t, t.Context(), l)
				for d := ttl / 10; d <= trip; d += ttl / 20 { // step by step: to make a connection takes longer than a lease in the end
					m.net.Delay(d)
					pass(time.Second)
				}
				for range 5 {
					ctx, cancel := context.WithTimeout(outer, 100*trip)
					defer cancel()
					entry := begin(t, ctx, nested(l))
					inner := entry.section()
					require.Equal(t, trip, entry.took())
					require.Equal(t, 2, count())
					exit := begin(t, inner, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
					_ = exit.section()
					require.Equal(t, trip, exit.took())
					require.Equal(t, 1, count())
					pass(17 * time.Millisecond) // another part of the lease
				}
				require.Zero(t, goroutines(").settle("))
				_ = l.Unlock(outer) // nothing renews the lease while this is under way
				pass(ttl)
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAnInnerExitThatRedisRefusesIsToldWhenItRefusesNoMore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(time.Minute))
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		third := enter(t, outer, l)
		refuse := m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots"))
		require.ErrorContains(t, l.Unlock(third), "MISCONF")
		require.ErrorContains(t, l.Unlock(inner), "MISCONF")
		pass(10 * time.Second) // of which no renewal is a part
		require.Equal(t, 1, goroutines(").settle("))
		require.InDelta(t, 20, refuse.Hits(), 5, "tries, with pauses that grow to a second")
		count := func() int {
			state, err := w.NewClient().NewLock("a").State(t.Context())
			require.NoError(t, err)
			return state.Count
		}
		require.Equal(t, 3, count())
		refuse.Remove()
		pass(time.Second)
		require.Equal(t, 1, count())
		require.Zero(t, goroutines(").settle("))

		inner = enter(t, outer, l)
		refuse = m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots"))
		require.ErrorContains(t, l.Unlock(inner), "MISCONF")
		refuse.Remove()
		require.NoError(t, l.Unlock(outer))
		pass(time.Second)
		require.Zero(t, goroutines(").settle("), "the hold is over")
		w.requireNothingLeft("a")
	})
}

// Redis refuses an inner exit, and is told of it again after pauses.
func TestARefusedInnerExitThatIsToldAgainHoldsUpNoCloseFindsALossAndRenewsNothingThatNobodyWants(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, w *world, m *member, l *relock.Lock, outer context.Context, refuse *redistest.Rule, cancel func()){
		"the client is closed": func(t *testing.T, _ *world, m *member, l *relock.Lock, outer context.Context, _ *redistest.Rule, _ func()) {
			t.Helper()
			begun := time.Now()
			require.NoError(t, m.Close())
			require.Zero(t, time.Since(begun), "Close waits for no pause")
			require.Zero(t, goroutines(").settle("))
			require.ErrorContains(t, l.Unlock(outer), "MISCONF")
		},
		"the lock is taken away": func(t *testing.T, w *world, _ *member, l *relock.Lock, outer context.Context, refuse *redistest.Rule, _ func()) {
			t.Helper()
			require.NoError(t, w.NewClient().NewLock("a").ForceUnlock(t.Context()))
			refuse.Remove()
			took, cause := ends(t, outer)
			require.ErrorIs(t, cause, relock.ErrLockLost)
			require.LessOrEqual(t, took, time.Second, "long before the next renewal")
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		},
		"the request is done": func(t *testing.T, w *world, _ *member, l *relock.Lock, outer context.Context, refuse *redistest.Rule, cancel func()) {
			t.Helper()
			cancel()
			left := w.lease("a")
			refuse.Remove()
			pass(time.Second)
			state, err := l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, state.Count)
			require.LessOrEqual(t, state.TTL, left-time.Second, "a lock outlives its request by one TTL at most")
			pass(left)
			require.True(t, w.free("a"))
			require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(time.Minute))
				w.warm(m)
				l := m.NewLock("a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				outer := enter(t, ctx, l)
				inner := enter(t, outer, l)
				refuse := m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots"))
				require.ErrorContains(t, l.Unlock(inner), "MISCONF")
				pass(10 * time.Second) // of which no renewal is a part
				require.Equal(t, 1, goroutines(").settle("))
				then(t, w, m, l, outer, refuse, cancel)
				pass(2 * time.Minute)
				require.Zero(t, goroutines(").settle("))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAnInnerExitThatRedisDoesNotAnswerRenewsNothingThatNobodyWantsWhenItIsToldAgain(t *testing.T) {
	for name, done := range map[string]time.Duration{ // since Unlock
		"while Unlock tries": 5 * time.Second, "when it has given up": 15 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient(relock.WithTTL(time.Minute))
				w.warm(m)
				l := m.NewLock("a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				outer := enter(t, ctx, l)
				inner := enter(t, outer, l)
				unanswered := m.net.On(redistest.Named("EVALSHA"), redistest.CutBefore(redistest.EOF))
				exit := begin(t, inner, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
				pass(done)
				cancel()
				left := w.lease("a")
				pass(4 * time.Second)
				unanswered.Remove()
				pass(time.Second)
				require.False(t, exit.waits())
				state, err := l.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, state.Count)
				require.LessOrEqual(t, state.TTL, left-5*time.Second, "a lock outlives its request by one TTL at most")
				pass(left)
				require.True(t, w.free("a"))
				require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
			})
		})
	}
}

func TestAnInnerUnlockThatIsNotConfirmedGivesUpAtItsLimitThoughTheLeaseIsRenewed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(3 * time.Second))
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		var last atomic.Value // script that was called
		m.net.On(redistest.Named("EVALSHA"), redistest.Before(func(args []string) { last.Store(args[1]) }))
		require.NoError(t, l.Unlock(enter(t, inner, l)))
		release := last.Load().(string)
		lost := m.net.On(redistest.Named("EVALSHA").And(redistest.WithArg(release)), redistest.CutBefore(redistest.EOF))

		exit := begin(t, inner, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
		_, err := exit.result()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled, "nobody has cancelled anything")
		require.Equal(t, 10*time.Second, exit.took())
		require.True(t, l.Held(outer), "renewals go on")
		lost.Remove()
		pass(time.Second) // and what was not confirmed is told
		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
	})
}

func TestANestedTryLockTakesItsTurnBehindAnotherEntryAlsoWhereTheFirstOneHadToQueue(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		before := enter(t, t.Context(), l)
		request := relock.WithHolder(t.Context(), relock.NewHolder()) // others may know it while it queues
		queued := begin(t, request, l.Lock)
		require.True(t, queued.waits())
		require.NoError(t, l.Unlock(before))
		section := queued.section()

		m.net.Partition()
		first := begin(t, section, l.Lock) // has the hold's turn
		second := begin(t, section, l.TryLock)
		require.True(t, second.waits())
		m.net.Heal()
		require.NoError(t, l.Unlock(first.section()))
		require.NoError(t, l.Unlock(second.section()))
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Exclusion.

func TestTwoUnrelatedCallsNeverEnterTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		// The same request's context, which is outside of the section: another goroutine of that request.
		other := begin(t, t.Context(), l.Lock)
		apart := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		pass(5 * time.Minute)
		require.True(t, other.waits())
		require.True(t, apart.waits())
		require.NoError(t, l.Unlock(section))

		second := other.section()
		require.True(t, apart.waits())
		first, _ := relock.HolderFrom(section)
		holder, _ := relock.HolderFrom(second)
		require.NotEqual(t, first, holder)
		require.NoError(t, l.Unlock(second))
		_ = apart.section()
	})
}

func TestManyContendersAreNeverInsideTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = time.Second
		var wg sync.WaitGroup
		var inside, sections atomic.Int64
		for range 4 {
			l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
			for range 5 {
				wg.Go(func() {
					for range 4 {
						err := l.Do(t.Context(), func(ctx context.Context) error {
							if n := inside.Add(1); n != 1 {
								t.Errorf("%d are inside", n)
							}
							defer inside.Add(-1)
							sections.Add(1)
							time.Sleep(rand.N(2 * ttl)) //nolint:forbidigo // fake time
							return ctx.Err()
						})
						if err != nil {
							t.Errorf("do: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, 80, sections.Load())
		w.requireNothingLeft("a")
	})
}

func TestSiblingsByWithHolderEnterTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		one, two := begin(t, request, l.Lock), begin(t, request, l.TryLock)
		require.Equal(t, 2, l.Count(one.section()))
		require.Equal(t, l.Token(one.section()), l.Token(two.section()))
		require.NoError(t, l.Unlock(one.section()))
		require.NoError(t, two.section().Err())
		require.True(t, l.Held(two.section()))
		require.NoError(t, l.Unlock(two.section()))
		w.requireNothingLeft("a")
	})
}

func TestSiblingsThatWaitTogetherEnterTogether(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		one, two := begin(t, request, l.Lock), begin(t, request, l.Lock)
		require.True(t, one.waits())
		require.True(t, two.waits())
		require.Len(t, w.queue("a"), 1, "one holder queues once")
		pass(time.Minute)
		require.NoError(t, l.Unlock(section))
		require.Equal(t, l.Token(one.section()), l.Token(two.section()))
		require.Equal(t, 2, l.Count(one.section()))
		require.NoError(t, l.Unlock(one.section()))
		require.NoError(t, l.Unlock(two.section()))
		w.requireNothingLeft("a")
	})
}

func TestTheSiblingOfAWaiterThatGivesUpTakesItsTurn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		impatient := begin(t, request, tryFor(l, time.Minute))
		patient := begin(t, request, l.Lock)
		_, err := impatient.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, time.Minute, impatient.took())
		pass(time.Minute)
		require.True(t, patient.waits())
		require.Len(t, w.queue("a"), 1, "the patient one queues for itself now")
		require.NoError(t, l.Unlock(section))
		require.Equal(t, 1, l.Count(patient.section()))
		require.NoError(t, l.Unlock(patient.section()))
		w.requireNothingLeft("a")
	})
}

func TestTryLockOfASiblingOnASilentRedisEnds(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprint("held: ", held), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				w.warm(m)
				l := m.NewLock("a")
				shared := relock.WithHolder(t.Context(), relock.NewHolder())
				if held {
					enter(t, shared, l)
				}
				m.net.Partition()
				waiting := begin(t, shared, l.Lock) // asks until Redis answers
				_, err := begin(t, shared, l.TryLock).result()
				require.ErrorContains(t, err, "no answer from Redis yet")
				require.NotErrorIs(t, err, relock.ErrLocked)
				require.True(t, waiting.waits())
				m.net.Heal()
				require.NoError(t, l.Unlock(waiting.section()))
			})
		})
	}
}

func TestWhoWaitsForASiblingOnASilentRedisIsNotToldErrLocked(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		shared := relock.WithHolder(t.Context(), relock.NewHolder())
		m.net.Partition()
		waiting := begin(t, shared, l.Lock)
		ctx, cancel := context.WithTimeout(shared, time.Second)
		defer cancel()
		for name, call := range map[string]func() (context.Context, error){
			"Lock":       func() (context.Context, error) { return l.Lock(ctx) },
			"TryLockFor": func() (context.Context, error) { return l.TryLockFor(shared, time.Second) },
		} {
			_, err := call()
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.NotErrorIs(t, err, relock.ErrLocked, "%s: Redis has not said who has it", name)
		}
		m.net.Heal()
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

// Who has the same holder and is in no section takes the lock anew when the hold that it asked for is over.
func TestASiblingOutsideOfTheSectionIsNotToldOfItsEnd(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, w *world, m *member, l *relock.Lock, first, shared context.Context) context.Context{
		"it finds the loss": func(t *testing.T, w *world, _ *member, l *relock.Lock, _, shared context.Context) context.Context {
			t.Helper()
			w.Del(base("a"))
			return enter(t, shared, l)
		},
		"the lease ends while it asks": func(t *testing.T, _ *world, m *member, l *relock.Lock, _, shared context.Context) context.Context {
			t.Helper()
			m.net.Partition()
			second := begin(t, shared, l.Lock)
			pass(10 * time.Minute)
			m.net.Heal()
			return second.section()
		},
		"an Unlock that cannot wait for it": func(t *testing.T, _ *world, m *member, l *relock.Lock, first, shared context.Context) context.Context {
			t.Helper()
			m.net.Partition()
			second := begin(t, shared, l.Lock)
			require.Error(t, l.Unlock(first))
			m.net.Heal()
			return second.section()
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				m := w.NewClient(relock.WithTTL(5*time.Minute), relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				shared := relock.WithHolder(t.Context(), relock.NewHolder())
				first := enter(t, shared, l)
				second := end(t, w, m, l, first, shared)
				require.Error(t, first.Err())
				require.Equal(t, 1, l.Count(second))
				for _, event := range eventsOf[relock.AcquireFinished](&r) {
					require.Equal(t, relock.OutcomeAcquired, event.Outcome)
					require.False(t, event.Reentrant, "each has taken the lock anew")
					require.Equal(t, 1, event.Depth)
				}
				require.NoError(t, l.Unlock(second))
				pass(10 * time.Minute)
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestTryLockOfASiblingWhileAnotherCallOfItsHolderQueuesIsErrLockedAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		waiting := begin(t, request, l.Lock)
		require.True(t, waiting.waits())

		sibling := begin(t, request, l.TryLock)
		ctx, err := sibling.result()
		require.Zero(t, sibling.took())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, request, ctx)
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "a", locked.Name)
		require.NoError(t, locked.Err)

		// TryLockFor of a sibling waits as long as it may, and no longer.
		sibling = begin(t, request, tryFor(l, time.Second))
		_, err = sibling.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.Equal(t, time.Second, sibling.took())
		require.True(t, waiting.waits(), "its place is not lost by that")
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// What a section's context says.

func TestOnErrorTheContextIsTheCallersAndNeverNil(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		deadline, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for name, call := range map[string]struct {
			ctx  context.Context
			lock locking
		}{
			"busy":          {t.Context(), l.TryLock},
			"the wait ends": {t.Context(), tryFor(l, time.Second)},
			"the deadline":  {deadline, l.Lock},
			"cancelled":     {cancelled, l.Lock},
			"wrong wait":    {t.Context(), tryFor(l, -1)},
			"wrong name":    {t.Context(), c.NewLock("").Lock},
			"wrong option":  {t.Context(), c.NewLock("a", relock.WithTTL(0)).TryLock},
		} {
			ctx, err := call.lock(call.ctx)
			require.Error(t, err, name)
			require.Equal(t, call.ctx, ctx, name)
			_, carries := relock.HolderFrom(ctx)
			require.False(t, carries, name)
		}
		require.NoError(t, l.Unlock(section))
		require.NoError(t, c.Close())
		ctx, err := l.Lock(t.Context())
		require.ErrorIs(t, err, relock.ErrClosed)
		require.Equal(t, t.Context(), ctx)
	})
}

func TestTheCauseOfASectionsContextSaysWhyItEnded(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")

		section := enter(t, t.Context(), l)
		require.NoError(t, context.Cause(section))
		require.NoError(t, l.Unlock(section))
		require.ErrorIs(t, section.Err(), context.Canceled)
		require.Equal(t, relock.ErrReleased, context.Cause(section))

		reason := errors.New("the client hung up")
		request, hangUp := context.WithCancelCause(t.Context())
		section = enter(t, request, l)
		hangUp(reason)
		require.Equal(t, reason, context.Cause(section))
		require.NoError(t, l.Unlock(section))
		require.Equal(t, reason, context.Cause(section), "the first cause stays")

		request, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		section = enter(t, request, l)
		require.Equal(t, mustDeadline(t, request), mustDeadline(t, section))
		pass(time.Second)
		require.ErrorIs(t, section.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(section), context.DeadlineExceeded)
		require.NoError(t, l.Unlock(section))

		section = enter(t, t.Context(), l)
		w.FlushAll()
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.ErrorIs(t, section.Err(), context.Canceled)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)

		section = enter(t, t.Context(), l)
		require.NoError(t, c.Close())
		require.Equal(t, relock.ErrClosed, context.Cause(section))
		require.NoError(t, l.Unlock(section))
	})
}

func mustDeadline(t *testing.T, ctx context.Context) time.Time { //nolint:revive // t comes first in a test helper
	t.Helper()
	deadline, ok := ctx.Deadline()
	require.True(t, ok)
	return deadline
}

func TestASectionsContextHasTheValuesOfTheCallers(t *testing.T) {
	type key struct{}
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, context.WithValue(t.Context(), key{}, "trace"), l)
		inner := enter(t, section, l)
		require.Equal(t, "trace", section.Value(key{}))
		require.Equal(t, "trace", inner.Value(key{}))
		_, ok := section.Deadline()
		require.False(t, ok)
		require.NoError(t, l.Unlock(inner))
		require.NoError(t, l.Unlock(section))
	})
}

func TestAWaitThatIsQueuedAtOnceIsRefusedWithWhoHasTheLockToo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		section := enter(t, t.Context(), w.NewClient().NewLock("a"))
		holder, _ := relock.HolderFrom(section)
		l := w.NewClient().NewLock("a")
		for _, what := range []string{"asks, subscribes, and is queued", "has the subscription, and is queued"} {
			_, err := l.TryLockFor(t.Context(), time.Second)
			require.ErrorIs(t, err, relock.ErrLocked, what)
			var refusal *relock.LockedError
			require.ErrorAs(t, err, &refusal, what)
			require.Equal(t, holder, refusal.Holder, what)
			require.Positive(t, refusal.TTL, what)
		}
	})
}

func TestTheWaitOfTryLockForIsNoDeadlineOfTheSection(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section, err := l.TryLockFor(t.Context(), time.Second)
		require.NoError(t, err)
		_, ok := section.Deadline()
		require.False(t, ok)
		pass(time.Hour)
		require.NoError(t, section.Err())
		require.True(t, l.Held(section))
		require.NoError(t, l.Unlock(section))
	})
}

func TestTheWorkEndsBeforeTheLockIsFree(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		c.net.Delay(time.Second)
		unlocked := make(chan error, 1)
		go func() { unlocked <- l.Unlock(section) }()
		settle()
		require.Equal(t, relock.ErrReleased, context.Cause(section))
		require.False(t, w.free("a"))
		require.NoError(t, <-unlocked)
		require.True(t, w.free("a"))
	})
}

func TestANestedCallInALostSectionIsErrLockLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		l := w.NewClient(relock.WithHooks(r.Hooks())).NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, l.ForceUnlock(t.Context()))

		// Before the watchdog knows: Redis says so.
		ctx, err := l.Lock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.Equal(t, section, ctx)
		var lost *relock.LostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, relock.LossTaken, lost.Reason)
		require.ErrorIs(t, context.Cause(section), relock.ErrLockLost)
		require.Len(t, eventsOf[relock.Lost](&r), 1)

		// Afterwards: the context says so.
		_, err = l.TryLock(section)
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrNotHeld)
		w.requireNothingLeft("a")
	})
}

func TestANestedCallUnderADetachedContextDoesNotReenterALostHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		token := l.Token(section)
		require.NoError(t, l.ForceUnlock(t.Context()))
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)

		// Such a context lives on. The lock is free, so it is taken as a new hold: that is no part of the broken section,
		// and its token says so.
		detached := context.WithoutCancel(section)
		inner := enter(t, detached, l)
		require.Greater(t, l.Token(inner), token)
		require.Equal(t, 1, l.Count(inner))
		require.False(t, l.Held(section), "the lost section has not come back")
		require.NoError(t, l.Unlock(inner))
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		w.requireNothingLeft("a")
	})
}

func TestANestedCallIsToldOfTheLossThroughSectionsOfOtherLocksToo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		inA := enter(t, t.Context(), a)
		inB := enter(t, inA, b)
		w.Del(base("a"))
		_, err := a.Lock(context.WithoutCancel(inB))
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.True(t, w.free("a"), "it has not been taken anew")
		require.NoError(t, b.Unlock(inB))
		require.ErrorIs(t, a.Unlock(inA), relock.ErrLockLost)
	})
}

func TestASectionInsideOneThatIsLostEndsWithIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		inA := enter(t, t.Context(), a)
		inB := enter(t, inA, b)
		blocked := enter(t, t.Context(), c.NewLock("c"))
		waiting := begin(t, inB, c.NewLock("c").Lock)
		pass(relock.DefaultTTL)
		require.NoError(t, a.ForceUnlock(t.Context()))
		_, cause := ends(t, inB)
		var lost *relock.LostError
		require.ErrorAs(t, cause, &lost)
		require.Equal(t, "a", lost.Name)

		// Who waits inside of it is told why it has to stop.
		_, err := waiting.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, relock.ErrLockLost)
		require.ErrorIs(t, err, context.Canceled)

		// The inner lock itself was not lost.
		require.True(t, b.Held(inB))
		require.NoError(t, b.Unlock(inB))
		require.ErrorIs(t, a.Unlock(inA), relock.ErrLockLost)
		require.NoError(t, c.NewLock("c").Unlock(blocked))
		for _, name := range []string{"a", "b", "c"} {
			w.requireNothingLeft(name)
		}
	})
}

func TestASiblingThatComesWhileTheLastExitIsOnTheWireTakesANewHold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		first := enter(t, request, l)
		token := l.Token(first)
		other := begin(t, t.Context(), w.NewClient().NewLock("a").Lock) // is before the sibling
		c.net.Delay(time.Second)
		unlocked := make(chan error, 1)
		go func() { unlocked <- l.Unlock(first) }()
		settle()
		sibling := begin(t, request, l.Lock)
		require.NoError(t, <-unlocked)
		require.NoError(t, other.section().Err())
		pass(time.Minute)
		require.True(t, sibling.waits())
		require.NoError(t, l.ForceUnlock(t.Context()))
		require.Greater(t, l.Token(sibling.section()), token)
		require.Equal(t, 1, l.Count(sibling.section()))
		require.NoError(t, l.Unlock(sibling.section()))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Do.

func TestDoRunsInsideTheLockAndReturnsWhatItsFunctionReturns(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		var section context.Context
		require.NoError(t, l.Do(t.Context(), func(ctx context.Context) error {
			require.True(t, l.Held(ctx))
			section = ctx //nolint:fatcontext // to be looked at afterwards
			return nil
		}))
		require.Equal(t, relock.ErrReleased, context.Cause(section))
		w.requireNothingLeft("a")

		failure := errors.New("out of stock")
		err := l.Do(t.Context(), func(context.Context) error { return failure })
		require.Equal(t, failure, err, "nothing is wrapped around it")
		w.requireNothingLeft("a")
	})
}

func TestDoReenters(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		depth := 0
		var nest func(ctx context.Context) error
		nest = func(ctx context.Context) error {
			if depth++; depth == 5 {
				require.Equal(t, 4, l.Count(ctx))
				return nil
			}
			return l.Do(ctx, nest)
		}
		require.NoError(t, nest(t.Context()))
		w.requireNothingLeft("a")
	})
}

func TestDoUnlocksWhenItsFunctionPanics(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		require.PanicsWithValue(t, "oops", func() {
			_ = l.Do(t.Context(), func(context.Context) error { panic("oops") })
		})
		w.requireNothingLeft("a")
	})
}

func TestDoUnlocksWhenItsFunctionEndsTheGoroutine(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = l.Do(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
			t.Error("Do returned")
		}()
		<-done
		w.requireNothingLeft("a")
	})
}

func TestDoDoesNotRunItsFunctionWithoutTheLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := l.Do(ctx, func(context.Context) error {
			t.Error("it ran")
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Unlock(section))
	})
}

func TestDoJoinsALossToWhatItsFunctionReturns(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		lose := func(ctx context.Context) {
			w.FlushAll()
			<-ctx.Done()
		}
		err := l.Do(t.Context(), func(ctx context.Context) error {
			lose(ctx)
			return fmt.Errorf("query: %w", ctx.Err()) // what a driver says
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, relock.ErrLockLost)
		var lost *relock.LostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, "a", lost.Name)

		err = l.Do(t.Context(), func(ctx context.Context) error {
			lose(ctx)
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLockLost, "also when the function saw nothing of it")

		var cause error
		err = l.Do(t.Context(), func(ctx context.Context) error {
			lose(ctx)
			cause = context.Cause(ctx)
			return cause
		})
		require.Equal(t, cause, err, "it is not told twice")

		// A loss that nobody has noticed before Unlock.
		err = l.Do(t.Context(), func(context.Context) error {
			w.FlushAll()
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLockLost)
	})
}

func TestDoWhoseFunctionUnlocksSaysThatItWasNotHeldAnyMore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		err := l.Do(t.Context(), func(ctx context.Context) error { return l.Unlock(ctx) })
		require.ErrorIs(t, err, relock.ErrNotHeld)
		w.requireNothingLeft("a")
	})
}

func TestDoForWaitsNoLongerThanItMay(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		begun := time.Now()
		err := l.DoFor(t.Context(), time.Minute, func(context.Context) error {
			t.Error("it ran")
			return nil
		})
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(begun))
		require.NoError(t, l.Unlock(section))

		// The wait is no limit to the function.
		require.NoError(t, l.DoFor(t.Context(), time.Second, func(ctx context.Context) error {
			pass(time.Hour)
			return ctx.Err()
		}))
		w.requireNothingLeft("a")
	})
}

// stubLocker is a Locker as a service's test has it.
type stubLocker struct{ lockErr, unlockErr error }

type stubKey struct{}

func (s *stubLocker) Lock(ctx context.Context) (context.Context, error) {
	return context.WithValue(ctx, stubKey{}, s), s.lockErr
}

func (s *stubLocker) TryLock(ctx context.Context) (context.Context, error) { return s.Lock(ctx) }

func (s *stubLocker) Unlock(ctx context.Context) error {
	if ctx.Value(stubKey{}) != s {
		return relock.ErrNotHeld
	}
	return s.unlockErr
}

func TestDoTakesAnyLocker(t *testing.T) {
	ran := 0
	run := func(context.Context) error {
		ran++
		return context.Canceled
	}
	require.Equal(t, context.Canceled, relock.Do(t.Context(), &stubLocker{}, run))
	require.Equal(t, 1, ran)
	err := relock.Do(t.Context(), &stubLocker{unlockErr: relock.ErrLockLost}, run)
	require.ErrorIs(t, err, relock.ErrLockLost)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, ran)
	require.ErrorIs(t, relock.Do(t.Context(), &stubLocker{lockErr: relock.ErrLocked}, run), relock.ErrLocked)
	require.Equal(t, 2, ran)
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors.

func TestErrorsMatchTheirKindAndTheirCauseAndNothingElse(t *testing.T) {
	sentinels := []error{
		relock.ErrLocked, relock.ErrNotHeld, relock.ErrLockLost, relock.ErrReleased, relock.ErrClosed, relock.ErrInvalid,
		relock.ErrNotReplicated, context.Canceled, context.DeadlineExceeded,
	}
	cause := errors.New("shutting down")
	for _, c := range []struct {
		name string
		err  func(t *testing.T, c *member, l *relock.Lock) error // l is held by another
		want []error
	}{
		{"TryLock of a held lock", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			_, err := l.TryLock(t.Context())
			return err
		}, []error{relock.ErrLocked}},
		{"the wait of TryLockFor is over", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			_, err := l.TryLockFor(t.Context(), time.Second)
			return err
		}, []error{relock.ErrLocked}},
		{"the caller's deadline during Lock", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.Lock(ctx)
			return err
		}, []error{relock.ErrLocked, context.DeadlineExceeded}},
		{"the caller's deadline during TryLockFor", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.TryLockFor(ctx, time.Hour)
			return err
		}, []error{relock.ErrLocked, context.DeadlineExceeded}},
		{"cancelled with a cause while waiting", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithCancelCause(t.Context())
			a := begin(t, ctx, l.Lock)
			cancel(cause)
			_, err := a.result()
			return err
		}, []error{relock.ErrLocked, context.Canceled, cause}},
		{"cancelled before", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := l.Lock(ctx)
			return err
		}, []error{context.Canceled}},
		{"past its deadline before", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			_, err := l.TryLock(ctx)
			return err
		}, []error{context.DeadlineExceeded}},
		{"the deadline while Redis is silent", func(t *testing.T, c *member, l *relock.Lock) error {
			t.Helper()
			c.net.Partition()
			defer c.net.Heal()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.Lock(ctx)
			return err
		}, []error{context.DeadlineExceeded}},
		{"the client is closed while waiting", func(t *testing.T, c *member, l *relock.Lock) error {
			t.Helper()
			a := begin(t, t.Context(), l.Lock)
			require.NoError(t, c.Close())
			_, err := a.result()
			return err
		}, []error{relock.ErrClosed}},
		{"the client was closed", func(t *testing.T, c *member, l *relock.Lock) error {
			t.Helper()
			require.NoError(t, c.Close())
			_, err := l.TryLock(t.Context())
			return err
		}, []error{relock.ErrClosed}},
		{"Unlock without Lock", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			return l.Unlock(t.Context())
		}, []error{relock.ErrNotHeld}},
		{"Extend without Lock", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			return l.Extend(t.Context(), time.Second)
		}, []error{relock.ErrNotHeld}},
		{"ForceUnlock of a free lock", func(t *testing.T, c *member, _ *relock.Lock) error {
			t.Helper()
			err := c.NewLock("free").ForceUnlock(t.Context())
			require.EqualError(t, err, `relock: force unlock "free": nobody has the lock`)
			return err
		}, []error{relock.ErrNotHeld}},
		{"Unlock of a lost lock", func(t *testing.T, c *member, _ *relock.Lock) error {
			t.Helper()
			other := c.NewLock("other")
			ctx := enter(t, t.Context(), other)
			require.NoError(t, other.ForceUnlock(t.Context()))
			return other.Unlock(ctx)
		}, []error{relock.ErrLockLost}},
		{"a wrong wait", func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			_, err := l.TryLockFor(t.Context(), -time.Second)
			return err
		}, []error{relock.ErrInvalid}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				holding := w.NewClient().NewLock("a")
				section := enter(t, t.Context(), holding)
				m := w.NewClient()
				err := c.err(t, m, m.NewLock("a"))
				require.Error(t, err)
				for _, sentinel := range append(sentinels, cause) {
					matches := false
					for _, want := range c.want {
						matches = matches || want == sentinel //nolint:errorlint // identity is meant
					}
					if matches {
						require.ErrorIs(t, err, sentinel)
					} else {
						require.NotErrorIs(t, err, sentinel)
					}
				}
				require.NoError(t, holding.Unlock(section))
			})
		})
	}
}

func TestARefusalSaysWhoHasTheLockAndForHowLong(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		holding := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
		section := enter(t, t.Context(), holding)
		holder, _ := relock.HolderFrom(section)
		l := w.NewClient().NewLock("a")
		pass(2 * time.Second)

		_, err := l.TryLock(t.Context())
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, &relock.LockedError{Name: "a", Holder: holder, TTL: 8 * time.Second}, locked)
		require.EqualError(t, err, fmt.Sprintf(`relock: "a" is locked by %s for another 8s`, holder))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Lock(ctx)
		locked = nil
		require.ErrorAs(t, err, &locked)
		require.Equal(t, holder, locked.Holder)
		require.Equal(t, 8*time.Second, locked.TTL)
		require.Equal(t, context.DeadlineExceeded, locked.Err)
		require.ErrorContains(t, err, holder.String())
		require.ErrorContains(t, err, "deadline exceeded")
		require.NoError(t, holding.Unlock(section))
	})
}

func TestARefusalTellsTheLeaseInMillisecondsAlsoWhereThisProcessReckonsIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient(relock.WithTTL(time.Second), relock.WithLocalPass(0, 0)).NewLock("a")
		section := enter(t, t.Context(), l)
		holder, _ := relock.HolderFrom(section)
		pass(1234567 * time.Nanosecond)

		_, err := l.TryLockFor(t.Context(), 100*time.Millisecond)
		require.EqualError(t, err, fmt.Sprintf(`relock: "a" is locked by %s for another 887ms`, holder))
		require.NoError(t, l.Unlock(section))
	})
}

// lateContext is cancelled when somebody asks for its error from a moment on.
type lateContext struct {
	context.Context
	cancel context.CancelFunc
	from   time.Time
}

func (c lateContext) Err() error {
	if !time.Now().Before(c.from) {
		c.cancel()
	}
	return c.Context.Err()
}

func TestAWaitThatIsOverJustBeforeItsContextEndsIsARefusalAndNoDeadline(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holding := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), holding)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		late := lateContext{ctx, cancel, time.Now().Add(time.Second)}
		_, err := w.NewClient().NewLock("a").TryLockFor(late, time.Second)
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "the context has none")
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		require.NoError(t, locked.Err, "nothing but the wait has ended it")
		require.NoError(t, holding.Unlock(section))
	})
}

func TestAWaitThatCloseEndsIsNoRefusalThoughItsContextEndsToo(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holding := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), holding)
		m := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := begin(t, lateContext{ctx, cancel, time.Now().Add(time.Second)}, m.NewLock("a").Lock)
		pass(time.Second)
		require.NoError(t, m.Close())
		_, err := waiting.result()
		require.ErrorIs(t, err, relock.ErrClosed)
		require.NotErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, holding.Unlock(section))
	})
}

func TestErrorsOfOperationsSayWhichLockAndHolder(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		request := relock.WithHolder(t.Context(), relock.NewHolder())
		holder, _ := relock.HolderFrom(request)
		ctx, cancel := context.WithCancel(request)
		cancel()
		_, err := l.Lock(ctx)
		var op *relock.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, "lock", op.Op)
		require.Equal(t, "a", op.Name)
		require.Equal(t, holder, op.Holder)
		require.EqualError(t, err, fmt.Sprintf(`relock: lock "a" as %s: context canceled`, holder))
		require.EqualError(t, l.Unlock(t.Context()), `relock: unlock "a": relock: not held by this context`)

		section := enter(t, request, l)
		state, err := l.State(t.Context())
		require.NoError(t, err)
		c.net.On(redistest.Named("EVALSHA"), redistest.Answer("-NOPERM no")).Skip(1).Times(1) // it has asked who has the lock by then
		err = l.ForceUnlock(t.Context())
		require.ErrorAs(t, err, &op)
		require.Equal(t, "force unlock", op.Op)
		require.Equal(t, state.Holder, op.Holder)
		require.ErrorContains(t, err, "NOPERM")

		c.net.Partition()
		err = l.Unlock(section)
		c.net.Heal()
		require.ErrorAs(t, err, &op)
		require.Equal(t, "unlock", op.Op)
		require.Equal(t, "a", op.Name)
		require.Equal(t, holder, op.Holder)
		require.ErrorContains(t, err, "not confirmed by Redis")
	})
}

func TestALossSaysWhichHoldAndWhy(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		holder, _ := relock.HolderFrom(section)
		token := l.Token(section)
		require.NoError(t, l.ForceUnlock(t.Context()))
		_, cause := ends(t, section)
		require.Equal(t, &relock.LostError{Name: "a", Holder: holder, Token: token, Reason: relock.LossTaken}, cause)
		require.EqualError(t, cause, fmt.Sprintf(`relock: "a" lost by %s: Redis does not have this hold any more`, holder))
		require.Equal(t, cause, l.Unlock(section), "Unlock returns the same")
		require.Zero(t, l.Token(section))
	})
}

func TestEveryReasonForALossIsToldInWordsOfItsOwn(t *testing.T) {
	told := map[string]bool{}
	for _, reason := range []relock.LossReason{
		relock.LossExpired, relock.LossTaken, relock.LossMaxHold, relock.LossAbandoned, relock.LossLeaked, "a new one",
	} {
		_, words, _ := strings.Cut((&relock.LostError{Name: "a", Reason: reason}).Error(), `"a" lost by : `)
		require.NotEmpty(t, words)
		require.False(t, told[words], words)
		told[words] = true
	}
}

func TestErrorRepliesThatStayEndTheCallAtOnceAndThoseThatPassDoNot(t *testing.T) {
	for _, reply := range []string{
		"NOAUTH Authentication required.",
		"NOPERM User default has no permissions to run the 'evalsha' command",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"ERR unknown command `EVALSHA`",
	} {
		t.Run(reply, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				c := w.NewClient()
				w.warm(c)
				w.SetError(reply)
				for _, lock := range []locking{c.NewLock("a").Lock, c.NewLock("a").TryLock, tryFor(c.NewLock("a"), time.Minute)} {
					a := begin(t, t.Context(), lock)
					_, err := a.result()
					require.ErrorContains(t, err, reply)
					require.ErrorContains(t, err, `lock "a"`)
					require.NotErrorIs(t, err, relock.ErrLocked)
					require.Zero(t, a.took())
				}
				require.Equal(t, 3, c.scripts(), "nothing was tried twice")

				// Nor was a wait refused that had been queued before.
				w.SetError("")
				crashed := w.NewClient(relock.WithTTL(time.Second))
				_ = enter(t, t.Context(), crashed.NewLock("b"))
				waiting := begin(t, t.Context(), c.NewLock("b").Lock)
				w.SetError(reply)
				require.NoError(t, crashed.Close())
				_, err := waiting.result()
				require.ErrorContains(t, err, reply)
				require.NotErrorIs(t, err, relock.ErrLocked)
				w.SetError("")
			})
		})
	}
	for _, reply := range []string{
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"CLUSTERDOWN The cluster is down",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"NOREPLICAS Not enough good replicas to write.",
	} {
		t.Run(reply, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				c := w.NewClient()
				w.warm(c)
				w.SetError(reply)
				a := begin(t, t.Context(), c.NewLock("a").Lock)
				pass(10 * time.Second)
				require.True(t, a.waits())
				require.Less(t, c.scripts(), 60, "no hot loop")
				w.SetError("")
				section := a.section()
				require.Less(t, a.took(), 11*time.Second)

				// What does not wait does not try for ever.
				w.SetError(reply)
				b := begin(t, t.Context(), c.NewLock("b").TryLock)
				_, err := b.result()
				require.ErrorContains(t, err, reply)
				require.Less(t, b.took(), time.Second)
				w.SetError("")
				require.NoError(t, c.NewLock("a").Unlock(section))
			})
		})
	}
}

func TestAReplyThatIsNoneToAFirstEntryIsAnErrorAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		w.warm(m)
		l := m.NewLock("a")
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
			m.net.Once(redistest.Named("EVALSHA"), redistest.Answer(":0")) // that the hold is not the owner any more
			_, err := begin(t, t.Context(), lock).result()
			require.ErrorContains(t, err, "unexpected reply of script acquire: 0")
			pass(time.Second)
			w.requireNothingLeft("a")
		}
	})
}

func TestAKeyOfAnotherTypeUnderTheLocksNameIsAnErrorAtOnceAndStaysAsItIs(t *testing.T) {
	for _, key := range []string{base("a"), base("a") + ":token"} {
		t.Run(key, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				c := w.NewClient()
				l := c.NewLock("a")
				_, err := w.Push(key, "somebody else's list")
				require.NoError(t, err)
				for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, time.Minute)} {
					a := begin(t, t.Context(), lock)
					ctx, err := a.result()
					require.ErrorContains(t, err, "WRONGTYPE")
					require.ErrorContains(t, err, `"a"`)
					require.Equal(t, t.Context(), ctx)
					require.Zero(t, a.took())
				}
				pass(time.Minute)
				list, err := w.List(key)
				require.NoError(t, err)
				require.Equal(t, []string{"somebody else's list"}, list)
				require.Equal(t, []string{key}, w.Keys())
			})
		})
	}
}

func TestAQueueKeyOfAnotherTypeIsAnErrorForWhoeverWouldQueue(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		require.NoError(t, w.Set(base("a")+":queue", "somebody else's string"))
		a := begin(t, t.Context(), l.Lock)
		_, err := a.result()
		require.ErrorContains(t, err, "WRONGTYPE")
		require.Zero(t, a.took())
		w.Del(base("a") + ":queue")
		require.NoError(t, l.Unlock(section))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Operators.

func TestStateCountsTheWaiters(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		var waiting []*attempt
		for i := range 5 {
			state, err := l.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, i, state.Waiters)
			waiting = append(waiting, begin(t, t.Context(), l.Lock))
		}
		require.NoError(t, l.Unlock(section))
		for _, a := range waiting {
			require.NoError(t, l.Unlock(a.section()))
		}
		w.requireNothingLeft("a")
	})
}

func TestStateTellsOfALockWithoutALease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		w.HSet(base("a"), "0:1:1", "3")
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, "0:1", state.Holder.String())
		require.Equal(t, 3, state.Count)
		require.Negative(t, state.TTL)
		_, err = l.TryLock(t.Context())
		var locked *relock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Negative(t, locked.TTL)
		require.NoError(t, l.ForceUnlock(t.Context()))
		w.requireNothingLeft("a")
	})
}

func TestAWaiterBehindALockWithoutALeaseAsksOncePerTTLOfItsOwn(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 100 * time.Millisecond
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		w.HSet(base("a"), "0:1:1", "1")
		waiting := begin(t, t.Context(), l.Lock)
		m.net.Reset()
		pass(10 * ttl)
		require.InDelta(t, 10, m.scripts(), 1)
		w.Del(base("a"))
		begun := time.Now()
		section := waiting.section()
		require.LessOrEqual(t, time.Since(begun), ttl+10*time.Millisecond)
		require.NoError(t, l.Unlock(section))
		w.requireNothingLeft("a")
	})
}

func TestForceUnlockGrantsTheLockToTheFirstWaiter(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		require.NoError(t, w.NewClient().NewLock("a").ForceUnlock(t.Context()))
		next := waiting.section()
		require.Zero(t, waiting.took())

		// The one that had it learns of it at its next renewal, and can do no harm to the new one.
		took, cause := ends(t, section)
		require.LessOrEqual(t, took, relock.DefaultTTL/3)
		require.ErrorIs(t, cause, relock.ErrLockLost)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		pass(time.Hour)
		require.NoError(t, next.Err())
		require.NoError(t, w.NewClient().NewLock("a").ForceUnlock(t.Context()))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Waiting.

func TestWaitersAreServedFirstComeFirstServed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		members := []*member{w.NewClient(), w.NewClient(), w.NewClient()}
		lock := func(i int) *relock.Lock { return members[i%len(members)].NewLock("a") }
		section := enter(t, t.Context(), lock(0))
		const n = 12
		var waiting []*attempt
		var holders []string
		for i := range n {
			h := relock.NewHolder()
			waiting = append(waiting, begin(t, relock.WithHolder(t.Context(), h), lock(i).Lock))
			holders = append(holders, h.String())
		}
		require.Equal(t, holders, w.queue("a"))
		pass(2 * time.Minute)
		require.Equal(t, holders, w.queue("a"), "asking again keeps the place")

		require.NoError(t, lock(0).Unlock(section))
		for i, a := range waiting {
			section = a.section() //nolint:fatcontext // they do not nest
			for _, later := range waiting[i+1:] {
				require.True(t, later.waits())
			}
			require.NoError(t, lock(i).Unlock(section))
		}
		w.requireNothingLeft("a")
	})
}

func TestANewcomerDoesNotPassThoseWhoQueue(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		first := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		require.True(t, first.waits())

		// The lock is free for a moment, as if its lease had just run out, and the newcomer is the first to see that.
		w.Del(base("a"))
		_, err := w.NewClient().NewLock("a").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, first.section().Err())
		require.Zero(t, first.took())
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAWaiterGetsInAfterTheLeaseOfAHolderThatCrashed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		crashed := w.NewClient(relock.WithTTL(ttl))
		l := crashed.NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		pass(25 * time.Second)
		require.True(t, waiting.waits())

		left := w.lease("a")
		require.NoError(t, crashed.Close()) // without Unlock
		died := time.Now()
		_ = waiting.section()
		after := waiting.ended.Sub(died)
		require.GreaterOrEqual(t, after, left)
		require.LessOrEqual(t, after, left+10*time.Millisecond, "the lease is what it costs, and little more")
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestAWaiterAsksOnlyWhenTheLeaseThatItWasToldOfShouldBeOver(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, relock.DefaultTTL, time.Hour} {
		t.Run(ttl.String(), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				crashed, m := w.NewClient(relock.WithTTL(ttl)), w.NewClient(relock.WithTTL(ttl))
				_ = enter(t, t.Context(), crashed.NewLock("a"))
				require.NoError(t, crashed.Close()) // without Unlock
				waiting := begin(t, t.Context(), m.NewLock("a").Lock)
				m.net.Reset()
				pass(ttl)
				require.Zero(t, m.scripts())
				_ = waiting.section()
				require.LessOrEqual(t, waiting.took(), ttl+10*time.Millisecond)
			})
		})
	}
}

func TestALeaseMuchLongerThanTheWaitersOwnIsNotWaitedOut(t *testing.T) {
	for ttl, every := range map[time.Duration]time.Duration{time.Second: 10 * time.Second, time.Minute: time.Minute} {
		fake(t, func(t *testing.T, w *world) {
			section := enter(t, t.Context(), w.NewClient(relock.WithTTL(time.Hour)).NewLock("a"))
			m := w.NewClient(relock.WithTTL(ttl))
			waiting := begin(t, t.Context(), m.NewLock("a").Lock)
			m.net.Reset()
			pass(10*every + time.Second)
			require.Equal(t, 10, m.scripts(), "one each %s", every)
			require.True(t, waiting.waits())
			require.NoError(t, m.Close())
			require.NoError(t, section.Err())
		})
	}
}

func TestAMissedMessageIsMadeUpForByTheRecheck(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		var r recorder
		holding := w.NewClient(relock.WithTTL(ttl))
		section := enter(t, t.Context(), holding.NewLock("a"))
		waiting := begin(t, t.Context(), w.NewClient(relock.WithTTL(ttl), relock.WithHooks(r.Hooks())).NewLock("a").Lock)
		pass(time.Second)

		// What a grant does in Redis, but for the message.
		members, err := w.ZMembers(base("a") + ":queue")
		require.NoError(t, err)
		require.Len(t, members, 1)
		hold, _, _ := strings.Cut(members[0], "|")
		w.Del(base("a") + ":queue")
		w.Del(base("a"))
		w.HSet(base("a"), hold, "1")
		w.SetTTL(base("a"), ttl)

		next := waiting.section()
		require.LessOrEqual(t, waiting.took(), ttl+10*time.Millisecond)
		finished := eventsOf[relock.AcquireFinished](&r)
		require.Len(t, finished, 1)
		require.Equal(t, relock.WakeRecheck, finished[0].Wake)
		_, cause := ends(t, section)
		require.ErrorIs(t, cause, relock.ErrLockLost)

		// From here on it is renewed as any other.
		pass(10 * ttl)
		require.NoError(t, next.Err())
	})
}

func TestAPubSubConnectionThatIsLostCostsAWaiterNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		var log logbook
		l := w.NewClient().NewLock("a")
		m := w.NewClient(relock.WithHooks(r.Hooks()), relock.WithLogger(log.logger()))
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Second)
		m.net.CutPubSub()
		pass(time.Second)
		require.Len(t, eventsOf[relock.Reconnected](&r), 1)
		require.Len(t, log.about("pub/sub connection is back"), 1)
		require.True(t, waiting.waits())
		require.NoError(t, l.Unlock(section))
		_ = waiting.section()
		require.Equal(t, 2*time.Second, waiting.took())
	})
}

func TestAQuietPubSubConnectionIsKept(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		dials := m.net.Stats().Dials
		pass(10 * time.Minute)
		require.Empty(t, eventsOf[relock.Reconnected](&r))
		require.Equal(t, dials, m.net.Stats().Dials)
		require.True(t, waiting.waits())
	})
}

func TestAGrantSentWhileThePubSubConnectionIsLostIsNotLost(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		m := w.NewClient()
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Second)
		m.net.Refuse()
		m.net.CutPubSub()
		pass(time.Second)
		require.NoError(t, l.Unlock(section)) // nobody hears of it
		pass(time.Second)
		require.True(t, waiting.waits())
		m.net.Heal()
		_ = waiting.section()
		require.Less(t, waiting.took(), 4*time.Second, "it asks as soon as it is connected again")
	})
}

func TestALateGrantIsBelievedForNoLongerThanItsLeaseOnTheServer(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		owner := w.NewClient().NewLock("a", relock.WithFixedLease(time.Hour))
		m := w.NewClient(relock.WithTTL(time.Second))
		l := m.NewLock("a")
		for _, late := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond} { // the second with a question
			section := enter(t, t.Context(), owner)
			waiting := begin(t, t.Context(), l.Lock)
			pass(300 * time.Millisecond)
			m.net.DelayOneWay(0, late)
			require.NoError(t, owner.Unlock(section))
			settle()
			m.net.Delay(0)
			section = waiting.section()
			require.Equal(t, 300*time.Millisecond+late, waiting.took())
			require.LessOrEqual(t, l.Remaining(section), w.lease("a"))
			require.Positive(t, l.Remaining(section))
			require.NoError(t, l.Unlock(section))
		}
	})
}

func TestAGrantThatIsOlderThanTheAnswerOfRedisIsNotBelieved(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		owner := w.NewClient().NewLock("a", relock.WithFixedLease(5*time.Second))
		m, other := w.NewClient(relock.WithTTL(time.Second)), w.NewClient().NewLock("a")
		section := enter(t, t.Context(), owner)
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(3 * time.Second)
		m.net.DelayOneWay(0, 2300*time.Millisecond)
		require.NoError(t, owner.Unlock(section))
		settle()
		m.net.Delay(0)
		pass(1500 * time.Millisecond)
		section = enter(t, t.Context(), other) // the lease that was granted is over
		pass(700 * time.Millisecond)
		require.Len(t, w.queue("a"), 1, "it has asked, as the first owner's lease should be over")
		pass(time.Second) // now the message comes
		require.True(t, waiting.waits())
		require.NoError(t, section.Err())
		require.NoError(t, other.Unlock(section))
		_ = waiting.section()
	})
}

func TestAWaiterThatCannotBeReachedIsPassedOverAndKeepsItsPlace(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		away := w.NewClient()
		section := enter(t, t.Context(), l)
		queue := func(m *member) (*attempt, string) {
			h := relock.NewHolder()
			return begin(t, relock.WithHolder(t.Context(), h), m.NewLock("a").Lock), h.String()
		}
		first, holder := queue(away)
		second, _ := queue(w.NewClient())
		away.net.Refuse()
		away.net.Cut()
		pass(time.Second)
		require.NoError(t, l.Unlock(section))
		next := second.section()
		require.Equal(t, time.Second, second.took(), "at once")

		third, later := queue(w.NewClient())
		away.net.Heal()
		pass(5 * time.Second)
		require.Equal(t, []string{holder, later}, w.queue("a"))
		require.NoError(t, next.Err())
		require.NoError(t, l.ForceUnlock(t.Context()))
		_ = first.section()
		require.True(t, third.waits())
	})
}

func TestAPubSubConnectionThatGoesSilentIsNoticed(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		m := w.NewClient()
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Second)
		m.net.StallPubSub()
		require.NoError(t, l.Unlock(section)) // the server believes that the waiter has heard
		_ = waiting.section()
		require.Less(t, waiting.took(), 7*time.Second)
		pass(time.Hour)
		require.NoError(t, waiting.section().Err())
	})
}

// asTCP makes a dialer respect contexts, as that of go-redis does without TLS: so go-redis makes no pub/sub connection by itself.
func asTCP(o *redis.Options) {
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return dial(ctx, network, addr)
	}
}

func TestASubscriptionLingersAndTheConnectionEndsWithTheLast(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const linger = 2 * time.Second
		owner, m := w.NewClient(), w.NewClient()
		sections, waits := map[string]context.Context{}, map[string]*attempt{}
		wait := func(names ...string) {
			for _, name := range names {
				sections[name] = enter(t, t.Context(), owner.NewLock(name)) //nolint:fatcontext // they do not nest
				waits[name] = begin(t, t.Context(), m.NewLock(name).Lock)
			}
		}
		end := func(names ...string) {
			for _, name := range names {
				require.NoError(t, owner.NewLock(name).Unlock(sections[name]))
				require.NoError(t, m.NewLock(name).Unlock(waits[name].section()))
			}
		}
		heard := func() []string { settle(); return w.PubSubChannels("*") }

		wait("a", "b", "c", "d")
		dials := m.net.Stats().Dials
		pass(time.Minute)
		end("a", "b")
		pass(linger / 2)
		end("c")
		wait("a")
		pass(linger / 4)
		end("a")
		pass(linger/4 - time.Millisecond)
		require.Len(t, heard(), 4)
		pass(2 * time.Millisecond)
		require.Len(t, heard(), 3, "all but b")
		pass(linger / 2)
		require.Len(t, heard(), 2, "all but b and c")
		pass(linger / 4)
		require.Len(t, heard(), 1, "d")
		wait("a", "b")
		end("a", "b")
		pass(linger)
		require.Len(t, heard(), 1, "d")
		require.Equal(t, 4, m.net.Commands("UNSUBSCRIBE"), "those that end together in one")
		pass(time.Minute)
		require.Equal(t, dials, m.net.Stats().Dials, "on one connection throughout")
		end("d")
		pass(linger)
		_, pubsub := m.net.Conns()
		require.Zero(t, pubsub)
		wait("a", "d")
		require.Len(t, heard(), 2, "on a new one")
		end("a", "d")
	})
}

func TestAPubSubConnectionThatTakesLongToBeMadeIsKept(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		slow := time.Duration(0)
		m := w.NewClientOn(func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(slow) //nolint:forbidigo // fake time
				return dial(ctx, network, addr)
			}
		})
		w.warm(m)
		owner := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), owner)
		slow = 4 * time.Second
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(time.Minute)
		require.Equal(t, 1, m.net.Stats().Dials)
		require.NoError(t, owner.Unlock(section))
		_ = waiting.section()
		require.Equal(t, time.Minute, waiting.took())
	})
}

func TestOfSeveralSubscriptionsOnlyThatIsRefusedWhichTheServerDoesNotAllow(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		owner, m := w.NewClient(), w.NewClientOn(asTCP, relock.WithHooks(r.Hooks()))
		var waits []*attempt
		const locks = 4
		for i := range locks {
			_ = enter(t, t.Context(), owner.NewLock(fmt.Sprint(i)))
			waits = append(waits, begin(t, t.Context(), m.NewLock(fmt.Sprint(i)).Lock))
		}
		ofLast := func(arg string) bool { return strings.HasPrefix(arg, base("3")) }
		refusals := m.net.On(redistest.Named("SUBSCRIBE").And(func(args []string) bool { return slices.ContainsFunc(args, ofLast) }),
			redistest.Answer("-NOPERM this user has no permissions to access one of the channels"))
		m.net.Reset()
		m.net.CutPubSub()
		_, err := waits[3].result()
		require.ErrorContains(t, err, "NOPERM")
		pass(time.Minute)
		require.Equal(t, 2, refusals.Hits(), "together, and then by itself")
		require.Equal(t, locks-1, m.net.Commands("SUBSCRIBE"), "each of the others by itself")
		require.Len(t, w.PubSubChannels("*"), locks-1)
		require.Len(t, eventsOf[relock.Reconnected](&r), 1)
		m.net.Reset()
		m.net.CutPubSub()
		pass(time.Minute)
		require.Equal(t, 1, m.net.Commands("SUBSCRIBE"), "those that are left together again")
		require.Len(t, eventsOf[relock.Reconnected](&r), 2, "one for each outage")
		for _, a := range waits[:3] {
			require.True(t, a.waits())
		}
	})
}

func TestASubscriptionThatWasRefusedForGoodIsAskedForAnewByTheNextWaiter(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		m := w.NewClientOn(asTCP)
		l := m.NewLock("a")
		m.net.Once(redistest.Named("SUBSCRIBE"), redistest.Answer("-NOPERM this user has no permissions to access one of the channels"))
		_, err := l.Lock(t.Context())
		require.ErrorContains(t, err, "NOPERM")
		waiting := begin(t, t.Context(), l.Lock) // and by now the user may
		require.Len(t, w.queue("a"), 1)
		require.True(t, waiting.waits())
	})
}

func TestASubscriptionThatNobodyWaitsForIsNotMadeAnewWithItsConnection(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		owner, m := w.NewClient(), w.NewClientOn(asTCP)
		for _, name := range []string{"a", "b"} {
			_ = enter(t, t.Context(), owner.NewLock(name))
		}
		_, err := begin(t, t.Context(), tryFor(m.NewLock("a"), time.Second)).result()
		require.ErrorIs(t, err, relock.ErrLocked)
		waiting := begin(t, t.Context(), m.NewLock("b").Lock)
		require.Len(t, w.PubSubChannels("*"), 2, "the one of a lingers")
		m.net.CutPubSub()
		pass(10 * time.Millisecond)
		require.Equal(t, w.PubSubChannels(base("b")+":*"), w.PubSubChannels("*"))
		require.Len(t, w.PubSubChannels("*"), 1)
		require.True(t, waiting.waits())
	})
}

func TestAFirstPubSubConnectionIsNoReconnectionHoweverLongItTakes(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		owner := w.NewClient().NewLock("a")
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		_ = enter(t, t.Context(), owner)
		ended := m.net.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(10 * time.Second)
		require.Greater(t, ended.Hits(), 3)
		require.Less(t, ended.Hits(), 300)
		ended.Remove()
		pass(time.Minute)
		require.Len(t, w.PubSubChannels("*"), 1)
		require.Empty(t, eventsOf[relock.Reconnected](&r))
		require.True(t, waiting.waits())
	})
}

func TestASubscriptionThatWasRefusedInPassingIsAskedForAtOnceTheNextTime(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClientOn(asTCP)
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		waiting := begin(t, t.Context(), m.NewLock("a").Lock)
		busy := func(d time.Duration) (hits int) {
			rule := m.net.On(redistest.Named("SUBSCRIBE"), redistest.Answer("-BUSY Redis is busy running a script."))
			defer rule.Remove()
			m.net.CutPubSub()
			pass(d)
			require.Empty(t, w.PubSubChannels("*"))
			return rule.Hits()
		}
		hits := busy(10 * time.Second)
		require.Greater(t, hits, 20)
		require.Less(t, hits, 60)
		pass(time.Second)
		require.Len(t, w.PubSubChannels("*"), 1)
		require.Equal(t, 1, busy(time.Millisecond))
		pass(5 * time.Millisecond)
		require.Len(t, w.PubSubChannels("*"), 1)
		require.True(t, waiting.waits())
	})
}

func TestAWaitThatEndsLeavesNothingInRedis(t *testing.T) {
	for name, wait := range map[string]func(t *testing.T, m *member, l *relock.Lock) error{
		"the wait of TryLockFor is over": func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			_, err := l.TryLockFor(t.Context(), time.Minute)
			return err
		},
		"the context is cancelled": func(t *testing.T, _ *member, l *relock.Lock) error {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			a := begin(t, ctx, l.Lock)
			pass(time.Minute)
			cancel()
			_, err := a.result()
			require.Equal(t, time.Minute, a.took(), "it returns at once")
			return err
		},
		"the client is closed": func(t *testing.T, m *member, l *relock.Lock) error {
			t.Helper()
			a := begin(t, t.Context(), l.Lock)
			pass(time.Minute)
			require.NoError(t, m.Close())
			_, err := a.result()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient().NewLock("a")
				section := enter(t, t.Context(), l)
				m := w.NewClient()
				require.Error(t, wait(t, m, m.NewLock("a")))
				pass(time.Millisecond)
				require.Empty(t, w.queue("a"))
				require.NotContains(t, w.Keys(), base("a")+":queue")
				pass(3 * time.Second) // a subscription lingers for a while
				require.Empty(t, w.PubSubChannels("*"))
				require.NoError(t, l.Unlock(section))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAGrantToAWaiterThatHasJustGivenUpGoesToTheNext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), l)
		quitter := w.NewClient()
		ctx, cancel := context.WithCancel(t.Context())
		first := begin(t, ctx, quitter.NewLock("a").Lock)
		second := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)

		// Its leaving is still on the way when the lock is granted to it.
		quitter.net.Partition()
		cancel()
		_, err := first.result()
		require.ErrorIs(t, err, relock.ErrLocked)
		require.NoError(t, l.Unlock(section))
		require.True(t, second.waits())
		pass(time.Second)
		quitter.net.Heal()
		_ = second.section()
		require.Less(t, second.took(), 10*time.Second, "well before the lease of the grant ends")
		require.NoError(t, w.NewClient().NewLock("a").ForceUnlock(t.Context()))
		pass(time.Minute)
		w.requireNothingLeft("a")
	})
}

// overheard is a context that counts who wants to know of its end.
type overheard struct {
	context.Context
	done  chan struct{}
	heard atomic.Int32
	left  func() // called when somebody does not want to know any more, if it is set
}

func (o *overheard) Done() <-chan struct{} { return o.done }

// AfterFunc is what the context package calls where it finds it.
func (o *overheard) AfterFunc(func()) (stop func() bool) {
	o.heard.Add(1)
	return sync.OnceValue(func() bool {
		o.heard.Add(-1)
		if o.left != nil {
			o.left()
		}
		return true
	})
}

func TestAGrantOfAnEarlierWaitIsGivenBackThoughItsHolderWaitsAgain(t *testing.T) {
	for name, options := range map[string][]relock.Option{"": nil, "with the local pass": {relock.WithLocalPass(0, 0)}} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				enter(t, t.Context(), w.NewClient().NewLock("a"))
				holder := relock.NewHolder()
				l := w.NewClient(options...).NewLock("a")
				waiting := begin(t, relock.WithHolder(t.Context(), holder), l.Lock)

				// What a grant does in Redis, to a hold of that holder which nobody wants any more.
				hold := holder.String() + ":1000000"
				w.Del(base("a"))
				w.HSet(base("a"), hold, "1")
				w.SetTTL(base("a"), relock.DefaultTTL)
				channels := w.PubSubChannels(base("a") + ":*")
				require.Len(t, channels, 1)
				w.Publish(channels[0], hold+"|1000000000000000")

				section := waiting.section()
				require.Zero(t, waiting.took())
				require.NoError(t, l.Unlock(section))
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAMessageThatIsNotAGrantIsLoggedAndWakesNobody(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		owner := w.NewClient().NewLock("a")
		section := enter(t, t.Context(), owner)
		m := w.NewClient(relock.WithLogger(log.logger()))
		l := m.NewLock("a")
		waiting := begin(t, t.Context(), l.Lock)
		channels := w.PubSubChannels("*")
		require.Len(t, channels, 1)
		m.net.Reset()
		for i, junk := range []string{"", "junk", "|1", "hold|", "hold|-1"} {
			require.Equal(t, 1, w.Publish(channels[0], junk))
			lines := log.about("a message that is not a grant")
			require.Len(t, lines, i+1)
			require.Equal(t, channels[0], lines[i].attrs["channel"])
		}
		require.True(t, waiting.waits())
		require.Zero(t, m.scripts())
		require.NoError(t, owner.Unlock(section))
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

func TestACallThatGivesUpLeavesNothingInItsContextAndIsNoLeak(t *testing.T) {
	for name, c := range map[string]struct {
		wait time.Duration
		end  func(m *member, owner *relock.Lock, section context.Context) error
		want error
	}{
		"its wait is over": {wait: time.Second, want: relock.ErrLocked},
		"the client is closed": {
			wait: time.Hour, want: relock.ErrClosed,
			end: func(m *member, _ *relock.Lock, _ context.Context) error { return m.Close() },
		},
		"the connections are closed": {
			wait: time.Hour, want: redis.ErrClosed,
			end: func(m *member, _ *relock.Lock, _ context.Context) error {
				err := m.redis.Close() // no server could refuse it more
				m.net.CutPubSub()      // it asks
				return err
			},
		},
		"it enters, and leaves": {
			wait: time.Hour,
			end:  func(_ *member, owner *relock.Lock, section context.Context) error { return owner.Unlock(section) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var r recorder
				owner := w.NewClient().NewLock("a")
				section := enter(t, t.Context(), owner)
				m := w.NewClient(relock.WithHooks(r.Hooks()))
				l := m.NewLock("a")
				parent := &overheard{Context: context.Background(), done: make(chan struct{})}
				a := begin(t, parent, tryFor(l, c.wait))
				require.True(t, a.waits())
				require.Positive(t, parent.heard.Load())
				if c.end != nil {
					require.NoError(t, c.end(m, owner, section))
				}
				mine, err := a.result()
				require.ErrorIs(t, err, c.want)
				if err != nil {
					require.Equal(t, context.Context(parent), mine)
				} else {
					require.EqualValues(t, 1, parent.heard.Load())
					require.NoError(t, l.Unlock(mine))
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

func TestWhatALateLockHasTakenIsTakenBackAtOnceWhenItLands(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = time.Minute })
		w.warm(m)
		other := enter(t, t.Context(), w.NewClient().NewLock("b"))
		late := m.net.Once(redistest.WithArg(base("a")), redistest.Hold())
		ctx, cancel := context.WithCancel(t.Context())
		lost := begin(t, ctx, m.NewLock("a").Lock)
		waits := begin(t, ctx, m.NewLock("b").Lock)
		require.Len(t, w.queue("b"), 1)
		cancel()
		_, err := lost.result()
		require.ErrorIs(t, err, context.Canceled)
		_, err = waits.result()
		require.ErrorIs(t, err, context.Canceled)
		settle()
		require.Empty(t, w.queue("b"))
		pass(10*time.Second + time.Millisecond)
		ctx, cancel = context.WithCancel(t.Context())
		waits = begin(t, ctx, m.NewLock("b").Lock)
		require.Len(t, w.queue("b"), 1)
		cancel()
		_, err = waits.result()
		require.ErrorIs(t, err, context.Canceled)
		settle()
		require.Empty(t, w.queue("b"), "it does not wait for the turn of another")
		late.Release(t)
		w.requireNothingLeft("a")
		require.NoError(t, other.Err())
	})
}

func TestAnOrphanIsTriedAtGrowingIntervalsForALease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		m := w.NewClient(relock.WithTTL(time.Minute), relock.WithLogger(log.logger()))
		w.warm(m)
		late := m.net.Once(redistest.WithArg(base("a")), redistest.Stall())
		ctx, cancel := context.WithCancel(t.Context())
		lost := begin(t, ctx, m.NewLock("a").Lock)
		cancel()
		_, err := lost.result()
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, late.Hits())
		m.net.Cut()
		tried := func(d time.Duration) int {
			m.net.Reset()
			pass(d)
			return m.scripts()
		}
		first := tried(time.Second)
		require.GreaterOrEqual(t, first, 4)
		require.LessOrEqual(t, first, 6)
		then := tried(50 * time.Second)
		require.GreaterOrEqual(t, then, 24)
		require.LessOrEqual(t, then, 27)
		require.NotZero(t, tried(12*time.Second))
		require.Zero(t, tried(time.Minute))
		require.Zero(t, goroutines("orphans"))
		require.Empty(t, log.about("could not confirm"))
	})
}

func TestAnOrphanThatRedisRefusesOrDoesNotAnswerIsGivenUpAndTold(t *testing.T) {
	for name, c := range map[string]struct {
		trouble redistest.Action
		after   time.Duration
		within  time.Duration
		told    string
	}{
		"refused": {redistest.Answer("-NOPERM no"), relock.DefaultTTL + time.Minute, 11 * time.Second, "NOPERM no"},
		"passing": {
			redistest.Answer("-LOADING Redis is loading the dataset in memory"), relock.DefaultTTL + time.Minute, 3 * time.Second,
			"LOADING Redis is loading the dataset in memory",
		},
		"silent": {redistest.Stall(), relock.DefaultTTL + time.Minute, 5 * time.Second, "no answer from Redis yet"},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				var log logbook
				m := w.NewClient(relock.WithLogger(log.logger()))
				w.warm(m)
				enter(t, t.Context(), w.NewClient().NewLock("a"))
				ctx, cancel := context.WithCancel(t.Context())
				waits := begin(t, ctx, m.NewLock("a").Lock)
				m.net.On(redistest.Named("EVALSHA", "EVAL"), c.trouble)
				cancel()
				_, err := waits.result()
				require.ErrorIs(t, err, context.Canceled)
				pass(c.after - time.Second)
				require.Empty(t, log.about("could not confirm"))
				pass(time.Second + c.within)
				lines := log.about("could not confirm")
				require.Len(t, lines, 1)
				require.EqualError(t, lines[0].attrs["error"].(error), c.told)
				require.Zero(t, goroutines("orphans"))
			})
		})
	}
}

// As MISCONF, until the disk has room again.
func TestWhatIsLeftBehindWhileRedisRefusesIsTakenBackWhenItDoesNotAnyMore(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		const ttl = time.Minute
		m := w.NewClient(relock.WithLogger(log.logger()), relock.WithTTL(ttl))
		held := enter(t, t.Context(), m.NewLock("held"))
		owner := w.NewClient().NewLock("waited for")
		section := enter(t, t.Context(), owner)
		ctx, cancel := context.WithCancel(t.Context())
		waits := begin(t, ctx, m.NewLock("waited for").Lock)
		settle()
		refuse := m.net.On(redistest.Named("EVALSHA", "EVAL"), redistest.Answer("-MISCONF no snapshots"))
		cancel()
		_, err := waits.result()
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, m.NewLock("held").Unlock(held), "MISCONF")
		pass(ttl / 2)
		require.False(t, w.free("held"))
		require.Len(t, w.queue("waited for"), 1)
		require.LessOrEqual(t, refuse.Hits(), 25, "with growing pauses")
		refuse.Remove()
		pass(10 * time.Second)
		require.True(t, w.free("held"), "long before its lease is over")
		require.Empty(t, w.queue("waited for"))
		require.Zero(t, goroutines("orphans"))
		require.Empty(t, log.about("could not confirm"))
		require.NoError(t, owner.Unlock(section))
	})
}

func TestCloseDoesNotWaitForWhatRedisRefuses(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var log logbook
		m := w.NewClient(relock.WithLogger(log.logger()))
		held := enter(t, t.Context(), m.NewLock("a"))
		m.net.On(redistest.Named("EVALSHA", "EVAL"), redistest.Answer("-NOPERM no"))
		require.ErrorContains(t, m.NewLock("a").Unlock(held), "NOPERM")
		pass(time.Second)
		closing := time.Now()
		require.NoError(t, m.Close())
		require.Zero(t, time.Since(closing))
		require.Len(t, log.about("could not confirm"), 1)
	})
}

func TestCloseDoesNotWaitForTheNextTryOfAnOrphan(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		w.warm(m)
		m.net.Once(redistest.WithArg(base("a")), redistest.Stall())
		ctx, cancel := context.WithCancel(t.Context())
		lost := begin(t, ctx, m.NewLock("a").Lock)
		cancel()
		_, err := lost.result()
		require.ErrorIs(t, err, context.Canceled)
		m.net.Cut()
		pass(10*time.Second + 100*time.Millisecond)
		closing := time.Now()
		require.NoError(t, m.Close())
		require.Zero(t, time.Since(closing))
	})
}

func TestCancellingAWaitReturnsAtOnceAlsoWhenRedisIsSilent(t *testing.T) {
	for name, when := range map[string]time.Duration{"from the start": 0, "while waiting": time.Minute} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				l := w.NewClient().NewLock("a")
				section := enter(t, t.Context(), l)
				m := w.NewClient()
				ctx, cancel := context.WithCancel(t.Context())
				if when == 0 {
					m.net.Partition()
				}
				a := begin(t, ctx, m.NewLock("a").Lock)
				pass(when)
				m.net.Partition()
				pass(time.Second)
				cancel()
				_, err := a.result()
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, when+time.Second, a.took())

				m.net.Heal()
				pass(2 * relock.DefaultTTL)
				require.Empty(t, w.queue("a"), "what was on the way is taken back")
				require.NoError(t, l.Unlock(section))
				pass(time.Minute)
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAReplyThatTakesLongerThanTheLeaseIsNoLock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		w.warm(m)
		m.net.DelayOneWay(0, 2*ttl)
		a := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(ttl / 2)
		require.False(t, w.free("a"))
		m.net.Delay(0) // for what is written from now on
		section := a.section()
		require.Equal(t, 2*ttl, a.took(), "it asked again, and that was answered at once")
		require.Greater(t, m.NewLock("a").Remaining(section), ttl/2)
		require.Greater(t, w.lease("a"), ttl/2)
		require.NoError(t, m.NewLock("a").Unlock(section))
		pass(2 * ttl)
		w.requireNothingLeft("a")
	})
}

func TestOneConnectionAndOneSubscriptionServeAllWaitersOfALock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		holding, m := w.NewClient(), w.NewClient()
		for i := range 20 {
			enter(t, t.Context(), holding.NewLock(fmt.Sprint(i)))
			for range 3 {
				begin(t, t.Context(), m.NewLock(fmt.Sprint(i)).Lock)
			}
		}
		_, pubsub := m.net.Conns()
		require.Equal(t, 1, pubsub)
		require.Len(t, w.PubSubChannels("*"), 20)
		require.Equal(t, 20, m.net.Commands("SUBSCRIBE"))
	})
}

func TestAWaitMayBeAsLongAsADurationIs(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		l := w.NewClient().NewLock("a")
		section, err := l.TryLockFor(t.Context(), math.MaxInt64)
		require.NoError(t, err)
		waiting := begin(t, t.Context(), tryFor(l, math.MaxInt64))
		pass(time.Minute)
		require.True(t, waiting.waits())
		require.NoError(t, l.Unlock(section))
		require.NoError(t, l.Unlock(waiting.section()))
	})
}

func TestACallThatDoesNotWaitGivesUpOnASilentRedisAndLeavesNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		_, err := l.State(t.Context())
		require.NoError(t, err)
		m.net.Partition()
		for name, call := range map[string]func(ctx context.Context) error{
			"TryLock":     func(ctx context.Context) error { _, err := l.TryLock(ctx); return err },
			"State":       func(ctx context.Context) error { _, err := l.State(ctx); return err },
			"ForceUnlock": l.ForceUnlock,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			require.ErrorIs(t, call(ctx), context.DeadlineExceeded, name)
			require.Equal(t, time.Second, time.Since(begun), name)
			cancel()

			err := call(t.Context())
			require.Error(t, err, name)
			require.NotErrorIs(t, err, relock.ErrLocked, name)
			require.Less(t, time.Since(begun), 3*time.Minute, "%s tries a few times: %v", name, err)
		}
		m.net.Heal()
		pass(2 * relock.DefaultTTL)
		w.requireNothingLeft("a")
	})
}

func TestAGoRedisClientThatIsClosedIsAnErrorAtOnce(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		l := m.NewLock("a")
		held := enter(t, t.Context(), m.NewLock("b"))
		_ = enter(t, t.Context(), w.NewClient().NewLock("a"))
		waiting := begin(t, t.Context(), l.Lock)
		require.NoError(t, m.redis.Close())

		late := begin(t, t.Context(), m.NewLock("c").Lock)
		_, err := late.result()
		require.ErrorIs(t, err, redis.ErrClosed)
		require.Zero(t, late.took())
		require.ErrorIs(t, m.NewLock("b").Unlock(held), redis.ErrClosed)
		_, err = waiting.result()
		require.ErrorIs(t, err, redis.ErrClosed)
		require.Less(t, waiting.took(), time.Second, "it does not wait until it would ask")
		begun := time.Now()
		require.NoError(t, m.Close())
		require.Less(t, time.Since(begun), 5*time.Second)
	})
}

func TestTheLibraryWorksWithEveryKindOfGoRedisClient(t *testing.T) {
	for name, mod := range map[string]func(o *redis.Options){
		"as it is":              func(*redis.Options) {},
		"RESP2":                 func(o *redis.Options) { o.Protocol = 2 },
		"timeouts by context":   func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"no retries":            func(o *redis.Options) { o.MaxRetries = -1 },
		"no timeouts":           func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -1, -1 },
		"connections grow old":  func(o *redis.Options) { o.ConnMaxLifetime, o.ConnMaxIdleTime = 5*time.Second, time.Second },
		"with its own identity": func(o *redis.Options) { o.ClientName, o.DisableIdentity = "me", false },
		"another database":      func(o *redis.Options) { o.DB = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				if name == "another database" {
					w.Select(5)
				}
				m := w.NewClientOn(mod)
				story(t, w, m)
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						err := m.NewLock("a").Do(t.Context(), func(ctx context.Context) error {
							time.Sleep(time.Second) //nolint:forbidigo // fake time
							return m.NewLock("a").Do(ctx, func(context.Context) error { return nil })
						})
						if err != nil {
							t.Errorf("do: %v", err)
						}
					})
				}
				wg.Wait()
				require.NoError(t, m.Close())
				w.requireNothingLeft("a")
			})
		})
	}
}

// This one is outside of a bubble: see PoolSize in NewRedis.
func TestOneConnectionInThePoolIsEnough(t *testing.T) {
	m := miniredis.NewMiniRedis()
	require.NoError(t, m.StartAddr("127.0.0.1:0"))
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr(), PoolSize: 1, MaxActiveConns: 1})
	defer func() { _ = rdb.Close() }()
	c, err := relock.New(rdb)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := c.NewLock("a").Do(ctx, func(ctx context.Context) error {
				return c.NewLock("a").Do(ctx, func(context.Context) error { return nil })
			})
			if err != nil {
				t.Errorf("do: %v", err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, []string{base("a") + ":token"}, m.Keys())
}

// ---------------------------------------------------------------------------------------------------------------------
// All at once.

// inside is what a lock guards. It notices when two are inside at one moment, and a token that is not larger than the
// one before.
type inside struct {
	mu      sync.Mutex
	section context.Context
	token   int64
	entries int
	faults  []string
}

func (g *inside) enter(section context.Context, token int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if section.Err() != nil {
		return // over before it began: it knows that it has to do nothing
	}
	if g.section != nil && g.section.Err() == nil {
		g.faults = append(g.faults, fmt.Sprintf("%s: token %d enters while token %d is inside", time.Now(), token, g.token))
	}
	if token <= g.token {
		g.faults = append(g.faults, fmt.Sprintf("%s: token %d enters after token %d", time.Now(), token, g.token))
	}
	g.section, g.token = section, max(token, g.token)
	g.entries++
}

func (g *inside) leave(section context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.section == section {
		g.section = nil
	}
}

func TestWhateverTheNetworkDoesTwoAreNeverInsideAndNothingIsLeft(t *testing.T) {
	const (
		ttl     = time.Second
		members = 4
		callers = 3 // of each
		rounds  = 60
	)
	fake(t, func(t *testing.T, w *world) {
		var guard inside
		var wg sync.WaitGroup
		stop := make(chan struct{})
		nap := func(d time.Duration) { time.Sleep(rand.N(d)) } //nolint:forbidigo // fake time
		all := make([]*member, members)
		for i, option := range []relock.Option{
			relock.WithTTL(ttl), relock.WithLocalReentry(), relock.WithFixedLease(2 * ttl), relock.WithMaxHold(3 * ttl / 2),
		} {
			all[i] = w.NewClient(relock.WithTTL(ttl), option)
		}
		// The network: each member's breaks now and then, in one way or another.
		var weather sync.WaitGroup
		for _, m := range all {
			weather.Go(func() {
				script := redistest.Named("EVALSHA")
				for {
					select {
					case <-stop:
						m.net.Heal()
						m.net.Delay(0)
						return
					default:
					}
					nap(3 * ttl)
					switch rand.IntN(8) {
					case 0:
						m.net.Partition()
						nap(2 * ttl)
						m.net.Heal()
					case 1:
						m.net.Refuse()
						m.net.Cut()
						nap(ttl)
						m.net.Heal()
					case 2:
						m.net.StallPubSub()
						nap(2 * ttl)
						m.net.Heal()
					case 3:
						m.net.Once(script, redistest.DropReply(redistest.Break(rand.IntN(3))))
					case 4:
						m.net.Once(script, redistest.CutBefore(redistest.EOF))
					case 5:
						hold := m.net.Once(script, redistest.Hold())
						nap(2 * ttl)
						hold.LetGo()
						hold.Remove()
					case 6:
						m.net.DelayOneWay(rand.N(ttl/10), rand.N(ttl/10))
					case 7:
						m.net.Once(script, redistest.Duplicate(2, redistest.Keep(rand.IntN(2))))
					}
				}
			})
		}
		for _, m := range all {
			l := m.NewLock("a")
			for range callers {
				wg.Go(func() {
					for range rounds {
						ctx, cancel := context.WithCancel(t.Context())
						if rand.IntN(2) == 0 {
							ctx, cancel = context.WithTimeout(t.Context(), rand.N(5*ttl))
						}
						lock := []locking{l.Lock, l.Lock, l.TryLock, tryFor(l, rand.N(5*ttl))}[rand.IntN(4)]
						section, err := lock(ctx)
						if err != nil {
							cancel()
							nap(ttl / 2)
							continue
						}
						guard.enter(section, l.Token(section))
						nap(ttl)
						inner, err := l.TryLock(section)
						if err == nil {
							nap(ttl)
							_ = l.Unlock(inner)
						}
						guard.leave(section)
						if rand.IntN(10) > 0 { // now and then it is forgotten, and ends with its request
							_ = l.Unlock(section)
						}
						cancel()
						runtime.KeepAlive(section)
						nap(ttl)
					}
				})
			}
		}
		wg.Wait()
		close(stop)
		weather.Wait()
		require.Empty(t, guard.faults)
		require.Greater(t, guard.entries, rounds, "enough has happened")
		t.Logf("%d entries in %s", guard.entries, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))

		pass(10 * ttl)
		w.requireNothingLeft("a")
		section, err := all[0].NewLock("a").TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, all[0].NewLock("a").Unlock(section))
	})
}

// ---------------------------------------------------------------------------------------------------------------------
// Close.

func TestCloseEndsWaitsAndSectionsAndUnlockStillWorks(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		a, b := c.NewLock("a"), c.NewLock("b")
		outer := enter(t, t.Context(), a)
		inner := enter(t, outer, a)
		blocking := w.NewClient().NewLock("b")
		section := enter(t, t.Context(), blocking)
		waiting := begin(t, t.Context(), b.Lock)
		impatient := begin(t, t.Context(), tryFor(b, time.Hour))

		require.NoError(t, c.Close())
		for _, w := range []*attempt{waiting, impatient} {
			_, err := w.result()
			require.ErrorIs(t, err, relock.ErrClosed)
			require.NotErrorIs(t, err, relock.ErrLocked)
			require.Zero(t, w.took())
		}
		require.Equal(t, relock.ErrClosed, context.Cause(outer))
		require.Equal(t, relock.ErrClosed, context.Cause(inner))
		require.Empty(t, w.queue("b"))

		for _, lock := range []locking{a.Lock, a.TryLock, tryFor(a, time.Hour), b.Lock} {
			for _, ctx := range []context.Context{t.Context(), context.WithoutCancel(inner)} {
				got, err := lock(ctx)
				require.ErrorIs(t, err, relock.ErrClosed)
				require.Equal(t, ctx, got)
			}
		}
		require.NoError(t, a.Unlock(inner))
		require.False(t, w.free("a"))
		require.NoError(t, a.Unlock(outer))
		require.ErrorIs(t, a.Unlock(outer), relock.ErrNotHeld)
		w.requireNothingLeft("a")
		require.NoError(t, blocking.Unlock(section))
		w.requireNothingLeft("b")
	})
}

func TestCloseEndsTheWaitForATurnBehindAnUnlockThatHangs(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient(relock.WithTTL(5 * time.Minute))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		m.net.Partition()
		unlock := begin(t, inner, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
		detached := context.WithoutCancel(outer) // or the end of the section would end the call
		waiting := []*attempt{begin(t, detached, l.Lock), begin(t, detached, l.TryLock), begin(t, detached, tryFor(l, time.Hour))}
		closed := begin(t, t.Context(), func(ctx context.Context) (context.Context, error) { return ctx, m.Close() })
		for _, a := range waiting {
			_, err := a.result()
			require.ErrorIs(t, err, relock.ErrClosed)
			require.Zero(t, a.took())
		}
		require.True(t, unlock.waits())
		m.net.Heal()
		_, err := unlock.result()
		require.NoError(t, err)
		_ = closed.section()
		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
	})
}

func TestCloseEndsThePauseBetweenTwoTriesAndNothingIsTriedAfterIt(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		w.warm(m)
		w.SetError("LOADING Redis is loading the dataset in memory")
		a := begin(t, t.Context(), m.NewLock("a").Lock)
		pass(3*time.Second + time.Millisecond) // it pauses between two tries
		require.True(t, a.waits())
		tries, sent := len(eventsOf[relock.Retried](&r)), m.scripts()
		require.NoError(t, m.Close())
		_, err := a.result()
		require.ErrorIs(t, err, relock.ErrClosed)
		require.Equal(t, 3*time.Second+time.Millisecond, a.took())
		require.Len(t, eventsOf[relock.Retried](&r), tries)
		require.Equal(t, sent, m.scripts())
		w.SetError("")
	})
}

func TestUnlockAfterCloseGrantsTheLockToTheNext(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		l := c.NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), w.NewClient().NewLock("a").Lock)
		require.NoError(t, c.Close())
		pass(time.Second)
		require.NoError(t, l.Unlock(section))
		_ = waiting.section()
		require.Equal(t, time.Second, waiting.took())
	})
}

func TestAfterCloseStateAndForceUnlockStillAskAndAskAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		w.warm(m)
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		token := l.Token(section)
		require.NoError(t, m.Close())
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, token, state.Token)
		m.net.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
		require.NoError(t, l.ForceUnlock(t.Context()))
		w.requireNothingLeft("a")
		require.ErrorIs(t, l.ForceUnlock(t.Context()), relock.ErrNotHeld)
		require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	})
}

func TestCloseIsIdempotentAndBothCallsWait(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		c := w.NewClient()
		section := enter(t, t.Context(), c.NewLock("a"))
		// A renewal that is on the wire when Close is called.
		pass(relock.DefaultTTL/3 - time.Second)
		c.net.Delay(2 * time.Second)
		pass(2 * time.Second)
		closed := make(chan time.Duration, 2)
		begun := time.Now()
		for range 2 {
			go func() {
				_ = c.Close()
				closed <- time.Since(begun)
			}()
		}
		settle()
		require.Empty(t, closed, "the renewal is still on the wire")
		first, second := <-closed, <-closed
		require.Equal(t, first, second)
		require.Zero(t, goroutines("relock.(*"), "of the library")
		require.NoError(t, c.Close())
		require.Equal(t, relock.ErrClosed, context.Cause(section))
	})
}

func TestCloseLeavesNoGoroutineAndNoConnection(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		var r recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		l := m.NewLock("a")
		section := enter(t, t.Context(), l)
		waiting := begin(t, t.Context(), l.Lock)
		_, pubsub := m.net.Conns()
		require.Equal(t, 1, pubsub)
		require.Positive(t, goroutines("relock.(*"))

		require.NoError(t, m.Close())
		_, err := waiting.result()
		require.ErrorIs(t, err, relock.ErrClosed)
		_, pubsub = m.net.Conns()
		require.Zero(t, pubsub)
		require.Zero(t, goroutines("relock.(*"))
		require.NoError(t, m.redis.Ping(t.Context()).Err(), "the go-redis client stays the caller's")

		require.NoError(t, l.Unlock(section))
		settle()
		require.Zero(t, goroutines("relock.(*"), "also after an Unlock that came later")
	})
}

func TestACloseOfAClientThatWasNeverUsedSendsNothing(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		_ = m.NewLock("a")
		require.Zero(t, goroutines("relock.(*"))
		require.NoError(t, m.Close())
		require.Zero(t, m.net.Stats().Dials)
	})
}

func TestCloseDuringCallsOfEveryKindLeavesNothingBehind(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		blocking := w.NewClient().NewLock("b")
		section := enter(t, t.Context(), blocking)
		for range 20 {
			m := w.NewClient()
			m.net.Delay(time.Duration(1+rand.IntN(20)) * time.Millisecond)
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					l := m.NewLock([]string{"a", "b"}[i%2])
					for {
						ctx, err := l.TryLockFor(t.Context(), 5*time.Millisecond)
						if err == nil {
							err = l.Unlock(ctx)
						}
						if errors.Is(err, relock.ErrClosed) {
							return
						}
						var op *relock.OpError // the wait is over before Redis has said anything
						if err != nil && !errors.Is(err, relock.ErrLocked) && !errors.As(err, &op) {
							t.Errorf("unexpected: %v", err)
						}
					}
				})
			}
			pass(rand.N(100 * time.Millisecond))
			require.NoError(t, m.Close())
			wg.Wait()
		}
		require.NoError(t, blocking.Unlock(section))
		pass(3 * relock.DefaultTTL) // what could not be confirmed in time ends with its lease
		w.requireNothingLeft("a")
		w.requireNothingLeft("b")
	})
}

// What is on the wire ends with go-redis's ReadTimeout, and Close waits for nothing behind it, nor for a connection to send it on.
func TestCloseDoesNotWaitForWhatIsToBeToldToRedisOnceMore(t *testing.T) {
	const readTimeout = time.Second
	for name, begun := range map[string]func(t *testing.T, m *member, l *relock.Lock, section context.Context) (end func()){
		"behind an Unlock that has the turn of the hold": func(t *testing.T, m *member, l *relock.Lock, section context.Context) func() {
			t.Helper()
			m.net.Partition()
			ctx, cancel := context.WithTimeout(section, 2*time.Second)
			defer cancel()
			inner := begin(t, ctx, l.Lock) // what it may have counted is to be settled, behind the Unlock
			unlock := begin(t, section, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
			_, err := inner.result()
			require.ErrorIs(t, err, context.Canceled)
			return func() {
				require.True(t, unlock.waits())
				m.net.Heal()
				_ = unlock.section()
			}
		},
		"on its way": func(t *testing.T, m *member, l *relock.Lock, section context.Context) func() {
			t.Helper()
			inner := enter(t, section, l)
			silent := m.net.On(redistest.Named("EVALSHA"), redistest.Stall())
			require.Error(t, l.Unlock(inner))
			pass(10 * time.Second)
			return func() {
				silent.Remove()
				require.NoError(t, l.Unlock(section))
			}
		},
		"behind a new connection": func(t *testing.T, m *member, l *relock.Lock, section context.Context) func() {
			t.Helper()
			inner := enter(t, section, l)
			m.net.Partition()
			require.Error(t, l.Unlock(inner))
			pass(10 * time.Second)
			return func() {
				m.net.Heal()
				require.NoError(t, l.Unlock(section))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = readTimeout }, relock.WithTTL(5*time.Minute))
				l := m.NewLock("a")
				end := begun(t, m, l, enter(t, t.Context(), l))
				closing := time.Now()
				require.NoError(t, m.Close())
				require.LessOrEqual(t, time.Since(closing), readTimeout)
				end()
				w.requireNothingLeft("a")
			})
		})
	}
}

func TestAfterCloseNothingGoesOnTellingRedisOfACountWhoseLeaseIsOver(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		const ttl = 5 * time.Second
		m := w.NewClient(relock.WithTTL(ttl))
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, m.Close())
		m.net.Partition()
		unlock := begin(t, inner, func(ctx context.Context) (context.Context, error) { return ctx, l.Unlock(ctx) })
		_, err := unlock.result()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, ttl-margin(ttl), unlock.took())
		m.net.Heal()
		require.NoError(t, m.Close(), "it waits for what is left")
		require.ErrorIs(t, l.Unlock(outer), relock.ErrLockLost)
	})
}

func TestAfterCloseAnInnerExitThatRedisRefusesDoesNotSayThatRedisWillBeTold(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClient()
		w.warm(m)
		l := m.NewLock("a")
		outer := enter(t, t.Context(), l)
		inner := enter(t, outer, l)
		require.NoError(t, m.Close())
		refuse := m.net.On(redistest.Named("EVALSHA"), redistest.Answer("-MISCONF no snapshots"))
		err := l.Unlock(inner)
		require.ErrorContains(t, err, "left all the same: MISCONF")
		require.NotContains(t, err.Error(), "will be told")
		refuse.Remove()
		pass(time.Second)
		state, err := l.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, state.Count, "nothing goes on after Close")
		require.NoError(t, l.Unlock(outer))
		w.requireNothingLeft("a")
	})
}

func TestTryLockReturnsWhereRoundTripsAreLongerThanTheLease(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		m := w.NewClientOn(func(o *redis.Options) { o.ReadTimeout = 10 * time.Second }, relock.WithTTL(relock.MinTTL))
		w.warm(m)
		l := m.NewLock("a")
		m.net.Delay(relock.MinTTL + relock.MinTTL/2)
		begun := time.Now()
		ctx, err := l.TryLock(t.Context())
		require.ErrorContains(t, err, "3 times Redis took longer to answer than the lease of 10ms lasts")
		require.Equal(t, t.Context(), ctx)
		require.Less(t, time.Since(begun), time.Second)
		m.net.Delay(0)
		pass(time.Second)
		enter(t, t.Context(), l)
	})
}

func TestDoJoinsWhatHasEndedItsContext(t *testing.T) {
	errMine := errors.New("mine")
	for name, c := range map[string]struct {
		end  func(m *member, cancel context.CancelCauseFunc)
		want error
	}{
		"Close":              {func(m *member, _ context.CancelCauseFunc) { require.NoError(t, m.Close()) }, relock.ErrClosed},
		"the caller's cause": {func(_ *member, cancel context.CancelCauseFunc) { cancel(errMine) }, errMine},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				m := w.NewClient()
				l := m.NewLock("a")
				for _, fails := range []bool{false, true} {
					ctx, cancel := context.WithCancelCause(t.Context())
					err := l.Do(ctx, func(ctx context.Context) error {
						if fails {
							c.end(m, cancel)
							<-ctx.Done()
							return ctx.Err()
						}
						return nil
					})
					cancel(nil)
					if !fails {
						require.NoError(t, err)
						continue
					}
					require.ErrorIs(t, err, context.Canceled)
					require.ErrorIs(t, err, c.want)
				}
			})
		})
	}
}

func TestARefusalByALockWithoutALeaseSaysSo(t *testing.T) {
	err := &relock.LockedError{Name: "a", Holder: relock.NewHolder(), TTL: -time.Millisecond}
	require.ErrorContains(t, err, "without a lease")
	require.NotContains(t, err.Error(), "-1ms")
	err.TTL = 0
	require.NotContains(t, err.Error(), "without a lease", "it is over just now")
}
