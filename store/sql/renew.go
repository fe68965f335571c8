package relocksql

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

// Renew implements [store.Store]. Each renewal is one statement, and locks one row: a lock whose
// row is held up does not hold up the other leases. In SQLite all of them are one transaction.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if s.dialect == SQLite {
		return s.renewAtOnce(ctx, renewals)
	}
	claims := make([]store.Claim, len(renewals))
	for i, r := range renewals {
		claims[i] = r.Lease.Claim
	}
	return allByName(claims, func(i int) error {
		r := renewals[i]
		err := s.run(ctx, command{renewing, r.Lease.Claim, 1, attemptLimit(r.Lease.TTL)}, func(ctx context.Context) error {
			return s.renew(ctx, r.Lease, r.TTL, r.Count)
		})
		if errors.Is(err, store.ErrGone) {
			return store.ErrGone
		}
		return err
	})
}

// renewAtOnce renews leases in one transaction: SQLite has one lock for all rows, and each
// transaction has to win it from other processes, which do not queue.
func (s *Store) renewAtOnce(ctx context.Context, renewals []store.Renewal) []error {
	errs := make([]error, len(renewals))
	c := command{renewing, store.Claim{}, 1, 0}
	for i, r := range renewals {
		if limit := attemptLimit(r.Lease.TTL); i == 0 || limit < c.limit {
			c.limit = limit
		}
		c.claim.Report = r.Lease.Report
	}
	err := gone(s.run(ctx, c, func(ctx context.Context) error {
		return s.transaction(ctx, func(t *tx) error {
			for i, r := range renewals {
				rows, err := t.exec(renewHold, toMicros(r.Lease.Kept(r.TTL)), r.Count, []byte(r.Lease.Name), []byte(r.Lease.ID))
				if err != nil {
					return err
				}
				errs[i] = nil
				if rows == 0 {
					errs[i] = store.ErrGone
				}
			}
			return nil
		})
	}))
	if err != nil {
		return slices.Repeat([]error{err}, len(renewals))
	}
	return errs
}

// renew sets the lease and the count of a hold in one statement.
func (s *Store) renew(ctx context.Context, l store.Lease, ttl time.Duration, count int) error {
	n, err := s.statement(ctx, renewRow, toMicros(l.Kept(ttl)), count, []byte(l.Name), []byte(l.ID))
	if err == nil && n == 0 {
		return store.ErrGone
	}
	return err
}
