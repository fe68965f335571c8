package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// mostAtOnce is how many locks one script takes: Redis serves nobody else for about 1 ms.
const mostAtOnce = 256

// TryAll takes mutexes whose keys are in one slot.
func (s *nativeStore) TryAll(ctx context.Context, claims []store.Claim) ([]store.Lease, error) {
	if err := s.checkAll(claims); err != nil || len(claims) == 0 {
		return nil, err
	}
	ttls := func(_ []any, elapsed time.Duration) []any {
		all := make([]any, len(claims))
		for i, a := range claims {
			if ttl := repeatMillis(a.Kept(a.TTL), elapsed); i == 0 || all[i-1] != ttl {
				all[i] = ttl
			} else {
				all[i] = all[i-1] // neighbours share a boxed one
			}
		}
		return all
	}
	script, common := s.entering(s.scripts.all)
	c := inOneCall(script, common, claims)
	c.Unit.Args, c.Repeat, c.Yields = ttls(nil, 0), ttls, true
	answer, err := s.wire.Do(ctx, c)
	if err != nil {
		if apart := wire.Refused(err) || wire.Code(err) == "TRYAGAIN"; apart && !answer.Unsure {
			return nil, fmt.Errorf("%w in one step: %w", errors.ErrUnsupported, err) // single locks may fare better
		}
		return nil, unsureOf(answer, err)
	}
	r, busy, err := parseAllReply(c.Script, answer.Reply, len(claims))
	if err == nil && r.status != statusOurs {
		refusal := r.busy()
		refusal.Name = claims[busy].Name
		err = refusal
	}
	if err != nil {
		return nil, unsureOf(answer, err)
	}
	leases := make([]store.Lease, len(claims))
	for i, a := range claims {
		leases[i] = r.toLease(a, answer)
	}
	return leases, nil
}

// ReleaseAll frees mutexes of one slot. A mutex without a confirmation is freed again by itself.
func (s *nativeStore) ReleaseAll(ctx context.Context, leases []store.Lease) []error {
	errs, claims := make([]error, len(leases)), make([]store.Claim, len(leases))
	for i, l := range leases {
		claims[i] = l.Claim
	}
	if len(leases) == 1 { // a script replies no list to one unit
		errs[0] = s.Release(ctx, leases[0])
	}
	if len(leases) < 2 {
		return errs
	}
	if slices.ContainsFunc(leases, hasServed) {
		return slices.Repeat([]error{fmt.Errorf("%w: the end of a run in one step with others", errors.ErrUnsupported)}, len(leases))
	}
	if err := s.checkAll(claims); err != nil {
		return slices.Repeat([]error{err}, len(leases))
	}
	answer, err := s.wire.Do(ctx, inOneCall(s.scripts.mutex.release, s.publish(), claims))
	replies, _ := answer.Reply.([]any)
	for i, l := range leases {
		freed := int64(-1)
		if err == nil && len(replies) == len(leases) {
			_ = scan(replies[i], &freed)
		}
		switch freed {
		case 1:
			s.waited.end(l.ID)
		case 0:
			errs[i] = unsureOf(answer, store.ErrGone)
		default: // an error, or only dead waiters so far
			errs[i] = unsureOf(answer, s.Release(ctx, l))
		}
	}
	return errs
}

// checkAll refuses claims that no script can serve together.
func (s *nativeStore) checkAll(claims []store.Claim) error {
	if len(claims) > mostAtOnce {
		return fmt.Errorf("%w: %d locks in one step; %d are the most", errors.ErrUnsupported, len(claims), mostAtOnce)
	}
	for _, a := range claims {
		switch {
		case a.Lent, a.Lender != "":
			return fmt.Errorf("%w: a lock that is lent, or borrowed, in one step with others", errors.ErrUnsupported)
		case a.Kind != store.Mutex, a.Acks != store.Acks{}:
			return fmt.Errorf("%w: %s with confirmations by %d servers in one step", errors.ErrUnsupported, a.Kind, a.Acks.Wanted())
		case s.wire.Clustered() && hashTag(a.Name) != hashTag(claims[0].Name):
			return fmt.Errorf("%w: locks of several slots in one step", errors.ErrUnsupported)
		}
	}
	return nil
}

// inOneCall makes the call of a script for all claims. The holds are a part of the arguments that
// no other call has, so the claims have a script call of their own.
func inOneCall(script *wire.Script, common []any, claims []store.Claim) *wire.Call {
	c := &wire.Call{
		Script: script, Common: slices.Grow(slices.Clone(common), len(claims)),
		Tries: boundTries, Patience: attemptLimit(claims[0].TTL), Report: claims[0].Report,
	}
	ids := make([]string, len(claims))
	c.Unit.Keys = make([]string, 0, 2*len(claims))
	for i, a := range claims {
		ids[i] = string(a.ID)
		c.Unit.Keys = append(c.Unit.Keys, a.Name, a.Name+queueSuffix)
		c.Common = append(c.Common, &ids[i])
		c.Patience = min(c.Patience, attemptLimit(a.TTL))
	}
	return c
}

// parseAllReply reads the reply to all for n locks. busy is the index of the lock that refuses.
func parseAllReply(script *wire.Script, reply any, n int) (r acquireReply, busy int, err error) {
	if scan(reply, &r.status) && r.status == statusOurs {
		return r, 0, nil
	}
	var remaining, at int64
	ok := scan(reply, &r.status, &r.owner, &remaining, &at)
	if !ok || r.status != statusOurs && (r.status != statusBusy || at < 1 || at > int64(n)) {
		return acquireReply{}, 0, badReply(script, reply)
	}
	r.remaining, r.known = fromMillis(remaining), true
	return r, int(at) - 1, nil
}
