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

// In which order are waiters served whose connections break?

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
