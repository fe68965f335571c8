package relocksql

import (
	"context"
	"time"

	"github.com/go-relock/relock/store"
)

const (
	// keepNames is the time for which the row of a free lock stays, with its last token. A clock
	// that is set back by less than keepNames cannot turn the tokens back.
	keepNames = 24 * time.Hour
	// noteEvery is how often a lock in use notes that it is in use.
	noteEvery = time.Hour
	// cleanEvery is the shortest time between two cleanups of a Store, and cleanAfter is how many
	// new names make a cleanup due.
	cleanEvery = time.Hour
	cleanAfter = 100
)

const (
	cleanHolds = `DELETE FROM relock_holds WHERE kept_until < {now} - ?{alone}`
	cleanLocks = `DELETE FROM relock_locks WHERE used < {now} - ?
		AND NOT EXISTS (SELECT 1 FROM relock_holds WHERE relock_holds.name = relock_locks.name){alone}`
)

// Clean deletes the rows of locks that nobody has used for more than a day, and of holds and
// waiters that have been dead for more than a day. A Store calls Clean by itself, at most once an
// hour, after it has made rows for 100 new names. So Clean is for databases with many names that
// are used once.
func (s *Store) Clean(ctx context.Context) error { return s.clean(ctx, keepNames) }

func (s *Store) clean(ctx context.Context, older time.Duration) error {
	for _, statement := range []string{cleanHolds, cleanLocks} {
		err := s.run(ctx, command{asking, store.Claim{}, fewTries, slow}, func(ctx context.Context) error {
			_, err := s.statement(ctx, statement, toMicros(older))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cleanNow starts a cleanup if one is due. The next cleanup makes up for one that fails.
func (s *Store) cleanNow() {
	if s.names.Load() < cleanAfter {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.cleaned) > cleanEvery {
		s.cleaned = time.Now()
		s.names.Store(0)
		s.group.GoOpen(func() { _ = s.Clean(s.life) })
	}
}
