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
}

var workloads = []workload{
	{"pair", "one goroutine locks and unlocks a lock that nobody else wants", pair},
	{"parallel", "64 goroutines of one process, each with a lock of its own", parallel},
	{"handover", "one lock goes from client to client", handover},
	{"hot", "256 goroutines of one process want one lock", hot},
	{"nested", "a section enters its lock once more and leaves it", nested},
	{"held", "many locks are held and kept alive, nothing else", held},
	{"idle", "many goroutines wait for a lock that stays taken", idle},
	{"crash", "the process that holds a lock is killed", crash},
	{"storm", "all waiters are cancelled at once", storm},
	{"kinds-pair", "one goroutine locks and unlocks a lock of each kind that nobody else wants", kindsPair},
	{"kinds-batch", "many readers wait for a writer, and come in together", kindsBatch},
	{"kinds-writer", "a writer wants a lock that readers take again and again", kindsWriter},
	{"kinds-several", "one goroutine locks and unlocks several free locks at once", kindsSeveral},
	{"script", "one goroutine runs a script behind a lock that nobody else wants", script},
	{"once-pair", "one goroutine does operations that nobody else wants", oncePair},
	{"once-meet", "many calls want one operation while its attempt runs", onceMeet},
	{"quorum-pair", "one goroutine locks and unlocks a lock in three servers that nobody else wants", quorumPair},
	{"quorum-fault", "the same while one of the three servers is dead or silent", quorumFault},
	{"quorum-handover", "one lock in three servers goes from client to client", quorumHandover},
	{"stores-pair", "one goroutine locks and unlocks a lock in each store that nobody else wants", storesPair},
	{"stores-handover", "one lock in each store goes from client to client", storesHandover},
}

// sizes says how much to measure.
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
	kinds    kindsSizes
	once     onceSizes
	quorum   quorumSizes
	stores   quorumSizes
}

var full = sizes{
	name:     "full",
	trips:    []time.Duration{time.Millisecond, 10 * time.Millisecond},
	pair:     pairSizes{rounds: 60, bursts: 15, pairs: 20, farRounds: 9, farPairs: 30},
	parallel: parallelSizes{rounds: 12, goroutines: 64, slice: 400 * time.Millisecond, farRounds: 5},
	handover: handoverSizes{
		rounds: 5, waiters: []int{1, 8, 64, 256, 1000}, samples: 100,
		farRounds: 3, farWaiters: []int{1, 64}, farSamples: 30,
		hold: 3 * time.Millisecond, limit: 3 * time.Second,
	},
	hot:    hotSizes{rounds: 5, goroutines: 256, slice: 2 * time.Second, apartRounds: 3},
	nested: nestedSizes{rounds: 20, pairs: 500},
	held: heldSizes{
		locks: []int{10_000, 100_000}, ttl: 30 * time.Second, rounds: 3,
		loaded: 15 * time.Second, rest: 3 * time.Second,
	},
	idle:  idleSizes{rounds: 2, waiters: []int{1_000, 10_000}, window: 3 * time.Second, most: time.Minute},
	crash: crashSizes{rounds: 7, waiters: 4, ttl: 2 * time.Second},
	storm: stormSizes{rounds: 5, processes: 10, waiters: 1_000},
	kinds: kindsSizes{
		batchRounds: 10, readers: 256, writerRounds: 5, loops: 64, severalRounds: 5, acquires: 20,
		samples: 20, hold: 5 * time.Millisecond,
	},
	once: onceSizes{rounds: 10, clients: 8, calls: 32},
	quorum: quorumSizes{
		pair:   pairSizes{rounds: 30, bursts: 10, pairs: 20},
		rounds: 5, waiters: []int{1, 8, 64}, samples: 50, limit: 5 * time.Second,
	},
	stores: quorumSizes{
		pair:   pairSizes{rounds: 15, bursts: 5, pairs: 20},
		rounds: 7, waiters: []int{1, 8, 64}, samples: 25, limit: 5 * time.Second,
	},
}

var small = sizes{
	name:     "short",
	trips:    full.trips,
	pair:     pairSizes{rounds: 10, bursts: 10, pairs: 20, farRounds: 3, farPairs: 10},
	parallel: parallelSizes{rounds: 3, goroutines: 64, slice: 200 * time.Millisecond, farRounds: 2},
	handover: handoverSizes{
		rounds: 2, waiters: []int{1, 8, 64, 256}, samples: 30,
		farRounds: 1, farWaiters: []int{1, 64}, farSamples: 10,
		hold: 3 * time.Millisecond, limit: time.Second,
	},
	hot:    hotSizes{rounds: 2, goroutines: 256, slice: 500 * time.Millisecond, apartRounds: 1},
	nested: nestedSizes{rounds: 5, pairs: 200},
	held: heldSizes{
		locks: []int{2_000}, ttl: 3 * time.Second, rounds: 3,
		loaded: 2 * time.Second, rest: time.Second,
	},
	idle:  idleSizes{rounds: 1, waiters: []int{1_000}, window: time.Second, most: 5 * time.Second},
	crash: crashSizes{rounds: 1, waiters: 4, ttl: time.Second},
	storm: stormSizes{rounds: 1, processes: 10, waiters: 500},
	kinds: kindsSizes{
		batchRounds: 4, readers: 256, writerRounds: 3, loops: 64, severalRounds: 1, acquires: 10,
		samples: 10, hold: 5 * time.Millisecond,
	},
	once: onceSizes{rounds: 3, clients: 8, calls: 32},
	quorum: quorumSizes{
		pair:   pairSizes{rounds: 8, bursts: 5, pairs: 20},
		rounds: 2, waiters: []int{1, 8, 64}, samples: 20, limit: 2 * time.Second,
	},
	stores: quorumSizes{
		pair:   pairSizes{rounds: 5, bursts: 3, pairs: 10},
		rounds: 2, waiters: []int{1, 8, 64}, samples: 10, limit: 2 * time.Second,
	},
}

// bench is a workload on its way.
type bench struct {
	*env
	sizes    sizes
	report   *report
	workload string
}

// taking returns the systems of the workload.
func (b *bench) taking() []*system {
	if kinds := kindSystems[b.workload]; kinds != nil {
		return kinds
	}
	var all []*system
	for _, s := range systems {
		if s.only == nil || slices.Contains(s.only, b.workload) {
			all = append(all, s)
		}
	}
	return all
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
	all := b.taking()
	records := make([]*record, len(all))
	for i, s := range all {
		records[i] = b.record(which, s, rounds)
	}
	return b.turns(caseName(b.workload, which), rounds, len(all), func(r, i int) error {
		m, err := turn(all[i], records[i])
		if err != nil {
			records[i].failed(r, err)
		}
		records[i].set(r, m)
		return b.flush()
	})
}

// eachTrip calls f without and with each added round trip.
func (b *bench) eachTrip(f func(rt time.Duration) error) error {
	for _, rt := range append([]time.Duration{0}, b.sizes.trips...) {
		if err := f(rt); err != nil {
			return err
		}
	}
	return nil
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

// trip names an added round trip in a case: "" for none.
func trip(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return "+" + d.String()
}

// caseName joins the parts of a case, without empty parts.
func caseName(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ", ")
}

// pause lets time pass: a section with a length, a machine on its way to rest.
func pause(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // nothing is waited for
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
