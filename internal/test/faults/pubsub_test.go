package faults_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if the pub/sub connection of waiters breaks?

// This chapter is about the pub/sub connection of waiters. The package internal/subs has more.

func TestWaitersShareSubscriptionsAndLocksShareTheConnection(t *testing.T) {
	const locks, waiters = 50, 30
	w := stage.OnShared(t)
	owner, p := w.Peer(), w.Peer()
	lock := func(p *stage.Peer, i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	var sections []context.Context
	var all []*stage.Attempt
	for i := range locks {
		sections = append(sections, w.Enter(t.Context(), lock(owner, i)))
		all = append(all, w.Start(t.Context(), lock(p, i)))
	}
	for range waiters - 1 {
		all = append(all, w.Start(t.Context(), lock(p, 0)))
	}
	w.AwaitWaiters("lock0", waiters)
	for i := 1; i < locks; i++ {
		w.AwaitWaiters(fmt.Sprint("lock", i), 1)
	}
	heard := redistest.Subscriptions(t, w.Plain)
	require.GreaterOrEqual(t, len(heard), locks)
	require.LessOrEqual(t, len(heard), locks+1, "and the control channel of the owner")
	for channel, n := range w.Plain.PubSubNumSub(t.Context(), heard...).Val() {
		require.EqualValues(t, 1, n, "%d waiters share %s", waiters, channel)
	}
	_, pubsub := p.Faults.Conns()
	require.Equal(t, 1, pubsub)

	for i, section := range sections {
		w.Leave(section, lock(owner, i))
	}
	var workers sync.WaitGroup
	var errs stage.Texts
	for _, a := range all {
		workers.Go(func() {
			<-a.Done
			errs.Check(a.Err)
			errs.Check(a.Lock.Unlock(a.Ctx))
		})
	}
	require.NoError(t, w.Within(2*w.Limit).Call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.All())
	require.NotEmpty(t, redistest.Subscriptions(t, w.Plain), "they linger")
	redistest.Eventually(t, 4*time.Second, func() bool {
		_, pubsub := p.Faults.Conns()
		return pubsub == 0
	}, "subscriptions and connection do not outlast their waiters for long")
}

func TestAMessageRenewsOnlyTheHoldThatItNames(t *testing.T) {
	const locks = 50
	w := stage.OnShared(t)
	renewed, lost := make(chan event.Renewed, 1000), make(chan event.Lost, locks)
	p := w.Peer(relock.WithTTL(10*time.Minute), relock.WithHooks(event.Hooks{
		Renewed: func(r event.Renewed) { renewed <- r },
		Lost:    func(l event.Lost) { lost <- l },
	}))
	lock := func(i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	var sections []context.Context
	for i := range locks {
		sections = append(sections, w.Enter(t.Context(), lock(i)))
	}
	channel := "relock:{" + p.ID() + "}"
	redistest.Eventually(t, w.Limit, func() bool {
		return slices.Contains(redistest.Subscriptions(t, w.Plain), channel)
	}, "the client listens")
	for seen := 0; seen < locks; { // the begin of the watch renews all
		seen += (<-renewed).Locks
	}
	for range 20 {
		require.NoError(t, w.Plain.Publish(t.Context(), channel, "somebody:1:1").Err())
		require.NoError(t, w.Plain.Publish(t.Context(), channel, p.ID()+":1000:1000").Err())
	}
	require.NoError(t, w.Peer().NewLock("lock7").ForceUnlock(t.Context()))
	require.Equal(t, "lock7", (<-lost).Name)
	require.Equal(t, event.Renewed{Locks: 1, Lost: 1}, withoutDuration(<-renewed))
	require.Empty(t, renewed)
	for i, section := range sections {
		if i != 7 {
			w.Leave(section, lock(i))
		}
	}
}

func withoutDuration(r event.Renewed) event.Renewed {
	r.Duration = 0
	return r
}

func TestAPubSubConnectionThatIsCutWhileTheLockIsFreedCostsLittle(t *testing.T) {
	for order, act := range map[string]func(p *stage.Peer, leave func()){
		"cut first": func(p *stage.Peer, leave func()) { p.Faults.CutPubSub(); leave() },
		"freed first": func(p *stage.Peer, leave func()) { // the grant is on its way when the connection breaks: it is lost
			p.Faults.StallPubSub()
			leave()
			p.Faults.CutPubSub()
		},
		"down for a while": func(p *stage.Peer, leave func()) {
			p.Faults.Refuse()
			p.Faults.Cut()
			leave()
			stage.SleepUntil(time.Now().Add(300 * time.Millisecond))
			p.Faults.Heal()
		},
	} {
		t.Run(order, func(t *testing.T) {
			s := stage.OnShared(t).Scene()
			section := s.LockBy()
			waiter := s.Start(t.Context(), s.L)
			s.AwaitWaiters("a", 1)
			begin := time.Now()
			act(s.P, func() { s.Leave(section, s.Far) })
			section = waiter.Within(time.Second).Section()
			t.Logf("in after %s", waiter.Ended.Sub(begin))
			s.Leave(section, s.L)
			s.Within(0).RequireFree("a")
		})
	}
}

func TestAPubSubConnectionThatGoesSilentIsFoundOutWithinSeconds(t *testing.T) {
	const halfOpen = 5 * time.Second
	w := stage.Apart(t)
	owner, p, q := w.Peer(), w.Peer(), w.Peer()
	section := w.Enter(t.Context(), owner.NewLock("a"))
	granted := w.Start(t.Context(), p.NewLock("a"))
	w.AwaitWaiters("a", 1)
	other := w.Enter(t.Context(), owner.NewLock("b"))
	// The answer to this SUBSCRIBE never comes, nor does anything else on its connection.
	p.Faults.StallPubSub()
	q.Faults.Once(redistest.Named("SUBSCRIBE"), redistest.Stall())
	deaf := w.Start(t.Context(), q.NewLock("b"))

	w.Leave(section, owner.NewLock("a"))
	w.RequireCount("a", 1) // granted, into the void
	w.Leave(granted.Within(halfOpen).Section(), granted.Lock)
	redistest.Eventually(t, halfOpen, func() bool { return w.Waiters("b") == 1 }, "the other is queued")
	w.Leave(other, owner.NewLock("b"))
	deaf.Leave()
	p.Faults.Heal() // the old connections end
	q.Faults.Heal()
}

// Redis says that nobody hears the waiter, and when the answer has come, somebody does again.
func TestAnAnswerOlderThanThePubSubConnectionDoesNotEndIt(t *testing.T) {
	w := stage.OnShared(t)
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	back := make(chan struct{}, 10)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(event.Hooks{Reconnected: func(event.Reconnected) { back <- struct{}{} }}))
	answered := make(chan struct{})
	p.Faults.On(redistest.Named("SUBSCRIBE"), redistest.Before(func([]string) { <-answered })).Skip(1)
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.Before(func([]string) {
		p.Faults.CutPubSub()
		redistest.Eventually(t, w.Limit, func() bool { return len(redistest.Subscriptions(t, w.Plain)) == 0 }, "the server has noticed")
	})).Skip(1)
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.After(func([]string, string) { close(answered); <-back })).Skip(1)
	waiter := w.Start(t.Context(), p.NewLock("a"))
	w.AwaitWaiters("a", 1)
	stage.SleepUntil(time.Now().Add(100 * time.Millisecond))
	t.Logf("%d times subscribed", p.Faults.Commands("SUBSCRIBE"))
	require.Equal(t, 2, p.Faults.Commands("SUBSCRIBE"), "the new connection is kept")
	w.Leave(section, owner)
	waiter.Leave()
	w.Within(0).RequireFree("a")
}
