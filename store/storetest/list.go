package storetest

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// listTests are the promises of [store.Listing].
var listTests = []test{
	{name: "List names each lock that somebody has", run: lists, needs: Listing},
	{name: "A context that is done ends List", run: listDone, needs: Listing},
	{name: "A silent server holds up no List", run: listSilent, needs: Listing, also: interrupt},
}

// list returns the locks of the store as Check spells them, for the other client.
func (b *bench) list() map[string]store.Kind {
	found, err := b.listing(b.other).List(b.ctx, b.claim(long))
	require.NoError(b.t, err)
	spelled := make(map[string]store.Kind)
	for name, kind := range found {
		a := b.claim(long)
		a.Name, a.Kind = name, kind
		checked, err := b.st.Check(a)
		require.NoError(b.t, err, "the name %q", name)
		require.NotContains(b.t, spelled, checked.Name, "two names of one lock")
		spelled[checked.Name] = kind
	}
	return spelled
}

func (b *bench) listing(st store.Store) store.Listing {
	listing, ok := st.(store.Listing)
	require.True(b.t, ok, "the store is no store.Listing: the harness must list Listing in Without")
	return listing
}

func lists(b *bench) {
	kinds := []store.Kind{store.Mutex}
	if b.promises(Kinds) {
		kinds = append(kinds, store.ReadWrite)
	}
	if b.promises(Semaphores) {
		kinds = append(kinds, store.Semaphore)
	}
	var claims []store.Claim
	for range 120 / len(kinds) { // more than a page
		for _, kind := range kinds {
			b.begin(kind)
			claims = append(claims, b.claim(long))
		}
	}
	before := b.list()
	var leases []store.Lease
	for _, a := range claims {
		require.NotContains(b.t, before, a.Name)
		leases = append(leases, b.take(b.st, a))
	}
	found := b.list()
	for _, a := range claims {
		kind, is := found[a.Name]
		require.True(b.t, is, "%q is not in the list", a.Name)
		if kind != a.Kind { // the probable one
			a.Kind = kind
			require.ErrorIs(b.t, last(b.other.Look(b.ctx, a)), store.ErrKind)
		}
	}
	for _, l := range leases {
		b.release(l)
	}
}

func listDone(b *bench) {
	cause := errors.New("the caller has ended the call")
	l := b.take(b.st, b.claim(long))
	b.endList(b.done(cause), func(err error) {
		require.ErrorIs(b.t, err, context.Canceled)
		require.ErrorIs(b.t, err, cause)
	})
	b.release(l)
}

func listSilent(b *bench) {
	l := b.take(b.st, b.claim(long))
	restore := b.interrupt()
	b.endList(b.soon, func(err error) { require.Error(b.t, err) })
	restore()
	require.Contains(b.t, b.list(), l.Name)
	b.release(l)
}

func (b *bench) endList(newContext func() context.Context, check func(err error)) {
	ctx := newContext()
	var found map[string]store.Kind
	var err error
	b.promptly(func() { found, err = b.listing(b.st).List(ctx, b.claim(long)) })
	require.Empty(b.t, found)
	check(err)
}
