package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// README.md is generated between these lines, and written by hand around them.
const (
	beginMark = "<!-- measured: begin (by bench) -->"
	endMark   = "<!-- measured: end -->"
)

// render writes TABLES.md into results, and two figures into the README.
func (r *report) render(results, readme string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(results, "TABLES.md"), []byte(r.tables()), 0o644),
		fill(readme, r.sentence()),
	)
}

// fill writes the generated part of a page.
func fill(path, text string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(page), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", path, beginMark, endMark)
	}
	return os.WriteFile(path, []byte(before+beginMark+"\n\n"+text+"\n"+endMark+after), 0o644)
}

// head names the run, the machine and the programs.
func (r *report) head() string {
	head := fmt.Sprintf("One run of commit %s, %s; each figure is the median of its rounds. Measured with %s on %s, "+
		"%d CPUs shared by client and server, redis-server %s",
		r.Commit, r.Date.Format(time.DateTime), r.Go, r.System, r.CPUs, r.Redis)
	for _, path := range compared {
		if v := r.Modules[path]; v != "" {
			head += fmt.Sprintf(", %s %s", strings.TrimPrefix(path, "github.com/"), v)
		}
	}
	return wrapped(head + "; sizes: " + r.Sizes + ".")
}

// line is a line of the short table: a metric of relock, and of the best other library.
type line struct {
	what, workload, metric string
	which                  string // the case; largest: the one with the largest number
	setting                string // of relock
	more                   bool   // a larger figure is better
}

const largest = "largest"

var lines = []line{
	{what: "lock and unlock, of the floor", workload: "pair", metric: "of_floor", setting: defaults},
	{what: "the same with a context that can end", workload: "pair", metric: "of_floor", setting: ending},
	{what: "the same lock again and again, WithKeep", workload: "pair", metric: "of_floor", setting: kept},
	{what: "the pair's client CPU, µs", workload: "pair", metric: "client_us", setting: defaults},
	{what: "its allocations", workload: "pair", metric: "allocs", setting: defaults},
	{what: "64 goroutines with own locks, pairs/s", workload: "parallel", metric: "per_s", setting: defaults, more: true},
	{what: "hand-over, 64 waiting, of the raw wake", workload: "handover", metric: "of_wake", which: "64 waiting", setting: defaults},
	{what: "256 goroutines on one lock, sections/s", workload: "hot", metric: "per_s", setting: defaults, more: true},
	{what: "the same, Jain's index of fairness", workload: "hot", metric: "jain", setting: defaults, more: true},
	{what: "a renewal of many, client CPU, µs", workload: "held", metric: "client_us", which: largest, setting: defaults},
	{what: "a held lock of many, heap bytes", workload: "held", metric: "heap_bytes", which: largest, setting: defaults},
	{what: "a waiter of many, commands/s of all", workload: "idle", metric: "commands_per_s", which: largest, setting: defaults},
}

var others = []string{"redsync", "redislock", "rueidislock"}

// summary returns the short table. Lines without a figure of relock are left out.
func (r *report) summary() string {
	table := "| | relock | the best other library |\n|---|--:|--:|\n"
	for _, l := range lines {
		if l.which == largest {
			l.which = r.largest(l.workload)
		}
		ours := r.find(l.workload, l.which, "relock", l.setting)
		if math.IsNaN(ours.median(l.metric)) {
			continue
		}
		best := "–"
		if rec := l.best(r); rec != nil {
			best = fmt.Sprintf("%s (%s)", figure(rec.median(l.metric)), rec.name())
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", l.what, figure(ours.median(l.metric)), best)
	}
	return table
}

// sentence is what the README says.
func (r *report) sentence() string {
	var ours, best []float64
	ahead, rows := 0, 0
	for _, l := range lines {
		if l.which == largest {
			l.which = r.largest(l.workload)
		}
		v, other := r.find(l.workload, l.which, "relock", l.setting).median(l.metric), math.NaN()
		if rec := l.best(r); rec != nil {
			other = rec.median(l.metric)
		}
		ours, best = append(ours, v), append(best, other)
		if !math.IsNaN(v) && !math.IsNaN(other) {
			rows++
			if v != other && (v < other) == l.more {
				ahead++
			}
		}
	}
	row := func(what string) int { return slices.IndexFunc(lines, func(l line) bool { return l.what == what }) }
	pair, handOver := row("lock and unlock, of the floor"), row("hand-over, 64 waiting, of the raw wake")
	more := func(ratio float64) string { return figure(math.Round(100 * (ratio - 1))) }
	return wrapped(fmt.Sprintf("Lock and Unlock take %s %% longer than the two bare commands (%s %% with a context that can end); "+
		"the best other library %s %%. With 64 waiting a hand-over takes %s times as long as a bare message, and theirs %s times. "+
		"Others are ahead in %d of [%d rows](lab/bench/results/TABLES.md).",
		more(ours[pair]), more(ours[pair+1]), more(best[pair]), figure(ours[handOver]), figure(best[handOver]), ahead, rows)) + "\n"
}

// best returns the record of the best other library in its better setting; nil: none took part.
func (l line) best(r *report) (best *record) {
	for _, rec := range r.in(l.workload, l.which) {
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

// figure prints three digits of a number, without exponents.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a == 0:
		return "0"
	case a < 0.0005:
		return "0.000"
	case a >= 999.5:
		s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	default:
		digits := max(0, min(3, 2-int(math.Floor(math.Log10(a)))))
		s := strconv.FormatFloat(v, 'f', digits, 64)
		if strings.Contains(s, ".") {
			s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
		}
		return s
	}
}

// wrapped breaks a text into lines of at most 150 characters, if its words allow.
func wrapped(text string) string {
	var b strings.Builder
	length := 0
	for _, word := range strings.Fields(text) {
		switch {
		case length == 0:
		case length+1+len(word) > 150:
			b.WriteByte('\n')
			length = 0
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	return b.String()
}
