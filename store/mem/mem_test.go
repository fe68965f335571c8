package mem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/store/storetest"
)

func TestMemKeepsThePromisesOfStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Start: func(*testing.T) storetest.Server {
			s := mem.New()
			return storetest.Server{
				New:       func() store.Store { return s },
				Interrupt: func() func() { return s.Interrupt(nil) },
				Lose:      s.Lose,
			}
		},
		Without: map[storetest.Promise]string{
			storetest.Acks:        "memory has no replicas",
			storetest.CheckServer: "there is no server that could lack something",
		},
		TTL:      200 * time.Millisecond,
		Parallel: true,
		Around:   synctest.Test,
	})
}

func claim(n int) store.Claim {
	return store.Claim{Name: "orders", ID: store.ID(fmt.Sprintf("client:1:%d", n)), TTL: time.Second, Limit: 1}
}

func TestLeaseEndsAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begun := mem.New(), time.Now()
		_, err := s.Try(t.Context(), claim(1))
		require.NoError(t, err)
		l, err := s.Wait(t.Context(), claim(2), func(p store.Progress) {
			require.Equal(t, store.Progress{Busy: &store.Busy{Owner: "client:1:1", TTL: time.Second}, Queued: true}, p)
		})
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(begun))
		require.Equal(t, store.Lease{Claim: claim(2), Sent: time.Now(), Woken: store.WakeGrant}, l)
	})
}

func TestLoseKeepsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begun := mem.New(), time.Now()
		var doubts []store.ID
		defer s.Watch("client", func(id store.ID) { doubts = append(doubts, id) })()
		lost, err := s.Try(t.Context(), claim(1))
		require.NoError(t, err)
		waited := make(chan error)
		go func() {
			_, err := s.Wait(t.Context(), claim(2), func(store.Progress) {})
			waited <- err
		}()
		synctest.Wait()
		s.Lose("orders")
		state, err := s.Look(t.Context(), claim(0))
		require.NoError(t, err)
		require.Equal(t, store.State{Owner: "client:1:2", Count: 1, TTL: time.Second, Limit: 1}, state)
		require.Equal(t, []store.ID{"client:1:1"}, doubts)
		require.ErrorIs(t, s.Release(t.Context(), lost), store.ErrGone)
		require.NoError(t, <-waited)
		require.Zero(t, time.Since(begun))
	})
}

func TestInterrupt(t *testing.T) {
	cause := errors.New("cable cut")
	t.Run("commands do not run", func(t *testing.T) {
		s := mem.New()
		restore := s.Interrupt(cause)
		_, err := s.Try(t.Context(), claim(1))
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, store.ErrUnavailable)
		require.NotErrorIs(t, err, store.ErrUnsure)
		restore()
		restore()
		_, err = s.Try(t.Context(), claim(2))
		require.NoError(t, err)
	})
	t.Run("answers are lost", func(t *testing.T) {
		s := mem.New()
		restore := s.Interrupt(store.Unsure(cause))
		_, err := s.Try(t.Context(), claim(1))
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, store.ErrUnsure)
		restore()
		_, err = s.Try(t.Context(), claim(2))
		require.Equal(t, store.ID("client:1:1"), busy(t, err).Owner)
	})
	t.Run("a wait that ends leaves its place", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := mem.New()
			_, err := s.Try(t.Context(), claim(1))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var restore func()
			_, err = s.Wait(ctx, claim(2), func(store.Progress) {
				restore = s.Interrupt(cause)
				cancel()
			})
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, store.ErrUnsure)
			restore()
			state, err := s.Look(t.Context(), claim(0))
			require.NoError(t, err)
			require.Equal(t, 1, state.Waiters)
		})
	})
	t.Run("watchers doubt all holds at the end", func(t *testing.T) {
		s := mem.New()
		var doubts []store.ID
		stop := s.Watch("client", func(id store.ID) { doubts = append(doubts, id) })
		s.Interrupt(nil)()
		stop()
		s.Interrupt(nil)()
		require.Equal(t, []store.ID{""}, doubts)
	})
}

func busy(t *testing.T, err error) *store.Busy {
	t.Helper()
	var b *store.Busy
	require.ErrorAs(t, err, &b)
	return b
}
