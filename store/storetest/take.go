package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

var takeTests = []test{
	{name: "Check returns the name of the lock", run: checkNames},
	{name: "Check refuses a claim without a limit", run: checkLimit},
	{name: "Names that look alike are several locks", run: alike},
	{name: "Try takes a free lock", run: tryFree},
	{name: "Try twice is once", run: tryTwice},
	{name: "Try of a busy lock says who has it", run: tryBusy},
	{name: "Try does not overtake a waiter", run: tryOvertakes, needs: FIFO},
}

var waitTests = []test{
	{name: "Wait takes a free lock", run: waitFree},
	{name: "Wait twice is once", run: waitTwice},
	{name: "Wait is woken by the release", run: waitWoken, needs: Wakes},
	{name: "Waiters are served in order", run: waitOrder, needs: FIFO},
	{name: "Wait gets the lock when its lease has ended", run: waitExpiry},
	{name: "Wait outlasts a waiter that died", run: waitDeadWaiter, needs: FIFO},
	{name: "Wait returns when its context is done", run: waitEnds},
	{name: "Wait again after its context was done", run: waitAgain},
	{name: "Wait whose context ends with the grant", run: waitEndsWithGrant},
	{name: "Wait excludes many at once", run: stress},
}

func checkNames(b *bench) {
	a := b.claim(long)
	again, err := b.other.Check(a)
	require.NoError(b.t, err)
	require.Equal(b.t, a, again, "Check changes a claim that Check has returned")
	for _, bad := range append([]string{""}, b.h.BadNames...) {
		a.Name = bad
		require.Error(b.t, last(b.st.Check(a)), "name %q", bad)
	}
	for _, same := range b.h.SameNames {
		a.Name = same[0]
		first, err := b.st.Check(a)
		require.NoError(b.t, err)
		a.Name = same[1]
		second, err := b.st.Check(a)
		require.NoError(b.t, err)
		require.Equal(b.t, first, second, "names %q", same)
	}
}

// alike takes locks whose names some servers take for one, if Check does not say so.
func alike(b *bench) {
	for _, pair := range [][2]string{{"a", "A"}, {"e", "é"}, {"a", "a "}, {"a", "a%"}, {"ab", "a_"}} {
		first, second := b.claim(long), b.claim(long)
		first.Name, second.Name = b.name+pair[0], b.name+pair[1]
		first, err := b.st.Check(first)
		require.NoError(b.t, err)
		if second, err = b.st.Check(second); err != nil || second.Name == first.Name {
			continue
		}
		l := b.take(b.st, first)
		b.release(b.take(b.st, second))
		b.release(l)
	}
}

// checkLimit forgets the limit.
func checkLimit(b *bench) {
	a := b.claim(long)
	for _, limit := range []int{0, -1} {
		a.Limit = limit
		require.Error(b.t, last(b.st.Check(a)), "limit %d", limit)
	}
}

func tryFree(b *bench) {
	require.Empty(b.t, b.look().Owner)
	a := b.claim(long)
	l := b.take(b.st, a)
	require.Equal(b.t, store.WakeNone, l.Woken)
	b.requireOwner(a, 1)
	b.requireTTL(long/2, long)
	b.release(l)
}

func tryTwice(b *bench) {
	a := b.claim(long)
	b.take(b.st, a)
	l, err := b.st.Try(b.ctx, a)
	require.NoError(b.t, err)
	require.Equal(b.t, a, l.Claim)
	b.requireOwner(a, 1)
	b.release(l)
}

func tryBusy(b *bench) {
	a := b.claim(long)
	l := b.take(b.st, a)
	for range 2 {
		b.requireBusy(last(b.other.Try(b.ctx, b.claim(3*long))), a.ID)
	}
	b.requireOwner(a, 1)
	b.release(l)
}

func tryOvertakes(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	released := make(chan error, 1)
	go func() { released <- b.st.Release(b.ctx, l) }()
	for range 50 {
		require.Error(b.t, last(b.st.Try(b.ctx, b.claim(long))), "Try takes a lock for which another hold waits")
	}
	require.NoError(b.t, <-released)
	b.release(b.get(w))
}

func waitFree(b *bench) {
	w := b.start(b.st, b.claim(long))
	l := b.get(w)
	require.True(b.t, time.Now().Before(l.Until()))
	b.requireOwner(w.claim, 1)
	b.release(l)
}

func waitTwice(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	b.get(w)
	again := b.start(b.other, w.claim)
	l = b.get(again)
	b.requireOwner(w.claim, 1)
	require.Zero(b.t, b.look().Waiters)
	b.release(l)
}

func waitWoken(b *bench) {
	a := b.claim(long)
	l := b.take(b.st, a)
	w := b.wait(b.other, b.claim(long))
	b.waits(w)
	b.requireRefusal(w.first.Busy, a.ID)
	if b.promises(FIFO) {
		require.Equal(b.t, 1, b.look().Waiters)
	}
	b.release(l)
	woken := b.get(w)
	require.NotEqual(b.t, store.WakeNone, woken.Woken)
	b.requireOwner(w.claim, 1)
	b.release(woken)
}

func waitOrder(b *bench) {
	l := b.take(b.st, b.claim(long))
	var line []*waiter
	for i := range 12 {
		line = append(line, b.wait([]store.Store{b.st, b.other}[i%2], b.claim(long)))
		require.Equal(b.t, i, line[i].first.Position)
		require.Equal(b.t, i+1, b.look().Waiters)
	}
	b.end(line[3])
	for _, w := range append(line[:3:3], line[4:]...) {
		b.waits(w)
		b.release(l)
		l = b.get(w)
		b.requireOwner(w.claim, 1)
	}
	b.release(l)
}

func waitExpiry(b *bench) {
	a := b.claim(b.h.TTL)
	l := b.take(b.st, a)
	w := b.wait(b.other, b.claim(long))
	next := b.get(w)
	require.False(b.t, w.at.Before(l.Until()), "another hold has the lock before Lease.Until")
	b.requireGone(b.st.Release(b.ctx, l))
	b.requireOwner(w.claim, 1)
	b.release(next)

	alone := b.take(b.st, b.claim(b.h.TTL))
	b.eventually("the lease ends", func() bool { return b.look().Owner == "" })
	require.False(b.t, time.Now().Before(alone.Until()), "the lease ends before Lease.Until")
	b.requireGone(last(b.st.Enter(b.ctx, alone, 2)))
}

func waitDeadWaiter(b *bench) {
	l := b.take(b.st, b.claim(4*b.h.TTL)) // a waiter may sleep for as long as the lease that it is told of
	dead := b.wait(b.st, b.claim(b.h.TTL))
	w := b.wait(b.other, b.claim(long))
	b.release(l)
	l = b.get(dead)
	next := b.get(w)
	require.False(b.t, w.at.Before(l.Until()), "another hold has the lock before Lease.Until")
	b.release(next)
}

func waitEnds(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	b.end(w)
	b.eventually("the waiter is gone", func() bool { return b.forgotten() && b.look().Waiters == 0 })
	b.requireOwner(l.Claim, 1)
	b.release(l)
}

func waitAgain(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	w.cancel()
	b.promptly(func() { <-w.done })
	require.Error(b.t, w.err)
	again := b.wait(b.other, w.claim)
	b.release(l)
	l = b.get(again)
	b.requireOwner(w.claim, 1)
	b.release(l)
}

// waitEndsWithGrant ends the context of a waiter before, during and after the release of the lock.
// Either Wait returns a lease, or nothing is left that ErrUnsure does not admit.
func waitEndsWithGrant(b *bench) {
	for i := range 24 {
		l := b.take(b.st, b.claim(long))
		w := b.wait(b.other, b.claim(long))
		released := make(chan error, 1)
		switch i % 3 {
		case 0:
			released <- b.st.Release(b.ctx, l)
			b.pause(time.Duration(i) * 50 * time.Microsecond)
			w.cancel()
		case 1:
			go func() { released <- b.st.Release(b.ctx, l) }()
			w.cancel()
		default:
			w.cancel()
			released <- b.st.Release(b.ctx, l)
		}
		b.promptly(func() { <-w.done })
		require.NoError(b.t, <-released)
		if w.err == nil {
			b.release(b.get(w))
		} else {
			b.failed(w.claim, w.err)
		}
		b.requireFree()
	}
}

// stress lets many holds count up a number that only the lock guards.
func stress(b *bench) {
	const holds, rounds = 8, 20
	var (
		group  sync.WaitGroup
		in     atomic.Int32
		number int
	)
	stores := []store.Store{b.st, b.other, b.open(), b.open()}
	failures := make(chan error, holds)
	for i := range holds {
		st := stores[i%len(stores)]
		group.Go(func() {
			for range rounds {
				l, err := st.Wait(b.ctx, b.claim(long), func(store.Progress) {})
				if err != nil {
					failures <- err
					return
				}
				if others := in.Add(1) - 1; others > 0 {
					failures <- fmt.Errorf("%d other holds have the lock", others)
				}
				number++
				in.Add(-1)
				if err := st.Release(b.ctx, l); err != nil {
					failures <- errors.Join(errors.New("release"), err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { defer close(done); group.Wait() }()
	select {
	case <-done:
	case err := <-failures:
		require.NoError(b.t, err)
	case <-time.After(6 * patience):
		require.FailNow(b.t, "does not happen: all holds have had the lock")
	}
	require.Empty(b.t, failures)
	require.Equal(b.t, holds*rounds, number)
}
