package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// severalTests are the promises of [relock.Locks], whether the store takes several locks in one
// step or not, and of calls that wait for each other.
var severalTests = []test{
	{name: "Several locks are taken once and in one order", run: severalOrder, short: true},
	{name: "Several locks for reading and writing", run: severalModes, needs: Kinds},
	{name: "Several locks of all kinds", run: severalKinds, needs: Semaphores},
	{name: "Several locks wait for each other lock", run: severalWait},
	{name: "Several locks are entered deeper", run: severalDeeper},
	{name: "TryLock of several locks takes all or none", run: severalTry},
	{name: "The loss of one of several locks ends the section", run: severalLost},
	{name: "Unlock of several locks leaves them once", run: severalUnlock},
	{name: "The wait of TryLockFor is for several locks together", run: severalFor},
	{name: "A call for several locks that gives up keeps none", run: severalGivesUp},
	{name: "Several locks draw tokens", run: severalTokens, needs: Tokens},
	{name: "Close ends waits and sections of several locks", run: severalClose},
	{name: "Many calls for several locks exclude each other", run: severalMany},
	{name: "Several locks that are wrong are told", run: severalInvalid},
	{name: "The younger of two calls in a circle ends", run: deadlockTwo, needs: Deadlocks},
	{name: "A circle through several locks ends", run: deadlockSeveral, needs: Deadlocks, short: true},
}

// several returns several locks of a process.
func (b *bench) several(c *relock.Client, names ...string) *relock.Locks {
	b.t.Helper()
	l := c.NewLocks(b.named(names...))
	require.NoError(b.t, l.Err())
	return l
}

// named returns the names of several locks that no other subtest uses.
func (b *bench) named(names ...string) []string {
	for i, name := range names {
		names[i] = b.name(name)
	}
	return names
}

// tryAllFor returns TryLockFor of several locks with its wait.
func tryAllFor(l *relock.Locks, wait time.Duration) locking {
	return func(ctx context.Context) (context.Context, error) { return l.TryLockFor(ctx, wait) }
}

// requireCounts looks for the entries of a section in the locks "a", "b" and so on of a process.
func (b *bench) requireCounts(c *relock.Client, section context.Context, counts ...int) {
	b.t.Helper()
	for i, count := range counts {
		l := b.lock(c, string(rune('a'+i)))
		if count == 0 {
			require.False(b.t, l.Held(section))
			require.False(b.t, b.state(l).Locked())
			continue
		}
		b.requireCount(l, section, count)
	}
}

func severalOrder(b *bench) {
	there := b.several(b.other, "a", "b", "c")
	a, bb, c := b.lock(b.one, "a"), b.lock(b.one, "b"), b.lock(b.one, "c")
	for _, l := range []*relock.Locks{
		b.several(b.one, "c", "a", "b"),
		b.several(b.one, "b", "a", "b", "c", "a"),
		relock.All(c, a, c, bb),
		relock.All(b.several(b.one, "c", "a"), bb, relock.All(a)),
	} {
		require.Equal(b.t, b.named("a", "b", "c"), l.Names())
		tryFor := tryAllFor(l, long)
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor} {
			section, err := lock(b.ctx)
			require.NoError(b.t, err)
			b.requireCounts(b.one, section, 1, 1, 1)
			b.requireBusy(there, b.lock(b.other, "a"), b.lock(b.other, "b"), b.lock(b.other, "c"))
			require.Greater(b.t, bb.Remaining(section), long/2)
			b.unlock(l, section)
			require.Equal(b.t, relock.ErrReleased, context.Cause(section))
			b.requireCounts(b.one, section, 0, 0, 0)
		}
		require.NoError(b.t, l.Do(b.ctx, func(ctx context.Context) error { b.requireCounts(b.one, ctx, 1, 1, 1); return nil }))
	}
	theirs := b.lock(b.other, "b")
	both := relock.All(theirs, a) // of two processes, each with its own holder
	section := b.enter(b.ctx, both)
	require.Equal(b.t, b.named("a", "b"), both.Names())
	require.True(b.t, a.Held(section))
	require.True(b.t, theirs.Held(section))
	b.requireBusy(a, bb, there)
	b.unlock(both, section)
}

func severalModes(b *bench) {
	rw, theirs := b.rwLock(b.one, "rw"), b.rwLock(b.other, "rw")
	a := b.lock(b.one, "a")
	reads, writes := relock.All(a, rw.RLocker()), relock.All(rw.RLocker(), a, rw)
	section := b.enter(b.ctx, reads)
	beside := b.enter(b.ctx, theirs.RLocker())
	b.requireBusy(theirs, b.lock(b.other, "a"))
	b.unlock(reads, section)
	b.unlock(theirs, beside)
	section = b.enter(b.ctx, writes)
	b.requireBusy(theirs.RLocker(), b.lock(b.other, "a"))
	b.unlock(writes, section)
	taken := b.enter(b.ctx, theirs)
	b.requireRefused(last(reads.TryLock(b.ctx)), rw, b.holder(taken))
	require.False(b.t, b.state(a).Locked())
	b.unlock(theirs, taken)
}

func severalKinds(b *bench) {
	rw, theirs := b.rwLock(b.one, "rw"), b.rwLock(b.other, "rw")
	permits := b.semaphore(b.one, "s", 2)
	reads := relock.All(permits, b.lock(b.one, "a"), rw.RLocker())
	require.Equal(b.t, b.named("a", "rw", "s"), reads.Names())
	section := b.enter(b.ctx, reads)
	beside := b.enter(b.ctx, theirs.RLocker())
	b.requireBusy(theirs, b.lock(b.other, "a"))
	b.requireHolders(permits, section)
	b.unlock(reads, section)
	b.unlock(theirs, beside)

	writes := relock.All(rw.RLocker(), permits, b.semaphore(b.one, "s", 1), rw)
	section = b.enter(b.ctx, writes)
	b.requireBusy(theirs.RLocker(), b.semaphore(b.other, "s", 2))
	b.unlock(writes, section)

	taken := b.enter(b.ctx, theirs)
	ctx, err := reads.TryLock(b.ctx)
	b.requireRefused(err, rw, b.holder(taken))
	require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
	b.requireHolders(permits)
	b.unlock(theirs, taken)
}

// severalWait waits for one lock, and then for another one.
func severalWait(b *bench) {
	first, second := b.lock(b.other, "a"), b.lock(b.other, "c")
	l := b.several(b.one, "d", "c", "b", "a")
	for _, lock := range []locking{l.Lock, tryAllFor(l, long)} {
		inFirst, inSecond := b.enter(b.ctx, first), b.enter(b.ctx, second)
		c := b.wait(b.ctx, lock)
		b.requireFreeLock("b")
		b.requireFreeLock("d")
		b.unlock(first, inFirst)
		b.isQueued(c)
		b.requireBusy(first, b.lock(b.other, "b"))
		b.requireFreeLock("d")
		b.unlock(second, inSecond)
		section := b.get(c)
		b.requireCounts(b.one, section, 1, 1, 1, 1)
		b.unlock(l, section)
	}
}

// isQueued waits until a call waits for a lock.
func (b *bench) isQueued(c *call) {
	b.t.Helper()
	select {
	case <-b.queued:
	case <-c.done:
		require.FailNow(b.t, "a call does not wait", "%v", c.err)
	case <-time.After(patience):
		require.FailNow(b.t, "does not happen: the call waits")
	}
}

func (b *bench) requireFreeLock(name string) {
	b.t.Helper()
	require.False(b.t, b.state(b.lock(b.other, name)).Locked(), "lock %q is taken", name)
}

func severalDeeper(b *bench) {
	bb, l := b.lock(b.one, "b"), b.several(b.one, "a", "b", "c")
	outer := b.enter(b.ctx, bb)
	section := b.enter(outer, l)
	b.requireCounts(b.one, section, 1, 2, 1)
	again := b.enter(section, l)
	b.requireCounts(b.one, again, 2, 3, 2)
	tried, err := l.TryLock(again)
	require.NoError(b.t, err)
	b.requireCounts(b.one, tried, 3, 4, 3)
	b.unlock(l, tried, again)
	b.requireOpen(section)
	b.requireBusy(b.several(b.other, "a", "c"))
	b.unlock(l, section)
	b.requireCounts(b.one, outer, 0, 1, 0)
	b.unlock(bb, outer)
	b.requireCounts(b.one, outer, 0, 0, 0)
}

func severalTry(b *bench) {
	l := b.several(b.one, "c", "a", "b")
	for _, name := range []string{"a", "b", "c"} {
		taken := b.lock(b.other, name)
		section := b.enter(b.ctx, taken)
		for _, lock := range []locking{l.TryLock, tryAllFor(l, 0)} {
			ctx, err := lock(b.ctx)
			b.requireRefused(err, taken, b.holder(section))
			require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
			b.givesBack(name)
		}
		b.requireOwner(taken, b.holder(section))
		err := l.DoFor(b.ctx, 0, func(context.Context) error { panic("not entered") })
		require.ErrorIs(b.t, err, relock.ErrNotEntered)
		b.givesBack(name)
		b.unlock(taken, section)
	}
	section, err := l.TryLock(b.ctx)
	require.NoError(b.t, err)
	b.unlock(l, section)
}

// givesBack waits until of three locks only one is taken, as a refused call does not wait for a
// slow store to take the others back.
func (b *bench) givesBack(taken string) {
	b.t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		l := b.lock(b.other, name)
		b.eventually("the other locks are given back", func() bool { return b.state(l).Locked() == (name == taken) })
		require.Zero(b.t, b.state(l).Waiters)
	}
}

func severalLost(b *bench) {
	l := b.one.NewLocks(b.named("a", "b", "c"), relock.WithTTL(b.h.TTL))
	for _, name := range []string{"a", "b", "c"} {
		lost := b.lock(b.other, name)
		section := b.enter(b.ctx, l)
		require.NoError(b.t, lost.ForceUnlock(b.ctx))
		cause := b.ends(section)
		b.requireLost(cause, lost, event.LossTaken)
		b.requireLost(last(l.Lock(section)), lost, event.LossTaken)
		b.requireLost(l.Unlock(section), lost, event.LossTaken)
		b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
		for _, name := range []string{"a", "b", "c"} {
			b.requireFreeLock(name)
		}
	}
}

func severalUnlock(b *bench) {
	ab, abc, bb := b.several(b.one, "a", "b"), b.several(b.one, "a", "b", "c"), b.lock(b.one, "b")
	b.requireKinds(ab.Unlock(b.ctx), relock.ErrNotHeld)
	outer := b.enter(b.ctx, ab)
	b.requireKinds(abc.Unlock(outer), relock.ErrNotHeld)
	b.requireKinds(b.several(b.other, "a", "b").Unlock(outer), relock.ErrNotHeld)
	inner := b.enter(outer, abc)
	b.unlock(b.several(b.one, "c", "b", "a"), inner)
	require.Equal(b.t, relock.ErrReleased, context.Cause(inner))
	b.requireKinds(abc.Unlock(inner), relock.ErrNotHeld)
	b.requireOpen(outer)
	b.requireCounts(b.one, outer, 1, 1, 0)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = ab.Unlock(outer) })
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
	b.requireCounts(b.one, outer, 0, 0, 0)

	section := b.enter(b.ctx, abc)
	b.unlock(bb, section) // one of them by itself
	b.requireFreeLock("b")
	err := abc.Unlock(section)
	b.requireKinds(err, relock.ErrNotHeld)
	require.ErrorContains(b.t, err, bb.Name())
	b.requireCounts(b.one, section, 0, 0, 0)
}

// severalFor waits for the first lock for a part of the time, and for the second one in vain.
func severalFor(b *bench) {
	first, second := b.lock(b.other, "a"), b.lock(b.other, "b")
	inFirst, inSecond := b.enter(b.ctx, first), b.enter(b.ctx, second)
	const wait = 2 * brief
	begun := time.Now()
	l := b.several(b.one, "a", "b", "c")
	c := b.wait(b.ctx, tryAllFor(l, wait))
	b.pause(wait / 4)
	b.unlock(first, inFirst)
	b.requireRefused(b.fails(c), second, b.holder(inSecond))
	require.GreaterOrEqual(b.t, c.at.Sub(begun), wait)
	require.Less(b.t, c.at.Sub(begun), wait+prompt)
	b.eventually("the first lock is given back", func() bool { return !b.state(first).Locked() })
	b.requireFreeLock("c")
	b.unlock(second, inSecond)
	b.requireKinds(last(l.TryLockFor(b.ctx, -1)), relock.ErrInvalid)
	require.NoError(b.t, l.DoFor(b.ctx, patience, func(ctx context.Context) error {
		_, limited := ctx.Deadline()
		require.False(b.t, limited, "the wait is no limit to the function")
		return nil
	}))
}

func severalGivesUp(b *bench) {
	second := b.lock(b.other, "b")
	section := b.enter(b.ctx, second)
	l := b.several(b.one, "a", "b", "c")
	c := b.wait(b.ctx, l.Lock)
	b.requireBusy(b.lock(b.other, "a"))
	c.cancel(errMine)
	b.requireRefused(b.fails(c), second, b.holder(section), context.Canceled, errMine)
	b.eventually("the first lock is given back", func() bool { return !b.state(b.lock(b.other, "a")).Locked() })
	b.requireFreeLock("c")
	b.eventually("nobody waits", func() bool { return b.state(second).Waiters == 0 })
	b.requireOpen(section)
	b.unlock(second, section)
	b.unlock(l, b.enter(b.ctx, l))
}

func severalTokens(b *bench) {
	l, there := b.several(b.one, "b", "a"), b.several(b.other, "a", "b")
	newest := map[string]int64{}
	for _, next := range []*relock.Locks{l, there, l} {
		section := b.enter(b.ctx, next)
		tokens, err := next.Tokens(section)
		require.NoError(b.t, err)
		require.Len(b.t, tokens, 2)
		again, err := next.Tokens(section)
		require.NoError(b.t, err)
		require.Equal(b.t, tokens, again, "a hold has one token")
		for _, name := range next.Names() {
			require.Greater(b.t, tokens[name], newest[name])
			require.Equal(b.t, tokens[name], b.state(b.one.NewLock(name)).Token)
		}
		newest = tokens
		b.unlock(next, section)
		tokens, err = next.Tokens(section)
		b.requireKinds(err, relock.ErrNotHeld)
		require.Nil(b.t, tokens)
	}
	section := b.enter(b.ctx, b.lock(b.one, "a"))
	b.requireKinds(last(l.Tokens(section)), relock.ErrNotHeld) // inside of one of them only
	b.unlock(b.lock(b.one, "a"), section)
}

func severalClose(b *bench) {
	blocked := b.lock(b.other, "d")
	for _, options := range [][]relock.Option{nil, {relock.WithReleaseOnClose()}} {
		closing := b.client(options...)
		ab, cd := b.several(closing, "a", "b"), b.several(closing, "c", "d")
		inD, section := b.enter(b.ctx, blocked), b.enter(b.ctx, ab)
		c := b.wait(b.ctx, cd.Lock)
		require.NoError(b.t, closing.Close())
		b.requireKinds(b.fails(c), relock.ErrClosed)
		require.Equal(b.t, relock.ErrClosed, context.Cause(section))
		b.requireKinds(last(cd.Lock(b.ctx)), relock.ErrClosed)
		b.requireKinds(last(cd.TryLock(b.ctx)), relock.ErrClosed)
		if options == nil {
			b.requireBusy(b.lock(b.other, "a"), b.lock(b.other, "b"))
			b.unlock(ab, section)
		} else {
			b.requireKinds(ab.Unlock(section), relock.ErrClosed)
		}
		b.requireKinds(ab.Unlock(section), relock.ErrNotHeld)
		b.unlock(blocked, inD)
		b.eventually("the lock of the ended call is given back", func() bool { return !b.state(b.lock(b.other, "c")).Locked() })
		all := b.several(b.other, "a", "b", "c", "d")
		b.unlock(all, b.enter(b.ctx, all))
	}
}

// severalMany lets calls take three of five locks each, in all orders of the names.
func severalMany(b *bench) {
	const goroutines, rounds = 4, 6 // of each process
	all := b.named("a", "b", "c", "d", "e")
	var guarded [5]room
	var wg sync.WaitGroup
	clients := []*relock.Client{b.one, b.other, b.client()}
	errs := make([]error, len(clients)*goroutines)
	for i := range errs {
		wg.Go(func() {
			for n := range rounds {
				picked := []int{(i + n) % 5, (i*2 + n + 1) % 5, (i + n*3 + 2) % 5}
				names := []string{all[picked[0]], all[picked[1]], all[picked[2]]}
				errs[i] = errors.Join(errs[i], clients[i%len(clients)].NewLocks(names).Do(b.ctx, func(context.Context) error {
					for _, at := range picked {
						guarded[at].visit()
					}
					return nil
				}))
			}
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	visits := 0
	for i := range guarded {
		require.Zero(b.t, guarded[i].clashes.Load(), "two were inside at one moment")
		visits += int(guarded[i].visits.Load())
	}
	require.Equal(b.t, 3*rounds*len(errs), visits)
}

func severalInvalid(b *bench) {
	a := b.lock(b.one, "a")
	var none *relock.Locks
	for _, wrong := range []*relock.Locks{
		none, new(relock.Locks), relock.All(), b.one.NewLocks(nil), relock.All(a, nil), relock.All(a, new(relock.Lock)),
		b.one.NewLocks([]string{"a", ""}), relock.All(a, b.lock(b.other, "a")),
	} {
		b.requireKinds(wrong.Err(), relock.ErrInvalid)
		for _, lock := range []locking{wrong.Lock, wrong.TryLock, tryAllFor(wrong, long)} {
			ctx, err := lock(b.ctx)
			b.requireKinds(err, relock.ErrInvalid)
			require.Equal(b.t, err, context.Cause(ctx), "the context has ended")
		}
		require.ErrorIs(b.t, wrong.Do(b.ctx, nothing), relock.ErrNotEntered)
		b.requireKinds(last(wrong.Tokens(b.ctx)), relock.ErrInvalid)
		b.requireKinds(wrong.Unlock(b.ctx), relock.ErrInvalid)
		require.Empty(b.t, wrong.Names())
	}
}

// requireCircle fails unless err is a circle of two waits: of a section for a lock, and back.
func (b *bench) requireCircle(err error, young, old relock.CycleStep) {
	b.t.Helper()
	b.requireKinds(err, store.ErrDeadlock)
	var deadlock *relock.DeadlockError
	require.ErrorAs(b.t, err, &deadlock)
	require.Equal(b.t, []relock.CycleStep{young, old}, deadlock.Cycle, "from the youngest call on")
	require.True(b.t, strings.Contains(err.Error(), young.Lock) && strings.Contains(err.Error(), old.Lock))
}

func deadlockTwo(b *bench) {
	ours, theirs := b.lock(b.one, "a"), b.lock(b.other, "b")
	inOurs, inTheirs := b.enter(b.ctx, ours), b.enter(b.ctx, theirs)
	older := b.wait(inOurs, b.lock(b.one, "b").Lock)
	b.pause(10 * time.Millisecond) // the clock of a bubble stands still
	begun := time.Now()
	younger := b.wait(inTheirs, b.lock(b.other, "a").Lock)
	err := b.fails(younger)
	b.requireCircle(err,
		relock.CycleStep{Holder: b.holder(inTheirs), Lock: ours.Name()}, relock.CycleStep{Holder: b.holder(inOurs), Lock: theirs.Name()})
	require.NotErrorIs(b.t, err, relock.ErrNotEntered)
	require.Less(b.t, younger.at.Sub(begun), patience/2)
	b.requireOpen(inTheirs, inOurs)
	b.waits(older)
	b.unlock(theirs, inTheirs)
	b.unlock(b.lock(b.one, "b"), b.get(older))
	b.unlock(ours, inOurs)
	require.NoError(b.t, ours.Do(b.ctx, func(ctx context.Context) error { return b.lock(b.one, "b").Do(ctx, nothing) }))
}

// deadlockSeveral asks for several locks inside of a section, against their order.
func deadlockSeveral(b *bench) {
	bc, c, a := b.several(b.one, "b", "c"), b.lock(b.other, "c"), b.lock(b.one, "a")
	inA, inC := b.enter(b.ctx, a), b.enter(b.ctx, c)
	older := b.wait(inA, bc.Lock)
	b.pause(10 * time.Millisecond)
	younger := b.start(inC, func(ctx context.Context) (context.Context, error) {
		return ctx, b.lock(b.other, "a").Do(ctx, nothing)
	})
	err := b.fails(younger)
	b.requireCircle(err, relock.CycleStep{Holder: b.holder(inC), Lock: a.Name()}, relock.CycleStep{Holder: b.holder(inA), Lock: c.Name()})
	require.ErrorIs(b.t, err, relock.ErrNotEntered)
	b.waits(older)
	b.unlock(c, inC)
	b.unlock(bc, b.get(older))
	b.unlock(a, inA)
}
