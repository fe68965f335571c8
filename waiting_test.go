package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// ---------------------------------------------------------------------------------------------------------------------
// The queue.

// names collects who was in, one after another.
type names struct {
	mu   sync.Mutex
	list []string
}

func (n *names) add(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, name)
}

func (n *names) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// holders is the queue of a lock, first come first.
func (w *arena) holders(name string) []string {
	w.t.Helper()
	members, err := w.plain.ZRange(context.Background(), baseKey(name)+":queue", 0, -1).Result()
	require.NoError(w.t, err)
	for i, m := range members {
		hold, _, _ := strings.Cut(m, "|")
		members[i] = hold[:strings.LastIndexByte(hold, ':')]
	}
	return members
}

func TestWaitersOfSeveralClientsAreServedInTheOrderInWhichTheyAsked(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	var served names
	var asked []string
	peers := []*peer{w.peer(), w.peer(), w.peer()}
	var workers sync.WaitGroup
	for i := range 15 {
		name := fmt.Sprint(i)
		asked = append(asked, name)
		a := w.start(t.Context(), peers[i%3].NewLock("a"))
		workers.Go(func() {
			<-a.done
			if a.err != nil {
				return
			}
			served.add(name)
			_ = a.lock.Unlock(a.section)
		})
		w.awaitWaiters("a", i+1)
	}
	w.leave(section, owner, soon)
	redistest.Eventually(t, soon, func() bool { return len(served.all()) == 15 }, "all are served")
	workers.Wait()
	require.Equal(t, asked, served.all())
	w.awaitFree("a", 0)
}

func TestTryLockDoesNotOvertakeTheQueue(t *testing.T) {
	w := onShared(t)
	// The owner's lease runs out, as nobody renews it: its request is over.
	const ttl = 400 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	p := w.peer(relock.WithTTL(ttl))
	w.enter(ctx, p.NewLock("a"), soon)
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	cancel()
	other := w.peer().NewLock("a")
	redistest.Eventually(t, ttl+500*time.Millisecond, func() bool {
		_, err := other.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
		return !waiter.waiting()
	}, "the waiter is in")
	w.leave(waiter.in(0), waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestAWaiterOfALockWhoseLeaseRunsOutIsInSoonAfterwards(t *testing.T) {
	w := onShared(t)
	const ttl = 500 * time.Millisecond
	p := w.peer()
	owner := p.NewLock("a", relock.WithFixedLease(ttl))
	section := w.enter(t.Context(), owner, soon)
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	mine := waiter.in(ttl + 500*time.Millisecond)
	require.Equal(t, relock.LossExpired, w.lost(section, 0).Reason)
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestALockThatIsTakenFromWhoHadWaitedLeavesNoPlaceInTheQueue(t *testing.T) {
	w := onShared(t)
	const ttl = 600 * time.Millisecond
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	waiter := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a"))
	w.awaitWaiters("a", 1)
	w.leave(section, owner, soon)
	mine := waiter.in(soon)
	queue := baseKey("a") + ":queue"
	require.EqualValues(t, 1, w.plain.ZCard(t.Context(), queue).Val(), "the release has left the queue alone")
	require.NoError(t, w.plain.Del(t.Context(), baseKey("a")).Err())
	require.Equal(t, relock.LossTaken, w.lost(mine, soon).Reason)
	redistest.Eventually(t, soon, func() bool { return w.plain.Exists(t.Context(), queue).Val() == 0 }, "its place is gone")
	w.leave(w.enter(t.Context(), owner, soon), owner, soon)
	w.awaitFree("a", 0)
}

func TestAWaiterIsBehindTheQueueThoughTheServersClockWasTurnedBack(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	// The clock was an hour ahead, as far as anybody can tell, when the last token was given, and when the first one came.
	token := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, w.plain.Set(t.Context(), baseKey("a")+":token", token, time.Hour).Err())
	first := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	queue, err := w.plain.ZRange(t.Context(), baseKey("a")+":queue", 0, 0).Result()
	require.NoError(t, err)
	require.NoError(t, w.plain.ZIncrBy(t.Context(), baseKey("a")+":queue", 3600e6, queue[0]).Err())
	second := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 2)
	w.leave(section, owner, soon)
	mine := first.in(soon)
	require.Greater(t, first.lock.Token(mine), token)
	require.True(t, second.waiting())
	w.leave(mine, first.lock, soon)
	last := second.in(soon)
	require.Greater(t, second.lock.Token(last), token+1)
	w.leave(last, second.lock, soon)
	w.awaitFree("a", 0)
}

func TestWaitersOfALockThatIsDeletedByHandAreInWithinALease(t *testing.T) {
	w := onShared(t)
	const ttl = 600 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	owner := p.NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	first := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	second := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 2)
	require.NoError(t, w.plain.FlushAll(t.Context()).Err())
	require.Equal(t, relock.LossTaken, w.lost(section, ttl).Reason)
	g := guarded{}
	for range 2 {
		// Whoever comes first: the queue is gone too.
		select {
		case <-first.done:
			require.True(t, g.enter(first.in(0), first.lock))
			g.leave(first.section)
			w.leave(first.section, first.lock, soon)
			first = second
		case <-second.done:
			require.True(t, g.enter(second.in(0), second.lock))
			g.leave(second.section)
			w.leave(second.section, second.lock, soon)
			second = first
		case <-time.After(ttl + 500*time.Millisecond):
			t.Fatal("nobody is in")
		}
	}
	g.require(t)
	w.awaitFree("a", 0)
}

func TestABrokenWaiterIsPassedOverAndKeepsItsPlaceWhenItIsBack(t *testing.T) {
	w := onShared(t)
	owner, a, b, c := w.peer().NewLock("x"), w.peer(), w.peer(), w.peer()
	section := w.enter(t.Context(), owner, soon)
	waiters := make([]*asking, 0, 3)
	for i, p := range []*peer{a, b, c} {
		waiters = append(waiters, w.start(t.Context(), p.NewLock("x")))
		w.awaitWaiters("x", i+1)
	}
	a.faults.Refuse()
	a.faults.Cut()
	redistest.Eventually(t, soon, func() bool {
		return len(redistest.Subscriptions(t, w.plain)) == 2
	}, "the server has noticed")
	w.leave(section, owner, soon)
	second := waiters[1].in(soon)
	require.Equal(t, 1, w.waiters("x"), "the first has lost its entry")
	a.faults.Heal()
	w.awaitWaiters("x", 2)
	w.leave(second, waiters[1].lock, soon)
	first := waiters[0].in(soon)
	require.True(t, waiters[2].waiting(), "the one behind is not served before it")
	w.leave(first, waiters[0].lock, soon)
	w.leave(waiters[2].in(soon), waiters[2].lock, soon)
	w.awaitFree("x", 0)
}

func TestAGrantToAWaiterThatGivesUpAtThatMomentGoesToTheNext(t *testing.T) {
	w := onShared(t)
	owner, p, next := w.peer().NewLock("a"), w.peer().NewLock("a"), w.peer().NewLock("a")
	for range 60 {
		section := w.enter(t.Context(), owner, soon)
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.start(ctx, p)
		w.awaitWaiters("a", 1)
		waiter := w.start(t.Context(), next)
		w.awaitWaiters("a", 2)
		go func() {
			<-time.After(rand.N(400 * time.Microsecond))
			cancel()
		}()
		<-time.After(rand.N(400 * time.Microsecond))
		w.leave(section, owner, soon)
		if gone.out(soon) == nil {
			w.leave(gone.section, p, soon)
		}
		w.leave(waiter.in(soon), next, soon)
		cancel()
		w.awaitFree("a", soon)
	}
}

// What a waiter is told while it asks is kept until it looks.
func TestAGrantThatComesBeforeTheAnswerThatItsWaiterIsQueuedIsNotMissed(t *testing.T) {
	w := onShared(t)
	w.loadScripts()
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	wake := make(chan relock.Wake, 1)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(relock.Hooks{AcquireFinished: func(e relock.AcquireFinished) { wake <- e.Wake }}))
	p.faults.Once(w.script(luaAcquire), redistest.After(func([]string, string) {
		w.leave(section, owner, soon)
		sleepUntil(time.Now().Add(100 * time.Millisecond)) // the message is there by then
	})).Skip(1) // the first only says that it is busy
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.leave(waiter.in(soon), waiter.lock, soon)
	require.Equal(t, relock.WakeGrant, <-wake)
	w.awaitFree("a", 0)
}

// ---------------------------------------------------------------------------------------------------------------------
// The pub/sub connection.

func TestSubscriptionsAreSharedByWaitersAndTheConnectionByLocks(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer(), w.peer()
	lock := func(p *peer, i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	const locks, waiters = 100, 50
	var sections []context.Context
	var all []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), lock(owner, i), soon))
		all = append(all, w.start(t.Context(), lock(p, i)))
	}
	for range waiters - 1 {
		all = append(all, w.start(t.Context(), lock(p, 0)))
	}
	w.awaitWaiters("lock0", waiters)
	for i := 1; i < locks; i++ {
		w.awaitWaiters(fmt.Sprint("lock", i), 1)
	}
	channels := redistest.Subscriptions(t, w.plain)
	require.Len(t, channels, locks)
	counts, err := w.plain.PubSubNumSub(t.Context(), channels...).Result()
	require.NoError(t, err)
	for channel, n := range counts {
		require.EqualValues(t, 1, n, "%d waiters share %s", waiters, channel)
	}
	_, pubsub := p.faults.Conns()
	require.Equal(t, 1, pubsub)

	for i, section := range sections {
		w.leave(section, lock(owner, i), soon)
	}
	var workers sync.WaitGroup
	for _, a := range all {
		workers.Go(func() {
			<-a.done
			if a.err == nil {
				_ = a.lock.Unlock(a.section)
			}
		})
	}
	require.NoError(t, w.call(2*soon, func() error { workers.Wait(); return nil }))
	for _, a := range all {
		require.NoError(t, a.err)
	}
	freed := time.Now()
	require.NotEmpty(t, redistest.Subscriptions(t, w.plain), "they linger")
	redistest.Eventually(t, 4*time.Second, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 0 },
		"subscriptions do not outlast their waiters for long")
	redistest.Eventually(t, 5*time.Second-time.Since(freed), func() bool {
		_, pubsub := p.faults.Conns()
		return pubsub == 0
	}, "nor does the connection")
}

func TestALockThatIsContendedAgainAndAgainIsSubscribedOnce(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer().NewLock("a"), w.peer()
	l := p.NewLock("a")
	asks := w.counter(p, luaAcquire)
	const rounds = 20
	for range rounds {
		section := w.enter(t.Context(), owner, soon)
		waiter := w.start(t.Context(), l)
		w.awaitWaiters("a", 1)
		w.leave(section, owner, soon)
		w.leave(waiter.in(soon), l, soon)
	}
	require.Equal(t, 1, p.faults.Commands("SUBSCRIBE"))
	require.Zero(t, p.faults.Commands("UNSUBSCRIBE"))
	require.Equal(t, rounds+1, asks(), "once subscribed, the first call joins the queue")
	w.awaitFree("a", 0)
}

func TestAPubSubConnectionThatIsCutWhileTheLockIsFreedCostsItsWaiterLittle(t *testing.T) {
	for _, order := range []string{"cut first", "freed first", "down for a while"} {
		t.Run(order, func(t *testing.T) {
			w := onShared(t)
			owner, p := w.peer().NewLock("a"), w.peer()
			section := w.enter(t.Context(), owner, soon)
			waiter := w.start(t.Context(), p.NewLock("a"))
			w.awaitWaiters("a", 1)
			const within = time.Second
			begin := time.Now()
			switch order {
			case "cut first":
				p.faults.CutPubSub()
				w.leave(section, owner, soon)
			case "freed first":
				// The grant is on its way when the connection breaks: it is lost.
				p.faults.StallPubSub()
				w.leave(section, owner, soon)
				w.requireCount("a", 1)
				p.faults.CutPubSub()
			case "down for a while":
				p.faults.Refuse()
				p.faults.Cut()
				w.leave(section, owner, soon)
				sleepUntil(time.Now().Add(300 * time.Millisecond))
				require.True(t, waiter.waiting())
				p.faults.Heal()
			}
			section = waiter.in(within)
			t.Logf("in after %s", waiter.at.Sub(begin))
			w.leave(section, waiter.lock, soon)
			w.awaitFree("a", 0)
		})
	}
}

func TestAPubSubConnectionThatCannotBeMadeCausesNoHotLoopAndCostsNoMoreThanALease(t *testing.T) {
	w := onShared(t)
	const ttl = 800 * time.Millisecond
	owner, p := w.peer(relock.WithTTL(ttl)).NewLock("a"), w.peer(relock.WithTTL(ttl))
	section := w.enter(t.Context(), owner, soon)
	asks := w.counter(p, luaAcquire)
	p.faults.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
	waiter := w.start(t.Context(), p.NewLock("a"))
	redistest.Eventually(t, soon, func() bool { return p.faults.Stats().Dials >= 3 }, "it tries")
	p.faults.Reset()
	before := asks()
	sleepUntil(time.Now().Add(time.Second))
	require.True(t, waiter.waiting())
	require.LessOrEqual(t, p.faults.Stats().Dials, 30, "no hot loop") // go-redis dials more than once for each try
	require.LessOrEqual(t, asks()-before, 15, "no hot loop")
	w.leave(section, owner, soon)
	w.leave(waiter.in(ttl+500*time.Millisecond), waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestASubscriptionThatIsRefusedInPassingIsAskedForAgainWithGrowingPauses(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer(), w.peer()
	const locks = 20
	lock := func(p *peer, i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	busy := p.faults.On(redistest.Named("SUBSCRIBE"), redistest.Answer("-BUSY Redis is busy running a script."))
	var sections []context.Context
	var all []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), lock(owner, i), soon))
		all = append(all, w.start(t.Context(), lock(p, i)))
	}
	sleepUntil(time.Now().Add(time.Second))
	require.LessOrEqual(t, busy.Hits(), 15*locks, "no hot loop")
	busy.Remove()
	for i, a := range all {
		w.awaitWaiters(a.lock.Name(), 1)
		w.leave(sections[i], lock(owner, i), soon)
		w.leave(a.in(soon), a.lock, soon)
	}
}

// A server that is busy refuses PING and SUBSCRIBE, but it is alive, and so is the connection.
func TestWhileAServerRunsASlowScriptItsWaitersAskForNothing(t *testing.T) {
	w := onOwn(t, "--lua-time-limit", "50")
	const locks = 200
	owner, p := w.peer(), w.peer()
	lock := func(p *peer, i int) *relock.Lock { return p.NewLock(fmt.Sprint("lock", i)) }
	var sections []context.Context
	var all []*asking
	for i := range locks {
		sections = append(sections, w.enter(t.Context(), lock(owner, i), soon))
		all = append(all, w.start(t.Context(), lock(p, i)))
	}
	for i := range locks {
		w.awaitWaiters(fmt.Sprint("lock", i), 1)
	}
	slow := w.server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	script := make(chan error, 1)
	p.faults.Reset()
	go func() { script <- slow.Eval(t.Context(), "while true do end", nil).Err() }()
	redistest.Eventually(t, 2*soon, func() bool { return p.faults.Commands("PING") >= 2 }, "the connection was silent, and then not")
	require.Zero(t, p.faults.Stats().Dials, "it is kept")
	require.Zero(t, p.faults.Commands("SUBSCRIBE"))
	// What a new connection asks for stays together, in two commands.
	p.faults.CutPubSub()
	redistest.Eventually(t, soon, func() bool { return p.faults.Commands("SUBSCRIBE") > 0 }, "it is asked for on a new one")
	sleepUntil(time.Now().Add(time.Second))
	require.LessOrEqual(t, p.faults.Commands("SUBSCRIBE"), 30, "no storm")
	require.NoError(t, w.plain.ScriptKill(t.Context()).Err())
	require.Error(t, <-script)
	for i, a := range all {
		w.leave(sections[i], lock(owner, i), soon)
		w.leave(a.in(soon), a.lock, soon)
	}
}

// A password that was changed: connections that are there go on, and new ones are refused.
func TestAPubSubConnectionThatIsRefusedForGoodIsAnErrorAtOnce(t *testing.T) {
	w := onOwn(t)
	require.NoError(t, w.plain.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all").Err())
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	p := w.peerOn(func(o *redis.Options) { o.Username, o.Password = "app", "old" })
	p.connect(t, 1)
	require.NoError(t, w.plain.Do(t.Context(), "ACL", "SETUSER", "app", "resetpass", ">new").Err())
	require.ErrorContains(t, w.start(t.Context(), p.NewLock("a")).out(soon), "WRONGPASS")
	w.leave(section, owner, soon)
	w.awaitFree("a", soon)
}

func TestAPubSubConnectionThatIsEndedAsSoonAsItIsConfirmedCausesNoHotLoop(t *testing.T) {
	w := onShared(t)
	owner, p := w.peer().NewLock("a"), w.peer()
	section := w.enter(t.Context(), owner, soon)
	ended := p.faults.On(redistest.Named("SUBSCRIBE"), redistest.After(func([]string, string) {
		time.AfterFunc(2*time.Millisecond, p.faults.CutPubSub)
	}))
	waiter := w.start(t.Context(), p.NewLock("a"))
	ended.WaitHits(t, 3)
	before := ended.Hits()
	sleepUntil(time.Now().Add(time.Second))
	require.LessOrEqual(t, ended.Hits()-before, 15, "no hot loop")
	ended.Remove()
	w.leave(section, owner, soon)
	w.leave(waiter.in(soon), waiter.lock, soon)
	w.awaitFree("a", 0)
}

// Redis says that nobody hears the waiter, and when the answer has come, somebody does again.
func TestAnAnswerFromBeforeAPubSubConnectionWasMadeAnewDoesNotEndTheNewOne(t *testing.T) {
	w := onShared(t)
	w.loadScripts()
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	back := make(chan struct{}, 10)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute },
		relock.WithHooks(relock.Hooks{Reconnected: func(relock.Reconnected) { back <- struct{}{} }}))
	answered := make(chan struct{})
	p.faults.On(redistest.Named("SUBSCRIBE"), redistest.Before(func([]string) { <-answered })).Skip(1)
	p.faults.Once(w.script(luaAcquire), redistest.Before(func([]string) {
		p.faults.CutPubSub()
		redistest.Eventually(t, soon, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 0 }, "the server has noticed")
	})).Skip(1)
	p.faults.Once(w.script(luaAcquire), redistest.After(func([]string, string) {
		close(answered)
		<-back
	})).Skip(1)
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	sleepUntil(time.Now().Add(100 * time.Millisecond))
	require.Equal(t, 2, p.faults.Commands("SUBSCRIBE"), "the new connection is kept")
	w.leave(section, owner, soon)
	w.leave(waiter.in(soon), waiter.lock, soon)
	w.awaitFree("a", 0)
}

// halfOpen bounds how long it takes until a silent pub/sub connection is found out and replaced.
const halfOpen = 5 * time.Second

func TestAPubSubConnectionThatGoesSilentIsFoundOutWithinSeconds(t *testing.T) {
	w := onShared(t)
	owner, p, q := w.peer(), w.peer(), w.peer()
	section := w.enter(t.Context(), owner.NewLock("a"), soon)
	granted := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	other := w.enter(t.Context(), owner.NewLock("b"), soon)
	// The answer to this SUBSCRIBE never comes, nor does anything else on its connection.
	p.faults.StallPubSub()
	q.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Stall())
	deaf := w.start(t.Context(), q.NewLock("b"))

	w.leave(section, owner.NewLock("a"), soon)
	w.requireCount("a", 1) // granted, into the void
	mine := granted.in(halfOpen)
	w.leave(mine, granted.lock, soon)
	redistest.Eventually(t, halfOpen, func() bool { return w.waiters("b") == 1 }, "the other is queued")
	w.leave(other, owner.NewLock("b"), soon)
	w.leave(deaf.in(soon), deaf.lock, soon)
	p.faults.Heal() // the old connections end
	q.faults.Heal()
}

// A server that is about to go says MOVING, and go-redis hands its connections over to another by itself.
func TestAPubSubConnectionThatGoRedisHandsOverCostsItsWaiterNothing(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	p := w.peerOn(func(o *redis.Options) {
		o.Protocol = 3
		o.MaintNotificationsConfig = nil // go-redis's own defaults
	})
	p.faults.On(redistest.Named("CLIENT").And(redistest.WithArg("maint_notifications")), redistest.Answer("+OK"))
	addr := w.server.Addr()
	push := fmt.Sprintf(">4\r\n$6\r\nMOVING\r\n:1\r\n:30\r\n$%d\r\n%s\r\n", len(addr), addr)
	moving := p.faults.Once(redistest.Named("PING"), redistest.Answer(push+"+PONG\r\n"))
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	unlocked := make(chan error, 1)
	p.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Before(func([]string) { unlocked <- owner.Unlock(section) }))
	moving.WaitHits(t, 1)
	require.NoError(t, w.call(soon, func() error { return <-unlocked }))
	w.leave(waiter.in(soon), waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestAPubSubConnectionThatHangsWhileItIsSetUpIsMadeAnewWithinSeconds(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	p.connect(t, 2)
	hangs := p.faults.Once(redistest.Named("HELLO"), redistest.Stall())
	waiter := w.start(t.Context(), p.NewLock("a"))
	hangs.WaitHits(t, 1)
	w.leave(section, owner, soon)
	w.leave(waiter.in(5*time.Second+soon), waiter.lock, soon)
	p.faults.Heal() // what hangs comes to its end
	w.awaitFree("a", 0)
}

// ---------------------------------------------------------------------------------------------------------------------
// Giving up.

func TestCancellingALockOnAStoppedServerReturnsPromptlyAndLeavesNothing(t *testing.T) {
	w := onOwn(t)
	// go-redis alone would hang for its ReadTimeout. Its connections are there: a stopped server makes no new ones.
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 2*time.Second, -1 })
	p.connect(t, 8)
	owner := w.peer()
	ctx, cancel := context.WithCancel(t.Context())
	section := w.enter(t.Context(), owner.NewLock("held"), soon)
	queued := w.start(ctx, p.NewLock("held"))
	w.awaitWaiters("held", 1)
	mine := w.enter(t.Context(), p.NewLock("mine"), soon)
	nested, stop := context.WithCancel(mine)

	asks := w.counter(p, luaAcquire)
	w.server.Pause()
	attempts := []*asking{
		queued,
		w.start(ctx, p.NewLock("held")),
		w.start(ctx, p.NewLock("free")),
		w.start(nested, p.NewLock("mine")),
	}
	redistest.Eventually(t, soon, func() bool { return asks() == 3 }, "three calls are on the wire")
	cancel()
	stop()
	for i, a := range attempts {
		require.True(t, isDone(a.out(promptly)), "%d: %v", i, a.err)
	}
	short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelShort()
	require.ErrorIs(t, w.start(short, p.NewLock("free")).out(100*time.Millisecond+promptly), context.DeadlineExceeded)
	require.ErrorIs(t, w.call(100*time.Millisecond+promptly, func() error {
		_, err := p.NewLock("free").TryLockFor(t.Context(), 100*time.Millisecond)
		return err
	}), context.DeadlineExceeded)

	w.server.Resume()
	redistest.Eventually(t, soon, func() bool {
		return slices.Equal(redistest.Keys(t, w.plain), []string{
			baseKey("free") + ":token", baseKey("held"), baseKey("held") + ":token", baseKey("mine"), baseKey("mine") + ":token",
		})
	}, "nothing is left of those that gave up")
	w.leave(mine, p.NewLock("mine"), soon)
	w.leave(section, owner.NewLock("held"), soon)
	w.awaitFree("mine", 0)
	w.awaitFree("held", 0)
}

func TestContextsCancelledAtRandomInstantsReturnPromptlyAndLeaveNothing(t *testing.T) {
	const calls, workers = 1000, 8
	w := onShared(t)
	peers := []*peer{w.peer(), w.peer(), w.peer()}
	for _, p := range peers {
		p.connect(t, 4)
	}
	guards := map[string]*guarded{"a": {}, "b": {}}
	var entered atomic.Int64
	var mu sync.Mutex
	var returns []time.Duration // of those that were cancelled, from then on
	var errs names
	var all sync.WaitGroup
	for i := range workers {
		l := peers[i%3].NewLock([]string{"a", "b"}[i%2])
		all.Go(func() {
			for n := range calls / workers {
				ctx, cancel := context.WithCancel(t.Context())
				var at atomic.Int64
				latest := 5 * time.Millisecond
				if entered.Load() == 0 { // on a busy machine nobody ever would
					latest <<= min(n, 8)
				}
				timer := time.AfterFunc(rand.N(latest), func() { at.Store(time.Now().UnixNano()); cancel() })
				section, err := l.Lock(ctx)
				now := time.Now().UnixNano()
				switch {
				case err == nil:
					entered.Add(1)
					if guards[l.Name()].enter(section, l) {
						<-time.After(rand.N(500 * time.Microsecond))
						guards[l.Name()].leave(section)
					}
					if err := l.Unlock(section); err != nil {
						errs.add(err.Error())
					}
				case isDone(err):
					mu.Lock()
					returns = append(returns, time.Duration(now-at.Load()))
					mu.Unlock()
				default:
					errs.add(err.Error())
				}
				timer.Stop()
				cancel()
			}
		})
	}
	require.NoError(t, w.call(30*time.Second, func() error { all.Wait(); return nil }))
	require.Empty(t, errs.all())
	require.NotEmpty(t, returns)
	require.Positive(t, entered.Load())
	slices.Sort(returns)
	most, slowest := returns[len(returns)*9/10], returns[len(returns)-1]
	t.Logf("%d entered, %d were cancelled and returned: nine tenths within %s, all within %s", entered.Load(), len(returns), most, slowest)
	// Of a thousand, some meet the moments when this process, or a thread of it, does not run.
	late := time.Duration(w.late.Load())
	require.Less(t, most, promptly+late)
	require.Less(t, slowest, soon+late)
	for name, g := range guards {
		g.require(t)
		w.awaitFree(name, soon)
	}
}

func TestACallThatGivesUpBeforeItHasAConnectionLeavesNothingToAbandonAgain(t *testing.T) {
	w := onShared(t)
	p := w.peerOn(func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 1, 500*time.Millisecond })
	p.connect(t, 1)
	stuck := p.faults.Once(w.script(luaAcquire), redistest.Hold())
	abandoned := p.faults.On(w.script(luaAbandon).And(redistest.WithArg(baseKey("b"))), redistest.Before(func([]string) {})).Hits
	first := w.start(t.Context(), p.NewLock("a")) // has the connection
	stuck.WaitHits(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.True(t, isDone(w.start(ctx, p.NewLock("b")).out(50*time.Millisecond+promptly)))
	w.leave(first.in(soon), first.lock, soon)
	// Not at all, if go-redis was the first to notice. What could run late is abandoned for a whole lease: five times by now.
	sleepUntil(time.Now().Add(time.Second))
	require.LessOrEqual(t, abandoned(), 2)
	w.awaitFree("a", 0)
}

func TestAClientMayBeClosedAtAnyInstant(t *testing.T) {
	const rounds = 40
	w := onShared(t)
	g := guarded{}
	use := func(l *relock.Lock) error {
		section, err := l.Lock(t.Context())
		if err != nil {
			return err
		}
		if g.enter(section, l) {
			g.leave(section)
		}
		return l.Unlock(section)
	}
	var stop atomic.Bool
	var steady sync.WaitGroup
	var errs names
	other := w.peer().NewLock("a")
	steady.Go(func() {
		for !stop.Load() {
			if err := use(other); err != nil {
				errs.add(err.Error())
				return
			}
		}
	})
	var slowest time.Duration
	for range rounds {
		p := w.peer()
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				for {
					err := use(p.NewLock("a"))
					if errors.Is(err, relock.ErrClosed) {
						return
					}
					if err != nil {
						errs.add(err.Error())
						return
					}
				}
			})
		}
		sleepUntil(time.Now().Add(rand.N(12 * time.Millisecond)))
		began := time.Now()
		require.NoError(t, w.call(time.Second, p.Close))
		slowest = max(slowest, time.Since(began))
		require.NoError(t, w.call(soon, func() error { workers.Wait(); return nil }))
	}
	t.Logf("the slowest of %d Closes took %s", rounds, slowest)
	stop.Store(true)
	require.NoError(t, w.call(soon, func() error { steady.Wait(); return nil }))
	require.Empty(t, errs.all())
	g.require(t)
	w.awaitFree("a", soon)
}

func TestCloseEndsWaitsAndSectionsOnAStoppedServerToo(t *testing.T) {
	w := onOwn(t)
	const ttl = 2 * time.Second
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	p := w.peer(relock.WithTTL(ttl))
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	mine := w.enter(t.Context(), p.NewLock("mine"), soon)
	w.server.Pause()
	for i := range 5 { // what these may have left cannot be taken back now
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		require.ErrorIs(t, w.start(ctx, p.NewLock(fmt.Sprint("free", i))).out(soon), context.DeadlineExceeded)
		cancel()
	}
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	require.ErrorIs(t, waiter.out(promptly), relock.ErrClosed)
	require.True(t, w.within(promptly, mine.Done()), "the section ends")
	require.ErrorIs(t, context.Cause(mine), relock.ErrClosed)
	require.NoError(t, w.call(soon, func() error { return <-closed }))
	_, err := p.NewLock("a").Lock(t.Context())
	require.ErrorIs(t, err, relock.ErrClosed)
	w.server.Resume()
	w.leave(mine, p.NewLock("mine"), soon) // Unlock still works
	w.leave(section, owner, soon)
	w.awaitFree("a", soon) // what Close could not take back finds that nobody hears it
	w.tidyWithin = ttl + soon
	w.awaitFree("mine", 0)
}

func TestCloseDoesNotWaitForAPubSubConnectionToAHostThatHasGone(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	dialled := make(chan struct{}, 1)
	var dead atomic.Bool
	p := w.peerOn(func(o *redis.Options) {
		o.DialTimeout = time.Minute
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dead.Load() {
				select {
				case dialled <- struct{}{}:
				default:
				}
			}
			return dial(ctx, network, addr)
		}
	})
	waiter := w.start(t.Context(), p.NewLock("a"))
	w.awaitWaiters("a", 1)
	p.faults.Partition()
	dead.Store(true)
	p.faults.CutPubSub()
	require.True(t, w.within(soon, dialled), "it is dialled again")
	require.NoError(t, w.call(soon, p.Close))
	require.ErrorIs(t, waiter.out(promptly), relock.ErrClosed)
	p.faults.Heal()
	// Until then the lock would be granted to the waiter that has gone.
	redistest.Eventually(t, soon, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 0 }, "the server has noticed")
	w.leave(section, owner, soon)
	w.awaitFree("a", soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// Many.

func TestAThousandWaitersOnOneLockAreInOnceEachInTheirOrderAndSilentUntilThen(t *testing.T) {
	const waiters, clients = 1000, 4
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	peers := make([]*peer, clients)
	for i := range peers {
		// Without faults on the wire: they are a load of their own.
		peers[i] = &peer{rdb: w.server.Client()}
		var err error
		peers[i].Client, err = relock.New(peers[i].rdb)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, peers[i].Close()) })
	}
	var served, errs names
	var all sync.WaitGroup
	for i := range waiters {
		l := peers[i%clients].NewLock("a")
		all.Go(func() {
			section, err := l.Lock(t.Context())
			if err != nil {
				errs.add(err.Error())
				return
			}
			holder, _ := relock.HolderFrom(section)
			served.add(holder.String())
			if err := l.Unlock(section); err != nil {
				errs.add(err.Error())
			}
		})
	}
	w.awaitWaiters("a", waiters)
	order := w.holders("a")
	// The last joined a moment ago; what it still had to hear has come by the time a few commands have been answered.
	before := w.calls()
	begin := time.Now()
	sleepUntil(begin.Add(time.Second))
	sum, each := w.callsSince(before)
	t.Logf("%d blocked waiters: %d commands in a second (%s)", waiters, sum, each)
	require.LessOrEqual(t, sum, 20, each)

	before, begin = w.calls(), time.Now()
	w.leave(section, owner, soon)
	require.NoError(t, w.call(30*time.Second, func() error { all.Wait(); return nil }))
	took := time.Since(begin)
	scripts := w.calls()["evalsha"] - before["evalsha"]
	t.Logf("%d hand-overs in %s, %.2f script calls each", waiters, took, float64(scripts)/waiters)
	require.Empty(t, errs.all())
	require.Equal(t, order, served.all())
	require.LessOrEqual(t, scripts, waiters*21/10)
	w.awaitFree("a", 0)
}
