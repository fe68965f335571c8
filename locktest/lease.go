package locktest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/lifetime"
)

var leaseTests = []test{
	{name: "A section outlives its TTL", run: leaseRenewed},
	{name: "A crowd costs no other hold", run: leaseBesideCrowd},
	{name: "A done context ends the lease", run: leaseAbandoned},
	{name: "WithFixedLease ends the hold", run: leaseFixed},
	{name: "Extend makes a fixed lease longer", run: leaseExtended},
	{name: "Extend refuses what it cannot extend", run: leaseNotExtended},
	{name: "WithMaxHold ends the hold", run: leaseMaxHold},
	{name: "WithLocalReentry counts in the process", run: leaseLocalReentry},
	{name: "Token draws larger tokens", run: tokensGrow, needs: Tokens, short: true},
	{name: "All calls of Token in a hold get one token", run: tokenOnce, needs: Tokens},
}

func leaseRenewed(b *bench) {
	short := relock.WithTTL(b.h.TTL)
	l, there := b.locks(short)
	section := b.enter(b.ctx, l)
	inner := b.enter(section, l)
	for range 5 {
		b.pause(b.h.TTL / 2)
		require.NoError(b.t, inner.Err())
		require.Positive(b.t, l.Remaining(inner))
		require.LessOrEqual(b.t, l.Remaining(inner), b.h.TTL)
		b.requireBusy(there)
	}
	b.requireCount(l, inner, 2)
	b.unlock(l, inner, section)
}

// leaseBesideCrowd has a process with quiet holds, and with a crowd of callers for three leases. A
// third of the crowd waits for a lock that another process has, a third waits briefly again and
// again, and a third enters locks of its own.
func leaseBesideCrowd(b *bench) {
	const crowd, quiet = 90, 5
	c := b.server.NewClient(relock.WithTTL(b.h.TTL))
	b.t.Cleanup(func() { require.NoError(b.t, c.Close()) })
	taken := b.lock(b.other, "taken")
	outer := b.enter(b.ctx, taken)
	var locks []oneLock
	var sections []context.Context
	for i := range quiet {
		l := b.lock(c, "quiet"+strconv.Itoa(i))
		locks, sections = append(locks, l), append(sections, b.enter(b.ctx, l))
	}
	ctx, cancel := context.WithTimeout(b.ctx, 3*b.h.TTL)
	defer cancel()
	var all sync.WaitGroup
	for i := range crowd {
		l, own := b.lock(c, "taken"), b.lock(c, "own"+strconv.Itoa(i))
		all.Go(func() {
			for ctx.Err() == nil {
				switch i % 3 {
				case 0:
					_ = l.Do(ctx, nothing)
				case 1:
					_ = l.DoFor(ctx, brief, nothing)
				case 2:
					_ = own.Do(ctx, func(ctx context.Context) error { lifetime.Sleep(ctx.Done(), brief/20); return nil })
				}
			}
		})
	}
	all.Wait()
	for i, l := range locks {
		begun := time.Now()
		require.NoError(b.t, context.Cause(sections[i]))
		b.unlock(l, sections[i])
		require.Less(b.t, time.Since(begun), patience)
	}
	b.unlock(taken, outer)
}

func leaseAbandoned(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	request, cancel := context.WithCancel(b.ctx)
	section := b.enter(request, l)
	inner := b.enter(section, l)
	c := b.wait(b.ctx, there.Lock)
	b.pause(b.h.TTL)
	b.waits(c)
	cancel()
	begun := time.Now()
	b.unlock(there, b.get(c))
	require.Less(b.t, c.at.Sub(begun), b.h.TTL+prompt)
	err := l.Unlock(inner)
	b.requireKinds(err, relock.ErrLockLost)
	b.requireLost(err, l, event.LossAbandoned)
	b.requireKinds(l.Unlock(section), relock.ErrLockLost)
	b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
}

func leaseFixed(b *bench) {
	l, there := b.locks(relock.WithFixedLease(b.h.TTL))
	b.unlock(l, b.enter(b.ctx, l))
	begun := time.Now()
	section := b.enter(b.ctx, l)
	entered := time.Now()
	c := b.wait(b.ctx, there.Lock)
	b.unlock(l, b.enter(section, l)) // re-entry does not renew the lease
	cause := b.ends(section)
	require.Less(b.t, time.Since(entered), b.h.TTL+prompt)
	b.requireLost(cause, l, event.LossExpired)
	require.False(b.t, l.Held(section))
	require.Zero(b.t, l.Remaining(section))
	next := b.get(c)
	require.Greater(b.t, c.at.Sub(begun), b.h.TTL/2)
	require.Equal(b.t, cause, l.Unlock(section))
	b.unlock(there, next)
}

func leaseExtended(b *bench) {
	l, there := b.locks(relock.WithFixedLease(b.h.TTL))
	section := b.enter(b.ctx, l)
	require.NoError(b.t, l.Extend(section, relock.MinTTL))
	require.Greater(b.t, l.Remaining(section), b.h.TTL/2, "Extend does not shorten the lease")
	for range 6 {
		b.pause(b.h.TTL / 3)
		require.NoError(b.t, l.Extend(section, b.h.TTL))
	}
	require.NoError(b.t, section.Err())
	require.NoError(b.t, l.Extend(section, long))
	require.Greater(b.t, l.Remaining(section), long/2)
	require.Greater(b.t, b.state(there).TTL, long/2)
	b.pause(b.h.TTL)
	require.True(b.t, l.Held(section))
	b.unlock(l, section)
	b.requireKinds(l.Extend(section, long), relock.ErrNotHeld)
}

func leaseNotExtended(b *bench) {
	l, there := b.locks(relock.WithFixedLease(long))
	section := b.enter(b.ctx, l)
	b.requireKinds(l.Extend(b.ctx, long), relock.ErrNotHeld)
	b.requireKinds(there.Extend(section, long), relock.ErrNotHeld)
	for _, wrong := range []time.Duration{0, -time.Second, relock.MinTTL - 1, relock.MaxTTL + time.Millisecond, long + 1} {
		b.requireKinds(l.Extend(section, wrong), relock.ErrInvalid)
	}
	done, cancel := context.WithCancelCause(section)
	cancel(errMine)
	err := l.Extend(done, long)
	b.requireKinds(err, context.Canceled)
	require.ErrorIs(b.t, err, errMine)
	b.unlock(l, section)

	renewed := b.lock(b.one, "b")
	section = b.enter(b.ctx, renewed)
	b.requireKinds(renewed.Extend(section, long), relock.ErrInvalid)
	require.True(b.t, renewed.Held(section))
	b.unlock(renewed, section)
}

func leaseMaxHold(b *bench) {
	limit := 2 * b.h.TTL
	l, there := b.locks(relock.WithTTL(b.h.TTL), relock.WithMaxHold(limit))
	b.unlock(l, b.enter(b.ctx, l))
	begun := time.Now()
	section := b.enter(b.ctx, l)
	entered := time.Now()
	c := b.wait(b.ctx, there.Lock)
	b.pause(5 * b.h.TTL / 4)
	b.waits(c)
	b.unlock(l, b.enter(section, l)) // re-entry does not move the end
	cause := b.ends(section)
	require.Less(b.t, time.Since(entered), limit+prompt)
	b.requireLost(cause, l, event.LossMaxHold)
	next := b.get(c)
	require.Greater(b.t, c.at.Sub(begun), 3*b.h.TTL/2)
	require.Equal(b.t, cause, l.Unlock(section))
	b.unlock(there, next)
}

func leaseLocalReentry(b *bench) {
	l, there := b.locks(relock.WithLocalReentry())
	outer := b.enter(b.ctx, l)
	inner := b.enter(outer, l)
	require.Equal(b.t, 2, l.Count(inner))
	require.Equal(b.t, 1, b.state(l).Count)
	b.requireBusy(l, there)
	b.unlock(l, outer)
	require.Equal(b.t, 1, l.Count(inner))
	b.requireBusy(l, there)
	b.unlock(l, inner)
	b.requireKinds(l.Unlock(inner), relock.ErrNotHeld)
	b.unlock(there, b.enter(b.ctx, there))
}

func tokensGrow(b *bench) {
	l, there := b.locks()
	latest := int64(0)
	for i := range 6 {
		owner := []*relock.Lock{l, there}[i%2]
		section := b.enter(b.ctx, owner)
		token, err := owner.Token(section)
		require.NoError(b.t, err)
		require.Greater(b.t, token, latest)
		require.Equal(b.t, token, b.state(l).Token)
		latest = token
		inner := b.enter(section, owner)
		again, err := owner.Token(inner)
		require.NoError(b.t, err)
		require.Equal(b.t, token, again, "a hold has one token")
		b.unlock(owner, inner)
		b.requireKinds(last(owner.Token(inner)), relock.ErrNotHeld)
		b.unlock(owner, section)
		token, err = owner.Token(section)
		b.requireKinds(err, relock.ErrNotHeld)
		require.Zero(b.t, token)
	}
	b.requireKinds(last(l.Token(b.ctx)), relock.ErrNotHeld)
}

func tokenOnce(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	tokens, errs := make([]int64, 10), make([]error, 10)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() { tokens[i], errs[i] = l.Token(section) })
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	for _, token := range tokens {
		require.Equal(b.t, tokens[0], token)
	}
	b.unlock(l, section)
}
