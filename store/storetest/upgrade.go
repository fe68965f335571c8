package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

func upgradeAlone(b *bench) {
	b.begin(store.ReadWrite)
	r := b.take(b.st, b.reader())
	b.release(b.take(b.st, inside(b.writer(), r)))
	b.requireIn(0, r)
	line := b.queue(b.writer(), b.reader())
	up := b.take(b.st, inside(b.writer(), r))
	b.requireIn(2, r, up)
	b.release(up)
	up = b.get(b.start(b.st, inside(b.writer(), r)))
	b.requireIn(2, r, up)
	b.release(up)
	b.waits(line[0])
	b.requireIn(2, r)
	b.release(r)
	b.release(b.get(line[0]))
	b.release(b.get(line[1]))
}

func upgradeWaits(b *bench) {
	b.begin(store.ReadWrite)
	r, beside := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	line := b.queue(b.writer(), b.reader())
	b.requireBusy(last(b.st.Try(b.ctx, inside(b.writer(), r))), beside.ID)
	w := b.wait(b.st, inside(b.writer(), r))
	require.NoError(b.t, last(b.st.Enter(b.ctx, r, 1)), "the upgrade keeps its read")
	b.requireIn(3, r, beside)
	b.release(beside)
	up := b.get(w)
	b.requireIn(2, r, up)
	b.release(up)
	b.waits(line[0])
	b.requireIn(2, r)
	b.release(r)
	b.release(b.get(line[0]))
	b.release(b.get(line[1]))
}

func upgradeKeepsOut(b *bench) {
	b.begin(store.ReadWrite)
	r, beside := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	w := b.wait(b.st, inside(b.writer(), r))
	if b.promises(FIFO) {
		b.requireBusy(last(b.other.Try(b.ctx, b.reader())), r.ID, beside.ID)
	}
	late := b.wait(b.other, b.reader())
	b.requireIn(2, r, beside)
	b.release(beside)
	up := b.get(w)
	b.waits(late)
	b.requireIn(1, r, up)
	b.release(up)
	reader := b.get(late)
	b.requireIn(0, r, reader)
	b.release(reader)
	b.release(r)
}

// upgradeDeadlock refuses an upgrade beside an upgrade that waits. Try does not wait, so a refusal
// will do.
func upgradeDeadlock(b *bench) {
	b.begin(store.ReadWrite)
	r, second, third := b.take(b.st, b.reader()), b.take(b.other, b.reader()), b.take(b.other, b.reader())
	w := b.wait(b.st, inside(b.writer(), r))
	for _, around := range []store.Lease{second, third, second} {
		late := b.start(b.other, inside(b.writer(), around))
		b.happens("the second upgrade is refused", late.done)
		require.ErrorIs(b.t, late.err, store.ErrDeadlock)
		require.NotErrorIs(b.t, late.err, store.ErrUnsure)
		require.Error(b.t, last(b.other.Try(b.ctx, inside(b.writer(), around))))
		b.waits(w)
		b.requireIn(1, r, second, third)
		b.requireTTL(long/2, long)
	}
	b.release(third)
	b.waits(w)
	b.release(second)
	up := b.get(w)
	b.requireIn(0, r, up)
	b.release(up)

	second = b.take(b.other, b.reader())
	w = b.wait(b.other, inside(b.writer(), second))
	b.release(r)
	b.release(b.get(w))
	b.release(second)
}

func upgradeTwice(b *bench) {
	b.begin(store.ReadWrite)
	r, beside := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	line := []*waiter{b.wait(b.st, inside(b.writer(), r)), b.wait(b.st, inside(b.writer(), r))}
	b.requireIn(2, r, beside)
	b.release(beside)
	for i := range line { // in either order
		var up store.Lease
		select {
		case <-line[0].done:
			up = b.get(line[0])
		case <-line[1].done:
			up = b.get(line[1])
		case <-time.After(patience):
			require.FailNow(b.t, "does not happen: an upgrade enters")
		}
		b.requireIn(1-i, r, up)
		b.release(up)
		if line[0].claim.ID == up.ID {
			line[0] = line[1]
		}
		line[1] = line[0]
	}
	b.release(r)
}

func upgradeGivesUp(b *bench) {
	b.begin(store.ReadWrite)
	r, second := b.take(b.st, b.reader()), b.take(b.other, b.reader())
	w := b.wait(b.st, inside(b.writer(), r))
	reader := b.wait(b.other, b.reader())
	b.requireIn(2, r, second)
	b.end(w)
	third := b.get(reader)
	b.requireIn(0, r, second, third)
	b.release(third)

	w = b.wait(b.other, inside(b.writer(), second)) // no deadlock any more
	b.release(r)
	b.release(b.get(w))
	b.release(second)
}

func upgradeTokens(b *bench) {
	b.begin(store.ReadWrite)
	r := b.take(b.st, b.reader())
	token := b.token(r)
	for range 3 {
		up := b.take(b.st, inside(b.writer(), r))
		drawn := b.token(up)
		require.Greater(b.t, drawn, token, "an upgrade draws a larger token")
		token = b.token(up)
		b.release(up)
		beside := b.take(b.other, b.reader())
		require.Equal(b.t, token, b.token(beside))
		require.Equal(b.t, token, b.token(r))
		w := b.wait(b.st, inside(b.writer(), r))
		b.release(beside)
		up = b.get(w)
		b.release(up)
		drawn = b.token(r)
		require.Greater(b.t, drawn, token, "an upgrade that has waited draws a larger token")
		token = drawn
	}
	b.release(r)
}
