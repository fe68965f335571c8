package relock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// What if a process, a network or a server goes away?

// This file is about processes that are killed or stopped, networks that part, and servers that
// go away.

// A locker is a process that locks once. It prints, each on a line:
//
//	queued             the locker waits
//	in <token>         the locker has the lock
//	ended <cause>      the section's context has ended: "lost", or another cause
//	out <result>       what Unlock has said: "ok", or an error
//
// It unlocks when it is told "unlock".
var _ = func() bool {
	redistest.RegisterChild("locker", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := lockOnce(args[0], args[1], args[2], in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

func lockOnce(addr, name, ttl string, in *bufio.Reader, out io.Writer) error {
	lease, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	var mu sync.Mutex // the lines come from several goroutines
	say := func(what string, result any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, what, result)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	client, err := relock.New(rdb, relock.WithTTL(lease), relock.WithHooks(relock.Hooks{
		Queued: func(e relock.Queued) { say("queued", e.Position) },
	}))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	l := client.NewLock(name)
	section, err := l.Lock(context.Background())
	if err != nil {
		return err
	}
	token, err := l.Token(section)
	if err != nil {
		return err
	}
	say("in", token)
	ended := make(chan struct{})
	stop := context.AfterFunc(section, func() {
		defer close(ended)
		say("ended", inShort(context.Cause(section)))
	})
	defer stop()
	if line, err := in.ReadString('\n'); err != nil || strings.TrimSpace(line) != "unlock" {
		return nil // the test is over
	}
	err = l.Unlock(section)
	<-ended
	say("out", inShort(err))
	return nil
}

func inShort(err error) any {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, relock.ErrLockLost):
		return "lost"
	case errors.Is(err, relock.ErrReleased):
		return "released"
	default:
		return err
	}
}

// locker starts such a process.
func (w *arena) locker(name string, ttl time.Duration) *redistest.Process {
	w.t.Helper()
	return redistest.Child(w.t, "locker", w.server.Addr(), name, ttl.String())
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

// unlocks tells a locker to unlock, and waits for its end.
func unlocks(t testing.TB, p *redistest.Process, says ...string) {
	t.Helper()
	p.Send("unlock")
	for _, line := range says {
		p.Expect(line, limit)
	}
	require.NoError(t, p.Wait(limit))
}

func TestAWaiterThatIsKilledIsPassedOver(t *testing.T) {
	w := onShared(t)
	owner := w.peer().NewLock("a")
	section := w.enter(t.Context(), owner)
	dead := []*redistest.Process{w.locker("a", 30*time.Second), w.locker("a", 30*time.Second)}
	for _, p := range dead {
		p.Expect("queued ", startUp)
	}
	w.awaitWaiters("a", 2)
	next := w.peer()
	waiter := w.start(t.Context(), next.NewLock("a"))
	w.awaitWaiters("a", 3)
	for _, p := range dead {
		p.Kill()
	}
	redistest.Eventually(t, w.limit, func() bool {
		n := 0
		for _, channel := range redistest.Subscriptions(t, w.plain) {
			if strings.HasPrefix(channel, baseKey("a")) {
				n++
			}
		}
		return n == 1
	}, "the server has noticed")
	w.leave(section, owner)
	waiter.leave()
	w.within(0).requireFree("a")
}

func TestAHolderThatIsKilledCostsNoMoreThanItsLease(t *testing.T) {
	const ttl = time.Second
	w := onShared(t)
	holder := w.locker("a", ttl)
	token := tokenOf(t, holder.Expect("in ", startUp))
	waiters := []*attempt{w.start(t.Context(), w.peer().NewLock("a"))}
	w.awaitWaiters("a", 1)
	waiters = append(waiters, w.start(t.Context(), w.peer().NewLock("a")))
	w.awaitWaiters("a", 2)
	holder.Kill()
	first := waiters[0].within(w.lease("a") + afterLease).section()
	require.Greater(t, w.draw(first, waiters[0].lock), token)
	require.True(t, waiters[1].waits())
	w.leave(first, waiters[0].lock)
	waiters[1].leave()
	w.within(0).requireFree("a")
}

func TestAHolderThatIsStoppedPastItsLeaseIsToldWhenItGoesOn(t *testing.T) {
	const ttl = time.Second
	w := onShared(t)
	holder := w.locker("a", ttl)
	token := tokenOf(t, holder.Expect("in ", startUp))
	waiter := w.start(t.Context(), w.peer().NewLock("a"))
	w.awaitWaiters("a", 1)
	holder.Pause()
	mine := waiter.within(ttl + afterLease).section()
	require.Greater(t, w.draw(mine, waiter.lock), token)
	holder.Resume()
	holder.Expect("ended lost", limit)
	unlocks(t, holder, "out lost")
	require.NoError(t, mine.Err())
	w.requireCount("a", 1)
	w.leave(mine, waiter.lock)
	w.within(0).requireFree("a")
}

func TestAGrantToAStoppedWaiterCostsItsLeaseAndIsNotBelievedLater(t *testing.T) {
	const ttl = time.Second
	w := onShared(t)
	owner := w.peer(relock.WithTTL(ttl)).NewLock("a")
	section := w.enter(t.Context(), owner)
	stopped := w.locker("a", ttl)
	stopped.Expect("queued ", startUp)
	w.awaitWaiters("a", 1)
	next := w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a"))
	w.awaitWaiters("a", 2)
	stopped.Pause()
	w.leave(section, owner)
	w.requireCount("a", 1) // granted: its connection is there
	mine := next.within(ttl + afterLease).section()
	token := w.draw(mine, next.lock)

	// The grant is the first thing that the waiter reads, and means nothing any more.
	stopped.Resume()
	w.awaitWaiters("a", 1)
	require.NoError(t, mine.Err())
	hold := w.owner("a")
	require.True(t, strings.HasPrefix(hold, holderOf(t, mine).String()))
	w.leave(mine, next.lock)
	require.Greater(t, tokenOf(t, stopped.Expect("in ", limit)), token)
	unlocks(t, stopped, "ended released", "out ok")
	w.within(0).requireFree("a")
}

func TestAHolderThatIsPartitionedIsToldBeforeAnotherIsIn(t *testing.T) {
	const ttl = time.Second
	s := onShared(t).scene(relock.WithTTL(ttl))
	section, inner := s.nested()
	token := s.draw(section, s.l)
	// The holder is asked at the moment when the other comes in.
	var told error
	waiter := s.begin(t.Context(), func(ctx context.Context) (context.Context, error) {
		mine, err := s.far.Lock(ctx)
		told = section.Err()
		return mine, err
	})
	s.awaitWaiters("a", 1)
	s.p.faults.Partition()
	mine := waiter.within(ttl + afterLease).section()
	require.Error(t, told, "the holder was told before")
	require.Equal(t, relock.LossExpired, s.within(0).lost(section))
	s.within(0).lost(inner)
	require.Less(t, token, s.draw(mine, s.far))
	require.Zero(t, s.l.Count(section))
	for _, ctx := range []context.Context{inner, section} {
		require.ErrorIs(t, s.within(atOnce).call(func() error { return s.l.Unlock(ctx) }), relock.ErrLockLost)
	}
	s.p.faults.Heal() // what was on the way arrives now
	s.requireCount("a", 1)
	require.NoError(t, mine.Err())
	s.leave(mine, s.far)
	s.requireFree("a")
}

func TestAShortSilenceCostsAHolderNothing(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for what, silence := range map[string]func(s *scene) (end func()){
		"of the network": func(s *scene) func() { s.p.faults.Partition(); return s.p.faults.Heal },
		"of the server":  func(s *scene) func() { s.server.Pause(); return s.server.Resume },
	} {
		t.Run(what, func(t *testing.T) {
			s := apart(t).scene(relock.WithTTL(ttl))
			section := s.enter(t.Context(), s.l)
			waiter := s.start(t.Context(), s.far)
			s.awaitWaiters("a", 1)
			for range 2 {
				end := silence(s)
				sleepUntil(time.Now().Add(ttl / 2))
				end()
				redistest.Eventually(t, ttl/2, func() bool { return s.l.Remaining(section) > ttl/2 }, "the lease is renewed")
			}
			require.NoError(t, section.Err())
			require.True(t, waiter.waits())
			s.leave(section, s.l)
			waiter.leave()
			s.requireFree("a")
		})
	}
}

func TestAServerThatComesBackEmptyServesItsWaiters(t *testing.T) {
	const ttl = 900 * time.Millisecond
	w := onOwn(t)
	l := w.peer(relock.WithTTL(ttl)).NewLock("a")
	section := w.enter(t.Context(), l)
	g := witness{token: w.draw(section, l)}
	var waiters []*attempt
	for i := range 5 {
		waiters = append(waiters, w.start(t.Context(), w.peer(relock.WithTTL(ttl)).NewLock("a")))
		w.awaitWaiters("a", i+1)
	}
	w.server.Kill()
	w.server.Restart()
	restarted := time.Now()
	require.Contains(t, []relock.LossReason{relock.LossTaken, relock.LossExpired}, w.within(ttl).lost(section))
	require.Less(t, time.Since(restarted), ttl/3+afterLease+w.lateness(), "at the next renewal")

	// The queue is gone, so anybody may be first. Nobody is in together with another, and tokens grow.
	var workers sync.WaitGroup
	var errs names
	for _, a := range waiters {
		workers.Go(func() {
			<-a.done
			errs.check(a.err)
			g.enter(a.ctx, a.lock)
			g.leave(a.ctx)
			errs.check(a.lock.Unlock(a.ctx))
		})
	}
	require.NoError(t, w.within(ttl+w.limit).call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.all())
	g.require(t)
	require.Equal(t, len(waiters), g.entries)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	w.requireFree("a")
}

func TestUnlockOnAStoppedServerEndsWithTheLease(t *testing.T) {
	const ttl = time.Second
	w := onOwn(t)
	// go-redis alone would hang for longer than the lease.
	p := w.peerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 3*time.Second, -1 }, relock.WithTTL(ttl))
	single, double := p.NewLock("single"), p.NewLock("double")
	one := w.enter(t.Context(), single)
	outer := w.enter(t.Context(), double)
	inner := w.enter(outer, double)
	w.server.Pause()
	results := make(chan error, 2)
	go func() { results <- single.Unlock(one) }()
	go func() { results <- double.Unlock(inner) }()
	for range 2 {
		require.Error(t, w.within(ttl+promptly).call(func() error { return <-results }))
	}
	require.ErrorIs(t, single.Unlock(one), relock.ErrNotHeld)
	w.within(ttl).lost(outer)
	require.ErrorIs(t, w.within(atOnce).call(func() error { return double.Unlock(outer) }), relock.ErrLockLost)
	w.server.Resume()
	for _, l := range []*relock.Lock{single, double} {
		w.requireFree(l.Name())
		w.start(t.Context(), l).leave()
	}
}
