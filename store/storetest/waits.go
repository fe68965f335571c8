package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// showTests are the promises of [store.WaitGraph].
var showTests = []test{
	{name: "A wait is shown under each of its holds", run: showEach, needs: WaitGraph},
	{name: "A wait that is shown anew replaces the old one", run: showAnew, needs: WaitGraph},
	{name: "A wait that is taken back is gone", run: showBack, needs: WaitGraph},
	{name: "A wait ends with its lifetime", run: showEnds, needs: WaitGraph},
	{name: "A context that is done ends Show and Shown", run: showContextDone, needs: WaitGraph},
	{name: "A silent server holds up no Show and no Shown", run: showSilent, needs: WaitGraph, also: interrupt},
}

// shows returns the power of a store.
func (b *bench) shows(st store.Store) store.WaitGraph {
	graph, ok := st.(store.WaitGraph)
	require.True(b.t, ok, "the store is no store.WaitGraph: the harness must list WaitGraph in Without")
	return graph
}

// waiting returns a wait of a new client, inside so many holds.
func (b *bench) waiting(holds int) store.Waiting {
	a := b.claim(long)
	w := store.Waiting{
		ID: a.ID, Name: `orders "42" ä`, For: []store.ID{b.claim(long).ID, b.claim(long).ID}, Since: time.Now().UTC(), Round: 1,
	}
	for range holds {
		w.Holds = append(w.Holds, newID(client(a.ID)))
	}
	return w
}

func (b *bench) show(w store.Waiting, lifetime time.Duration) {
	require.NoError(b.t, b.shows(b.st).Show(b.ctx, w, lifetime))
}

// takeBack shows a wait for nobody.
func (b *bench) takeBack(w store.Waiting) {
	w.For = nil
	b.show(w, long)
}

// shown returns the waits under holds, by ID. Shown may return a wait more than once.
func (b *bench) shown(holds ...store.ID) map[store.ID]store.Waiting {
	waits, err := b.shows(b.other).Shown(b.ctx, holds)
	require.NoError(b.t, err)
	byID := make(map[store.ID]store.Waiting)
	for _, w := range waits {
		if before, twice := byID[w.ID]; twice {
			require.Equal(b.t, before, w)
		}
		byID[w.ID] = w
	}
	return byID
}

// requireShown fails unless exactly these waits are shown under each of the holds, and under all.
func (b *bench) requireShown(holds []store.ID, want ...store.Waiting) {
	ids := make([]store.ID, len(want))
	for i, w := range want {
		ids[i] = w.ID
	}
	lists := [][]store.ID{holds}
	for _, hold := range holds {
		lists = append(lists, []store.ID{hold})
	}
	for _, list := range lists {
		shown := b.shown(list...)
		require.ElementsMatch(b.t, ids, slices.Collect(maps.Keys(shown)))
		for _, w := range want {
			got := shown[w.ID]
			require.True(b.t, w.Since.Equal(got.Since), "shown since %s instead of %s", got.Since, w.Since)
			got.Since = w.Since
			require.Equal(b.t, w, got)
		}
	}
}

func showEach(b *bench) {
	w, other := b.waiting(3), b.waiting(1)
	b.requireShown(w.Holds)
	for range 2 {
		b.show(w, long)
		b.requireShown(w.Holds, w)
	}
	require.Empty(b.t, b.shown(w.ID), "a wait is shown under its own hold")
	require.Empty(b.t, b.shown(w.For...), "a wait is shown under the holds that it waits for")
	require.Empty(b.t, b.shown())
	other.Holds = append(other.Holds, w.Holds[1])
	b.show(other, long)
	b.requireShown(w.Holds[:1], w)
	b.requireShown(w.Holds[1:2], w, other)
	b.requireShown(other.Holds[:1], other)
	require.Len(b.t, b.shown(w.Holds[0], other.Holds[0], b.claim(long).ID), 2)
	b.takeBack(w)
	b.takeBack(other)
}

func showAnew(b *bench) {
	w := b.waiting(2)
	b.show(w, long)
	for range 3 {
		w.Round, w.For = w.Round+1, []store.ID{b.claim(long).ID}
		b.show(w, long)
		b.requireShown(w.Holds, w)
	}
	b.takeBack(w)

	w = b.waiting(2)
	b.show(w, b.h.TTL)
	w.Round++
	b.show(w, long)
	b.pause(3 * b.h.TTL / 2)
	b.requireShown(w.Holds, w)
	b.takeBack(w)
}

func showBack(b *bench) {
	w, other := b.waiting(2), b.waiting(0)
	other.Holds = w.Holds
	b.show(w, long)
	b.show(other, long)
	for range 2 {
		b.takeBack(w)
		b.requireShown(w.Holds, other)
	}
	b.takeBack(other)
	b.requireShown(w.Holds)
	never := b.waiting(1)
	b.takeBack(never)
	b.requireShown(never.Holds)
}

func showEnds(b *bench) {
	w := b.waiting(2)
	before := time.Now()
	b.show(w, b.h.TTL)
	b.eventually("the lifetime of the wait ends", func() bool { return len(b.shown(w.Holds...)) == 0 })
	early := time.Until(before.Add(b.h.TTL - store.Margin(b.h.TTL)))
	require.LessOrEqual(b.t, early, time.Duration(0), "the wait ends before its lifetime")
	b.requireShown(w.Holds)
}

// endShow runs Show and Shown with a context that ends. Each returns promptly.
func (b *bench) endShow(newContext func() context.Context, silence func() (restore func()), check func(err error)) {
	w := b.waiting(2)
	for _, call := range []func(ctx context.Context) error{
		func(ctx context.Context) error { return b.shows(b.st).Show(ctx, w, b.h.TTL) },
		func(ctx context.Context) error { return last(b.shows(b.st).Shown(ctx, w.Holds)) },
	} {
		ctx, restore := newContext(), silence()
		var err error
		b.promptly(func() { err = call(ctx) })
		restore()
		check(err)
	}
	b.eventually("nothing is left", func() bool { return len(b.shown(w.Holds...)) == 0 })
}

func showContextDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	b.endShow(b.done(cause), func() func() { return func() {} }, func(err error) {
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorIs(b.t, err, cause)
	})
}

func showSilent(b *bench) {
	b.endShow(b.soon, b.interrupt, func(err error) { require.Error(b.t, err) })
}
