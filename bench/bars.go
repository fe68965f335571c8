package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// bar is what this project has promised of itself, as a limit of a figure of the report.
type bar struct {
	what  string
	value float64 // NaN: not measured
	limit float64
	first float64 // the limit for the first version; 0: the same
	least bool    // the limit is the least, not the most, that the figure may be
	aside bool    // no goal: it stands beside the one before, so that nobody is misled
	unit  string
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

func (b bar) figure() string {
	if !b.measured() {
		return figure(b.value)
	}
	return figure(b.value) + b.unit
}

// missed is a goal that was measured and not met.
func (b bar) missed() bool { return b.measured() && !b.aside && !b.meets(b.limit) }

// goal is empty where there is none.
func (b bar) goal() string {
	if b.aside {
		return ""
	}
	return b.show(b.limit)
}

// firstGoal is empty where there was none.
func (b bar) firstGoal() string {
	if b.first == 0 {
		return ""
	}
	return b.show(b.first)
}

func (b bar) show(limit float64) string {
	sign := "≤ "
	if b.least {
		sign = "≥ "
	}
	return sign + figure(limit) + b.unit
}

// bars is what has become of them.
func (r *report) bars() []bar {
	broken := math.NaN()
	if len(r.Records) > 0 {
		broken = 0
	}
	for _, rec := range r.Records {
		if rec.System == "relock" {
			broken += float64(rec.Broken)
		}
	}
	return slices.Concat(r.pairBars(), r.handoverBars(), r.hotBars(), r.heldBars(), []bar{
		{what: "nested pair with local re-entry", value: r.find("nested", "", "relock", localReentry).median("us"), limit: 1, unit: " µs"},
		{what: "two in a section of relock at once, in everything that was measured", value: broken},
	})
}

func (r *report) pairBars() []bar {
	one, floor := r.find("pair", "", "relock", defaults), r.find("pair", "", "floor", "")
	many, batched := r.parallelBest(), r.find("parallel", "", "floor", autoPipelined)
	return []bar{
		{what: "uncontended pair, of the floor", value: one.ratio("us", floor, "us"), limit: 1.05, first: 1.15},
		{what: "the same with a context that can end", value: r.find("pair", "", "relock", ending).ratio("us", floor, "us"), aside: true},
		{what: "the same with a context that can end, and ContextTimeoutEnabled", value: r.find("pair", "", "relock", endingPrompt).ratio("us", floor, "us"), aside: true},
		{
			what:  "64 goroutines on own locks, pairs/s, of the floor through go-redis's auto-pipeliner",
			value: many.ratio("per_s", batched, "per_s"), limit: 1, least: true,
		},
	}
}

// parallelBest is relock as it comes. The same on an auto-pipelined client is in the table, but is not what users get.
func (r *report) parallelBest() *record { return r.find("parallel", "", "relock", defaults) }

// fewWaiting is the most waiters that the first bar of a hand-over was set for.
const fewWaiting = 256

func (r *report) handoverBars() []bar {
	// Over all numbers of waiters without an added round trip, the worst of each.
	worstOfFew, worstOfMany, worstTail, worstScripts := math.NaN(), math.NaN(), math.NaN(), math.NaN()
	worstGrant, grantOfWake := math.NaN(), math.NaN()
	var medians, ofWake []float64
	worse := func(a *float64, b float64) {
		if math.IsNaN(*a) || b > *a {
			*a = b
		}
	}
	trips, far := math.NaN(), 10*time.Millisecond
	for _, which := range r.cases("handover") {
		rec := r.find("handover", which, "relock", defaults)
		if rec == nil || len(rec.values("p50_us")) == 0 {
			continue
		}
		if strings.Contains(which, "+") {
			if strings.HasSuffix(which, trip(far)) {
				worse(&trips, rec.ratio("p50_us", rec, "ping_us"))
			}
			continue
		}
		waiting, _ := strconv.Atoi(strings.Fields(which)[0])
		worst := &worstOfFew
		if waiting > fewWaiting {
			worst = &worstOfMany
		}
		worse(worst, rec.ratio("p50_us", rec, "wake_us"))
		worse(&worstGrant, rec.ratio("p50_us", rec, "grant_us"))
		worse(&grantOfWake, rec.ratio("grant_us", rec, "wake_us"))
		worse(&worstTail, rec.ratio("p99_us", rec, "p50_us"))
		worse(&worstScripts, rec.median("scripts"))
		medians = append(medians, rec.median("p50_us"))
		ofWake = append(ofWake, rec.ratio("p50_us", rec, "wake_us"))
	}
	bars := []bar{{what: "hand-over with 1 to 256 waiting, median, of the raw wake", value: worstOfFew, limit: 1.2, first: 1.5}}
	if !math.IsNaN(worstOfMany) { // the small sizes have no more than that
		bars = append(bars, bar{what: "hand-over with 1,000 waiting, median, of the raw wake", value: worstOfMany, limit: 1.2})
	}
	return append(bars, []bar{
		{what: "a bare grant among as many clients, without any library, of the raw wake", value: grantOfWake, aside: true},
		{what: "hand-over, median, of a bare grant", value: worstGrant, aside: true},
		{
			what:  "hand-over, of the raw wake in the same slice: the slowest number of waiters from 1 to 1,000, of the fastest",
			value: spreadOf(ofWake), limit: 1.3, first: 1.5,
		},
		{
			what:  "the same in microseconds, with what the machine did meanwhile: the slowest median, of the fastest",
			value: spreadOf(medians), aside: true,
		},
		{what: "hand-over, 99th percentile, of the median", value: worstTail, limit: 3},
		{what: "hand-over, script calls", value: worstScripts, limit: 2, first: 2.1},
		{what: "hand-over with 10 ms added, round trips", value: trips, limit: 1.1},
	}...)
}

// spreadOf is the largest figure, of the smallest; NaN where there are not two to compare.
func spreadOf(v []float64) float64 {
	if len(v) < 2 {
		return math.NaN()
	}
	return slices.Max(v) / slices.Min(v)
}

func (r *report) hotBars() []bar {
	var fastest *record // of the others
	for _, rec := range r.in("hot", "") {
		if most := fastest.median("per_s"); rec.System != "relock" && (math.IsNaN(most) || rec.median("per_s") > most) {
			fastest = rec
		}
	}
	return []bar{
		{
			what:  "256 goroutines on one lock, Jain's index without the local pass",
			value: r.find("hot", "", "relock", defaults).median("jain"), limit: 0.99, least: true,
		},
		{
			what:  "256 goroutines on one lock with the local pass, sections/s, of the fastest other library",
			value: r.find("hot", "", "relock", localPass).ratio("per_s", fastest, "per_s"), limit: 10, least: true,
		},
	}
}

func (r *report) heldBars() []bar {
	which := r.largest("held")
	rec, raw := r.find("held", which, "relock", defaults), r.find("held", which, rawRenewal, "")
	locks, _ := strconv.Atoi(strings.TrimSuffix(which, " locks"))
	return []bar{
		{what: "renewal, client's CPU, of one script for 100 leases", value: rec.ratio("client_us", raw, "client_us"), limit: 3},
		{what: "renewal, server's CPU, of one script for 100 leases", value: rec.ratio("server_us", raw, "server_us"), limit: 3},
		// A batch may be smaller now and then, as some leases are due alone.
		{what: "renewal, commands for 100 locks", value: rec.median("commands_per_100"), limit: 1.05},
		{what: "locks lost while every CPU was busy", value: rec.median("lost")},
		{what: "goroutines for 1,000 held locks", value: 1000 * rec.median("goroutines") / float64(max(locks, 1)), limit: 1},
		// What go-redis allocates for a call is below that.
		{what: "allocations of the watchdog for a renewal", value: rec.median("allocs"), limit: 0.1},
	}
}

// printBars says what became of the bars, and returns how many were missed.
func printBars(w io.Writer, r *report) (missed int) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nbar\tat first\tnow\tmeasured\tmet")
	for _, b := range r.bars() {
		if b.missed() {
			missed++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", b.what, b.firstGoal(), b.goal(), b.figure(), b.verdict())
	}
	_ = table.Flush() // as Fprintf
	return missed
}
