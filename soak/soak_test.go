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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
	"github.com/go-relock/relock/soak/history"
	"github.com/go-relock/relock/store/mem"
)

const (
	clients, workers = 4, 16

	ttl = time.Second
	// slack is how much later than its limit a call may return, and a loss be reported, on a busy
	// machine. The promise is milliseconds; other tests check that.
	slack = 5 * time.Second

	// A round is checked at once, which takes time and memory in proportion to the square of the
	// calls. A round ends at either limit. At the end nobody holds a lock, but commands may be on
	// their way.
	roundTime  = 3 * time.Second
	roundCalls = 9000
	// checkLimit is some hundred times the time for the check of a round.
	checkLimit = time.Minute
)

// The patience of a client for an answer.
const (
	severalTries = 150 * time.Millisecond // several tries fit into a lease
	nothingTwice = 2 * slack              // no command is sent twice on a busy machine
)

// setting does not change during a soak.
type setting struct {
	patience time.Duration // of the clients
	redisson bool          // locks are kept as Redisson does
	cluster  bool          // the server is a cluster
	fake     bool          // the server is a world in fake time
	mem      bool          // the server is a store in memory
	quorum   bool          // the server is a quorum of stores in memory
}

// onlyMutexes says that the store has no other kinds of locks.
func (s setting) onlyMutexes() bool { return s.redisson || s.quorum }

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
		return ttl / 4
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

// TestSoak runs for the time in RELOCK_SOAK (default 4s). RELOCK_SEED repeats the random choices,
// and not the timing. TestSoak checks that
//
//   - the history of each round keeps the promises: exclusion of the holds that are believed in,
//     counts, tokens that grow, entries and exits of the own hold only, no loss without a reason,
//     and the answers of Redis;
//   - a lost section is told of the loss (TestSoakOfForcedLocks checks that of forced locks);
//   - every call returns soon after the end of its context;
//   - at the end everybody can lock, and nothing is left.
//
// The history of each round is also broken in a random way, and the check must notice.
func TestSoak(t *testing.T) {
	duration, seed := settings(t)
	s := newSoak(t, seed, setting{patience: severalTries})
	s.run(duration, s.trouble)
	require.Positive(t, s.entered())
}

// TestSoakOfRedissonLocks does the same in Redisson's layout, in a third of the time. Redis does
// not lose the counter of tokens, and the owner in Redis is not compared, as Redis names a hold
// there.
func TestSoakOfRedissonLocks(t *testing.T) {
	duration, seed := settings(t)
	s := newSoak(t, seed, setting{patience: severalTries, redisson: true})
	s.run(max(duration/3, roundTime), s.trouble)
	require.Positive(t, s.entered())
}

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

// TestSoakOnACluster does the same on a cluster of one node, where pub/sub is sharded.
func TestSoakOnACluster(t *testing.T) {
	duration, seed := settings(t)
	s := newSoak(t, seed, setting{patience: severalTries, cluster: true})
	s.run(max(duration/3, roundTime), s.trouble)
	require.Positive(t, s.entered())
}

// TestSoakOfForcedLocks makes no trouble but ForceUnlock, in a third of the time. In TestSoak a
// holder may rightly never learn that its lock was forced. Here the holder must learn of the Force
// within a lease, or with the last Unlock.
func TestSoakOfForcedLocks(t *testing.T) {
	duration, seed := settings(t)
	s := newSoak(t, seed, setting{patience: nothingTwice})
	s.run(max(duration/3, roundTime), s.forces)
	require.Positive(t, s.did["ForceUnlock: ok"])
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

// run makes rounds with the trouble, for duration.
func (s *soak) run(duration time.Duration, trouble func(*rand.Rand)) {
	s.t.Helper()
	for round := uint64(0); time.Since(s.began) < duration; round++ {
		s.round(round, min(roundTime, duration-time.Since(s.began)), trouble)
		s.check(round)
	}
	s.report()
	s.end()
}

// A soak checks one way to break a history in each round. This test checks all ways.
func TestARecordedHistoryThatIsBrokenIsNoticed(t *testing.T) {
	redistest.NoGoroutineLeft(t)
	s := newSoak(t, rand.Uint64(), setting{patience: nothingTwice})
	t.Logf("seed %d", s.seed)
	random := rand.New(rand.NewPCG(s.seed, 0))
	ways := history.Breaks()
	for round := uint64(0); len(ways) > 0; round++ {
		require.Less(t, round, uint64(50), "no recording has a place for: %q", ways)
		s.round(round, 300*time.Millisecond, func(*rand.Rand) {}) // without trouble
		ops := append(slices.Clone(s.before), s.log.Take()...)
		s.before = history.Tokens(ops)
		r := history.Check(ops, checkLimit)
		require.Equal(t, history.Kept, r.Verdict, r.Explain())
		ways = slices.DeleteFunc(ways, func(way string) bool {
			broken, ok := history.Break(random, ops, way)
			if ok {
				require.Equal(t, history.Broken, history.Check(broken, checkLimit).Verdict, way)
			}
			return ok
		})
	}
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
	began  time.Time
	server *redistest.Server // nil in fake time
	world  *world            // nil in real time
	memory []*mem.Store      // empty: the store is Redis; several: a quorum
	plain  *redis.Client     // without faults, and no client of a cluster
	admin  *peer             // without faults
	log    *history.Recorder
	kinds  kinds
	wrong  names

	before []history.Op      // for the next round, see history.Tokens
	held   []*redistest.Rule // commands on their way
	did    map[string]int    // calls by kind and outcome
	broken map[string]int    // breaks of histories that were noticed
	faults []history.Fault   // of this round
	count  map[string]int    // of all rounds
	all    struct {
		rounds, calls, largest int
		took, slowest          time.Duration
	}

	calm   chan struct{}   // closed when there is no more trouble
	calmed time.Time       // when that was
	over   chan struct{}   // closed when the round is over
	limit  context.Context // done when the round is over
	ending sync.WaitGroup  // peers

	mu      sync.Mutex
	peers   []*peer
	retired []*peer
	waiting map[int]wait // by worker
}

func newSoak(t *testing.T, seed uint64, setting setting) *soak {
	t.Helper()
	s := &soak{
		t: t, seed: seed, setting: setting, log: history.NewRecorder(), waiting: map[int]wait{},
		did: map[string]int{}, broken: map[string]int{}, count: map[string]int{},
	}
	s.kinds.did = map[string]int{}
	args := []string{"--save", "86400 1000000"} // never by itself; a restart reads saved data
	if s.cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
	}
	switch {
	case s.mem:
		s.memory = []*mem.Store{mem.New()}
	case s.quorum:
		s.memory = []*mem.Store{mem.New(), mem.New(), mem.New()}
	case s.fake:
		s.world = newWorld(t)
		o := &redis.UniversalOptions{Dialer: s.world.dial}
		s.world.options(o)
		s.plain = redis.NewClient(o.Simple())
		t.Cleanup(func() { _ = s.plain.Close() })
	default:
		s.server = redistest.Start(t, args...)
		s.plain = s.server.Client(func(o *redis.Options) { o.ReadTimeout = nothingTwice })
	}
	if s.cluster {
		require.NoError(t, s.plain.ClusterAddSlotsRange(context.Background(), 0, 16383).Err())
		redistest.Eventually(t, 10*time.Second, func() bool {
			return strings.Contains(s.plain.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
		}, "the cluster is up, which it is after two seconds")
	}
	s.admin = s.newPeer(nothingTwice)
	for range clients {
		s.peers = append(s.peers, s.newPeer(s.patience))
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
	for id := range []int{workers / 4, workers / 2, workers}[random(2*workers+2).IntN(3)] {
		w := &worker{soak: s, Rand: random(id), id: id, helper: workers + id}
		working.Go(w.run)
	}
	s.visitors(&visiting, random)
	troubling.Go(func() { trouble(random(2 * workers)) })
	if !s.quorum { // a look at a quorum sees holds on their way in and out
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
		p.heal()
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
	if s.plain != nil { // all commands that the server has read have run
		require.NoError(s.t, s.plain.Ping(context.Background()).Err())
	}
}

// check checks the history of a round.
func (s *soak) check(number uint64) {
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
	switch r.Verdict {
	case history.Kept:
	case history.Undecided:
		s.report()
		s.t.Fatalf("round %d: whether the promises were kept is not decided: %d operations in %s", number, r.Ops, r.Took)
	case history.Broken:
		s.report()
		s.t.Errorf("round %d: a promise is broken:\n%s", number, r.Explain())
		s.t.Fatalf("the pictures: %q", s.draw(r))
	}
	if wrong := s.wrong.list(); len(wrong) > 0 {
		s.report()
		s.t.Fatalf("round %d:\n%s", number, strings.Join(wrong, "\n"))
	}
	s.checkKinds(number, ops)
	s.breakIt(rand.New(rand.NewPCG(s.seed, number<<8|255)), ops)
}

// draw writes pictures of a broken history to files that outlast the test.
func (s *soak) draw(r *history.Report) []string {
	dir, err := os.MkdirTemp("", "relock-soak-")
	require.NoError(s.t, err)
	files, err := r.Draw(filepath.Join(dir, "history"), s.faults)
	require.NoError(s.t, err)
	return files
}

// breakIt breaks the history of one lock, and requires that the check notices.
func (s *soak) breakIt(random *rand.Rand, ops []history.Op) {
	s.t.Helper()
	name := locks[random.IntN(len(locks))]
	ops = slices.DeleteFunc(slices.Clone(ops), func(op history.Op) bool { return op.Lock != name })
	way := history.Breaks()[random.IntN(len(history.Breaks()))]
	broken, ok := history.Break(random, ops, way)
	if !ok {
		return
	}
	r := history.Check(broken, checkLimit)
	require.Equal(s.t, history.Broken, r.Verdict, "the check does not notice %s", way)
	s.broken[way]++
	s.all.took += r.Took
	s.all.slowest = max(s.all.slowest, r.Took)
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
	s.t.Logf("faults: %s", tally(s.count))
	s.t.Logf("found:  %d calls in %d rounds; %d operations in the largest; %s for the slowest check, %s for all; %d broken histories noticed; %d faults of the lock",
		s.all.calls, s.all.rounds, s.all.largest, s.all.slowest.Round(time.Millisecond), s.all.took.Round(time.Millisecond), sum(s.broken),
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
	for _, rule := range s.held {
		rule.Remove()
		rule.LetGo()
	}
	for _, p := range s.peers {
		p.heal()
		if s.fake {
			p.faults.Cut() // a silent connection may last longer than a lease
		}
	}
	for _, name := range s.names() {
		for _, p := range s.peers {
			within(s.t, ttl+4*slack, "everybody can lock again", func() {
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
	for _, p := range append(s.peers, s.admin) {
		within(s.t, 60*time.Second, "a client has not been closed", func() { _ = p.Close() })
	}
	require.Empty(s.t, s.wrong.list())
	s.requireTidy()
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
