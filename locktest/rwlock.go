package locktest

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

func readersTogether(b *bench) {
	l, there := b.rwLocks()
	first, second := b.enter(b.ctx, l.RLocker()), b.enter(b.ctx, there.RLocker())
	third, err := l.TryRLock(b.ctx)
	require.NoError(b.t, err)
	b.requireHolders(l, first, second, third)
	b.requireBusy(l, there)
	c := b.wait(b.ctx, there.Lock)
	b.unlock(l, third, first)
	b.waits(c)
	b.requireHolders(l, second)
	b.unlock(there, second)
	writer := b.get(c)
	b.requireHolders(l, writer)
	for _, lock := range []locking{l.TryLock, l.TryRLock, there.TryLock, there.TryRLock, tryFor(l.RLocker(), brief)} {
		ctx, err := lock(b.ctx)
		b.requireRefused(err, l, b.holder(writer))
		require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
	}
	b.unlock(there, writer)
}

func readVerbs(b *bench) {
	l, there := b.rwLocks()
	require.Equal(b.t, l.Name(), l.RLocker().Name())
	beside := b.enter(b.ctx, there.RLocker())
	tryRFor := func(ctx context.Context) (context.Context, error) { return l.TryRLockFor(ctx, patience) }
	for i, lock := range []locking{l.RLock, l.TryRLock, tryRFor, l.RLocker().Lock, l.RLocker().TryLock, tryFor(l.RLocker(), 0)} {
		section, err := lock(b.ctx)
		require.NoError(b.t, err)
		require.Equal(b.t, 1, l.Count(section))
		require.True(b.t, l.Held(section))
		require.True(b.t, l.RLocker().Held(section))
		require.Greater(b.t, l.Remaining(section), long/2)
		b.requireHolders(l, section, beside)
		require.Equal(b.t, []event.Mode{event.ModeShared, event.ModeShared}, modes(b.state(l)))
		b.requireBusy(l, there)
		b.unlock([]relock.Locker{l, l.RLocker()}[i%2], section)
		require.Equal(b.t, relock.ErrReleased, context.Cause(section))
		b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
	}
	ran := 0
	run := func(ctx context.Context) error {
		ran++
		b.requireHolders(l, ctx, beside)
		return nil
	}
	require.NoError(b.t, l.RDo(b.ctx, run))
	require.NoError(b.t, l.RDoFor(b.ctx, 0, run))
	require.NoError(b.t, l.RDoFor(b.ctx, patience, run))
	require.NoError(b.t, relock.Do(b.ctx, l.RLocker(), run))
	require.Equal(b.t, 4, ran)
	b.unlock(there, beside)

	require.NoError(b.t, there.Do(b.ctx, func(writer context.Context) error {
		err := l.RDoFor(b.ctx, 0, run)
		b.requireRefused(err, l, b.holder(writer))
		require.ErrorIs(b.t, err, relock.ErrNotEntered)
		return nil
	}))
	b.requireKinds(last(l.TryRLockFor(b.ctx, -1)), relock.ErrInvalid)
	b.requireKinds(l.RDoFor(b.ctx, -1, run), relock.ErrInvalid)
	b.requireKinds(l.RDo(b.ctx, nil), relock.ErrInvalid)
	require.Equal(b.t, 4, ran)
}

func unlockNearest(b *bench) {
	type key struct{}
	l, there := b.rwLocks()
	for _, unlock := range []func(context.Context) error{l.Unlock, l.RLocker().Unlock} {
		reader := b.enter(b.ctx, l.RLocker())
		writer := b.enter(reader, l)
		inside := context.WithValue(writer, key{}, "inside")
		require.NoError(b.t, unlock(inside))
		require.Equal(b.t, relock.ErrReleased, context.Cause(writer))
		b.requireKinds(unlock(inside), relock.ErrNotHeld)
		b.requireKinds(unlock(writer), relock.ErrNotHeld)
		b.requireOpen(reader)
		b.requireHolders(l, reader)
		require.NoError(b.t, unlock(reader))

		writer = b.enter(b.ctx, l)
		reader = b.enter(writer, l.RLocker())
		require.NoError(b.t, unlock(reader))
		b.requireKinds(unlock(reader), relock.ErrNotHeld)
		b.requireOpen(writer)
		b.requireHolders(l, writer)
		require.NoError(b.t, unlock(writer))
		b.requireKinds(there.Unlock(writer), relock.ErrNotHeld)
	}
}

// nestModes enters in all orders of four modes. All reads of a chain are one hold, and so are all
// writes.
func nestModes(b *bench) {
	l, there := b.rwLocks()
	for order := range 16 {
		ctx := b.ctx
		var sections []context.Context
		counts := map[bool]int{}
		for i := range 4 {
			lock, read := relock.Locker(l), order>>i&1 == 0
			if read {
				lock = l.RLocker()
			}
			ctx = b.enter(ctx, lock)
			counts[read]++
			require.Equal(b.t, counts[read], l.Count(ctx), "order %b, entry %d", order, i)
			require.Len(b.t, b.state(there).Others, len(counts)-1)
			sections = append(sections, ctx)
		}
		require.Equal(b.t, b.holder(sections[0]), b.holder(ctx))
		b.requireOpen(sections...)
		b.requireBusy(there)
		if order%3 == 0 {
			slices.Reverse(sections)
		}
		for _, section := range sections {
			require.True(b.t, l.Held(section))
			b.unlock(l, section)
		}
		require.False(b.t, b.state(there).Locked())
	}
}

func upgradeWaits(b *bench) {
	l, there := b.rwLocks()
	reader := b.enter(b.ctx, l.RLocker())
	for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, 0), tryFor(l, patience)} { // of the only reader
		section, err := lock(reader)
		require.NoError(b.t, err)
		require.Equal(b.t, b.holder(reader), b.holder(section))
		b.unlock(l, section)
	}
	beside := b.enter(b.ctx, there.RLocker())
	b.requireRefused(last(l.TryLock(reader)), l, b.holder(beside))
	c := b.wait(reader, l.Lock)
	if b.promises(FIFO) {
		b.requireBusy(l.RLocker(), there.RLocker())
	}
	late := b.wait(b.ctx, there.RLock)
	b.waits(c)
	b.requireHolders(l, reader, beside)
	require.True(b.t, l.Held(reader))
	again := b.enter(beside, there.RLocker()) // a read goes on meanwhile
	b.unlock(there, again, beside)
	writer := b.get(c)
	b.requireHolders(l, reader, writer)
	b.waits(late)
	b.requireOpen(reader, writer)
	b.unlock(l, writer)
	b.unlock(there, b.get(late))
	b.requireHolders(l, reader)
	b.unlock(l, reader)
}

func upgradeDeadlock(b *bench) {
	l, there := b.rwLocks()
	reader, second, third := b.enter(b.ctx, l.RLocker()), b.enter(b.ctx, there.RLocker()), b.enter(b.ctx, l.RLocker())
	c := b.wait(reader, l.Lock)
	for _, late := range []struct {
		lock    *relock.RWLock
		section context.Context
	}{{there, second}, {l, third}} {
		for _, lock := range []locking{late.lock.Lock, tryFor(late.lock, long)} {
			refused := b.start(late.section, lock)
			b.requireKinds(b.fails(refused), store.ErrDeadlock)
			require.Equal(b.t, refused.err, context.Cause(refused.section))
		}
		err := late.lock.Do(late.section, nothing)
		b.requireKinds(err, store.ErrDeadlock)
		require.ErrorContains(b.t, err, l.Name())
		require.ErrorIs(b.t, err, relock.ErrNotEntered)
		require.Error(b.t, last(late.lock.TryLock(late.section)))
		b.waits(c)
		b.requireHolders(l, reader, second, third)
		require.True(b.t, late.lock.Held(late.section))
		b.unlock(late.lock, b.enter(late.section, late.lock.RLocker()))
	}
	b.unlock(l, third)
	b.waits(c)
	b.unlock(there, second)
	b.unlock(l, b.get(c))
	b.unlock(l, reader)
}

func upgradeEnds(b *bench) {
	l, there := b.rwLocks()
	reader, beside := b.enter(b.ctx, l.RLocker()), b.enter(b.ctx, there.RLocker())
	c := b.wait(reader, l.Lock)
	c.cancel(errMine)
	b.requireRefused(b.fails(c), l, b.holder(beside), context.Canceled, errMine)
	c = b.wait(reader, tryFor(l, brief))
	b.requireRefused(b.fails(c), l, b.holder(beside))
	b.requireOpen(reader)
	require.True(b.t, l.Held(reader))
	b.eventually("the upgrade makes way", func() bool {
		section, err := there.TryRLock(b.ctx)
		return err == nil && there.Unlock(section) == nil
	})

	c = b.wait(reader, l.Lock)
	b.unlock(l, reader)
	b.requireRefused(b.fails(c), l, b.holder(beside), context.Canceled, relock.ErrReleased)
	b.requireHolders(l, beside)
	b.unlock(there, beside)
}

// lostRead lets the fixed lease of a reader run out.
func lostRead(b *bench) {
	l, there := b.rwLocks()
	short := b.rwLock(b.one, "a", relock.WithFixedLease(b.h.TTL))
	reader := b.enter(b.ctx, short.RLocker())
	writer := b.enter(reader, l)
	cause := b.ends(writer)
	b.requireLost(cause, l, event.LossExpired)
	require.Equal(b.t, cause, b.ends(reader))
	b.requireBusy(there, there.RLocker()) // the hold of the writer was not lost
	b.unlock(l, writer)
	require.Equal(b.t, cause, l.Unlock(reader))
	b.unlock(there, b.enter(b.ctx, there))
}

func readerTokens(b *bench) {
	here, there := b.rwLocks()
	l, other := here.RLocker(), there.RLocker() // Token is of the nearest entry in any mode
	first, second := b.enter(b.ctx, l), b.enter(b.ctx, other)
	token := b.seen(l, first)
	require.Equal(b.t, token, b.seen(other, second), "no writer in between")
	b.unlock(l, first)
	b.unlock(other, second)

	require.NoError(b.t, there.Do(b.ctx, nothing)) // a writer that draws no token is a writer, too
	first = b.enter(b.ctx, l)
	drawn := b.seen(l, first)
	require.Greater(b.t, drawn, token)
	up := b.enter(first, here)
	token = b.token(l, up)
	require.Greater(b.t, token, drawn, "an upgrade draws a token")
	require.Equal(b.t, token, b.state(here).Token)
	require.Equal(b.t, drawn, b.seen(l, first), "a hold has one token")
	b.unlock(here, up)
	require.Equal(b.t, token, b.seen(l, first), "the reader reads what its upgrade has written")
	b.unlock(l, first)

	writer := b.enter(b.ctx, there)
	drawn = b.token(other, writer)
	require.Greater(b.t, drawn, token)
	second = b.enter(writer, other)
	require.Equal(b.t, drawn, b.seen(other, second))
	b.unlock(there, writer)
	require.Equal(b.t, drawn, b.seen(other, second))
	b.requireKinds(last(other.Token(writer)), relock.ErrNotHeld)
	first = b.enter(b.ctx, l)
	require.Equal(b.t, drawn, b.seen(l, first))
	b.unlock(other, second)
	b.unlock(l, first)
}
