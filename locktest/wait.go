package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

var waitTests = []test{
	{name: "A waiter is woken by Unlock", run: waitWoken, short: true},
	{name: "Waiters are served in order", run: waitOrder, needs: FIFO},
	{name: "TryLock does not overtake a waiter", run: waitOvertaken, needs: FIFO},
	{name: "A waiter that gives up leaves no place", run: waitGivesUp},
	{name: "A waiter that gives up as it is served", run: waitGivesUpServed},
	{name: "A waiter gets the lock of a process that died", run: waitDead},
	{name: "A waiter waits as long as a section lasts", run: waitLong},
	{name: "Many processes and goroutines exclude each other", run: waitMany, short: true},
}

func waitWoken(b *bench) {
	l, there := b.locks()
	for _, next := range []*relock.Lock{l, there} {
		for _, lock := range []locking{next.Lock, tryFor(next, long)} {
			section := b.enter(b.ctx, l)
			holder := b.holder(section)
			c := b.wait(b.ctx, lock)
			b.waits(c)
			if b.promises(FIFO) {
				b.eventually("one waits", func() bool { return b.state(l).Waiters == 1 }) // a quorum may first have to queue it again
			}
			b.unlock(l, section)
			woken := b.get(c)
			require.NoError(b.t, woken.Err())
			require.NotEqual(b.t, holder, b.holder(woken))
			require.Greater(b.t, next.Remaining(woken), long/4)
			b.requireCount(next, woken, 1)
			b.unlock(next, woken)
		}
	}
}

func waitOrder(b *bench) {
	l, there := b.locks()
	section, owner := b.enter(b.ctx, l), l
	type waiter struct {
		*call
		lock *relock.Lock
	}
	var line []waiter
	for i := range 6 {
		next := []*relock.Lock{l, there}[i%2]
		line = append(line, waiter{b.wait(b.ctx, next.Lock), next})
		require.Equal(b.t, i+1, b.state(l).Waiters)
	}
	queue := b.state(l).Queue // nil: the store does not tell
	if queue != nil {
		require.Len(b.t, queue, len(line))
		queue = append(queue[:3:3], queue[4:]...)
	}
	line[3].cancel(nil)
	b.requireRefused(b.fails(line[3].call), l, b.holder(section), context.Canceled)
	for i, next := range append(line[:3:3], line[4:]...) {
		b.waits(next.call)
		b.unlock(owner, section)
		section, owner = b.get(next.call), next.lock
		if queue != nil {
			require.Equal(b.t, queue[i].Holder, b.holder(section))
		}
	}
	b.unlock(owner, section)
}

func waitOvertaken(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	c := b.wait(b.ctx, there.Lock)
	unlocked := make(chan error, 1)
	go func() { unlocked <- l.Unlock(section) }()
	for waits := true; waits; {
		select {
		case <-c.done:
			waits = false
		default:
			require.ErrorIs(b.t, last(l.TryLock(b.ctx)), relock.ErrLocked)
		}
	}
	require.NoError(b.t, <-unlocked)
	b.unlock(there, b.get(c))
}

func waitGivesUp(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	c := b.wait(b.ctx, tryFor(there, brief))
	b.requireRefused(b.fails(c), l, b.holder(section))
	c = b.wait(b.ctx, there.Lock)
	c.cancel(errMine)
	b.requireRefused(b.fails(c), l, b.holder(section), context.Canceled, errMine)
	b.eventually("nobody waits", func() bool { return b.state(l).Waiters == 0 })

	c = b.wait(b.ctx, there.Lock)
	b.unlock(l, section)
	b.unlock(there, b.get(c))
}

func waitGivesUpServed(b *bench) {
	l, there := b.locks()
	for range 10 {
		section := b.enter(b.ctx, l)
		quits, stays := b.wait(b.ctx, there.Lock), b.wait(b.ctx, l.Lock)
		go quits.cancel(nil)
		b.unlock(l, section)
		b.happens("the call returns", quits.done)
		if quits.err == nil {
			b.unlock(there, quits.section)
		}
		b.unlock(l, b.get(stays))
	}
}

func waitDead(b *bench) {
	_, there := b.locks()
	died := b.client(relock.WithTTL(b.h.TTL))
	l := b.lock(died, "a")
	section := b.enter(b.ctx, l)
	c := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, died.Close())
	state := b.state(there)
	require.True(b.t, state.Locked(), "Close leaves the lock to the end of the lease")
	free := time.Now().Add(state.TTL - 5*time.Millisecond) // the store may round it up
	b.unlock(there, b.get(c))
	if b.promises(Rest) {
		require.False(b.t, c.at.Before(free), "the waiter is in %s before the lease has ended", free.Sub(c.at))
	}
	require.Less(b.t, c.at.Sub(free), b.h.TTL+prompt)
	b.requireLost(l.Unlock(section), l, event.LossExpired)
}

func waitLong(b *bench) {
	short := relock.WithTTL(b.h.TTL)
	l, there := b.locks(short)
	section := b.enter(b.ctx, l)
	first, second := b.wait(b.ctx, there.Lock), b.wait(b.ctx, l.Lock)
	b.pause(5 * b.h.TTL / 2)
	b.waits(first)
	b.waits(second)
	require.NoError(b.t, section.Err())
	if b.promises(FIFO) {
		require.Equal(b.t, 2, b.state(l).Waiters)
	}
	b.unlock(l, section)
	var wg sync.WaitGroup // without FIFO, the second may be in first
	for l, c := range map[*relock.Lock]*call{there: first, l: second} {
		wg.Go(func() {
			<-c.done
			if c.err == nil {
				c.err = l.Unlock(c.section)
			}
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(first.err, second.err))
}

func waitMany(b *bench) {
	const goroutines, rounds = 5, 8 // of each process
	var guarded room
	var wg sync.WaitGroup
	clients := []*relock.Client{b.one, b.other, b.client(relock.WithLocalReentry())}
	errs := make([]error, len(clients)*goroutines)
	for i := range errs {
		l := b.lock(clients[i%len(clients)], "a")
		wg.Go(func() {
			visit := func(ctx context.Context) error {
				return l.Do(ctx, func(context.Context) error { guarded.visit(); return nil })
			}
			for round := range rounds {
				var err error
				switch round % 3 {
				case 0:
					err = visit(b.ctx)
				case 1:
					err = l.Do(b.ctx, visit)
				default:
					err = l.DoFor(b.ctx, long, visit)
				}
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	guarded.requireVisits(b.t, len(errs)*rounds)
}
