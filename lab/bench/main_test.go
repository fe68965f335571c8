package main

import (
	"context"
	"encoding/json"
	"errors"
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

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	os.Exit(redistest.Main(m))
}

// tiny is just enough to see that the bench works.
var tiny = sizes{
	name:     "tiny",
	trips:    []time.Duration{10 * time.Millisecond},
	pair:     pairSizes{rounds: 2, bursts: 2, pairs: 5, farRounds: 1, farPairs: 3},
	parallel: parallelSizes{rounds: 1, goroutines: 8, slice: 20 * time.Millisecond, farRounds: 1},
	handover: handoverSizes{
		rounds: 1, waiters: []int{1, 3}, samples: 2, farRounds: 1, farWaiters: []int{1}, farSamples: 2,
		hold: 2 * time.Millisecond, limit: 3 * time.Second,
	},
	hot:    hotSizes{rounds: 1, goroutines: 8, slice: 100 * time.Millisecond, apartRounds: 1},
	nested: nestedSizes{rounds: 1, pairs: 20},
	held: heldSizes{
		locks: []int{150}, ttl: 600 * time.Millisecond, rounds: 2, loaded: 100 * time.Millisecond, rest: 50 * time.Millisecond,
	},
	idle:  idleSizes{rounds: 1, waiters: []int{20}, window: 100 * time.Millisecond, most: 100 * time.Millisecond},
	crash: crashSizes{rounds: 1, waiters: 2, ttl: 600 * time.Millisecond},
	storm: stormSizes{rounds: 1, processes: 2, waiters: 20},
	kinds: kindsSizes{
		batchRounds: 1, readers: 8, writerRounds: 1, loops: 8, severalRounds: 1, acquires: 2,
		samples: 2, hold: 2 * time.Millisecond,
	},
	once: onceSizes{rounds: 1, clients: 2, calls: 4},
	quorum: quorumSizes{
		pair:   pairSizes{rounds: 2, bursts: 1, pairs: 5},
		rounds: 1, waiters: []int{1, 3}, samples: 2, limit: 2 * time.Second,
	},
	stores: quorumSizes{
		pair:   pairSizes{rounds: 2, bursts: 1, pairs: 5},
		rounds: 1, waiters: []int{1, 2, 3}, samples: 2, limit: 2 * time.Second,
	},
}

func TestEveryWorkloadGivesFiguresForEverySystem(t *testing.T) {
	e := newEnv(t)
	r := newReport(e, tiny, "abc")
	require.NotEmpty(t, r.Redis)
	for _, w := range workloads {
		b := &bench{env: e, sizes: tiny, report: r, workload: w.name}
		require.NoError(t, w.run(b), w.name)
		r.finish(w.name)
		require.NotEmpty(t, r.cases(w.name), "%s left no records", w.name)
		for _, s := range b.taking() {
			// Only some systems renew, and only relock can enter twice.
			if w.name == "nested" && s.name != "relock" || w.name == "held" && s.renews == 0 {
				continue
			}
			for _, which := range r.cases(w.name) {
				if strings.HasSuffix(which, draining) && s.queued == nil {
					continue
				}
				require.NotNil(t, r.find(w.name, which, s.name, s.setting), "%s, %s: no record of %s", w.name, which, s)
			}
		}
	}
	requireRecords(t, r)
	m := merge([]*report{r})
	t.Run("every column has a figure of relock", func(t *testing.T) { requireFigures(t, m) })
	t.Run("the report can be written and read again", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "results")
		path, err := r.write(dir)
		require.NoError(t, err)
		require.Contains(t, path, "-abc.json")
		again, err := readRuns(dir)
		require.NoError(t, err)
		require.Equal(t, []*report{r}, again)
	})
	t.Run("the page is written around text by hand", func(t *testing.T) { requirePage(t, m) })
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

func requireFigures(t *testing.T, m *merged) {
	t.Helper()
	for _, s := range []*system{relockDefaults, find(t, "rueidislock", tuned)} {
		rec := m.find("held", m.largest("held"), s.name, s.setting)
		require.Positive(t, rec.median("renewals_per_lock"), "%s renews every lease in a round", s)
	}
	for _, shown := range tables {
		whose := relockDefaults.String()
		if strings.HasPrefix(shown.workload, "stores-") {
			whose = "relock, " + inEtcd
		}
		for _, c := range shown.columns {
			require.True(t, slices.ContainsFunc(m.Records, func(rec *record) bool {
				return rec.Workload == shown.workload && rec.name() == whose && !math.IsNaN(rec.median(c.metric))
			}), "%s: relock has no figure for %q", shown.workload, c.header)
		}
	}
	for _, metric := range []string{"away_ms", "in_a_row"} {
		require.Positive(t, m.find("hot", apart, "relock", defaults).median(metric), metric)
	}
}

func requirePage(t *testing.T, m *merged) {
	t.Helper()
	dir := t.TempDir()
	page := filepath.Join(dir, "BENCHMARKS.md")
	old := "before\n" + beginMark + "/results.json) -->\nold\n" + endMark + "\nafter\n"
	require.NoError(t, os.WriteFile(page, []byte(old), 0o600))
	require.NoError(t, writePage(dir, m))
	require.NoError(t, writePage(dir, m), "a second time")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "before\n"+beginMark))
	require.True(t, strings.HasSuffix(string(text), endMark+"\nafter\n"))
	require.NotContains(t, string(text), "\nold\n")
	require.NotContains(t, string(text), "NaN")
	for _, l := range summary {
		if which := l.which; which == "" || which == largest || m.find(l.workload, which, "relock", l.setting) != nil {
			require.Contains(t, string(text), "| "+l.what+" | ")
		}
	}
	all, err := os.ReadFile(filepath.Join(dir, tablesPage))
	require.NoError(t, err)
	require.NotContains(t, string(all), "NaN")
	for _, shown := range tables {
		require.Contains(t, string(all), "\n## "+shown.title+"\n")
	}
	for _, name := range []string{"pair", "handover", "hot", "held"} {
		chart, err := os.ReadFile(filepath.Join(dir, "bench-"+name+".svg"))
		require.NoError(t, err)
		require.Contains(t, string(chart), "relock")
		require.NotContains(t, string(chart), "NaN")
		require.Contains(t, string(text), "bench-"+name+".svg")
	}
}

func TestAFailureStandsInItsLineOfTheTable(t *testing.T) {
	rec := &record{Workload: "hot", System: "relock", Setting: defaults, rounds: make([]round, 1)}
	rec.failed(0, errors.Join(errHangs, errNotOurs))
	rec.finish()
	var b strings.Builder
	table{workload: "hot"}.write(&b, merge([]*report{{Records: []*record{rec}}}), "")
	require.Contains(t, b.String(), "| relock, defaults (1 of 1 rounds failed: "+errHangs.Error()+"; "+errNotOurs.Error()+") |")
}

func TestFiguresOfSeveralRunsAreTheMedianAndTheRange(t *testing.T) {
	run := func(us float64) *report {
		figures := map[string]float64{"us": us, "of_floor": us / 100}
		return &report{Records: []*record{
			{Workload: "pair", System: "relock", Setting: defaults, Figures: figures, Rounds: 3, Failed: 1},
		}}
	}
	other := &report{Records: []*record{{Workload: "hot", System: "relock", Setting: defaults, Figures: map[string]float64{"per_s": 9}}}}
	m := merge([]*report{run(120), run(110), other, run(150)})
	rec := m.find("pair", "", "relock", defaults)
	require.InDelta(t, 120, rec.median("us"), 1e-9)
	require.Equal(t, "120 (110–150)", m.over(rec, "us").String())
	require.Equal(t, []int{9, 3}, []int{rec.Rounds, rec.Failed})
	require.Equal(t, "9", m.over(m.find("hot", "", "relock", defaults), "per_s").String(), "a single run has no range")
	require.Len(t, m.measured("pair"), 3)
	require.Equal(t, "1.2 (1.1–1.5)", m.over(rec, "of_floor").String())
}

func TestARatioIsTakenWithinEachRound(t *testing.T) {
	// The machine got four times slower in the second round, for both.
	a := &record{Workload: "pair", System: "relock", rounds: []round{{"us": 20}, {"us": 80}, {}}}
	b := &record{Workload: "pair", System: "floor", rounds: []round{{"us": 10}, {"us": 40}, {"us": 10}}}
	r := &report{Records: []*record{a, b}}
	r.finish("pair")
	require.InDelta(t, 2, a.median("of_floor"), 1e-9)
	require.True(t, math.IsNaN(a.median("trips")), "there are no PINGs")
	require.Equal(t, 1, a.Failed)
}

func TestJainsIndexIsOneForEqualShares(t *testing.T) {
	require.InDelta(t, 1, jain([]int64{7, 7, 7, 7}), 1e-9)
	require.InDelta(t, 0.25, jain([]int64{0, 9, 0, 0}), 1e-9)
	require.Zero(t, jain([]int64{0, 0}))
}

func TestQuantilesAreOfTheSortedSample(t *testing.T) {
	d := durations{5, 1, 4, 2, 3}
	require.EqualValues(t, 3, d.quantile(0.5))
	require.EqualValues(t, 5, d.quantile(0.99))
	require.EqualValues(t, 1, d.quantile(0))
	require.Equal(t, durations{5, 1, 4, 2, 3}, d, "the sample was changed")
	require.Zero(t, durations(nil).quantile(0.5))
	require.InDelta(t, 2.5, quantile([]float64{4, 1, 2, 3}, 0.5), 1e-9)
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

func TestAChartShowsZeroAndLeavesOutNoFigure(t *testing.T) {
	n := func(v float64) map[string]float64 { return map[string]float64{"n": v} }
	records := []*record{
		{System: "relock", Figures: n(0)}, {System: "redsync", Figures: n(30)}, {System: "redislock"},
	}
	for _, log := range []bool{false, true} {
		drawn := chart{title: "n", metrics: []string{"n"}, log: log}.draw(records)
		require.Contains(t, drawn, "relock")
		require.Contains(t, drawn, "redsync")
		require.NotContains(t, drawn, "redislock")
		require.NotContains(t, drawn, "NaN")
		require.NotContains(t, drawn, "Inf")
		require.Empty(t, chart{metrics: []string{"other"}, log: log}.draw(records))
	}
}

func TestTheGuardOfReadersSeesAWriterBesideThem(t *testing.T) {
	var g rwGuard
	g.read()
	g.read()
	g.leaveRead()
	g.leaveRead()
	g.write()
	require.Zero(t, g.broken.Load())
	g.read()
	require.EqualValues(t, 1, g.broken.Load(), "a reader beside a writer")
	g.leaveWrite()
	g.write()
	require.EqualValues(t, 2, g.broken.Load(), "a writer beside a reader")
	g.write()
	require.EqualValues(t, 3, g.broken.Load(), "two writers")
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

func TestFiguresHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0001: "0.000", 0.1234: "0.123", 1: "1", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1,235",
		1234567: "1,234,567", -1234: "-1,234", 999.7: "1,000",
	} {
		require.Equal(t, want, figure(v), "%v", v)
	}
	require.Equal(t, "–", figure(math.NaN()))
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
	h := p.handle(lock)
	section, err := h.lock(t.Context())
	require.NoError(t, err)
	keys := s.keys(lock)
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, err := e.admin.Exists(t.Context(), keys...).Result()
		return err == nil && n == 3
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

// fastest returns the shortest of a few runs of f. Longer runs are about the machine.
func fastest(t *testing.T, f func() error) time.Duration {
	t.Helper()
	took := time.Hour
	for range 10 {
		start := time.Now()
		require.NoError(t, f())
		took = min(took, time.Since(start))
	}
	return took
}

func TestTheProxyAddsItsRoundTripAndKeepsTheOrder(t *testing.T) {
	e := newEnv(t)
	const added = 20 * time.Millisecond
	rdb, err := e.redis(added)
	require.NoError(t, err)
	defer rdb.Close()
	require.NoError(t, rdb.Ping(t.Context()).Err()) // connects
	took := fastest(t, func() error { return rdb.Ping(t.Context()).Err() })
	require.GreaterOrEqual(t, took, added)
	require.Less(t, took, 2*added, "the delay is too long")

	took = fastest(t, func() error {
		pipe := rdb.Pipeline()
		pipe.Del(t.Context(), "list")
		for i := range 500 {
			pipe.RPush(t.Context(), "list", i)
		}
		_, err := pipe.Exec(t.Context())
		return err
	})
	require.Less(t, took, 3*added, "a pipeline takes the delay once")
	list, err := rdb.LRange(t.Context(), "list", 0, -1).Result()
	require.NoError(t, err)
	require.Len(t, list, 500)
	require.Equal(t, "499", list[499])
}

func TestTheResultsFileHasOneRecordALine(t *testing.T) {
	r := &report{Records: []*record{{Workload: "a"}, {Workload: "b", Note: `{"workload"`}}}
	path, err := r.write(t.TempDir())
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, json.Valid(data))
	require.Len(t, strings.Split(strings.TrimSpace(string(data)), "\n"), 3)
}

// Pages that quote another run would quote a tree that is gone.
func TestThePagesHaveTheResultsThatAreKept(t *testing.T) {
	runs, err := readRuns("results")
	require.NoError(t, err)
	docs := filepath.Join(t.TempDir(), "docs")
	require.NoError(t, os.Mkdir(docs, 0o700))
	pages := []string{"BENCHMARKS.md", tablesPage, "../../README.md"}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(docs, page), text, 0o600))
	}
	require.NoError(t, writePage(docs, merge(runs)))
	for _, page := range pages {
		kept, err := os.ReadFile(filepath.Join("../../docs", page))
		require.NoError(t, err)
		made, err := os.ReadFile(filepath.Join(docs, page))
		require.NoError(t, err)
		require.Equal(t, string(made), string(kept), "%s: cd bench && go run . -render", page)
	}
}

func TestTheBareGrantIsALock(t *testing.T) {
	b := &bench{env: newEnv(t)}
	r, err := newRing(b, bareLocks, freshLock("bare"), setup{addr: b.server.Addr()}, 4)
	require.NoError(t, err)
	require.NoError(t, r.queueUp(0))
	for range 10 {
		_, err := r.pass(closeLimit)
		require.NoError(t, err)
		require.NoError(t, r.again(closeLimit))
	}
	require.NoError(t, b.queued(bareLocks, r.lock, 3))
	require.NoError(t, r.close())
	require.Zero(t, r.guard.broken.Load())
}
