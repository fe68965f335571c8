package code

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/leader"
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

func TestTwoProcessesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New() // stands for one Redis
		send := func(context.Context, string) error { <-time.After(2 * time.Second); return nil }
		begin, shipped := time.Now(), make(chan error)
		for range 2 {
			process := &Shipper{Locks: locktest.ClientOn(t, server), Send: send}
			go func() { shipped <- process.Ship(t.Context(), "42") }()
		}
		for range 2 {
			require.NoError(t, <-shipped)
		}
		require.Equal(t, 4*time.Second, time.Since(begin)) // one after the other
	})
}

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

func TestTheOrderOfACrashedProcessIsShippedAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		crashed, err := relock.Open(server, relock.WithTTL(3*time.Second))
		require.NoError(t, err)
		_, err = crashed.NewLock("orders:42").Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, crashed.Close()) // nobody renews the lease any more

		begin, shipped := time.Now(), time.Duration(0)
		s := &Shipper{Locks: locktest.ClientOn(t, server), Send: func(context.Context, string) error {
			shipped = time.Since(begin)
			return nil
		}}
		require.NoError(t, s.Ship(t.Context(), "42"))
		require.InDelta(t, 3*time.Second, shipped, float64(100*time.Millisecond))
	})
}

func TestShipWhileRedisIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		var restore func()
		s := &Shipper{Locks: locktest.ClientOn(t, server), Send: func(ctx context.Context, _ string) error {
			restore = server.Interrupt(errors.New("connection refused"))
			<-ctx.Done()
			return ctx.Err()
		}}
		err := s.Ship(t.Context(), "42") // Redis goes away during the shipping
		var lost *relock.LostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, event.LossExpired, lost.Reason) // no renewal was confirmed in time

		err = s.Ship(t.Context(), "43") // Redis is still away
		require.ErrorIs(t, err, relock.ErrUnavailable)
		require.ErrorIs(t, err, relock.ErrNotEntered)
		restore()
	})
}

func TestAShutdownEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		other := locktest.ClientOn(t, server).NewLock("orders:42")
		section, err := other.Lock(t.Context())
		require.NoError(t, err)
		defer other.Unlock(section)

		told, tell := context.WithCancel(t.Context()) // signal.NotifyContext in a service
		time.AfterFunc(time.Second, tell)
		s := &Shipper{Locks: locktest.ClientOn(t, server)}
		begin := time.Now()
		err = s.Ship(relock.WithStop(t.Context(), told), "42")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, relock.ErrNotEntered)
		require.Equal(t, time.Second, time.Since(begin))
	})
}

func TestTheNextCandidateLeadsAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mem.New()
		ctx, stop := context.WithCancel(t.Context())
		terms := make(chan string, 10)
		var candidates sync.WaitGroup
		for _, name := range []string{"one", "two"} {
			lock := locktest.ClientOn(t, server).NewLock("leader")
			candidates.Go(func() {
				_ = leader.Run(ctx, lock, func(ctx context.Context) error {
					terms <- name
					<-ctx.Done() // the term ends with a loss, or with stop
					return ctx.Err()
				})
			})
			<-time.After(time.Second) // in fake time: "one" leads before "two" begins
		}
		for range 2 {
			server.Lose("leader")
			<-time.After(time.Second)
		}
		stop()
		candidates.Wait()
		close(terms)
		var order []string
		for name := range terms {
			order = append(order, name)
		}
		require.Equal(t, []string{"one", "two", "one"}, order)
	})
}

// refusing is a relock.Locker that nobody can lock.
type refusing struct{ err error }

func (r refusing) Lock(context.Context) (context.Context, error)    { return nil, r.err }
func (r refusing) TryLock(context.Context) (context.Context, error) { return nil, r.err }
func (r refusing) Unlock(context.Context) error                     { return relock.ErrNotHeld }

func TestTheCacheIsServedWhileReplicasLag(t *testing.T) {
	price, err := Price(t.Context(), refusing{relock.ErrNotReplicated})
	require.NoError(t, err)
	require.Equal(t, "from the cache", price)
}

// Price takes a new price under the lock, or the old one if the lock cannot be had.
func Price(ctx context.Context, l relock.Locker) (price string, err error) {
	err = relock.Do(ctx, l, func(context.Context) error {
		price = "new"
		return nil
	})
	if errors.Is(err, relock.ErrNotEntered) {
		return "from the cache", nil
	}
	return price, err
}

func TestThePriceIsNewUnderTheLock(t *testing.T) {
	price, err := Price(t.Context(), locktest.Client(t).NewLock("price"))
	require.NoError(t, err)
	require.Equal(t, "new", price)
}

func TestWithMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true) // without it a lease never ends
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	client, err := relock.New(rdb)
	require.NoError(t, err)
	defer client.Close()

	s := &Shipper{Locks: client, Send: func(context.Context, string) error {
		server.Del("relock:{orders:42}") // the lock is lost
		return nil
	}}
	require.ErrorIs(t, s.Ship(t.Context(), "42"), relock.ErrLockLost)
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
