package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// CheckServer checks all members, and names each member that lacks something. If none does,
// CheckServer checks that the members are servers of their own.
func (q *quorum) CheckServer(ctx context.Context, a store.Claim) error {
	if ctx.Err() != nil {
		return lifetime.Ended(ctx)
	}
	r := ask(ctx, q, 0, func(*round[struct{}]) bool { return false },
		func(ctx context.Context, i int) (none struct{}, err error) {
			if c, ok := q.members[i].(store.Checker); ok {
				err = c.CheckServer(ctx, a)
			}
			return none, err
		})
	errs := r.errs()
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("member %d: %w", i+1, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return q.checkServers(ctx, a)
}

// checkTTL is the lease of the holds that check whether the members are servers of their own.
const checkTTL = 4 * longestLimit

// checkServers gives the lock of each member to a hold of its own, and looks whether each member
// has its hold and no other. Two members may be one server, and one address may be several servers:
// then the loss of one server may be the loss of a majority.
func (q *quorum) checkServers(ctx context.Context, a store.Claim) error {
	a.Name, a.TTL, a.Acks = fmt.Sprintf("%s-%08x", a.Name, rand.Uint32()), checkTTL, store.Acks{}
	claims := make([]store.Claim, len(q.members))
	for i := range claims {
		claims[i] = a
		claims[i].ID = store.ID(fmt.Sprintf("%s:0:%d", a.ID, i+1))
	}
	never := func(*round[store.State]) bool { return false }
	taken := ask(ctx, q, longestLimit, never, func(ctx context.Context, i int) (none store.State, err error) {
		_, err = q.members[i].Try(ctx, claims[i])
		return none, err
	})
	looked := ask(ctx, q, longestLimit, never, func(ctx context.Context, i int) (store.State, error) {
		return q.members[i].Look(ctx, claims[i])
	})
	ask(context.WithoutCancel(ctx), q, longestLimit, never, func(ctx context.Context, i int) (none store.State, err error) {
		return none, q.members[i].Forget(ctx, claims[i:i+1])[0]
	})
	errs := make([]error, len(claims))
	for i := range claims {
		errs[i] = checkMember(i, claims, taken.answers[i].err, looked.answers[i])
	}
	return errors.Join(errs...)
}

// checkMember judges the answers of a member that has tried to give its lock to the hold of its
// ask.
func checkMember(member int, claims []store.Claim, tried error, looked answer[store.State]) error {
	var busy *store.Busy
	errors.As(tried, &busy)
	for i, a := range claims {
		state := looked.value
		has := state.Owner == a.ID || slices.ContainsFunc(state.Others, func(h store.Held) bool { return h.ID == a.ID })
		if i != member && (has || busy != nil && busy.Owner == a.ID) {
			return fmt.Errorf("member %d has a lock of member %d: they share a server, or one copies the other", member+1, i+1)
		}
	}
	err := cmp.Or(tried, looked.err)
	switch {
	case err != nil:
		return fmt.Errorf("member %d: %w", member+1, err)
	case looked.value.Owner == "":
		return fmt.Errorf("member %d does not have a lock that it gave just now: its address is several servers", member+1)
	}
	return nil
}
