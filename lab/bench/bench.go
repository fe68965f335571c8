package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workload is a kind of work for all systems that can do the work.
type workload struct {
	name, title string
	run         func(b *bench) error
	systems     []*system // that only this workload has; nil: those of the others
}

var workloads = []workload{
	{"pair", "one goroutine locks and unlocks a lock that nobody else wants", pair, nil},
	{"parallel", "64 goroutines of one process, each with a lock of its own", parallel, nil},
	{"handover", "one lock goes from client to client", handover, nil},
	{"hot", "256 goroutines of one process want one lock", hot, nil},
	{"nested", "a section enters its lock once more and leaves it", nested, []*system{relockDefaults, relockLocal}},
	{"held", "many locks are held and kept alive, nothing else", held, nil},
	{"idle", "many goroutines wait for a lock that stays taken", idle, nil},
	{"storm", "all waiters are cancelled at once", storm, nil},
	{"quorum-pair", "one goroutine locks and unlocks a lock in three servers that nobody else wants", quorumPair, quorumAlive},
	{"quorum-fault", "the same while one of the three servers is dead or silent", quorumFault, quorumFaults},
	{"quorum-handover", "one lock in three servers goes from client to client", quorumHandover, quorumRings},
}

// sizes says how much to measure.
type sizes struct {
	name     string
	pair     pairSizes
	parallel parallelSizes
	handover handoverSizes
	hot      hotSizes
	nested   nestedSizes
	held     heldSizes
	idle     idleSizes
	storm    stormSizes
	quorum   quorumSizes
}

var full = sizes{
	name:     "full",
	pair:     pairSizes{rounds: 60, bursts: 15, pairs: 20},
	parallel: parallelSizes{rounds: 12, goroutines: 64, slice: 400 * time.Millisecond},
	handover: handoverSizes{
		rounds: 5, waiters: []int{1, 8, 64, 256, 1000}, samples: 100, hold: 3 * time.Millisecond, limit: 3 * time.Second,
	},
	hot:    hotSizes{rounds: 5, goroutines: 256, slice: 2 * time.Second, apartRounds: 3},
	nested: nestedSizes{rounds: 20, pairs: 500},
	held: heldSizes{
		locks: []int{10_000, 100_000}, ttl: 30 * time.Second, rounds: 3,
		loaded: 15 * time.Second, rest: 3 * time.Second,
	},
	idle:  idleSizes{rounds: 2, waiters: []int{1_000, 10_000}, window: 3 * time.Second, most: time.Minute},
	storm: stormSizes{rounds: 5, processes: 10, waiters: 1_000},
	quorum: quorumSizes{
		pair: pairSizes{rounds: 30, bursts: 10, pairs: 20},
		handover: handoverSizes{
			rounds: 5, waiters: []int{1, 8, 64}, samples: 50, hold: 5 * time.Millisecond, limit: 5 * time.Second,
		},
	},
}

var small = sizes{
	name:     "short",
	pair:     pairSizes{rounds: 10, bursts: 10, pairs: 20},
	parallel: parallelSizes{rounds: 3, goroutines: 64, slice: 200 * time.Millisecond},
	handover: handoverSizes{
		rounds: 2, waiters: []int{1, 8, 64, 256}, samples: 30, hold: 3 * time.Millisecond, limit: time.Second,
	},
	hot:    hotSizes{rounds: 2, goroutines: 256, slice: 500 * time.Millisecond, apartRounds: 1},
	nested: nestedSizes{rounds: 5, pairs: 200},
	held: heldSizes{
		locks: []int{2_000}, ttl: 3 * time.Second, rounds: 3,
		loaded: 2 * time.Second, rest: time.Second,
	},
	idle:  idleSizes{rounds: 1, waiters: []int{1_000}, window: time.Second, most: 5 * time.Second},
	storm: stormSizes{rounds: 1, processes: 10, waiters: 500},
	quorum: quorumSizes{
		pair: pairSizes{rounds: 8, bursts: 5, pairs: 20},
		handover: handoverSizes{
			rounds: 2, waiters: []int{1, 8, 64}, samples: 20, hold: 5 * time.Millisecond, limit: 2 * time.Second,
		},
	},
}

// bench is a workload on its way.
type bench struct {
	*env
	sizes    sizes
	report   *report
	workload string
	systems  []*system
}

// measure runs the workload in an env, and makes the figures of its records.
func (w workload) measure(e *env, s sizes, r *report) error {
	defer r.finish(w.name)
	return w.run(&bench{e, s, r, w.name, w.taking()})
}

// taking returns the systems of the workload.
func (w workload) taking() []*system {
	if w.systems != nil {
		return w.systems
	}
	return slices.DeleteFunc(slices.Clone(systems), func(s *system) bool {
		return s.only != nil && !slices.Contains(s.only, w.name)
	})
}

// record makes the empty record of a system in a case.
func (b *bench) record(which string, s *system, rounds int) *record {
	r := &record{Workload: b.workload, Case: which, System: s.name, Setting: s.setting}
	r.rounds = make([]round, rounds)
	b.report.Records = append(b.report.Records, r)
	return r
}

// contest gives every system of the workload a turn in each round of a case. An error of a turn
// goes into the record, beside the figures that the turn returned.
func (b *bench) contest(which string, rounds int, turn func(*system, *record) (round, error)) error {
	records := make([]*record, len(b.systems))
	for i, s := range b.systems {
		records[i] = b.record(which, s, rounds)
	}
	return b.turns(caseName(b.workload, which), rounds, len(records), func(r, i int) error {
		m, err := turn(b.systems[i], records[i])
		if err != nil {
			records[i].failed(r, err)
		}
		records[i].set(r, m)
		return b.flush()
	})
}

// turns calls f for each of n participants in each round, in a new order every time.
func (b *bench) turns(what string, rounds, n int, f func(round, i int) error) error {
	return b.rounds(what, rounds, func(r int) error {
		return inTurns(n, func(i int) error { return f(r, i) })
	})
}

// rounds calls f for each round, and logs how long all of them took.
func (b *bench) rounds(what string, rounds int, f func(round int) error) error {
	start := time.Now()
	for r := range rounds {
		if err := f(r); err != nil {
			return err
		}
	}
	logf("  %-28s %d rounds, %s", what, rounds, time.Since(start).Round(10*time.Millisecond))
	return nil
}

// inTurns calls f for each of n participants, in a new order.
func inTurns(n int, f func(i int) error) error {
	for _, i := range rand.Perm(n) {
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}

// logf writes progress to stderr.
func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

var lockNumber int

// freshLock returns a new name. Not for concurrent use.
func freshLock(workload string) string {
	lockNumber++
	return "bench:" + workload + ":" + strconv.Itoa(lockNumber)
}

// caseName joins the parts of a case, without empty parts.
func caseName(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ", ")
}

// pause lets time pass: a section with a length, a machine on its way to rest.
func pause(d time.Duration) {
	time.Sleep(d) // nothing is waited for
}

// within runs f, and leaves f behind at the limit: a system may hang, but not the run.
func within(limit time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return errHangs
	}
}

var errHangs = errors.New("it did not come to an end in time")
