// Command bench measures relock against other locks and against the least cost of a lock on Redis.
// The command starts a redis-server of its own.
//
//	go run .              everything, half an hour or so; writes results, page and charts
//	go run . -short       everything in small, some minutes; writes nothing
//	go run . -run pair    only the workloads whose name begins so
//	go run . -render      measures nothing; writes the page and the charts from all runs in results
//
// Each run is a file of its own. The page shows the median of all runs and their range.
//
// Ratios within a run count. The systems take turns in every round, in a new order each time, so
// that all of them meet the same moods of the machine. Two workloads differ: in held each system
// has a single turn, and in crash all systems wait at the same time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

func main() {
	if runChild() {
		return
	}
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	short, list, render        bool
	run, commit, results, docs string
}

func parse() (options, error) {
	var o options
	flag.BoolVar(&o.short, "short", false, "small sizes and few rounds; writes nothing")
	flag.StringVar(&o.run, "run", "", "only the workloads whose name begins with this regular expression")
	flag.BoolVar(&o.list, "list", false, "list the workloads")
	flag.BoolVar(&o.render, "render", false, "measure nothing; write page and charts from all results")
	flag.StringVar(&o.commit, "commit", gitCommit(), "the commit that is measured")
	flag.StringVar(&o.results, "results", "results", "the directory of results")
	flag.StringVar(&o.docs, "docs", filepath.Join("..", "docs"), "the directory of BENCHMARKS.md and the charts")
	flag.Parse()
	if flag.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	return o, nil
}

func command() error {
	o, err := parse()
	switch {
	case err != nil:
		return err
	case o.list:
		for _, w := range workloads {
			fmt.Printf("%-13s %s\n", w.name, w.title)
		}
		return nil
	case o.render:
		runs, err := readRuns(o.results)
		if err != nil {
			return err
		}
		return writePage(o.docs, merge(runs))
	default:
		return o.measure()
	}
}

// measure runs the workloads, and writes the page of all runs.
func (o options) measure() error {
	which, err := regexp.Compile("^(?:" + o.run + ")")
	if err != nil {
		return err
	}
	s := full
	if o.short {
		s = small
	}
	start := time.Now()
	r, err := measure(s, which, o.commit)
	if err != nil {
		return err
	}
	logf("measured in %s", time.Since(start).Round(time.Second))
	if o.short {
		return nil
	}
	path, err := r.write(o.results)
	if err != nil {
		return err
	}
	logf("written to %s", path)
	runs, err := readRuns(o.results)
	if err != nil {
		return err
	}
	return writePage(o.docs, merge(runs))
}

// measure runs the workloads on a new server, and prints the tables of each at once.
func measure(s sizes, which *regexp.Regexp, commit string) (r *report, err error) {
	t := &harness{}
	defer func() { err = errors.Join(err, t.end(recover())) }()
	e := newEnv(t)
	r = newReport(e, s, commit)
	for _, w := range workloads {
		if !which.MatchString(w.name) {
			continue
		}
		logf("%-13s %s", w.name, w.title)
		err := w.run(&bench{env: e, sizes: s, report: r, workload: w.name})
		r.finish(w.name)
		printWorkload(os.Stdout, merge([]*report{r}), w.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return r, nil
}
