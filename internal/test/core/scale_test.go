package core_test

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
)

// What does a client do under the mutex of its table while it has many holds? Every command and
// every renewal waits for that mutex.

// manyHolds is more than a client looks at before others get the mutex.
const manyHolds = 2500

func enterMany(t *testing.T, w *stage.World, c *relock.Client) (locks []*relock.Lock, sections []context.Context) {
	t.Helper()
	for i := range manyHolds {
		l := c.NewLock(strconv.Itoa(i))
		locks, sections = append(locks, l), append(sections, w.Enter(t.Context(), l))
	}
	stage.Settle() // the queue of the hooks is bounded, and has their events yet
	return locks, sections
}

// doubtful is a store whose test says when holds may be gone.
type doubtful struct {
	*mem.Store
	doubt func(store.ID)
}

func (s *doubtful) Watch(_ string, doubt func(store.ID)) (stop func()) {
	s.doubt = doubt
	return func() {}
}

// openDoubtful returns a client with many holds that are watched, and the doubt of its store.
func openDoubtful(t *testing.T, w *stage.World, options ...relock.Option) (c *relock.Client, doubt func(store.ID)) {
	t.Helper()
	s := &doubtful{Store: mem.New()}
	c, err := relock.Open(s, options...)
	require.NoError(t, err)
	enterMany(t, w, c)
	stage.Pass(time.Second) // the sections are old enough to be watched
	return c, s.doubt
}

func TestADoubtAboutOneHoldLooksAtNoOther(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		c, doubt := openDoubtful(t, w)
		noHold := store.ID(c.ID() + ":1:100000")
		require.Zero(t, testing.AllocsPerRun(10, func() { doubt(noHold) }), "of a list of all holds")
		require.NoError(t, c.Close())
	})
}

// allocations counts what a function allocates.
func allocations(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

func TestWaitsForHoldsOfOnesOwnCostTheSameBesideManyHolds(t *testing.T) {
	const waits = 1000
	costs := map[int]int{} // of the waits, by the number of holds
	for _, holds := range []int{waits, 100_000} {
		stage.Fake(t, func(t *testing.T, w *stage.World) {
			var renewals, lost int
			c := w.OpenClient(relock.WithHooks(event.Hooks{
				Renewed: func(e event.Renewed) { renewals += e.Locks },
				Lost:    func(event.Lost) { lost++ },
			}))
			sections := make([]context.Context, holds)
			for i := range sections {
				sections[i], _ = c.NewLock(strconv.Itoa(i)).Lock(t.Context())
			}
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			costs[holds] = allocations(func() {
				for i := range waits {
					waiting.Go(func() { _, _ = c.NewLock(strconv.Itoa(i)).Lock(ctx) })
				}
				stage.Pass(2 * time.Second) // with the warning of a call that waits for its own client
			})
			stage.Pass(relock.DefaultTTL)
			cancel()
			waiting.Wait()
			runtime.KeepAlive(sections)
			require.NoError(t, c.Close())
			require.GreaterOrEqual(t, renewals, holds)
			require.Zero(t, lost)
		})
	}
	require.InEpsilon(t, costs[waits], costs[100_000], 0.1)
}

func TestADoubtAboutAllOfManyHoldsRenewsEach(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		c, doubt := openDoubtful(t, w, relock.WithHooks(r.Hooks()))
		doubt("")
		stage.Settle()
		renewed := 0
		for _, e := range stage.EventsOf[event.Renewed](&r) {
			renewed += e.Locks
		}
		require.Equal(t, manyHolds, renewed)
		require.NoError(t, c.Close())
	})
}

func TestEachHoldThatEndsWhileItsClientClosesIsReportedOnce(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		var r stage.Recorder
		m := w.NewClient(relock.WithHooks(r.Hooks()))
		locks, sections := enterMany(t, w, m.Client)
		var leaving sync.WaitGroup
		leaving.Go(func() {
			for i, l := range slices.Backward(locks) {
				_ = l.Unlock(sections[i])
			}
		})
		require.NoError(t, m.Close())
		leaving.Wait()
		reported := make(map[string]int)
		for _, e := range stage.EventsOf[event.Closed](&r) {
			reported[e.Name]++
		}
		for _, e := range stage.EventsOf[event.Released](&r) {
			reported[e.Name]++
		}
		require.Len(t, reported, manyHolds)
		for name, times := range reported {
			require.Equal(t, 1, times, name)
		}
	})
}
