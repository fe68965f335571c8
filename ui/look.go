package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

const (
	defaultEvery = 2 * time.Second
	defaultMost  = 10_000
	// mostQueues bounds the locks whose queues and waits a look reads: those with most waiters.
	mostQueues = 256
	// mostPlaces bounds the places of a queue that the page shows.
	mostPlaces = 50
	// abreast is the number of locks that are read together.
	abreast = 16
	// lookLimit bounds a look at a store that answers slowly.
	lookLimit = time.Minute
	// rest is the pause behind a look, in lengths of the look.
	rest = 9
)

// looks are the looks of a Handler, one after another. The viewers look in turn: whoever has the turn
// waits for the time of the next look, and looks for all.
type looks struct {
	mu   sync.Mutex
	turn chan struct{} // has room for one
	last *look
}

// look is what one look has found. It does not change.
type look struct {
	At      int64    `json:"at"` // ms since 1970, as all times here
	Pause   int64    `json:"pause"`
	Total   int      `json:"total"` // all locks; those of the page are the first Most by name
	Most    int      `json:"most"`
	Circles [][]wait `json:"circles"`        // holders that wait for each other
	Past    string   `json:"past,omitempty"` // the last entry of the history
	History bool     `json:"history,omitempty"`
	Trouble string   `json:"trouble,omitempty"` // why nothing was found; the locks are those of the look before

	number int64
	due    time.Time         // of the next look
	locks  map[string]string // JSON of lockView, by its name
	views  map[string]lockView
}

// lockView is a lock as the page gets it.
type lockView struct {
	Name    string       `json:"name"`
	Kind    string       `json:"kind"`
	Odd     bool         `json:"odd,omitempty"` // Name is the quoted form of bytes that are no text
	Holders []holderView `json:"holders"`
	Token   int64        `json:"token,omitempty"`
	Waiters int          `json:"waiters,omitempty"`
	Queue   []waiterView `json:"queue,omitempty"` // the first of the waiters

	kind store.Kind
}

// holderView is a hold. Its times move only if they differ by more than an answer takes, so that a
// lock without news is not sent again.
type holderView struct {
	Holder string `json:"holder"`
	Mode   string `json:"mode"`
	Count  int    `json:"count,omitempty"`
	Until  int64  `json:"until,omitempty"`  // the end of the lease; 0: there is none
	Since  int64  `json:"since"`            // when it was seen first
	Before bool   `json:"before,omitempty"` // it was there at the first look
}

// waiterView is a place in a queue.
type waiterView struct {
	Holder string `json:"holder"`
	Shared bool   `json:"shared,omitempty"`
	Since  int64  `json:"since,omitempty"` // 0: a reader that waits to write
}

// wait is a step of a circle: the holder waits for the lock, which the next one has.
type wait struct {
	Holder string `json:"holder"`
	Lock   string `json:"lock"`
}

// next returns the first look behind the one with a number; nil if ctx has ended.
func (h *Handler) next(ctx context.Context, number int64) *look {
	s := &h.looks
	s.mu.Lock()
	if s.turn == nil {
		s.turn = make(chan struct{}, 1)
	}
	s.mu.Unlock()
	isNew := func(l *look) bool { return l.number > number && time.Now().Before(l.due) }
	if last := s.latest(); isNew(last) { // whoever has the turn may have long to wait
		return last
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil
	}
	last := s.latest()
	if isNew(last) {
		return last
	}
	timer := time.NewTimer(time.Until(last.due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil
	}
	l := h.look(ctx, last)
	if ctx.Err() != nil { // the viewer is gone, and the failure is not that of the store
		return nil
	}
	s.mu.Lock()
	s.last = l
	s.mu.Unlock()
	return l
}

// latest returns the last look; without one, an empty look with number 0.
func (s *looks) latest() *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return &look{}
	}
	return s.last
}

// find returns the lock with a name as the last look has found it; nil: it has not.
func (s *looks) find(client *relock.Client, name string) *relock.Lock {
	v, is := s.latest().views[name]
	if !is || v.Odd {
		return nil
	}
	return lockOf(client, v.kind, name)
}

func lockOf(c *relock.Client, kind store.Kind, name string) *relock.Lock {
	switch kind {
	case store.ReadWrite:
		return c.NewRWLock(name).Writer()
	case store.Semaphore:
		return c.NewSemaphore(name, 1)
	default:
		return c.NewLock(name)
	}
}

var kindWords = map[store.Kind]string{store.Mutex: "mutex", store.ReadWrite: "read-write lock", store.Semaphore: "semaphore"}

// look asks the store.
func (h *Handler) look(ctx context.Context, last *look) *look {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	begin := time.Now()
	l := &look{
		number: last.number + 1, Most: cmp.Or(h.Most, defaultMost), History: h.History != nil,
		Circles: [][]wait{}, locks: map[string]string{}, views: map[string]lockView{},
	}
	if err := h.fill(ctx, l, last, begin); err != nil {
		l.Trouble, l.Total, l.locks, l.views = trouble(err), last.Total, last.locks, last.views
	}
	now := time.Now()
	pause := max(cmp.Or(h.Every, defaultEvery), rest*now.Sub(begin))
	l.At, l.Pause, l.due = now.UnixMilli(), pause.Milliseconds(), now.Add(pause)
	return l
}

func (h *Handler) fill(ctx context.Context, l, last *look, begin time.Time) error {
	listed, err := h.Locks.List(ctx, func(string) bool { l.Total++; return l.Total <= l.Most })
	if err != nil {
		return err
	}
	slices.SortStableFunc(listed, func(a, b relock.Listed) int { return cmp.Compare(b.Waiters, a.Waiters) })
	contended := listed
	if i := slices.IndexFunc(listed, func(l relock.Listed) bool { return l.Waiters == 0 }); i >= 0 {
		contended = listed[:i]
	}
	contended = contended[:min(len(contended), mostQueues)]
	errs := attempts.Each(len(contended), abreast, func(i int) error {
		state, err := lockOf(h.Locks, contended[i].Kind, contended[i].Name).State(ctx)
		if err == nil {
			contended[i].State = state
		} else if errors.Is(err, relock.ErrKind) { // of another kind by now
			err = nil
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if l.Circles, err = h.circles(ctx, contended); err != nil {
		return err
	}
	if h.History != nil {
		if l.Past, err = h.History.last(ctx); err != nil {
			l.Trouble = "the history: " + trouble(err)
		}
	}
	slack := time.Since(begin).Milliseconds() + 300
	now := time.Now()
	for _, found := range listed {
		v := viewOf(found, now, last, slack)
		for j, place := range found.Queue[:min(len(found.Queue), mostPlaces)] {
			w := waiterView{Holder: place.Holder.String(), Shared: place.Mode == event.ModeShared}
			if !place.Since.IsZero() {
				w.Since = place.Since.UnixMilli()
			}
			if old := last.views[v.Name].Queue; j < len(old) && near(old[j].Since, w.Since, slack) && old[j].Holder == w.Holder {
				w = old[j]
			}
			v.Queue = append(v.Queue, w)
		}
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		l.locks[v.Name], l.views[v.Name] = string(text), v
	}
	return nil
}

func near(a, b, slack int64) bool { return max(a-b, b-a) <= slack }

// viewOf makes the view of a lock, with what the look before knows of its holders.
func viewOf(found relock.Listed, now time.Time, last *look, slack int64) lockView {
	v := lockView{Name: found.Name, Kind: kindWords[found.Kind], Token: found.Token, Waiters: found.Waiters, kind: found.Kind}
	if !utf8.ValidString(v.Name) {
		v.Name, v.Odd = strconv.Quote(v.Name), true
	}
	all := found.Others
	if found.Locked() {
		all = append([]relock.Held{{Holder: found.Holder, TTL: found.TTL, Mode: found.Mode}}, all...)
	}
	for i, held := range all {
		hv := holderView{Holder: held.Holder.String(), Mode: string(held.Mode), Since: now.UnixMilli(), Before: last.number == 0}
		if i == 0 {
			hv.Count = found.Count
		}
		if held.TTL >= 0 {
			hv.Until = now.Add(held.TTL).UnixMilli()
		}
		for _, before := range last.views[v.Name].Holders {
			if before.Holder == hv.Holder && before.Mode == hv.Mode {
				hv.Since, hv.Before = before.Since, before.Before
				if near(before.Until, hv.Until, slack) {
					hv.Until = before.Until
				}
			}
		}
		v.Holders = append(v.Holders, hv)
	}
	return v
}

// circles returns the circles of waits around some locks, as far as the store shows waits. A call
// shows its wait when it has waited for a second inside of another section.
func (h *Handler) circles(ctx context.Context, contended []relock.Listed) ([][]wait, error) {
	found := [][]wait{}
	holds := make([][]store.ID, len(contended))
	errs := attempts.Each(len(contended), abreast, func(i int) error {
		inside := lockOf(h.Locks, contended[i].Kind, contended[i].Name).Internal()
		g, is := inside.Store.(store.WaitGraph)
		if !is {
			return nil
		}
		s, err := g.Look(ctx, inside.Claim)
		if err != nil && !errors.Is(err, store.ErrKind) { // of another kind by now
			return err
		}
		holds[i] = append(holds[i], s.Owner)
		for _, other := range s.Others {
			holds[i] = append(holds[i], other.ID)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil || len(contended) == 0 {
		return found, err
	}
	graph, is := h.Locks.NewLock("look").Internal().Store.(store.WaitGraph)
	ids := slices.DeleteFunc(slices.Concat(holds...), func(id store.ID) bool { return id == "" })
	if !is || len(ids) == 0 {
		return found, nil
	}
	waits, err := graph.Shown(ctx, ids)
	if err != nil {
		return found, err
	}
	return circlesOf(waits), nil
}

// circlesOf follows each wait to the waits inside of the holds that it waits for, until it meets one
// of its own way again.
func circlesOf(waits []store.Waiting) [][]wait {
	circles, done := [][]wait{}, map[store.ID]bool{}
	var visit func(at store.Waiting, way []store.Waiting)
	visit = func(at store.Waiting, way []store.Waiting) {
		if i := slices.IndexFunc(way, func(w store.Waiting) bool { return w.ID == at.ID }); i >= 0 {
			circle := []wait{}
			for _, w := range way[i:] {
				holder := string(w.ID) // and the number of the hold
				circle = append(circle, wait{Holder: holder[:max(strings.LastIndexByte(holder, ':'), 0)], Lock: w.Name})
			}
			circles = append(circles, circle)
			return
		}
		if done[at.ID] {
			return
		}
		done[at.ID] = true
		way = append(slices.Clip(way), at)
		isInside := func(w store.Waiting) bool {
			return slices.ContainsFunc(at.For, func(hold store.ID) bool { return slices.Contains(w.Holds, hold) })
		}
		for _, w := range waits {
			if isInside(w) {
				visit(w, way)
			}
		}
	}
	for _, w := range waits {
		visit(w, nil)
	}
	return circles
}
