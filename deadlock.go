package relock

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// This file finds deadlocks between locks that are taken in different order. A call that waits for
// long inside the section of another lock shows its wait in the store: the holds around the call,
// and the holds with the lock. The call then reads the waits that are shown under the holds with
// the lock, and so on. If a wait is for a hold around the call, nobody in the circle can go on, and
// the call that began to wait last gives up. (This is the waits-for graph of databases. Its nodes
// are holds, so goroutines of one section that wait for each other are no circle.)

const (
	// deadlockAfter is how long a call waits before it looks for circles, and between two looks.
	deadlockAfter = time.Second
	// waitShown is how long the store shows a wait that is not shown again.
	waitShown = 5 * deadlockAfter
	// longestCycle bounds the search. A longer circle is not found.
	longestCycle = 16
	// mostWaits bounds the waits that one search looks at.
	mostWaits = 256
)

// search looks for a circle of waits around one call.
type search struct {
	graph store.WaitGraph
	claim store.Claim
	me    store.Waiting
	inner *entry // the innermost around the call: the search must not call the caller's code
	home  *Client

	seen map[store.ID]int // the rounds of the calls in the last circle, when it was seen first

	// The waits of the last look, and of this look. Since is when the search first saw their round.
	before, now map[store.ID]store.Waiting
}

// isOver says whether a wait must have ended: nobody has shown it again for long. The command that
// takes it back was lost.
func (s *search) isOver(w store.Waiting) bool {
	last, known := s.before[w.ID]
	if !known || w.Round > last.Round {
		last = store.Waiting{Round: w.Round, Since: time.Now()}
	}
	s.now[w.ID] = last
	return time.Since(last.Since) >= waitShown
}

// watchForDeadlock returns a context that ends with a [*DeadlockError] if h waits in a circle.
// around is the context of the call. Without a section around the call nobody can wait for it, and
// nothing is searched.
func (h *hold) watchForDeadlock(ctx, around context.Context) (context.Context, context.CancelFunc) {
	c := h.client
	graph, is := c.store.(store.WaitGraph)
	if !is {
		return ctx, func() {}
	}
	inner := entryOf(around)
	if len(openHolds(inner, c)) == 0 {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	s := &search{
		graph: graph, claim: h.lease.Claim, inner: inner, home: c,
		me: store.Waiting{ID: h.lease.ID, Name: h.name, Since: time.Now()},
	}
	timer := time.AfterFunc(deadlockAfter, func() {
		c.group.GoOpen(func() { s.run(ctx, end) })
	})
	return ctx, func() { timer.Stop(); end(nil) }
}

func openHolds(inner *entry, c *Client) (holds []store.ID) {
	for e := inner; e != nil; e = e.outer {
		if !c.isOf(e) || !e.isOpen() {
			continue
		}
		c.table.mu.Lock()
		id := e.hold.lease.Owner()
		c.table.mu.Unlock()
		if !slices.Contains(holds, id) {
			holds = append(holds, id)
		}
	}
	return holds
}

// run looks for circles until the wait ends, and takes back what it has shown. end ends the wait.
func (s *search) run(ctx context.Context, end context.CancelCauseFunc) {
	defer s.hide(ctx)
	for {
		if cycle := s.look(ctx); cycle != nil {
			end(cycle)
			return
		}
		if !lifetime.Sleep(ctx.Done(), deadlockAfter) {
			return
		}
	}
}

// hide takes back what was shown.
func (s *search) hide(ctx context.Context) {
	if s.me.Round == 0 || len(s.me.Holds) == 0 { // nothing is shown
		return
	}
	s.me.For = nil
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadlockAfter)
	defer cancel()
	_ = s.graph.Show(bound, s.me, waitShown) // what stays ends by itself
}

// look shows the wait, looks for a circle, and returns the error of the call if it has to end: a
// circle was seen twice, and the call is the youngest in it. A call may outlive a section around
// it, whose ID the next hold of a run has.
func (s *search) look(ctx context.Context) error {
	holds := openHolds(s.inner, s.home)
	if len(holds) < len(s.me.Holds) {
		s.hide(ctx)
	}
	if s.me.Holds = holds; len(holds) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deadlockAfter)
	defer cancel()
	state, err := s.graph.Look(ctx, s.claim)
	if err != nil {
		return nil // the next look may find more
	}
	s.me.For = nil
	for _, held := range append([]store.Held{{ID: state.Owner}}, state.Others...) {
		if held.ID != "" && held.ID != s.claim.With {
			s.me.For = append(s.me.For, held.ID)
		}
	}
	if len(s.me.For) == 0 || s.claim.Kind == store.Semaphore && len(s.me.For) > 1 { // any of several may leave
		return nil
	}
	s.me.Round++
	if s.graph.Show(ctx, s.me, waitShown) != nil {
		return nil
	}
	if cycle := s.follow(ctx); s.isSeenTwice(cycle) && slices.MaxFunc(cycle, younger).ID == s.me.ID {
		e := &DeadlockError{}
		for _, w := range cycle {
			e.Cycle = append(e.Cycle, CycleStep{Holder: holderOf(w.ID), Lock: w.Name})
		}
		return e
	}
	return nil
}

// follow follows the waits of others, from the holds that the call waits for, and returns the first
// circle of waits, from the call on; nil: none.
func (s *search) follow(ctx context.Context) (cycle []store.Waiting) {
	type step struct {
		store.Waiting
		from int // the step before
	}
	s.before, s.now = s.now, make(map[store.ID]store.Waiting)
	steps, last := []step{{Waiting: s.me}}, 0 // last: the first step that was not followed
	for range longestCycle {
		from := make(map[store.ID]int) // holds to look at, and who waits for them
		for i := last; i < len(steps); i++ {
			for _, hold := range steps[i].For {
				from[hold] = i
			}
		}
		last = len(steps)
		if len(from) == 0 || last > mostWaits {
			return nil
		}
		shown, err := s.graph.Shown(ctx, slices.Sorted(maps.Keys(from)))
		if err != nil {
			return nil
		}
		for _, w := range shown {
			if s.isOver(w) || slices.ContainsFunc(steps, func(known step) bool { return known.ID == w.ID }) {
				continue
			}
			at := slices.IndexFunc(w.Holds, func(hold store.ID) bool { _, is := from[hold]; return is })
			if at < 0 {
				continue
			}
			steps = append(steps, step{w, from[w.Holds[at]]})
			if slices.ContainsFunc(w.For, func(hold store.ID) bool { return slices.Contains(s.me.Holds, hold) }) {
				for i := len(steps) - 1; i > 0; i = steps[i].from {
					cycle = append(cycle, steps[i].Waiting)
				}
				cycle = append(cycle, s.me)
				slices.Reverse(cycle)
				return cycle
			}
		}
	}
	return nil
}

// isSeenTwice says whether the same circle was seen before, and all its calls have shown their
// waits anew since: a call that has given up does not.
func (s *search) isSeenTwice(cycle []store.Waiting) bool {
	rounds := make(map[store.ID]int)
	for _, w := range cycle {
		rounds[w.ID] = w.Round
	}
	if !maps.EqualFunc(rounds, s.seen, func(_, _ int) bool { return true }) { // another circle
		s.seen = rounds
		return false
	}
	return len(cycle) > 0 && maps.EqualFunc(rounds, s.seen, func(now, before int) bool { return now > before })
}

func younger(a, b store.Waiting) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
}
