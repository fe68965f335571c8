package faults_test

import (
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

// Redis says that nobody hears the waiter, and when the answer has come, somebody does again.
func TestAnAnswerOlderThanThePubSubConnectionDoesNotEndIt(t *testing.T) {
	w := stage.OnShared(t)
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	back := make(chan struct{}, 10)
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(event.Hooks{Reconnected: func(event.Reconnected) { back <- struct{}{} }}))
	answered, seen := make(chan struct{}), make(chan struct{})
	await := func(c chan struct{}) {
		select {
		case <-c:
		case <-t.Context().Done():
		}
	}
	p.Faults.On(redistest.Named("SUBSCRIBE"), redistest.Before(func([]string) { await(answered) })).Skip(1)
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.Before(func([]string) {
		p.Faults.CutPubSub()
		redistest.Eventually(t, w.Limit, func() bool { return len(redistest.Subscriptions(t, w.Plain)) == 0 }, "the server has noticed")
	})).Skip(1)
	p.Faults.Once(w.Script(stage.LuaAcquire), redistest.After(func([]string, string) {
		close(answered)
		await(back)
		close(seen)
	})).Skip(1)
	waiter := w.Start(t.Context(), p.NewLock("a"))
	await(seen)
	stage.SleepUntil(time.Now().Add(100 * time.Millisecond))
	t.Logf("%d times subscribed", p.Faults.Commands("SUBSCRIBE"))
	require.Equal(t, 2, p.Faults.Commands("SUBSCRIBE"), "the new connection is kept")
	w.Leave(section, owner)
	waiter.Leave()
	w.Within(0).RequireFree("a")
}
