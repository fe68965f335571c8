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
// subtest has the accident, the process and its step, such as long-outage@1.Renew.2, and repeats
// the run with -run. Goroutines that can go on at the same moment do so in any order. Where a
// process has several locks, some accidents happen to one of them alone, too, such as
// broken-lock-2@1.work.3 to the second lock that the process has used.
//
// A finding has the accident, the place in the program of both the accident and the work, and the
// cure. If the context of the section had ended, the work should have ended with the context. If
// not, the holder could not know of the loss, and only a fence stops such work, see package fence.
// A section that is open when the program returns is a finding too: its Unlock was not reached. The
// test shows each finding once, with the number of its runs; -v shows each run.
//
// A test fails also if nothing was explored: the program marks no work, or no run came to its
// accident.
package explore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-relock/relock"
)

// Run explores a program whose work is behind a fence, or should be. The test fails if work goes on
// without its lock in some run.
//
// An accident makes calls of the program fail, so the program fails its own test only for what no
// accident may cause. All sections and goroutines of the program end before the program returns.
func Run(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	for _, f := range explore(t, program) {
		t.Error(f)
	}
}

// RunUnfenced is [Run] for work that no fence can stop, such as a mail. The test fails if the work
// could have ended with its context in some run. After an accident that the program could not know
// of, work is logged only.
func RunUnfenced(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	for _, f := range explore(t, program) {
		if f.first.cure == fence {
			t.Log(f)
		} else {
			t.Error(f)
		}
	}
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
	taken    = "the context of the section had not ended, and the program itself has taken the lock away"
	outside  = "the context is in no section of a client of the run"
	unlock   = "the section was open at the end of the program, which should come to its Unlock on every way"

	unmarked   = "explore: the program marks no work: call Work or Fenced where the work is done"
	unexplored = "explore: no run came to its accident, so nothing was explored"
)

// is says what is wrong, without the accident.
func (f *finding) is() string {
	switch f.cure {
	case unmarked, unexplored:
		return f.cure
	case unlock:
		return fmt.Sprintf("%s: no Unlock of %q: %s", f.place, f.lock, f.cure)
	}
	return fmt.Sprintf("%s: work without the lock %q: %s", f.place, f.lock, f.cure)
}

func (f *finding) when() string {
	switch {
	case f.place == "": // not of a place in the program
		return ""
	case f.accident == "":
		return ", without an accident"
	}
	return fmt.Sprintf(", %s after %s", f.after, f.accident)
}

// findings are the same finding of several runs.
type findings struct {
	first     *finding
	name      string // of its run
	count, of int    // runs
}

func (f *findings) String() string {
	if f.first.accident == "" {
		return f.first.is() + f.first.when()
	}
	return fmt.Sprintf("%s: in %d of %d runs, first in %s%s", f.first.is(), f.count, f.of, f.name, f.first.when())
}

// explore runs the program without an accident, and then with each accident at each step. The
// findings come in the order of their first runs.
func explore(t *testing.T, program func(t *testing.T, w *World)) (all []*findings) {
	t.Helper()
	run := func(t *testing.T, w *World) {
		t.Helper()
		w.run(t, program)
		if f := w.found; f != nil {
			i := slices.IndexFunc(all, func(o *findings) bool { return o.first.is() == f.is() })
			if i < 0 {
				i, all = len(all), append(all, &findings{first: f, name: t.Name()})
			}
			all[i].count++
		}
	}
	first := &World{}
	run(t, first)
	if first.found != nil {
		return all
	}
	accidents := first.accidents()
	runs, struck := 0, 0
	for _, a := range accidents {
		t.Run(fmt.Sprintf("%s@%d.%s.%d", a.Accident, a.at.process, a.at.verb, a.at.n), func(t *testing.T) {
			run(t, a)
			runs++
			if a.struck != "" {
				struck++
			}
		})
	}
	if struck == 0 && runs == len(accidents) { // and not one run of -run
		all = append(all, &findings{first: &finding{cure: unexplored}, count: 1})
	}
	for _, f := range all {
		f.of = len(accidents)
	}
	return all
}

// accidents returns a run for each accident at each step of a run without an accident.
func (w *World) accidents() (runs []*World) {
	for _, at := range w.points {
		for _, a := range accidents {
			if at.verb == mark && !a.atMarks {
				continue
			}
			run := World{Accident: a.name, at: at, accident: a, ttl: w.ttl, limit: 24*time.Hour + 10*w.took}
			runs = append(runs, &run)
			if a.ofLocks {
				for _, n := range w.held[at] {
					runs = append(runs, &World{
						Accident: fmt.Sprintf("%s-lock-%d", a.name, n), at: at, accident: a, alone: n, ttl: w.ttl, limit: run.limit,
					})
				}
			}
		}
	}
	return runs
}

// run plays the program in a bubble.
func (w *World) run(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		defer func() {
			t.Helper()
			switch {
			case w.found != nil:
				t.Log(w.found.is() + w.found.when())
			case w.Accident != "" && w.struck == "":
				t.Log("explore: the run did not come to this step")
			case t.Failed():
				t.Log("after " + w.struck)
			}
		}()
		w.play(t, program)
	})
}

// play is one run, in a bubble.
func (w *World) play(t *testing.T, program func(t *testing.T, w *World)) {
	t.Helper()
	w.t, w.servers, w.held = t, make(map[string]*server), make(map[point][]int)
	w.holds, w.newest = make(map[holding]int), make(map[place]*section)
	w.entered, w.open = make(map[context.Context]*section), make(map[*section]bool)
	name, begun := t.Name(), time.Now()
	if w.limit > 0 { // a run that waits for ever would spin through fake time
		end := time.AfterFunc(w.limit, func() { panic("explore: " + name + " does not end, after " + w.struck) })
		defer end.Stop()
	}
	defer w.close()
	program(t, w)
	w.took = time.Since(begun)
	synctest.Wait() // the end of a hold is told a moment after its Unlock
	w.findOpen()
	if w.marks == 0 && w.Accident == "" && w.found == nil {
		w.found = &finding{cure: unmarked}
	}
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
	ofLocks    bool // may happen to one of the locks of the process
	strike     func(p *process)
}

const allLocks = "all locks"

var accidents = []accident{
	{"forgotten", "the store forgot " + allLocks + " and told nobody", false, true, (*process).forgetLocks},
	{"broken", "an operator broke " + allLocks, true, true, (*process).breakLocks},
	{"standstill", "the process stood still for longer than a lease", true, false, func(p *process) { p.standFor(p.lease() * 3 / 2) }},
	{"long-outage", "the store went away for longer than a lease", false, false, func(p *process) { p.interrupt(p.lease()*3/2, false) }},
	{"short-outage", "the store went away for a third of a lease", false, false, func(p *process) { p.interrupt(p.lease()/3, false) }},
	{"lost-answer", "the store lost an answer", false, false, func(p *process) { p.interrupt(time.Millisecond, true) }},
}

// describe says what happened where. lock is the lock of the command, line its line in the program.
func (w *World) describe(p *process, lock, line string) string {
	text := w.accident.text
	if w.alone > 0 {
		text = strings.Replace(text, allLocks, fmt.Sprintf("only %q", p.names[w.alone-1]), 1)
	}
	text += fmt.Sprintf(", at %s %d of process %d", w.at.verb, w.at.n, w.at.process)
	if lock != "" {
		text += fmt.Sprintf(", of %q", lock)
	}
	if line != "" {
		text += ", in " + line
	}
	return text
}

func (p *process) lease() time.Duration {
	if ttl := p.world.ttl; ttl > 0 {
		return ttl
	}
	return relock.DefaultTTL
}
