package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-relock/relock/store"
)

// defects are ways to break a store that serves as it should.
var defects = map[string]func(store.Store) store.Store{
	// The history of the calls shows these.
	"a lease counts from after a late answer": func(s store.Store) store.Store { return fromAnswer{s} },
	"a renewal asks nobody":                   func(s store.Store) store.Store { return unasked{s} },
	"a refused hold is in":                    func(s store.Store) store.Store { return believer{s} },
	"a release ends a newer hold":             func(s store.Store) store.Store { return sweeper{s} },
	"a token does not grow":                   func(s store.Store) store.Store { return constant{s} },

	// A calm round shows these.
	"a release does nothing":           func(s store.Store) store.Store { return keeper{s} },
	sleeps:                             func(s store.Store) store.Store { return sleeper{s} },
	lastFirst:                          func(s store.Store) store.Store { return pile{s} },
	"an entry is counted twice":        func(s store.Store) store.Store { return double{s} },
	"a free lock is refused":           func(s store.Store) store.Store { return refuser{s} },
	"a waiter that has given up stays": func(s store.Store) store.Store { return stayer{s} },
}

const (
	sleeps    = "a waiter sleeps to the end of a lease" // which only fake time can judge
	lastFirst = "the last waiter is served first"       // which is no defect where waiters have no order
)

// broken is the setting with stores that are broken that way. Nobody lends a section: a loan of a
// broken store may never come back.
func (s setting) broken(way string) setting {
	s.defect = defects[way]
	s.serves = slices.DeleteFunc(slices.Clone(s.serves), func(kind string) bool { return kind == errand })
	return s
}

type fromAnswer struct{ store.Store }

func (b fromAnswer) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return afterAnswer(b.Store.Try(ctx, a))
}

func (b fromAnswer) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
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

func (b believer) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	l, err := b.Store.Try(ctx, a)
	var busy *store.Busy
	if errors.As(err, &busy) && rand.IntN(10) == 0 {
		return store.Lease{Claim: a, Sent: time.Now(), Token: 1}, nil
	}
	return l, err
}

type sweeper struct{ store.Store }

func (b sweeper) Release(ctx context.Context, l store.Lease) error {
	err := b.Store.Release(ctx, l)
	if err != nil || rand.IntN(10) > 0 {
		return err
	}
	state, lookErr := b.Look(ctx, l.Claim)
	if lookErr == nil && state.Owner != "" {
		newer := l.Claim
		newer.ID, newer.Limit = state.Owner, state.Limit
		_ = b.Forget(ctx, []store.Claim{newer})
	}
	return nil
}

type constant struct{ store.Store }

func (b constant) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	return b.drawn(b.Store.Try(ctx, a))
}

func (b constant) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
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

type keeper struct{ store.Store }

func (b keeper) Release(ctx context.Context, l store.Lease) error {
	if rand.IntN(4) == 0 {
		return nil
	}
	return b.Store.Release(ctx, l)
}

type sleeper struct{ store.Store }

func (b sleeper) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	l, err := b.Store.Wait(ctx, a, progress)
	if err == nil && l.Woken != store.WakeNone {
		sleep(ctx, 3*l.TTL/4)
	}
	return l, err
}

// pile is a store whose clients share a pile of waiters for each lock. The top asks again and again.
type pile struct{ store.Store }

var piles = struct {
	sync.Mutex
	of map[string][]store.ID
}{of: map[string][]store.ID{}}

func (b pile) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	piles.Lock()
	piles.of[a.Name] = append(piles.of[a.Name], a.ID)
	piles.Unlock()
	defer func() {
		piles.Lock()
		defer piles.Unlock()
		piles.of[a.Name] = slices.DeleteFunc(piles.of[a.Name], func(id store.ID) bool { return id == a.ID })
	}()
	for {
		piles.Lock()
		all := piles.of[a.Name]
		isTop := all[len(all)-1] == a.ID
		piles.Unlock()
		if isTop {
			l, err := b.Try(ctx, a)
			var busy *store.Busy
			if errors.As(err, &busy) {
				progress(store.Progress{Busy: busy, Queued: true})
			} else if !errors.Is(err, store.ErrUnavailable) {
				return l, err
			}
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return store.Lease{}, store.Unsure(ended(ctx))
		}
	}
}

func (b pile) Look(ctx context.Context, a store.Claim) (store.State, error) {
	state, err := b.Store.Look(ctx, a)
	piles.Lock()
	defer piles.Unlock()
	state.Waiters = len(piles.of[a.Name])
	return state, err
}

type double struct{ store.Store }

func (b double) Enter(ctx context.Context, l store.Lease, count int) (store.Lease, error) {
	return b.Store.Enter(ctx, l, count+rand.IntN(2))
}

type refuser struct{ store.Store }

func (b refuser) Try(ctx context.Context, a store.Claim) (store.Lease, error) {
	if rand.IntN(4) == 0 {
		return store.Lease{}, &store.Busy{}
	}
	return b.Store.Try(ctx, a)
}

type stayer struct{ store.Store }

func (b stayer) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (store.Lease, error) {
	type answer struct {
		l   store.Lease
		err error
	}
	var mu sync.Mutex // of over
	over := false
	got := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*a.TTL)
		defer cancel()
		l, err := b.Store.Wait(ctx, a, func(p store.Progress) {
			mu.Lock()
			defer mu.Unlock()
			if !over {
				progress(p)
			}
		})
		got <- answer{l, err}
	}()
	select {
	case g := <-got:
		return g.l, g.err
	case <-ctx.Done():
		mu.Lock()
		defer mu.Unlock()
		over = true
		return store.Lease{}, ended(ctx)
	}
}
