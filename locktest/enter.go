package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

var enterTests = []test{
	{name: "Lock enters a free lock and Unlock frees it", run: enterFree, short: true},
	{name: "TryLock and TryLockFor enter as Lock does", run: enterTry},
	{name: "TryLock of a busy lock is refused at once", run: refuseTry},
	{name: "TryLockFor is refused when its wait is over", run: refuseTryFor},
	{name: "Lock is refused when its context ends", run: refuseContext},
	{name: "A call whose context is done does not ask", run: refuseDone},
	{name: "Unlock outside of the section is ErrNotHeld", run: unlockOutside},
	{name: "A second Unlock changes nothing", run: unlockTwice},
	{name: "Many Unlocks of an entry leave it once", run: unlockMany},
	{name: "Unlock works with derived and done contexts", run: unlockDerived},
	{name: "Locks of different names do not meet", run: namesApart},
	{name: "Two Locks of one name are one lock", run: namesSame},
	{name: "A section has what its caller's context has", run: sectionValues},
	{name: "The cause of a section's end", run: sectionCauses},
}

func enterFree(b *bench) {
	l, observer := b.locks()
	require.Equal(b.t, b.name("a"), l.Name())
	require.False(b.t, b.state(observer).Locked())

	section := b.enter(b.ctx, l)
	require.NoError(b.t, section.Err())
	b.requireCount(l, section, 1)
	require.Greater(b.t, l.Remaining(section), long/2)
	require.LessOrEqual(b.t, l.Remaining(section), long)
	state := b.state(observer)
	b.requireOwner(observer, b.holder(section))
	require.Contains(b.t, b.holder(section).String(), b.one.ID())
	require.Greater(b.t, state.TTL, long/2)
	require.LessOrEqual(b.t, state.TTL, long)
	require.Zero(b.t, state.Waiters)
	b.requireBusy(l, observer)

	b.unlock(l, section)
	require.False(b.t, l.Held(section))
	require.Zero(b.t, l.Count(section))
	require.Zero(b.t, l.Remaining(section))
	_, inside := relock.HolderFrom(section)
	require.False(b.t, inside)
	state = b.state(observer)
	require.False(b.t, state.Locked())
	require.Zero(b.t, state.Count)
	require.Zero(b.t, state.TTL)
}

func enterTry(b *bench) {
	l, there := b.locks()
	for _, ctx := range []context.Context{b.ctx, context.WithoutCancel(b.ctx)} {
		for _, lock := range []locking{l.TryLock, tryFor(l, patience), tryFor(l, 0), l.Lock} {
			section, err := lock(ctx)
			require.NoError(b.t, err)
			_, limited := section.Deadline()
			require.False(b.t, limited, "the wait is no limit to the section")
			b.requireCount(l, section, 1)
			b.requireBusy(l, there)
			b.unlock(l, section)
		}
	}
}

func refuseTry(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	for _, lock := range []locking{l.TryLock, there.TryLock, tryFor(there, 0)} {
		ctx, err := lock(b.ctx)
		require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
		b.requireRefused(err, l, b.holder(section))
	}
	b.requireCount(l, section, 1)
	b.unlock(l, section)
}

func refuseTryFor(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	for _, impatient := range []*relock.Lock{l, there} {
		begun := time.Now()
		err := last(impatient.TryLockFor(b.ctx, brief))
		b.requireRefused(err, l, b.holder(section))
		var refusal *relock.LockedError
		require.ErrorAs(b.t, err, &refusal)
		if b.promises(Names) {
			require.Equal(b.t, impatient == l, refusal.Local)
		}
		require.GreaterOrEqual(b.t, time.Since(begun), brief)
		b.eventually("the place is taken back", func() bool { return b.state(l).Waiters == 0 })
	}
	b.unlock(l, section)
}

func refuseContext(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	for _, lock := range []locking{there.Lock, tryFor(there, long)} {
		c := b.wait(b.ctx, lock)
		c.cancel(errMine)
		begun := time.Now()
		b.requireRefused(b.fails(c), l, b.holder(section), context.Canceled, errMine)
		require.Less(b.t, c.at.Sub(begun), prompt)

		ctx, cancel := context.WithTimeout(b.ctx, brief)
		c = b.wait(ctx, lock)
		b.requireRefused(b.fails(c), l, b.holder(section), context.DeadlineExceeded)
		require.Error(b.t, c.section.Err(), "the context has ended")
		cancel()
	}
	b.unlock(l, section)
}

func refuseDone(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	done, cancel := context.WithCancelCause(b.ctx)
	cancel(errMine)
	late, stop := context.WithDeadline(b.ctx, time.Now())
	defer stop()
	for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, long)} {
		ctx, err := lock(done)
		require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
		b.requireKinds(err, context.Canceled)
		require.ErrorIs(b.t, err, errMine)
		b.requireKinds(last(lock(late)), context.DeadlineExceeded)
	}
	b.unlock(l, section)
}

func unlockOutside(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	for name, ctx := range map[string]context.Context{
		"no section": b.ctx, "WithoutHolder": relock.WithoutHolder(section), "WithSection of none": relock.WithSection(section, b.ctx),
	} {
		err := l.Unlock(ctx)
		b.requireKinds(err, relock.ErrNotHeld)
		require.ErrorContains(b.t, err, l.Name(), name)
		require.False(b.t, l.Held(ctx), name)
		require.Zero(b.t, l.Count(ctx), name)
		require.Zero(b.t, l.Remaining(ctx), name)
	}
	b.requireKinds(b.lock(b.one, "b").Unlock(section), relock.ErrNotHeld)
	b.requireKinds(there.Unlock(section), relock.ErrNotHeld)
	b.requireCount(l, section, 1)
	b.unlock(l, section)
}

func unlockTwice(b *bench) {
	l, _ := b.locks()
	outer := b.enter(b.ctx, l)
	inner := b.enter(outer, l)
	b.unlock(l, inner)
	for range 3 {
		b.requireKinds(l.Unlock(inner), relock.ErrNotHeld)
	}
	require.False(b.t, l.Held(inner))
	require.NoError(b.t, outer.Err())
	b.requireCount(l, outer, 1)
	b.unlock(l, outer)
	b.requireKinds(l.Unlock(outer), relock.ErrNotHeld)

	next := b.enter(b.ctx, l)
	b.requireKinds(l.Unlock(outer), relock.ErrNotHeld)
	b.requireCount(l, next, 1)
	b.unlock(l, next)
}

func unlockMany(b *bench) {
	l, _ := b.locks()
	outer := b.enter(b.ctx, l)
	inner := b.enter(outer, l)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = l.Unlock(inner) })
	}
	wg.Wait()
	left := 0
	for _, err := range errs {
		if err == nil {
			left++
			continue
		}
		b.requireKinds(err, relock.ErrNotHeld)
	}
	require.Equal(b.t, 1, left)
	b.requireCount(l, outer, 1)
	b.unlock(l, outer)
}

func unlockDerived(b *bench) {
	l, there := b.locks()
	request, cancel := context.WithCancel(b.ctx)
	section := b.enter(request, l)
	derived, stop := context.WithTimeout(section, long)
	defer stop()
	cancel()
	require.ErrorIs(b.t, derived.Err(), context.Canceled)
	b.unlock(l, derived)
	b.unlock(there, b.enter(b.ctx, there))
}

func namesApart(b *bench) {
	names := []string{"a", "b"}
	if b.promises(AnyName) {
		names = append(names, "a:b", "A")
	}
	for _, name := range names {
		l := b.lock(b.one, name)
		section, err := l.TryLock(b.ctx)
		require.NoError(b.t, err, name)
		defer b.unlock(l, section)
	}
}

func namesSame(b *bench) {
	l, twin := b.lock(b.one, "a"), b.lock(b.one, "a")
	section := b.enter(b.ctx, l)
	require.True(b.t, twin.Held(section))
	b.requireBusy(twin)
	inner := b.enter(section, twin)
	b.requireCount(l, inner, 2)
	b.unlock(l, inner)
	b.unlock(twin, section)
}

func sectionValues(b *bench) {
	type key struct{}
	l, _ := b.locks()
	request, cancel := context.WithTimeout(context.WithValue(b.ctx, key{}, "trace"), long)
	defer cancel()
	section := b.enter(request, l)
	inner := b.enter(section, l)
	want, _ := request.Deadline()
	for _, ctx := range []context.Context{section, inner} {
		require.Equal(b.t, "trace", ctx.Value(key{}))
		deadline, ok := ctx.Deadline()
		require.True(b.t, ok)
		require.Equal(b.t, want, deadline)
	}
	b.unlock(l, inner, section)
}

func sectionCauses(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	require.NoError(b.t, context.Cause(section))
	b.unlock(l, section)
	require.ErrorIs(b.t, section.Err(), context.Canceled)
	require.Equal(b.t, relock.ErrReleased, context.Cause(section))

	cause := errors.New("the caller hangs up")
	request, hangUp := context.WithCancelCause(b.ctx)
	section = b.enter(request, l)
	hangUp(cause)
	require.Equal(b.t, cause, context.Cause(section))
	b.unlock(l, section)
	require.Equal(b.t, cause, context.Cause(section), "the first cause stays")

	limited, cancel := context.WithTimeout(b.ctx, brief)
	defer cancel()
	section, err := l.TryLock(limited)
	require.NoError(b.t, err)
	require.Equal(b.t, context.DeadlineExceeded, b.ends(section))
	b.unlock(l, section)
}
