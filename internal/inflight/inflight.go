// Package inflight counts open holds, and waiters in a queue. The modules otel and prometheus feed
// a Table with events, and read the usage for each collection of metrics.
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
	Leader bool // a hold of a leader, which is long on purpose and so has no age
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
	Age            time.Duration // of the oldest hold without a leader; 0: none
	AgeTTL         float64       // the largest age of such a hold as a multiple of the hold's TTL; 0: none
}

// Table counts holds and waiters. The events of one Key may arrive in an unusual order or, after
// drops, not at all: an event that is missing makes no later count wrong. A Table is safe for
// concurrent use.
type Table struct {
	mu     sync.Mutex
	labels map[string]bool // every label that was announced
	counts map[Key]counts
	early  map[Key]time.Time // ends before their begin: when the hold began, or a little later
}

// counts are the open holds and the waits of one Key. A holder can begin a wait before the end of
// the last wait is reported.
type counts struct {
	label          string
	holds, waiters int
	oldest         Hold // of the open holds
}

// earlyLimit bounds Table.early. After drops some begins never arrive.
const earlyLimit = 1024

// New makes an empty Table.
func New() *Table {
	t := &Table{labels: make(map[string]bool)}
	t.Reset()
	return t
}

// Know announces a label, and says whether the label is new. [Table.Usage] reports announced labels
// also while nothing is in flight.
func (t *Table) Know(label string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.labels[label]
	t.labels[label] = true
	return !known
}

// change applies f to the counts of a key, and removes counts of nothing.
func (t *Table) change(key Key, f func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts[key]
	f(&c)
	if c.holds == 0 && c.waiters == 0 {
		delete(t.counts, key)
	} else {
		t.counts[key] = c
	}
}

// Queue counts a wait that has begun.
func (t *Table) Queue(key Key, label string) {
	t.change(key, func(c *counts) { c.label, c.waiters = label, c.waiters+1 })
}

// Unqueue counts a wait that has ended. Without a begin, Unqueue does nothing.
func (t *Table) Unqueue(key Key) {
	t.change(key, func(c *counts) { c.waiters = max(0, c.waiters-1) })
}

// Open counts a hold that has begun, unless its end was reported already: a lease can be lost while
// Lock is about to return. An end from before the call began belongs to an older hold, whose begin
// is missing.
func (t *Table) Open(key Key, h Hold) {
	t.change(key, func(c *counts) {
		begun, over := t.early[key]
		delete(t.early, key)
		if over && !h.Asked.After(begun) {
			return
		}
		if c.holds == 0 {
			c.oldest = h
		}
		c.label, c.holds = h.Label, c.holds+1
	})
}

// End counts a hold that has ended and lasted for held.
func (t *Table) End(key Key, held time.Duration) {
	t.change(key, func(c *counts) {
		if c.holds > 0 {
			c.holds--
			return
		}
		if len(t.early) >= earlyLimit {
			clear(t.early)
		}
		t.early[key] = time.Now().Add(-held)
	})
}

// Reset forgets everything but the labels. After drops nobody can tell which holds have ended.
// Reset leaves out what is open now, until the end of each hold; a stale hold would be counted for
// ever.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts, t.early = make(map[Key]counts), make(map[Key]time.Time)
}

// Usage returns the usage of every label.
func (t *Table) Usage() map[string]Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]Usage, len(t.labels))
	for label := range t.labels {
		all[label] = Usage{}
	}
	for key, c := range t.counts {
		u := all[c.label]
		u.Holds += c.holds
		u.Waiters += c.waiters
		if c.holds > 0 && !key.Leader {
			age := time.Since(c.oldest.Since)
			u.Age = max(u.Age, age)
			if c.oldest.TTL > 0 {
				u.AgeTTL = max(u.AgeTTL, float64(age)/float64(c.oldest.TTL))
			}
		}
		all[c.label] = u
	}
	return all
}
