package relockk8s

import (
	"cmp"
	"context"
	"time"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Renew implements [store.Store]. A renewal is one update.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return attempts.Each(len(renewals), parallel, func(i int) error {
		_, err := s.keep(ctx, renewals[i])
		return err
	})
}

// keep sets the count of a hold, and makes its lease last for the TTL of the renewal from sent on.
// keep makes one attempt. A hold whose lease is over is gone, and keep deletes its Lease.
func (s *Store) keep(ctx context.Context, r store.Renewal) (sent time.Time, err error) {
	err = s.change(ctx, r.Lease.Claim, func(v *view) error {
		if !v.held() {
			return cmp.Or(s.remove(ctx, v), store.ErrGone)
		}
		sent = time.Now()
		_, err := s.update(ctx, v, record{
			ID: r.Lease.ID, TTL: max(lifetime.Millis(r.Lease.Kept(r.TTL)), lifetime.Millis(v.rest())), Count: r.Count, Token: v.token(),
		})
		return err
	})
	return sent, err
}
