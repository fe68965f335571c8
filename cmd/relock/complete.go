package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completions returns a function that completes the names of locks for a shell. The names are those
// of locks that are there now. Where they cannot be found in a moment there are none, as nobody
// sees an error.
func (a *app) completions(several bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		const moment = time.Second
		switch {
		case slices.Contains(os.Args, "--"): // cobra does not know: ArgsLenAtDash is wrong in a completion
			return nil, cobra.ShellCompDirectiveDefault // files, for the command of run
		case len(args) > 0 && !several, a.conn.own(cmd.Name()) != nil:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), moment)
		defer cancel()
		a.conn.timeout = min(a.conn.timeout, moment)
		_ = a.reading(ctx, func(ctx context.Context, r *reader) error {
			found, err := r.client.List(ctx, func(name string) bool {
				// A completion is a line, with a description behind a tab.
				return printable(name) == name && strings.HasPrefix(name, begun) && !slices.Contains(args, name)
			})
			for _, lock := range found {
				names = append(names, lock.Name)
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
