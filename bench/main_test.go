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

	"github.com/go-relock/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	os.Exit(redistest.Main(m))
}

// tiny is as little of everything as shows that it works.
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
}

func TestEveryWorkloadGivesFiguresForEverySystemThatTakesPart(t *testing.T) {
	e := newEnv(t)
	r := newReport(e, tiny)
	require.NotEmpty(t, r.Redis)
	for _, w := range workloads {
		b := &bench{env: e, sizes: tiny, report: r, workload: w.name}
		require.NoError(t, w.run(b), w.name)
		require.NotEmpty(t, r.cases(w.name), "%s left no records", w.name)
		for _, s := range b.taking(false) {
			// Those that renew nothing have nothing to hold; and only relock can enter twice.
			if w.name == "nested" && s.name != "relock" || w.name == "held" && s.renews == 0 {
				continue
			}
			for _, which := range r.cases(w.name) {
				require.NotNil(t, r.find(w.name, which, s.name, s.setting), "%s, %s: no record of %s", w.name, which, s)
			}
		}
		r.Measured[w.name] = time.Now().UTC()
	}
	cases, complete := map[string]int{}, map[string]int{}
	for _, rec := range r.Records {
		cases[rec.name()]++
		if rec.complete() > 0 {
			complete[rec.name()]++
		}
		what := rec.Workload + ", " + rec.Case + ", " + rec.name()
		require.Zero(t, rec.Broken, what)
		require.NotEmpty(t, rec.Rounds, what)
		if slices.Contains([]string{"relock", "floor", rawWake, rawWakeApart, bareGrant}, rec.System) {
			require.Equal(t, len(rec.Rounds), rec.complete(), "%s: %s", what, rec.Note)
		}
	}
	// That a library fails in a case is a result (a waiter of rueidislock is not always woken in time), but in most it does not.
	for name, n := range cases {
		require.Greater(t, 2*complete[name], n, "%s has figures in %d of %d cases", name, complete[name], n)
	}
	for _, s := range []*system{relockDefaults, find(t, "rueidislock", tuned)} {
		rec := r.find("held", r.largest("held"), s.name, s.setting)
		require.Len(t, rec.values("renewals_per_lock"), len(rec.Rounds), "%s: every lease is renewed once in a round", s)
	}
	for _, shown := range tables {
		for _, c := range shown.columns {
			require.True(t, slices.ContainsFunc(r.Records, func(rec *record) bool {
				return rec.Workload == shown.workload && rec.name() == relockDefaults.String() && c.print(r, rec) != figure(math.NaN())
			}), "%s: relock has no figure for %q", shown.workload, c.header)
		}
	}
	for _, b := range r.bars() {
		require.True(t, b.measured(), "not measured: %s", b.what)
	}
	for _, metric := range []string{"away_ms", "in_a_row"} {
		require.Positive(t, r.find("hot", apart, "relock", defaults).median(metric), metric)
	}

	t.Run("and the report can be written and read again", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "results", "results.json")
		require.NoError(t, writeReport(path, r))
		again, err := readReport(path)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
	t.Run("and the page is written around what a person wrote", func(t *testing.T) {
		dir := t.TempDir()
		page := filepath.Join(dir, "BENCHMARKS.md")
		require.NoError(t, os.WriteFile(page, []byte("before\n"+beginMark+"\nold\n"+endMark+"\nafter\n"), 0o600))
		require.NoError(t, writePage(dir, r))
		require.NoError(t, writePage(dir, r), "a second time")
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "before\n"+beginMark))
		require.True(t, strings.HasSuffix(string(text), endMark+"\nafter\n"))
		require.NotContains(t, string(text), "\nold\n")
		require.NotContains(t, string(text), "NaN")
		for _, name := range []string{"pair", "parallel", "handover", "hot", "held", "held-bytes", "idle", "crash", "storm"} {
			chart, err := os.ReadFile(filepath.Join(dir, "bench-"+name+".svg"))
			require.NoError(t, err)
			require.Contains(t, string(chart), "relock")
			require.NotContains(t, string(chart), "NaN")
			require.Contains(t, string(text), "bench-"+name+".svg")
		}
	})
}

func TestWhatFailedStandsInItsLineOfTheTable(t *testing.T) {
	rec := &record{Workload: "hot", System: "relock", Setting: defaults, Rounds: make([]round, 1)}
	rec.failed(0, errors.Join(errHangs, errNotOurs))
	var b strings.Builder
	table{workload: "hot"}.write(&b, &report{Records: []*record{rec}}, "")
	require.Contains(t, b.String(), "| relock, defaults (1 of 1 rounds failed: "+errHangs.Error()+"; "+errNotOurs.Error()+") |")
}

func TestAnOldReportKeepsOnlyWorkloadsThatWereNotMeasuredAgain(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old := &report{
		Measured: map[string]time.Time{"pair": at, "hot": at},
		Records:  []*record{{Workload: "pair", System: "old"}, {Workload: "hot", System: "old"}},
	}
	fresh := &report{
		Measured: map[string]time.Time{"pair": at.Add(time.Hour)},
		Records:  []*record{{Workload: "pair", System: "new"}},
	}
	fresh.keep(old)
	require.Equal(t, []*record{{Workload: "pair", System: "new"}, {Workload: "hot", System: "old"}}, fresh.Records)
	require.Equal(t, map[string]time.Time{"pair": at.Add(time.Hour), "hot": at}, fresh.Measured)
}

func TestARatioIsTakenWithinEachRound(t *testing.T) {
	// The machine got four times slower in the second round, for both.
	a := &record{Rounds: []round{{"us": 20}, {"us": 80}, {}}}
	b := &record{Rounds: []round{{"us": 10}, {"us": 40}, {"us": 10}}}
	require.InDelta(t, 2, a.ratio("us", b, "us"), 1e-9)
	require.True(t, math.IsNaN(a.ratio("us", nil, "us")))
	require.True(t, math.IsNaN(a.ratio("other", b, "us")))
}

func TestTheLocalPassIsComparedWithTheFastestOtherLibraryWithinEachRound(t *testing.T) {
	hot := func(system, setting string, rates ...float64) *record {
		rec := &record{Workload: "hot", System: system, Setting: setting}
		for _, rate := range rates {
			rec.Rounds = append(rec.Rounds, round{"per_s": rate})
		}
		return rec
	}
	// The machine changed between the rounds.
	r := &report{Records: []*record{
		hot("redislock", defaults), // it had no figures
		hot("relock", localPass, 100, 400, 400),
		hot("redsync", defaults, 10, 10, 40),
		hot("redsync", tuned, 1, 1, 1),
	}}
	compared := r.hotBars()[1]
	require.InDelta(t, 10, compared.value, 1e-9)
	r.Records = r.Records[:2]
	require.False(t, r.hotBars()[1].measured(), "there is nobody to compare with")
}

func TestJainsIndexIsOneForEqualSharesAndOneNthForOneWhoHasAll(t *testing.T) {
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

func TestFlatnessIsOfTheRatiosToTheRawWakeAndTheMicrosecondsStandBeside(t *testing.T) {
	// The machine was twice as slow for many waiters, and those cost a tenth more.
	few := &record{Workload: "handover", Case: "1 waiting", System: "relock", Setting: defaults}
	many := &record{Workload: "handover", Case: "1000 waiting", System: "relock", Setting: defaults}
	for range 3 {
		few.Rounds = append(few.Rounds, round{"p50_us": 200, "wake_us": 100, "grant_us": 130, "p99_us": 1, "scripts": 2})
		many.Rounds = append(many.Rounds, round{"p50_us": 440, "wake_us": 200, "grant_us": 250, "p99_us": 1, "scripts": 2})
	}
	r := &report{Records: []*record{few, many}}
	bars := r.handoverBars()
	flat := slices.IndexFunc(bars, func(b bar) bool { return strings.Contains(b.what, "slowest number of waiters") })
	require.InDelta(t, 1.1, bars[flat].value, 1e-9)
	require.Equal(t, "yes", bars[flat].verdict())
	beside := bars[flat+1]
	require.InDelta(t, 2.2, beside.value, 1e-9)
	require.InDelta(t, 2, bars[flat-4].value, 1e-9, "the worst of the raw wake with few waiters")
	require.InDelta(t, 2.2, bars[flat-3].value, 1e-9, "and with many")
	require.InDelta(t, 1.3, bars[flat-2].value, 1e-9, "what is the least of that, at worst")
	require.InDelta(t, 1.76, bars[flat-1].value, 1e-9, "the worst of the bare grant")
	require.Empty(t, beside.goal()+beside.verdict(), "it has no goal")
	require.False(t, beside.missed())

	r.Records = r.Records[:1]
	require.False(t, r.handoverBars()[flat-1].measured(), "of one number of waiters")
}

func TestStaysAreWhatOneClientHasInARowAndHowLongTheOtherIsWithout(t *testing.T) {
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
	require.EqualValues(t, 20, s.longest, "one never had it")
}

func TestABarThatIsZeroIsThereAndOneThatWasNotMeasuredIsNot(t *testing.T) {
	records := []*record{
		{System: "relock", Rounds: []round{{"n": 0}}}, {System: "redsync", Rounds: []round{{"n": 30}}}, {System: "redislock"},
	}
	for _, log := range []bool{false, true} {
		drawn := barChart{title: "n", parts: medians("n"), log: log}.draw(records)
		require.Contains(t, drawn, "relock")
		require.Contains(t, drawn, "redsync")
		require.NotContains(t, drawn, "redislock")
		require.NotContains(t, drawn, "NaN")
		require.NotContains(t, drawn, "Inf")
		require.Empty(t, barChart{parts: medians("other"), log: log}.draw(records))
	}
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

func TestABarThatWasMissedSaysSo(t *testing.T) {
	most := bar{value: 1.1, limit: 1.05, first: 1.15}
	require.Equal(t, "the first", most.verdict())
	most.value = 1.05
	require.Equal(t, "yes", most.verdict())
	most.value = 1.2
	require.Equal(t, "no", most.verdict())
	require.Equal(t, "no", bar{value: 9, limit: 10, least: true}.verdict())
	require.Equal(t, "yes", bar{value: 10, limit: 10, least: true}.verdict())
	require.Equal(t, "not measured", bar{value: math.NaN(), limit: 1}.verdict())
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
		n, _, err := b.lost(s, []string{lock}, []context.Context{section})
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

// find is a system in a setting.
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

// fastest is the shortest that f took in a few tries: the others are about the machine.
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
	require.NoError(t, rdb.Ping(t.Context()).Err()) // it has a connection to make
	took := fastest(t, func() error { return rdb.Ping(t.Context()).Err() })
	require.GreaterOrEqual(t, took, added)
	require.Less(t, took, 2*added, "the delay is not what was asked for")

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
	r := &report{Records: []*record{{Workload: "a"}, {Workload: "b"}}}
	data, err := r.MarshalJSON()
	require.NoError(t, err)
	require.True(t, json.Valid(data))
	lines := strings.Split(string(data), "\n")
	require.Len(t, slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, `"workload"`) }), 2)
}
