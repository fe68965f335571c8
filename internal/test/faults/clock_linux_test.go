package faults_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/internal/test/stage"
)

// What if the clock of the server is turned?

// The server's clock is turned, while those of the clients run on. Redis notes the end of a lease
// as a time of day: turned forward, leases end early, and two may be in; turned back, they last
// longer. Tokens grow all the same, every loss is told, and everybody gets in, in order as long as
// there is a queue.

// onClock is apart with a clock.
func onClock(t *testing.T) (*stage.Arena, *redistest.Clock) {
	t.Helper()
	t.Parallel()
	server, clock := redistest.StartWithClock(t)
	return stage.NewArena(t, server), clock
}

func TestAServerClockThatGoesForwardEndsTheLease(t *testing.T) {
	const ttl = 900 * time.Millisecond
	for _, step := range []time.Duration{
		10 * time.Second, // the lease is over
		25 * time.Hour,   // and the keys of the queue and the token
	} {
		t.Run(step.String(), func(t *testing.T) {
			w, clock := onClock(t)
			l := w.Peer(relock.WithTTL(ttl)).NewLock("a")
			section := w.Enter(t.Context(), l)
			token := w.Draw(section, l)
			var waiters []*stage.Attempt
			for i := range 5 {
				waiters = append(waiters, w.Start(t.Context(), w.Peer(relock.WithTTL(ttl)).NewLock("a")))
				w.AwaitWaiters("a", i+1)
			}
			clock.Step(step)
			stepped := time.Now()
			var mu sync.Mutex
			var tokens []int64
			var order []int
			var workers sync.WaitGroup
			var errs stage.Texts
			for i, a := range waiters {
				workers.Go(func() {
					<-a.Done
					next, err := a.Lock.Token(a.Ctx)
					mu.Lock()
					order, tokens = append(order, i), append(tokens, next)
					mu.Unlock()
					errs.Check(errors.Join(a.Err, err, a.Lock.Unlock(a.Ctx)))
				})
			}
			require.Equal(t, event.LossTaken, w.Within(ttl/3+stage.AfterLease).Lost(section))
			t.Logf("the holder was told after %s", time.Since(stepped))
			// Without a queue each asks for itself when the lease that it knew of should be over.
			require.NoError(t, w.Within(ttl+ttl/3+stage.AfterLease).Call(func() error { workers.Wait(); return nil }))
			require.Empty(t, errs.All())
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
			if step < time.Hour {
				require.Equal(t, []int{0, 1, 2, 3, 4}, order)
			}
			for _, next := range tokens {
				require.Greater(t, next, token)
				token = next
			}
			w.RequireFree("a")
		})
	}
}

func TestAServerClockThatGoesBackCostsNobodyAnything(t *testing.T) {
	const ttl, step = 900 * time.Millisecond, 30 * time.Hour
	w, clock := onClock(t)
	l := w.Peer(relock.WithTTL(ttl)).NewLock("a")
	outer := w.Enter(t.Context(), l)
	token := w.Draw(outer, l)
	var waiters []*stage.Attempt
	join := func() {
		waiters = append(waiters, w.Start(t.Context(), w.Peer(relock.WithTTL(ttl)).NewLock("a")))
		w.AwaitWaiters("a", len(waiters))
	}
	join()
	join()
	clock.Step(-step)
	require.Greater(t, w.Lease("a"), step)
	inner := w.Enter(outer, l)
	w.RequireCount("a", 2)
	stage.SleepUntil(time.Now().Add(ttl + ttl/2))
	require.NoError(t, outer.Err())
	require.LessOrEqual(t, l.Remaining(outer), ttl, "by the holder's own clock")
	w.Leave(inner, l)
	w.Leave(outer, l)
	for i, a := range waiters {
		section := a.Section()
		next := w.Draw(section, a.Lock)
		require.Greater(t, next, token)
		token = next
		require.LessOrEqual(t, w.Lease("a"), ttl, "new leases are as long as they should be")
		require.Equal(t, len(waiters)-1-i, w.Waiters("a"), "one by one, in their order")
		w.Leave(section, a.Lock)
	}
	w.Within(0).RequireFree("a")
}
