package main

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// tiny is just enough to see that the bench works.
var tiny = sizes{
	name:     "tiny",
	pair:     pairSizes{rounds: 2, bursts: 2, pairs: 5},
	parallel: parallelSizes{rounds: 1, goroutines: 8, slice: 20 * time.Millisecond},
	handover: handoverSizes{
		rounds: 1, waiters: []int{1, 3}, samples: 2, hold: 2 * time.Millisecond, limit: 3 * time.Second,
	},
	hot:    hotSizes{rounds: 1, goroutines: 8, slice: 100 * time.Millisecond, apartRounds: 1},
	nested: nestedSizes{rounds: 1, pairs: 20},
	held: heldSizes{
		locks: []int{150}, ttl: 600 * time.Millisecond, rounds: 2, loaded: 100 * time.Millisecond, rest: 50 * time.Millisecond,
	},
	idle:  idleSizes{rounds: 1, waiters: []int{20}, window: 100 * time.Millisecond, most: 100 * time.Millisecond},
	storm: stormSizes{rounds: 1, processes: 2, waiters: 20},
	quorum: quorumSizes{
		pair: pairSizes{rounds: 2, bursts: 1, pairs: 5},
		handover: handoverSizes{
			rounds: 1, waiters: []int{1, 3}, samples: 2, hold: 2 * time.Millisecond, limit: 2 * time.Second,
		},
	},
}

func TestEveryWorkloadGivesFiguresForEverySystem(t *testing.T) {
	e := newEnv(t)
	r := newReport(e, tiny, "abc")
	require.NotEmpty(t, r.Redis)
	for _, w := range workloads {
		require.NoError(t, w.measure(e, tiny, r), w.name)
		require.NotEmpty(t, r.cases(w.name), "%s left no records", w.name)
		for _, s := range w.taking() {
			if w.name == "held" && s.renews == 0 {
				continue // its leases end
			}
			for _, which := range r.cases(w.name) {
				require.NotNil(t, r.find(w.name, which, s.name, s.setting), "%s, %s: no record of %s", w.name, which, s)
			}
		}
	}
	requireRecords(t, r)
	t.Run("every column has a figure of relock", func(t *testing.T) { requireFigures(t, r) })
	t.Run("the report can be written and read again", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, r.write(dir))
		again, err := newest(dir)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
	t.Run("the tables are written, and the README around text by hand", func(t *testing.T) { requirePages(t, r) })
}

// requireRecords fails unless relock and the baselines have figures in all rounds.
func requireRecords(t *testing.T, r *report) {
	t.Helper()
	cases, complete := map[string]int{}, map[string]int{}
	for _, rec := range r.Records {
		cases[rec.name()]++
		if rec.Failed < rec.Rounds {
			complete[rec.name()]++
		}
		what := rec.Workload + ", " + rec.Case + ", " + rec.name()
		require.Zero(t, rec.Broken, what)
		require.Positive(t, rec.Rounds, what)
		if slices.Contains([]string{"relock", "floor", rawWake, bareGrant}, rec.System) {
			require.Zero(t, rec.Failed, "%s: %s", what, rec.Note)
		}
	}
	// A failure of a library is a result (rueidislock does not wake every waiter in time), but
	// rare.
	for name, n := range cases {
		require.Greater(t, 2*complete[name], n, "%s has figures in %d of %d cases", name, complete[name], n)
	}
}

func requireFigures(t *testing.T, r *report) {
	t.Helper()
	for _, s := range []*system{relockDefaults, find(t, "rueidislock", tuned)} {
		rec := r.find("held", r.largest("held"), s.name, s.setting)
		require.Positive(t, rec.median("renewals_per_lock"), "%s renews every lease in a round", s)
	}
	for _, shown := range tables {
		for _, c := range shown.columns {
			require.True(t, slices.ContainsFunc(r.Records, func(rec *record) bool {
				return rec.Workload == shown.workload && rec.name() == relockDefaults.String() && !math.IsNaN(rec.median(c.metric))
			}), "%s: relock has no figure for %q", shown.workload, c.header)
		}
	}
	for _, metric := range []string{"away_ms", "in_a_row"} {
		require.Positive(t, r.find("hot", apart, "relock", defaults).median(metric), metric)
	}
}

// pages are the places that render writes from a result, beside this directory.
var pages = []string{"bench/results/TABLES.md", "../README.md"}

// rendered renders a report between text by hand, twice, and returns what stands in each page.
func rendered(t *testing.T, r *report, byHand map[string]string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lab")
	for _, page := range pages {
		path := filepath.Join(dir, page)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(byHand[page]), 0o600))
	}
	for range 2 {
		require.NoError(t, r.render(filepath.Join(dir, "bench/results"), filepath.Join(dir, "../README.md")))
	}
	return contents(t, dir)
}

// contents reads all pages.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(dir, page))
		require.NoError(t, err)
		require.NotContains(t, string(text), "NaN", page)
		all[page] = string(text)
	}
	return all
}

func requirePages(t *testing.T, r *report) {
	t.Helper()
	const tablesOf, readme = "bench/results/TABLES.md", "../README.md"
	text := rendered(t, r, map[string]string{readme: "before\n" + beginMark + "\nold\n" + endMark + "\nafter\n"})
	require.True(t, strings.HasPrefix(text[readme], "before\n"+beginMark))
	require.True(t, strings.HasSuffix(text[readme], endMark+"\nafter\n"))
	require.NotContains(t, text[readme], "\nold\n")
	for _, l := range lines {
		if which := l.which; which == "" || which == largest || r.find(l.workload, which, "relock", l.setting) != nil {
			require.Contains(t, text[tablesOf], "| "+l.what+" | ")
		}
	}
	for _, shown := range tables {
		require.Contains(t, text[tablesOf], "\n## "+shown.title+"\n")
	}
}

// Pages that quote another run would quote a tree that is gone.
func TestThePagesHaveTheResultsThatAreKept(t *testing.T) {
	r, err := newest("results")
	require.NoError(t, err)
	kept := contents(t, "..")
	made := rendered(t, r, kept)
	for _, page := range pages {
		require.Equal(t, made[page], kept[page], "%s: cd lab/bench && go run . -render", page)
	}
}

func TestStaysCountSectionsInARowAndTimeWithout(t *testing.T) {
	s := newStays(2)
	s.begin(10)
	s.enter(0, 11)
	s.enter(0, 12)
	s.enter(0, 15)
	s.enter(1, 17) // after 7
	s.enter(0, 18)
	s.end(20)
	s.enter(0, 99) // too late to count
	require.Equal(t, 3, s.most)
	require.EqualValues(t, 7, s.longest)

	s = newStays(2)
	s.begin(10)
	s.enter(0, 11)
	s.end(30)
	require.EqualValues(t, 20, s.longest, "a client never had the lock")
}

func TestTheGuardSeesTwoInsideAtOnce(t *testing.T) {
	var g guard
	g.enter(1)
	g.leave(1)
	g.enter(2)
	require.Zero(t, g.broken.Load())
	g.enter(3)
	require.EqualValues(t, 1, g.broken.Load())
}

func TestUsageIsWhatWasDoneBetweenTwoMoments(t *testing.T) {
	e := newEnv(t)
	rdb := e.server.Client()
	require.NoError(t, rdb.Ping(t.Context()).Err())
	before, err := e.now()
	require.NoError(t, err)
	value := strings.Repeat("x", 1000)
	for range 50 {
		require.NoError(t, rdb.Set(t.Context(), "k", value, 0).Err())
	}
	after, err := e.now()
	require.NoError(t, err)
	u := after.since(before)
	require.EqualValues(t, 50, u.calls["set"])
	require.EqualValues(t, 50, u.commands("set"))
	require.Zero(t, u.commands())
	require.InDelta(t, 50*(len("*3\r\n$3\r\nset\r\n$1\r\nk\r\n$1000\r\n\r\n")+1000), u.in, 50)
	require.InDelta(t, 50*len("+OK\r\n"), u.out, 50)
	require.Greater(t, u.mallocs, uint64(50))
}

func TestALockOfSeveralKeysIsLostWhenMostOfThemAre(t *testing.T) {
	e := newEnv(t)
	b := &bench{env: e}
	s := find(t, "rueidislock", defaults)
	p, err := s.open(setup{addr: e.server.Addr()})
	require.NoError(t, err)
	t.Cleanup(p.close)
	lock := freshLock("held")
	h, keys := p.handle(lock), s.keys(lock)
	var section context.Context
	redistest.Eventually(t, time.Minute, func() bool {
		if section, err = h.lock(t.Context()); err != nil {
			return false
		}
		for range 100 {
			if n, err := e.admin.Exists(t.Context(), keys...).Result(); err == nil && n == 3 {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = h.unlock(section)
		return false
	}, "all three keys are there, the last of them after Lock has returned")
	lost := func() int {
		n, err := b.lost(s, []string{lock}, []context.Context{section})
		require.NoError(t, err)
		return n
	}
	require.Zero(t, lost())
	require.NoError(t, e.admin.Del(t.Context(), keys[0]).Err())
	require.Zero(t, lost(), "two of three are there")
	require.NoError(t, section.Err())
	require.NoError(t, e.admin.Del(t.Context(), keys[1]).Err())
	require.Equal(t, 1, lost())
}

// find returns a system in a setting.
func find(t *testing.T, name, setting string) *system {
	t.Helper()
	for _, s := range systems {
		if s.name == name && s.setting == setting {
			return s
		}
	}
	require.Fail(t, "no such system")
	return nil
}

func TestTheBareGrantIsALock(t *testing.T) {
	b := &bench{env: newEnv(t)}
	r, err := newRing(b, bareLocks, freshLock("bare"), setup{addr: b.server.Addr()}, 4)
	require.NoError(t, err)
	require.NoError(t, r.queueUp())
	for range 10 {
		_, err := r.pass(closeLimit)
		require.NoError(t, err)
	}
	require.NoError(t, b.queued(bareLocks, r.lock, 3))
	require.NoError(t, r.close())
	require.Zero(t, r.guard.broken.Load())
}
