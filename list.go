package relock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Listed is a lock that somebody has or waits for.
type Listed struct {
	Name string // for [Client.NewLock], [Client.NewRWLock] or [Client.NewSemaphore], as Kind says
	Kind store.Kind
	State
}

// abreast is the number of locks that [Client.List] looks at together.
const abreast = 16

// List returns the locks that somebody has or waits for, in all processes, by name: of the whole
// store (in Redis, of [WithPrefix]), and of the names that match accepts; nil accepts all. List is
// for operators, as [Lock.State] is, and changes nothing. A lock that comes or goes meanwhile may
// be missing. List searches all that the store has (in Redis by SCAN on every master, which serves
// others in between), and then takes a round trip for each lock. It works after [Client.Close] too.
//
// Errors: [errors.ErrUnsupported] with [WithRedissonLayout] and with a store that is no
// [store.Listing]; ctx's; [ErrUnavailable] after 2 s without an answer, or a few seconds in stores
// beside Redis; errors of the store.
func (c *Client) List(ctx context.Context, match func(name string) bool) ([]Listed, error) {
	l := c.NewLock("list")
	if err := l.check(ctx); err != nil {
		return nil, err
	}
	listing, is := c.store.(store.Listing)
	if !is {
		return nil, fmt.Errorf("relock: list: %w: this store has no list of its locks", errors.ErrUnsupported)
	}
	ctx = &lifetime.Guarded{Context: ctx}
	found, err := listing.List(ctx, l.claim)
	if err != nil {
		return nil, fmt.Errorf("relock: list: %w", err)
	}
	names := slices.Sorted(maps.Keys(found))
	if match != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return !match(name) })
	}
	looks, stop := context.WithCancelCause(ctx) // the first failure ends all looks
	defer stop(nil)
	all := make([]Listed, len(names))
	attempts.Each(len(names), abreast, func(i int) (err error) {
		if looks.Err() == nil {
			all[i], err = c.listed(looks, names[i], found[names[i]])
		}
		if err != nil {
			stop(err)
		}
		return err
	})
	if err := context.Cause(looks); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(l Listed) bool { return l.Name == "" }), nil
}

// listed looks at a lock. Its kind is likely, or another one if the lock has changed since the
// search. The name is empty if nobody has the lock or waits for it.
func (c *Client) listed(ctx context.Context, name string, likely store.Kind) (Listed, error) {
	for _, kind := range []store.Kind{likely, store.Mutex, store.ReadWrite, store.Semaphore} {
		l := c.newLock(store.Claim{Name: name, Kind: kind, Limit: 1}, nil)
		if l.err != nil { // no such kind in the store, or no name of a lock
			continue
		}
		s, err := l.ownerOf("list", ctx)
		switch {
		case errors.Is(err, ErrKind):
		case err != nil:
			return Listed{}, err
		case s.Owner != "", s.Waiters > 0:
			return Listed{Name: name, Kind: kind, State: l.stateOf(s)}, nil
		}
	}
	return Listed{}, nil
}
