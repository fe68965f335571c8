package faults_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if a process, a network or a server goes away?

// This file is about processes that are killed or stopped, networks that part, and servers that
// go away.

// unlocks tells a locker to unlock, and waits for its end.
func unlocks(t testing.TB, p *redistest.Process, says ...string) {
	t.Helper()
	p.Send("unlock")
	for _, line := range says {
		p.Expect(line, stage.Limit)
	}
	require.NoError(t, p.Wait(stage.Limit))
}

func TestAWaiterThatIsKilledIsPassedOver(t *testing.T) {
	w := stage.OnShared(t)
	owner := w.Peer().NewLock("a")
	section := w.Enter(t.Context(), owner)
	dead := []*redistest.Process{w.Locker("a", 30*time.Second), w.Locker("a", 30*time.Second)}
	for _, p := range dead {
		p.Expect("queued ", stage.StartUp)
	}
	w.AwaitWaiters("a", 2)
	next := w.Peer()
	waiter := w.Start(t.Context(), next.NewLock("a"))
	w.AwaitWaiters("a", 3)
	for _, p := range dead {
		p.Kill()
	}
	redistest.Eventually(t, w.Limit, func() bool {
		n := 0
		for _, channel := range redistest.Subscriptions(t, w.Plain) {
			if strings.HasPrefix(channel, stage.BaseKey("a")) {
				n++
			}
		}
		return n == 1
	}, "the server has noticed")
	w.Leave(section, owner)
	waiter.Leave()
	w.Within(0).RequireFree("a")
}

func TestAHolderThatIsKilledCostsNoMoreThanItsLease(t *testing.T) {
	const ttl = time.Second
	w := stage.OnShared(t)
	holder := w.Locker("a", ttl)
	token := stage.TokenOf(t, holder.Expect("in ", stage.StartUp))
	waiters := []*stage.Attempt{w.Start(t.Context(), w.Peer().NewLock("a"))}
	w.AwaitWaiters("a", 1)
	waiters = append(waiters, w.Start(t.Context(), w.Peer().NewLock("a")))
	w.AwaitWaiters("a", 2)
	holder.Kill()
	first := waiters[0].Within(w.Lease("a") + stage.AfterLease).Section()
	require.Greater(t, w.Draw(first, waiters[0].Lock), token)
	require.True(t, waiters[1].Waits())
	w.Leave(first, waiters[0].Lock)
	waiters[1].Leave()
	w.Within(0).RequireFree("a")
}

func TestAHolderThatIsStoppedPastItsLeaseIsToldWhenItGoesOn(t *testing.T) {
	const ttl = time.Second
	w := stage.OnShared(t)
	holder := w.Locker("a", ttl)
	token := stage.TokenOf(t, holder.Expect("in ", stage.StartUp))
	waiter := w.Start(t.Context(), w.Peer().NewLock("a"))
	w.AwaitWaiters("a", 1)
	holder.Pause()
	mine := waiter.Within(ttl + stage.AfterLease).Section()
	require.Greater(t, w.Draw(mine, waiter.Lock), token)
	holder.Resume()
	holder.Expect("ended lost", stage.Limit)
	unlocks(t, holder, "out lost")
	require.NoError(t, mine.Err())
	w.RequireCount("a", 1)
	w.Leave(mine, waiter.Lock)
	w.Within(0).RequireFree("a")
}

func TestAGrantToAStoppedWaiterCostsItsLeaseAndIsNotBelievedLater(t *testing.T) {
	const ttl = time.Second
	w := stage.OnShared(t)
	owner := w.Peer(relock.WithTTL(ttl)).NewLock("a")
	section := w.Enter(t.Context(), owner)
	stopped := w.Locker("a", ttl)
	stopped.Expect("queued ", stage.StartUp)
	w.AwaitWaiters("a", 1)
	next := w.Start(t.Context(), w.Peer(relock.WithTTL(ttl)).NewLock("a"))
	w.AwaitWaiters("a", 2)
	stopped.Pause()
	w.Leave(section, owner)
	w.RequireCount("a", 1) // granted: its connection is there
	mine := next.Within(ttl + stage.AfterLease).Section()
	token := w.Draw(mine, next.Lock)

	// The grant is the first thing that the waiter reads, and means nothing any more.
	stopped.Resume()
	w.AwaitWaiters("a", 1)
	require.NoError(t, mine.Err())
	hold := w.Owner("a")
	require.True(t, strings.HasPrefix(hold, stage.HolderOf(t, mine).String()))
	w.Leave(mine, next.Lock)
	require.Greater(t, stage.TokenOf(t, stopped.Expect("in ", stage.Limit)), token)
	unlocks(t, stopped, "ended released", "out ok")
	w.Within(0).RequireFree("a")
}

func TestAHolderThatIsPartitionedIsToldBeforeAnotherIsIn(t *testing.T) {
	const ttl = time.Second
	s := stage.OnShared(t).Scene(relock.WithTTL(ttl))
	section, inner := s.Nested()
	token := s.Draw(section, s.L)
	// The holder is asked at the moment when the other comes in.
	var told error
	waiter := s.Begin(t.Context(), func(ctx context.Context) (context.Context, error) {
		mine, err := s.Far.Lock(ctx)
		told = section.Err()
		return mine, err
	})
	s.AwaitWaiters("a", 1)
	s.P.Faults.Partition()
	mine := waiter.Within(ttl + stage.AfterLease).Section()
	require.Error(t, told, "the holder was told before")
	require.Equal(t, relock.LossExpired, s.Within(0).Lost(section))
	s.Within(0).Lost(inner)
	require.Less(t, token, s.Draw(mine, s.Far))
	require.Zero(t, s.L.Count(section))
	for _, ctx := range []context.Context{inner, section} {
		require.ErrorIs(t, s.Within(stage.AtOnce).Call(func() error { return s.L.Unlock(ctx) }), relock.ErrLockLost)
	}
	s.P.Faults.Heal() // what was on the way arrives now
	s.RequireCount("a", 1)
	require.NoError(t, mine.Err())
	s.Leave(mine, s.Far)
	s.RequireFree("a")
}

func TestAShortSilenceCostsAHolderNothing(t *testing.T) {
	const ttl = 1500 * time.Millisecond
	for what, silence := range map[string]func(s *stage.Scene) (end func()){
		"of the network": func(s *stage.Scene) func() { s.P.Faults.Partition(); return s.P.Faults.Heal },
		"of the server":  func(s *stage.Scene) func() { s.Server.Pause(); return s.Server.Resume },
	} {
		t.Run(what, func(t *testing.T) {
			s := stage.Apart(t).Scene(relock.WithTTL(ttl))
			section := s.Enter(t.Context(), s.L)
			waiter := s.Start(t.Context(), s.Far)
			s.AwaitWaiters("a", 1)
			for range 2 {
				end := silence(s)
				stage.SleepUntil(time.Now().Add(ttl / 2))
				end()
				redistest.Eventually(t, ttl/2, func() bool { return s.L.Remaining(section) > ttl/2 }, "the lease is renewed")
			}
			require.NoError(t, section.Err())
			require.True(t, waiter.Waits())
			s.Leave(section, s.L)
			waiter.Leave()
			s.RequireFree("a")
		})
	}
}

func TestAServerThatComesBackEmptyServesItsWaiters(t *testing.T) {
	const ttl = 900 * time.Millisecond
	w := stage.OnOwn(t)
	l := w.Peer(relock.WithTTL(ttl)).NewLock("a")
	section := w.Enter(t.Context(), l)
	g := stage.Witness{Token: w.Draw(section, l)}
	var waiters []*stage.Attempt
	for i := range 5 {
		waiters = append(waiters, w.Start(t.Context(), w.Peer(relock.WithTTL(ttl)).NewLock("a")))
		w.AwaitWaiters("a", i+1)
	}
	w.Server.Kill()
	w.Server.Restart()
	restarted := time.Now()
	require.Contains(t, []relock.LossReason{relock.LossTaken, relock.LossExpired}, w.Within(ttl).Lost(section))
	require.Less(t, time.Since(restarted), bound.Of(ttl/3+stage.AfterLease)+w.Lateness(), "at the next renewal")

	// The queue is gone, so anybody may be first. Nobody is in together with another, and tokens
	// grow.
	var workers sync.WaitGroup
	var errs stage.Texts
	for _, a := range waiters {
		workers.Go(func() {
			<-a.Done
			errs.Check(a.Err)
			g.Enter(a.Ctx, a.Lock)
			g.Leave(a.Ctx)
			errs.Check(a.Lock.Unlock(a.Ctx))
		})
	}
	require.NoError(t, w.Within(ttl+w.Limit).Call(func() error { workers.Wait(); return nil }))
	require.Empty(t, errs.All())
	g.Require(t)
	require.Equal(t, len(waiters), g.Entries)
	require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
	w.RequireFree("a")
}

func TestUnlockOnAStoppedServerEndsWithTheLease(t *testing.T) {
	const ttl = time.Second
	w := stage.OnOwn(t)
	// go-redis alone would hang for longer than the lease.
	p := w.PeerOn(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 3*time.Second, -1 }, relock.WithTTL(ttl))
	single, double := p.NewLock("single"), p.NewLock("double")
	one := w.Enter(t.Context(), single)
	outer := w.Enter(t.Context(), double)
	inner := w.Enter(outer, double)
	w.Server.Pause()
	results := make(chan error, 2)
	go func() { results <- single.Unlock(one) }()
	go func() { results <- double.Unlock(inner) }()
	for range 2 {
		require.Error(t, w.Within(ttl+stage.Promptly).Call(func() error { return <-results }))
	}
	require.ErrorIs(t, single.Unlock(one), relock.ErrNotHeld)
	w.Within(ttl).Lost(outer)
	require.ErrorIs(t, w.Within(stage.AtOnce).Call(func() error { return double.Unlock(outer) }), relock.ErrLockLost)
	w.Server.Resume()
	for _, l := range []*relock.Lock{single, double} {
		w.RequireFree(l.Name())
		w.Start(t.Context(), l).Leave()
	}
}
