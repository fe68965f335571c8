package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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

// queue is the answer of a member to Waiters. untold says why the member does not tell: other members
// have other queues.
type queue struct {
	waiters []store.Waiter
	untold  error
}

// Waiters implements [store.Queueing]: the queue of the first member that can be reached.
func (q *quorum) Waiters(ctx context.Context, a store.Claim, most int) ([]store.Waiter, error) {
	r := ask(ctx, q, longestLimit, (*round[queue]).settled,
		func(ctx context.Context, i int) (queue, error) {
			m, is := q.members[i].(store.Queueing)
			if !is {
				return queue{untold: fmt.Errorf("%w: who waits", errors.ErrUnsupported)}, nil
			}
			waiters, err := m.Waiters(ctx, a, most)
			if errors.Is(err, errors.ErrUnsupported) {
				return queue{untold: err}, nil
			}
			return queue{waiters: waiters}, err
		})
	r.behind()
	if first, _ := r.first(); first.done && ctx.Err() == nil {
		return first.value.waiters, cmp.Or(first.err, first.value.untold)
	}
	return nil, failed(ctx, r.errs())
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
	freed, lost := count(errs, done), count(errs, gone)
	if freed > 0 && lost < q.majority && freed+lost >= q.majority {
		return nil
	}
	return q.verdict(ctx, errs)
}
