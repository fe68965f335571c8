package code

import (
	"context"
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/locktest"
	"github.com/go-relock/relock/locktest/explore"
	"github.com/go-relock/relock/store/mem"
)

// This file has the code of the tests in docs/QUICKSTART.md.

// page: subject
// Shipper ships orders. An order is shipped by one process at a time.
type Shipper struct {
	Locks *relock.Client
	Send  func(ctx context.Context, order string) error
}

// Ship waits at most 5 seconds for another process that ships the order.
func (s *Shipper) Ship(ctx context.Context, order string) error {
	return s.Locks.NewLock("orders:"+order).DoFor(ctx, 5*time.Second, func(ctx context.Context) error {
		return s.Send(ctx, order)
	})
}

// end

func TestShipGivesUpAfterFiveSeconds(t *testing.T) {
	// page: busy
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		other := locktest.ClientOn(t, server, relock.WithOwner("other")).NewLock("orders:42")
		section, err := other.Lock(t.Context())
		require.NoError(t, err)
		defer other.Unlock(section)

		s := &Shipper{Locks: locktest.ClientOn(t, server)} // Send is nil: a call would panic
		begin := time.Now()
		err = s.Ship(t.Context(), "42")
		require.ErrorIs(t, err, relock.ErrLocked)
		require.ErrorContains(t, err, "other") // the error says who has the lock
		require.ErrorIs(t, err, relock.ErrNotEntered)
		require.Equal(t, 5*time.Second, time.Since(begin))
	})
	// end
}

func TestNoParcelIsSentWithoutTheLock(t *testing.T) {
	// page: explore
	explore.RunUnfenced(t, func(t *testing.T, w *explore.World) {
		s := &Shipper{Locks: w.Client(), Send: func(ctx context.Context, _ string) error {
			for range 30 {
				select {
				case <-ctx.Done(): // the code under test has to look at its context
					return ctx.Err()
				case <-time.After(time.Second):
					w.Work(ctx) // a parcel leaves
				}
			}
			return nil
		}}
		if err := s.Ship(t.Context(), "42"); w.Accident == "" {
			require.NoError(t, err)
		}
	})
	// end
}

func TestOnARealServer(t *testing.T) {
	rdb := redistest.Shared(t).Client()
	// page: integration
	client, err := relock.New(rdb, relock.WithPrefix("test:"+rand.Text()+":"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.NoError(t, client.Check(t.Context())) // has the server all that locks need?
	// end
	s := &Shipper{Locks: client, Send: func(context.Context, string) error { return nil }}
	require.NoError(t, s.Ship(t.Context(), "42"))
}
