package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
)

// History keeps the ends of holds, and long waits, in a stream in Redis: for [Handler], and in each
// process that takes locks for its hooks. The fields must not change after the first use. A History
// is safe for concurrent use.
//
// The hooks write nothing by themselves. What has happened within a quarter of a second goes to
// Redis in one round trip, beside the calls of locks. While Redis is away, up to 10,000 entries wait.
// What cannot be kept is counted, and the page says how many entries are missing.
type History struct {
	Redis redis.UniversalClient

	// Key is the stream, "relock:history" if empty. All processes with the same Key share it.
	Key string

	// Most is about how many entries the stream keeps, 10,000 if 0. An entry has about 300 bytes.
	Most int64

	// Keep is how long the stream lasts behind its last entry, 24 hours if 0.
	Keep time.Duration

	// Wait is the shortest wait that is written, 1 s if 0.
	Wait time.Duration

	// Match says which locks are written, by name; nil: all.
	Match func(name string) bool

	mu      sync.Mutex
	waiting []*entry
	missing int         // entries that were dropped since the last one that was written
	writer  *time.Timer // of the next write; nil: none is due
	writes  sync.WaitGroup
}

const (
	// writeAfter is how long entries wait for others.
	writeAfter = 250 * time.Millisecond
	// mostWaiting bounds the entries that wait.
	mostWaiting = 10_000
	// writeLimit bounds a write to Redis.
	writeLimit = 5 * time.Second
	// partSize is how many entries are read in one step.
	partSize = 1000
)

// The kinds of entries.
const (
	began  = "began"  // a hold of a leader or of a period of once, which have no end if the process dies
	held   = "held"   // a hold that has ended
	lost   = "lost"   // a hold that was lost
	closed = "closed" // a hold that was open when its client was closed
	waited = "wait"   // a long wait
	gap    = "gap"    // Missing entries are not here
)

// entry is what has happened. Its end is Ago before the time in the ID of its entry in the stream,
// so that one clock counts for all processes: that of Redis.
type entry struct {
	Kind    string `json:"kind"`
	Name    string `json:"name,omitempty"`
	Holder  string `json:"holder,omitempty"`
	Mode    string `json:"mode,omitempty"`
	Took    int64  `json:"took,omitempty"` // ms of the hold or the wait
	Ago     int64  `json:"ago,omitempty"`  // ms
	TTL     int64  `json:"ttl,omitempty"`  // ms
	Token   int64  `json:"token,omitempty"`
	Why     string `json:"why,omitempty"` // the reason of a loss, or the outcome of a wait
	Leader  bool   `json:"leader,omitempty"`
	Missing int    `json:"missing,omitempty"`

	end time.Time
}

// period matches the name of a lock of a period of once.Every.
var period = regexp.MustCompile(`^once:.*@[0-9a-zµ.]+#[0-9]+$`)

// Hooks returns the hooks that write, for [relock.WithHooks]. Any number of clients may have them. To
// add hooks of your own, use [event.Join].
func (h *History) Hooks() event.Hooks {
	return event.Hooks{
		AcquireFinished: func(e event.AcquireFinished) {
			of := entry{Name: e.Name, Holder: e.Holder.String(), Mode: string(e.Mode), Leader: e.Leader}
			if e.Waited && e.Duration >= cmp.Or(h.Wait, time.Second) {
				of := of
				of.Kind, of.Took, of.Why = waited, e.Duration.Milliseconds(), string(e.Outcome)
				h.add(of)
			}
			if e.Outcome == event.OutcomeAcquired && !e.Reentrant && (e.Leader || period.MatchString(e.Name)) {
				of.Kind, of.TTL = began, e.TTL.Milliseconds()
				h.add(of)
			}
		},
		Released: func(e event.Released) {
			h.ended(held, e.Name, e.Holder, e.Mode, e.Held, e.TTL, e.Token, e.Leader, "")
		},
		Lost: func(e event.Lost) {
			h.ended(lost, e.Name, e.Holder, e.Mode, e.Held, e.TTL, e.Token, e.Leader, string(e.Reason))
		},
		Closed: func(e event.Closed) {
			h.ended(closed, e.Name, e.Holder, e.Mode, e.Held, e.TTL, e.Token, e.Leader, "")
		},
		Dropped: func(e event.Dropped) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.missing += e.Events
		},
	}
}

func (h *History) ended(kind, name string, holder relock.Holder, mode event.Mode, took, ttl time.Duration, token int64, leader bool, why string) {
	h.add(entry{
		Kind: kind, Name: name, Holder: holder.String(), Mode: string(mode), Took: took.Milliseconds(), TTL: ttl.Milliseconds(),
		Token: token, Leader: leader, Why: why,
	})
}

// add lets an entry wait for the next write.
func (h *History) add(e entry) {
	if h.Match != nil && !h.Match(e.Name) {
		return
	}
	e.end = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) >= mostWaiting {
		h.missing++
		return
	}
	h.waiting = append(h.waiting, &e)
	if h.writer == nil {
		h.writes.Add(1)
		h.writer = time.AfterFunc(writeAfter, func() { defer h.writes.Done(); h.write() })
	}
}

// write sends what waits. After a failure it is not sent again, as it may be there.
func (h *History) write() {
	h.mu.Lock()
	all, missing := h.waiting, h.missing
	failed := len(all) + missing
	h.waiting, h.missing, h.writer = nil, 0, nil
	h.mu.Unlock()
	if missing > 0 {
		all = append(all, &entry{Kind: gap, Missing: missing, end: time.Now()})
	}
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeLimit)
	defer cancel()
	now := time.Now()
	_, err := h.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, e := range all {
			e.Ago = now.Sub(e.end).Milliseconds()
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			p.XAdd(ctx, &redis.XAddArgs{Stream: h.key(), MaxLen: cmp.Or(h.Most, 10_000), Approx: true, Values: []any{"e", text}})
		}
		p.PExpire(ctx, h.key(), cmp.Or(h.Keep, 24*time.Hour))
		return nil
	})
	if err != nil {
		h.mu.Lock()
		h.missing += failed
		h.mu.Unlock()
	}
}

func (h *History) key() string { return cmp.Or(h.Key, "relock:history") }

// Close writes what waits, within 5 s. Close the clients with the hooks before. Close always returns nil.
func (h *History) Close() error {
	h.mu.Lock()
	due := h.writer != nil && h.writer.Stop()
	h.mu.Unlock()
	if due {
		h.write()
		h.writes.Done()
	}
	h.writes.Wait()
	return nil
}

// last returns the ID of the last entry; empty: there is none.
func (h *History) last(ctx context.Context) (string, error) {
	found, err := h.Redis.XRevRangeN(ctx, h.key(), "+", "-", 1).Result()
	if err != nil || len(found) == 0 {
		return "", err
	}
	return found[0].ID, nil
}

// part is a part of the history, oldest first.
type part struct {
	Entries []pastEntry `json:"entries"`
	Last    string      `json:"last,omitempty"` // to be read on from; empty: nothing was found
}

type pastEntry struct {
	entry
	ID string `json:"id"`
	At int64  `json:"at"` // the end, by the clock of Redis
}

// streamID matches the ID of an entry.
var streamID = regexp.MustCompile(`^[0-9]{1,18}-[0-9]{1,18}$`)

// read returns the entries behind one with an ID; empty: from the first one.
func (h *History) read(ctx context.Context, after string) (part, error) {
	from := "-"
	if streamID.MatchString(after) {
		from = "(" + after
	}
	found, err := h.Redis.XRangeN(ctx, h.key(), from, "+", partSize).Result()
	p := part{Entries: []pastEntry{}}
	for _, message := range found {
		p.Last = message.ID
		e := pastEntry{ID: message.ID}
		text, _ := message.Values["e"].(string)
		ms, _, _ := strings.Cut(message.ID, "-")
		written, bad := strconv.ParseInt(ms, 10, 64)
		if bad != nil || json.Unmarshal([]byte(text), &e.entry) != nil {
			continue // of another version
		}
		e.At = written - e.Ago
		p.Entries = append(p.Entries, e)
	}
	return p, err
}
