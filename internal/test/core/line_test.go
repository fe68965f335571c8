package core_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/stage"
	"github.com/go-relock/relock/store"
)

// How do the calls of one client wait for a store whose waiters race?

// racing is a store whose waiters race.
type racing struct {
	*stage.Link

	mu            sync.Mutex
	most, waiting int
}

func (*racing) Races() bool { return true }

func (s *racing) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	s.mu.Lock()
	s.waiting++
	s.most = max(s.most, s.waiting)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	return s.Link.Wait(ctx, a, progress)
}

func TestOneCallOfAClientRacesAndTheOthersWaitBehindIt(t *testing.T) {
	stage.Fake(t, func(t *testing.T, w *stage.World) {
		s := &racing{Link: stage.NewLink(w.Store)}
		c, err := relock.Open(s)
		require.NoError(t, err)
		l, other := c.NewLock("a"), w.NewClient().NewLock("a")
		owner := w.Enter(t.Context(), other)
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				require.NoError(t, l.Do(t.Context(), func(context.Context) error {
					order = append(order, i)
					<-time.After(time.Millisecond)
					return nil
				}))
			})
			stage.Settle()
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.Start(ctx, l)
		cancel()
		require.ErrorIs(t, gone.Failure(), context.Canceled)
		w.Leave(owner, other)
		all.Wait()
		require.Equal(t, 1, s.most)
		require.IsIncreasing(t, order)
		require.NoError(t, c.Close())
		w.RequireFree("a")
	})
}
