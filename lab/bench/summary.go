package main

import (
	"fmt"
	"io"
	"math"
	"slices"
)

// line is a line of the short table: a metric of relock, and of the best other library.
type line struct {
	what, workload, metric string
	which                  string // the case; largest: the one with the largest number
	setting                string // of relock
	more                   bool   // a larger figure is better
}

const largest = "largest"

var summary = []line{
	{what: "lock and unlock, of the floor", workload: "pair", metric: "of_floor", setting: defaults},
	{what: "the same with a context that can end", workload: "pair", metric: "of_floor", setting: ending},
	{what: "its client CPU, µs", workload: "pair", metric: "client_us", setting: defaults},
	{what: "its allocations", workload: "pair", metric: "allocs", setting: defaults},
	{what: "64 goroutines with own locks, pairs/s", workload: "parallel", metric: "per_s", setting: defaults, more: true},
	{what: "hand-over, 64 waiting, of the raw wake", workload: "handover", metric: "of_wake", which: "64 waiting", setting: defaults},
	{what: "256 goroutines on one lock, sections/s", workload: "hot", metric: "per_s", setting: defaults, more: true},
	{what: "the same, Jain's index of fairness", workload: "hot", metric: "jain", setting: defaults, more: true},
	{what: "a renewal of many, client CPU, µs", workload: "held", metric: "client_us", which: largest, setting: defaults},
	{what: "a held lock of many, heap bytes", workload: "held", metric: "heap_bytes", which: largest, setting: defaults},
	{what: "a waiter of many, commands/s of all", workload: "idle", metric: "commands_per_s", which: largest, setting: defaults},
	{what: "after a crash, ms after the lease", workload: "crash", metric: "late_ms", which: largest, setting: defaults},
}

var others = []string{"redsync", "redislock", "rueidislock"}

// writeSummary writes the short table. Lines without a figure of relock are left out.
func writeSummary(w io.Writer, m *merged) {
	fmt.Fprint(w, "| | relock | the best other library |\n|---|--:|--:|\n")
	for _, l := range summary {
		if l.which == largest {
			l.which = m.largest(l.workload)
		}
		ours := m.find(l.workload, l.which, "relock", l.setting)
		if math.IsNaN(ours.median(l.metric)) {
			continue
		}
		best := "–"
		if rec := l.best(m); rec != nil {
			best = fmt.Sprintf("%s (%s)", figure(rec.median(l.metric)), rec.name())
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", l.what, m.over(ours, l.metric), best)
	}
}

// sentence is what the README says.
func sentence(m *merged) string {
	var figures []any
	for _, what := range []string{"lock and unlock, of the floor", "hand-over, 64 waiting, of the raw wake"} {
		l := summary[slices.IndexFunc(summary, func(l line) bool { return l.what == what })]
		best := "–"
		if rec := l.best(m); rec != nil {
			best = figure(rec.median(l.metric))
		}
		figures = append(figures, figure(m.find(l.workload, l.which, "relock", l.setting).median(l.metric)), best)
	}
	return fmt.Sprintf("In one program: a pair takes %s of `SET NX` and a compare-and-delete (the best other library %s), a hand-over with 64 waiting\n"+
		"%s of a bare message (%s): [BENCHMARKS](docs/BENCHMARKS.md).\n", figures...)
}

// best returns the record of the best other library in its better setting; nil: none took part.
func (l line) best(m *merged) (best *record) {
	for _, rec := range m.in(l.workload, l.which) {
		v := rec.median(l.metric)
		if !slices.Contains(others, rec.System) || math.IsNaN(v) {
			continue
		}
		if best == nil || (v > best.median(l.metric)) == l.more {
			best = rec
		}
	}
	return best
}
