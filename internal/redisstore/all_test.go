package redisstore

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// What does a script for several locks change, and what does its reply mean?

// claims returns claims of one client for locks of the rig, each with a lease.
func (r *rig) claims(ttls ...time.Duration) (claims []store.Claim) {
	r.Helper()
	for i, ttl := range ttls {
		a := r.claim(newID("a"), ttl)
		a.Name = r.key(i)
		claims = append(claims, a)
	}
	clean := func() {
		for i := range ttls {
			r.rdb.Del(r.Context(), r.key(i), r.key(i)+queueSuffix)
		}
	}
	clean()
	return claims
}

func (r *rig) key(i int) string { return r.base + strconv.Itoa(i) }

func TestTryAllAgainKeepsTheLeases(t *testing.T) {
	r := newRig(t)
	claims := r.claims(minute, minute/2, minute/4)
	sent := time.Now()
	leases, err := r.store.TryAll(t.Context(), claims)
	require.NoError(t, err)
	for i, l := range leases {
		require.Equal(t, claims[i], l.Claim)
		require.WithinRange(t, l.Sent, sent, time.Now())
	}
	require.NoError(t, r.rdb.PExpire(t.Context(), r.key(0), 10*time.Second).Err())
	require.NoError(t, r.rdb.Del(t.Context(), r.key(2)).Err())
	leases, err = r.store.TryAll(t.Context(), claims)
	require.NoError(t, err)
	require.LessOrEqual(t, r.rdb.PTTL(t.Context(), r.key(0)).Val(), 10*time.Second)
	require.Greater(t, r.rdb.PTTL(t.Context(), r.key(2)).Val(), 10*time.Second)
	for _, l := range leases {
		left := time.Until(l.Sent.Add(l.TTL))
		require.InDelta(t, 10*time.Second, left, float64(time.Second), "as the shortest lease")
	}
	require.Equal(t, []error{nil, nil, nil}, r.store.ReleaseAll(t.Context(), leases))
	for _, err := range r.store.ReleaseAll(t.Context(), leases) {
		require.ErrorIs(t, err, store.ErrGone)
	}
}

func TestTryAllThatRedisRefusesIsLeftToSingleLocks(t *testing.T) {
	r := newRig(t)
	claims := r.claims(minute, minute)
	require.NoError(t, r.rdb.Set(t.Context(), r.key(1), "no lock", minute).Err())
	_, err := r.store.TryAll(t.Context(), claims)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotErrorIs(t, err, store.ErrUnsure)
	require.Zero(t, r.rdb.Exists(t.Context(), r.key(0)).Val())
	r.rdb.Del(t.Context(), r.key(1))
	claims[0].Acks = store.Acks{Replicas: 1, Timeout: time.Second}
	_, err = r.store.TryAll(t.Context(), claims)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestRepliesOfAll(t *testing.T) {
	for _, bad := range []any{
		nil, "1", int64(0), int64(2), []any{}, []any{int64(0)}, []any{int64(0), "a", int64(1)},
		[]any{int64(0), "a", int64(1), int64(0)}, []any{int64(0), "a", int64(1), int64(3)},
		[]any{int64(2), "a", int64(1), int64(1)}, []any{int64(0), "a", int64(1), "1"},
	} {
		_, _, err := parseAllReply(scripts.all, bad, 2)
		require.ErrorIs(t, err, store.ErrUnsure, bad)
	}
	r, busy, err := parseAllReply(scripts.all, []any{int64(0), "a", int64(5), int64(2)}, 2)
	require.NoError(t, err)
	require.Equal(t, 1, busy)
	require.Equal(t, &store.Busy{Owner: "a", TTL: 5 * time.Millisecond}, r.busy())
	_, _, err = parseAllReply(scripts.all, int64(1), 2)
	require.NoError(t, err)
}
