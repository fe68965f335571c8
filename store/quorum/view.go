package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// List implements [store.Listing]. A hold is at a majority, and so at one member of any majority.
func (q *quorum) List(ctx context.Context, a store.Claim) (map[string]store.Kind, error) {
	r := ask(ctx, q, 0, (*round[map[string]store.Kind]).settled,
		func(ctx context.Context, i int) (map[string]store.Kind, error) {
			if m, is := q.members[i].(store.Listing); is {
				return m.List(ctx, a)
			}
			return nil, fmt.Errorf("%w: a list of its locks", errors.ErrUnsupported)
		})
	r.behind()
	lists := r.values()
	if len(lists) < q.majority || ctx.Err() != nil {
		return nil, failed(ctx, r.errs())
	}
	found := make(map[string]store.Kind)
	for _, list := range lists {
		maps.Copy(found, list)
	}
	return found, nil
}

// Look returns the view of the majority. The owner is a hold that may have a majority, and its
// lease ends when the majority does. The token is the last one that a majority has drawn. The
// waiters are those of the first member that can be reached.
func (q *quorum) Look(ctx context.Context, a store.Claim) (store.State, error) {
	r := ask(ctx, q, longestLimit, (*round[store.State]).settled,
		func(ctx context.Context, i int) (store.State, error) { return q.members[i].Look(ctx, a) })
	r.behind()
	states := r.values()
	if len(states) < q.majority || ctx.Err() != nil {
		return store.State{}, failed(ctx, r.errs())
	}
	state := store.State{Token: nth(states, q.majority, func(s store.State) int64 { return s.Token })}
	if first, _ := r.first(); first.done {
		state.Waiters = first.value.Waiters
	}
	for _, s := range states {
		owned := slices.DeleteFunc(slices.Clone(states), func(other store.State) bool { return other.Owner != s.Owner })
		if missing := len(q.members) - len(states); s.Owner == "" || len(owned)+missing < q.majority {
			continue
		}
		state.Owner = s.Owner
		state.TTL = nth(owned, q.majority, func(s store.State) time.Duration { return s.TTL })
		state.Count = mostCommon(owned)
	}
	return state, nil
}

// nth returns the n-th largest value, or the smallest of fewer values.
func nth[T any, V cmp.Ordered](from []T, n int, value func(T) V) V {
	var values []V
	for _, f := range from {
		values = append(values, value(f))
	}
	slices.Sort(values)
	return values[max(len(values)-n, 0)]
}

// mostCommon returns the count that most states have: a late command may differ.
func mostCommon(states []store.State) (count int) {
	votes := make(map[int]int)
	for _, s := range states {
		if votes[s.Count]++; votes[s.Count] > votes[count] {
			count = s.Count
		}
	}
	return count
}

// Break frees the lock at all members. Break returns nil if the hold may have had a majority, and a
// majority does not have the hold any more; ErrGone if a majority did not have the hold before.
func (q *quorum) Break(ctx context.Context, a store.Claim) error {
	defer q.over(a.ID)()
	r := ask(ctx, q, longestLimit, func(*round[struct{}]) bool { return false },
		func(ctx context.Context, i int) (none struct{}, err error) {
			return none, q.members[i].Break(ctx, a)
		})
	errs := r.errs()
	freed, lost := len(where(errs, done)), len(where(errs, gone))
	if freed > 0 && lost < q.majority && freed+lost >= q.majority {
		return nil
	}
	return q.verdict(ctx, errs)
}

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
	case len(where(errs, done)) > 0:
		return nil
	case len(where(errs, none)) == len(errs):
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

// Races reports whether waiters race at a member: the waiters of the quorum queue at a member.
func (q *quorum) Races() bool {
	return slices.ContainsFunc(q.members, func(m store.Store) bool {
		r, ok := m.(store.Racing)
		return ok && r.Races()
	})
}

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

// Close waits for the goroutines behind earlier calls, at most a few seconds, and closes the
// members.
func (q *quorum) Close() error {
	q.group.Close()
	q.end()
	q.group.Wait()
	var errs []error
	for _, m := range q.members {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
