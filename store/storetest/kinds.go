package storetest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// kindTests are the promises of read-write locks and semaphores. One queue serves all claims of a
// name, so a store without FIFO does not run the subtests of the queue.
var kindTests = []test{
	{name: "Readers enter together and a writer excludes", run: readersTogether, needs: Kinds},
	{name: "A writer waits for earlier readers only", run: writerWaits, needs: Kinds, also: FIFO},
	{name: "Readers behind a writer enter together", run: readersBatch, needs: Kinds, also: FIFO},
	{name: "The only reader upgrades at once", run: upgradeAlone, needs: Kinds, also: FIFO},
	{name: "An upgrade waits before the queue", run: upgradeWaits, needs: Kinds, also: FIFO},
	{name: "An upgrade keeps new readers out", run: upgradeKeepsOut, needs: Kinds},
	{name: "A second upgrade is a deadlock", run: upgradeDeadlock, needs: Kinds},
	{name: "Two upgrades of one reader wait both", run: upgradeTwice, needs: Kinds},
	{name: "An upgrade that gives up makes way", run: upgradeGivesUp, needs: Kinds},
	{name: "A reader inside a writer enters at once", run: readerInside, needs: Kinds, also: FIFO},
	{name: "A released writer leaves its reader in", run: downgrade, needs: Kinds, also: FIFO},
	{name: "A reader's lease ends alone", run: readerExpires, needs: Kinds},
	{name: "A head that gives up makes way", run: headGivesUp, needs: Kinds, also: FIFO},
	{name: "A forgotten head makes way", run: headForgotten, needs: Kinds, also: FIFO, halts: true},
	{name: "A semaphore lets n in", run: permits, needs: Semaphores, also: FIFO},
	{name: "A permit's lease ends alone", run: permitExpires, needs: Semaphores, also: FIFO},
	{name: "The smallest limit counts", run: smallestLimit, needs: Semaphores},
	{name: "Try takes nothing that a waiter waits for", run: kindsOvertake, needs: Kinds, also: FIFO},
	{name: "Commands of one of several readers", run: readerCommands, needs: Kinds},
	{name: "Commands of one of several permits", run: permitCommands, needs: Semaphores},
	{name: "Look shows all holds by the ends of their leases", run: lookOthers, needs: Semaphores},
	{name: "Look shows the writer and the reader inside", run: lookInside, needs: Kinds},
	{name: "Tokens grow with every writer", run: writerTokens, needs: Kinds, also: Tokens},
	{name: "Readers have the token of the last writer", run: readerTokens, needs: ReaderTokens, also: Tokens},
	{name: "Upgrades draw tokens", run: upgradeTokens, needs: ReaderTokens, also: Tokens},
	{name: "Permits draw tokens", run: permitTokens, needs: Semaphores, also: Tokens},
	{name: "A name is one kind of lock at a time", run: oneKind, needs: Kinds},
	{name: "Many readers, writers and upgrades at once", run: stressReadWrite, needs: Kinds},
	{name: "Many permits at once", run: stressPermits, needs: Semaphores},
}

// of returns a claim of a kind with a limit, for the name of the subtest.
func (b *bench) of(kind store.Kind, limit int) store.Claim {
	a := b.claim(long)
	a.Kind, a.Limit = kind, limit
	return a
}

func (b *bench) exclusive() store.Claim   { return b.of(store.Mutex, 1) }
func (b *bench) reader() store.Claim      { return b.of(store.ReadWrite, store.Unlimited) }
func (b *bench) writer() store.Claim      { return b.of(store.ReadWrite, 1) }
func (b *bench) permit(n int) store.Claim { return b.of(store.Semaphore, n) }

// inside returns a claim of the client of a hold, inside that hold.
func inside(a store.Claim, around store.Lease) store.Claim {
	a.ID, a.With = newID(client(around.ID)), around.ID
	return a
}

// short returns a claim with a lease that ends during the subtest.
func (b *bench) short(a store.Claim) store.Claim {
	a.TTL = b.h.TTL
	return a
}

// held returns the IDs of all holds in the lock. The lease of each one ends no earlier than the
// lease of the one before, but Look may read the clock more than once.
func (b *bench) held() (ids []store.ID) {
	state := b.look()
	if state.Owner != "" {
		ids = append(ids, state.Owner)
	}
	before := state.TTL
	for _, other := range state.Others {
		require.GreaterOrEqual(b.t, other.TTL+time.Second, before, "Look does not sort by the end of the lease")
		ids, before = append(ids, other.ID), other.TTL
	}
	return ids
}

// requireIn fails unless exactly these holds are in, and so many wait.
func (b *bench) requireIn(waiters int, in ...store.Lease) {
	var want []store.ID
	for _, l := range in {
		want = append(want, l.ID)
	}
	require.ElementsMatch(b.t, want, b.held())
	if b.promises(FIFO) {
		require.Equal(b.t, waiters, b.look().Waiters)
	}
}

// queue makes waiters one after another.
func (b *bench) queue(claims ...store.Claim) (line []*waiter) {
	for i, a := range claims {
		line = append(line, b.wait([]store.Store{b.other, b.st}[i%2], a))
	}
	for _, w := range line {
		b.waits(w)
	}
	return line
}

// shared are asks of one kind, of which one enters alone.
type shared struct{ together, alone func() store.Claim }

// shared returns the claims of all promised kinds that let several in.
func (b *bench) shared() []shared {
	kinds := []shared{{b.reader, b.writer}}
	if b.promises(Semaphores) {
		kinds = append(kinds, shared{func() store.Claim { return b.permit(2) }, func() store.Claim { return b.permit(1) }})
	}
	return kinds
}

// headForgotten leaves a waiter at the head of the queue, if an interruption can do that, and
// forgets the waiter.
func headForgotten(b *bench) {
	for _, c := range b.shared() {
		b.begin(c.alone().Kind)
		l := b.take(b.st, c.together())
		line := b.queue(c.alone(), c.together())
		restore := func() {}
		if b.server.Interrupt != nil {
			restore = b.interrupt()
		}
		line[0].cancel()
		b.promptly(func() { <-line[0].done })
		restore()
		b.left[line[0].claim.ID] = line[0].claim
		b.eventually("Forget is confirmed", b.forgotten)
		next := b.get(line[1])
		b.requireIn(0, l, next)
		b.release(l)
		b.release(next)
	}
}

func permits(b *bench) {
	b.begin(store.Semaphore)
	in := []store.Lease{b.take(b.st, b.permit(3)), b.take(b.other, b.permit(3)), b.take(b.st, b.permit(3))}
	b.requireBusy(last(b.other.Try(b.ctx, b.permit(3))), in[0].ID, in[1].ID, in[2].ID)
	line := b.queue(b.permit(3), b.permit(3), b.permit(3), b.permit(3))
	b.requireIn(4, in...)
	for i, w := range line {
		b.waits(w)
		b.release(in[1])
		in[1] = b.get(w)
		b.requireIn(len(line)-1-i, in...)
	}
	for _, l := range in {
		b.release(l)
	}
}

func permitExpires(b *bench) {
	b.begin(store.Semaphore)
	brief, other := b.take(b.st, b.short(b.permit(2))), b.take(b.other, b.permit(2))
	line := b.queue(b.permit(2), b.permit(2))
	next := b.get(line[0])
	require.False(b.t, line[0].at.Before(brief.Until()), "another hold has the permit before Lease.Until")
	b.refused(brief)
	b.waits(line[1])
	b.requireIn(1, other, next)
	b.release(next)
	b.release(b.get(line[1]))
	b.release(other)
}

func smallestLimit(b *bench) {
	b.begin(store.Semaphore)
	small, large := b.take(b.st, b.permit(2)), b.take(b.other, b.permit(4))
	b.requireBusy(last(b.st.Try(b.ctx, b.permit(4))), small.ID, large.ID)
	w := b.wait(b.other, b.permit(4))
	b.requireIn(1, small, large)
	b.release(small)
	in := []store.Lease{large, b.get(w), b.take(b.st, b.permit(4))}
	b.requireBusy(last(b.st.Try(b.ctx, b.permit(2))), in[0].ID, in[1].ID, in[2].ID)
	b.requireBusy(last(b.st.Try(b.ctx, b.permit(3))), in[0].ID, in[1].ID, in[2].ID)
	in = append(in, b.take(b.other, b.permit(5)))
	b.requireBusy(last(b.st.Try(b.ctx, b.permit(5))), in[0].ID, in[1].ID, in[2].ID, in[3].ID)
	b.requireIn(0, in...)
	for _, l := range in {
		b.release(l)
	}
}

// kindsOvertake tries to overtake a waiter that does not fit yet, and one that is let in meanwhile.
func kindsOvertake(b *bench) {
	for _, c := range b.shared() {
		b.begin(c.alone().Kind)
		l := b.take(b.st, c.together())
		w := b.wait(b.other, c.alone())
		released := make(chan error, 1)
		b.requireBusy(last(b.st.Try(b.ctx, c.together())), l.ID)
		go func() { released <- b.st.Release(b.ctx, l) }()
		for range 50 {
			require.Error(b.t, last(b.st.Try(b.ctx, c.together())), "Try takes a lock for which another hold waits")
		}
		require.NoError(b.t, <-released)
		b.release(b.get(w))
	}
}

func readerCommands(b *bench) {
	b.begin(store.ReadWrite)
	b.commands(b.reader)
}

func permitCommands(b *bench) {
	b.begin(store.Semaphore)
	b.commands(func() store.Claim { return b.permit(5) })
}

// commands runs each command on one of three holds, twice.
func (b *bench) commands(claim func() store.Claim) {
	first, second, third := b.take(b.st, claim()), b.take(b.other, claim()), b.take(b.st, claim())
	for range 2 {
		again, err := b.other.Try(b.ctx, second.Claim)
		require.NoError(b.t, err)
		require.Equal(b.t, second.ID, again.ID)
		waited, err := b.other.Wait(b.ctx, second.Claim, func(store.Progress) {})
		require.NoError(b.t, err)
		require.Equal(b.t, second.ID, waited.ID)
		longer := second
		longer.TTL = 3 * long
		require.NoError(b.t, last(b.other.Enter(b.ctx, longer, 2)))
		b.requireIn(0, first, second, third)
		require.Equal(b.t, second.ID, b.held()[2], "the lease of the hold is the longest one")
		b.requireTTL(long/2, long)
	}
	for _, c := range []func(l store.Lease) error{
		func(l store.Lease) error { return b.other.Release(b.ctx, l) },
		func(l store.Lease) error { return b.other.Break(b.ctx, l.Claim) },
		func(l store.Lease) error { return b.other.Forget(b.ctx, []store.Claim{l.Claim})[0] },
	} {
		require.NoError(b.t, c(second))
		b.requireIn(0, first, third)
		b.refused(second)
		if err := c(second); err != nil {
			b.requireGone(err)
		}
		b.requireIn(0, first, third)
		b.requireTTL(long/2, long)
		second = b.take(b.other, claim())
	}
	errs := b.st.Renew(b.ctx, []store.Renewal{
		{Lease: first, TTL: 2 * long, Count: 1}, {Lease: store.Lease{Claim: claim()}, TTL: long, Count: 1}, {Lease: third, TTL: 3 * long, Count: 2},
	})
	require.NoError(b.t, errors.Join(errs[0], errs[2]))
	b.requireGone(errs[1])
	require.Equal(b.t, []store.ID{second.ID, first.ID, third.ID}, b.held())
	require.NoError(b.t, errors.Join(b.st.Forget(b.ctx, []store.Claim{first.Claim, second.Claim, third.Claim})...))
	b.requireIn(0)
}

func lookOthers(b *bench) {
	b.begin(store.Semaphore)
	var in []store.Lease
	for i := range 4 {
		a := b.permit(5 + i)
		a.TTL = long * time.Duration(4-i)
		in = append(in, b.take(b.st, a))
	}
	state := b.look()
	require.Equal(b.t, in[3].ID, state.Owner)
	require.Equal(b.t, 8, state.Limit)
	require.Equal(b.t, 1, state.Count)
	require.Len(b.t, state.Others, 3)
	for i, other := range state.Others {
		require.Equal(b.t, in[2-i].ID, other.ID)
		require.Equal(b.t, 7-i, other.Limit)
		require.Greater(b.t, other.TTL, long*time.Duration(i+1))
		require.LessOrEqual(b.t, other.TTL, long*time.Duration(i+2))
	}
	require.Zero(b.t, state.Waiters)
	for _, l := range in {
		b.release(l)
	}
}

func lookInside(b *bench) {
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.writer())
	r := b.take(b.st, inside(b.reader(), l))
	limits := map[store.ID]int{l.ID: 1, r.ID: store.Unlimited}
	state := b.look()
	require.Equal(b.t, limits[state.Owner], state.Limit)
	require.Len(b.t, state.Others, 1)
	require.Equal(b.t, limits[state.Others[0].ID], state.Others[0].Limit)
	b.release(r)
	b.release(l)
}

func permitTokens(b *bench) {
	b.begin(store.Semaphore)
	var newest int64
	for range 3 {
		first, second := b.take(b.st, b.permit(2)), b.take(b.other, b.permit(2))
		for _, l := range []store.Lease{second, first} {
			token := b.token(l)
			require.Greater(b.t, token, newest)
			newest = b.token(l)
			require.GreaterOrEqual(b.t, newest, token)
			require.Equal(b.t, newest, b.look().Token)
		}
		w := b.wait(b.st, b.permit(2))
		b.release(first)
		granted := b.get(w)
		token := b.token(granted)
		require.Greater(b.t, token, newest)
		newest = b.token(granted)
		b.requireGone(last(b.st.Token(b.ctx, first)))
		b.release(granted)
		b.release(second)
	}
}

// oneKind asks for each kind of lock while the name is another kind.
func oneKind(b *bench) {
	kinds := []func() store.Claim{
		b.exclusive, b.reader, b.writer,
	}
	if b.promises(Semaphores) {
		kinds = append(kinds, func() store.Claim { return b.permit(2) })
	}
	for _, in := range kinds {
		b.begin(in().Kind)
		for _, wrong := range kinds {
			if wrong().Kind == b.kind {
				continue
			}
			spelled, err := b.st.Check(wrong())
			require.NoError(b.t, err)
			require.Equal(b.t, b.name, spelled.Name, "the kind of a lock changes the spelling of its name")
			l := b.take(b.st, in())
			b.requireKind(l.Claim, wrong())
			b.release(l)
			l = b.take(b.other, wrong())
			b.requireKind(l.Claim, in())
			b.release(l)
		}
	}
	b.begin(store.ReadWrite)
	l := b.take(b.st, b.short(b.reader()))
	b.eventually("the lease ends", func() bool { return len(b.held()) == 0 })
	require.False(b.t, time.Now().Before(l.Until()))
	b.pause(2 * time.Millisecond) // a store may round the end of a key up
	b.release(b.take(b.st, b.of(store.Mutex, 1)))
}

// requireKind asks for a lock of a kind that the lock is not.
func (b *bench) requireKind(in, wrong store.Claim) {
	for name, call := range map[string]func() error{
		"Try":  func() error { return last(b.other.Try(b.ctx, wrong)) },
		"Wait": func() error { return last(b.other.Wait(b.ctx, wrong, func(store.Progress) {})) },
		"Look": func() error { return last(b.other.Look(b.ctx, wrong)) },
	} {
		var err error
		b.promptly(func() { err = call() })
		require.ErrorIs(b.t, err, store.ErrKind, name)
		require.NotErrorIs(b.t, err, store.ErrUnsure, name)
		require.ErrorContains(b.t, err, in.Kind.String(), name)
		require.ErrorContains(b.t, err, wrong.Kind.String(), name)
		state, err := b.st.Look(b.ctx, in)
		require.NoError(b.t, err)
		require.Equal(b.t, in.ID, state.Owner)
		require.Empty(b.t, state.Others)
		require.Zero(b.t, state.Waiters)
		require.Greater(b.t, state.TTL, long/2)
	}
}
