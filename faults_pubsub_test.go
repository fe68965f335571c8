package relock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// What if the pub/sub connection of waiters breaks?

// This chapter is about the pub/sub connection of waiters. The package internal/subs has more.

func TestWaitersShareSubscriptionsAndLocksShareTheConnection(t *testing.T) {
	const locks, waiters = 50, 30
	w := onShared(t)
	owner, p := w.peer(), w.peer()
	lock := func(p *peer, i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	var sections []context.Context
	var all []*attempt
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), lock(owner, i)))
		all = append(all, w.start(t.Context(), lock(p, i)))
	}
	for range waiters - 1 {
		all = append(all, w.start(t.Context(), lock(p, 0)))
	}
	w.awaitWaiters("lock0", waiters)
	for i := 1; i < locks; i++ {
		w.awaitWaiters(fmt.Sprint("lock", i), 1)
	}
	heard := redistest.Subscriptions(t, w.plain)
	require.GreaterOrEqual(t, len(heard), locks)
	require.LessOrEqual(t, len(heard), locks+1, "and the control channel of the owner")
	for channel, n := range w.plain.PubSubNumSub(t.Context(), heard...).Val() {
		require.EqualValues(t, 1, n, "%d waiters share %s", waiters, channel)
	}
	_, pubsub := p.faults.Conns()
	require.Equal(t, 1, pubsub)

	for i, section := range sections {
		w.leave(section, lock(owner, i))
	}
	var workers sync.WaitGroup
	var errs names
	for _, a := range all {
		workers.Go(func() {
			<-a.done
			errs.check(a.err)
			errs.check(a.lock.Unlock(a.ctx))
		})
	}
	require.NoError(t, w.within(2*w.limit).call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.all())
	require.NotEmpty(t, redistest.Subscriptions(t, w.plain), "they linger")
	redistest.Eventually(t, 4*time.Second, func() bool {
		_, pubsub := p.faults.Conns()
		return pubsub == 0
	}, "subscriptions and connection do not outlast their waiters for long")
}

func TestALockThatIsContendedAgainAndAgainIsSubscribedOnce(t *testing.T) {
	const rounds = 20
	w := onShared(t)
	owner, p := w.peer().NewLock("a"), w.peer()
	l := p.NewLock("a")
	asks := w.counter(p, luaAcquire)
	for range rounds {
		section := w.enter(t.Context(), owner)
		waiter := w.start(t.Context(), l)
		w.awaitWaiters("a", 1)
		w.leave(section, owner)
		waiter.leave()
	}
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))
	require.Zero(t, p.faults.Commands("UNSUBSCRIBE"))
	require.Equal(t, rounds+1, asks(), "once subscribed, the first call joins the queue")
	w.within(0).requireFree("a")
}

func TestAPubSubConnectionThatIsCutWhileTheLockIsFreedCostsLittle(t *testing.T) {
	for order, act := range map[string]func(p *peer, leave func()){
		"cut first": func(p *peer, leave func()) { p.faults.CutPubSub(); leave() },
		"freed first": func(p *peer, leave func()) { // the grant is on its way when the connection breaks: it is lost
			p.faults.StallPubSub()
			leave()
			p.faults.CutPubSub()
		},
		"down for a while": func(p *peer, leave func()) {
			p.faults.Refuse()
			p.faults.Cut()
			leave()
			sleepUntil(time.Now().Add(300 * time.Millisecond))
			p.faults.Heal()
		},
	} {
		t.Run(order, func(t *testing.T) {
			s := onShared(t).scene()
			section := s.lockBy()
			waiter := s.start(t.Context(), s.l)
			s.awaitWaiters("a", 1)
			begin := time.Now()
			act(s.p, func() { s.leave(section, s.far) })
			section = waiter.within(time.Second).section()
			t.Logf("in after %s", waiter.ended.Sub(begin))
			s.leave(section, s.l)
			s.within(0).requireFree("a")
		})
	}
}

func TestAPubSubConnectionThatCannotBeMadeCostsALeaseAndNoHotLoop(t *testing.T) {
	const ttl = 800 * time.Millisecond
	s := onShared(t).scene(relock.WithTTL(ttl))
	section := s.lockBy()
	asks := s.counter(s.p, luaAcquire)
	s.p.faults.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
	waiter := s.start(t.Context(), s.l)
	redistest.Eventually(t, s.limit, func() bool { return s.p.faults.Stats().Dials >= 3 }, "it tries")
	s.p.faults.Reset()
	before := asks()
	sleepUntil(time.Now().Add(time.Second))
	require.True(t, waiter.waits())
	require.LessOrEqual(t, s.p.faults.Stats().Dials, 30, "no hot loop") // go-redis dials more than once for each try
	require.LessOrEqual(t, asks()-before, 15, "no hot loop")
	s.leave(section, s.far)
	s.leave(waiter.within(ttl+afterLease).section(), s.l)
	s.within(0).requireFree("a")
}

func TestAPubSubConnectionThatGoesSilentIsFoundOutWithinSeconds(t *testing.T) {
	const halfOpen = 5 * time.Second
	w := apart(t)
	owner, p, q := w.peer(), w.peer(), w.peer()
	section := w.enter(t.Context(), owner.NewLock("a"))
	granted := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	other := w.enter(t.Context(), owner.NewLock("b"))
	// The answer to this SUBSCRIBE never comes, nor does anything else on its connection.
	p.faults.StallPubSub()
	q.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Stall())
	deaf := w.start(t.Context(), q.NewLock("b"))

	w.leave(section, owner.NewLock("a"))
	w.requireCount("a", 1) // granted, into the void
	w.leave(granted.within(halfOpen).section(), granted.lock)
	redistest.Eventually(t, halfOpen, func() bool { return w.waiters("b") == 1 }, "the other is queued")
	w.leave(other, owner.NewLock("b"))
	deaf.leave()
	p.faults.Heal() // the old connections end
	q.faults.Heal()
}

// Redis says that nobody hears the waiter, and when the answer has come, somebody does again.
func TestAnAnswerOlderThanThePubSubConnectionDoesNotEndIt(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner)
	back := make(chan struct{}, 10)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(relock.Hooks{Reconnected: func(relock.Reconnected) { back <- struct{}{} }}))
	answered := make(chan struct{})
	p.faults.On(redistest.Named("SUBSCRIBE"), redistest.Before(func([]string) { <-answered })).Skip(1)
	p.faults.Once(w.script(luaAcquire), redistest.Before(func([]string) {
		p.faults.CutPubSub()
		redistest.Eventually(t, w.limit, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 0 }, "the server has noticed")
	})).Skip(1)
	p.faults.Once(w.script(luaAcquire), redistest.After(func([]string, string) { close(answered); <-back })).Skip(1)
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	sleepUntil(time.Now().Add(100 * time.Millisecond))
	t.Logf("%d times subscribed", p.faults.Commands("SUBSCRIBE"))
	require.Equal(t, 2, p.faults.Commands("SUBSCRIBE"), "the new connection is kept")
	w.leave(section, owner)
	waiter.leave()
	w.within(0).requireFree("a")
}
