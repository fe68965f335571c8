package relock_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// tally counts what happened, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *tally) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c.counts[what]))
	}
	return strings.Join(parts, ", ")
}

// every calls f at intervals until stop is closed.
func every(interval time.Duration, stop <-chan struct{}, f func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			f()
		case <-stop:
			return
		}
	}
}

// The tests below are worth what this one shows.
func TestTheGuardNoticesTwoAtOnceAndTokensThatDoNotGrow(t *testing.T) {
	w := onShared(t)
	p := w.peer()
	l := p.NewLock("a")
	first := w.enter(t.Context(), l, soon)
	require.NoError(t, l.ForceUnlock(t.Context())) // its holder does not know
	second := w.enter(t.Context(), l, soon)
	for _, lost := range []bool{false, true} {
		g := guarded{lost: lost}
		require.True(t, g.enter(first, l))
		require.True(t, g.enter(second, l))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "still is")
		g = guarded{lost: lost}
		require.True(t, g.enter(second, l))
		g.leave(second)
		require.True(t, g.enter(first, l))
		require.Len(t, g.faults, 1)
		require.Contains(t, g.faults[0], "comes after")
	}
	w.leave(second, l, soon)
	_ = l.Unlock(first) // it is lost, and may have been told so
	require.False(t, (&guarded{lost: true}).enter(first, l))
	g := guarded{}
	require.False(t, g.enter(first, l))
	require.Len(t, g.faults, 1)
}

func TestThirtyTwoWorkersExcludeEachOtherWhileTheirConnectionsAreKilled(t *testing.T) {
	for _, kind := range []string{"normal", "pubsub"} {
		t.Run(kind, func(t *testing.T) {
			w := onShared(t)
			const workers, locks, clients = 32, 4, 4
			var peers []*peer
			for range clients {
				peers = append(peers, w.peer())
			}
			guards := make([]guarded, locks)
			var done tally
			var errs names
			var slowest atomic.Int64
			stop, ended := make(chan struct{}), make(chan struct{})
			var all, killer sync.WaitGroup
			for i := range workers {
				g, p := &guards[i%locks], peers[i/locks%clients]
				l := p.NewLock(fmt.Sprint("lock", i%locks))
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					for {
						select {
						case <-stop:
							return
						default:
						}
						begin := time.Now()
						section, err := l.Lock(context.Background())
						if err != nil {
							errs.add(err.Error())
							return
						}
						if took := int64(time.Since(begin)); took > slowest.Load() {
							slowest.Store(took)
						}
						g.enter(section, l)
						if random.IntN(3) == 0 {
							inner, err := l.Lock(section)
							if err != nil {
								errs.add(err.Error())
							} else if err := l.Unlock(inner); err != nil {
								errs.add(err.Error())
							}
							done.add("nested")
						}
						<-time.After(time.Duration(random.IntN(2000)) * time.Microsecond)
						if err := section.Err(); err != nil {
							errs.add(fmt.Sprint("in the section: ", context.Cause(section)))
						}
						g.leave(section)
						if err := l.Unlock(section); err != nil {
							errs.add(err.Error())
							return
						}
						done.add("sections")
					}
				})
			}
			killer.Go(func() {
				every(50*time.Millisecond, ended, func() {
					n, err := w.plain.ClientKillByFilter(context.Background(), "TYPE", kind).Result()
					if err == nil && n > 0 {
						done.add("kills")
					}
				})
			})
			duration := 20 * time.Second
			if testing.Short() || redissonLayout { // where what this shows is nearly the same code once more
				duration = 1500 * time.Millisecond
			}
			sleepUntil(time.Now().Add(duration))
			close(stop)
			err := w.call(10*time.Second, func() error { all.Wait(); return nil }) // while it goes on
			close(ended)
			killer.Wait()
			require.NoError(t, err)
			t.Logf("%s; the slowest was in after %s", &done, time.Duration(slowest.Load()))
			require.Empty(t, errs.all())
			require.Less(t, time.Duration(slowest.Load()-w.late.Load()), 5*time.Second)
			require.Greater(t, done.of("kills"), 10)
			require.Greater(t, done.of("sections"), 50)
			for i := range guards {
				guards[i].require(t)
				w.awaitFree(fmt.Sprint("lock", i), soon)
			}
		})
	}
}

func TestOneHolderMayBeSharedByManyGoroutinesThatComeAndGoInAnyOrder(t *testing.T) {
	w := onShared(t)
	const goroutines = 16
	p, rival := w.peer(), w.peer().NewLock("a")
	l := p.NewLock("a")
	g := guarded{}
	for range 5 {
		outer := w.enter(t.Context(), l, soon)
		require.True(t, g.enter(outer, l))
		waiter := w.start(t.Context(), rival)
		var errs names
		var all sync.WaitGroup
		for range goroutines {
			all.Go(func() {
				for range 5 {
					inner, err := l.Lock(outer)
					if err != nil {
						errs.add(err.Error())
						return
					}
					if n := l.Count(inner); n < 2 || n > goroutines+1 {
						errs.add(fmt.Sprint("count ", n))
					}
					if err := l.Unlock(inner); err != nil {
						errs.add(err.Error())
					}
				}
			})
		}
		require.NoError(t, w.call(10*time.Second, func() error { all.Wait(); return nil }))
		require.Empty(t, errs.all())
		w.requireCount("a", 1)
		require.True(t, waiter.waiting())
		g.leave(outer)
		w.leave(outer, l, soon)
		mine := waiter.in(soon)
		require.True(t, g.enter(mine, rival))
		g.leave(mine)
		w.leave(mine, rival, soon)
	}
	g.require(t)
	w.awaitFree("a", 0)
}

func TestTokensGrowThroughEveryKindOfEnd(t *testing.T) {
	w := onShared(t)
	const ttl = 60 * time.Millisecond
	p := w.peer()
	operator := w.peer().NewLock("a")
	var last int64
	for i := range 20 {
		l := p.NewLock("a", relock.WithFixedLease(ttl))
		section := w.enter(t.Context(), l, soon)
		token := l.Token(section)
		require.Greater(t, token, last)
		last = token
		switch i % 4 {
		case 0:
			w.leave(section, l, soon)
		case 1: // it runs out
			w.lost(section, soon)
		case 2:
			if err := operator.ForceUnlock(t.Context()); err != nil {
				require.ErrorIs(t, err, relock.ErrNotHeld)
			}
		case 3:
			require.NoError(t, w.plain.FlushAll(t.Context()).Err())
		}
		if i%4 > 1 {
			require.ErrorIs(t, l.Unlock(section), relock.ErrLockLost)
		}
	}
	w.awaitFree("a", soon)
}
