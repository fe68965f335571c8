package explore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/locktest/explore"
)

// Is work without its lock found, and is no other work accused?

// job is what a worker does in a section.
type job func(section context.Context, w *explore.World, lock *relock.Lock) error

// seconds of work, a piece in each. The lease is renewed meanwhile.
const seconds = 35

func careless(section context.Context, w *explore.World, _ *relock.Lock) error {
	for range seconds {
		<-time.After(time.Second)
		w.Work(section)
	}
	return nil
}

func careful(section context.Context, w *explore.World, _ *relock.Lock) error {
	for range seconds {
		select {
		case <-time.After(time.Second):
			w.Work(section)
		case <-section.Done():
			return context.Cause(section)
		}
	}
	return nil
}

// workers runs two workers, each in a process of its own.
func workers(w *explore.World, worker func(client *relock.Client)) {
	var all sync.WaitGroup
	defer all.Wait()
	for range 2 {
		client := w.Client()
		all.Go(func() { worker(client) })
		<-time.After(time.Millisecond)
	}
}

// inLock is a program of two workers that do a job under one lock.
func inLock(do job) func(t *testing.T, w *explore.World) {
	return func(t *testing.T, w *explore.World) {
		t.Helper()
		workers(w, func(client *relock.Client) {
			lock := client.NewLock("orders:42")
			err := lock.Do(t.Context(), func(section context.Context) error { return do(section, w, lock) })
			if w.Accident == "" && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorkThatIgnoresItsContextIsFound(t *testing.T) {
	cures, texts := explore.Findings(t, inLock(careless))
	require.NotZero(t, cures[explore.Stop], "%q", texts)
	require.Len(t, texts, len(cures), "one finding for all runs")
	require.Regexp(t, `explore/explore_test\.go:\d+: work without the lock "orders:42": `+explore.Stop+`: in \d+ of \d+ runs, `+
		`first in TestWorkThatIgnoresItsContextIsFound/forgotten@2\.Wait\.1, \d+m?s after the store forgot all locks and told nobody, `+
		`at Wait 1 of process 2, of "orders:42", in explore/explore_test\.go:\d+`, texts)
}

func TestWorkThatEndsWithItsContextNeedsAFence(t *testing.T) {
	explore.RunUnfenced(t, inLock(careful))
	cures, texts := explore.Findings(t, inLock(careful))
	require.NotZero(t, cures[explore.Fence])
	require.Len(t, cures, 1, "%q", texts)
}

// guarded is a job on a resource that sees tokens. in lets a piece of work into the resource.
func guarded(in func(ctx context.Context, token int64) (leave func(), err error)) job {
	return func(section context.Context, w *explore.World, lock *relock.Lock) error {
		token, err := lock.Token(section)
		if err != nil {
			return err
		}
		for range seconds {
			<-time.After(time.Second) // ends with the fence, if not with its context
			w.Step(section)
			leave, err := in(context.WithoutCancel(section), token)
			if err != nil {
				return err
			}
			w.Fenced(section)
			leave()
		}
		return nil
	}
}

func TestWorkBehindAFenceIsNotAccused(t *testing.T) {
	explore.Run(t, func(t *testing.T, w *explore.World) {
		var orders fence.Memory
		inLock(guarded(func(ctx context.Context, token int64) (func(), error) {
			return orders.Enter(ctx, "42", token)
		}))(t, w)
	})
}

func TestAFenceThatRemembersTheLastTokenOnlyIsFound(t *testing.T) {
	cures, texts := explore.Findings(t, func(t *testing.T, w *explore.World) {
		var mu sync.Mutex
		var last int64
		inLock(guarded(func(_ context.Context, token int64) (func(), error) {
			mu.Lock()
			defer mu.Unlock()
			if token == last-1 && w.Accident == "" {
				return nil, errors.New("stale")
			}
			last = token // and not the largest so far
			return func() {}, nil
		}))(t, w)
	})
	require.NotZero(t, cures[explore.BadFence])
	require.Len(t, cures, 1, "%q", texts)
}

func TestWorkThatGoesOnWithoutEnteringIsFound(t *testing.T) {
	cures, _ := explore.Findings(t, func(t *testing.T, w *explore.World) {
		workers(w, func(client *relock.Client) {
			lock := client.NewLock("orders:42")
			section, err := lock.TryLockFor(t.Context(), 20*time.Second)
			if err == nil {
				defer lock.Unlock(section)
			}
			w.Work(section) // as if an error meant that nobody else works
		})
	})
	require.NotZero(t, cures[explore.Outside])
}

func TestWorkAfterUnlockIsFoundWithoutAnAccident(t *testing.T) {
	cures, texts := explore.Findings(t, inLock(func(section context.Context, w *explore.World, lock *relock.Lock) error {
		inner, err := lock.Lock(section)
		if err != nil {
			return err
		}
		return errors.Join(lock.Unlock(inner), other(section, w))
	}))
	require.Equal(t, map[string]int{explore.Stop: 1}, cures)
	require.Contains(t, texts[0], `lock "customers": `+explore.Stop+", without an accident")
}

// other works after the end of a section inside of a section.
func other(section context.Context, w *explore.World) error {
	lock := w.Client().NewLock("customers")
	inner, err := lock.Lock(section)
	if err != nil {
		return err
	}
	defer w.Work(inner)
	return lock.Unlock(inner)
}

func TestWorkUnderSeveralLocksOfAllKindsIsNotAccused(t *testing.T) {
	explore.RunUnfenced(t, func(t *testing.T, w *explore.World) {
		workers(w, func(client *relock.Client) {
			order, prices, gate := client.NewLock("order"), client.NewRWLock("prices"), client.NewSemaphore("gate", 2)
			err := gate.Do(t.Context(), func(ctx context.Context) error {
				return prices.RLocker().Do(ctx, func(ctx context.Context) error {
					return relock.All(order, client.NewLock("stock")).Do(ctx, func(ctx context.Context) error {
						return order.Do(ctx, func(ctx context.Context) error { return careful(ctx, w, order) })
					})
				})
			})
			if w.Accident == "" && err != nil {
				t.Error(err)
			}
		})
	})
}
