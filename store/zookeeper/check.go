package relockzk

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/probe"
	"github.com/go-relock/relock/store"
)

// checkLimit bounds CheckServer.
const checkLimit = 3 * time.Second

// CheckServer implements [store.Checker]. CheckServer asks for a session that is long enough, and
// for the nodes of the lock. Then two holds live through a lock of their own: the first one takes
// the lock, is renewed and released, and the second one waits, is granted the lock and released.
// The error names the first step that fails.
func (s *Store) CheckServer(ctx context.Context, a store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	return s.once(ctx, func(x *session) error {
		if err := x.sync(ctx); err != nil {
			if ctx.Err() != nil {
				err = store.Unavailable(err)
			}
			return fmt.Errorf("get an answer from %s: %w", strings.Join(s.servers, ","), err)
		}
		if err := x.fits(a.Kept(a.TTL)); err != nil {
			return err
		}
		if _, _, err := x.children(ctx, s.path(a)); err != nil {
			return fmt.Errorf("list the children of %s: %w", s.path(a), err)
		}
		a = store.Claim{Name: a.Name + "-" + rand.Text(), TTL: a.TTL, Delay: a.Delay, Limit: 1}
		return probe.Live(ctx, s, a, s.path(a))
	})
}
