package locktest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

func downgrade(b *bench) {
	l, there := b.rwLocks()
	writer := b.enter(b.ctx, l)
	reader := b.enter(writer, l.RLocker())
	require.Equal(b.t, b.holder(writer), b.holder(reader))
	b.requireHolders(l, writer, reader)
	late := b.wait(b.ctx, there.RLock)
	b.unlock(l, writer)
	require.Equal(b.t, relock.ErrReleased, context.Cause(writer))
	beside := b.get(late)
	b.requireHolders(l, reader, beside)
	b.requireBusy(l, there)
	b.requireOpen(reader)
	require.True(b.t, l.Held(reader))
	require.Equal(b.t, 1, l.Count(reader))
	b.requireKinds(l.Unlock(writer), relock.ErrNotHeld)

	again := b.enter(reader, l.RLocker())
	require.Equal(b.t, 2, l.Count(again))
	b.unlock(l, again)
	b.unlock(there, beside)
	up := b.enter(reader, l) // the reader is the only one, and writes again
	b.requireOpen(reader, up)
	b.unlock(l, up)
	b.unlock(l, reader)
	require.Equal(b.t, relock.ErrReleased, context.Cause(reader))
}

// downgradeTwice leaves two writes around a read, in each order.
func downgradeTwice(b *bench) {
	l, there := b.rwLocks()
	for inner := range 2 {
		writers := []context.Context{b.enter(b.ctx, l)}
		writers = append(writers, b.enter(writers[0], l))
		request, hangUp := context.WithCancelCause(writers[1])
		reader := b.enter(request, l.RLocker())
		b.unlock(l, writers[inner])
		b.requireOpen(reader)
		b.requireBusy(there, there.RLocker())
		b.unlock(l, writers[1-inner])
		b.requireOpen(reader)
		b.unlock(there, b.enter(b.ctx, there.RLocker()))
		b.unlock(l, reader)
		hangUp(nil)
	}
	outer := b.enter(b.ctx, l.RLocker())
	writer := b.enter(outer, l)
	reader := b.enter(writer, l.RLocker())
	require.Equal(b.t, 2, l.Count(reader))
	b.unlock(l, writer)
	b.requireOpen(outer, reader)
	b.unlock(l, reader, outer)
}

func downgradeEnds(b *bench) {
	type key struct{}
	l, _ := b.rwLocks()
	for _, downgraded := range []bool{false, true} {
		limited, cancel := context.WithTimeout(context.WithValue(b.ctx, key{}, "trace"), long)
		request, hangUp := context.WithCancelCause(limited)
		writer := b.enter(request, l)
		reader := b.enter(writer, l.RLocker())
		want, _ := limited.Deadline()
		deadline, _ := reader.Deadline()
		require.Equal(b.t, want, deadline)
		require.Equal(b.t, "trace", reader.Value(key{}))
		if downgraded {
			b.unlock(l, writer)
			b.requireOpen(reader)
		}
		hangUp(errMine)
		require.Equal(b.t, errMine, b.ends(reader))
		require.ErrorIs(b.t, reader.Err(), context.Canceled)
		b.unlock(l, reader)
		if !downgraded {
			b.unlock(l, writer)
		}
		cancel()
	}

	writer := b.enter(b.ctx, l)
	inside, hangUp := context.WithCancelCause(writer)
	reader := b.enter(inside, l.RLocker())
	hangUp(errMine)
	require.Equal(b.t, errMine, b.ends(reader))
	b.requireOpen(writer)
	b.unlock(l, reader, writer)

	writer = b.enter(b.ctx, l)
	limited, cancel := context.WithTimeout(writer, b.h.TTL)
	defer cancel()
	reader = b.enter(limited, l.RLocker())
	b.unlock(l, writer)
	require.ErrorIs(b.t, b.ends(reader), context.DeadlineExceeded, "the caller's deadline stays")
	b.unlock(l, reader)
}

// lostWrite lets the fixed lease of a writer run out.
func lostWrite(b *bench) {
	l, there := b.rwLocks()
	short := b.rwLock(b.one, "a", relock.WithFixedLease(b.h.TTL))
	writer := b.enter(b.ctx, short)
	reader := b.enter(writer, l.RLocker())
	late := b.wait(b.ctx, there.RLock)
	cause := b.ends(reader)
	b.requireLost(cause, l, event.LossExpired)
	require.Equal(b.t, cause, context.Cause(writer))
	b.unlock(there, b.get(late))
	b.requireBusy(there) // the hold of the reader was not lost
	b.unlock(l, reader)
	require.Equal(b.t, cause, l.Unlock(writer))
}

func downgradeThrough(b *bench) {
	l, there := b.rwLocks()
	other := b.lock(b.one, "b", relock.WithTTL(b.h.TTL))
	writer := b.enter(b.ctx, l)
	between := b.enter(writer, other)
	reader := b.enter(between, l.RLocker())
	b.unlock(l, writer)
	require.Equal(b.t, relock.ErrReleased, b.ends(between))
	b.requireOpen(reader)
	b.unlock(other, between)
	b.unlock(there, b.enter(b.ctx, there.RLocker()))
	b.requireOpen(reader)
	b.unlock(l, reader)

	writer = b.enter(b.ctx, l)
	between = b.enter(writer, other)
	reader = b.enter(between, l.RLocker())
	b.unlock(other, between)
	require.Equal(b.t, relock.ErrReleased, b.ends(reader), "the section around the reader is left")
	b.requireOpen(writer)
	b.unlock(l, reader, writer)

	writer = b.enter(b.ctx, l)
	between = b.enter(writer, other)
	reader = b.enter(between, l.RLocker())
	require.NoError(b.t, b.lock(b.other, "b").ForceUnlock(b.ctx))
	b.requireLost(b.ends(reader), other, event.LossTaken)
	b.requireOpen(writer)
	b.unlock(l, reader, writer)
	b.requireLost(other.Unlock(between), other, event.LossTaken)
}
