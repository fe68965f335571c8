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

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// In which order are waiters served, also when some give up?

// This chapter is about the order of waiters, and about waiters and clients who give up.

func TestWaitersOfSeveralClientsAreServedInOrder(t *testing.T) {
	const waiters = 15
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner)
	peers := []*peer{w.peer(), w.peer(), w.peer()}
	var served, errs names
	var asked []string
	var workers sync.WaitGroup
	for i := range waiters {
		asked = append(asked, fmt.Sprint(i))
		a := w.start(t.Context(), peers[i%3].NewLock("a"))
		workers.Go(func() {
			<-a.done
			served.add(fmt.Sprint(i))
			errs.check(errors.Join(a.err, a.lock.Unlock(a.ctx)))
		})
		w.awaitWaiters("a", i+1)
	}
	w.leave(section, owner)
	require.NoError(t, w.call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.all())
	require.Equal(t, asked, served.all())
	w.within(0).requireFree("a")
}

func TestABrokenWaiterIsPassedOverAndKeepsItsPlaceWhenItIsBack(t *testing.T) {
	w := onShared(t)
	owner, peers := w.peer().NewLock("a"), []*peer{w.peer(), w.peer(), w.peer()}
	section := w.enter(t.Context(), owner)
	var waiters []*attempt
	for i, p := range peers {
		waiters = append(waiters, w.start(t.Context(), p.NewLock("a")))
		w.awaitWaiters("a", i+1)
	}
	peers[0].faults.Refuse()
	peers[0].faults.Cut()
	redistest.Eventually(t, w.limit, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 2 }, "the server has noticed")
	w.leave(section, owner)
	second := waiters[1].section()
	require.Equal(t, 1, w.waiters("a"), "the first has lost its place")
	peers[0].faults.Heal()
	w.awaitWaiters("a", 2)
	w.leave(second, waiters[1].lock)
	first := waiters[0].section()
	require.True(t, waiters[2].waits(), "the one behind is not served before it")
	w.leave(first, waiters[0].lock)
	waiters[2].leave()
	w.within(0).requireFree("a")
}

func TestAGrantToAWaiterThatGivesUpAtThatMomentGoesToTheNext(t *testing.T) {
	w := onShared(t)
	owner, p, next := w.peer().NewLock("a"), w.peer().NewLock("a"), w.peer().NewLock("a")
	var ends tally
	for range 60 {
		section := w.enter(t.Context(), owner)
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.start(ctx, p)
		w.awaitWaiters("a", 1)
		waiter := w.start(t.Context(), next)
		w.awaitWaiters("a", 2)
		timer := time.AfterFunc(rand.N(400*time.Microsecond), cancel)
		<-time.After(rand.N(400 * time.Microsecond))
		w.leave(section, owner)
		if gone.failure() == nil {
			ends.add("entered")
			w.leave(gone.ctx, p)
		} else {
			ends.add("gave up")
		}
		waiter.leave()
		timer.Stop()
		cancel()
		w.requireFree("a")
	}
	t.Log(&ends)
}

// A message that comes while the waiter asks is kept until the waiter looks.
func TestAGrantBeforeTheAnswerThatItsWaiterIsQueuedIsNotMissed(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner)
	wake := make(chan relock.Wake, 1)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(relock.Hooks{AcquireFinished: func(e relock.AcquireFinished) { wake <- e.Wake }}))
	p.faults.Once(w.script(luaAcquire), redistest.After(func([]string, string) {
		w.leave(section, owner)
		sleepUntil(time.Now().Add(100 * time.Millisecond)) // the message is there by then
	})).Skip(1) // the first only says that it is busy
	w.start(t.Context(), p.NewLock("a")).leave()
	require.Equal(t, relock.WakeGrant, <-wake)
	w.within(0).requireFree("a")
}

func TestCallsOnAStoppedServerEndPromptlyAndLeaveNothing(t *testing.T) {
	w := onOwn(t)
	// go-redis alone would hang for its ReadTimeout. The connections are there: a stopped server
	// makes no new ones.
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 })
	p.connect(t, 8)
	owner := w.peer().NewLock("held")
	ctx, cancel := context.WithCancel(t.Context())
	section := w.enter(t.Context(), owner)
	queued := w.start(ctx, p.NewLock("held"))
	w.awaitWaiters("held", 1)
	mine := w.enter(t.Context(), p.NewLock("mine"))
	nested, stop := context.WithCancel(mine)
	w.server.Pause()
	attempts := []*attempt{
		queued, w.start(ctx, p.NewLock("held")), w.start(ctx, p.NewLock("free")), w.start(nested, p.NewLock("mine")),
	}
	sleepUntil(time.Now().Add(50 * time.Millisecond))
	cancel()
	stop()
	for i, a := range attempts {
		require.True(t, isDone(a.within(promptly).failure()), "%d: %v", i, a.err)
	}
	const limit = 100 * time.Millisecond
	short, cancelShort := context.WithTimeout(t.Context(), limit)
	defer cancelShort()
	require.ErrorIs(t, w.start(short, p.NewLock("free")).within(limit+promptly).failure(), context.DeadlineExceeded)
	free := p.NewLock("free")
	err := w.begin(t.Context(), tryFor(free, limit)).within(limit + promptly).failure()
	require.ErrorIs(t, err, context.DeadlineExceeded)

	w.server.Resume()
	redistest.Eventually(t, w.limit, func() bool {
		return slices.Equal(redistest.Keys(t, w.plain), []string{baseKey("held"), baseKey("mine")})
	}, "nothing is left of those that gave up")
	w.awaitCount("mine", 1)
	w.leave(mine, p.NewLock("mine"))
	w.leave(section, owner)
}

func TestContextsCancelledAtAnyInstantLeaveNothing(t *testing.T) {
	const calls, workers = 800, 8
	w := onShared(t)
	peers := []*peer{w.peer(), w.peer(), w.peer()}
	for _, p := range peers {
		p.connect(t, 4)
	}
	guards := map[string]*witness{"a": {}, "b": {}}
	var entered atomic.Int64
	var mu sync.Mutex
	var returns []time.Duration // of calls that were cancelled, from then on
	var errs names
	one := func(l *relock.Lock, latest time.Duration) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var at atomic.Int64
		timer := time.AfterFunc(rand.N(latest), func() { at.Store(time.Now().UnixNano()); cancel() })
		defer timer.Stop()
		section, err := l.Lock(ctx)
		now := time.Now().UnixNano()
		if err == nil {
			entered.Add(1)
			g := guards[l.Name()]
			g.enter(section, l)
			g.leave(section)
			errs.check(l.Unlock(section))
			return
		}
		if !isDone(err) {
			errs.check(err)
		}
		mu.Lock()
		defer mu.Unlock()
		returns = append(returns, time.Duration(now-at.Load()))
	}
	var all sync.WaitGroup
	for i := range workers {
		l := peers[i%3].NewLock([]string{"a", "b"}[i%2])
		all.Go(func() {
			for n := range calls / workers {
				latest := 5 * time.Millisecond
				if entered.Load() == 0 { // on a busy machine nobody ever would enter
					latest <<= min(n, 8)
				}
				one(l, latest)
			}
		})
	}
	require.NoError(t, w.within(30*time.Second).call(func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	require.NotEmpty(t, returns)
	require.Positive(t, entered.Load())
	slices.Sort(returns)
	most, slowest := returns[len(returns)*9/10], returns[len(returns)-1]
	t.Logf("%d entered, %d were cancelled: nine tenths returned within %s, all within %s", entered.Load(), len(returns), most, slowest)
	require.Less(t, most, promptly+w.lateness())
	require.Less(t, slowest, limit+w.lateness())
	for name, g := range guards {
		g.require(t)
		w.requireFree(name)
	}
}
