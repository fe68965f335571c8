package faults_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
)

// Do many goroutines exclude each other on a real server while everything breaks?

// This file is about many goroutines on a real server, while everything breaks.

// The tests below are worth what this one shows.
func TestTheWitnessNoticesTwoAtOnceAndTokensThatDoNotGrow(t *testing.T) {
	w := stage.OnShared(t)
	l, other := w.Peer().NewLock("a"), w.Peer().NewLock("b")
	first, second := w.Enter(t.Context(), l), w.Enter(t.Context(), other)
	w.Draw(first, l)
	token := w.Draw(second, other)
	for _, lost := range []bool{false, true} {
		g := stage.Witness{Lost: lost}
		require.True(t, g.Enter(first, l))
		require.True(t, g.Enter(second, other))
		require.Len(t, g.Faults, 1)
		require.Contains(t, g.Faults[0], "while another still is in")
		g = stage.Witness{Lost: lost, Token: token}
		require.True(t, g.Enter(second, other))
		require.Len(t, g.Faults, 1)
		require.Contains(t, g.Faults[0], "comes after")
	}
	w.Leave(second, other)
	require.NoError(t, l.ForceUnlock(t.Context()))
	w.Lost(first)
	require.False(t, (&stage.Witness{Lost: true}).Enter(first, l))
	var g stage.Witness
	require.False(t, g.Enter(first, l))
	require.Len(t, g.Faults, 1)
	require.ErrorIs(t, l.Unlock(first), relock.ErrLockLost)
}
