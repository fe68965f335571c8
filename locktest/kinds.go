package locktest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// kindTests are the promises of read-write locks and semaphores.
var kindTests = []test{
	{name: "Readers enter together and a writer alone", run: readersTogether, needs: Kinds, short: true},
	{name: "Every verb for reading enters as a reader", run: readVerbs, needs: Kinds},
	{name: "Unlock leaves the nearest entry in any mode", run: unlockNearest, needs: Kinds},
	{name: "Reads and writes inside of each other", run: nestModes, needs: Kinds},
	{name: "An upgrade waits and keeps its read", run: upgradeWaits, needs: Kinds},
	{name: "A second upgrade is refused, and its read goes on", run: upgradeDeadlock, needs: Kinds},
	{name: "An upgrade ends with its context or its read", run: upgradeEnds, needs: Kinds},
	{name: "A read goes on after the write around it", run: downgrade, needs: Kinds},
	{name: "A read inside of two writes goes on", run: downgradeTwice, needs: Kinds},
	{name: "A read inside of a write ends with its caller", run: downgradeEnds, needs: Kinds},
	{name: "A read inside of a write ends with its loss", run: lostWrite, needs: Kinds},
	{name: "A read goes on through a section of another lock", run: downgradeThrough, needs: Kinds},
	{name: "A lost read ends the write inside of it", run: lostRead, needs: Kinds},
	{name: "A reader has one token until it writes", run: readerTokens, needs: ReaderTokens, also: Tokens},
	{name: "A call inside of a permit takes no second one", run: semaphoreAgain, needs: Semaphores, short: true},
	{name: "State names all holders and their modes", run: stateHolders, needs: Semaphores},
	{name: "ForceUnlock takes the lock from all readers", run: forceReaders, needs: Kinds},
	{name: "ForceUnlock takes all permits", run: forcePermits, needs: Semaphores},
	{name: "Every verb of another kind of lock is refused", run: oneKind, needs: Kinds},
	{name: "Readers outlive their TTL", run: readersRenewed, needs: Kinds},
	{name: "WithMaxHold ends a reader alone", run: readerMaxHold, needs: Kinds},
	{name: "Close ends readers", run: readersClose, needs: Kinds},
	{name: "Close ends permits", run: permitsClose, needs: Semaphores},
	{name: "Wrong permits and RWLocks are told", run: kindsInvalid},
}

// rwLock returns a read-write lock of a process.
func (b *bench) rwLock(c *relock.Client, name string, options ...relock.Option) *relock.RWLock {
	b.t.Helper()
	l := c.NewRWLock(b.name(name), options...)
	require.NoError(b.t, l.Err())
	require.NoError(b.t, l.RLocker().Err())
	b.names[l.Name()] = func(c *relock.Client, name string) *relock.Lock { return c.NewRWLock(name).RLocker() }
	return l
}

// rwLocks returns the read-write lock "a" of the first process and of the other one.
func (b *bench) rwLocks(options ...relock.Option) (here, there *relock.RWLock) {
	b.t.Helper()
	return b.rwLock(b.one, "a", options...), b.rwLock(b.other, "a", options...)
}

// semaphore returns a semaphore of a process.
func (b *bench) semaphore(c *relock.Client, name string, n int, options ...relock.Option) *relock.Lock {
	b.t.Helper()
	l := c.NewSemaphore(b.name(name), n, options...)
	require.NoError(b.t, l.Err())
	b.names[l.Name()] = func(c *relock.Client, name string) *relock.Lock { return c.NewSemaphore(name, 1) }
	return l
}

// requireHolders fails unless exactly these sections have the lock, each one with its own hold.
func (b *bench) requireHolders(l oneLock, sections ...context.Context) {
	b.t.Helper()
	state := b.state(l)
	var names, want []relock.Holder
	if state.Locked() {
		names = append(names, state.Holder)
	}
	for _, other := range state.Others {
		names = append(names, other.Holder)
	}
	require.Len(b.t, names, len(sections))
	for _, section := range sections {
		want = append(want, b.holder(section))
	}
	if b.promises(Names) {
		require.ElementsMatch(b.t, want, names)
	}
}

// requireOpen fails if a section ends, or has ended.
func (b *bench) requireOpen(sections ...context.Context) {
	b.t.Helper()
	b.pause(5 * time.Millisecond)
	for _, section := range sections {
		require.NoError(b.t, section.Err(), "%v", context.Cause(section))
	}
}

// modes returns the modes of all holders, in order.
func modes(state relock.State) []event.Mode {
	all := []event.Mode{state.Mode}
	for _, other := range state.Others {
		all = append(all, other.Mode)
	}
	slices.Sort(all)
	return all
}

// token draws the token of a section.
func (b *bench) token(l *relock.Lock, section context.Context) int64 {
	b.t.Helper()
	token, err := l.Token(section)
	require.NoError(b.t, err)
	return token
}

// seen returns the token of the last writer, of which a reader's token is the negative.
func (b *bench) seen(l *relock.Lock, section context.Context) int64 {
	b.t.Helper()
	return -b.token(l, section)
}

func semaphoreAgain(b *bench) {
	l, there := b.semaphore(b.one, "a", 2), b.semaphore(b.other, "a", 2)
	section := b.enter(b.ctx, l)
	inner := b.enter(section, l)
	require.Equal(b.t, 2, l.Count(inner))
	require.Equal(b.t, b.holder(section), b.holder(inner))
	b.requireHolders(l, section)
	second := b.enter(relock.WithoutHolder(section), l)
	require.NotEqual(b.t, b.holder(section), b.holder(second))
	b.requireHolders(l, section, second)
	b.requireBusy(l, there)
	b.unlock(l, b.enter(inner, l)) // also if no permit is left
	b.unlock(l, section)
	require.True(b.t, l.Held(inner))
	b.requireBusy(there)
	b.unlock(l, inner)
	b.unlock(there, b.enter(b.ctx, there))
	b.unlock(l, second)
}

func stateHolders(b *bench) {
	observer := b.semaphore(b.other, "a", 3)
	require.Equal(b.t, relock.State{}, b.state(observer))
	var in []context.Context
	for i := range 3 {
		in = append(in, b.enter(b.ctx, b.semaphore(b.one, "a", 3, relock.WithTTL(long*time.Duration(3-i)))))
	}
	state := b.state(observer)
	require.Len(b.t, state.Others, 2)
	require.Equal(b.t, 1, state.Count)
	for i, held := range append([]relock.Held{{Holder: state.Holder, TTL: state.TTL, Mode: state.Mode}}, state.Others...) {
		if b.promises(Names) {
			require.Equal(b.t, b.holder(in[2-i]), held.Holder, "the lease that ends first is shown first")
		}
		require.Equal(b.t, event.ModePermit, held.Mode)
		require.Greater(b.t, held.TTL, long*time.Duration(i)+long/2)
		require.LessOrEqual(b.t, held.TTL, long*time.Duration(i+1))
	}
	b.unlock(b.semaphore(b.one, "a", 3), in...)
}

func forceReaders(b *bench) {
	rw, there := b.rwLocks(relock.WithTTL(b.h.TTL))
	readers := []context.Context{b.enter(b.ctx, rw.RLocker()), b.enter(b.ctx, rw.RLocker()), b.enter(b.ctx, rw.RLocker())}
	c := b.wait(b.ctx, there.Lock)
	require.NoError(b.t, there.ForceUnlock(b.ctx))
	writer := b.get(c)
	for _, reader := range readers {
		b.requireLost(b.ends(reader), rw, event.LossTaken)
		b.requireLost(rw.Unlock(reader), rw, event.LossTaken)
	}
	b.requireHolders(rw, writer)
	b.unlock(there, writer)
	b.requireKinds(rw.ForceUnlock(b.ctx), relock.ErrNotHeld)
	b.requireKinds(rw.RLocker().ForceUnlock(b.ctx), relock.ErrNotHeld)
}

func forcePermits(b *bench) {
	l := b.semaphore(b.one, "b", 2, relock.WithTTL(b.h.TTL))
	first, second := b.enter(b.ctx, l), b.enter(b.ctx, l)
	require.NoError(b.t, b.semaphore(b.other, "b", 5).ForceUnlock(b.ctx))
	b.requireHolders(l)
	for _, section := range []context.Context{first, second} {
		b.requireLost(b.ends(section), l, event.LossTaken)
		b.requireLost(l.Unlock(section), l, event.LossTaken)
	}
	b.requireKinds(l.ForceUnlock(b.ctx), relock.ErrNotHeld)
}

// oneKind calls a lock of each kind while another kind has the name.
func oneKind(b *bench) {
	type named struct {
		lock *relock.Lock
		kind store.Kind
	}
	of := func(c *relock.Client) []named {
		locks := []named{{c.NewLock(b.name("a")), store.Mutex}, {c.NewRWLock(b.name("a")).RLocker(), store.ReadWrite}}
		if b.promises(Semaphores) {
			locks = append(locks, named{c.NewSemaphore(b.name("a"), 2), store.Semaphore})
		}
		return locks
	}
	for _, in := range of(b.one) {
		for _, other := range append(of(b.other), of(b.one)...) {
			if other.kind == in.kind {
				continue
			}
			section, wrong := b.enter(b.ctx, in.lock), other.lock
			for _, ctx := range []context.Context{b.ctx, section} {
				for _, err := range []error{
					last(wrong.Lock(ctx)), last(wrong.TryLock(ctx)), last(wrong.TryLockFor(ctx, long)), last(wrong.State(ctx)),
					wrong.ForceUnlock(ctx), wrong.Do(ctx, nothing),
				} {
					b.requireKinds(err, relock.ErrKind)
					require.ErrorContains(b.t, err, in.lock.Name())
					require.ErrorContains(b.t, err, in.kind.String())
					require.ErrorContains(b.t, err, other.kind.String())
				}
				b.requireKinds(wrong.Unlock(ctx), relock.ErrNotHeld)
				require.False(b.t, wrong.Held(ctx))
			}
			b.requireHolders(in.lock, section)
			b.unlock(in.lock, section)
			b.unlock(wrong, b.enter(b.ctx, wrong))
		}
	}
}

func readersRenewed(b *bench) {
	rw, there := b.rwLocks(relock.WithTTL(b.h.TTL))
	reader, beside := b.enter(b.ctx, rw.RLocker()), b.enter(b.ctx, there.RLocker())
	inner := b.enter(reader, rw.RLocker())
	c := b.wait(reader, rw.Lock)
	for range 5 {
		b.pause(b.h.TTL / 2)
		b.requireOpen(reader, beside, inner)
		b.waits(c)
		require.Positive(b.t, rw.Remaining(reader))
		require.LessOrEqual(b.t, rw.Remaining(reader), b.h.TTL)
		b.requireHolders(rw, reader, beside)
	}
	b.unlock(there, beside)
	writer := b.get(c)
	b.unlock(rw, b.enter(writer, rw.RLocker()))
	b.unlock(rw, writer, inner, reader)
}

func readerMaxHold(b *bench) {
	limited := b.rwLock(b.one, "a", relock.WithTTL(b.h.TTL), relock.WithMaxHold(2*b.h.TTL))
	l, there := b.rwLocks()
	beside, brief := b.enter(b.ctx, l.RLocker()), b.enter(b.ctx, limited.RLocker())
	c := b.wait(b.ctx, there.Lock)
	cause := b.ends(brief)
	b.requireLost(cause, l, event.LossMaxHold)
	b.eventually("the lease ends", func() bool { return len(b.state(l).Others) == 0 })
	b.waits(c)
	b.requireOpen(beside)
	require.Equal(b.t, cause, limited.Unlock(brief))
	b.unlock(l, beside)
	b.unlock(there, b.get(c))
}

func readersClose(b *bench) {
	for _, options := range [][]relock.Option{nil, {relock.WithReleaseOnClose()}} {
		closing := b.client(options...)
		rw, there := b.rwLock(closing, "a"), b.rwLock(b.other, "a")
		reader, beside := b.enter(b.ctx, rw.RLocker()), b.enter(b.ctx, there.RLocker())
		upgrade, writer := b.wait(reader, rw.Lock), b.wait(b.ctx, there.Lock)
		require.NoError(b.t, closing.Close())
		require.ErrorIs(b.t, b.fails(upgrade), relock.ErrClosed)
		require.Equal(b.t, relock.ErrClosed, context.Cause(reader))
		b.requireKinds(last(rw.RLock(b.ctx)), relock.ErrClosed)
		b.requireOpen(beside)
		b.unlock(there, beside)
		if options == nil {
			require.True(b.t, b.state(there).Locked(), "Close leaves the reader to the end of its lease")
			b.waits(writer)
			b.unlock(rw, reader)
		} else {
			b.requireKinds(rw.Unlock(reader), relock.ErrClosed)
		}
		b.unlock(there, b.get(writer))
	}
}

func permitsClose(b *bench) {
	for _, options := range [][]relock.Option{nil, {relock.WithReleaseOnClose()}} {
		closing := b.client(options...)
		permits := b.semaphore(closing, "b", 2)
		permit := b.enter(b.ctx, permits)
		require.NoError(b.t, closing.Close())
		require.Equal(b.t, relock.ErrClosed, context.Cause(permit))
		b.requireKinds(last(permits.TryLock(b.ctx)), relock.ErrClosed)
		if options == nil {
			require.True(b.t, b.state(permits).Locked(), "Close leaves the permit to the end of its lease")
			b.unlock(permits, permit)
		} else {
			b.requireKinds(permits.Unlock(permit), relock.ErrClosed)
		}
	}
}

func kindsInvalid(b *bench) {
	var none *relock.RWLock
	var zero relock.RWLock
	wrong := []*relock.Lock{none.RLocker(), zero.RLocker(), b.one.NewRWLock("").RLocker(), b.one.NewRWLock("a", relock.WithTTL(0)).RLocker()}
	for _, n := range []int{0, -1, math.MinInt, store.Unlimited, math.MaxInt} {
		l := b.one.NewSemaphore("a", n)
		require.ErrorContains(b.t, l.Err(), fmt.Sprint(n))
		wrong = append(wrong, l)
	}
	for _, l := range wrong {
		b.requireKinds(l.Err(), relock.ErrInvalid)
		for _, lock := range []locking{l.Lock, l.TryLock, tryFor(l, long)} {
			b.requireKinds(last(lock(b.ctx)), relock.ErrInvalid)
		}
		for _, err := range []error{l.Unlock(b.ctx), l.ForceUnlock(b.ctx), last(l.State(b.ctx)), l.Do(b.ctx, nothing)} {
			b.requireKinds(err, relock.ErrInvalid)
		}
	}
	for _, l := range []*relock.RWLock{none, &zero} {
		b.requireKinds(last(l.RLock(b.ctx)), relock.ErrInvalid)
		b.requireKinds(l.RDo(b.ctx, nothing), relock.ErrInvalid)
	}
	b.requireKinds(zero.Err(), relock.ErrInvalid)
	b.requireKinds(last(zero.Lock(b.ctx)), relock.ErrInvalid)
	b.requireKinds(zero.Unlock(b.ctx), relock.ErrInvalid)
}
