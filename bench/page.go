package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// column is one column of a table: what to print of a record.
type column struct {
	header string
	print  func(r *report, rec *record) string
}

// plain is the median of a metric.
func plain(header, metric string) column {
	return column{header, func(_ *report, rec *record) string { return figure(rec.median(metric)) }}
}

// spread is the median of a metric, and between which values the middle half of the rounds was.
func spread(header, metric string) column {
	return column{header, func(_ *report, rec *record) string {
		v := rec.values(metric)
		if len(v) < 3 {
			return figure(rec.median(metric))
		}
		return fmt.Sprintf("%s (%s–%s)", figure(quantile(v, 0.5)), figure(quantile(v, 0.25)), figure(quantile(v, 0.75)))
	}}
}

// times is a metric as a multiple of another record's in the same case.
func times(header, metric, system, setting, other string) column {
	return column{header, func(r *report, rec *record) string {
		return figure(rec.ratio(metric, r.find(rec.Workload, rec.Case, system, setting), other))
	}}
}

// table is how a workload is shown.
type table struct {
	workload, title, note string
	columns               []column
	// one is what the case without a name is, where it is not that no round trip is added.
	one string
	// skip leaves a record out.
	skip func(rec *record) bool
}

func only(names ...string) func(rec *record) bool {
	return func(rec *record) bool { return slices.Contains(names, rec.System) }
}

var tables = []table{
	{
		workload: "pair", title: "Lock and unlock, one goroutine, nobody else",
		note: "CPU, allocations and bytes are of a whole pair; commands are what went over the wire.",
		columns: []column{
			spread("µs", "us"), times("of the floor", "us", "floor", "", "us"), times("round trips", "us", ping, "", "us"),
			plain("p99 µs", "p99_us"), plain("client CPU µs", "client_us"), plain("server CPU µs", "server_us"),
			plain("allocations", "allocs"), plain("bytes allocated", "bytes"), plain("commands", "commands"),
			plain("bytes on the wire", "wire_bytes"),
		},
		skip: only(ping),
	},
	{
		workload: "parallel", title: "64 goroutines of one process, each with a lock of its own",
		columns: []column{
			spread("pairs/s", "per_s"), times("of the floor", "per_s", "floor", "", "per_s"),
			times("of the floor, auto-pipelined", "per_s", "floor", autoPipelined, "per_s"),
			plain("p50 µs", "p50_us"), plain("p99 µs", "p99_us"), plain("client CPU µs", "client_us"), plain("server CPU µs", "server_us"),
		},
	},
	{
		workload: "handover", title: "Hand-over among waiters in separate clients",
		note: "From the call of Unlock until another's Lock has returned. Commands are what all clients together sent for each " +
			"hand-over, the time that the lock was held included. The raw wake and the bare grant were measured in turns with relock's " +
			"hand-overs.",
		columns: []column{
			spread("median µs", "p50_us"), times("of the raw wake", "p50_us", rawWake, "", "p50_us"),
			times("of the bare grant", "p50_us", bareGrant, "", "p50_us"),
			times("round trips", "p50_us", ping, "", "us"), plain("p99 µs", "p99_us"), plain("scripts", "scripts"),
			plain("commands", "commands"), plain("bytes on the wire", "wire_bytes"),
		},
		skip: only(ping),
	},
	{
		workload: "hot", title: "256 goroutines of one process want one lock",
		note: "Jain's index is 1 when all goroutines got the same number of sections, and 1/256 when one got them all. The longest wait " +
			"is that of any goroutine, those that still waited at the end included. With two clients: the longest time that one of them " +
			"was without the lock, while its goroutines waited, and the most sections that one had in a row.",
		one: "All in one client",
		columns: []column{
			spread("sections/s", "per_s"), plain("Jain's index", "jain"), plain("longest wait ms", "longest_wait_ms"),
			plain("a client without it ms", "away_ms"), plain("in a row", "in_a_row"),
			plain("commands a section", "commands"), plain("client CPU µs", "client_us"), plain("server CPU µs", "server_us"),
		},
	},
	{
		workload: "nested", title: "One more entry into a lock that the call chain has, and out again",
		columns: []column{spread("µs", "us"), plain("allocations", "allocs"), plain("bytes allocated", "bytes"), plain("commands", "commands")},
	},
	{
		workload: "held", title: "Many locks held and kept alive",
		note: "redsync and redislock renew nothing by themselves. CPU is of one renewal, without what client and server use at rest. " +
			"Lost: after a time with every CPU busy. As it comes rueidislock takes part only with the fewest locks.",
		columns: []column{
			plain("heap bytes a lock", "heap_bytes"), plain("stack bytes a lock", "stack_bytes"), plain("goroutines", "goroutines"),
			plain("commands/s", "commands_per_s"), plain("commands for 100 renewals", "commands_per_100"),
			plain("client CPU µs", "client_us"), plain("server CPU µs", "server_us"), plain("allocations a renewal", "allocs"),
			plain("lost", "lost"),
		},
	},
	{
		workload: "idle", title: "Many goroutines of one process wait for a lock that stays taken",
		note: "The heap has the connections of the process in it too, which with few waiters is much for each. Who polls is watched for 3 s; " +
			"rueidislock for 5 s, in which the owner renews twice; relock for 40 s, in which every waiter asks once by itself whether the owner's " +
			"lease is over (later every 30 s or so).",
		columns: []column{
			plain("heap bytes a waiter", "heap_bytes"), plain("stack bytes a waiter", "stack_bytes"), plain("goroutines a waiter", "goroutines"),
			plain("commands/s", "commands_per_s"), plain("client CPUs", "cpu_client"), plain("server CPUs", "cpu_server"),
		},
	},
	{
		workload: "crash", title: "The process that holds the lock is killed",
		note: "Until the next one of four waiters has it, and how long that is after the end of the lease in Redis.",
		columns: []column{
			spread("ms", "total_ms"), plain("of the TTL", "of_ttl"), spread("ms after the lease", "late_ms"),
		},
	},
	{
		workload: "storm", title: "All waiters are cancelled at once",
		note: "Until the middle and the last of their Locks have returned; until Redis knows nothing of them; and, where it happens in " +
			"the moment of an Unlock, until somebody who asks then has the lock.",
		columns: []column{
			spread("return p50 ms", "return_p50_ms"), spread("last return ms", "return_max_ms"), plain("cleaned up ms", "cleaned_ms"),
			plain("commands a waiter", "commands_each"), spread("next has it ms", "next_ms"),
		},
	},
}

// printWorkload writes the tables of a workload.
func printWorkload(w io.Writer, r *report, workload string) {
	for _, t := range tables {
		if t.workload != workload {
			continue
		}
		for _, which := range r.cases(workload) {
			t.write(w, r, which)
		}
	}
}

// write one case as a table. Columns in which nobody has a figure are left out.
func (t table) write(w io.Writer, r *report, which string) {
	var rows []*record
	for _, rec := range r.in(t.workload, which) {
		if t.skip == nil || !t.skip(rec) {
			rows = append(rows, rec)
		}
	}
	var columns []column
	for _, c := range t.columns {
		if slices.ContainsFunc(rows, func(rec *record) bool { return c.print(r, rec) != figure(math.NaN()) }) {
			columns = append(columns, c)
		}
	}
	fmt.Fprintf(w, "\n**%s**\n\n|", caseName(t.title, strings.TrimSpace(strings.Replace(which, "+", "round trip + ", 1))))
	fmt.Fprint(w, " |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s |", c.header)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(columns)))
	for _, rec := range rows {
		name := rec.name()
		if rec.Broken > 0 {
			name += fmt.Sprintf(" (**two inside at once: %d times**)", rec.Broken)
		}
		if failed := len(rec.Rounds) - rec.complete(); failed > 0 {
			name += fmt.Sprintf(" (%d of %d rounds failed: %s)", failed, len(rec.Rounds), rec.Note)
		} else if rec.Note != "" {
			name += fmt.Sprintf(" (%s)", rec.Note)
		}
		fmt.Fprintf(w, "| %s |", name)
		for _, c := range columns {
			fmt.Fprintf(w, " %s |", c.print(r, rec))
		}
		fmt.Fprintln(w)
	}
}

// complete is how many rounds have figures.
func (r *record) complete() int {
	n := 0
	for _, m := range r.Rounds {
		if len(m) > 0 {
			n++
		}
	}
	return n
}

// The page is written by hand but for what is between these lines.
const (
	beginMark = "<!-- measured: begin (written by bench, from bench/results/results.json) -->"
	endMark   = "<!-- measured: end -->"
)

// writePage puts the tables into the page and draws the charts beside it.
func writePage(dir string, r *report) error {
	path := filepath.Join(dir, "BENCHMARKS.md")
	page, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		page, err = []byte("# Benchmarks\n\n"+beginMark+"\n"+endMark+"\n"), os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(page), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", path, beginMark, endMark)
	}
	charts, err := drawCharts(dir, r)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(before + beginMark + "\n\n")
	writeMeasured(&b, r, charts)
	b.WriteString("\n" + endMark + after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func writeMeasured(w io.Writer, r *report, charts map[string][]string) {
	fmt.Fprintf(w, "Measured with %s on %s, %d CPUs shared by client and server, redis-server %s", r.Go, r.System, r.CPUs, r.Redis)
	for _, path := range compared {
		if v := r.Modules[path]; v != "" {
			fmt.Fprintf(w, ", %s %s", strings.TrimPrefix(path, "github.com/"), v)
		}
	}
	fmt.Fprintf(w, "; sizes: %s.\n\n### What was aimed at\n\n"+
		"| | at first | now | measured | met |\n|---|--:|--:|--:|---|\n", r.Sizes)
	for _, b := range r.bars() {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", b.what, b.firstGoal(), b.goal(), b.figure(), b.verdict())
	}
	fmt.Fprint(w, "\n### Who takes part\n\n")
	for _, s := range settings {
		if r.has(s[0]) {
			fmt.Fprintf(w, "* **%s**: %s.\n", s[0], s[1])
		}
	}
	for _, t := range tables {
		cases := r.cases(t.workload)
		if len(cases) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n### %s\n", t.title)
		if at, ok := r.Measured[t.workload]; ok {
			fmt.Fprintf(w, "\nMeasured on %s.\n", at.Format(time.DateOnly))
		}
		if t.note != "" {
			fmt.Fprintf(w, "\n%s\n", t.note)
		}
		for _, chart := range charts[t.workload] {
			fmt.Fprintf(w, "\n![%s](%s)\n", t.title, chart)
		}
		for _, which := range cases {
			t := t
			t.title = "" // it is the heading
			if which == "" {
				t.title = "No round trip added"
				if t.one != "" {
					t.title = t.one
				}
				if len(cases) == 1 {
					t.title = "All"
				}
			}
			t.write(w, r, which)
		}
	}
}
