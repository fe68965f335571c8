package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// What do the scripts of waits show and take back?

// waiting is the wait of a hold inside two sections.
func (r *rig) waiting() store.Waiting {
	return store.Waiting{
		ID: store.ID(newID("w")), Name: "orders", Holds: []store.ID{store.ID(newID("w")), store.ID(newID("w"))},
		For: []store.ID{store.ID(newID("other"))}, Since: time.Now().UTC().Truncate(0), Round: 1,
	}
}

func (r *rig) shown(holds ...store.ID) []store.Waiting {
	r.Helper()
	waits, err := r.store.Shown(r.Context(), holds)
	require.NoError(r, err)
	return waits
}

func TestAWaitIsShownUnderEachHoldAroundIt(t *testing.T) {
	r := newRig(t)
	w := r.waiting()
	for range 2 { // a command may run twice
		require.NoError(t, r.store.Show(t.Context(), w, minute))
		for _, hold := range w.Holds {
			require.Equal(t, []store.Waiting{w}, r.shown(hold))
			ttl, err := r.rdb.PTTL(t.Context(), r.store.waitsKey(hold)).Result()
			require.NoError(t, err)
			require.Positive(t, ttl)
			require.LessOrEqual(t, ttl, minute)
		}
	}
	require.Empty(t, r.shown(w.ID), "the waiting hold itself has no section yet")
	require.Len(t, r.shown(w.Holds...), 2)
}

func TestAWaitThatIsShownAgainTakesThePlaceOfTheOldOne(t *testing.T) {
	r := newRig(t)
	w := r.waiting()
	require.NoError(t, r.store.Show(t.Context(), w, minute))
	w.Round, w.For = 2, []store.ID{store.ID(newID("another"))}
	require.NoError(t, r.store.Show(t.Context(), w, minute))
	require.Equal(t, []store.Waiting{w}, r.shown(w.Holds[0]))
}

func TestAWaitThatIsTakenBackLeavesNothing(t *testing.T) {
	r := newRig(t)
	w, other := r.waiting(), r.waiting()
	other.Holds = w.Holds
	require.NoError(t, r.store.Show(t.Context(), w, minute))
	require.NoError(t, r.store.Show(t.Context(), other, minute))
	for range 2 {
		gone := w
		gone.For = nil
		require.NoError(t, r.store.Show(t.Context(), gone, minute))
		require.Equal(t, []store.Waiting{other}, r.shown(w.Holds[0]))
	}
	other.For = nil
	require.NoError(t, r.store.Show(t.Context(), other, minute))
	for _, hold := range w.Holds {
		require.Zero(t, r.rdb.Exists(t.Context(), r.store.waitsKey(hold)).Val())
	}
}

func TestAForeignValueAmongWaitsIsAnError(t *testing.T) {
	r := newRig(t)
	w := r.waiting()
	key := r.store.waitsKey(w.Holds[0])
	require.NoError(t, r.rdb.HSet(t.Context(), key, "x", "no wait").Err())
	require.NoError(t, r.rdb.Expire(t.Context(), key, minute).Err())
	_, err := r.store.Shown(t.Context(), w.Holds)
	require.ErrorContains(t, err, "shown")
}
