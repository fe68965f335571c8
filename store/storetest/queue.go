package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// queueTests are the promises of [store.Queueing].
var queueTests = []test{
	{name: "Waiters are named by turn", run: waiters, needs: Queueing, also: FIFO},
	{name: "Waiters of all modes are named", run: waitersOfKinds, needs: Queueing, also: Kinds},
	{name: "A context that is done ends Waiters", run: waitersDone, needs: Queueing},
}

func (b *bench) queueing(st store.Store) store.Queueing {
	queueing, ok := st.(store.Queueing)
	require.True(b.t, ok, "the store is no store.Queueing: the harness must list Queueing in Without")
	return queueing
}

// requireWaiters compares the first waiters with claims.
func (b *bench) requireWaiters(begin time.Time, most int, line ...*waiter) {
	b.t.Helper()
	found, err := b.queueing(b.other).Waiters(b.ctx, b.claim(long), most)
	require.NoError(b.t, err)
	require.Len(b.t, found, len(line))
	for i, w := range line {
		require.Equal(b.t, b.named(w.claim.ID), found[i].ID)
		require.Equal(b.t, w.claim.Limit, found[i].Limit)
		if since := found[i].Since; !since.IsZero() {
			require.False(b.t, since.Before(begin.Add(-prompt)), "waits since %s, and the first one since %s", since, begin)
			require.False(b.t, since.After(time.Now()))
		}
	}
}

func waiters(b *bench) {
	begin := time.Now()
	b.requireWaiters(begin, 10)
	l := b.take(b.st, b.claim(long))
	b.requireWaiters(begin, 10)
	var line []*waiter
	for i := range 4 {
		line = append(line, b.wait([]store.Store{b.st, b.other}[i%2], b.claim(long)))
	}
	b.requireWaiters(begin, 10, line...)
	b.requireWaiters(begin, 2, line[:2]...)
	b.end(line[1])
	rest := []*waiter{line[0], line[2], line[3]}
	b.eventually("the place is taken back", func() bool { return b.look().Waiters == len(rest) })
	for len(rest) > 0 {
		b.requireWaiters(begin, 10, rest...)
		b.release(l)
		l, rest = b.get(rest[0]), rest[1:]
	}
	b.requireWaiters(begin, 10)
	b.release(l)
}

func waitersOfKinds(b *bench) {
	b.begin(store.ReadWrite)
	begin := time.Now()
	reader := func() store.Claim {
		a := b.claim(long)
		a.Limit = store.Unlimited
		return a
	}
	l := b.take(b.st, b.claim(long))
	line := []*waiter{b.wait(b.other, reader()), b.wait(b.st, b.claim(long)), b.wait(b.other, reader())}
	b.requireWaiters(begin, 10, line...)
	for _, w := range line {
		b.release(l)
		l = b.get(w)
	}
	b.release(l)
	if !b.promises(Semaphores) {
		return
	}
	b.begin(store.Semaphore)
	l = b.take(b.st, b.claim(long))
	a := b.claim(long)
	a.Limit = 3
	w := b.wait(b.other, a)
	b.requireWaiters(begin, 10, w)
	b.release(l)
	b.release(b.get(w))
}

func waitersDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	ctx := b.done(cause)()
	var err error
	b.promptly(func() { _, err = b.queueing(b.st).Waiters(ctx, b.claim(long), 10) })
	require.ErrorIs(b.t, err, context.Canceled)
	require.ErrorIs(b.t, err, cause)
}
