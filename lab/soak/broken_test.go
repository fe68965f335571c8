package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-relock/relock/store"
)

// defects are ways to break a store that serves as it should.
var defects = map[string]func(store.Store) store.Store{
	"a lease counts from after a late answer": func(s store.Store) store.Store { return fromAnswer{s} },
	"a renewal asks nobody":                   func(s store.Store) store.Store { return unasked{s} },
	"a refused hold is in":                    func(s store.Store) store.Store { return believer{s} },
	"a release ends a newer hold":             func(s store.Store) store.Store { return sweeper{s} },
	"a token does not grow":                   func(s store.Store) store.Store { return constant{s} },
}

// broken is the setting with stores that are broken that way. Nobody lends a section: a loan of a
// broken store may never come back.
func (s setting) broken(way string) setting {
	s.defect = defects[way]
	s.serves = slices.DeleteFunc(slices.Clone(s.serves), func(kind string) bool { return kind == errand })
	return s
}

type fromAnswer struct{ store.Store }

func (b fromAnswer) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	return afterAnswer(b.Store.Try(ctx, a))
}

func (b fromAnswer) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	return afterAnswer(b.Store.Wait(ctx, a, progress))
}

func afterAnswer(l store.Lease, err error) (store.Lease, error) {
	if err == nil && rand.IntN(4) == 0 {
		<-time.After(l.TTL + l.TTL/2) // as long as a store may keep the hold at most
		l.Sent = time.Now()
	}
	return l, err
}

type unasked struct{ store.Store }

func (b unasked) Renew(_ context.Context, renewals []store.Renewal) []error {
	return make([]error, len(renewals))
}

type believer struct{ store.Store }

func (b believer) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	l, err := b.Store.Try(ctx, a)
	var busy *store.Busy
	if errors.As(err, &busy) && rand.IntN(10) == 0 {
		return store.Lease{Ask: a, Sent: time.Now(), Token: 1}, nil
	}
	return l, err
}

type sweeper struct{ store.Store }

func (b sweeper) Release(ctx context.Context, l store.Lease) error {
	err := b.Store.Release(ctx, l)
	if err != nil || rand.IntN(10) > 0 {
		return err
	}
	state, lookErr := b.Look(ctx, l.Ask)
	if lookErr == nil && state.Owner != "" {
		newer := l.Ask
		newer.ID, newer.Limit = state.Owner, state.Limit
		_ = b.Forget(ctx, []store.Ask{newer})
	}
	return nil
}

type constant struct{ store.Store }

func (b constant) Try(ctx context.Context, a store.Ask) (store.Lease, error) {
	return b.drawn(b.Store.Try(ctx, a))
}

func (b constant) Wait(ctx context.Context, a store.Ask, progress func(store.Progress)) (store.Lease, error) {
	return b.drawn(b.Store.Wait(ctx, a, progress))
}

func (b constant) drawn(l store.Lease, err error) (store.Lease, error) {
	if l.Token != 0 {
		l.Token = 1
	}
	return l, err
}

func (b constant) Token(ctx context.Context, l store.Lease) (int64, error) {
	_, err := b.Store.Token(ctx, l)
	return 1, err
}
