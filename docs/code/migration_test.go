package code

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
)

func withRedsync(ctx context.Context, rdb redis.UniversalClient, work func(context.Context) error) (err error) {
	// page: redsync-before
	mutex := redsync.New(goredis.NewPool(rdb)).NewMutex("order:42", redsync.WithExpiry(10*time.Second))
	if err := mutex.LockContext(ctx); err != nil { // gives up after 32 tries
		return err
	}
	defer func() {
		if ok, unlockErr := mutex.UnlockContext(context.WithoutCancel(ctx)); !ok || unlockErr != nil {
			err = errors.Join(err, unlockErr, errors.New("the lock was lost"))
		}
	}()
	return work(ctx) // must end within 10 seconds, or call mutex.ExtendContext
	// end
}

func fromRedsync(ctx context.Context, locks *relock.Client, work func(context.Context) error) error {
	// page: redsync-after
	lock := locks.NewLock("order:42", relock.WithTTL(10*time.Second))
	return lock.DoFor(ctx, 5*time.Second, work) // may take longer than the TTL; its context ends with the lock
	// end
}

func withRedislock(ctx context.Context, rdb redis.UniversalClient, work func(context.Context) error) (err error) {
	// page: redislock-before
	lock, err := redislock.New(rdb).Obtain(ctx, "order:42", 10*time.Second, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 50),
	})
	if errors.Is(err, redislock.ErrNotObtained) {
		return errors.New("busy")
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(context.WithoutCancel(ctx))) }()
	return work(ctx) // must end within 10 seconds, or call lock.Refresh
	// end
}

func fromRedislock(ctx context.Context, locks *relock.Client, work func(context.Context) error) error {
	// page: redislock-after
	err := locks.NewLock("order:42", relock.WithTTL(10*time.Second)).DoFor(ctx, 5*time.Second, work)
	if relock.NotEntered(err) && errors.Is(err, relock.ErrLocked) {
		return errors.New("busy")
	}
	return err
	// end
}

func withRueidislock(ctx context.Context, locker rueidislock.Locker, work func(context.Context) error) error {
	// page: rueidislock-before
	section, cancel, err := locker.WithContext(ctx, "order:42")
	if err != nil {
		return err
	}
	defer cancel()
	return work(section) // section ends when the lock is lost
	// end
}

func fromRueidislock(ctx context.Context, locks *relock.Client, work func(context.Context) error) error {
	// page: rueidislock-after
	return locks.NewLock("order:42").Do(ctx, work)
	// end
}

// page: both
// withBoth takes the old lock and then the new one, for the release in which processes with the old
// lock alone, and with both, run side by side.
func withBoth(ctx context.Context, old *redsync.Redsync, locks *relock.Client, name string, work func(context.Context) error) error {
	mutex := old.NewMutex(name, redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	ctx, lost := context.WithCancelCause(ctx)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		keep(ctx, mutex, 10*time.Second, lost)
	}()
	defer func() {
		lost(nil) // no more extensions
		<-extended
		_, _ = mutex.UnlockContext(context.WithoutCancel(ctx)) // an error leaves it to its expiry
	}()
	return locks.NewLock(name).Do(ctx, work)
}

// keep extends the old lock, as relock does by itself, until ctx ends or the old lock is lost.
func keep(ctx context.Context, mutex *redsync.Mutex, every time.Duration, lost context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
			if ok, err := mutex.ExtendContext(ctx); !ok || err != nil {
				lost(fmt.Errorf("the old lock is lost: %w", errors.Join(redsync.ErrExtendFailed, err)))
				return
			}
		}
	}
}

// end

func TestMigration(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, KeyMajority: 1, NoLoopTracking: true,
	})
	require.NoError(t, err)
	defer locker.Close()
	ways := map[string]func(context.Context, func(context.Context) error) error{
		"redsync": func(ctx context.Context, work func(context.Context) error) error { return withRedsync(ctx, rdb, work) },
		"from redsync": func(ctx context.Context, work func(context.Context) error) error {
			return fromRedsync(ctx, locks, work)
		},
		"redislock": func(ctx context.Context, work func(context.Context) error) error {
			return withRedislock(ctx, rdb, work)
		},
		"from redislock": func(ctx context.Context, work func(context.Context) error) error {
			return fromRedislock(ctx, locks, work)
		},
		"rueidislock": func(ctx context.Context, work func(context.Context) error) error {
			return withRueidislock(ctx, locker, work)
		},
		"from rueidislock": func(ctx context.Context, work func(context.Context) error) error {
			return fromRueidislock(ctx, locks, work)
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			ran := 0
			require.NoError(t, way(t.Context(), func(ctx context.Context) error { ran++; return ctx.Err() }))
			require.Equal(t, 1, ran)
			failed := errors.New("failed")
			require.ErrorIs(t, way(t.Context(), func(context.Context) error { return failed }), failed)
		})
	}
}

func TestMigrationWithBothLocks(t *testing.T) {
	rdb := redistest.Start(t).Client()
	locks, err := relock.New(rdb)
	require.NoError(t, err)
	defer locks.Close()
	old := redsync.New(goredis.NewPool(rdb))
	require.NoError(t, withBoth(t.Context(), old, locks, "order:42", func(ctx context.Context) error {
		require.Error(t, old.NewMutex("order:42").TryLockContext(ctx), "processes with the old lock are kept out")
		_, err := locks.NewLock("order:42").TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked, "processes with the new lock are kept out")
		return ctx.Err()
	}))
	free := old.NewMutex("order:42")
	require.NoError(t, free.TryLockContext(t.Context()))
	_, err = free.UnlockContext(t.Context())
	require.NoError(t, err)
	require.NoError(t, locks.NewLock("order:42").Do(t.Context(), ship1))
}

func TestMigrationStopsTheWorkWhenTheOldLockIsLost(t *testing.T) {
	rdb := redistest.Start(t).Client()
	mutex := redsync.New(goredis.NewPool(rdb)).NewMutex("order:42")
	require.NoError(t, mutex.LockContext(t.Context()))
	ctx, lost := context.WithCancelCause(t.Context())
	defer lost(nil)
	go keep(ctx, mutex, time.Millisecond, lost)
	require.NoError(t, rdb.Del(t.Context(), "order:42").Err())
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "the old lock is lost")
}
