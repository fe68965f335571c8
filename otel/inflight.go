package relockotel

import (
	"sync"
	"time"

	"github.com/go-relock/relock"
)

// inflight knows what has begun and not ended: open holds, and waiters in a queue. It is fed with events, each begin
// and end by name, so that one that is missing makes no later one wrong.
type inflight struct {
	mu      sync.Mutex
	labels  map[string]struct{} // every lock label that was seen; just "" if there is no such label
	holds   map[holdKey]openHold
	ended   map[holdKey]time.Time // holds whose end was told before their begin: when that was, or a little later
	waiters map[waitKey]waiting
}

// holdKey names a hold. One holder can hold two locks of one name, under two prefixes, so the token is part of it. Where tokens
// are 0 (Redisson's layout) these have one key.
type holdKey struct {
	name   string
	holder relock.Holder
	token  int64
}

type openHold struct {
	label string
	since time.Time // of the oldest
	ttl   time.Duration
	more  int // of that key, besides one
}

type waitKey struct {
	name   string
	holder relock.Holder
}

// waiting counts: when a holder gives up and another of its calls queues at once, the events can come the other way round.
type waiting struct {
	label string
	n     int
}

// endedLimit bounds the ends that wait for a begin. After dropped events some of those begins never come.
const endedLimit = 1024

func newInflight() *inflight {
	f := &inflight{labels: make(map[string]struct{})}
	f.reset()
	return f
}

// know notes a lock label, and says whether it is new.
func (f *inflight) know(label string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.labels[label]
	f.labels[label] = struct{}{}
	return !known
}

func (f *inflight) queued(label string, key waitKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[key] = waiting{label, f.waiters[key].n + 1}
}

func (f *inflight) waited(key waitKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.waiters[key]; w.n > 1 {
		f.waiters[key] = waiting{w.label, w.n - 1}
	} else {
		delete(f.waiters, key)
	}
}

// opened notes a hold that was asked for at that time, unless its end was told already: a lease can be lost while Lock is about to
// return. Without tokens, what was asked for after that one had begun is another: the begin of that one is missing.
func (f *inflight) opened(key holdKey, asked time.Time, h openHold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if begun, over := f.ended[key]; over {
		delete(f.ended, key)
		if key.token != 0 || !asked.After(begun) {
			return
		}
	}
	if open, another := f.holds[key]; another {
		h = open
		h.more++
	}
	f.holds[key] = h
}

func (f *inflight) closed(key holdKey, held time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h, open := f.holds[key]; open {
		if h.more--; h.more < 0 {
			delete(f.holds, key)
		} else {
			f.holds[key] = h
		}
		return
	}
	if len(f.ended) >= endedLimit {
		clear(f.ended)
	}
	f.ended[key] = time.Now().Add(-held)
}

// reset forgets everything but the labels. After events were dropped, nobody can tell which of the holds here have
// ended. What is open now is not counted then until it ends, which is soon over; what is counted and has ended would stay
// for ever.
func (f *inflight) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds = make(map[holdKey]openHold)
	f.ended = make(map[holdKey]time.Time)
	f.waiters = make(map[waitKey]waiting)
}

// usage is what is in flight under one label.
type usage struct {
	holds, waiters int
	age            time.Duration // of the oldest hold
	ageTTL         float64       // the largest age, in TTLs
}

// now returns the usage for every label.
func (f *inflight) now() map[string]usage {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]usage, len(f.labels))
	for label := range f.labels {
		all[label] = usage{}
	}
	for _, h := range f.holds {
		u, age := all[h.label], time.Since(h.since)
		u.holds += 1 + h.more
		u.age = max(u.age, age)
		if h.ttl > 0 {
			u.ageTTL = max(u.ageTTL, float64(age)/float64(h.ttl))
		}
		all[h.label] = u
	}
	for _, w := range f.waiters {
		u := all[w.label]
		u.waiters += w.n
		all[w.label] = u
	}
	return all
}
