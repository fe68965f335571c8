package main

import (
	"fmt"
	"math"
	"slices"
)

// statistic is a figure over several runs: the median, the lowest and the highest.
type statistic struct{ median, low, high float64 }

// over makes a statistic of a figure of each run. A run without the figure, NaN, does not count.
func over(values []float64) statistic {
	values = slices.DeleteFunc(values, math.IsNaN)
	return statistic{quantile(values, 0.5), quantile(values, 0), quantile(values, 1)}
}

// String prints the range too, if the runs differ.
func (s statistic) String() string {
	low, high := figure(s.low), figure(s.high)
	if low == high {
		return figure(s.median)
	}
	return fmt.Sprintf("%s (%s–%s)", figure(s.median), low, high)
}

// merged is several runs as a report.
type merged struct {
	report

	runs []*report
}

// merge makes a report whose figures are medians over the runs. The head is the last run's.
func merge(runs []*report) *merged {
	m := &merged{report: *runs[len(runs)-1], runs: runs}
	m.Records = nil
	for _, run := range runs {
		for _, rec := range run.Records {
			sum := m.find(rec.Workload, rec.Case, rec.System, rec.Setting)
			if sum == nil {
				sum = &record{Workload: rec.Workload, Case: rec.Case, System: rec.System, Setting: rec.Setting}
				sum.Figures = map[string]float64{}
				m.Records = append(m.Records, sum)
			}
			sum.Rounds += rec.Rounds
			sum.Failed += rec.Failed
			sum.Broken += rec.Broken
			if rec.Note != "" {
				sum.Note = rec.Note
			}
			for metric := range rec.Figures {
				sum.Figures[metric] = m.over(sum, metric).median
			}
		}
	}
	return m
}

// over returns the statistic of a metric of a record.
func (m *merged) over(rec *record, metric string) statistic {
	var values []float64
	for _, run := range m.runs {
		values = append(values, run.find(rec.Workload, rec.Case, rec.System, rec.Setting).median(metric))
	}
	return over(values)
}

// measured returns the runs with figures of a workload.
func (m *merged) measured(workload string) []*report {
	return slices.DeleteFunc(slices.Clone(m.runs), func(r *report) bool { return len(r.cases(workload)) == 0 })
}
