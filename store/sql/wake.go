package relocksql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Listener is a connection to PostgreSQL that hears notifications. The connection must not run
// through a pooler in transaction mode. Package pglisten has one.
type Listener interface {
	// Listen makes a connection, subscribes to a channel, and calls ready, and then notify with the
	// payload of each notification. Listen returns when the connection is lost, or ctx is done.
	Listen(ctx context.Context, channel string, ready func(), notify func(payload string)) error
}

// note is news for a waiter.
type note struct {
	told    bool // otherwise the time is over
	grant   bool // otherwise the waiter asks again
	arrival int64
}

// waiter is a call of Wait. A note that finds notes full is dropped: the waiter has a note to act
// on.
type waiter struct {
	name  string
	notes chan note
}

// join registers a waiter. leave takes the waiter back.
func (s *Store) join(a store.Claim) (w *waiter, leave func()) {
	w = &waiter{a.Name, make(chan note, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters[a.ID] = w
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiters[a.ID] == w {
			delete(s.waiters, a.ID)
		}
		if s.scout[a.Name] == w {
			delete(s.scout, a.Name)
		}
	}
}

// scouts says whether a waiter is the scout of its name. A name without a scout gets this one.
func (s *Store) scouts(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scout[w.name] == nil {
		s.scout[w.name] = w
	}
	return s.scout[w.name] == w
}

// hear lets the store hear of the grant of a waiter in the queue. A Listener that begins to listen
// lets all waiters ask again, so a grant that came before is not lost.
func (s *Store) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearLocked()
	select {
	case s.fresh <- struct{}{}:
	default:
	}
}

// hearLocked starts the goroutine that hears of grants, unless it runs.
func (s *Store) hearLocked() {
	if !s.hearing {
		hear := s.poll
		if s.listener != nil {
			hear = s.listen
		}
		s.hearing = s.group.GoOpen(hear)
	}
}

// listen hears notifications until Close. A notification may be lost before a connection listens,
// and when a connection is lost: then the waiters ask again. Without a connection, listen polls, and
// the client keeps no lock for longer than until the next attempt to connect.
func (s *Store) listen() {
	for n := 1; s.life.Err() == nil; n++ {
		listened := false
		_ = s.listener.Listen(s.life, s.inbox, func() { listened, n = true, 1; s.recheck() }, s.heard)
		if listened {
			s.recheck()
		} else {
			s.pollOnce()
			s.askers.Tell("") // nobody hears what is wanted
		}
		lifetime.Sleep(s.life.Done(), pauseAfter(min(n+4, 10)))
	}
}

// recheck lets each waiter ask again, and each watcher doubt its holds.
func (s *Store) recheck() {
	s.wakeAll()
	s.watchers.Tell("")
	s.askers.Tell("")
}

// wakeAll lets each waiter ask again.
func (s *Store) wakeAll() { s.wake("") }

// wake lets each waiter of a name ask again; each waiter if the name is empty.
func (s *Store) wake(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiters {
		if name == "" || w.name == name {
			w.tell(note{})
		}
	}
}

func (w *waiter) tell(n note) {
	n.told = true
	select {
	case w.notes <- n:
	default:
	}
}

// heard takes in the payload of a notification: a verb, the arrival number, and the hold.
func (s *Store) heard(payload string) {
	verb, rest, _ := strings.Cut(payload, " ")
	number, text, _ := strings.Cut(rest, " ")
	arrival, err := strconv.ParseInt(number, 10, 64)
	id, hexErr := hex.DecodeString(text)
	switch {
	case err != nil || hexErr != nil: // of somebody else
	case verb == "grant":
		s.granted(store.ID(id), arrival)
	case verb == "gone":
		s.watchers.Tell(store.ID(id))
	case verb == "want":
		s.askers.Tell(store.ID(id))
	}
}

// granted tells a waiter that it has been granted the lock.
func (s *Store) granted(id store.ID, arrival int64) (waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters[id]
	if w != nil {
		w.tell(note{grant: true, arrival: arrival})
	}
	return w != nil
}

const selectGranted = `SELECT id, arrival FROM relock_holds WHERE inbox = ? AND state = 1{open}{all}`

// poll asks for the granted rows of this store until no waiter is left. The interval grows while
// nothing happens.
func (s *Store) poll() {
	interval := s.pollMin
	for {
		timer := time.NewTimer(interval/2 + rand.N(interval))
		select {
		case <-timer.C:
		case <-s.life.Done():
			timer.Stop()
			return
		}
		if !s.stays() {
			return
		}
		interval = min(interval*3/2, s.pollMax)
		select {
		case <-s.fresh:
			interval = s.pollMin
		default:
		}
		if s.pollOnce() {
			interval = s.pollMin
		}
	}
}

// stays says whether a waiter is left. Otherwise the goroutine ends, and the next waiter starts
// another one.
func (s *Store) stays() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hearing = len(s.waiters) > 0
	return s.hearing
}

// pollOnce wakes the waiters whose rows are granted. A statement that fails is made up for by the
// next one.
func (s *Store) pollOnce() (woken bool) {
	ctx, cancel := context.WithTimeout(s.life, slow)
	defer cancel()
	leave, err := s.turns().take(ctx, renewing, "")
	if err != nil {
		return false
	}
	defer leave()
	_ = s.alone(ctx, func(conn *sql.Conn) (done bool, err error) {
		rows, err := conn.QueryContext(ctx, s.text(selectGranted), s.inbox)
		if err != nil {
			return false, err
		}
		done = true
		return done, each(rows, func(rows *sql.Rows) error {
			var id []byte
			var arrival int64
			if err := rows.Scan(&id, &arrival); err != nil {
				return fmt.Errorf("a granted row: %w", err)
			}
			done = done && len(id) > 0
			woken = s.granted(store.ID(id), arrival) || woken
			return nil
		})
	})
	return woken
}
