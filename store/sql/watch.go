package relocksql

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// Watch implements [store.Watcher] in PostgreSQL with a [Listener]. Otherwise the next renewal
// finds that a hold is gone.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	return s.hearFor(&s.watchers, client, doubt)
}

// WatchWanted implements [store.Asking] in PostgreSQL with a [Listener].
func (s *Store) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	return s.hearFor(&s.askers, client, wanted)
}

func (s *Store) hearFor(who *attempts.Watchers, client string, tell func(store.ID)) (stop func()) {
	if s.listener == nil {
		return func() {}
	}
	stop = who.Add(client, tell)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearLocked()
	return stop
}

// Want implements [store.Asking] in PostgreSQL, where a client with a [Listener] hears it.
func (s *Store) Want(ctx context.Context, a store.Claim) error {
	if s.grammar.tell == "" {
		return fmt.Errorf("%w: a word to the holder in a database without notifications", errors.ErrUnsupported)
	}
	return s.on(ctx, fewTries, a, func(k *lock) error {
		if !k.has() {
			return store.ErrGone
		}
		return k.tell("want", a)
	})
}

// tell notifies the client of a hold, where the dialect can.
func (k *lock) tell(verb string, a store.Claim) error {
	if k.s.grammar.tell == "" {
		return nil
	}
	_, err := k.exec(k.s.grammar.tell, verb, []byte(a.Name), []byte(a.ID))
	return err
}
