package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

func readersTogether(b *bench) {
	b.begin(store.ReadWrite)
	first, second := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	third := b.get(b.start(b.st, b.reader()))
	b.requireIn(0, first, second, third)
	b.requireBusy(last(b.st.Try(b.ctx, b.writer())), first.ID, second.ID, third.ID)
	w := b.wait(b.other, b.writer())
	b.requireRefusal(w.first.Busy, first.ID, second.ID, third.ID)
	for i, l := range []store.Lease{second, first, third} {
		b.waits(w)
		b.requireIn(1, []store.Lease{second, first, third}[i:]...)
		b.release(l)
	}
	writer := b.get(w)
	b.requireIn(0, writer)
	b.requireBusy(last(b.st.Try(b.ctx, b.reader())), writer.ID)
	b.requireBusy(last(b.other.Try(b.ctx, b.writer())), writer.ID)
	b.release(writer)
}

func writerWaits(b *bench) {
	b.begin(store.ReadWrite)
	early := b.take(b.st, b.reader())
	line := b.queue(b.writer(), b.reader())
	b.requireIn(2, early)
	b.release(early)
	writer := b.get(line[0])
	b.waits(line[1])
	b.requireIn(1, writer)
	b.release(writer)
	b.release(b.get(line[1]))
}

func readersBatch(b *bench) {
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.writer())
	line := b.queue(b.reader(), b.reader(), b.reader(), b.writer(), b.reader())
	b.requireIn(5, l)
	b.release(l)
	first, second, third := b.get(line[0]), b.get(line[1]), b.get(line[2])
	b.requireIn(2, first, second, third)
	b.release(second)
	b.release(first)
	b.waits(line[3])
	b.requireIn(2, third)
	b.release(third)
	l = b.get(line[3])
	b.requireIn(1, l)
	b.release(l)
	b.release(b.get(line[4]))
}

func readerInside(b *bench) {
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.writer())
	line := b.queue(b.writer(), b.reader())
	for _, r := range []store.Lease{b.take(b.st, inside(b.reader(), l)), b.get(b.start(b.st, inside(b.reader(), l)))} {
		require.Contains(b.t, b.held(), r.ID)
		b.release(r)
	}
	b.requireIn(2, l)
	b.release(l)
	b.release(b.get(line[0]))
	b.release(b.get(line[1]))
}

func downgrade(b *bench) {
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.writer())
	line := b.queue(b.reader(), b.writer(), b.reader())
	r := b.take(b.st, inside(b.reader(), l))
	b.requireIn(3, l, r)
	b.release(l)
	beside := b.get(line[0])
	b.waits(line[1])
	b.requireIn(2, r, beside)
	require.NoError(b.t, last(b.st.Enter(b.ctx, r, 1)))
	b.release(r)
	b.waits(line[1])
	b.release(beside)
	b.release(b.get(line[1]))
	b.release(b.get(line[2]))
}

func readerExpires(b *bench) {
	b.begin(store.ReadWrite)
	brief, other := b.take(b.st, b.short(b.reader())), b.take(b.other, b.reader())
	w := b.wait(b.st, b.writer())
	b.eventually("the short lease ends", func() bool { return len(b.held()) == 1 })
	require.False(b.t, time.Now().Before(brief.Until()), "the lease ends before Lease.Until")
	b.requireIn(1, other)
	b.refused(brief)
	b.waits(w)
	require.NoError(b.t, last(b.other.Enter(b.ctx, other, 1)))
	b.release(other)
	b.release(b.get(w))

	brief = b.take(b.st, b.short(b.reader()))
	w = b.wait(b.other, b.writer())
	b.release(b.get(w))
	require.False(b.t, w.at.Before(brief.Until()), "the writer is in before the end of the lease")
}

func headGivesUp(b *bench) {
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.reader())
	line := b.queue(b.writer(), b.reader(), b.reader(), b.writer())
	b.end(line[0])
	first, second := b.get(line[1]), b.get(line[2])
	b.waits(line[3])
	b.requireIn(1, l, first, second)
	for _, r := range []store.Lease{l, first, second} {
		b.waits(line[3])
		b.release(r)
	}
	b.release(b.get(line[3]))
}

// writerTokens draws tokens around readers. The token of a reader is not smaller than that of a
// writer before the reader, and smaller than that of a writer behind the reader.
func writerTokens(b *bench) {
	b.begin(store.ReadWrite)
	var newest int64
	for range 3 {
		l := b.take(b.st, b.writer())
		w := b.wait(b.other, b.reader())
		token := b.token(l)
		require.Greater(b.t, token, newest, "a writer draws a larger token")
		newest = b.token(l)
		inner := b.take(b.st, inside(b.reader(), l))
		b.release(l)
		reader := b.get(w)
		for _, r := range []store.Lease{inner, reader} {
			require.GreaterOrEqual(b.t, b.token(r), token, "a reader behind a writer")
			newest = max(newest, b.token(r))
		}
		b.release(inner)
		up := b.take(b.other, inside(b.writer(), reader))
		token = b.token(up)
		require.Greater(b.t, token, newest, "an upgrade draws a larger token")
		newest = b.token(up)
		next := b.wait(b.st, b.writer())
		b.release(up)
		up = b.take(b.other, inside(b.writer(), reader)) // overtakes the writer
		token = b.token(up)
		require.Greater(b.t, token, newest, "a second upgrade draws a larger token")
		b.release(up)
		require.GreaterOrEqual(b.t, b.token(reader), token, "a reader around an upgrade that has ended")
		newest = max(token, b.token(reader))
		b.release(reader)
		l = b.get(next)
		token = b.token(l)
		require.Greater(b.t, token, newest, "a writer that has waited draws a larger token")
		newest = b.token(l)
		b.release(l)
	}
}

func readerTokens(b *bench) {
	b.begin(store.ReadWrite)
	first, second := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	token := b.token(first)
	require.Positive(b.t, token)
	require.Equal(b.t, token, b.token(second), "two readers with no writer in between")
	b.release(second)
	b.release(first)
	for i := range 4 {
		w := b.take(b.st, b.writer())
		if i%2 == 0 { // a writer that draws no token is a writer, too
			drawn := b.token(w)
			require.Greater(b.t, drawn, token, "a writer draws a larger token")
			require.GreaterOrEqual(b.t, b.token(w), drawn)
		}
		r := b.take(b.st, inside(b.reader(), w))
		drawn := b.token(r)
		require.Greater(b.t, drawn, token, "a reader behind a writer has a larger token")
		token = drawn
		b.release(w)
		second = b.take(b.other, b.reader())
		require.Equal(b.t, token, b.token(second))
		b.release(r)
		b.release(second)
		first = b.take(b.st, b.reader())
		require.Equal(b.t, token, b.token(first))
		require.Equal(b.t, token, b.look().Token)
		next := b.wait(b.other, b.writer())
		b.release(first)
		l := b.get(next)
		b.requireGone(last(b.st.Token(b.ctx, first)))
		drawn = b.token(l)
		require.Greater(b.t, drawn, token, "a writer that has waited draws a larger token")
		token = b.token(l)
		b.release(l)
	}
}
