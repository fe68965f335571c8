package quorum

import (
	"context"
	"errors"

	"github.com/go-relock/relock/store"
)

// Watch passes on the doubts of all members.
func (q *quorum) Watch(client string, doubt func(store.ID)) (stop func()) {
	return hear(q, func(m store.Watcher) func() { return m.Watch(client, doubt) })
}

// Want tells the client of the hold at each member.
func (q *quorum) Want(ctx context.Context, a store.Claim) error {
	return tell(ctx, q, func(ctx context.Context, m store.Asking) error { return m.Want(ctx, a) })
}

// WatchWanted passes on what each member tells.
func (q *quorum) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	return hear(q, func(m store.Asking) func() { return m.WatchWanted(client, wanted) })
}

// Announce tells those who follow the lock at each member.
func (q *quorum) Announce(ctx context.Context, a store.Claim) error {
	return tell(ctx, q, func(ctx context.Context, m store.Announcing) error { return m.Announce(ctx, a) })
}

// Announced passes on what each member tells.
func (q *quorum) Announced(name string, heard func()) (stop func()) {
	return hear(q, func(m store.Announcing) func() { return m.Announced(name, heard) })
}

// tell sends a message by each member that can. One that was sent is enough.
func tell[M store.Store](ctx context.Context, q *quorum, send func(context.Context, M) error) error {
	r := ask(ctx, q, longestLimit, func(*round[struct{}]) bool { return false },
		func(ctx context.Context, i int) (none struct{}, err error) {
			if m, is := q.members[i].(M); is {
				return none, send(ctx, m)
			}
			return none, errors.ErrUnsupported
		})
	errs := r.errs()
	switch none := func(err error) bool { return errors.Is(err, errors.ErrUnsupported) }; {
	case count(errs, done) > 0:
		return nil
	case count(errs, none) == len(errs):
		return errs[0]
	}
	return q.verdict(ctx, errs)
}

// hear listens to each member that can tell something, until stop.
func hear[M store.Store](q *quorum, listen func(M) (stop func())) (stop func()) {
	var stops []func()
	for _, m := range q.members {
		if m, is := m.(M); is {
			stops = append(stops, listen(m))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}
