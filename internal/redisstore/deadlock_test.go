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

func TestAShorterWaitLeavesALongerOneShown(t *testing.T) {
	r := newRig(t)
	long, short := r.waiting(), r.waiting()
	short.Holds = long.Holds
	require.NoError(t, r.store.Show(t.Context(), long, minute))
	require.NoError(t, r.store.Show(t.Context(), short, time.Second))
	require.Greater(t, r.ttl(r.store.waitsKey(long.Holds[0])), minute/2)
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
