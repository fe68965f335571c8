// Command bench measures relock against other locks and against the least cost of a lock on Redis.
// The command starts a redis-server of its own.
//
//	go run .              everything, half an hour or so; writes results, tables and two figures of the README
//	go run . -short       everything in small, some minutes; writes nothing
//	go run . -run pair    only the workloads whose name begins so; writes nothing
//	go run . -render      measures nothing; writes tables and figures from the newest result
//
// Ratios within a run count. The systems take turns in every round, in a new order each time, so
// that all of them meet the same moods of the machine. In held each system has a single turn.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
)

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// results is the directory of the results and their tables. The readme has two figures.
const results, readme = "results", "../../README.md"

func command() error {
	list := flag.Bool("list", false, "list the workloads")
	render := flag.Bool("render", false, "measure nothing; write the tables from the newest result")
	short := flag.Bool("short", false, "small sizes and few rounds; writes nothing")
	run := flag.String("run", "", "only the workloads whose name begins with this regular expression; writes nothing")
	flag.Parse()
	which, err := regexp.Compile("^(?:" + *run + ")")
	switch {
	case err != nil:
		return err
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case *list:
		for _, w := range workloads {
			fmt.Printf("%-15s %s\n", w.name, w.title)
		}
		return nil
	case *render:
		r, err := newest(results)
		if err != nil {
			return err
		}
		return r.render(results, readme)
	case *short:
		_, err := measure(small, which)
		return err
	default:
		r, err := measure(full, which)
		if err != nil || *run != "" {
			return err
		}
		return errors.Join(r.write(results), r.render(results, readme))
	}
}

// measure runs the workloads on a new server, and prints the tables of each at once.
func measure(s sizes, which *regexp.Regexp) (r *report, err error) {
	t := &harness{}
	defer func() { err = errors.Join(err, t.end(recover())) }()
	start := time.Now()
	e := newEnv(t)
	r = newReport(e, s, gitCommit())
	for _, w := range workloads {
		if !which.MatchString(w.name) {
			continue
		}
		logf("%-15s %s", w.name, w.title)
		err := w.measure(e, s, r)
		for _, t := range tables {
			if t.workload == w.name {
				t.section(os.Stdout, r)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	logf("measured in %s", time.Since(start).Round(time.Second))
	return r, nil
}
