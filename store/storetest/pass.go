package storetest

import (
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// passTests are the promises of [store.Passing]. A store that passes nothing on has nothing to show.
var passTests = []test{
	{name: "Pass serves the waits of a run in order", run: passOrder},
	{name: "Pass skips a wait that is over, and no other wait", run: passEnds},
	{name: "A lease that was passed on is lost as one", run: passLost, needs: FIFO},
}

// passing returns the power of a store; nil: it has none.
func (b *bench) passing() store.Passing {
	passing, is := b.st.(store.Passing)
	if !is {
		b.t.Log("the store is no store.Passing")
		return nil
	}
	require.True(b.t, b.promises(FIFO), "a run is a part of a queue")
	require.False(b.t, passing.Pass(b.take(b.st, b.claim(long))), "a lease without a run")
	b.begin(store.Mutex)
	return passing
}

// beside returns the claim of another hold of the same client.
func (b *bench) beside(a store.Claim) store.Claim {
	a.ID = newID(client(a.ID))
	return a
}

// run queues asks behind a hold of another client, and frees the lock.
func (b *bench) run(claims ...store.Claim) (l store.Lease, line []*waiter) {
	before := b.take(b.other, b.claim(long))
	for _, a := range claims {
		line = append(line, b.wait(b.st, a))
	}
	b.pause(aMoment) // each wait knows of its place
	b.release(before)
	return b.get(line[0]), line[1:]
}

// passed returns the lease that the next wait has got from l.
func (b *bench) passed(l store.Lease, w *waiter) store.Lease {
	w.claim.ID = l.ID // of the first hold
	next := b.get(w)
	require.Equal(b.t, store.WakePass, next.Woken)
	require.Equal(b.t, l.Until(), next.Until())
	b.requireOwner(next.Claim, 1)
	return next
}

func passOrder(b *bench) {
	passing := b.passing()
	if passing == nil {
		return
	}
	first := b.claim(long)
	claims := []store.Claim{first}
	for range 10 {
		claims = append(claims, b.beside(first))
	}
	l, line := b.run(claims...)
	last := b.wait(b.other, b.claim(long))
	token := int64(0)
	for i, w := range line {
		b.waits(w)
		require.True(b.t, passing.Pass(l))
		l = b.passed(l, w)
		if b.promises(Tokens) {
			next := b.token(l)
			require.Greater(b.t, next, token)
			token = next
		}
		if i%3 == 0 {
			_, err := b.st.Enter(b.ctx, l, 1)
			require.NoError(b.t, err)
			require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: long, Count: 1}})[0])
		}
	}
	require.False(b.t, passing.Pass(l), "nobody of the run is left")
	b.waits(last)
	b.release(l)
	b.release(b.get(last))
	require.Zero(b.t, b.look().Waiters)
}

func passEnds(b *bench) {
	passing := b.passing()
	if passing == nil {
		return
	}
	first := b.claim(long)
	short := b.beside(first)
	short.TTL /= 2
	l, line := b.run(first, b.beside(first), b.beside(first), short, b.beside(first))
	b.end(line[0])
	require.True(b.t, passing.Pass(l))
	l = b.passed(l, line[1])
	require.False(b.t, passing.Pass(l), "the next wait wants another lease")
	b.release(l)
	l = b.get(line[2])
	require.Equal(b.t, short.ID, l.ID)
	b.waits(line[3])
	b.release(l)
	b.release(b.get(line[3]))
}

func passLost(b *bench) {
	passing := b.passing()
	if passing == nil {
		return
	}
	first := b.claim(long)
	l, line := b.run(first, b.beside(first), b.beside(first))
	require.True(b.t, passing.Pass(l))
	l = b.passed(l, line[0])
	require.NoError(b.t, b.other.Break(b.ctx, l.Claim))
	b.requireGone(b.st.Release(b.ctx, l))
	l = b.get(line[1])
	require.NotEqual(b.t, first.ID, l.ID)
	b.release(l)
	b.eventually("the places of holds that are over are gone", func() bool { return b.look().Waiters == 0 })
}
