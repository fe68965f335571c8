package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// The server's clock is turned, while those of the clients run on. Redis notes the end of a lease as a time of day: turned
// forward, leases end early, and two may be in; turned back, they last longer. What must hold all the same: tokens grow,
// every loss is told, everybody gets in, in order as long as there is a queue.

func init() {
	troubles = append(troubles,
		trouble{name: "clock forward", clock: true, do: func(s *stand) { s.clock.Step(10 * time.Second) }}, // the lease of 30 s goes on
		trouble{name: "clock back", clock: true, do: func(s *stand) { s.clock.Step(-time.Hour) }})
}

func TestAServerClockThatGoesForwardEndsTheLeaseAndItsHolderIsToldAtTheNextRenewal(t *testing.T) {
	for _, step := range []time.Duration{
		10 * time.Second, // the lease is over
		time.Hour,        // and the queue's key
		25 * time.Hour,   // and the token's
	} {
		t.Run(step.String(), func(t *testing.T) {
			w, clock := onClock(t)
			const ttl = 900 * time.Millisecond
			l := w.peer(relock.WithTTL(ttl)).NewLock("a")
			section := w.enter(t.Context(), l, soon)
			token := l.Token(section)
			var waiters []*asking
			for i := range 5 {
				waiters = append(waiters, w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a")))
				w.awaitWaiters("a", i+1)
			}
			clock.Step(step)
			stepped := time.Now()
			var tokens []int64
			var mu sync.Mutex
			var workers sync.WaitGroup
			var errs names
			var order []int
			slowest := make([]time.Duration, len(waiters))
			for i, a := range waiters {
				workers.Go(func() {
					<-a.done
					if a.err != nil {
						errs.add(a.err.Error())
						return
					}
					mu.Lock()
					order, tokens = append(order, i), append(tokens, a.lock.Token(a.section))
					slowest[i] = time.Since(stepped)
					mu.Unlock()
					if err := a.lock.Unlock(a.section); err != nil {
						errs.add(err.Error())
					}
				})
			}
			require.Equal(t, relock.LossTaken, w.lost(section, ttl/3+afterLease).Reason)
			told := time.Since(stepped)
			// Without a queue each asks for itself when the lease that it knew of should be over.
			require.NoError(t, w.call(ttl+ttl/3+afterLease, func() error { workers.Wait(); return nil }))
			t.Logf("the holder was told after %s, the last waiter was in after %s", told, slices.Max(slowest))
			require.Empty(t, errs.all())
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			if step == 10*time.Second {
				require.Equal(t, []int{0, 1, 2, 3, 4}, order)
			}
			for _, next := range tokens {
				require.Greater(t, next, token)
				token = next
			}
			w.awaitFree("a", 0)
		})
	}
}

func TestAServerClockThatGoesBackCostsNeitherTheHolderNorTheQueueAnything(t *testing.T) {
	w, clock := onClock(t)
	const ttl, step = 900 * time.Millisecond, 30 * time.Hour
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	outer := w.enter(t.Context(), l, soon)
	token := l.Token(outer)
	var waiters []*asking
	join := func() {
		waiters = append(waiters, w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a")))
		w.awaitWaiters("a", len(waiters))
	}
	join()
	join()
	clock.Step(-step)
	require.Greater(t, w.lease("a"), step)
	join() // with an arrival before all others
	renewals := w.counter(p, luaRenew)
	inner := w.enter(outer, l, soon)
	w.requireCount("a", 2)
	redistest.Eventually(t, soon, func() bool { return renewals() >= 4 }, "renewals go on")
	require.NoError(t, outer.Err())
	require.LessOrEqual(t, l.Remaining(outer), ttl, "by the holder's own clock")
	w.leave(inner, l, soon)
	w.leave(outer, l, soon)
	for i, a := range waiters {
		section := a.in(soon)
		require.Greater(t, a.lock.Token(section), token)
		token = a.lock.Token(section)
		require.LessOrEqual(t, w.lease("a"), ttl, "new leases are as long as they should be")
		require.Equal(t, len(waiters)-1-i, w.waiters("a"), "one by one, in their order")
		w.leave(section, a.lock, soon)
	}
	w.awaitFree("a", 0)
}

// What is left of a holder that dies is its lease, and that is longer now. An operator can free the lock.
func TestALeaseThatATurnedClockMadeLongCanBeEndedByForce(t *testing.T) {
	w, clock := onClock(t)
	const ttl, step = time.Second, time.Hour
	holder := w.locker("a", ttl)
	token := tokenOf(t, holder.Expect("in ", startUp))
	waiter := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a"))
	w.awaitWaiters("a", 1)
	clock.Step(-step)
	holder.Kill()
	sleepUntil(time.Now().Add(ttl + afterLease)) // it has asked, and knows of a lease of an hour
	require.True(t, waiter.waiting())
	require.Greater(t, w.lease("a"), step-ttl)
	require.NoError(t, w.peer().NewLock("a").ForceUnlock(t.Context()))
	section := waiter.in(soon)
	require.Greater(t, waiter.lock.Token(section), token)
	w.leave(section, waiter.lock, soon)
	w.awaitFree("a", 0)
}

// A lease that has become longer than the waiter's own stays, so the count is written once more: since 7.2, WAIT looks at no more
// than its connection has written.
func TestTheConfirmationOfAGrantIsWrittenAlsoWhereTheServersClockHasGoneBack(t *testing.T) {
	w, clock := onClock(t)
	p := w.peer(relock.WithReplicaAcks(1, time.Millisecond))
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	before := w.calls()["hset"]
	var lease time.Duration
	p.faults.Once(w.script(luaAcquire), redistest.Before(func([]string) {
		clock.Step(-time.Hour)
		lease = w.lease("a")
	}))
	w.leave(section, owner, soon)
	require.ErrorIs(t, waiter.out(soon), relock.ErrNotReplicated)
	require.Greater(t, lease, relock.DefaultTTL)
	require.Equal(t, 2, w.calls()["hset"]-before, "one for the grant, and one that WAIT waits for")
	w.awaitFree("a", soon)
}

// Nobody tells the waiters that the clock is right again: they ask.
func TestALeaseThatATurnedClockMadeLongIsNotWaitedOutWhenTheClockIsRightAgain(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		for ttl, most := range map[time.Duration]time.Duration{
			time.Second: 10 * time.Second, relock.DefaultTTL: relock.DefaultTTL,
		} {
			w.HSet(base("a"), "one that has died", "1")
			w.SetTTL(base("a"), time.Hour)
			l := w.NewClient(relock.WithTTL(ttl)).NewLock("a")
			waiting := begin(t, t.Context(), l.Lock)
			pass(time.Minute)
			require.True(t, waiting.waits())
			begun := time.Now()
			w.Del(base("a"))
			section := waiting.section()
			require.LessOrEqual(t, time.Since(begun), most+10*time.Millisecond)
			require.NoError(t, l.Unlock(section))
			w.requireNothingLeft("a")
		}
	})
}

func TestTokensGrowThoughTheServersClockGoesBackByDaysAndTheirKeyEnds(t *testing.T) {
	w, clock := onClock(t)
	p := w.peer()
	l := p.NewLock("a")
	var last int64
	for _, step := range []time.Duration{
		0, 0, -time.Hour, time.Minute, 2 * time.Hour, -80 * time.Hour, 0,
		25 * time.Hour, 25 * time.Hour, 25 * time.Hour, // nobody locks for longer than a token's key lives
		24 * time.Hour, 24*time.Hour + time.Second, 25 * time.Hour, -25 * time.Hour,
	} {
		clock.Step(step)
		section := w.enter(t.Context(), l, soon)
		require.Greater(t, l.Token(section), last, "after %s", step)
		last = l.Token(section)
		w.leave(section, l, soon)
	}
	w.awaitFree("a", 0)
}

func TestEverybodyGoesOnWhileTheServersClockGoesBackAndForth(t *testing.T) {
	for _, mode := range []struct {
		name  string
		ttl   time.Duration
		safe  bool // no lease ends early
		steps []time.Duration
	}{
		{"back", 5 * time.Second, true, []time.Duration{-time.Millisecond, -time.Second, -time.Minute, -time.Hour}},
		{"back and forth", 600 * time.Millisecond, false, []time.Duration{
			-time.Millisecond, -time.Second, -time.Minute, -time.Hour, -30 * time.Hour,
			time.Millisecond, time.Second, time.Minute, time.Hour, 30 * time.Hour,
		}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			w, clock := onClock(t)
			const workers = 12
			ttl := relock.WithTTL(mode.ttl)
			peers := []*peer{w.peer(ttl), w.peer(ttl), w.peer(ttl)}
			var g guarded
			var done tally
			var errs names
			var slowest atomic.Int64
			var mu sync.Mutex
			var stays []stay
			stop := make(chan struct{})
			var all sync.WaitGroup
			for i := range workers {
				l := peers[i%len(peers)].NewLock("a")
				random := rand.New(rand.NewPCG(2, uint64(i)))
				lock := l.Lock
				if i%4 == 0 { // it asks often, so the others need not wait for their time to ask
					lock = func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, 20*time.Millisecond) }
				}
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						begin := time.Now()
						section, err := lock(t.Context())
						if i%4 == 0 && (errors.Is(err, relock.ErrLocked) || isDone(err)) {
							done.add("refusals")
							continue
						}
						if err != nil {
							errs.add(err.Error())
							return
						}
						in := time.Now()
						if took := int64(in.Sub(begin)); took > slowest.Load() {
							slowest.Store(took)
						}
						if token := l.Token(section); token > 0 {
							mu.Lock()
							stays = append(stays, stay{begin, in, token})
							mu.Unlock()
						}
						if mode.safe {
							g.enter(section, l)
						}
						<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
						if mode.safe {
							g.leave(section)
						}
						switch err := l.Unlock(section); {
						case err == nil:
							done.add("sections")
						case errors.Is(err, relock.ErrLockLost) && !mode.safe:
							done.add("losses")
						default:
							errs.add(err.Error())
						}
					}
				})
			}
			random := rand.New(rand.NewPCG(3, 3))
			begin := time.Now()
			for time.Since(begin) < 2500*time.Millisecond {
				clock.Step(mode.steps[random.IntN(len(mode.steps))])
				done.add("steps")
				sleepUntil(time.Now().Add(time.Duration(random.IntN(60)) * time.Millisecond))
			}
			close(stop)
			// One more comes, and the queue drains.
			require.NoError(t, w.call(soon, func() error {
				return w.peer(ttl).NewLock("a").Do(t.Context(), func(context.Context) error { return nil })
			}))
			require.NoError(t, w.call(soon, func() error { all.Wait(); return nil }))
			t.Logf("%s; the slowest was in after %s", &done, time.Duration(slowest.Load()))
			require.Empty(t, errs.all())
			require.Greater(t, done.of("sections"), 20)
			require.Less(t, time.Duration(slowest.Load()-w.late.Load()), mode.ttl+mode.ttl/3+soon)
			g.require(t)
			requireTokensGrow(t, stays)
			w.awaitFree("a", soon)
		})
	}
}

// stay is one section: when its Lock was called and had returned, and its token.
type stay struct {
	asked, in time.Time
	token     int64
}

// requireTokensGrow fails the test if a Lock that was called when another one had returned got a token that is not larger.
func requireTokensGrow(t *testing.T, stays []stay) {
	t.Helper()
	byAsked := slices.SortedFunc(slices.Values(stays), func(a, b stay) int { return a.asked.Compare(b.asked) })
	byIn := slices.SortedFunc(slices.Values(stays), func(a, b stay) int { return a.in.Compare(b.in) })
	seen := map[int64]bool{}
	var largest int64 // of those that had returned
	n := 0
	for _, s := range byAsked {
		for ; n < len(byIn) && !byIn[n].in.After(s.asked); n++ {
			largest = max(largest, byIn[n].token)
		}
		require.Greater(t, s.token, largest, fmt.Sprint("asked at ", s.asked))
		require.False(t, seen[s.token], "token %d was given twice", s.token)
		seen[s.token] = true
	}
}
