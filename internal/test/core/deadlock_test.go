package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// Which calls wait for each other in a circle, and which one gives up?

// ring lets each of n processes hold a lock of its own, and wait for the lock of the next process.
// The waits begin one after the other.
func ring(w *stage.World, n int) (sections []context.Context, own, next []*relock.Lock, waits []*stage.Attempt) {
	for i := range n {
		c := w.OpenClient()
		own = append(own, c.NewLock(fmt.Sprint("lock", i)))
		next = append(next, c.NewLock(fmt.Sprint("lock", (i+1)%n)))
		sections = append(sections, w.Enter(w.T.Context(), own[i]))
	}
	for i := range n {
		stage.Pass(10 * time.Millisecond)
		waits = append(waits, w.Start(sections[i], next[i]))
	}
	return sections, own, next, waits
}

func TestTheYoungestCallOfACircleEnds(t *testing.T) {
	for n := 2; n <= 5; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			stage.Fake(t, func(t *testing.T, w *stage.World) {
				sections, own, next, waits := ring(w, n)
				youngest := waits[n-1]
				var deadlock *relock.DeadlockError
				require.ErrorAs(t, youngest.Failure(), &deadlock)
				require.ErrorIs(t, youngest.Err, relock.ErrDeadlock)
				require.NotErrorIs(t, youngest.Err, context.Canceled)
				require.Less(t, youngest.Took(), 3*time.Second)
				require.Len(t, deadlock.Cycle, n)
				for i, step := range deadlock.Cycle { // from the youngest call on
					at := (n - 1 + i) % n
					holder, _ := relock.HolderFrom(sections[at])
					require.Equal(t, relock.CycleStep{Holder: holder, Lock: next[at].Name()}, step)
				}
				require.NoError(t, sections[n-1].Err(), "the section goes on")

				w.Leave(sections[n-1], own[n-1])
				for i := n - 2; i >= 0; i-- {
					waits[i].Leave()
					w.Leave(sections[i], own[i])
				}
				requireNoWaits(t, w, sections)
			})
		})
	}
}

// requireNoWaits fails if the store still shows a wait under the holds of sections.
func requireNoWaits(t *testing.T, w *stage.World, sections []context.Context) {
	t.Helper()
	stage.Settle()
	var holds []store.ID
	for _, section := range sections {
		holder, _ := relock.HolderFrom(section)
		holds = append(holds, store.ID(holder.String()+":1"), store.ID(holder.String()+":2"))
	}
	shown, err := w.Store.Shown(t.Context(), holds)
	require.NoError(t, err)
	require.Empty(t, shown)
}

func TestWaitsWithoutACircleGoOn(t *testing.T) {
	t.Run("a chain of waits", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			a, b := w.OpenClient(), w.OpenClient()
			last := w.Enter(t.Context(), b.NewLock("y"))
			section := w.Enter(t.Context(), a.NewLock("x"))
			inner := w.Start(section, a.NewLock("y"))
			outer := w.Start(t.Context(), b.NewLock("x"))
			stage.Pass(time.Minute)
			require.True(t, inner.Waits())
			require.True(t, outer.Waits())
			w.Leave(last, b.NewLock("y"))
			inner.Leave()
			w.Leave(section, a.NewLock("x"))
			outer.Leave()
		})
	})
	t.Run("goroutines of one section wait for each other", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			c := w.OpenClient()
			section := w.Enter(t.Context(), c.NewLock("x"))
			first := w.Enter(section, c.NewLock("y"))
			second := w.Start(section, c.NewLock("y"))
			stage.Pass(time.Minute)
			require.True(t, second.Waits())
			w.Leave(first, c.NewLock("y"))
			second.Leave()
			w.Leave(section, c.NewLock("x"))
		})
	})
	t.Run("one of several permits may become free", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			a, b, c := w.OpenClient(), w.OpenClient(), w.OpenClient()
			slots := func(c *relock.Client) *relock.Lock { return c.NewSemaphore("slots", 2) }
			stuck, free := w.Enter(t.Context(), slots(a)), w.Enter(t.Context(), slots(b))
			x := w.Enter(t.Context(), c.NewLock("x"))
			waits, permit := w.Start(stuck, a.NewLock("x")), w.Start(x, slots(c))
			stage.Pass(time.Minute)
			require.True(t, waits.Waits())
			require.True(t, permit.Waits())
			w.Leave(free, slots(b))
			permit.Leave()
			w.Leave(x, c.NewLock("x"))
			waits.Leave()
			w.Leave(stuck, slots(a))
		})
	})
	t.Run("a call of the circle has given up", func(t *testing.T) {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			a, b := w.OpenClient(), w.OpenClient()
			x, y := w.Enter(t.Context(), a.NewLock("x")), w.Enter(t.Context(), b.NewLock("y"))
			short := w.Begin(y, stage.TryFor(b.NewLock("x"), 1500*time.Millisecond))
			stage.Pass(500 * time.Millisecond)
			long := w.Start(x, a.NewLock("y"))
			require.ErrorIs(t, short.Failure(), relock.ErrLocked)
			stage.Pass(time.Minute)
			require.True(t, long.Waits(), "nobody waits for this call any more")
			w.Leave(y, b.NewLock("y"))
			long.Leave()
			w.Leave(x, a.NewLock("x"))
		})
	})
}

func TestASectionThatWasLeftIsNoPartOfACircle(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		a, b := w.OpenClient(), w.OpenClient()
		x, y := w.Enter(t.Context(), a.NewLock("x")), w.Enter(t.Context(), b.NewLock("y"))
		free := context.WithoutCancel(x)
		w.Leave(x, a.NewLock("x"))
		again := w.Enter(y, b.NewLock("x"))
		wait := w.Start(free, a.NewLock("y"))
		stage.Pass(time.Minute)
		require.True(t, wait.Waits())
		w.Leave(again, b.NewLock("x"))
		w.Leave(y, b.NewLock("y"))
		wait.Leave()
	})
}

func TestACircleThroughReadersAndPermits(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		a, b := w.OpenClient(), w.OpenClient()
		table, slots := func(c *relock.Client) *relock.RWLock { return c.NewRWLock("table") },
			func(c *relock.Client) *relock.Lock { return c.NewSemaphore("slots", 1) }
		read := w.Enter(t.Context(), table(a).RLocker())
		permit := w.Enter(t.Context(), slots(b))
		older := w.Start(read, slots(a))
		stage.Pass(time.Millisecond)
		younger := w.Start(permit, table(b).Writer())
		require.ErrorIs(t, younger.Failure(), relock.ErrDeadlock)
		w.Leave(permit, slots(b))
		older.Leave()
		w.Leave(read, table(a).RLocker())
	})
}

// TestAWaitThatIsShownForeverHidesNoCircle plays a wait whose end was not told to the store.
func TestAWaitThatIsShownForeverHidesNoCircle(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		a, b := w.OpenClient(), w.OpenClient()
		x, y := w.Enter(t.Context(), a.NewLock("x")), w.Enter(t.Context(), b.NewLock("y"))
		stale := store.Waiting{
			ID: store.ID("0:1:1"), Name: "x", Holds: []store.ID{store.ID(w.Owner("y"))}, For: []store.ID{store.ID(w.Owner("x"))}, Round: 1,
		}
		require.NoError(t, w.Store.Show(t.Context(), stale, time.Hour))
		older := w.Start(x, a.NewLock("y"))
		stage.Pass(time.Millisecond)
		younger := w.Start(y, b.NewLock("x"))
		require.ErrorIs(t, younger.Failure(), relock.ErrDeadlock)
		w.Leave(y, b.NewLock("y"))
		older.Leave()
		w.Leave(x, a.NewLock("x"))
	})
}

func TestTheHooksHearOfADeadlock(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		r := &stage.Recorder{}
		a, b := w.OpenClient(), w.OpenClient(relock.WithHooks(r.Hooks()))
		x, y := w.Enter(t.Context(), a.NewLock("x")), w.Enter(t.Context(), b.NewLock("y"))
		older := w.Start(x, a.NewLock("y"))
		stage.Pass(time.Millisecond)
		require.ErrorIs(t, w.Start(y, b.NewLock("x")).Failure(), relock.ErrDeadlock)
		finished := stage.EventsOf[event.AcquireFinished](r)
		require.Equal(t, event.OutcomeDeadlock, finished[len(finished)-1].Outcome)
		w.Leave(y, b.NewLock("y"))
		older.Leave()
		w.Leave(x, a.NewLock("x"))
	})
}
