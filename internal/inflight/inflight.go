// Package inflight counts what has begun and not ended: open holds, and waiters in a queue. The
// modules otel and prometheus feed a Table with events, and read the usage whenever somebody
// collects metrics.
package inflight

import (
	"sync"
	"time"
)

// Key names a hold, or a wait, by lock and holder. A chain of calls that locks one name in two
// stores has two holds with the same Key, so a Table counts holds and waits instead of remembering
// each one.
type Key struct {
	Name   string // of the lock
	Holder string
}

// Hold describes an open hold.
type Hold struct {
	Label string    // the metric label that the lock's name maps to
	Asked time.Time // when the call began
	Since time.Time // when the call entered
	TTL   time.Duration
}

// Usage counts what is in flight under one label.
type Usage struct {
	Holds, Waiters int
	Age            time.Duration // of the oldest hold; 0 without holds
	AgeTTL         float64       // the largest age of a hold as a multiple of the hold's TTL; 0 without holds
}

// Table counts holds and waiters. The events of one Key may arrive in an unusual order or, after
// drops, not at all: an event that is missing makes no later count wrong. A Table is safe for
// concurrent use.
type Table struct {
	mu      sync.Mutex
	labels  map[string]struct{} // every label that was announced
	holds   map[Key]holds
	ended   map[Key]time.Time // ends that arrived before their begin: when the hold began, or a little later
	waiters map[Key]waiters
}

// holds are the open holds of one Key, described by the oldest.
type holds struct {
	oldest Hold
	n      int
}

// waiters counts, as a wait that a holder begins can be reported before the end of the holder's
// last one.
type waiters struct {
	label string
	n     int
}

// endedLimit bounds the ends that wait for a begin. After drops some begins never arrive.
const endedLimit = 1024

// New makes an empty Table.
func New() *Table {
	t := &Table{labels: make(map[string]struct{})}
	t.Reset()
	return t
}

// Know announces a label, and says whether the label is new. [Table.Usage] reports announced labels
// also while nothing is in flight.
func (t *Table) Know(label string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.labels[label]
	t.labels[label] = struct{}{}
	return !known
}

// Queue counts a wait that has begun.
func (t *Table) Queue(key Key, label string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiters[key] = waiters{label, t.waiters[key].n + 1}
}

// Unqueue counts a wait that has ended. Without a begin, Unqueue does nothing.
func (t *Table) Unqueue(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiters[key]
	if w.n--; w.n > 0 {
		t.waiters[key] = w
	} else {
		delete(t.waiters, key)
	}
}

// Open counts a hold that has begun, unless its end was reported already: a lease can be lost while
// Lock is about to return. An end from before the call began belongs to an older hold, whose begin
// is missing.
func (t *Table) Open(key Key, h Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if begun, over := t.ended[key]; over {
		delete(t.ended, key)
		if !h.Asked.After(begun) {
			return
		}
	}
	open := t.holds[key]
	if open.n == 0 {
		open.oldest = h
	}
	open.n++
	t.holds[key] = open
}

// End counts a hold that has ended and lasted for held.
func (t *Table) End(key Key, held time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open, ok := t.holds[key]; ok {
		if open.n--; open.n > 0 {
			t.holds[key] = open
		} else {
			delete(t.holds, key)
		}
		return
	}
	if len(t.ended) >= endedLimit {
		clear(t.ended)
	}
	t.ended[key] = time.Now().Add(-held)
}

// Reset forgets everything but the labels. After drops nobody can tell which holds have ended.
// Reset leaves out what is open now, until the end of each hold; a stale hold would be counted for
// ever.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds = make(map[Key]holds)
	t.ended = make(map[Key]time.Time)
	t.waiters = make(map[Key]waiters)
}

// Usage returns the usage of every label.
func (t *Table) Usage() map[string]Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]Usage, len(t.labels))
	for label := range t.labels {
		all[label] = Usage{}
	}
	for _, open := range t.holds {
		u, age := all[open.oldest.Label], time.Since(open.oldest.Since)
		u.Holds += open.n
		u.Age = max(u.Age, age)
		if ttl := open.oldest.TTL; ttl > 0 {
			u.AgeTTL = max(u.AgeTTL, float64(age)/float64(ttl))
		}
		all[open.oldest.Label] = u
	}
	for _, w := range t.waiters {
		u := all[w.label]
		u.Waiters += w.n
		all[w.label] = u
	}
	return all
}
