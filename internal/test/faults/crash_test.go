package faults_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if a process is stopped, or a server goes away?

// unlocks tells a locker to unlock, and waits for its end.
func unlocks(t testing.TB, p *redistest.Process, says ...string) {
	t.Helper()
	p.Send("unlock")
	for _, line := range says {
		p.Expect(line, stage.Limit)
	}
	require.NoError(t, p.Wait(stage.Limit))
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

func TestAServerThatComesBackEmptyServesItsWaiters(t *testing.T) {
	const ttl = 6 * time.Second
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
	require.Contains(t, []event.LossReason{event.LossTaken, event.LossExpired}, w.Within(ttl).Lost(section))
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
