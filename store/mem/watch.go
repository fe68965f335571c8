package mem

import (
	"context"
	"errors"
	"strconv"

	"github.com/go-relock/relock/store"
)

// Watch implements [store.Watcher]. [Store.Break], [Store.Lose] and the end of an interruption call
// doubt, in their own goroutine. Watch itself calls doubt if a hold may be gone since before.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	s.mu.Lock()
	stop = s.watchers.Add(client, doubt)
	missed := s.missed
	s.mu.Unlock()
	if missed {
		doubt("")
	}
	return stop
}

// WatchWanted implements [store.Asking]. Want calls wanted in its own goroutine.
func (s *Store) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	return s.askers.Add(client, wanted)
}

// Want implements [store.Asking].
func (s *Store) Want(ctx context.Context, a store.Claim) error {
	err := s.once(ctx, a.Name, of(a.ID, func(*lock, *hold) {}))
	if err == nil || errors.Is(err, store.ErrUnsure) {
		s.askers.Tell(a.ID)
	}
	return err
}

// Announced implements [store.Announcing]. Announce calls heard in its own goroutine.
func (s *Store) Announced(name string, heard func()) (stop func()) {
	return s.follow.Add(strconv.Quote(name), func(store.ID) { heard() })
}

// Announce implements [store.Announcing].
func (s *Store) Announce(ctx context.Context, a store.Claim) error {
	err := s.once(ctx, a.Name, func(*lock) error { return nil })
	if err == nil {
		s.follow.Tell(store.ID(strconv.Quote(a.Name) + ":"))
	}
	return err
}

// tell calls the watchers of the hold's client; all watchers if id is empty.
func (s *Store) tell(id store.ID) {
	s.mu.Lock()
	doubts := s.watchers.Of(id)
	s.missed = s.missed || len(doubts) == 0 && id != ""
	s.mu.Unlock()
	for _, doubt := range doubts {
		doubt(id)
	}
}
