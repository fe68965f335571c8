package redisstore

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/go-relock/relock/store"
)

// This file answers grants to waits that are over. A replica that was behind when it became the
// master brings their places back, and while the client listens on the channel for another wait,
// each of the places would have the lock for a lease.

// waited has the holds of a store that have asked for a place in a queue, until they are over, or
// their leases are.
type waited struct {
	mu    sync.Mutex
	holds map[store.ID]stay
	most  int // holds before the next look for leases that are over
}

// stay is what is remembered of a hold.
type stay struct {
	end    time.Time  // of the lease; zero while the hold waits
	asleep *sleeper   // nil: the hold does not wait, or asks just now
	of     *store.Run // that has the wait; nil: none
	// granted says that Redis has given the lock to this very hold.
	granted bool
}

// begin notes a hold that waits. A client that was closed has left its holds to the ends of their
// leases.
func (w *waited) begin(id store.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds == nil {
		w.holds = make(map[store.ID]stay)
	}
	if len(w.holds) >= w.most {
		now := time.Now()
		maps.DeleteFunc(w.holds, func(_ store.ID, s stay) bool { return !s.end.IsZero() && now.After(s.end) })
		w.most = 2*len(w.holds) + 1024
	}
	w.holds[id] = stay{}
}

// lasts notes that the lease of a hold may last for so long from now on.
func (w *waited) lasts(id store.ID, lease time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old, has := w.holds[id]; has {
		if end := time.Now().Add(lease); end.After(old.end) {
			w.holds[id] = stay{end: end, granted: old.granted}
		}
	}
}

func (w *waited) end(id store.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holds, id)
}

// has says whether a hold waits, or its lease may last. Of many calls that give up while Redis is
// silent, cleanup leaves some to the end of their leases.
func (w *waited) has(id store.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, has := w.holds[id]
	return has && (s.end.IsZero() || time.Now().Before(s.end))
}

// unheard gives back the lock that a message has granted to a hold that is over. Without an answer
// the lock is free after a lease. A hold that has left may live on by its loans: then Redis keeps
// the lock.
func (s *nativeStore) unheard(channel, line string) {
	a := claimOf(line)
	base, is := strings.CutSuffix(channel, ":"+cutLast(string(a.ID), 2))
	if !is || a.Kind < 0 || s.waited.has(a.ID) {
		return
	}
	a.Name, a.Lent = base, a.Kind == store.Mutex
	s.group.GoOpen(func() {
		ctx, cancel := context.WithTimeout(s.life, undoLimit)
		defer cancel()
		s.Forget(ctx, []store.Claim{a})
	})
}

// claimOf returns the claim that a line grants, without its name and its TTL: <hold>, or
// <hold>|<letter>.
func claimOf(line string) store.Claim {
	id, letter, isKind := strings.Cut(line, "|")
	if !isKind {
		return store.Claim{ID: store.ID(id), Kind: store.Mutex, Limit: 1}
	}
	kind, limit := ofLetter(letter)
	return store.Claim{ID: store.ID(id), Kind: kind, Limit: limit}
}
