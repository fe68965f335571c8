package locktest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

var reentryTests = []test{
	{name: "A call inside of a section enters again", run: nestOnce, short: true},
	{name: "Ten calls inside of each other", run: nestTen},
	{name: "Entries are left in any order", run: nestAnyOrder},
	{name: "Goroutines of one section enter together", run: nestTogether},
	{name: "Entries race with the last exit", run: nestRace},
	{name: "Calls in a section of another lock exclude", run: nestOther},
	{name: "A section that was left carries nothing", run: nestLeft},
	{name: "WithSection is inside and WithoutHolder outside", run: nestElsewhere},
	{name: "Another Client is outside of the section", run: nestOtherClient},
	{name: "A chain of calls has one holder", run: nestHolder},
	{name: "Unlock leaves the entry of its own lock", run: nestTwoLocks},
}

func nestOnce(b *bench) {
	l, there := b.locks()
	outer := b.enter(b.ctx, l)
	inner := b.enter(outer, l)
	require.Equal(b.t, b.holder(outer), b.holder(inner))
	b.requireCount(l, inner, 2)
	b.requireCount(l, outer, 2)
	b.requireBusy(l, there)

	b.unlock(l, inner)
	require.Equal(b.t, relock.ErrReleased, context.Cause(inner))
	require.NoError(b.t, outer.Err())
	b.requireCount(l, outer, 1)
	b.requireBusy(l, there)
	b.unlock(l, outer)
	b.unlock(there, b.enter(b.ctx, there))
}

func nestTen(b *bench) {
	l, there := b.locks()
	verbs := []locking{l.Lock, l.TryLock, tryFor(l, patience)}
	var nest func(ctx context.Context, depth int) error
	nest = func(ctx context.Context, depth int) error {
		if depth == 10 {
			b.requireCount(l, ctx, 10)
			b.requireBusy(there)
			return errMine
		}
		section, err := verbs[depth%len(verbs)](ctx)
		require.NoError(b.t, err)
		defer func() { require.NoError(b.t, l.Unlock(section)) }()
		b.requireCount(l, section, depth+1)
		return nest(section, depth+1)
	}
	require.Equal(b.t, errMine, nest(b.ctx, 0))
}

func nestAnyOrder(b *bench) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		l, there := b.locks()
		entries := []context.Context{b.enter(b.ctx, l)}
		for range 2 { // the contexts of the entries do not end with each other
			entries = append(entries, b.enter(relock.WithSection(b.ctx, entries[0]), l))
		}
		for left, i := range order[:2] {
			b.unlock(l, entries[i])
			require.Equal(b.t, relock.ErrReleased, context.Cause(entries[i]))
			last := entries[order[2]]
			require.NoError(b.t, last.Err())
			b.requireCount(l, last, 2-left)
			b.requireBusy(there)
		}
		b.unlock(l, entries[order[2]])
		b.unlock(there, b.enter(b.ctx, there))
	}
}

func nestTogether(b *bench) {
	const goroutines = 20
	l, _ := b.locks()
	outer := b.enter(b.ctx, l)
	var wg sync.WaitGroup
	var all sync.WaitGroup // are inside
	all.Add(goroutines)
	errs := make([]error, goroutines)
	for i := range errs {
		wg.Go(func() {
			inner, err := l.Lock(outer)
			all.Done()
			if err != nil {
				errs[i] = err
				return
			}
			all.Wait()
			deeper, err := l.TryLock(inner)
			if err == nil {
				err = l.Unlock(deeper)
			}
			errs[i] = errors.Join(err, l.Unlock(inner))
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	require.NoError(b.t, outer.Err())
	// Counts that were in flight together may have reached the store in either order. The next
	// entry or exit tells the count again.
	b.unlock(l, b.enter(outer, l))
	b.requireCount(l, outer, 1)
	b.unlock(l, outer)
}

func nestRace(b *bench) {
	l, _ := b.locks()
	for range 20 {
		outer := b.enter(b.ctx, l)
		detached := context.WithoutCancel(outer)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				section, err := l.TryLockFor(detached, patience) // as a new hold, if the section is left
				if err == nil {
					err = l.Unlock(section)
				}
				if !errors.Is(err, relock.ErrReleased) {
					errs[i] = err
				}
			})
		}
		b.unlock(l, outer)
		wg.Wait()
		require.NoError(b.t, errors.Join(errs...))
		require.False(b.t, b.state(l).Locked())
	}
}

func nestOther(b *bench) {
	const goroutines = 60
	a, l := b.lock(b.one, "a"), b.lock(b.one, "b")
	section := b.enter(b.ctx, a)
	var guarded room
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for i := range errs {
		wg.Go(func() {
			errs[i] = l.Do(section, func(context.Context) error { guarded.visit(); return nil })
		})
	}
	wg.Wait()
	require.NoError(b.t, errors.Join(errs...))
	guarded.requireVisits(b.t, goroutines)
	b.unlock(a, section)
}

func nestLeft(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	detached := context.WithoutCancel(section)
	b.unlock(l, section)
	b.requireKinds(last(l.Lock(section)), context.Canceled, relock.ErrReleased)
	next := b.enter(b.ctx, there)
	b.requireRefused(last(l.TryLock(detached)), l, b.holder(next))
	require.False(b.t, l.Held(detached))
	b.unlock(there, next)
	anew := b.enter(detached, l)
	b.requireCount(l, anew, 1)
	b.requireKinds(l.Unlock(section), relock.ErrNotHeld)
	b.unlock(l, anew)

	// The lock itself may still be held, by another entry.
	section = b.enter(b.ctx, l)
	inner := b.enter(relock.WithSection(b.ctx, section), l)
	b.unlock(l, section)
	b.requireRefused(last(l.TryLock(context.WithoutCancel(section))), l, b.holder(inner))
	b.unlock(l, inner)
}

func nestElsewhere(b *bench) {
	l, _ := b.locks()
	section := b.enter(b.ctx, l)
	own, cancel := context.WithCancel(b.ctx)
	defer cancel()
	inner := b.enter(relock.WithSection(own, section), l)
	b.requireCount(l, inner, 2)

	c := b.wait(relock.WithoutHolder(b.ctx), l.Lock)
	outside := relock.WithoutHolder(relock.WithSection(own, section))
	b.requireRefused(last(l.TryLock(outside)), l, b.holder(section))
	b.unlock(l, section)
	require.NoError(b.t, inner.Err(), "the section ends with its own context")
	b.requireCount(l, inner, 1)
	b.waits(c)
	b.unlock(l, inner)
	b.unlock(l, b.get(c))
}

func nestOtherClient(b *bench) {
	l, there := b.locks()
	section := b.enter(b.ctx, l)
	b.requireRefused(last(there.TryLock(section)), l, b.holder(section))
	c := b.wait(context.WithoutCancel(section), there.Lock)
	b.unlock(l, section)
	inside := b.get(c)
	require.Contains(b.t, b.holder(inside).String(), b.other.ID())
	b.unlock(there, inside)
}

func nestHolder(b *bench) {
	names := []string{"a", "b", "c"}
	ctx := b.ctx
	var sections []context.Context
	for _, name := range names {
		ctx = b.enter(ctx, b.lock(b.one, name))
		sections = append(sections, ctx)
	}
	holder := b.holder(sections[0])
	for _, name := range names {
		l, there := b.lock(b.one, name), b.lock(b.other, name)
		b.requireCount(l, ctx, 1)
		require.Equal(b.t, holder, b.holder(ctx))
		b.requireOwner(there, holder)
		b.requireRefused(last(there.TryLock(b.ctx)), l, holder)
	}
	for i, name := range slices.Backward(names) {
		b.unlock(b.lock(b.one, name), sections[i])
	}

	l := b.lock(b.one, "a")
	next := b.enter(b.ctx, l)
	require.NotEqual(b.t, holder, b.holder(next), "another chain is another holder")
	b.unlock(l, next)
}

func nestTwoLocks(b *bench) {
	a, l := b.lock(b.one, "a"), b.lock(b.one, "b")
	inA := b.enter(b.ctx, a)
	inB := b.enter(inA, l)
	again := b.enter(inB, a)
	b.requireCount(a, again, 2)
	b.unlock(a, again)
	b.requireCount(a, inB, 1)

	b.unlock(a, inB) // a context from inside serves to leave the lock around it
	require.Equal(b.t, relock.ErrReleased, context.Cause(inA))
	require.False(b.t, b.state(a).Locked())
	b.eventually("the section inside ends too", func() bool { return inB.Err() != nil })
	require.True(b.t, l.Held(inB))
	b.unlock(l, inB)
}
