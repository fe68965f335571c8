package relock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/store"
)

// Which calls wait for each other in a circle, and which one gives up?

// openClient returns a Client of the world whose link hides nothing of its store.
func (w *world) openClient(options ...relock.Option) *relock.Client {
	w.t.Helper()
	c, err := relock.Open(w.Store, options...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	return c
}

// ring lets each of n processes hold a lock of its own, and wait for the lock of the next process.
// The waits begin one after the other.
func ring(w *world, n int) (sections []context.Context, own, next []*relock.Lock, waits []*attempt) {
	for i := range n {
		c := w.openClient()
		own = append(own, c.NewLock(fmt.Sprint("lock", i)))
		next = append(next, c.NewLock(fmt.Sprint("lock", (i+1)%n)))
		sections = append(sections, w.enter(w.t.Context(), own[i]))
	}
	for i := range n {
		pass(10 * time.Millisecond)
		waits = append(waits, w.start(sections[i], next[i]))
	}
	return sections, own, next, waits
}

func TestTheYoungestCallOfACircleEnds(t *testing.T) {
	for n := 2; n <= 5; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			fake(t, func(t *testing.T, w *world) {
				sections, own, next, waits := ring(w, n)
				youngest := waits[n-1]
				var deadlock *relock.DeadlockError
				require.ErrorAs(t, youngest.failure(), &deadlock)
				require.ErrorIs(t, youngest.err, relock.ErrDeadlock)
				require.NotErrorIs(t, youngest.err, context.Canceled)
				require.Less(t, youngest.took(), 3*time.Second)
				require.Len(t, deadlock.Cycle, n)
				for i, step := range deadlock.Cycle { // from the youngest call on
					at := (n - 1 + i) % n
					holder, _ := relock.HolderFrom(sections[at])
					require.Equal(t, relock.CycleStep{Holder: holder, Lock: next[at].Name()}, step)
				}
				require.NoError(t, sections[n-1].Err(), "the section goes on")

				w.leave(sections[n-1], own[n-1])
				for i := n - 2; i >= 0; i-- {
					waits[i].leave()
					w.leave(sections[i], own[i])
				}
				requireNoWaits(t, w, sections)
			})
		})
	}
}

// requireNoWaits fails if the store still shows a wait under the holds of sections.
func requireNoWaits(t *testing.T, w *world, sections []context.Context) {
	t.Helper()
	settle()
	var holds []store.ID
	for _, section := range sections {
		holder, _ := relock.HolderFrom(section)
		holds = append(holds, store.ID(holder.String()+":1"), store.ID(holder.String()+":2"))
	}
	shown, err := w.Shown(t.Context(), holds)
	require.NoError(t, err)
	require.Empty(t, shown)
}

func TestWaitsWithoutACircleGoOn(t *testing.T) {
	t.Run("a chain of waits", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			a, b := w.openClient(), w.openClient()
			last := w.enter(t.Context(), b.NewLock("y"))
			section := w.enter(t.Context(), a.NewLock("x"))
			inner := w.start(section, a.NewLock("y"))
			outer := w.start(t.Context(), b.NewLock("x"))
			pass(time.Minute)
			require.True(t, inner.waits())
			require.True(t, outer.waits())
			w.leave(last, b.NewLock("y"))
			inner.leave()
			w.leave(section, a.NewLock("x"))
			outer.leave()
		})
	})
	t.Run("goroutines of one section wait for each other", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			c := w.openClient()
			section := w.enter(t.Context(), c.NewLock("x"))
			first := w.enter(section, c.NewLock("y"))
			second := w.start(section, c.NewLock("y"))
			pass(time.Minute)
			require.True(t, second.waits())
			w.leave(first, c.NewLock("y"))
			second.leave()
			w.leave(section, c.NewLock("x"))
		})
	})
	t.Run("one of several permits may become free", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			a, b, c := w.openClient(), w.openClient(), w.openClient()
			slots := func(c *relock.Client) *relock.Lock { return c.NewSemaphore("slots", 2) }
			stuck, free := w.enter(t.Context(), slots(a)), w.enter(t.Context(), slots(b))
			x := w.enter(t.Context(), c.NewLock("x"))
			waits, permit := w.start(stuck, a.NewLock("x")), w.start(x, slots(c))
			pass(time.Minute)
			require.True(t, waits.waits())
			require.True(t, permit.waits())
			w.leave(free, slots(b))
			permit.leave()
			w.leave(x, c.NewLock("x"))
			waits.leave()
			w.leave(stuck, slots(a))
		})
	})
	t.Run("a call of the circle has given up", func(t *testing.T) {
		fake(t, func(t *testing.T, w *world) {
			a, b := w.openClient(), w.openClient()
			x, y := w.enter(t.Context(), a.NewLock("x")), w.enter(t.Context(), b.NewLock("y"))
			short := w.begin(y, tryFor(b.NewLock("x"), 1500*time.Millisecond))
			pass(500 * time.Millisecond)
			long := w.start(x, a.NewLock("y"))
			require.ErrorIs(t, short.failure(), relock.ErrLocked)
			pass(time.Minute)
			require.True(t, long.waits(), "nobody waits for this call any more")
			w.leave(y, b.NewLock("y"))
			long.leave()
			w.leave(x, a.NewLock("x"))
		})
	})
}

func TestASectionThatWasLeftIsNoPartOfACircle(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		a, b := w.openClient(), w.openClient()
		x, y := w.enter(t.Context(), a.NewLock("x")), w.enter(t.Context(), b.NewLock("y"))
		free := context.WithoutCancel(x)
		w.leave(x, a.NewLock("x"))
		again := w.enter(y, b.NewLock("x"))
		wait := w.start(free, a.NewLock("y"))
		pass(time.Minute)
		require.True(t, wait.waits())
		w.leave(again, b.NewLock("x"))
		w.leave(y, b.NewLock("y"))
		wait.leave()
	})
}

func TestACircleThroughReadersAndPermits(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		a, b := w.openClient(), w.openClient()
		table, slots := func(c *relock.Client) *relock.RWLock { return c.NewRWLock("table") },
			func(c *relock.Client) *relock.Lock { return c.NewSemaphore("slots", 1) }
		read := w.enter(t.Context(), table(a).RLocker())
		permit := w.enter(t.Context(), slots(b))
		older := w.start(read, slots(a))
		pass(time.Millisecond)
		younger := w.start(permit, table(b).Writer())
		require.ErrorIs(t, younger.failure(), relock.ErrDeadlock)
		w.leave(permit, slots(b))
		older.leave()
		w.leave(read, table(a).RLocker())
	})
}

// TestAWaitThatIsShownForeverHidesNoCircle plays a wait whose end was not told to the store.
func TestAWaitThatIsShownForeverHidesNoCircle(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		a, b := w.openClient(), w.openClient()
		x, y := w.enter(t.Context(), a.NewLock("x")), w.enter(t.Context(), b.NewLock("y"))
		stale := store.Waiting{
			ID: store.ID("0:1:1"), Name: "x", Holds: []store.ID{store.ID(w.owner("y"))}, For: []store.ID{store.ID(w.owner("x"))}, Round: 1,
		}
		require.NoError(t, w.Show(t.Context(), stale, time.Hour))
		older := w.start(x, a.NewLock("y"))
		pass(time.Millisecond)
		younger := w.start(y, b.NewLock("x"))
		require.ErrorIs(t, younger.failure(), relock.ErrDeadlock)
		w.leave(y, b.NewLock("y"))
		older.leave()
		w.leave(x, a.NewLock("x"))
	})
}

func TestTheHooksHearOfADeadlock(t *testing.T) {
	fake(t, func(t *testing.T, w *world) {
		r := &recorder{}
		a, b := w.openClient(), w.openClient(relock.WithHooks(r.Hooks()))
		x, y := w.enter(t.Context(), a.NewLock("x")), w.enter(t.Context(), b.NewLock("y"))
		older := w.start(x, a.NewLock("y"))
		pass(time.Millisecond)
		require.ErrorIs(t, w.start(y, b.NewLock("x")).failure(), relock.ErrDeadlock)
		finished := eventsOf[relock.AcquireFinished](r)
		require.Equal(t, relock.OutcomeDeadlock, finished[len(finished)-1].Outcome)
		w.leave(y, b.NewLock("y"))
		older.leave()
		w.leave(x, a.NewLock("x"))
	})
}

func TestAWaitInsideASectionSendsNothingInItsFirstSecond(t *testing.T) {
	server := redistest.Start(t)
	c, err := relock.New(server.Client())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	outer, err := c.NewLock("outer").Lock(t.Context())
	require.NoError(t, err)
	inner, err := c.NewLock("inner").Lock(t.Context())
	require.NoError(t, err)
	_, err = c.NewLock("inner").TryLockFor(outer, 500*time.Millisecond)
	require.ErrorIs(t, err, relock.ErrLocked)
	keys, err := server.Client().Keys(t.Context(), "*:waits").Result()
	require.NoError(t, err)
	require.Empty(t, keys)
	require.NoError(t, c.NewLock("inner").Unlock(inner))
	require.NoError(t, c.NewLock("outer").Unlock(outer))
}

// TestRandomOrdersComeToAnEndOnRedis takes locks inside each other in random order. Each call of a
// circle that ends lets the others go on.
func TestRandomOrdersComeToAnEndOnRedis(t *testing.T) {
	const processes, rounds = 4, 2
	server := redistest.Start(t)
	var group sync.WaitGroup
	for range processes {
		c, err := relock.New(server.Client())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		group.Go(func() {
			for range rounds {
				if err := nest(t.Context(), c, rand.Perm(4)[:3]); err != nil && !errors.Is(err, relock.ErrDeadlock) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.Eventually(t, func() bool {
		return len(server.Client().Keys(t.Context(), "*").Val()) == 0
	}, 10*time.Second, 50*time.Millisecond, "nothing is left")
}

// nest enters locks inside each other, and stays for a moment in each.
func nest(ctx context.Context, c *relock.Client, locks []int) error {
	if len(locks) == 0 {
		return nil
	}
	return c.NewLock(fmt.Sprint("lock", locks[0])).Do(ctx, func(ctx context.Context) error {
		<-time.After(20 * time.Millisecond)
		return nest(ctx, c, locks[1:])
	})
}
