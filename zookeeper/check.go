package relockzk

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/go-relock/relock/store"
)

// checkLimit bounds the lives of the holds of CheckServer.
const checkLimit = 3 * time.Second

// CheckServer implements [store.Checker]. CheckServer asks for a session that is long enough, and for
// the nodes of the lock. Then two holds live through a lock of their own: the first one takes the
// lock, is renewed and released, and the second one waits, is granted the lock and released. The
// error names the first step that fails.
func (s *Store) CheckServer(ctx context.Context, a store.Ask) error {
	return s.once(ctx, func(x *session) error {
		if err := x.sync(ctx); err != nil {
			return err
		}
		if err := x.fits(a.Kept(a.TTL)); err != nil {
			return err
		}
		if _, _, err := x.children(ctx, s.path(a)); err != nil {
			return fmt.Errorf("list the children of %s: %w", s.path(a), err)
		}
		return s.live(ctx, store.Ask{Name: a.Name + "-" + rand.Text(), TTL: a.TTL, Delay: a.Delay, Limit: 1})
	})
}

// live takes two holds of a mutex through their lives.
func (s *Store) live(ctx context.Context, a store.Ask) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	step := func(name string, err error) error {
		if err != nil {
			return fmt.Errorf("%s %s: %w", name, s.path(a), err)
		}
		return nil
	}
	first, second := a, a
	first.ID, second.ID = store.ID("check:1:"+rand.Text()), store.ID("check:2:"+rand.Text())
	l, err := s.Wait(ctx, first, func(store.Progress) {})
	if err != nil {
		return step("take the lock", err)
	}
	queued, over := make(chan struct{}, 1), make(chan error, 1)
	s.group.Go(func() {
		l, err := s.Wait(ctx, second, func(store.Progress) {
			select {
			case queued <- struct{}{}:
			default:
			}
		})
		if err = step("wait for the lock", err); err == nil {
			err = step("release the lock", s.Release(ctx, l, 0))
		}
		over <- err
		close(over)
	})
	var waited, renewed error
	select {
	case <-queued:
		renewed = step("renew a hold of", s.Renew(ctx, []store.Renewal{{Lease: l, TTL: l.TTL, Count: 1}})[0])
	case waited = <-over:
	}
	released := step("release the lock", s.Release(ctx, l, 0))
	if released != nil {
		cancel() // nobody grants the lock
	}
	granted := <-over
	for _, err := range []error{waited, renewed, released, granted} {
		if err != nil {
			return err
		}
	}
	return nil
}
