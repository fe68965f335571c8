package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-relock/relock"
)

// service sells from stock. Several instances of the service work on one store.
type service struct {
	store    *store
	patience time.Duration // how long a request waits for its turn
	lock     func(name string) locker
}

// locker is the part of a lock that the service needs. [relock.Lock] is a locker; unguarded, below,
// is no lock at all.
type locker interface {
	DoFor(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error
}

var errSoldOut = errors.New("sold out")

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /products/{id}/sale", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.sell(r.Context(), r.PathValue("id")))
	})
	mux.HandleFunc("POST /products/{id}/stocktaking", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.takeStock(r.Context(), r.PathValue("id")))
	})
	return mux
}

// sell takes one out of stock.
func (s *service) sell(ctx context.Context, product string) error {
	return s.guard(ctx, product, func(ctx context.Context) error {
		left, err := s.store.Stock(ctx, product)
		if err != nil {
			return err
		}
		if left <= 0 {
			return errSoldOut
		}
		return s.store.SetStock(ctx, product, left-1)
	})
}

// takeStock counts the stock, which takes time, and corrects the number. Nothing may be sold
// meanwhile.
func (s *service) takeStock(ctx context.Context, product string) error {
	return s.guard(ctx, product, func(ctx context.Context) error {
		counted, err := s.store.Stock(ctx, product)
		if err != nil {
			return err
		}
		if err := sleep(ctx, stocktaking); err != nil {
			return err
		}
		return s.store.SetStock(ctx, product, counted)
	})
}

const stocktaking = 1200 * time.Millisecond

// guard runs fn in the section of a product. A request waits for the section, but not for ever. The
// limit is for the wait only: the work may take longer.
func (s *service) guard(ctx context.Context, product string, fn func(context.Context) error) error {
	return s.lock("product:"+product).DoFor(ctx, s.patience, fn)
}

// answer turns the outcome into a status that the caller can act on.
func answer(w http.ResponseWriter, err error) {
	var locked *relock.LockedError
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, errSoldOut):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.As(err, &locked):
		// The function has not run (relock.NotEntered), so the caller may ask again. The present holder
		// may be through when its lease is over.
		w.Header().Set("Retry-After", fmt.Sprint(int(max(1, locked.TTL.Round(time.Second).Seconds()))))
		http.Error(w, "busy, ask again later", http.StatusServiceUnavailable)
	case errors.Is(err, relock.ErrLockLost):
		// The section was cut short. The store said "context canceled", and DoFor adds the reason. The
		// last write may or may not have happened.
		http.Error(w, "interrupted: "+err.Error(), http.StatusInternalServerError)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// unguarded lets all callers in at once.
type unguarded struct{}

func (unguarded) DoFor(ctx context.Context, _ time.Duration, fn func(context.Context) error) error {
	return fn(ctx)
}
