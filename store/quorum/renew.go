package quorum

import (
	"context"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

// Renew renews at all members. Members that do not have a hold get the hold again, once a majority
// has confirmed.
func (q *quorum) Renew(ctx context.Context, renewals []store.Renewal) []error {
	results, renewals := make([]error, len(renewals)), slices.Clone(renewals)
	if len(renewals) == 0 {
		return results
	}
	of := func(r *round[[]error], lease int) []error {
		errs := r.errs()
		for i, a := range r.answers {
			if a.done {
				errs[i] = word(a, lease)
			}
		}
		return errs
	}
	commands := make([]*late, len(renewals))
	for lease, renewal := range renewals {
		commands[lease] = q.enlist(renewal.Lease.ID, func() {})
	}
	begun := time.Now()
	r := ask(ctx, q, 0, func(r *round[[]error]) bool {
		for lease := range renewals {
			if !q.decided(of(r, lease)) {
				return false
			}
		}
		return true
	}, func(ctx context.Context, i int) ([]error, error) {
		errs := q.members[i].Renew(ctx, renewals)
		return errs, unreached(errs)
	})
	defer r.behind()
	r.linger(ctx, begun, r.complete)
	for lease, renewal := range renewals {
		errs, a := of(r, lease), renewal.Lease.Claim
		results[lease] = q.verdict(ctx, errs)
		q.abandon(a, errs)
		if a.TTL = renewal.TTL; results[lease] != nil {
			q.dismiss(commands[lease])
			continue
		}
		q.fill(commands[lease], a, where(errs, gone))
	}
	return results
}

// word returns the answer of a member about one of several holds.
func word(a answer[[]error], hold int) error {
	if a.value == nil { // the command has ended without a result
		return a.err
	}
	return a.value[hold]
}
