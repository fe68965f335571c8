package locktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

var lossTests = []test{
	{name: "ForceUnlock grants the lock to the next", run: forceUnlock},
	{name: "ForceUnlock of a free lock is ErrNotHeld", run: forceFree},
	{name: "ForceUnlock is told at once", run: forceTold, needs: Watch},
	{name: "Every call in a lost section says so", run: lostCalls, short: true},
	{name: "A section inside of a lost one ends with it", run: lostOuter},
	{name: "A lost section is not entered again", run: lostDetached},
	{name: "A cause of the caller's context is no loss", run: lostCause},
	{name: "A hold that the server loses is lost", run: lostByServer, needs: lose},
}

func forceUnlock(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	inner := b.enter(section, l)
	c := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, there.ForceUnlock(b.ctx))
	next := b.get(c)
	b.requireCount(there, next, 1)
	cause := b.ends(section)
	b.requireLost(cause, l, event.LossTaken)
	require.ErrorIs(b.t, section.Err(), context.Canceled)
	require.Equal(b.t, cause, b.ends(inner))
	require.Equal(b.t, cause, l.Unlock(inner))
	require.Equal(b.t, cause, l.Unlock(section))
	b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
	require.NoError(b.t, next.Err())
	b.unlock(there, next)
}

func forceFree(b *bench) {
	l, _ := b.locks()
	b.requireKinds(l.ForceUnlock(b.ctx), relock.ErrNotHeld)
	b.unlock(l, b.enter(b.ctx, l))
	b.requireKinds(l.ForceUnlock(b.ctx), relock.ErrNotHeld)
}

// forceTold asks for the best of a minute, as a machine may be busy.
func forceTold(b *bench) {
	l, there := b.locks()
	best := patience
	for first := time.Now(); time.Since(first) < time.Minute; {
		section := b.enter(b.ctx, l)
		b.pause(500 * time.Millisecond) // a short section is not watched
		begun := time.Now()
		require.NoError(b.t, there.ForceUnlock(b.ctx))
		b.requireLost(b.ends(section), l, event.LossTaken)
		if best = min(best, time.Since(begun)); best < 50*time.Millisecond {
			return
		}
	}
	require.Less(b.t, best, 50*time.Millisecond)
}

func lostCalls(b *bench) {
	l, _ := b.locks(relock.WithFixedLease(long))
	renewed := b.lock(b.one, "b")
	for _, call := range []struct {
		lock *relock.Lock
		call func(l *relock.Lock, section context.Context) error
	}{
		{renewed, func(l *relock.Lock, section context.Context) error { return last(l.Lock(section)) }},
		{renewed, func(l *relock.Lock, section context.Context) error { return last(l.TryLock(section)) }},
		{renewed, func(l *relock.Lock, section context.Context) error { return last(l.TryLockFor(section, long)) }},
		{renewed, func(l *relock.Lock, section context.Context) error { return l.Do(section, nothing) }},
		{renewed, (*relock.Lock).Unlock},
		{l, func(l *relock.Lock, section context.Context) error { return l.Extend(section, long) }},
		{l, (*relock.Lock).Unlock},
	} {
		section := b.enter(b.ctx, call.lock)
		require.NoError(b.t, b.other.NewLock(call.lock.Name()).ForceUnlock(b.ctx))
		b.requireLost(call.call(call.lock, section), call.lock, event.LossTaken)
		require.Error(b.t, section.Err())
		require.False(b.t, call.lock.Held(section))
		if err := call.lock.Unlock(section); !errors.Is(err, relock.ErrNotHeld) {
			b.requireLost(err, call.lock, event.LossTaken)
			require.Equal(b.t, err, context.Cause(section))
		}
	}
	fresh, there := b.lock(b.one, "c"), b.lock(b.other, "c")
	section := b.enter(b.ctx, fresh)
	withLock := b.state(fresh).Token != 0 // the store has drawn a token with the lock
	require.NoError(b.t, there.ForceUnlock(b.ctx))
	if b.promises(Tokens) && !withLock {
		token, err := fresh.Token(section)
		b.requireLost(err, fresh, event.LossTaken)
		require.Zero(b.t, token)
		b.requireLost(context.Cause(section), fresh, event.LossTaken)
	}
	b.requireLost(fresh.Unlock(section), fresh, event.LossTaken)
}

func nothing(context.Context) error { return nil }

func lostOuter(b *bench) {
	short := relock.WithTTL(b.h.TTL)
	outer, inner, busy := b.lock(b.one, "a", short), b.lock(b.one, "b", short), b.lock(b.one, "c")
	inOuter := b.enter(b.ctx, outer)
	inInner := b.enter(inOuter, inner)
	blocked := b.enter(b.ctx, busy)
	c := b.wait(inInner, busy.Lock)
	require.NoError(b.t, outer.ForceUnlock(b.ctx))
	b.requireLost(b.ends(inInner), outer, event.LossTaken)
	err := b.fails(c)
	b.requireKinds(err, relock.ErrLocked, relock.ErrLockLost, context.Canceled)
	b.requireLost(err, outer, event.LossTaken)
	require.True(b.t, inner.Held(inInner), "the inner lock was not lost")
	b.unlock(inner, inInner)
	b.requireLost(outer.Unlock(inOuter), outer, event.LossTaken)
	b.unlock(busy, blocked)
}

func lostDetached(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	detached := context.WithoutCancel(section)
	require.NoError(b.t, there.ForceUnlock(b.ctx))
	b.requireLost(b.ends(section), l, event.LossTaken)
	for _, ctx := range []context.Context{section, detached} {
		b.requireLost(last(l.Lock(ctx)), l, event.LossTaken)
	}
	require.False(b.t, b.state(l).Locked(), "the lost section has not come back")
	b.requireLost(l.Unlock(section), l, event.LossTaken)
	anew := b.enter(detached, l)
	b.requireCount(l, anew, 1)
	require.False(b.t, l.Held(section))
	b.unlock(l, anew)
}

func lostByServer(b *bench) {
	l, there := b.locks(relock.WithTTL(b.h.TTL))
	section := b.enter(b.ctx, l)
	begun := time.Now()
	b.server.Lose(l.Name())
	b.requireLost(b.ends(section), l, event.LossTaken)
	require.Less(b.t, time.Since(begun), b.h.TTL/3+prompt, "at the next renewal")
	b.requireLost(l.Unlock(section), l, event.LossTaken)
	b.unlock(there, b.enter(b.ctx, there))

	err := l.Do(b.ctx, func(ctx context.Context) error {
		b.server.Lose(l.Name())
		<-ctx.Done()
		return errMine
	})
	require.ErrorIs(b.t, err, errMine)
	b.requireLost(err, l, event.LossTaken)
}

// lostCause ends the context of a call on its way, with a cause that looks like an answer.
func lostCause(b *bench) {
	l, _ := b.locks(relock.WithFixedLease(long))
	section := b.enter(b.ctx, l)
	for name, call := range map[string]func(ctx context.Context) error{
		"Extend": func(ctx context.Context) error { return l.Extend(ctx, long) },
		"Token":  func(ctx context.Context) error { return last(l.Token(ctx)) },
		"Lock": func(ctx context.Context) error {
			inner, err := l.Lock(ctx)
			if err == nil {
				b.unlock(l, inner)
			}
			return err
		},
	} {
		for i := range 10 {
			ctx, cancel := context.WithCancelCause(section)
			gone := time.AfterFunc(time.Duration(i)*50*time.Microsecond, func() { cancel(fmt.Errorf("the row has gone: %w", store.ErrGone)) })
			require.NotErrorIs(b.t, call(ctx), relock.ErrLockLost, name)
			require.NoError(b.t, section.Err(), name)
			gone.Stop()
			cancel(nil)
		}
	}
	require.True(b.t, l.Held(section))
	b.unlock(l, section)
}
