package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-relock/relock"
)

// reading runs f with a reader of locks.
func (a *app) reading(ctx context.Context, f func(ctx context.Context, r *reader) error) error {
	rdb, client, closeAll, err := a.client()
	if err != nil {
		return a.failure(err)
	}
	defer closeAll(closeLimit)
	return a.failure(f(ctx, &reader{rdb: rdb, client: client, prefix: a.conn.prefix, limit: a.conn.timeout}))
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show who holds a lock and who waits for it",
		Args:  oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.conn.own("show"); err != nil {
				return err
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				info, err := r.show(ctx, args[0])
				if err != nil {
					return err
				}
				if a.json {
					a.encode(a.stdout, info)
				} else {
					printLock(a.stdout, info)
				}
				return nil
			})
		},
	}
}

// show reads one lock with its queue.
func (r *reader) show(ctx context.Context, name string) (lockInfo, error) {
	if err := r.client.NewLock(name).Err(); err != nil {
		return lockInfo{}, err
	}
	node, err := r.node(ctx, keyOf(r.prefix, name))
	if err != nil {
		return lockInfo{}, err
	}
	ahead, err := r.clockOf(ctx, node)
	if err != nil {
		return lockInfo{}, err
	}
	return r.lock(ctx, name, time.Now().Add(ahead), true)
}

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List all locks that are held or waited for",
		Long: `List all locks that are held or waited for, on all masters of a cluster.

PATTERN is one of Redis: * any text, ? any byte, [a-z] a set, \x just x. It must match the whole name.
The whole database is searched with SCAN, which does not block the server.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.conn.own("ls"); err != nil {
				return err
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				infos, err := r.list(ctx, patternOf(args))
				if err != nil {
					return err
				}
				if a.json {
					a.encode(a.stdout, infos)
				} else {
					printTable(a.stdout, infos)
				}
				return nil
			})
		},
	}
}

// patternOf returns the optional argument, empty for all locks.
func patternOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (a *app) unlockCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "unlock --force NAME",
		Short: "Take a lock from its holder and grant it to the first waiter",
		Long: `Take a lock from its holder, whoever that is, and grant it to the first waiter.

The holder is told by a message, in milliseconds, or else at its next renewal. Until then two may
believe that they have the lock; only the fencing token tells them apart. A command under
"relock run" is stopped. Exit code 1: nobody has the lock.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return usage("unlock takes the lock from a holder that may be at work: say --force if that is what you want")
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				lock := r.client.NewLock(args[0])
				before, err := r.state(ctx, lock)
				if err != nil {
					return err
				}
				if err := r.ask(ctx, lock.ForceUnlock); err != nil {
					if errors.Is(err, relock.ErrNotHeld) {
						return &exitError{code: codeNotHeld, err: fmt.Errorf("%q: nobody has the lock", args[0])}
					}
					return err
				}
				if a.json {
					waiters := &before.Waiters
					if a.conn.redisson != "" { // not known there
						waiters = nil
					}
					a.encode(a.stdout, struct {
						Name     string `json:"name"`
						NameB64  string `json:"name_base64,omitempty"`
						Unlocked bool   `json:"unlocked"`
						Holder   string `json:"holder,omitempty"`
						Token    int64  `json:"token,omitempty"`
						Waiters  *int   `json:"waiters,omitempty"`
					}{args[0], base64Of(args[0]), true, before.Holder.String(), before.Token, waiters})
					return nil
				}
				fmt.Fprintf(a.stdout, "%s: taken from %s\n", printable(args[0]), printable(before.Holder.String()))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "yes, the holder may be at work")
	return cmd
}

// printLock prints the text of show.
func printLock(w io.Writer, info lockInfo) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(what, value string) { fmt.Fprintf(tab, "%s\t%s\n", what, value) }
	line("name", printable(info.Name))
	if info.Held {
		line("holder", printable(info.Holder))
		line("count", fmt.Sprint(info.Count))
		line("lease", leaseText(info))
	} else {
		line("holder", "nobody")
	}
	if info.Token != 0 {
		line("token", fmt.Sprint(info.Token))
	}
	line("waiters", fmt.Sprint(info.Waiters))
	for i, q := range info.Queue {
		line("", fmt.Sprintf("%d. %s for %s", i+1, printable(q.Holder), span(&q.WaitMs)))
	}
	_ = tab.Flush()
}

func leaseText(info lockInfo) string {
	if info.LeaseMs == nil {
		return "without end"
	}
	return "ends in " + span(info.LeaseMs)
}

// printTable prints the text of ls and watch. The widest column is the last, as a terminal of 80
// columns cuts it off.
func printTable(w io.Writer, infos []lockInfo) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "NAME\tCOUNT\tLEASE\tWAITERS\tLONGEST WAIT\tHOLDER")
	for _, info := range infos {
		holder, count, lease := "-", "-", "-"
		if info.Held {
			holder, count, lease = printable(info.Holder), fmt.Sprint(info.Count), span(info.LeaseMs)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%d\t%s\t%s\n", printable(info.Name), count, lease, info.Waiters, span(info.WaitMs), holder)
	}
	_ = tab.Flush()
}

// span returns a number of milliseconds in two units at most.
func span(ms *int64) string {
	if ms == nil {
		return "-"
	}
	d := time.Duration(*ms) * time.Millisecond
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}
