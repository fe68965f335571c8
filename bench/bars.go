package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// bar is a promise of the project about itself: a limit of a figure.
type bar struct {
	name  string
	value float64 // NaN: not measured
	limit float64
	first float64 // the limit for the first version; 0: the same
	least bool    // the figure must not be below the limit
	aside bool    // no promise, but context of the bar before
	unit  string

	statistic // over several runs
}

func (b bar) measured() bool { return !math.IsNaN(b.value) }

func (b bar) meets(limit float64) bool {
	if b.least {
		return b.value >= limit
	}
	return b.value <= limit
}

func (b bar) verdict() string {
	switch {
	case !b.measured():
		return "not measured"
	case b.aside:
		return ""
	case b.meets(b.limit):
		return "yes"
	case b.first != 0 && b.meets(b.first):
		return "the first"
	default:
		return "no"
	}
}

// row returns the columns of a table of bars.
func (b bar) row() []any {
	show := func(limit float64, there bool) string {
		if !there {
			return ""
		}
		sign := "≤ "
		if b.least {
			sign = "≥ "
		}
		return sign + figure(limit) + b.unit
	}
	measured := b.String()
	if b.measured() {
		measured += b.unit
	}
	return []any{b.name, show(b.first, b.first != 0), show(b.limit, !b.aside), measured, b.verdict()}
}

// bars returns all bars of a run, always the same in the same order.
func (r *report) bars() []bar {
	return slices.Concat(r.pairBars(), r.handoverBars(), r.hotBars(), r.keepingBars(), r.kindBars(), r.onceBars(), r.quorumBars(), r.storesBars(), []bar{
		{name: "two in a section of relock at once, in all measurements", value: r.broken()},
	})
}

// broken counts violations of exclusion by relock, NaN without records.
func (r *report) broken() float64 {
	if len(r.Records) == 0 {
		return math.NaN()
	}
	var n int64
	for _, rec := range r.Records {
		if rec.System == "relock" {
			n += rec.Broken
		}
	}
	return float64(n)
}

func (r *report) pairBars() []bar {
	relock := func(workload, setting, metric string) float64 {
		return r.find(workload, "", "relock", setting).median(metric)
	}
	return []bar{
		{name: "uncontended pair, of the floor", value: relock("pair", defaults, "of_floor"), limit: 1.05, first: 1.15},
		{name: "the same with a context that can end", value: relock("pair", ending, "of_floor"), aside: true},
		{name: "the same with ContextTimeoutEnabled too", value: relock("pair", endingPrompt, "of_floor"), aside: true},
		{name: "64 goroutines on own locks, pairs/s, of the auto-pipelined floor", value: relock("parallel", defaults, "of_auto"), limit: 1, least: true},
		{name: "nested pair with local re-entry", value: relock("nested", localReentry, "us"), limit: 1, unit: " µs"},
	}
}

// fewWaiting is the largest number of waiters of the first bar of a hand-over.
const fewWaiting = 256

// far is the added round trip of the bar in round trips.
const far = 10 * time.Millisecond

// handoverBars are of the worst case over the numbers of waiters.
func (r *report) handoverBars() []bar {
	ring, drain, distant := r.handovers(" waiting"), r.handovers(draining), r.handovers(trip(far))
	var bars []bar
	for _, c := range []struct {
		name    string
		records []*record
	}{{"hand-over in a ring", ring}, {"hand-over while the queue drains", drain}} {
		few, many := splitBy(c.records, fewWaiting)
		bars = append(bars,
			bar{name: c.name + ", 1 to 256 waiting, median, of the raw wake", value: worst(few, "of_wake"), limit: 1.2, first: 1.5},
			bar{name: c.name + ", 1,000 waiting, median, of the raw wake", value: worst(many, "of_wake"), limit: 1.2},
			bar{name: c.name + ", bare grant instead of relock, of the raw wake", value: worst(c.records, "grant_of_wake"), aside: true},
			bar{name: c.name + ", median, of the bare grant", value: worst(c.records, "of_grant"), aside: true},
			bar{
				name:  c.name + ", of the raw wake: the slowest number of waiters, of the fastest",
				value: spread(c.records, "of_wake"), limit: 1.3, first: 1.5,
			},
			bar{name: "the same in microseconds, changes of the machine included", value: spread(c.records, "p50_us"), aside: true},
			bar{name: c.name + ", 99th percentile, of the median", value: worst(c.records, "tail"), limit: 3},
		)
	}
	return append(bars,
		bar{name: "hand-over in a ring, script calls", value: worst(ring, "scripts"), limit: 2, first: 2.1},
		bar{name: "hand-over with 10 ms added, round trips", value: worst(distant, "trips"), limit: 1.1},
	)
}

// handovers returns relock's records of the cases with a suffix.
func (r *report) handovers(suffix string) []*record {
	var all []*record
	for _, which := range r.cases("handover") {
		if rec := r.find("handover", which, "relock", defaults); rec != nil && strings.HasSuffix(which, suffix) {
			all = append(all, rec)
		}
	}
	return all
}

// splitBy parts records with at most n waiters from records with more.
func splitBy(records []*record, n int) (few, many []*record) {
	for _, rec := range records {
		if leading(rec.Case) <= n {
			few = append(few, rec)
		} else {
			many = append(many, rec)
		}
	}
	return few, many
}

// figures returns a metric of the records with such a metric.
func figures(records []*record, metric string) []float64 {
	var v []float64
	for _, rec := range records {
		if f := rec.median(metric); !math.IsNaN(f) {
			v = append(v, f)
		}
	}
	return v
}

// worst returns the largest figure, NaN without figures.
func worst(records []*record, metric string) float64 { return quantile(figures(records, metric), 1) }

// spread divides the largest figure by the smallest. The result is NaN with less than two figures.
func spread(records []*record, metric string) float64 {
	v := figures(records, metric)
	if len(v) < 2 {
		return math.NaN()
	}
	return slices.Max(v) / slices.Min(v)
}

func (r *report) hotBars() []bar {
	asComes, passing := r.find("hot", "", "relock", defaults), r.find("hot", "", "relock", localPass)
	peers := slices.DeleteFunc(r.in("hot", ""), func(rec *record) bool {
		return rec.System == "relock" || rec.System == bareGrant
	})
	return []bar{
		{name: "256 goroutines on one lock, sections/s, of the bare grant", value: asComes.median("of_grant"), limit: 0.85, least: true},
		{name: "256 goroutines on one lock, Jain's index", value: asComes.median("jain"), limit: 0.99, least: true},
		{
			name:  "256 goroutines on one lock with the local pass, sections/s, of the fastest peer",
			value: passing.median("per_s") / worst(peers, "per_s"), limit: 10, least: true,
		},
	}
}

// keepingBars are of locks that stay held, and of waiters that stay waiting.
func (r *report) keepingBars() []bar {
	locks, waiting := r.largest("held"), r.largest("idle")
	rec, waiter := r.find("held", locks, "relock", defaults), r.find("idle", waiting, "relock", defaults)
	return []bar{
		{name: "renewal, client's CPU, of one script for 100 leases", value: rec.median("client_of_raw"), limit: 3},
		{name: "renewal, server's CPU, of one script for 100 leases", value: rec.median("server_of_raw"), limit: 3},
		// A lease that is due alone makes a smaller batch.
		{name: "renewal, commands for 100 locks", value: rec.median("commands_per_100"), limit: 1.05},
		{name: "locks lost while every CPU was busy", value: rec.median("lost")},
		{name: "goroutines for 1,000 held locks", value: 1000 * rec.median("goroutines") / float64(max(leading(locks), 1)), limit: 1},
		// The allocations of go-redis for a call are below the limit.
		{name: "allocations of the watchdog for a renewal", value: rec.median("allocs"), limit: 0.1},
		{name: "heap of a held lock", value: rec.median("heap_bytes"), limit: 1200, unit: " B"},
		{name: "heap of a waiter", value: waiter.median("heap_bytes"), limit: 4000, unit: " B"},
		{name: "commands a second of 1,000 idle waiters", value: 1000 * waiter.median("commands_per_s") / float64(max(leading(waiting), 1)), aside: true},
	}
}

// kindBars are of read-write locks, semaphores and several locks at once.
func (r *report) kindBars() []bar {
	plain := func(workload, setting string) float64 {
		return r.find(workload, "", "relock", setting).median("of_plain")
	}
	all := func(workload string) (records []*record) {
		for _, which := range r.cases(workload) {
			records = append(records, r.in(workload, which)...)
		}
		return records
	}
	batch, writer, acquire := all("kinds-batch"), all("kinds-writer"), r.find("kinds-several", "acquire", "relock", ten)
	return []bar{
		{name: "read pair, of a plain pair", value: plain("kinds-pair", reading), limit: 1.2},
		{name: "write pair, of a plain pair", value: plain("kinds-pair", writing), aside: true},
		{name: "permit pair, of a plain pair", value: plain("kinds-pair", permit), aside: true},
		{name: "256 readers behind a writer, until the last one is in", value: worst(batch, "last_ms"), limit: 5, unit: " ms"},
		{name: "256 readers behind a writer, messages for each client", value: worst(batch, "messages"), limit: 1},
		{name: "writer beside 64 loops of readers, longest wait, of the longest read and 3 hand-overs", value: worst(writer, "of_bound"), limit: 1},
		{name: "the same, with hand-overs while nobody reads", value: worst(writer, "of_rest"), aside: true},
		{name: "writer beside 64 loops of readers, median wait, of the longest read and 3 hand-overs", value: worst(writer, "p50_of_bound"), aside: true},
		{name: "pair of 10 free locks in one slot, of a plain pair", value: plain("kinds-several", ten), limit: 2},
		{name: "acquire of 10 free locks in one slot, round trips", value: acquire.median("acquire_commands"), limit: 1},
	}
}

// printBars writes a table of all bars.
func printBars(w io.Writer, m *merged) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nbar\tat first\tnow\tmeasured\tmet")
	for _, b := range m.bars() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", b.row()...)
	}
	_ = table.Flush() // as Fprintf
}
