package code

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
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
	"github.com/go-relock/relock/internal/test/redistest"
)

// This file has the code of docs/MIGRATION.md.

// page: both
// oldLock takes the old lock, and returns the context for the work and the function that unlocks.
type oldLock func(ctx context.Context) (section context.Context, unlock func() error, err error)

// both runs work with the new lock and, inside of it, with the old lock.
func both(ctx context.Context, lock *relock.Lock, old oldLock, work func(ctx context.Context) error) error {
	return lock.Do(ctx, func(ctx context.Context) (err error) {
		section, unlock, err := old(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unlock()) }()
		return work(section)
	})
}

// end

// page: old-redsync
// oldRedsync is the lock of redsync, for both.
func oldRedsync(rs *redsync.Redsync, name string, options ...redsync.Option) oldLock {
	return func(ctx context.Context) (context.Context, func() error, error) {
		mutex := rs.NewMutex(name, options...) // a mutex has a state, so one for each use
		unlock := func() error {
			_, err := mutex.UnlockContext(context.WithoutCancel(ctx))
			return err
		}
		return ctx, unlock, mutex.LockContext(ctx)
	}
}

// end

// oldRedislock is the lock of redislock, for both.
func oldRedislock(locker *redislock.Client, name string, ttl time.Duration, options *redislock.Options) oldLock {
	return func(ctx context.Context) (context.Context, func() error, error) {
		lock, err := locker.Obtain(ctx, name, ttl, options)
		return ctx, func() error { return lock.Release(context.WithoutCancel(ctx)) }, err
	}
}

// oldRueidislock is the lock of rueidislock, for both.
func oldRueidislock(locker rueidislock.Locker, name string) oldLock {
	return func(ctx context.Context) (context.Context, func() error, error) {
		for {
			section, cancel, err := locker.TryWithContext(ctx, name)
			if !errors.Is(err, rueidislock.ErrNotLocked) {
				return section, func() error { cancel(); return nil }, err
			}
			select {
			case <-time.After(10 * time.Millisecond): // WithContext may miss an unlock
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		}
	}
}

// inside counts the calls that are in charge at one time, and all calls.
type inside struct {
	mu             sync.Mutex
	now, most, all int
}

func (in *inside) add(n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.now += n
	in.most = max(in.most, in.now)
	in.all += max(n, 0)
}

type insideKey struct{}

// charge is the work of the examples. It takes a while, and notes how many calls overlap.
func charge(ctx context.Context, _ string) error {
	in, _ := ctx.Value(insideKey{}).(*inside)
	in.add(1)
	defer in.add(-1)
	return last(ctx, 2*time.Millisecond)
}

// last takes d, or until ctx is done.
func last(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// requireAlone runs three of each call at once, and requires that no two charges overlap.
func requireAlone(t *testing.T, calls ...func(ctx context.Context) error) {
	t.Helper()
	var in inside
	ctx := context.WithValue(t.Context(), insideKey{}, &in)
	errs := make([]error, 3*len(calls))
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = calls[i%len(calls)](ctx) })
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, len(errs), in.all)
	require.Equal(t, 1, in.most, "calls overlapped")
}

// libraries are the clients of one process.
type libraries struct {
	redsync     *redsync.Redsync
	redislock   *redislock.Client
	rueidislock rueidislock.Locker
	relock      *relock.Client
}

func openLibraries(rdb *redis.Client, options ...relock.Option) (l libraries, err error) {
	l = libraries{redsync: redsync.New(goredis.NewPool(rdb)), redislock: redislock.New(rdb)}
	if l.relock, err = relock.New(rdb, options...); err != nil {
		return l, err
	}
	l.rueidislock, err = rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{rdb.Options().Addr}},
		KeyMajority:  1, NoLoopTracking: true, // as its documentation advises for one server
		TryNextAfter: time.Second, // a busy machine needs more than 20 ms
	})
	return l, err
}

func (l libraries) close() error {
	l.rueidislock.Close()
	return l.relock.Close()
}

func newLibraries(t *testing.T, options ...relock.Option) libraries {
	t.Helper()
	l, err := openLibraries(redistest.Shared(t).Client(), options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.close()) })
	return l
}

// old returns the lock of the library before, with short pauses between its tries.
func (l libraries) old(library, name string) oldLock {
	const pause = 3 * time.Millisecond
	switch library {
	case "redsync":
		return oldRedsync(l.redsync, name, redsync.WithTries(10_000), redsync.WithRetryDelay(pause), redsync.WithExpiry(time.Minute))
	case "redislock":
		return oldRedislock(l.redislock, name, time.Minute, &redislock.Options{RetryStrategy: redislock.LinearBackoff(pause)})
	default:
		return oldRueidislock(l.rueidislock, name)
	}
}

func chargeBoth(ctx context.Context, client *relock.Client, rs *redsync.Redsync) error {
	// page: switching
	name := "orders:42"
	return both(ctx, client.NewLock(name), oldRedsync(rs, name), func(ctx context.Context) error {
		return charge(ctx, "42")
	})
	// end
}

func TestCodeForASwitchWorksAlone(t *testing.T) {
	l := newLibraries(t)
	requireAlone(t, func(ctx context.Context) error { return chargeBoth(ctx, l.relock, l.redsync) })
}

// A release is a process of the service in the release "old", "both" or "new". The process prints
// "ready", waits for a line, works 30 times with the lock, and prints the largest number of
// processes that it has seen at work at one time. Processes that may meet work until they have.
var _ = func() bool {
	redistest.RegisterChild("release", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := runRelease(args[0], args[1], args[2], args[3] == "true", in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

func runRelease(addr, release, library string, meet bool, in *bufio.Reader, out io.Writer) error {
	ctx, name, most := context.Background(), "switch:"+library, int64(0)
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	l, err := openLibraries(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = l.close() }()
	work := func(ctx context.Context) error {
		now, err := rdb.Incr(ctx, "at work:"+library).Result()
		most = max(most, now)
		if most > 1 {
			err = errors.Join(err, rdb.Set(ctx, "met:"+library, 1, 0).Err())
		}
		for meet && err == nil && rdb.Exists(ctx, "met:"+library).Val() == 0 {
			err = last(ctx, time.Millisecond)
		}
		return errors.Join(err, last(ctx, 2*time.Millisecond), rdb.Decr(ctx, "at work:"+library).Err())
	}
	lock, old := l.relock.NewLock(name), l.old(library, name)
	fmt.Fprintln(out, "ready")
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	for range 30 {
		switch release {
		case "old":
			var section context.Context
			var unlock func() error
			if section, unlock, err = old(ctx); err == nil {
				err = errors.Join(work(section), unlock())
			}
		case "both":
			err = both(ctx, lock, old, work)
		default:
			err = lock.Do(ctx, work)
		}
		if err != nil {
			return err
		}
		_ = last(ctx, time.Millisecond) // so that the other process has its turn
	}
	fmt.Fprintln(out, "most", most)
	return nil
}

// mostAtWork runs a process of each release at once. With meet, each works until it has met the other.
func mostAtWork(t *testing.T, library string, meet bool, releases ...string) (most string) {
	t.Helper()
	const limit = time.Minute
	var processes []*redistest.Process
	for _, release := range releases {
		p := redistest.Child(t, "release", redistest.Shared(t).Addr(), release, library, strconv.FormatBool(meet))
		p.Expect("ready", limit)
		processes = append(processes, p)
	}
	for _, p := range processes {
		p.Send("go")
	}
	for _, p := range processes {
		most = max(most, strings.TrimSpace(p.Expect("most", limit)))
		require.NoError(t, p.Wait(limit))
	}
	return most
}

func TestOldAndNewProcessesExcludeEachOtherThroughBoth(t *testing.T) {
	for _, library := range []string{"redsync", "redislock", "rueidislock"} {
		t.Run(library, func(t *testing.T) {
			require.Equal(t, "1", mostAtWork(t, library, false, "old", "both"), "the first release")
			require.Equal(t, "1", mostAtWork(t, library, false, "both", "new"), "the second release")
			require.Greater(t, mostAtWork(t, library, true, "old", "new"), "1", "both releases in one step")
		})
	}
}

func TestLocksOfTwoLibrariesDoNotExcludeEachOther(t *testing.T) {
	l := newLibraries(t)
	mutex := l.redsync.NewMutex("apart")
	require.NoError(t, mutex.LockContext(t.Context()))
	lock := l.relock.NewLock("apart")
	section, err := lock.TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(section))
	_, err = mutex.UnlockContext(t.Context())
	require.NoError(t, err, "redsync had its lock all the time")
}
