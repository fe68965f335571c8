package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is the outcome of a run, as the file of the run keeps the outcome.
type report struct {
	Date    time.Time         `json:"date"`
	Commit  string            `json:"commit,omitempty"`
	Sizes   string            `json:"sizes"`
	Go      string            `json:"go"`
	System  string            `json:"system"`
	CPUs    int               `json:"cpus"`
	Redis   string            `json:"redis"`
	Modules map[string]string `json:"modules"`
	Records []*record         `json:"records"`
}

// record is the outcome of a system in a case of a workload.
type record struct {
	Workload string `json:"workload"`
	Case     string `json:"case,omitempty"`
	System   string `json:"system"`
	Setting  string `json:"setting,omitempty"`
	// Figures are the medians over the rounds, by metric.
	Figures map[string]float64 `json:"figures"`
	// Rounds counts all rounds, Failed the rounds without figures.
	Rounds int `json:"rounds"`
	Failed int `json:"failed,omitempty"`
	// Broken counts entries while another goroutine was inside.
	Broken int64 `json:"broken,omitempty"`
	// Note is the last error.
	Note string `json:"note,omitempty"`

	rounds []round // while the workload runs
}

// round is the metrics of a round, by name. A failed round is empty.
type round map[string]float64

// set keeps the metrics of round i.
func (r *record) set(i int, m round) { r.rounds[i] = m }

// failed notes an error of round i. The run goes on, as a failure of a system is a result.
func (r *record) failed(i int, err error) {
	r.Note = strings.ReplaceAll(err.Error(), "\n", "; ") // a line of a table
	logf("  round %d of %s %s: %v", i+1, r.name(), r.Case, err)
}

func (r *record) name() string {
	if r.Setting == "" {
		return r.System
	}
	return r.System + ", " + r.Setting
}

// median returns the figure of a metric, NaN without a figure.
func (r *record) median(metric string) float64 {
	if r != nil {
		if v, ok := r.Figures[metric]; ok {
			return v
		}
	}
	return math.NaN()
}

// ratios lists metrics that are a metric of the record, divided by a metric of another record of
// the case. The division is made in each round.
var ratios = []struct{ workload, name, metric, system, setting, other string }{
	{"pair", "of_floor", "us", "floor", "", "us"},
	{"parallel", "of_floor", "per_s", "floor", "", "per_s"},
	{"parallel", "of_auto", "per_s", "floor", autoPipelined, "per_s"},
	{"handover", "of_wake", "p50_us", rawWake, "", "p50_us"},
	{"handover", "of_grant", "p50_us", bareGrant, "", "p50_us"},
	{"hot", "of_grant", "per_s", bareGrant, "", "per_s"},
	{"quorum-pair", "of_redsync", "us", "redsync", defaults, "us"},
	{"quorum-pair", "of_fail_fast", "us", "redsync", failFast, "us"},
	{"quorum-pair", "of_rueidislock", "us", "rueidislock", threeServers, "us"},
	{"quorum-fault", "of_alive", "us", "relock", defaults, "us"},
	{"quorum-handover", "of_redsync", "p50_us", "redsync", defaults, "p50_us"},
	{"quorum-handover", "of_tuned", "p50_us", "redsync", tuned, "p50_us"},
	{"quorum-handover", "of_rueidislock", "p50_us", "rueidislock", threeServers, "p50_us"},
	{"quorum-handover", "of_single", "p50_us", "rueidislock", defaults, "p50_us"},
}

// finish makes the figures of a workload from its rounds.
func (r *report) finish(workload string) {
	for _, q := range ratios {
		for _, rec := range r.Records {
			if q.workload == workload && rec.Workload == workload {
				rec.divide(q.name, q.metric, r.find(workload, rec.Case, q.system, q.setting), q.other)
			}
		}
	}
	for _, rec := range r.Records {
		if rec.Workload == workload {
			rec.finish()
		}
	}
}

// divide adds the metric name to each round with both figures.
func (r *record) divide(name, metric string, other *record, otherMetric string) {
	if other == nil {
		return
	}
	for i := range min(len(r.rounds), len(other.rounds)) {
		a, ok1 := r.rounds[i][metric]
		b, ok2 := other.rounds[i][otherMetric]
		if ok1 && ok2 && b != 0 {
			r.rounds[i][name] = a / b
		}
	}
}

// finish makes the figures from the rounds, with five digits.
func (r *record) finish() {
	r.Figures, r.Rounds, r.Failed = map[string]float64{}, len(r.rounds), 0
	values := map[string][]float64{}
	for _, m := range r.rounds {
		if len(m) == 0 {
			r.Failed++
		}
		for metric, v := range m {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				values[metric] = append(values[metric], v)
			}
		}
	}
	for metric, v := range values {
		r.Figures[metric], _ = strconv.ParseFloat(fmt.Sprintf("%.5g", quantile(v, 0.5)), 64)
	}
	r.rounds = nil
}

func newReport(e *env, s sizes, commit string) *report {
	r := &report{
		Date: time.Now().UTC().Truncate(time.Second), Commit: commit, Sizes: s.name,
		Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
		Modules: map[string]string{},
	}
	if info, err := e.admin.InfoMap(context.Background(), "server").Result(); err == nil {
		r.Redis = info["Server"]["redis_version"]
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if slices.Contains(compared, m.Path) {
				r.Modules[m.Path] = m.Version
			}
		}
	}
	return r
}

// compared lists the modules whose versions stand in the results.
var compared = []string{
	"github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4",
	"github.com/bsm/redislock", "github.com/redis/rueidis",
}

// gitCommit returns the commit of the tree, "" without git. Results and pages may differ from the
// commit, code may not.
func gitCommit() string {
	git := func(args ...string) string {
		out, _ := exec.CommandContext(context.Background(), "git", args...).Output()
		return strings.TrimSpace(string(out))
	}
	commit := git("rev-parse", "--short", "HEAD")
	if git("diff", "--name-only", "HEAD", "--", ":/*.go", ":/*.lua", ":/*go.mod") != "" {
		commit += "-dirty"
	}
	return commit
}

// cases returns the cases of a workload in the order of their measurement.
func (r *report) cases(workload string) []string {
	var all []string
	for _, rec := range r.Records {
		if rec.Workload == workload && !slices.Contains(all, rec.Case) {
			all = append(all, rec.Case)
		}
	}
	return all
}

// largest returns the last case of a workload, as cases grow; "" without a case.
func (r *report) largest(workload string) string {
	all := append([]string{""}, r.cases(workload)...)
	return all[len(all)-1]
}

// in returns the records of a case.
func (r *report) in(workload, which string) []*record {
	var all []*record
	for _, rec := range r.Records {
		if rec.Workload == workload && rec.Case == which {
			all = append(all, rec)
		}
	}
	return all
}

// find returns the record of a system in a case, nil without such a record.
func (r *report) find(workload, which, system, setting string) *record {
	for _, rec := range r.in(workload, which) {
		if rec.System == system && rec.Setting == setting {
			return rec
		}
	}
	return nil
}

// has reports whether a system in its setting, a system, or a setting was measured.
func (r *report) has(name string) bool {
	return slices.ContainsFunc(r.Records, func(rec *record) bool {
		return rec.name() == name || rec.System == name || rec.Setting == name
	})
}

// write keeps the report as a file of its own in dir, with a record a line.
func (r *report) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	data = bytes.ReplaceAll(data, []byte(`{"workload"`), []byte("\n"+`{"workload"`))
	name := r.Date.Format("20060102-150405") + "-" + r.Commit + ".json"
	return os.WriteFile(filepath.Join(dir, name), append(data, '\n'), 0o644)
}

// newest returns the report in dir whose name is the last, which is the newest.
func newest(dir string) (*report, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, errors.New("no results in " + dir)
	}
	data, err := os.ReadFile(slices.Max(paths))
	if err != nil {
		return nil, err
	}
	r := &report{}
	return r, json.Unmarshal(data, r)
}
