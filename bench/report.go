package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report is everything a run has found out, as the file of results has it.
type report struct {
	Sizes    string               `json:"sizes"`
	Go       string               `json:"go"`
	System   string               `json:"system"`
	CPUs     int                  `json:"cpus"`
	Redis    string               `json:"redis"`
	Modules  map[string]string    `json:"modules"`
	Measured map[string]time.Time `json:"measured"` // when, by workload
	Records  []*record            `json:"-"`
}

// record is what one system did in one case of a workload.
type record struct {
	Workload string  `json:"workload"`
	Case     string  `json:"case,omitempty"`
	System   string  `json:"system"`
	Setting  string  `json:"setting,omitempty"`
	Rounds   []round `json:"rounds"`
	// Broken counts how often somebody entered while another was inside.
	Broken int64 `json:"broken"`
	// Note says what went wrong, or why rounds are missing.
	Note string `json:"note,omitempty"`
}

// round is the metrics of one round, by name. All systems of a case have the same rounds; one that failed is empty.
type round map[string]float64

// rounded keeps what a figure can mean, so that files of results can be compared.
func (r round) rounded() round {
	for k, v := range r {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(r, k)
			continue
		}
		r[k], _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 5, 64), 64)
	}
	return r
}

// values of a metric, of the rounds that have it.
func (r *record) values(metric string) []float64 {
	var v []float64
	for _, m := range r.Rounds {
		if x, ok := m[metric]; ok {
			v = append(v, x)
		}
	}
	return v
}

// median of a metric over the rounds, NaN without any.
func (r *record) median(metric string) float64 {
	if r == nil {
		return math.NaN()
	}
	return quantile(r.values(metric), 0.5)
}

// ratio of a metric to the same or another metric of other, within each round, and then the median.
func (r *record) ratio(metric string, other *record, otherMetric string) float64 {
	if r == nil || other == nil {
		return math.NaN()
	}
	var ratios []float64
	for i := range min(len(r.Rounds), len(other.Rounds)) {
		a, ok1 := r.Rounds[i][metric]
		b, ok2 := other.Rounds[i][otherMetric]
		if ok1 && ok2 && b != 0 {
			ratios = append(ratios, a/b)
		}
	}
	return quantile(ratios, 0.5)
}

func (r *record) name() string {
	if r.Setting == "" {
		return r.System
	}
	return r.System + ", " + r.Setting
}

func newReport(e *env, s sizes) *report {
	r := &report{
		Sizes: s.name, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
		Modules: map[string]string{}, Measured: map[string]time.Time{},
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

// compared are the modules whose versions the results name.
var compared = []string{
	"github.com/redis/go-redis/v9", "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis",
}

// keep takes over what an earlier run has measured and this one has not. Each workload is from one run as a whole.
func (r *report) keep(old *report) {
	for _, rec := range old.Records {
		if _, fresh := r.Measured[rec.Workload]; !fresh {
			r.Records = append(r.Records, rec)
		}
	}
	for name, at := range old.Measured {
		if _, fresh := r.Measured[name]; !fresh {
			r.Measured[name] = at
		}
	}
}

// cases of a workload, in the order in which they were measured.
func (r *report) cases(workload string) []string {
	var all []string
	for _, rec := range r.Records {
		if rec.Workload == workload && !slices.Contains(all, rec.Case) {
			all = append(all, rec.Case)
		}
	}
	return all
}

// largest is the case of a workload with the largest number in front, the first one where none has a number.
func (r *report) largest(workload string) string {
	var largest string
	most := -1
	for _, which := range r.cases(workload) {
		number, _, _ := strings.Cut(which, " ")
		n, _ := strconv.Atoi(number)
		if n > most {
			largest, most = which, n
		}
	}
	return largest
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

// find returns the record of a system in a case, nil if there is none.
func (r *report) find(workload, which, system, setting string) *record {
	for _, rec := range r.Records {
		if rec.Workload == workload && rec.Case == which && rec.System == system && rec.Setting == setting {
			return rec
		}
	}
	return nil
}

// has says whether anything was measured of a system in its setting, of a system, or of a setting.
func (r *report) has(what string) bool {
	return slices.ContainsFunc(r.Records, func(rec *record) bool {
		return rec.name() == what || rec.System == what || rec.Setting == what
	})
}

// The file has the report's head, and then one record a line, so that two files of results can be compared.

func (r *report) MarshalJSON() ([]byte, error) {
	type head report
	h, err := json.MarshalIndent((*head)(r), "", "  ")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(bytes.TrimSuffix(h, []byte("\n}")))
	b.WriteString(",\n  \"records\": [")
	for i, rec := range r.Records {
		line, err := json.Marshal(rec)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		b.Write(line)
	}
	b.WriteString("\n  ]\n}")
	return b.Bytes(), nil
}

func (r *report) UnmarshalJSON(data []byte) error {
	type head report
	file := struct {
		*head
		Records []*record `json:"records"`
	}{head: (*head)(r)}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	r.Records = file.Records
	return nil
}

func readReport(path string) (*report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report{Measured: map[string]time.Time{}}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func writeReport(path string, r *report) error {
	data, err := r.MarshalJSON() // json.Marshal would put it on one line
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
