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

// table says how the page shows a workload.
type table struct {
	workload, title, note string
	columns               []column
	unnamed               string // the name of the case without a name
}

// column is a metric under a header.
type column struct {
	header, metric string
	ranged         bool // the range over the runs stands beside the median
}

var tables = []table{
	{
		workload: "pair", title: "Lock and unlock, one goroutine, nobody else",
		note: "CPU, allocations and bytes are of a whole pair. Commands are counted on the wire.",
		columns: []column{
			{"µs", "us", true}, {"of the floor", "of_floor", true}, {"round trips", "trips", false},
			{"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"bytes allocated", "bytes", false}, {"commands", "commands", false},
			{"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "parallel", title: "64 goroutines of one process, each with a lock of its own",
		columns: []column{
			{"pairs/s", "per_s", true}, {"of the floor", "of_floor", true},
			{"of the floor, auto-pipelined", "of_auto", true}, {"p50 µs", "p50_us", false},
			{"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false},
		},
	},
	{
		workload: "handover", title: "Hand-over among waiters in separate clients",
		note: "From the call of Unlock until the Lock of another client has returned. In a ring each client " +
			"queues again after its turn. While a queue drains no client does, until the queue is empty. " +
			"Scripts, commands and bytes are of all clients for each hand-over in a ring, the section " +
			"included. Raw wakes and bare grants were measured in turns with relock's hand-overs.",
		columns: []column{
			{"median µs", "p50_us", true}, {"of the raw wake", "of_wake", true},
			{"of the bare grant", "of_grant", true}, {"round trips", "trips", false},
			{"p99 µs", "p99_us", false}, {"p99 of the median", "tail", false}, {"scripts", "scripts", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "hot", title: "256 goroutines of one process want one lock",
		note: "Jain's index is 1 when all goroutines got the same number of sections, and 1/256 when one " +
			"goroutine got them all. The longest wait is of any goroutine, unfinished waits included. With " +
			"two clients: the longest time of a client without the lock, while its goroutines waited, and " +
			"the most sections of a client in a row.",
		unnamed: "All in one client",
		columns: []column{
			{"sections/s", "per_s", true}, {"of the bare grant", "of_grant", true},
			{"Jain's index", "jain", true}, {"longest wait ms", "longest_wait_ms", false},
			{"a client without it ms", "away_ms", false}, {"in a row", "in_a_row", false},
			{"commands a section", "commands", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false},
		},
	},
	{
		workload: "nested", title: "One more entry into a lock that the call chain has, and out again",
		columns: []column{
			{"µs", "us", true}, {"allocations", "allocs", false}, {"bytes allocated", "bytes", false},
			{"commands", "commands", false},
		},
	},
	{
		workload: "held", title: "Many locks held and kept alive",
		note: "redsync and redislock renew nothing by themselves. CPU is of one renewal, without the CPU of " +
			"client and server at rest. Lost: after a time with every CPU busy. rueidislock with its " +
			"defaults takes part only with the fewest locks.",
		columns: []column{
			{"heap bytes a lock", "heap_bytes", true}, {"stack bytes a lock", "stack_bytes", false},
			{"goroutines", "goroutines", false}, {"commands/s", "commands_per_s", false},
			{"commands for 100 renewals", "commands_per_100", true}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations a renewal", "allocs", false},
			{"lost", "lost", true},
		},
	},
	{
		workload: "idle", title: "Many goroutines of one process wait for a lock that stays taken",
		note: "The heap includes the connections of the process. With few waiters the share of each in " +
			"them is large. Systems that poll are watched for 3 s; rueidislock for 5 s, in which the owner " +
			"renews twice; relock for 40 s, in which every waiter asks once by itself whether the owner's " +
			"lease is over (later every 30 s or so).",
		columns: []column{
			{"heap bytes a waiter", "heap_bytes", true}, {"stack bytes a waiter", "stack_bytes", false},
			{"goroutines a waiter", "goroutines", false}, {"commands/s", "commands_per_s", true},
			{"client CPUs", "cpu_client", false}, {"server CPUs", "cpu_server", false},
		},
	},
	{
		workload: "crash", title: "The process that holds the lock is killed",
		note: "Until the next of four waiters has the lock, and how long after the end of the lease in Redis.",
		columns: []column{
			{"ms", "total_ms", true}, {"of the TTL", "of_ttl", false},
			{"ms after the lease", "late_ms", true},
		},
	},
	{
		workload: "storm", title: "All waiters are cancelled at once",
		note: "Until the middle and the last of their Locks have returned; until Redis has forgotten all " +
			"of them; and, at the moment of an Unlock, until a new caller has the lock.",
		columns: []column{
			{"return p50 ms", "return_p50_ms", true}, {"last return ms", "return_max_ms", true},
			{"cleaned up ms", "cleaned_ms", true}, {"commands a waiter", "commands_each", false},
			{"next has it ms", "next_ms", true},
		},
	},
	{
		workload: "kinds-pair", title: "Lock and unlock a read-write lock or a semaphore, one goroutine, nobody else",
		columns: []column{
			{"µs", "us", true}, {"of a plain pair", "of_plain", true}, {"round trips", "trips", false},
			{"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "kinds-batch", title: "Many readers wait for a writer, and come in together",
		note: "From the call of the writer's Unlock until the first and the last RLock have returned. The " +
			"writer has a client of its own. Messages are for each client with readers.",
		columns: []column{
			{"first reader ms", "first_ms", false}, {"last reader ms", "last_ms", true},
			{"longest ms", "last_max_ms", false}, {"messages a client", "messages", true},
		},
	},
	{
		workload: "kinds-writer", title: "A writer wants a lock that readers take again and again",
		note: "Each reader holds 5 ms and asks again at once. The bound is the longest read of the round and " +
			"3 hand-overs. Hand-overs are between writers of another lock, in turns with the waits, and " +
			"before the readers begin.",
		columns: []column{
			{"wait p50 ms", "wait_p50_ms", true}, {"longest wait ms", "wait_max_ms", true},
			{"longest read ms", "read_max_ms", false}, {"hand-over µs", "busy_us", false},
			{"hand-over while nobody reads µs", "rest_us", false}, {"longest wait, of the bound", "of_bound", true},
		},
	},
	{
		workload: "kinds-several", title: "Lock and unlock 10 free locks at once, one goroutine, nobody else",
		unnamed: "Pairs",
		columns: []column{
			{"µs", "us", true}, {"of a plain pair", "of_plain", true}, {"round trips", "trips", false},
			{"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
			{"commands of the acquire", "acquire_commands", true},
		},
	},
	{
		workload: "script", title: "Run a script in its turn, one goroutine, nobody else",
		note: "Lock.Run sets a key by a script. The bare script has no lock, and the last row is Lock, Eval and Unlock.",
		columns: []column{
			{"µs", "us", true}, {"of the bare script", "of_bare", true}, {"p99 µs", "p99_us", false},
			{"client CPU µs", "client_us", false}, {"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "once-pair", title: "Do an operation that nobody else wants, one goroutine",
		columns: []column{
			{"µs", "us", true}, {"of a plain pair", "of_plain", true}, {"of a pair with a script", "of_script", true},
			{"round trips", "trips", false}, {"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "once-meet", title: "Many calls want one operation while its attempt runs",
		note:    "From the end of the function until the last call has the result. The function runs for 100 ms.",
		columns: []column{{"last result ms", "last_ms", true}, {"commands a client", "commands", true}},
	},
	{
		workload: "quorum-pair", title: "Lock and unlock over three servers, one goroutine, nobody else",
		note: "relock is `quorum.New` over three servers, redsync has three pools, and rueidislock one of its " +
			"three keys on each server. Server CPU, commands and bytes on the wire are of one of the three servers.",
		columns: []column{
			{"µs", "us", true}, {"of redsync", "of_redsync", true}, {"of redsync, fail fast", "of_fail_fast", true},
			{"of rueidislock", "of_rueidislock", true}, {"round trips", "trips", false}, {"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false},
			{"server CPU µs", "server_us", false}, {"allocations", "allocs", false},
			{"commands", "commands", false}, {"bytes on the wire", "wire_bytes", false},
		},
	},
	{
		workload: "quorum-fault", title: "Lock and unlock while one of three servers is dead or silent, one goroutine, nobody else",
		note: "The server that fails is the first of the three, at which waiters queue. Dead: killed. Silent: " +
			"stopped, with its connections open.",
		columns: []column{
			{"µs", "us", true}, {"of relock, all alive", "of_alive", true}, {"p50 µs", "p50_us", false},
			{"p99 µs", "p99_us", false}, {"client CPU µs", "client_us", false}, {"allocations", "allocs", false},
		},
	},
	{
		workload: "quorum-handover", title: "Hand-over among waiters in separate clients, over three servers",
		note: "As in the ring over one server. rueidislock with its defaults has all three keys on one server. " +
			"Commands are of one server and of all clients for each hand-over.",
		columns: []column{
			{"median µs", "p50_us", true}, {"of redsync", "of_redsync", true},
			{"of redsync, tuned", "of_tuned", true}, {"of rueidislock, three servers", "of_rueidislock", true},
			{"of rueidislock, one server", "of_single", true}, {"round trips", "trips", false}, {"p99 µs", "p99_us", false}, {"commands", "commands", false},
		},
	},
	{
		workload: "stores-pair", title: "Lock and unlock in each store, one goroutine, nobody else",
		note: "Each store beside the lock of another library on the same server. etcd keeps its data in memory, " +
			"ZooKeeper and the databases do not wait for the disk.",
		columns: []column{
			{"µs", "us", true}, {"of the other library there", "of_peer", true}, {"p50 µs", "p50_us", false}, {"p99 µs", "p99_us", false},
			{"client CPU µs", "client_us", false}, {"allocations", "allocs", false},
		},
	},
	{
		workload: "stores-handover", title: "Hand-over among waiters in separate clients, in each store",
		note: "As in the ring over one Redis server; each waiter has waited for 120 ms at its turn. Clients of a database share two stores. Commands are of all clients for " +
			"each hand-over, the waiting of the former owner included: commands of one Redis, messages to etcd, packets to " +
			"ZooKeeper, statements with BEGIN and COMMIT.",
		columns: []column{
			{"median µs", "p50_us", true}, {"of the other library there", "of_peer", true}, {"p99 µs", "p99_us", false},
			{"commands", "commands", true},
		},
	},
}

// printWorkload writes the tables of a workload, with the case as the title.
func printWorkload(w io.Writer, m *merged, workload string) {
	for _, t := range tables {
		if t.workload != workload {
			continue
		}
		for _, which := range m.cases(workload) {
			fmt.Fprintf(w, "\n**%s**\n\n", caseName(t.title, readable(which)))
			t.write(w, m, which)
		}
	}
}

// readable spells out an added round trip in the name of a case.
func readable(which string) string { return strings.Replace(which, "+", "round trip + ", 1) }

// write prints a case, without columns that are empty for everybody.
func (t table) write(w io.Writer, m *merged, which string) {
	rows := m.in(t.workload, which)
	columns := slices.DeleteFunc(slices.Clone(t.columns), func(c column) bool {
		return !slices.ContainsFunc(rows, func(rec *record) bool { return !math.IsNaN(rec.median(c.metric)) })
	})
	fmt.Fprint(w, "| |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s |", c.header)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(columns)))
	for _, rec := range rows {
		fmt.Fprintf(w, "| %s |", rec.label())
		for _, c := range columns {
			if c.ranged {
				fmt.Fprintf(w, " %s |", m.over(rec, c.metric))
			} else {
				fmt.Fprintf(w, " %s |", figure(rec.median(c.metric)))
			}
		}
		fmt.Fprintln(w)
	}
}

// label is the name of the record, with all that went wrong.
func (r *record) label() string {
	name := r.name()
	if r.Broken > 0 {
		name += fmt.Sprintf(" (**two inside at once: %d times**)", r.Broken)
	}
	if r.Failed > 0 {
		name += fmt.Sprintf(" (%d of %d rounds failed: %s)", r.Failed, r.Rounds, r.Note)
	} else if r.Note != "" {
		name += fmt.Sprintf(" (%s)", r.Note)
	}
	return name
}

// BENCHMARKS.md and README.md are generated between these lines, and written by hand around them. The
// page with all tables is generated.
const (
	beginMark  = "<!-- measured: begin (written by bench, from bench/results) -->"
	endMark    = "<!-- measured: end -->"
	tablesPage = "BENCHMARKS-TABLES.md"
)

// writePage puts the short table into BENCHMARKS.md and two figures into README.md above dir, and
// writes the charts and the page with all tables.
func writePage(dir string, m *merged) error {
	path := filepath.Join(dir, "BENCHMARKS.md")
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		empty := "# Benchmarks\n\n" + beginMark + "\n" + endMark + "\n"
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte(empty), 0o644)); err != nil {
			return err
		}
	}
	charts, err := drawCharts(dir, &m.report)
	if err != nil {
		return err
	}
	var b strings.Builder
	writeHead(&b, m)
	writeSummary(&b, m)
	for _, t := range tables {
		if chart := charts[t.workload]; chart != "" {
			fmt.Fprintf(&b, "\n![%s](%s)\n", t.title, chart)
		}
	}
	if err := fill(path, b.String()); err != nil {
		return err
	}
	readme := filepath.Join(dir, "..", "README.md")
	if _, err := os.Stat(readme); err == nil {
		if err := fill(readme, sentence(m)); err != nil {
			return err
		}
	}
	b.Reset()
	b.WriteString("# Benchmarks: all tables\n\nWritten by bench, from bench/results. [BENCHMARKS](BENCHMARKS.md) says how it is measured.\n\n")
	writeTables(&b, m)
	return os.WriteFile(filepath.Join(dir, tablesPage), []byte(b.String()), 0o644)
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

func writeTables(w io.Writer, m *merged) {
	writeHead(w, m)
	fmt.Fprint(w, "## Systems\n\n")
	for _, s := range settings {
		if m.has(s[0]) {
			fmt.Fprintln(w, strings.ReplaceAll(wrapped(fmt.Sprintf("* **%s**: %s.", s[0], s[1])), "\n", "\n  "))
		}
	}
	for _, t := range tables {
		if len(m.cases(t.workload)) > 0 {
			t.section(w, m)
		}
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

// writeHead names the runs, and the machine and the programs of the last run.
func writeHead(w io.Writer, m *merged) {
	head := fmt.Sprintf("Figures are medians of the runs below, in brackets the lowest and the highest run. "+
		"Measured with %s on %s, %d CPUs shared by client and server, redis-server %s", m.Go, m.System, m.CPUs, m.Redis)
	for _, path := range compared {
		if v := m.Modules[path]; v != "" {
			head += fmt.Sprintf(", %s %s", strings.TrimPrefix(path, "github.com/"), v)
		}
	}
	fmt.Fprintf(w, "%s\n\n", wrapped(head+"; sizes: "+m.Sizes+". Runs:"))
	for _, r := range m.runs {
		fmt.Fprintf(w, "* %s\n", caseName(r.Date.Format(time.DateTime), r.Commit))
	}
	fmt.Fprintln(w)
}

// section writes a workload: heading, note, and a table a case.
func (t table) section(w io.Writer, m *merged) {
	runs := m.measured(t.workload)
	fmt.Fprintf(w, "\n## %s\n\nRuns: %d, the last on %s.\n", t.title, len(runs), runs[len(runs)-1].Date.Format(time.DateOnly))
	if t.note != "" {
		fmt.Fprintf(w, "\n%s\n", wrapped(t.note))
	}
	cases := m.cases(t.workload)
	for _, which := range cases {
		title := readable(which)
		switch {
		case which == "" && len(cases) == 1:
			title = "All"
		case which == "" && t.unnamed != "":
			title = t.unnamed
		case which == "":
			title = "No round trip added"
		}
		fmt.Fprintf(w, "\n**%s**\n\n", title)
		t.write(w, m, which)
	}
}
