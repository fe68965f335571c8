package redisstore

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
)

// What do token, break and state read and write?

func TestToken(t *testing.T) {
	t.Run("does not go back with the clock", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		ahead := time.Now().Add(time.Hour).UnixMicro()
		require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, ahead, minute).Err())
		require.Equal(t, ahead+1, r.token(id))
		require.Equal(t, ahead+2, r.token(id))
		require.InDelta(t, 25*time.Hour, r.rdb.PTTL(t.Context(), r.base+tokenSuffix).Val(), float64(2*time.Second))
	})
	t.Run("is refused where the key holds none", func(t *testing.T) {
		r := newRig(t)
		id := r.enter("a")
		for _, foreign := range []string{"", "x", "1.5", "-1", "1e3", "9000000000000001", "99999999999999999999999"} {
			require.NoError(t, r.rdb.Set(t.Context(), r.base+tokenSuffix, foreign, minute).Err())
			r.unchanged(func() {
				_, err := r.store.Token(t.Context(), r.held(id, minute))
				require.ErrorContains(t, err, "holds no token", "%q", foreign)
				require.NotErrorIs(t, err, store.ErrUnsure)
			})
		}
	})
}

func TestLook(t *testing.T) {
	r := newRig(t)
	require.Equal(t, store.State{TTL: -2 * time.Millisecond}, r.look())
	id := r.enter("a")
	token := r.token(id)
	r.renew(id, 0, 2)
	r.queue("gone")
	r.unchanged(func() {
		state := r.look()
		require.InDelta(t, minute, state.TTL, float64(2*time.Second))
		state.TTL = 0
		require.Equal(t, store.State{Owner: store.ID(id), Count: 2, Limit: 1, Token: token, Waiters: 1}, state)
	})
	require.NoError(t, r.rdb.Do(t.Context(), "EXPIRE", r.base, 1000*365*24*3600).Err())
	require.Greater(t, r.look().TTL, time.Duration(math.MaxInt64-2e6), "as long as a Duration can be")
}
