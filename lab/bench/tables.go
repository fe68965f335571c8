package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// table says how TABLES.md shows a workload.
type table struct {
	workload, title, note string
	columns               []column
}

// column is a metric under a header.
type column struct{ header, metric string }

var tables = []table{
	{
		workload: "pair", title: "Lock and unlock, one goroutine, nobody else",
		note: "CPU, allocations and bytes are of a whole pair. Commands are counted on the wire.",
		columns: []column{
			{"µs", "us"}, {"of the floor", "of_floor"},
			{"p99 µs", "p99_us"}, {"client CPU µs", "client_us"},
			{"server CPU µs", "server_us"}, {"allocations", "allocs"},
			{"bytes allocated", "bytes"}, {"commands", "commands"},
			{"bytes on the wire", "wire_bytes"},
		},
	},
	{
		workload: "parallel", title: "64 goroutines of one process, each with a lock of its own",
		columns: []column{
			{"pairs/s", "per_s"}, {"of the floor", "of_floor"},
			{"of the floor, auto-pipelined", "of_auto"}, {"p50 µs", "p50_us"},
			{"p99 µs", "p99_us"}, {"client CPU µs", "client_us"},
			{"server CPU µs", "server_us"},
		},
	},
	{
		workload: "handover", title: "Hand-over among waiters in separate clients",
		note: "From the call of Unlock until the Lock of another client has returned. Each client queues again after " +
			"its turn. Scripts, commands and bytes are of all clients for each hand-over, the section included. " +
			"Raw wakes and bare grants were measured in turns with relock's hand-overs.",
		columns: []column{
			{"median µs", "p50_us"}, {"of the raw wake", "of_wake"},
			{"of the bare grant", "of_grant"},
			{"p99 µs", "p99_us"}, {"p99 of the median", "tail"}, {"scripts", "scripts"},
			{"commands", "commands"}, {"bytes on the wire", "wire_bytes"},
		},
	},
	{
		workload: "hot", title: "256 goroutines of one process want one lock",
		note: "Jain's index is 1 when all goroutines got the same number of sections, and 1/256 when one " +
			"goroutine got them all. The longest wait is of any goroutine, unfinished waits included. With " +
			"half of the goroutines in each of two clients: the longest time of a client without the lock, while its goroutines waited, and " +
			"the most sections of a client in a row.",
		columns: []column{
			{"sections/s", "per_s"}, {"of the bare grant", "of_grant"},
			{"Jain's index", "jain"}, {"longest wait ms", "longest_wait_ms"},
			{"a client without it ms", "away_ms"}, {"in a row", "in_a_row"},
			{"commands a section", "commands"}, {"client CPU µs", "client_us"},
			{"server CPU µs", "server_us"},
		},
	},
	{
		workload: "nested", title: "One more entry into a lock that the call chain has, and out again",
		columns: []column{
			{"µs", "us"}, {"allocations", "allocs"}, {"bytes allocated", "bytes"},
			{"commands", "commands"},
		},
	},
	{
		workload: "held", title: "Many locks held and kept alive",
		note: "redsync and redislock renew nothing by themselves. CPU is of one renewal, without the CPU of " +
			"client and server at rest. Lost: after a time with every CPU busy. rueidislock with its " +
			"defaults takes part only with the fewest locks.",
		columns: []column{
			{"heap bytes a lock", "heap_bytes"}, {"stack bytes a lock", "stack_bytes"},
			{"goroutines", "goroutines"}, {"commands/s", "commands_per_s"},
			{"commands for 100 renewals", "commands_per_100"}, {"client CPU µs", "client_us"},
			{"server CPU µs", "server_us"}, {"allocations a renewal", "allocs"},
			{"lost", "lost"},
		},
	},
	{
		workload: "idle", title: "Many goroutines of one process wait for a lock that stays taken",
		note: "The heap includes the connections of the process. With few waiters the share of each in " +
			"them is large. Systems that poll are watched for 3 s; rueidislock for 5 s, in which the owner " +
			"renews twice; relock for 40 s, in which one waiter of the process asks whether the owner's " +
			"lease is over.",
		columns: []column{
			{"heap bytes a waiter", "heap_bytes"}, {"stack bytes a waiter", "stack_bytes"},
			{"goroutines a waiter", "goroutines"}, {"commands/s", "commands_per_s"},
			{"client CPUs", "cpu_client"}, {"server CPUs", "cpu_server"},
		},
	},
	{
		workload: "storm", title: "All waiters are cancelled at once",
		note: "Until the middle and the last of their Locks have returned; until Redis has forgotten all " +
			"of them; and, at the moment of an Unlock, until a new caller has the lock.",
		columns: []column{
			{"return p50 ms", "return_p50_ms"}, {"last return ms", "return_max_ms"},
			{"cleaned up ms", "cleaned_ms"}, {"commands a waiter", "commands_each"},
			{"next has it ms", "next_ms"},
		},
	},
	{
		workload: "quorum-pair", title: "Lock and unlock over three servers, one goroutine, nobody else",
		note: "relock is `quorum.New` over three servers, redsync has three pools, and rueidislock one of its " +
			"three keys on each server. Server CPU, commands and bytes on the wire are of one of the three servers.",
		columns: []column{
			{"µs", "us"}, {"of redsync", "of_redsync"}, {"of redsync, fail fast", "of_fail_fast"},
			{"of rueidislock", "of_rueidislock"}, {"p99 µs", "p99_us"}, {"client CPU µs", "client_us"},
			{"server CPU µs", "server_us"}, {"allocations", "allocs"},
			{"commands", "commands"}, {"bytes on the wire", "wire_bytes"},
		},
	},
	{
		workload: "quorum-fault", title: "Lock and unlock while one of three servers is dead or silent, one goroutine, nobody else",
		note: "The server that fails is the first of the three, at which waiters queue. Dead: killed. Silent: " +
			"stopped, with its connections open.",
		columns: []column{
			{"µs", "us"}, {"of relock, all alive", "of_alive"}, {"p50 µs", "p50_us"},
			{"p99 µs", "p99_us"}, {"client CPU µs", "client_us"}, {"allocations", "allocs"},
		},
	},
	{
		workload: "quorum-handover", title: "Hand-over among waiters in separate clients, over three servers",
		note: "As over one server. rueidislock with its defaults has all three keys on one server. " +
			"Commands are of one server and of all clients for each hand-over.",
		columns: []column{
			{"median µs", "p50_us"}, {"of redsync", "of_redsync"},
			{"of redsync, tuned", "of_tuned"}, {"of rueidislock, three servers", "of_rueidislock"},
			{"of rueidislock, one server", "of_single"}, {"p99 µs", "p99_us"}, {"commands", "commands"},
		},
	},
}

// section writes a workload: heading, note, and a table a case.
func (t table) section(w io.Writer, r *report) {
	fmt.Fprintf(w, "\n## %s\n\n", t.title)
	if t.note != "" {
		fmt.Fprintf(w, "%s\n\n", wrapped(t.note))
	}
	for i, which := range r.cases(t.workload) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if which != "" {
			fmt.Fprintf(w, "**%s**\n\n", which)
		}
		t.write(w, r, which)
	}
}

// write prints a case, without columns that are empty for everybody.
func (t table) write(w io.Writer, r *report, which string) {
	rows := r.in(t.workload, which)
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
			fmt.Fprintf(w, " %s |", figure(rec.median(c.metric)))
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

// method says how the figures came about.
const method = `Ratios within one run count: microseconds say more about the machine than about a library. Counts are the same on every machine, and
are tests (internal/test/budget).

* **Systems take turns**, in a new order in every round, and a ratio is taken within each round. A lone pair is measured in bursts of 20.
* **Two units.** The *floor* is ` + "`SET NX PX`" + ` and a compare-and-delete script through the same go-redis client. The *raw wake* is the time from a
  script that deletes a key and publishes a message, until a subscriber has the message.
* **The other libraries have two settings**: as each comes, and tuned for speed. The short table takes the better one.
* **go-redis has its defaults** for everybody: a pool of ten connections for each CPU, and no ` + "`ContextTimeoutEnabled`" + `.
* **A pair has a context that cannot end**, also with 64 goroutines, and so have locks that are held. All other workloads have contexts that can end.
* **Mutual exclusion is watched** in every workload but nested and held, and the tables mark a library that let two in at once.
* **Hand-overs are between separate clients** with connections of their own. Whoever had the lock asks again only when the next client has it.

` + "`make bench`" + ` measures everything in half an hour, and writes this file and two figures of the README. ` + "`make bench RUN=pair`" + `
measures some workloads and writes nothing. It needs room for some thousand open files (` + "`ulimit -n`" + `), and a machine that does nothing else.
`

// tables returns the text of TABLES.md: the short table, the systems, and the tables of
// all workloads.
func (r *report) tables() string {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\nWritten by bench: relock beside the least that a lock on Redis can cost, and beside other libraries.\n\n")
	fmt.Fprintf(&b, "%s\n\n%s\n## How it is measured\n\n%s\n## Systems\n\n", r.head(), r.summary(), method)
	for _, s := range settings {
		if r.has(s[0]) {
			fmt.Fprintln(&b, strings.ReplaceAll(wrapped(fmt.Sprintf("* **%s**: %s.", s[0], s[1])), "\n", "\n  "))
		}
	}
	for _, t := range tables {
		if len(r.cases(t.workload)) > 0 {
			t.section(&b, r)
		}
	}
	return b.String()
}
