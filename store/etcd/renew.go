package relocketcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// Renew implements [store.Store].
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if len(renewals) == 0 {
		return nil
	}
	_, errs := s.keep(ctx, renewals)
	return errs
}

// keep sets the count of each hold, and makes each lease last for the TTL of its renewal from sent
// on. keep makes one attempt. keep renews the etcd leases that the process knows while it reads the
// holds, as two waits, one behind the other, take too long on a busy machine.
func (s *Store) keep(ctx context.Context, renewals []store.Renewal) (sent time.Time, errs []error) {
	sent = time.Now()
	known := s.known(renewals)
	var stays []*stay
	var renewed []error
	both := attempts.Each(2, 2, func(i int) (err error) {
		if i == 0 {
			stays, _, err = s.read(ctx, renewals)
			return err
		}
		renewed = s.renew(ctx, &s.holds, known)
		return nil
	})
	if err := cmp.Or(both...); err != nil {
		return sent, slices.Repeat([]error{err}, len(renewals))
	}
	ids := make([]clientv3.LeaseID, len(renewals)) // to renew
	errs = attempts.Each(len(renewals), parallel, func(i int) (err error) {
		if stays[i] == nil {
			return store.ErrGone
		}
		ids[i], err = s.update(ctx, *stays[i], renewals[i])
		return err
	})
	late := slices.Clone(ids) // not renewed yet
	for i, id := range ids {
		if id == known[i] {
			late[i] = clientv3.NoLease
		} else { // the hold has another etcd lease by now
			renewed[i] = nil
		}
	}
	for i, err := range s.renew(ctx, &s.holds, late) {
		err = cmp.Or(err, renewed[i])
		id := renewals[i].Lease.ID
		if errors.Is(err, store.ErrGone) {
			err = s.ended(ctx, renewals[i], ids[i])
		}
		errs[i] = cmp.Or(errs[i], err)
		if errs[i] == nil && ids[i] != 0 {
			s.pool.renewed(id, lease{id: ids[i], ttl: stays[i].TTL, sent: sent})
		}
		if errors.Is(errs[i], store.ErrGone) {
			s.pool.drop(id)
		}
	}
	return sent, errs
}

// known returns the etcd lease to renew for each hold, or 0 if the process does not know the lease.
func (s *Store) known(renewals []store.Renewal) []clientv3.LeaseID {
	ids := make([]clientv3.LeaseID, len(renewals))
	for i, r := range renewals {
		if h, found := s.pool.hold(r.Lease.ID); found && r.TTL > 0 {
			ids[i] = h.lease.id
		}
	}
	return ids
}

// ended returns the error of a renewal whose etcd lease has ended. Another call may have given the
// hold a longer etcd lease.
func (s *Store) ended(ctx context.Context, r store.Renewal, id clientv3.LeaseID) error {
	stays, _, err := s.read(ctx, []store.Renewal{r})
	switch {
	case err != nil:
		return err
	case stays[0] != nil && stays[0].lease != id:
		return store.Unavailable(errors.New("the hold has a new etcd lease"))
	default:
		return store.ErrGone
	}
}

// update writes the count of a hold if the count is new, and gives the hold a longer etcd lease if
// the TTL needs one. update returns the etcd lease that is left to renew, or 0.
func (s *Store) update(ctx context.Context, st stay, r store.Renewal) (clientv3.LeaseID, error) {
	next, option, left := st.record, clientv3.WithIgnoreLease(), clientv3.LeaseID(0)
	next.Count = r.Count
	if r.TTL > 0 {
		left = st.lease
	}
	longer := seconds(r.Lease.Kept(r.TTL)) > st.TTL
	var l lease
	if longer {
		var err error
		l, err = s.takeLease(ctx, seconds(r.Lease.Kept(r.TTL)), 0)
		if err != nil {
			return 0, err
		}
		next.TTL, option, left = l.ttl, clientv3.WithLease(l.id), 0
	}
	if next == st.record {
		return left, nil
	}
	err := s.rewrite(ctx, st, next, option)
	switch {
	case longer && err == nil:
		if old, found := s.pool.exchange(st.ID, l); found {
			_ = s.revoke(ctx, old.id)
		}
	case longer && !errors.Is(err, store.ErrUnsure):
		s.giveLease(ctx, l)
	}
	if err != nil {
		return 0, err
	}
	return left, nil
}

// rewrite changes the value of a key.
func (s *Store) rewrite(ctx context.Context, st stay, next record, options ...clientv3.OpOption) error {
	resp, err := s.change(ctx, is(st), []clientv3.Op{put(st.key, next, options...)}, nil)
	if err == nil && !resp.Succeeded {
		return store.ErrGone
	}
	return err
}

// renew resets etcd leases to their whole length. renew leaves out the leases with number 0, and
// returns ErrGone for a lease that has ended.
func (s *Store) renew(ctx context.Context, r *renewer, ids []clientv3.LeaseID) []error {
	errs := make([]error, len(ids))
	if !slices.ContainsFunc(ids, func(id clientv3.LeaseID) bool { return id != 0 }) {
		return errs
	}
	err := s.once(ctx, func(ctx context.Context) error { return r.renew(ctx, ids, errs) })
	for i, id := range ids {
		if err != nil && id != 0 {
			errs[i] = store.Unsure(err)
		}
	}
	return errs
}
