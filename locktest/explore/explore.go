// Package explore finds work that goes on without its lock. The package runs a program of a test
// once without an accident, and then once for each of its commands to the store and each kind of
// accident, with one accident there:
//
//	explore.RunUnfenced(t, func(t *testing.T, w *explore.World) {
//		s := &Shipper{Locks: w.Client(), Send: func(ctx context.Context, order string) error {
//			w.Work(ctx) // fails the test if the lock is not held any more
//			return nil
//		}}
//		_ = s.Ship(t.Context(), "42")
//	})
//
// Each run is a subtest in a testing/synctest bubble, so a lease passes at once. The name of the
// subtest has the accident, the process and its step, such as long-outage@1.Renew.2, and repeats the
// run with -run. Goroutines that can go on at the same moment do so in any order.
//
// A finding has the accident, the place in the program of both the accident and the work, and the
// cure. If the context of the section had ended, the work should have ended with the context. If
// not, the holder could not know of the loss, and only a fence stops such work, see package fence.
package explore

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-relock/relock"
)

// Run explores a program whose work is behind a fence, or should be. The test fails for each run in
// which work goes on without its lock.
//
// An accident makes calls of the program fail, so the program fails its own test only for what no
// accident may cause. All goroutines of the program end before the program returns.
func Run(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	explore(t, program, func(t *testing.T, f *finding) {
		t.Helper()
		t.Error(f)
	})
}

// RunUnfenced is [Run] for work that no fence can stop, such as a mail. The test fails for a run in
// which the work could have ended with its context. All other findings are logged.
func RunUnfenced(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	explore(t, program, func(t *testing.T, f *finding) {
		t.Helper()
		if f.cure == fence {
			t.Log(f)
		} else {
			t.Error(f)
		}
	})
}

// finding is work without its lock: the first of a run, or the first that needs no fence.
type finding struct {
	place, lock string
	accident    string        // and its place; empty: none before the work
	after       time.Duration // from the accident to the work
	cure        string
}

// The cures of work without its lock.
const (
	stop     = "the context of the section had ended, and the work should end with the context"
	fence    = "the context of the section had not ended, and only a fence stops such work"
	badFence = "a newer section had worked before, and the fence let this work in"
	outside  = "the context is in no section of a client of the run"
)

func (f *finding) String() string {
	when := "without an accident"
	if f.accident != "" {
		when = fmt.Sprintf("%s after %s", f.after, f.accident)
	}
	return fmt.Sprintf("%s: work without the lock %q, %s: %s", f.place, f.lock, when, f.cure)
}

// explore runs the program without an accident, and then with each accident at each step.
func explore(t *testing.T, program func(t *testing.T, w *World), report func(*testing.T, *finding)) {
	t.Helper()
	found := make(map[string]int) // runs, by place and cure
	play := func(t *testing.T, w *World) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			t.Helper()
			defer func() {
				t.Helper()
				switch f := w.found; {
				case f != nil:
					found[f.place+": "+f.cure]++
					report(t, f)
				case w.Accident != "" && w.struck == "":
					t.Log("explore: the run did not come to this step")
				case t.Failed():
					t.Log("after " + w.struck)
				}
			}()
			w.play(t, program)
		})
	}
	first := &World{}
	play(t, first)
	switch {
	case first.found != nil:
		return
	case first.marks == 0:
		t.Fatal("explore: the program marks no work: call Work or Fenced where the work is done")
	}
	runs := 0
	for _, at := range first.points {
		for _, a := range accidents {
			if at.verb == mark && !a.atMarks {
				continue
			}
			runs++
			t.Run(fmt.Sprintf("%s@%d.%s.%d", a.name, at.process, at.verb, at.n), func(t *testing.T) {
				play(t, &World{Accident: a.name, at: at, accident: a, ttl: first.ttl, limit: 24*time.Hour + 10*first.took})
			})
		}
	}
	for _, text := range slices.Sorted(maps.Keys(found)) {
		t.Logf("%d of %d runs: %s", found[text], runs, text)
	}
}

// play is one run, in a bubble.
func (w *World) play(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	w.t, w.holds, w.newest = t, make(map[holding]int), make(map[string]int)
	name, begun := t.Name(), time.Now()
	if w.limit > 0 { // a run that waits for ever would spin through fake time
		end := time.AfterFunc(w.limit, func() { panic("explore: " + name + " does not end, after " + w.struck) })
		defer end.Stop()
	}
	defer w.close()
	program(t, w)
	w.took = time.Since(begun)
}

// mark is the verb of Work and Step. All other verbs are commands.
const mark = "work"

// point is a step of a process: the n-th with its verb, so that steps of one moment may change
// places.
type point struct {
	process int
	verb    string
	n       int
}

// accident is what can happen at a step. At a mark only some tell more than at a command.
type accident struct {
	name, text string
	atMarks    bool
	strike     func(p *process)
}

var accidents = []accident{
	{"forgotten", "the store forgot all locks and told nobody", false, (*process).forget},
	{"broken", "an operator broke all locks", true, (*process).breakAll},
	{"standstill", "the process stood still for longer than a lease", true, func(p *process) { p.standFor(p.lease() * 3 / 2) }},
	{"long-outage", "the store went away for longer than a lease", false, func(p *process) { p.interrupt(p.lease()*3/2, false) }},
	{"short-outage", "the store went away for a third of a lease", false, func(p *process) { p.interrupt(p.lease()/3, false) }},
	{"lost-answer", "the store lost an answer", false, func(p *process) { p.interrupt(time.Millisecond, true) }},
}

// describe says what happened where. lock is the lock of the command, place its place in the program.
func (a accident) describe(at point, lock, place string) string {
	text := fmt.Sprintf("%s, at %s %d of process %d", a.text, at.verb, at.n, at.process)
	if lock != "" {
		text += fmt.Sprintf(", of %q", lock)
	}
	if place != "" {
		text += ", in " + place
	}
	return text
}

func (p *process) lease() time.Duration {
	if ttl := p.world.ttl; ttl > 0 {
		return ttl
	}
	return relock.DefaultTTL
}
