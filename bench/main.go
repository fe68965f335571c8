// Command bench measures relock against other locks and against the least that a lock on Redis can cost, on a real
// redis-server that it starts by itself:
//
//	go run .              everything, half an hour or so; writes results/results.json, ../docs/BENCHMARKS.md and the charts
//	go run . -short       everything in small, some minutes, to see that it works; writes nothing
//	go run . -run pair    only the workloads whose name matches; the others keep what was measured before
//	go run . -bars        only says what became of the bars in results/results.json
//	go run . -render      only writes the page and the charts anew from it
//
// What counts is ratios within one run: all systems of a workload take turns in every round, in a new order each time, so
// that whatever else the machine does hits them alike. (But for held, where each has one turn, and crash, where all wait at
// the same time.)
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

func command() error {
	var (
		short  = flag.Bool("short", false, "small sizes and few rounds; writes nothing unless -write is given")
		write  = flag.Bool("write", true, "write the results, the page and the charts; without it the tables are only printed")
		run    = flag.String("run", "", "only the workloads whose name matches this regular expression")
		list   = flag.Bool("list", false, "list the workloads")
		render = flag.Bool("render", false, "measure nothing; write the page and the charts from the results that are there")
		bars   = flag.Bool("bars", false, "measure nothing; say what became of the bars in the results that are there")
		strict = flag.Bool("strict", false, "fail if a bar is missed")
		out    = flag.String("out", filepath.Join("results", "results.json"), "the file of results")
		docs   = flag.String("docs", filepath.Join("..", "docs"), "the directory of BENCHMARKS.md and the charts")
	)
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if *short && !given["write"] {
		*write = false
	}
	which, err := regexp.Compile(*run)
	if err != nil {
		return err
	}

	old, err := readReport(*out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if *list {
		for _, w := range workloads {
			fmt.Printf("%-10s %s\n", w.name, w.title)
		}
		return nil
	}
	r := old
	if *bars || *render {
		if old == nil {
			return fmt.Errorf("there is no %s to read", *out)
		}
	} else {
		s := full
		if *short {
			s = small
		}
		start := time.Now()
		if r, err = measure(s, which); err != nil {
			return err
		}
		logf("measured in %s", time.Since(start).Round(time.Second))
		if *write {
			if old != nil {
				r.keep(old)
			}
			if err := writeReport(*out, r); err != nil {
				return err
			}
		}
	}
	missed := printBars(os.Stdout, r)
	if *write && !*bars {
		if err := writePage(*docs, r); err != nil {
			return err
		}
	}
	if *strict && missed > 0 {
		return fmt.Errorf("%d bars are missed", missed)
	}
	return nil
}

// measure runs the workloads on a server of their own, and prints the tables of each.
func measure(s sizes, which *regexp.Regexp) (r *report, err error) {
	t := &harness{}
	defer func() { err = errors.Join(err, t.end(recover())) }()
	e := newEnv(t)
	r = newReport(e, s)
	for _, w := range workloads {
		if !which.MatchString(w.name) {
			continue
		}
		logf("%-10s %s", w.name, w.title)
		b := &bench{env: e, sizes: s, report: r, workload: w.name}
		err := w.run(b)
		printWorkload(os.Stdout, r, w.name) // at once, as the rest takes long, and may fail
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.Measured[w.name] = time.Now().UTC().Truncate(time.Second)
	}
	return r, nil
}
