package faults_test

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
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// In which order are waiters served, also when some give up?

// This chapter is about the order of waiters, and about waiters and clients who give up.

func TestWaitersOfSeveralClientsAreServedInOrder(t *testing.T) {
	const waiters = 15
	w := stage.OnShared(t)
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	peers := []*stage.Peer{w.Peer(), w.Peer(), w.Peer()}
	var served, errs stage.Texts
	var asked []string
	var workers sync.WaitGroup
	for i := range waiters {
		asked = append(asked, fmt.Sprint(i))
		a := w.Start(t.Context(), peers[i%3].NewLock("a"))
		workers.Go(func() {
			<-a.Done
			served.Add(fmt.Sprint(i))
			errs.Check(errors.Join(a.Err, a.Lock.Unlock(a.Ctx)))
		})
		w.AwaitWaiters("a", i+1)
	}
	w.Leave(section, owner)
	require.NoError(t, w.Call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.All())
	require.Equal(t, asked, served.All())
	w.Within(0).RequireFree("a")
}

func TestABrokenWaiterIsPassedOverAndKeepsItsPlaceWhenItIsBack(t *testing.T) {
	w := stage.OnShared(t)
	owner, peers := w.Peer().NewLock("a"), []*stage.Peer{w.Peer(), w.Peer(), w.Peer()}
	section := w.Enter(t.Context(), owner)
	var waiters []*stage.Attempt
	for i, p := range peers {
		waiters = append(waiters, w.Start(t.Context(), p.NewLock("a")))
		w.AwaitWaiters("a", i+1)
	}
	peers[0].Faults.Refuse()
	redistest.Eventually(t, w.Limit, func() bool {
		peers[0].Faults.Cut() // also a connection that was on its way
		return len(redistest.Subscriptions(t, w.Plain)) == 2
	}, "the server has noticed")
	w.Leave(section, owner)
	second := waiters[1].Section()
	require.Equal(t, 1, w.Waiters("a"), "the first has lost its place")
	peers[0].Faults.Heal()
	w.AwaitWaiters("a", 2)
	w.Leave(second, waiters[1].Lock)
	first := waiters[0].Section()
	require.True(t, waiters[2].Waits(), "the one behind is not served before it")
	w.Leave(first, waiters[0].Lock)
	waiters[2].Leave()
	w.Within(0).RequireFree("a")
}

func TestAGrantToAWaiterThatGivesUpAtThatMomentGoesToTheNext(t *testing.T) {
	w := stage.OnShared(t)
	owner, p, next := w.Peer().NewLock("a"), w.Peer().NewLock("a"), w.Peer().NewLock("a")
	var ends stage.Tally
	for range 60 {
		section := w.Enter(t.Context(), owner)
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.Start(ctx, p)
		w.AwaitWaiters("a", 1)
		waiter := w.Start(t.Context(), next)
		w.AwaitWaiters("a", 2)
		timer := time.AfterFunc(rand.N(400*time.Microsecond), cancel)
		<-time.After(rand.N(400 * time.Microsecond))
		w.Leave(section, owner)
		if gone.Failure() == nil {
			ends.Add("entered")
			w.Leave(gone.Ctx, p)
		} else {
			ends.Add("gave up")
		}
		waiter.Leave()
		timer.Stop()
		cancel()
		w.RequireFree("a")
	}
	t.Log(&ends)
}

// A message that comes while the waiter asks is kept until the waiter looks.
func TestAGrantBeforeTheAnswerThatItsWaiterIsQueuedIsNotMissed(t *testing.T) {
	w := stage.OnShared(t)
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	wake := make(chan event.Wake, 1)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(event.Hooks{AcquireFinished: func(e event.AcquireFinished) { wake <- e.Wake }}))
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.After(func([]string, string) {
		w.Leave(section, owner)
		stage.SleepUntil(time.Now().Add(100 * time.Millisecond)) // the message is there by then
	})).Skip(1) // the first only says that it is busy
	w.Start(t.Context(), p.NewLock("a")).Leave()
	require.Equal(t, event.WakeGrant, <-wake)
	w.Within(0).RequireFree("a")
}

func TestCallsOnAStoppedServerEndPromptlyAndLeaveNothing(t *testing.T) {
	w := stage.OnOwn(t)
	// go-redis alone would hang for its ReadTimeout. The connections are there: a stopped server
	// makes no new ones.
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 })
	p.Connect(t, 8)
	owner := w.Peer().NewLock("held")
	ctx, cancel := context.WithCancel(t.Context())
	section := w.Enter(t.Context(), owner)
	queued := w.Start(ctx, p.NewLock("held"))
	w.AwaitWaiters("held", 1)
	mine := w.Enter(t.Context(), p.NewLock("mine"))
	nested, stop := context.WithCancel(mine)
	w.Server.Pause()
	attempts := []*stage.Attempt{
		queued, w.Start(ctx, p.NewLock("held")), w.Start(ctx, p.NewLock("free")), w.Start(nested, p.NewLock("mine")),
	}
	stage.SleepUntil(time.Now().Add(50 * time.Millisecond))
	cancel()
	stop()
	for i, a := range attempts {
		require.True(t, stage.IsDone(a.Within(stage.Promptly).Failure()), "%d: %v", i, a.Err)
	}
	const limit = 100 * time.Millisecond
	short, cancelShort := context.WithTimeout(t.Context(), limit)
	defer cancelShort()
	require.ErrorIs(t, w.Start(short, p.NewLock("free")).Within(limit+stage.Promptly).Failure(), context.DeadlineExceeded)
	free := p.NewLock("free")
	err := w.Begin(t.Context(), stage.TryFor(free, limit)).Within(limit + stage.Promptly).Failure()
	require.ErrorIs(t, err, context.DeadlineExceeded)

	w.Server.Resume()
	redistest.Eventually(t, w.Limit, func() bool {
		return slices.Equal(redistest.Keys(t, w.Plain), []string{stage.BaseKey("held"), stage.BaseKey("mine")})
	}, "nothing is left of those that gave up")
	w.AwaitCount("mine", 1)
	w.Leave(mine, p.NewLock("mine"))
	w.Leave(section, owner)
}

func TestContextsCancelledAtAnyInstantLeaveNothing(t *testing.T) {
	const calls, workers = 800, 8
	w := stage.OnShared(t)
	peers := []*stage.Peer{w.Peer(), w.Peer(), w.Peer()}
	for _, p := range peers {
		p.Connect(t, 4)
	}
	guards := map[string]*stage.Witness{"a": {}, "b": {}}
	var entered atomic.Int64
	var mu sync.Mutex
	var returns []time.Duration // of calls that were cancelled, from then on
	var errs stage.Texts
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
			g.Enter(section, l)
			g.Leave(section)
			errs.Check(l.Unlock(section))
			return
		}
		if !stage.IsDone(err) {
			errs.Check(err)
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
	require.NoError(t, w.Within(30*time.Second).Call(func() error { all.Wait(); return nil }))
	require.Empty(t, errs.All())
	require.NotEmpty(t, returns)
	require.Positive(t, entered.Load())
	slices.Sort(returns)
	most, slowest := returns[len(returns)*9/10], returns[len(returns)-1]
	t.Logf("%d entered, %d were cancelled: nine tenths returned within %s, all within %s", entered.Load(), len(returns), most, slowest)
	require.Less(t, most, stage.Promptly+w.Lateness())
	require.Less(t, slowest, stage.Limit+w.Lateness())
	for name, g := range guards {
		g.Require(t)
		w.RequireFree(name)
	}
}
