package relock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

// A process that locks once, so that a test can stop or kill it. It prints, each on a line:
//
//	queued             it waits
//	in <token>         it has the lock
//	ended <cause>      its section's context has ended, for "lost", "released" or another cause
//	out <result>       what Unlock has said, "ok" or an error
//
// It unlocks when it is told "unlock", or at once if its last argument is "pass".
var _ = func() bool {
	redistest.RegisterChild("locker", func(args []string, in *bufio.Reader, out io.Writer) {
		redissonLayout = args[4] == "true"
		if err := locker(args[0], args[1], args[2], args[3] == "pass", in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

func locker(addr, name, ttl string, pass bool, in *bufio.Reader, out io.Writer) error {
	lease, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	var mu sync.Mutex // the lines come from several goroutines
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := relock.New(rdb, inLayout([]relock.Option{relock.WithTTL(lease), relock.WithHooks(relock.Hooks{
		Queued: func(relock.Queued) { say("queued") },
	})})...)
	if err != nil {
		return err
	}
	defer client.Close()
	l := client.NewLock(name)
	section, err := l.Lock(context.Background())
	if err != nil {
		return err
	}
	say("in %d", l.Token(section))
	ended := make(chan struct{})
	stop := context.AfterFunc(section, func() {
		defer close(ended)
		cause := context.Cause(section)
		switch {
		case errors.Is(cause, relock.ErrLockLost):
			say("ended lost")
		case errors.Is(cause, relock.ErrReleased):
			say("ended released")
		default:
			say("ended %v", cause)
		}
	})
	defer stop()
	if !pass {
		if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "unlock" {
			return nil // the test is over
		}
	}
	err = l.Unlock(section)
	<-ended
	switch {
	case err == nil:
		say("out ok")
	case errors.Is(err, relock.ErrLockLost):
		say("out lost")
	default:
		say("out %v", err)
	}
	return nil
}

// locker starts such a process.
func (w *arena) locker(name string, ttl time.Duration, how ...string) *redistest.Process {
	w.t.Helper()
	mode := "wait"
	if len(how) > 0 {
		mode = how[0]
	}
	return redistest.Child(w.t, "locker", w.server.Addr(), name, ttl.String(), mode, strconv.FormatBool(redissonLayout))
}

// A process that tries to take a lock as the holder that has it, of whom State has told. It prints "in", or why it is not.
var _ = func() bool {
	redistest.RegisterChild("namesake", func(args []string, _ *bufio.Reader, out io.Writer) {
		redissonLayout = args[2] == "true"
		fmt.Fprintln(out, namesake(args[0], args[1]))
	})
	return true
}()

func namesake(addr, name string) string {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	client, err := relock.New(rdb, inLayout(nil)...)
	if err != nil {
		return err.Error()
	}
	defer client.Close()
	l := client.NewLock(name)
	state, err := l.State(context.Background())
	if err != nil {
		return err.Error()
	}
	section, err := l.TryLock(relock.WithHolder(context.Background(), state.Holder))
	if err != nil {
		return err.Error()
	}
	_ = l.Unlock(section)
	return "in"
}

// startUp bounds the start of a process: the test binary, race detector and all.
const startUp = 20 * time.Second

func tokenOf(t testing.TB, line string) int64 {
	t.Helper()
	token, err := strconv.ParseInt(line, 10, 64)
	require.NoError(t, err)
	require.Positive(t, token)
	return token
}

// afterLease is how much later than the end of a dead holder's lease the next one may be in.
const afterLease = 500 * time.Millisecond

// ---------------------------------------------------------------------------------------------------------------------
// Processes that are killed or stopped.

func TestProcessesAreServedInTheOrderInWhichTheyAsked(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	var waiters []*redistest.Process
	for i := range 5 {
		p := w.locker("a", 30*time.Second, "pass")
		p.Expect("queued", startUp)
		w.awaitWaiters("a", i+1)
		waiters = append(waiters, p)
	}
	w.leave(section, owner, soon)
	var tokens []int64
	for _, p := range waiters {
		tokens = append(tokens, tokenOf(t, p.Expect("in ", soon)))
		p.Expect("ended released", soon)
		p.Expect("out ok", soon)
		require.NoError(t, p.Wait(soon))
	}
	require.True(t, slices.IsSorted(tokens), "%v", tokens)
	w.awaitFree("a", 0)
}

func TestAHolderOfAnotherProcessThatStateHasToldOfIsKeptOutByIt(t *testing.T) {
	w := onShared(t)
	holder := w.locker("a", 30*time.Second) // its first hold
	tokenOf(t, holder.Expect("in ", startUp))
	hold, _ := w.owner("a")
	namesake := redistest.Child(t, "namesake", w.server.Addr(), "a", strconv.FormatBool(redissonLayout)) // its first hold too
	require.Contains(t, namesake.Line(startUp), "is locked by")
	require.NoError(t, namesake.Wait(soon))
	now, count := w.owner("a")
	require.Equal(t, hold, now)
	require.Equal(t, 1, count)
	holder.Send("unlock")
	holder.Expect("ended released", soon)
	holder.Expect("out ok", soon)
	require.NoError(t, holder.Wait(soon))
	w.awaitFree("a", 0)
}

func TestAWaiterThatIsKilledIsPassedOver(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	dead := []*redistest.Process{w.locker("a", 30*time.Second), w.locker("a", 30*time.Second)}
	for _, p := range dead {
		p.Expect("queued", startUp)
	}
	w.awaitWaiters("a", 2)
	next := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 3)
	for _, p := range dead {
		p.Kill()
	}
	redistest.Eventually(t, soon, func() bool { return len(redistest.Subscriptions(t, w.plain)) == 1 }, "the server has noticed")
	w.leave(section, owner, soon)
	w.leave(next.in(soon), next.lock, soon)
	w.awaitFree("a", 0)
}

func TestAHolderThatIsKilledCostsNoMoreThanItsLease(t *testing.T) {
	w := onShared(t)
	const ttl = time.Second
	holder := w.locker("a", ttl)
	token := tokenOf(t, holder.Expect("in ", startUp))
	waiters := []*asking{w.start(t.Context(), w.peer().NewLock("a"))}
	w.awaitWaiters("a", 1)
	waiters = append(waiters, w.start(t.Context(), w.peer().NewLock("a")))
	w.awaitWaiters("a", 2)
	holder.Kill()
	left := w.lease("a")
	first := waiters[0].in(left + afterLease)
	require.Greater(t, waiters[0].lock.Token(first), token)
	require.True(t, waiters[1].waiting())
	w.leave(first, waiters[0].lock, soon)
	w.leave(waiters[1].in(soon), waiters[1].lock, soon)
	w.awaitFree("a", 0)
}

func TestAHolderThatIsStoppedPastItsLeaseIsToldWhenItGoesOn(t *testing.T) {
	w := onShared(t)
	const ttl = time.Second
	holder := w.locker("a", ttl)
	token := tokenOf(t, holder.Expect("in ", startUp))
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	holder.Pause()
	mine := waiter.in(ttl + afterLease)
	require.Greater(t, waiter.lock.Token(mine), token)

	holder.Resume()
	holder.Expect("ended lost", soon)
	holder.Send("unlock")
	holder.Expect("out lost", soon)
	require.NoError(t, holder.Wait(soon))
	require.NoError(t, mine.Err())
	w.requireCount("a", 1)
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestAGrantToAStoppedWaiterCostsNoMoreThanItsLeaseAndIsNotBelievedLater(t *testing.T) {
	w := onShared(t)
	const ttl = time.Second
	owner := w.peer(relock.WithTTL(ttl)).NewLock("a")
	section := w.enter(t.Context(), owner, soon)
	stopped := w.locker("a", ttl)
	stopped.Expect("queued", startUp)
	w.awaitWaiters("a", 1)
	next := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a"))
	w.awaitWaiters("a", 2)
	stopped.Pause()
	w.leave(section, owner, soon)
	w.requireCount("a", 1) // granted: its connection is there
	mine := next.in(ttl + afterLease)
	token := next.lock.Token(mine)

	// The grant is the first thing that it reads, and means nothing any more.
	stopped.Resume()
	w.awaitWaiters("a", 1)
	require.NoError(t, mine.Err())
	hold, _ := w.owner("a")
	holder, _ := relock.HolderFrom(mine)
	require.True(t, strings.HasPrefix(hold, holder.String()))
	w.leave(mine, next.lock, soon)
	require.Greater(t, tokenOf(t, stopped.Expect("in ", soon)), token)
	stopped.Send("unlock")
	stopped.Expect("ended released", soon)
	stopped.Expect("out ok", soon)
	require.NoError(t, stopped.Wait(soon))
	w.awaitFree("a", 0)
}

// ---------------------------------------------------------------------------------------------------------------------
// The network between one client and the server.

func TestAHolderThatIsPartitionedIsToldBeforeAnotherIsIn(t *testing.T) {
	w := onShared(t)
	const ttl = time.Second
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	inner := w.enter(section, l, soon)
	// The order is asked of the holder at the moment when the other comes in.
	other := w.peer().NewLock("a")
	type entry struct {
		section context.Context
		told    error
		err     error
	}
	entered := make(chan entry, 1)
	go func() {
		mine, err := other.Lock(t.Context())
		entered <- entry{mine, section.Err(), err}
	}()
	w.awaitWaiters("a", 1)
	p.faults.Partition()
	var e entry
	require.NoError(t, w.call(ttl+afterLease, func() error { e = <-entered; return e.err }))
	require.Error(t, e.told, "the holder was told before")
	lost := w.lost(section, 0)
	require.Equal(t, relock.LossExpired, lost.Reason)
	w.lost(inner, 0)
	require.Less(t, lost.Token, other.Token(e.section))
	require.Zero(t, l.Count(section))
	require.ErrorIs(t, w.call(atOnce, func() error { return l.Unlock(inner) }), relock.ErrLockLost)
	require.ErrorIs(t, w.call(atOnce, func() error { return l.Unlock(section) }), relock.ErrLockLost)
	p.faults.Heal() // what was on the way arrives now
	w.requireCount("a", 1)
	require.NoError(t, e.section.Err())
	w.leave(e.section, other, soon)
	w.awaitFree("a", soon)
}

func TestAShortPartitionCostsAHolderNothing(t *testing.T) {
	w := onShared(t)
	const ttl = 1500 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	for range 2 {
		p.faults.Partition()
		sleepUntil(time.Now().Add(ttl / 2))
		p.faults.Heal()
		redistest.Eventually(t, ttl/2, func() bool { return l.Remaining(section) > ttl/2 }, "the lease is renewed")
	}
	require.NoError(t, section.Err())
	w.leave(section, l, soon)
	w.awaitFree("a", soon)
}

func TestTheLeaseCountsFromWhenTheRequestWasSent(t *testing.T) {
	w := onShared(t)
	const ttl, delay = 2 * time.Second, 400 * time.Millisecond
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	l := p.NewLock("a", relock.WithFixedLease(ttl))
	p.connect(t, 1)
	p.faults.DelayOneWay(0, delay) // the reply is late
	section := w.enter(t.Context(), l, soon)
	require.LessOrEqual(t, l.Remaining(section), w.lease("a"), "no later than Redis's own")
	require.LessOrEqual(t, l.Remaining(section), ttl-delay)
	p.faults.Delay(0)
	w.leave(section, l, soon)

	// A reply that takes longer than the lease is worth nothing, and is not believed.
	short := p.NewLock("b", relock.WithFixedLease(delay/2))
	p.faults.DelayOneWay(0, delay)
	ctx, cancel := context.WithTimeout(t.Context(), 3*delay)
	defer cancel()
	require.True(t, isDone(w.start(ctx, short).out(3*delay+atOnce)))
	p.faults.Delay(0)
	w.awaitFree("b", soon)
}

// ---------------------------------------------------------------------------------------------------------------------
// The server.

func TestAServerThatIsKilledAndComesBackEmptyTellsItsHolderAndServesItsWaiters(t *testing.T) {
	w := onOwn(t)
	const ttl = 900 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	token := l.Token(section)
	var waiters []*asking
	for i := range 5 {
		waiters = append(waiters, w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a")))
		w.awaitWaiters("a", i+1)
	}
	w.server.Kill()
	w.server.Restart()
	restarted := time.Now()
	lost := w.lost(section, ttl)
	require.Contains(t, []relock.LossReason{relock.LossTaken, relock.LossExpired}, lost.Reason)
	require.Less(t, time.Since(restarted), ttl/3+afterLease+time.Duration(w.late.Load()), "at the next renewal")

	// Who is first is open: the queue is gone. Nobody is in together with another, and tokens grow.
	g := guarded{token: token}
	var workers sync.WaitGroup
	var errs names
	for _, a := range waiters {
		workers.Go(func() {
			<-a.done
			if a.err != nil {
				errs.add(a.err.Error())
				return
			}
			g.enter(a.section, a.lock)
			g.leave(a.section)
			if err := a.lock.Unlock(a.section); err != nil {
				errs.add(err.Error())
			}
		})
	}
	require.NoError(t, w.call(ttl+soon, func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.all())
	g.require(t)
	require.Equal(t, len(waiters), g.entries)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	w.awaitFree("a", soon)
}

func TestAServerThatStopsForLongerThanTheLeaseTellsItsHolderBeforeAnotherIsIn(t *testing.T) {
	w := onOwn(t)
	const ttl = 700 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	waiter := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a"))
	w.awaitWaiters("a", 1)
	w.server.Pause()
	require.Equal(t, relock.LossExpired, w.lost(section, ttl+promptly).Reason)
	require.True(t, waiter.waiting())
	sleepUntil(time.Now().Add(ttl / 2))
	require.True(t, waiter.waiting())
	w.server.Resume()
	mine := waiter.in(soon)
	w.requireCount("a", 1)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	require.NoError(t, mine.Err())
	w.leave(mine, waiter.lock, soon)
	w.awaitFree("a", soon)
}

func TestUnlockOnAStoppedServerComesBackByTheEndOfTheLeaseAndTheLockIsFreeWhenItGoesOn(t *testing.T) {
	w := onOwn(t)
	const ttl = time.Second
	// go-redis alone would hang for longer than the lease.
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 3*time.Second, -1 }, relock.WithTTL(ttl))
	single, double := p.NewLock("single"), p.NewLock("double")
	one := w.enter(t.Context(), single, soon)
	outer := w.enter(t.Context(), double, soon)
	inner := w.enter(outer, double, soon)
	w.server.Pause()
	results := make(chan error, 2)
	go func() { results <- single.Unlock(one) }()
	go func() { results <- double.Unlock(inner) }()
	for range 2 {
		err := w.call(ttl+promptly, func() error { return <-results })
		require.Error(t, err)
	}
	require.ErrorIs(t, single.Unlock(one), relock.ErrNotHeld)
	w.lost(outer, ttl)
	require.ErrorIs(t, w.call(atOnce, func() error { return double.Unlock(outer) }), relock.ErrLockLost)
	w.server.Resume()
	w.awaitFree("single", soon)
	w.awaitFree("double", soon)
	for _, l := range []*relock.Lock{single, double} {
		w.leave(w.enter(t.Context(), l, soon), l, soon)
	}
}

func TestAServerThatStopsForLessThanTheLeaseCostsAHolderNothing(t *testing.T) {
	w := onOwn(t)
	const ttl = 1500 * time.Millisecond
	p := w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	section := w.enter(t.Context(), l, soon)
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	w.server.Pause()
	sleepUntil(time.Now().Add(ttl / 2))
	w.server.Resume()
	redistest.Eventually(t, ttl/2, func() bool { return l.Remaining(section) > ttl/2 }, "the lease is renewed")
	require.NoError(t, section.Err())
	require.True(t, waiter.waiting())
	w.leave(section, l, soon)
	w.leave(waiter.in(soon), waiter.lock, soon)
	w.awaitFree("a", 0)
}

func TestScriptsMayBeFlushedAtAnyTime(t *testing.T) {
	w := onOwn(t)
	const ttl = 600 * time.Millisecond
	p, q := w.peer(relock.WithTTL(ttl)), w.peer(relock.WithTTL(ttl))
	l := p.NewLock("a")
	flush := func() { require.NoError(t, w.plain.ScriptFlush(t.Context()).Err()) }
	flush()
	outer := w.enter(t.Context(), l, soon)
	flush()
	inner := w.enter(outer, l, soon)
	flush()
	waiter := w.start(t.Context(), q.NewLock("a"))
	w.awaitWaiters("a", 1)
	renewals := w.counter(p, luaRenew)
	flush()
	redistest.Eventually(t, soon, func() bool { return renewals() >= 5 }, "renewals go on")
	flush()
	state, err := l.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, state.Count)
	flush()
	w.leave(inner, l, soon)
	w.requireCount("a", 1)
	flush()
	w.leave(outer, l, soon)
	mine := waiter.in(soon)
	ctx, cancel := context.WithCancel(t.Context())
	gone := w.start(ctx, l)
	w.awaitWaiters("a", 1)
	flush()
	cancel()
	require.True(t, isDone(gone.out(promptly)))
	w.awaitWaiters("a", 0)
	flush()
	require.NoError(t, w.call(soon, func() error { return l.ForceUnlock(t.Context()) }))
	w.lost(mine, soon)
	require.ErrorIs(t, waiter.lock.Unlock(mine), relock.ErrLockLost)
	w.awaitFree("a", 0)
}
