package storetest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

var holdTests = []test{
	{name: "Enter sets the count", run: enterCount},
	{name: "Enter sets the lease", run: enterLease},
	{name: "Enter without a TTL leaves the lease unchanged", run: enterUnchanged},
	{name: "Enter never shortens a lease", run: enterShort},
	{name: "Release twice is once", run: releaseTwice},
	{name: "Commands of an old hold change nothing", run: oldHold},
	{name: "Commands of a hold that never was", run: noHold},
	{name: "Forget frees the lock and serves a waiter", run: forgetHold},
	{name: "Forget takes a waiter out of the queue", run: forgetWaiter, halts: true},
	{name: "Forget of many and of nothing", run: forgetMany},
	{name: "Forget again after the claim has come late", run: forgetLate},
	{name: "Break frees the lock of that hold only", run: breakHold},
	{name: "Close leaves commands working", run: closed},
}

var renewTests = []test{
	{name: "Renew sets the lease and the count", run: renewLease},
	{name: "Renew never shortens a lease", run: renewShort},
	{name: "Renew keeps a lease from ending", run: renewKeeps},
	{name: "A lease of a month is as long as it says", run: month},
	{name: "Renew of many says which are gone", run: renewMany},
	{name: "A delay keeps a lock beyond its lease", run: delayKeeps},
	{name: "A delay does not outlive a release", run: delayReleased},
}

func enterCount(b *bench) {
	a := b.claim(long)
	l := b.take(b.st, a)
	for _, count := range []int{2, 2, 3, 1, 3} {
		before := time.Now()
		entered, err := b.st.Enter(b.ctx, l, count)
		require.NoError(b.t, err)
		require.Equal(b.t, a, entered.Claim)
		b.requireSent(before, entered)
		b.requireOwner(a, count)
	}
	b.release(l)
	require.Empty(b.t, b.look().Owner, "Release leaves the lock with entries")
}

func enterLease(b *bench) {
	l := b.take(b.st, b.claim(long))
	l.TTL = 0
	require.NoError(b.t, last(b.st.Enter(b.ctx, l, 2)))
	b.requireTTL(long/2, long)
	l.TTL = 3 * long
	sent := time.Now()
	require.NoError(b.t, last(b.st.Enter(b.ctx, l, 2)))
	b.requireTTL(2*long, 3*long)
	b.requireLasts(sent, l.TTL)
	l.TTL = 0
	require.NoError(b.t, last(b.st.Enter(b.ctx, l, 3)))
	b.requireTTL(2*long, 3*long)
	b.release(l)
}

// enterUnchanged waits for longer than the margin of a lease before it leaves the lease unchanged.
func enterUnchanged(b *bench) {
	l := b.take(b.st, b.claim(long/6))
	b.pause(2 * store.Margin(long/6))
	unchanged := l
	unchanged.TTL = 0
	entered, err := b.st.Enter(b.ctx, unchanged, 2)
	require.NoError(b.t, err)
	require.False(b.t, entered.Until().After(time.Now().Add(b.look().TTL)), "Enter returns a lease that outlasts that of the store")
	b.release(l)
}

func enterShort(b *bench) {
	l := b.take(b.st, b.claim(long))
	short := l
	short.TTL = long / 10
	entered, err := b.st.Enter(b.ctx, short, 3)
	require.NoError(b.t, err)
	b.requireTTL(long/2, long)
	until := time.Now().Add(b.look().TTL)
	require.False(b.t, entered.Until().After(until), "Enter returns a lease that outlasts that of the store")
	b.requireOwner(l.Claim, 3)
	b.release(l)
}

func releaseTwice(b *bench) {
	l := b.take(b.st, b.claim(long))
	b.release(l)
	if err := b.st.Release(b.ctx, l); err != nil {
		b.requireGone(err)
	}
	require.Empty(b.t, b.look().Owner)
}

// refused runs every command on a hold that does not have the lock.
func (b *bench) refused(l store.Lease) {
	l.TTL = 5 * long
	b.requireGone(last(b.st.Enter(b.ctx, l, 7)))
	b.requireGone(b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: 5 * long, Count: 7}})[0])
	b.requireGone(b.st.Break(b.ctx, l.Claim))
	if b.promises(Tokens) {
		b.requireGone(last(b.st.Token(b.ctx, l)))
	}
	if err := b.st.Release(b.ctx, l); err != nil {
		b.requireGone(err)
	}
	require.NoError(b.t, b.st.Forget(b.ctx, []store.Claim{l.Claim})[0])
}

func oldHold(b *bench) {
	first := b.claim(long)
	old := b.take(b.st, first)
	b.release(old)
	sameClient := first
	sameClient.ID = newID(client(first.ID))
	for _, newer := range []store.Claim{sameClient, b.claim(long)} {
		l := b.take(b.other, newer)
		b.refused(old)
		b.requireBusy(last(b.st.Try(b.ctx, first)), newer.ID)
		b.requireOwner(newer, 1)
		b.requireTTL(long/2, long)
		b.release(l)
	}
}

func noHold(b *bench) {
	b.refused(store.Lease{Claim: b.claim(long), Sent: time.Now()})
	require.Empty(b.t, b.look().Owner)
}

func forgetHold(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	for range 2 {
		require.NoError(b.t, b.other.Forget(b.ctx, []store.Claim{l.Claim})[0])
	}
	l = b.get(w)
	b.requireOwner(w.claim, 1)
	b.release(l)
}

// forgetWaiter leaves a waiter in the queue, if an interruption can do that, and forgets the
// waiter.
func forgetWaiter(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	restore := func() {}
	if b.server.Interrupt != nil {
		restore = b.interrupt()
	}
	w.cancel()
	b.promptly(func() { <-w.done })
	restore()
	b.left[w.claim.ID] = w.claim
	b.eventually("the waiter is gone", func() bool { return b.forgotten() && b.look().Waiters == 0 })
	b.release(l)
	require.Empty(b.t, b.look().Owner)
}

func forgetMany(b *bench) {
	keep := b.take(b.st, b.claim(long))
	var claims []store.Claim
	for i := range 120 {
		a := b.claim(long)
		if i%2 == 0 {
			a.Name = b.newName()
			b.take(b.st, a)
		}
		claims = append(claims, a)
	}
	errs := b.other.Forget(b.ctx, claims)
	require.Len(b.t, errs, len(claims))
	require.NoError(b.t, errors.Join(errs...))
	for _, a := range claims {
		state, err := b.st.Look(b.ctx, a)
		require.NoError(b.t, err)
		require.Equal(b.t, a.Name == b.name, state.Owner == b.named(keep.ID))
		require.NotEqual(b.t, b.named(a.ID), state.Owner)
	}
	b.release(keep)
	require.Empty(b.t, b.st.Forget(b.ctx, nil))
}

func forgetLate(b *bench) {
	a := b.claim(long)
	forget := func() { require.NoError(b.t, b.st.Forget(b.ctx, []store.Claim{a})[0]) }
	forget()
	if _, err := b.st.Try(b.ctx, a); err == nil {
		b.requireOwner(a, 1)
	}
	forget()
	require.Empty(b.t, b.look().Owner)
}

func breakHold(b *bench) {
	l := b.take(b.st, b.claim(long))
	w := b.wait(b.other, b.claim(long))
	b.requireGone(b.other.Break(b.ctx, w.claim))
	b.waits(w)
	b.requireOwner(l.Claim, 1)
	require.NoError(b.t, b.other.Break(b.ctx, l.Claim))
	next := b.get(w)
	b.requireGone(b.other.Break(b.ctx, l.Claim))
	b.requireOwner(w.claim, 1)
	b.release(next)
}

func closed(b *bench) {
	st := b.server.New()
	l := b.take(st, b.claim(long))
	for range 2 {
		require.NoError(b.t, st.Close())
	}
	l, err := st.Enter(b.ctx, l, 2)
	require.NoError(b.t, err)
	require.NoError(b.t, st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: long, Count: 2}})[0])
	require.NoError(b.t, st.Release(b.ctx, l))
	l = b.take(st, b.claim(long))
	require.NoError(b.t, st.Forget(b.ctx, []store.Claim{l.Claim})[0])
}

func renewLease(b *bench) {
	a := b.claim(long)
	l := b.take(b.st, a)
	for range 2 {
		sent := time.Now()
		require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: 3 * long, Count: 2}})[0])
		b.requireOwner(a, 2)
		b.requireTTL(2*long, 3*long)
		b.requireLasts(sent, 3*long)
	}
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, Count: 1}})[0])
	b.requireOwner(a, 1)
	b.requireTTL(2*long, 3*long)
	b.release(l)
	require.Empty(b.t, b.st.Renew(b.ctx, nil))
}

func renewShort(b *bench) {
	l := b.take(b.st, b.claim(long))
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: b.h.TTL, Count: 1}})[0])
	b.requireTTL(long/2, long)
	b.release(l)
}

func renewKeeps(b *bench) {
	l := b.take(b.st, b.claim(2*b.h.TTL))
	for range 6 {
		b.pause(b.h.TTL / 2)
		require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: 2 * b.h.TTL, Count: 1}})[0])
		b.requireBusy(last(b.other.Try(b.ctx, b.claim(long))), l.ID)
	}
	w := b.wait(b.other, b.claim(long)) // which sees the end of the lease that comes first
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: long, Count: 1}})[0])
	b.pause(3 * b.h.TTL)
	b.waits(w)
	b.release(l)
	b.release(b.get(w))
}

// month takes a lease with more milliseconds than 31 bits have, if Check admits it.
func month(b *bench) {
	a, err := b.st.Check(b.claim(30 * 24 * time.Hour))
	if err != nil {
		return
	}
	sent := time.Now()
	l := b.take(b.st, a)
	b.requireLasts(sent, a.TTL)
	sent = time.Now()
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: a.TTL, Count: 1}})[0])
	b.requireLasts(sent, a.TTL)
	b.release(l)
}

func delayKeeps(b *bench) {
	a := b.claim(b.h.TTL)
	a.Delay = 2 * b.h.TTL
	begun := time.Now()
	l := b.take(b.st, a)
	require.Less(b.t, l.Until().Sub(l.Sent), b.h.TTL, "the delay is no part of the lease")
	b.requireTTL(2*b.h.TTL, 3*b.h.TTL)
	next, err := b.other.Wait(b.ctx, b.claim(long), func(store.Progress) {})
	require.NoError(b.t, err)
	require.GreaterOrEqual(b.t, time.Since(begun), 3*b.h.TTL)
	b.release(next)
}

func delayReleased(b *bench) {
	a := b.claim(long)
	a.Delay = long
	l := b.take(b.st, a)
	b.requireTTL(long, 2*long)
	require.NoError(b.t, b.st.Renew(b.ctx, []store.Renewal{{Lease: l, TTL: 2 * long, Count: 1}})[0])
	b.requireTTL(2*long, 3*long)
	l.TTL = 3 * long
	l, err := b.st.Enter(b.ctx, l, 2)
	require.NoError(b.t, err)
	require.LessOrEqual(b.t, l.Until().Sub(l.Sent), 3*long)
	b.requireTTL(3*long, 4*long)
	b.release(l)
	b.release(b.take(b.other, b.claim(long)))
}

func renewMany(b *bench) {
	var renewals []store.Renewal
	gone := func(i int) bool { return i%3 == 0 }
	for i := range 120 {
		a := b.claim(long)
		a.Name = b.newName()
		l := b.take(b.st, a)
		if gone(i) {
			b.release(l)
		}
		renewals = append(renewals, store.Renewal{Lease: l, TTL: 3 * long, Count: 2})
	}
	errs := b.st.Renew(b.ctx, renewals)
	require.Len(b.t, errs, len(renewals))
	for i, r := range renewals {
		state, err := b.other.Look(b.ctx, r.Lease.Claim)
		require.NoError(b.t, err)
		if gone(i) {
			b.requireGone(errs[i])
			require.Empty(b.t, state.Owner)
			continue
		}
		require.NoError(b.t, errs[i])
		if b.kind == store.Mutex || state.Count != 1 {
			require.Equal(b.t, 2, state.Count)
		}
		require.Greater(b.t, state.TTL, 2*long)
		b.release(r.Lease)
	}
}
