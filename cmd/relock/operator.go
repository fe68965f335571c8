package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-relock/relock"
)

// reading runs f with a reader of locks.
func (a *app) reading(ctx context.Context, f func(ctx context.Context, r *reader) error) error {
	const closeLimit = time.Second
	client, closeAll, err := a.open()
	if err != nil {
		return a.failure(err)
	}
	defer closeAll(closeLimit)
	return a.failure(f(ctx, &reader{client}))
}

// print writes v as JSON, or else text.
func (a *app) print(v any, text func()) {
	if a.json {
		a.encode(a.stdout, v)
		return
	}
	text()
}

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List all locks that are held or waited for",
		Long: `List all locks that are held or waited for, on all masters of a cluster.

PATTERN has * for any text, ? for any character, [a-z] for a set, and \x for just x. It must match the
whole name. The whole store is searched, Redis with SCAN, which does not block the server.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				infos, err := r.list(ctx, args...)
				if err == nil {
					a.print(infos, func() { printTable(a.stdout, infos, func(lockInfo, holding, []string) {}) })
				}
				return err
			})
		},
	}
}

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check that the server can keep locks, and that the user has all rights for it",
		Long: `Take a lock of its own through its whole life: the server answers, can keep locks, and the user has all
rights that mutexes need. Check takes a few seconds at most, and leaves nothing. It is for the start of
a service, such as an init container, and not for a probe again and again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				err := r.client.Check(ctx)
				if err == nil {
					a.print(map[string]bool{"ok": true}, func() { fmt.Fprintln(a.stdout, "ok") })
				}
				return err
			})
		},
	}
}

// about makes a command about one lock, which f gets as it was found.
func (a *app) about(use, short, long string, f func(ctx context.Context, info lockInfo) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s: there must be one lock name, not %d", cmd.Name(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				info, err := r.lock(ctx, args[0])
				if err != nil {
					return err
				}
				return f(ctx, info)
			})
		},
	}
}

func (a *app) showCommand() *cobra.Command {
	return a.about("show NAME", "Show who holds a lock and who waits for it", "",
		func(_ context.Context, info lockInfo) error {
			a.print(info, func() { printLock(a.stdout, info) })
			return nil
		})
}

func (a *app) askCommand() *cobra.Command {
	return a.about("ask NAME", "Ask the holder of a lock to give it back",
		`Ask the holder of a lock to give it back, and all readers or permits. Nothing is taken away: a holder
that listens, by Lock.Wanted of the library, leaves where it can, and every other one goes on.
Exit code 1: nobody has the lock.`,
		func(ctx context.Context, info lockInfo) error {
			return a.tellHolders(ctx, info, info.lock.Ask, "asked")
		})
}

func (a *app) unlockCommand() *cobra.Command {
	var force bool
	cmd := a.about("unlock --force NAME", "Take a lock from its holder and grant it to the first waiter",
		`Take a lock from its holder, whoever that is, and grant it to the first waiter. All readers of a
read-write lock lose it, and all permits of a semaphore.

The holder is told by a message, in milliseconds, or else at its next renewal. Until then two may
believe that they have the lock; only the fencing token tells them apart. A command under
"relock run" is stopped. Exit code 1: nobody has the lock.`,
		func(ctx context.Context, info lockInfo) error {
			return a.tellHolders(ctx, info, info.lock.ForceUnlock, "unlocked")
		})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !force {
			return usage("unlock takes the lock from a holder that may be at work: say --force if that is what you want")
		}
		return nil
	}
	cmd.Flags().BoolVar(&force, "force", false, "yes, the holder may be at work")
	return cmd
}

// tellHolders sends a message to the holders of a lock, and says what they were.
func (a *app) tellHolders(ctx context.Context, info lockInfo, message func(context.Context) error, done string) error {
	if err := message(ctx); errors.Is(err, relock.ErrNotHeld) {
		return &exitError{code: codeNotHeld, err: fmt.Errorf("%q: nobody has the lock", info.Name)}
	} else if err != nil {
		return err
	}
	info.Queue = nil
	a.print(struct {
		lockInfo
		Done string `json:"done"`
	}{info, done}, func() { fmt.Fprintf(a.stdout, "%s: %s %s\n", printable(info.Name), done, info.holders()) })
	return nil
}

// printLock prints the text of show.
func printLock(w io.Writer, info lockInfo) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(what, value string) { fmt.Fprintf(tab, "%s\t%s\n", what, value) }
	line("name", printable(info.Name))
	if info.Kind != "" {
		line("kind", info.Kind)
	}
	for _, h := range info.Holders {
		line("holder", fmt.Sprintf("%s %s, lease %s", printable(h.Holder), h.Mode, span(h.LeaseMs)))
	}
	if !info.Held {
		line("holder", "nobody")
	}
	if info.Count > 0 {
		line("count", fmt.Sprint(info.Count))
	}
	if info.Token != 0 {
		line("token", fmt.Sprint(info.Token))
	}
	line("waiters", fmt.Sprint(info.Waiters))
	for i, q := range info.Queue {
		line("", fmt.Sprintf("%d. %s %s for %s", i+1, printable(q.Holder), q.Mode, span(q.WaitMs)))
	}
	_ = tab.Flush()
}

// printTable prints the text of ls and watch: a line for each holder, and the waiters in the first
// line of a lock. The widest column is the last, as a terminal of 80 columns cuts it off. edit may
// change the cells of a line.
func printTable(w io.Writer, infos []lockInfo, edit func(info lockInfo, h holding, cells []string)) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "NAME\tMODE\tCOUNT\tLEASE\tWAITERS\tLONGEST WAIT\tHOLDER")
	for _, info := range infos {
		count, waiters, wait := "-", fmt.Sprint(info.Waiters), span(info.WaitMs)
		if info.Count > 0 {
			count = fmt.Sprint(info.Count)
		}
		if !info.Held {
			info.Holders = []holding{{Holder: "-", Mode: "-"}}
		}
		for _, h := range info.Holders {
			cells := []string{printable(info.Name), string(h.Mode), count, span(h.LeaseMs), waiters, wait, printable(h.Holder)}
			edit(info, h, cells)
			fmt.Fprintln(tab, strings.Join(cells, "\t"))
			count, waiters, wait = "-", "-", "-"
		}
	}
	_ = tab.Flush()
}

// span returns a number of milliseconds as people read it.
func span(ms *int64) string {
	if ms == nil {
		return "-"
	}
	d := time.Duration(*ms) * time.Millisecond
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
