package torture

import (
	"cmp"
	"context"
	"flag"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/dbtest"
	"github.com/go-relock/relock/internal/test/redistest"
)

// The environment chooses what runs:
//
//	RELOCK_TORTURE  the length of the trouble in a crowd, and all libraries and controls; empty: in short, relock alone
//	RELOCK_RUN      scenarios whose names match
//	RELOCK_PEER     libraries whose names match
//	RELOCK_SEED     repeats the choices of a run
//	RELOCK_PAGE     the file of the page; empty: none is written
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "12") // scenarios mostly wait
	redis.SetLogger(silent{})           // go-redis logs every connection that a fault breaks
	os.Exit(dbtest.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

const short = 1500 * time.Millisecond

func length(t *testing.T) time.Duration {
	t.Helper()
	long, err := time.ParseDuration(cmp.Or(os.Getenv("RELOCK_TORTURE"), short.String()))
	require.NoError(t, err, "RELOCK_TORTURE")
	return long
}

func isFull() bool { return os.Getenv("RELOCK_TORTURE") != "" }

func matches(t *testing.T, variable, name string) bool {
	t.Helper()
	r, err := regexp.Compile("^(?:" + cmp.Or(os.Getenv(variable), ".*") + ")$")
	require.NoError(t, err, variable)
	return r.MatchString(name)
}

var few = make(chan struct{}, 4)

// torment runs a scenario with a library in a test of its own.
func torment(t *testing.T, s *Scenario, l *Library, faulty bool, mod ...func(*World)) Verdict {
	t.Helper()
	v := Verdict{Scenario: s.Name, Library: l.Name, Promised: l.Promises&s.Needs == s.Needs && !(s.Alone && l.Calm)}
	if !v.Promised {
		return v
	}
	if how, ends := l.Ends[s.Name]; ends && faulty {
		v.Wrong = []string{how}
		return v
	}
	if l.Store != nil { // scenarios share a server, or start a large one
		few <- struct{}{}
		defer func() { <-few }()
	}
	v.Seed = seed(t, s.Name+l.Name)
	w := newWorld(t, s.Place, l, faulty, length(t), v.Seed)
	for _, f := range mod {
		f(w)
	}
	s.Run(w)
	w.end()
	v.Wrong, v.Late = w.wrong, w.late
	return v
}

func seed(t *testing.T, of string) uint64 {
	t.Helper()
	if text := os.Getenv("RELOCK_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "RELOCK_SEED")
		return n
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(of + time.Now().String()))
	return h.Sum64()
}

func eachScenario(t *testing.T, run func(t *testing.T, s *Scenario), of []*Scenario) {
	t.Helper()
	for _, s := range of {
		if matches(t, "RELOCK_RUN", s.Name) {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				run(t, s)
			})
		}
	}
}

// TestTorture is the table of the page. A failure of a peer is a line of the page, and no failure of
// the test.
func TestTorture(t *testing.T) {
	report := &Report{Commit: os.Getenv("RELOCK_COMMIT"), Long: length(t).String(), Server: version(t)}
	var mu sync.Mutex
	for _, l := range Libraries {
		ours := strings.HasPrefix(l.Name, "relock")
		if !matches(t, "RELOCK_PEER", l.Name) || !isFull() && l.Name != "relock" {
			continue
		}
		t.Run(l.Name, func(t *testing.T) {
			eachScenario(t, func(t *testing.T, s *Scenario) {
				v := torment(t, s, l, true)
				runs := []Verdict{v}
				if isFull() {
					runs = append(runs, torment(t, s, l, false))
				}
				mu.Lock()
				defer mu.Unlock()
				report.Verdicts, report.Controls = append(report.Verdicts, v), append(report.Controls, runs[1:]...)
				for i, v := range runs {
					what := []string{"with the trouble", "without it"}[i]
					if all := strings.Join(v.all(), "\n"); ours && all != "" {
						t.Errorf("%s, seed %d: %s", what, v.Seed, all)
					} else {
						t.Log(what, v, all)
					}
				}
			}, l.scenarios())
		})
	}
	if path := os.Getenv("RELOCK_PAGE"); path != "" {
		require.NoError(t, report.Write(path))
	}
}

func version(t *testing.T) string {
	t.Helper()
	info := redistest.Shared(t).Client().Info(t.Context(), "server").Val()
	found := regexp.MustCompile(`redis_version:(\S+)`).FindStringSubmatch(info)
	require.Len(t, found, 2)
	return "Redis " + found[1]
}

// A scenario in which nothing can fail shows nothing.
func TestAHomeMadeLockWithTheDefectFails(t *testing.T) {
	eachScenario(t, func(t *testing.T, s *Scenario) { requireFails(t, s, s.Defect) }, Scenarios)
}

func requireFails(t *testing.T, s *Scenario, d Defect) {
	t.Helper()
	var v Verdict
	for range 3 { // troubles come at random
		if v = torment(t, s, HomeMade(d), true, func(w *World) { w.Patience = 2 * w.TTL }); len(v.all()) > 0 {
			break
		}
	}
	require.NotEmpty(t, v.all(), "a lock that %s passes", d)
	t.Log(v.all()[0])
}

// A scenario may convict more defects than the one that it names.
func TestADefectThatNoScenarioNamesFails(t *testing.T) {
	for d, scenario := range map[Defect]string{
		Extending: "deleted", Absent: "cancelled-waits", Early: "fence", Trusting: "partition", Quitting: "keeps-refused", Hasty: "unlock",
	} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			requireFails(t, scenarioOf(scenario), d)
		})
	}
}

// Each of these is convicted each time, by a scenario that names another defect, or that once
// convicted by chance.
func TestAnUnlockThatIsWrongFailsEachTime(t *testing.T) {
	for scenario, d := range map[string]Defect{"unlock": Idle, "late-unlock": Careless} {
		for range 3 {
			t.Run(scenario, func(t *testing.T) {
				t.Parallel()
				v := torment(t, scenarioOf(scenario), HomeMade(d), true)
				require.NotEmpty(t, v.Wrong, "a lock that %s passes, seed %d", d, v.Seed)
				t.Log(v.Wrong[0])
			})
		}
	}
}

func TestWithoutTroubleALockThatNeverUnlocksFails(t *testing.T) {
	v := torment(t, scenarioOf("unlock"), HomeMade(Idle), false)
	require.NotEmpty(t, v.Wrong)
}

func TestALibrarySaysWhichKeysItMayLeave(t *testing.T) {
	l := HomeMade(Sound)
	require.True(t, l.mayLeave("{guarded}:token"))
	require.False(t, l.mayLeave("relock:{guarded}:token"))
	require.False(t, Libraries[0].mayLeave("{guarded}:token"))

	l.Keeps = nil
	v := torment(t, scenarioOf("fence"), l, false)
	require.Len(t, v.Wrong, 1)
	require.Contains(t, v.Wrong[0], "{guarded}:token")
}

func scenarioOf(name string) *Scenario {
	return Scenarios[slices.IndexFunc(Scenarios, func(s *Scenario) bool { return s.Name == name })]
}

// A scenario that fails by itself shows nothing, either.
func TestWithoutItsTroubleAScenarioPasses(t *testing.T) {
	eachScenario(t, func(t *testing.T, s *Scenario) {
		v := torment(t, s, Libraries[0], false)
		require.Empty(t, v.all(), "seed %d", v.Seed)
	}, Scenarios)
}

func TestThePageNamesEveryScenarioOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Scenarios {
		require.False(t, seen[s.Name], s.Name)
		seen[s.Name] = true
		require.NotEqual(t, Sound, s.Defect, s.Name)
		require.NotNil(t, find(HomeMade(s.Defect).Name), s.Name)
	}
	page := (&Report{Verdicts: []Verdict{
		{Scenario: "cuts", Library: "relock", Promised: true},
		{Scenario: "cuts", Library: "redsync", Promised: true, Wrong: []string{"a reason at 127.0.0.1:80"}, Seed: 7},
		{Scenario: "fence", Library: "redsync"},
		{Scenario: "slow", Library: "redsync", Promised: true, Late: []string{"slept"}},
		{Scenario: "slow", Library: "relock", Promised: true, Late: []string{"slept, too"}},
		{Scenario: "slow", Library: "rueidislock", Promised: true, Late: []string{"slept, as without it"}},
		{Scenario: "jitter", Library: "rueidislock", Promised: true, Late: []string{"slept again"}},
	}, Controls: []Verdict{
		{Scenario: "cuts", Library: "relock", Promised: true},
		{Scenario: "cuts", Library: "redsync", Promised: true, Late: []string{"slept"}, Seed: 9},
		{Scenario: "slow", Library: "rueidislock", Promised: true, Late: []string{"slept"}},
	}}).Page()
	for _, text := range []string{
		"| cuts | pass |", "**FAIL** (1)", "| 1 | redsync in cuts (seed 7): a reason at the server |", "| cuts | All connections",
		"| slow | **FAIL** (2) |", "| 2 | relock in slow: slept, too |", "| 3 | rueidislock in jitter: slept again |",
		"## Late\n\n| | |\n|--:|---|\n| 1 | redsync in slow: slept |\n| 2 | rueidislock in slow: slept, as without it |",
		"| redsync | v4.", "| relock | 1 | nothing was wrong |", "| redsync | 1 | something was wrong in 1, such as redsync in cuts (seed 9): slept",
	} {
		require.Contains(t, page, text)
	}
}
