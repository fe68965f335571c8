// Package soak lets workers lock at random while faults happen at random. The answers of the lock
// must have an order without a broken promise, see package history.
package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/lab/soak/history"
	"github.com/go-relock/relock/store"
)

const (
	clients, workers = 4, 16

	// slack is how much later than its limit a call may return, and a loss be reported, on a busy
	// machine. The promise is milliseconds; other tests check that.
	slack = 5 * time.Second

	// A round is checked at once, which takes time and memory in proportion to the square of the
	// calls. A round ends after so many calls, or after three leases. At the end nobody holds a lock,
	// but commands may be on their way.
	roundCalls = 9000
	// checkLimit is some hundred times the time for the check of a round.
	checkLimit = time.Minute
)

// The patience of a client for an answer.
const (
	severalTries = 150 * time.Millisecond // several tries fit into a lease
	nothingTwice = 2 * slack              // no command is sent twice on a busy machine
)

// setting is a world, and what does not change in it during a soak.
type setting struct {
	begin    func(*soak) world // starts the servers
	ttl      time.Duration     // of the locks
	longest  time.Duration     // lease that the store keeps; 0: many of ttl
	patience time.Duration     // of the clients of Redis and of a store in memory
	serves   []string          // of kindNames: locks of other kinds that the store has
	parts    []string          // nil: parts
	mode     history.Mode      // of all locks
	fake     bool              // the world is in fake time
	races    bool              // waiters have no order
	// defect breaks the store of each client; nil: the stores are as they are.
	defect func(store.Store) store.Store
}

// late is how much later than its limit a call may return, and a loss be reported.
func (s setting) late() time.Duration {
	if s.fake {
		return time.Microsecond // of the recorder: in fake time nothing is late
	}
	return slack
}

// moment is a short pause in a section. One pause in seldom is long. Pauses cost nothing in fake
// time.
func (s setting) moment() time.Duration {
	if s.fake {
		return s.ttl / 4
	}
	return 5 * time.Millisecond
}

func (s setting) seldom() int {
	if s.fake {
		return 8
	}
	return 40
}

var locks = []string{"thing0", "thing1", "thing2", "thing3"}

// entered returns how many calls have entered a lock of any kind. In a short run with much trouble
// the workers may not enter at all.
func (s *soak) entered() int {
	n := s.did["Lock: ok"]
	for what, times := range s.kinds.did {
		if strings.HasSuffix(what, ": ok") {
			n += times
		}
	}
	return n
}

func settings(t *testing.T) (duration time.Duration, seed uint64) {
	t.Helper()
	duration, err := time.ParseDuration(env("RELOCK_SOAK", "4s"))
	require.NoError(t, err, "RELOCK_SOAK")
	seed, err = strconv.ParseUint(env("RELOCK_SEED", strconv.FormatUint(rand.Uint64(), 10)), 10, 64)
	require.NoError(t, err, "RELOCK_SEED")
	t.Logf("RELOCK_SOAK=%s RELOCK_SEED=%d", duration, seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to make the same choices again: RELOCK_SOAK=%s RELOCK_SEED=%d", duration, seed)
		}
	})
	redistest.NoGoroutineLeft(t)
	return duration, seed
}

// run makes rounds with the trouble, for duration. Calm rounds do not count: a busy machine would have
// no time for the others.
func (s *soak) run(duration time.Duration, trouble func(*rand.Rand)) {
	s.t.Helper()
	for round := uint64(0); time.Since(s.began) < duration; round++ {
		if round%calmEvery == 0 {
			begun := time.Now()
			s.calmly(round)
			duration += time.Since(begun)
		}
		s.round(round, min(3*s.ttl, duration-time.Since(s.began)), trouble)
		s.require(round)
	}
	s.report()
	s.end()
}

func env(name, otherwise string) string {
	if text := os.Getenv(name); text != "" {
		return text
	}
	return otherwise
}

type soak struct {
	t    *testing.T
	seed uint64
	setting
	began time.Time
	world world
	admin *peer // without faults
	log   *history.Recorder
	kinds kinds
	wrong names

	before []history.Op    // for the next round, see history.Tokens
	did    map[string]int  // calls by kind and outcome
	faults []history.Fault // of this round
	count  map[string]int  // of all rounds
	all    struct {
		rounds, calls, largest int
		took, slowest          time.Duration
	}

	crowd  bool            // most calls of this round are of one process, for one lock: runs of the queue
	calm   chan struct{}   // closed when there is no more trouble
	calmed time.Time       // when that was
	over   chan struct{}   // closed when the round is over
	limit  context.Context // done when the round is over
	ending sync.WaitGroup  // peers

	joined  atomic.Int64 // peers so far
	passed  atomic.Int64 // leases that were passed on in a process
	mu      sync.Mutex
	peers   []*peer
	retired []*peer
	waiting map[int]wait // by worker

	repeated map[string]bool // locks of which a command was sent again
}

func newSoak(t *testing.T, seed uint64, setting setting) *soak {
	t.Helper()
	s := &soak{
		t: t, seed: seed, setting: setting, log: history.NewRecorder(), waiting: map[int]wait{}, repeated: map[string]bool{},
		did: map[string]int{}, count: map[string]int{},
	}
	if s.parts == nil {
		s.parts = parts
	}
	s.kinds.did = map[string]int{}
	s.kinds.results.gone(0)
	s.world = setting.begin(s)
	s.admin = s.world.join(nothingTwice)
	for range clients {
		s.peers = append(s.peers, s.world.join(s.patience))
	}
	t.Cleanup(func() { // all is closed already, unless the test has failed
		for _, p := range append(append(s.peers, s.retired...), s.admin) {
			p.end()
		}
	})
	s.began = time.Now()
	return s
}

// round lets everybody work for that long, with trouble.
func (s *soak) round(number uint64, length time.Duration, trouble func(*rand.Rand)) {
	s.t.Helper()
	limit, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.calm, s.over, s.limit, s.faults = make(chan struct{}), make(chan struct{}), limit, nil
	random := func(id int) *rand.Rand { return rand.New(rand.NewPCG(s.seed, number<<8|uint64(id))) }

	var working, visiting, troubling, watching sync.WaitGroup
	// Many workers always queue, and few hardly ever.
	choices := random(2*workers + 2)
	many := []int{workers / 4, workers / 2, workers}[choices.IntN(3)]
	if s.crowd = s.mode.Passing && choices.IntN(2) == 0; s.crowd {
		many = workers / 2 // the check of one lock takes too long with more
	}
	for id := range many {
		w := &worker{soak: s, Rand: random(id), id: id, helper: workers + id}
		working.Go(w.run)
	}
	s.visitors(&visiting, random)
	troubling.Go(func() { trouble(random(2 * workers)) })
	if !s.mode.Quorum { // a look at a quorum sees holds on their way in and out
		watching.Go(func() { s.watch(random(2*workers+1), 2*workers) })
	}

	end := time.After(length)
	full := time.NewTicker(10 * time.Millisecond)
	defer full.Stop()
	for on := true; on; {
		select {
		case <-end:
			on = false
		case <-full.C:
			on = s.log.Len() < roundCalls
		}
	}
	s.calmed = time.Now()
	s.kinds.calmed(s.log.Now())
	close(s.calm)
	if !s.fake {
		close(s.over)
	}
	// The trouble ends first, so the limits below are the limits of a healthy server.
	within(s.t, 60*time.Second, "the faults have not ended", troubling.Wait)
	for _, p := range s.present() {
		p.way.heal()
	}
	if s.fake {
		s.watchCalm()
		close(s.over)
	}
	cancel()
	within(s.t, 60*time.Second, "a call has not come back", working.Wait)
	within(s.t, 60*time.Second, "a lock of another kind is waited for, and nobody asks for more", visiting.Wait)
	within(s.t, 60*time.Second, "a look at Redis has not come back", watching.Wait)
	within(s.t, 60*time.Second, "a client has not been closed", s.ending.Wait)
	for _, p := range s.retired {
		p.end()
	}
	s.retired = nil
	s.world.settle()
}

// require fails the test if a promise was broken in a round.
func (s *soak) require(number uint64) {
	s.t.Helper()
	if wrong := s.check(number); wrong != "" {
		s.report()
		s.t.Fatalf("round %d: %s", number, wrong)
	}
}

// check checks the history of a round, and says what is wrong.
func (s *soak) check(number uint64) string {
	s.t.Helper()
	ops := s.log.Take()
	for i := range ops {
		if ops[i].Kind == history.Force && ops[i].Outcome == history.Failed {
			ops[i].Return = s.log.Now() // the command may have run until now
		}
	}
	for _, op := range ops {
		s.did[what(op)]++
	}
	for _, f := range s.faults {
		s.count[f.Name]++
	}
	ops = append(slices.Clone(s.before), ops...)
	s.before = history.Tokens(ops)

	r := history.Check(ops, checkLimit)
	s.all.rounds++
	s.all.calls += len(ops)
	s.all.largest = max(s.all.largest, r.Ops)
	s.all.took += r.Took
	s.all.slowest = max(s.all.slowest, r.Took)
	kinds := s.takeKinds(ops)
	switch r.Verdict {
	case history.Kept:
	case history.Undecided:
		return fmt.Sprintf("whether the promises were kept is not decided: %d operations in %s", r.Ops, r.Took)
	case history.Broken:
		return fmt.Sprintf("a promise is broken:\n%s\nthe pictures: %q", r.Explain(), s.draw(r))
	}
	if wrong := append(s.wrong.list(), kinds.Check(checkLimit)...); len(wrong) > 0 {
		return "a promise is broken:\n" + strings.Join(wrong, "\n")
	}
	return ""
}

// draw writes pictures of a broken history to files that outlast the test.
func (s *soak) draw(r *history.Report) []string {
	dir, err := os.MkdirTemp("", "relock-soak-")
	require.NoError(s.t, err)
	files, err := r.Draw(filepath.Join(dir, "history"), s.faults)
	require.NoError(s.t, err)
	return files
}

// what names a call for the report.
func what(op history.Op) string {
	name := op.Kind.String()
	switch {
	case op.Nested:
		name = "nested Lock"
	case op.Again:
		name = "second Unlock"
	}
	return name + ": " + op.Outcome.String()
}

func (s *soak) report() {
	s.t.Helper()
	s.t.Logf("did:    %s", tally(s.did))
	s.t.Logf("kinds:  %s", tally(s.kinds.did))
	s.t.Logf("passed: %d leases to the next call of the process", s.passed.Load())
	s.t.Logf("faults: %s", tally(s.count))
	s.t.Logf("found:  %d calls in %d rounds; %d operations in the largest; %s for the slowest check, %s for all; %d faults of the lock",
		s.all.calls, s.all.rounds, s.all.largest, s.all.slowest.Round(time.Millisecond), s.all.took.Round(time.Millisecond),
		len(s.wrong.list()))
}

func tally(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// end lets everybody lock once more, and ends.
func (s *soak) end() {
	s.t.Helper()
	for _, p := range s.peers {
		p.way.last()
	}
	for _, name := range s.names() {
		for _, p := range s.peers {
			within(s.t, s.ttl+4*slack, "everybody can lock again", func() {
				l := lockOf(p, name)
				section, err := l.Lock(context.Background())
				if err == nil {
					err = l.Unlock(section)
				}
				if err != nil {
					s.wrong.add("at the end: %v", err)
				}
			})
		}
	}
	for _, p := range s.peers {
		within(s.t, 60*time.Second, "a client has not been closed", func() { _ = p.Close() })
	}
	require.Empty(s.t, s.wrong.list())
	s.requireTidy()
}

// requireTidy waits until nothing is left that a lock in use would leave.
func (s *soak) requireTidy() {
	s.t.Helper()
	var left []string
	within := 2*s.ttl + slack
	redistest.Eventually(s.t, within, func() bool {
		left = nil
		for _, name := range s.names() {
			state, err := lockOf(s.admin, name).State(context.Background())
			if err != nil || state.Locked() || state.Waiters > 0 {
				left = append(left, fmt.Sprintf("%s: %+v %v", name, state, err))
			}
		}
		return len(left) == 0
	}, "every lock is free, and nobody waits: %q", &left)
	require.NoError(s.t, s.admin.Close())
	redistest.Eventually(s.t, within, func() bool {
		left = s.world.left()
		return len(left) == 0
	}, "nothing is left in the store but what it keeps; left: %q", &left)
}

func (s *soak) present() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers)
}

func (s *soak) anyone(random *rand.Rand) *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers[random.IntN(len(s.peers))]
}

// another returns random choices for one more peer.
func (s *soak) another() *rand.Rand {
	return rand.New(rand.NewPCG(s.seed, uint64(s.joined.Add(1))))
}

func (s *soak) isOver() bool { return isClosed(s.over) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pause waits a little, or until the round is over.
func (s *soak) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.over:
	}
}

func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
