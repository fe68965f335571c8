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

// workload is one kind of work, given to all systems that can do it.
type workload struct {
	name, title string
	run         func(b *bench) error
}

var workloads = []workload{
	{"pair", "one goroutine locks and unlocks a lock that nobody else wants", pair},
	{"parallel", "64 goroutines of one process, each with a lock of its own", parallel},
	{"handover", "one lock goes round among waiters in separate clients", handover},
	{"hot", "256 goroutines of one process want one lock", hot},
	{"nested", "a section enters its lock once more and leaves it", nested},
	{"held", "many locks are held and kept alive, nothing else", held},
	{"idle", "many goroutines wait for a lock that stays taken", idle},
	{"crash", "the process that holds a lock is killed", crash},
	{"storm", "all waiters are cancelled at once", storm},
}

// sizes is how much of everything is measured.
type sizes struct {
	name     string
	trips    []time.Duration // added round trips, besides none
	pair     pairSizes
	parallel parallelSizes
	handover handoverSizes
	hot      hotSizes
	nested   nestedSizes
	held     heldSizes
	idle     idleSizes
	crash    crashSizes
	storm    stormSizes
}

var full = sizes{
	name:  "full",
	trips: []time.Duration{time.Millisecond, 10 * time.Millisecond},
	pair:  pairSizes{rounds: 60, bursts: 15, pairs: 20, farRounds: 9, farPairs: 30},
	parallel: parallelSizes{
		rounds: 12, goroutines: 64, slice: 400 * time.Millisecond, farRounds: 5,
	},
	handover: handoverSizes{
		rounds: 5, waiters: []int{1, 8, 64, 256, 1000}, samples: 100,
		farRounds: 3, farWaiters: []int{1, 64}, farSamples: 30, hold: 3 * time.Millisecond, limit: 3 * time.Second,
	},
	hot:    hotSizes{rounds: 5, goroutines: 256, slice: 2 * time.Second, apartRounds: 3},
	nested: nestedSizes{rounds: 20, pairs: 500},
	held: heldSizes{
		locks: []int{10_000, 100_000}, ttl: 30 * time.Second, rounds: 3, loaded: 15 * time.Second, rest: 3 * time.Second,
	},
	idle:  idleSizes{rounds: 2, waiters: []int{1_000, 10_000}, window: 3 * time.Second, most: time.Minute},
	crash: crashSizes{rounds: 7, waiters: 4, ttl: 2 * time.Second},
	storm: stormSizes{rounds: 5, processes: 10, waiters: 1_000},
}

var small = sizes{
	name:     "short",
	trips:    full.trips,
	pair:     pairSizes{rounds: 10, bursts: 10, pairs: 20, farRounds: 3, farPairs: 10},
	parallel: parallelSizes{rounds: 3, goroutines: 64, slice: 200 * time.Millisecond, farRounds: 2},
	handover: handoverSizes{
		rounds: 2, waiters: []int{1, 8, 64, 256}, samples: 30,
		farRounds: 1, farWaiters: []int{1, 64}, farSamples: 10, hold: 3 * time.Millisecond, limit: time.Second,
	},
	hot:    hotSizes{rounds: 2, goroutines: 256, slice: 500 * time.Millisecond, apartRounds: 1},
	nested: nestedSizes{rounds: 5, pairs: 200},
	held: heldSizes{
		locks: []int{2_000}, ttl: 3 * time.Second, rounds: 3, loaded: 2 * time.Second, rest: time.Second,
	},
	idle:  idleSizes{rounds: 1, waiters: []int{1_000}, window: time.Second, most: 5 * time.Second},
	crash: crashSizes{rounds: 1, waiters: 4, ttl: time.Second},
	storm: stormSizes{rounds: 1, processes: 10, waiters: 500},
}

// bench is one workload's run.
type bench struct {
	*env
	sizes    sizes
	report   *report
	workload string
}

// taking are the systems that take part in this workload: those that can wait, or all.
func (b *bench) taking(floors bool) []*system {
	var all []*system
	for _, s := range systems {
		if (s.only == nil || slices.Contains(s.only, b.workload)) && (floors || !s.floor) {
			all = append(all, s)
		}
	}
	return all
}

// record makes the record of a system in a case, with all rounds still empty.
func (b *bench) record(which string, s *system, rounds int) *record {
	return b.recordNamed(which, s.name, s.setting, rounds)
}

func (b *bench) recordNamed(which, name, setting string, rounds int) *record {
	r := &record{Workload: b.workload, Case: which, System: name, Setting: setting, Rounds: make([]round, rounds)}
	for i := range r.Rounds {
		r.Rounds[i] = round{}
	}
	b.report.Records = append(b.report.Records, r)
	return r
}

// set notes the metrics of one round.
func (r *record) set(i int, m round) {
	r.Rounds[i] = m.rounded()
}

// failed notes that a round gave no figures. It is not the end of the run: where a system cannot do a thing, that is a
// result.
func (r *record) failed(i int, err error) {
	r.Note = strings.ReplaceAll(err.Error(), "\n", "; ") // a table has it in one line
	logf("  round %d of %s %s: %v", i+1, r.name(), r.Case, err)
}

// turns calls f for each of n participants in each round, in a new order every time, and tells how far it is.
func (b *bench) turns(which string, rounds, n int, f func(round, i int) error) error {
	return b.rounds(which, rounds, func(r int) error {
		return inTurns(n, func(i int) error { return f(r, i) })
	})
}

// rounds calls f for each round, and tells how far it is.
func (b *bench) rounds(which string, rounds int, f func(round int) error) error {
	start := time.Now()
	for r := range rounds {
		if err := f(r); err != nil {
			return err
		}
	}
	logf("  %-28s %d rounds, %s", which, rounds, time.Since(start).Round(10*time.Millisecond))
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

// logf tells how far the run is.
func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

var lockNumber int

// freshLock is a name that was not used before. Not for concurrent use.
func freshLock(workload string) string {
	lockNumber++
	return "bench:" + workload + ":" + strconv.Itoa(lockNumber)
}

// trip names an added round trip in a case: "" for none.
func trip(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return "+" + d.String()
}

// caseName joins the parts of a case that are there.
func caseName(parts ...string) string {
	var name string
	for _, p := range parts {
		if p == "" {
			continue
		}
		if name != "" {
			name += ", "
		}
		name += p
	}
	return name
}

// pause lets time pass where that is the point: a section that lasts, a machine that comes to rest.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // nothing is waited for
}

// within runs f and gives up, leaving f behind, when it takes longer than the limit: a system that hangs is a result, and
// must not hang the run.
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
