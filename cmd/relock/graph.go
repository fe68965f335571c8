package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-relock/relock"
)

// edge is one wait: who waits for which lock, and for whom.
type edge struct {
	Name    string      `json:"name"`
	NameB64 string      `json:"name_base64,omitempty"`
	Waiter  string      `json:"waiter"`
	Mode    relock.Mode `json:"mode"`
	WaitMs  *int64      `json:"wait_ms,omitempty"`
	Holders []string    `json:"holders"`
}

func (a *app) graphCommand() *cobra.Command {
	var dot bool
	cmd := &cobra.Command{
		Use:   "graph [PATTERN]",
		Short: "Show who waits for whom",
		Long: `Show who waits for whom: a line for each wait, and each circle of waits. A holder has one name in all
locks that it has inside of each other, so a line leads on to the next one. PATTERN is that of ls.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.conn.ranked("graph"); err != nil {
				return err
			}
			if dot && a.json {
				return usage("--dot and --json are two forms of output: leave one of them out")
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				waits, err := r.waits(ctx, patternOf(args))
				switch {
				case err != nil:
					return err
				case a.json:
					a.encode(a.stdout, waits)
				case dot:
					printDot(a.stdout, waits)
				default:
					printWaits(a.stdout, waits)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&dot, "dot", false, "print the graph for Graphviz, whose command dot draws it")
	return cmd
}

// waits returns all waits for the locks of a pattern, by lock and turn.
func (r *reader) waits(ctx context.Context, pattern string) ([]edge, error) {
	infos, err := r.list(ctx, pattern)
	if err != nil {
		return nil, err
	}
	waits := []edge{}
	for _, info := range infos {
		if info.Waiters == 0 {
			continue
		}
		if info, err = r.lock(ctx, info.Name, info.Kind, true); err != nil {
			return nil, err
		}
		for _, w := range info.Queue {
			waits = append(waits, edge{info.Name, info.NameB64, w.Holder, w.Mode, w.WaitMs, info.holders()})
		}
	}
	return waits, nil
}

func printWaits(w io.Writer, waits []edge) {
	for _, e := range waits {
		holders := cmp.Or(strings.Join(e.Holders, ", "), "nobody, just now")
		fmt.Fprintf(w, "%s waits %s for %s of %s\n", printable(e.Waiter), span(e.WaitMs), printable(e.Name), printable(holders))
	}
	for _, c := range circles(waits) {
		fmt.Fprintf(w, "a circle: %s\n", printable(strings.Join(append(c, c[0]), " waits for ")))
	}
}

func printDot(w io.Writer, waits []edge) {
	fmt.Fprintln(w, "digraph locks {")
	for _, e := range waits {
		for _, holder := range e.Holders {
			fmt.Fprintf(w, "  %s -> %s [label=%s];\n", dotted(e.Waiter), dotted(holder), dotted(e.Name))
		}
	}
	fmt.Fprintln(w, "}")
}

// dotted returns a text as DOT has it.
func dotted(s string) string { return strings.ReplaceAll(strconv.Quote(printable(s)), `\\`, `\`) }

// circles returns the circles of waits, each once.
func circles(waits []edge) (all [][]string) {
	waitsFor := map[string][]string{}
	for _, e := range waits {
		waitsFor[e.Waiter] = append(waitsFor[e.Waiter], e.Holders...)
	}
	seen := map[string]bool{}
	var follow func(path []string, who string)
	follow = func(path []string, who string) {
		if at := slices.Index(path, who); at >= 0 {
			all = append(all, slices.Clone(path[at:]))
			return
		}
		if seen[who] {
			return
		}
		seen[who] = true
		for _, next := range waitsFor[who] {
			follow(append(path, who), next)
		}
	}
	for _, e := range waits {
		follow(nil, e.Waiter)
	}
	return all
}
