package mem

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

func TestAdmitsCountsTheSmallestLimit(t *testing.T) {
	for _, c := range []struct {
		in     []int
		limit  int
		admits bool
	}{
		{nil, 1, true},
		{[]int{1}, 1, false},
		{[]int{1}, store.Unlimited, false},
		{[]int{store.Unlimited}, store.Unlimited, true},
		{[]int{store.Unlimited}, 1, false},
		{[]int{3, 3}, 3, true},
		{[]int{3, 3, 3}, 3, false},
		{[]int{2, store.Unlimited}, store.Unlimited, false},
	} {
		k := &lock{}
		for _, limit := range c.in {
			k.enter(&hold{Lease: store.Lease{Claim: store.Claim{ID: "in", Limit: limit}}}, store.WakeNone)
		}
		require.Equal(t, c.admits, k.admits(&hold{Lease: store.Lease{Claim: store.Claim{Limit: c.limit}}}), "%+v", c)
	}
}

func TestFreeLockIsNotKept(t *testing.T) {
	s, a := New(), store.Claim{Name: "orders", ID: "client:1:1", TTL: time.Minute, Limit: 1}
	l, err := s.Try(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, s.locks, 1)
	require.NoError(t, s.Release(t.Context(), l))
	require.Empty(t, s.locks)
	_, err = s.Look(t.Context(), a)
	require.NoError(t, err)
	require.Empty(t, s.locks)
}

func TestUpgradesOfOneReaderWaitInOrder(t *testing.T) {
	k := &lock{}
	waiter := func(id, with store.ID) *hold {
		return &hold{Lease: store.Lease{Claim: store.Claim{ID: id, With: with, Kind: store.ReadWrite, Limit: 1}}}
	}
	for i, h := range []*hold{waiter("late", ""), waiter("first", "reader"), waiter("second", "reader")} {
		position, err := k.join(h)
		require.NoError(t, err)
		require.Equal(t, []int{0, 0, 1}[i], position)
	}
	_, err := k.join(waiter("deadlock", "other"))
	require.ErrorIs(t, err, store.ErrDeadlock)
	require.Len(t, k.queue, 3)
}
