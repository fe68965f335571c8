package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
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
	return a.failure(f(ctx, a.reader(rdb, client)))
}

func (a *app) reader(rdb redis.UniversalClient, client *relock.Client) *reader {
	return &reader{
		rdb: rdb, client: client, prefix: a.conn.prefix, limit: a.conn.timeout, mutexesOnly: a.conn.mutexesOnly() != "",
	}
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show who holds a lock and who waits for it",
		Args:              oneName,
		ValidArgsFunction: a.completions(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.conn.own("show"); err != nil {
				return err
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				info, err := r.lock(ctx, args[0], kindMutex, true)
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

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [PATTERN]",
		Short: "List all locks that are held or waited for",
		Long: `List all locks that are held or waited for, on all masters of a cluster.

PATTERN is one of Redis: * any text, ? any byte, [a-z] a set, \x just x. It must match the whole name.
The whole store is searched, Redis with SCAN, which does not block the server.`,
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
		Long: `Take a lock from its holder, whoever that is, and grant it to the first waiter. All readers of a
read-write lock lose it, and all permits of a semaphore.

The holder is told by a message, in milliseconds, or else at its next renewal. Until then two may
believe that they have the lock; only the fencing token tells them apart. A command under
"relock run" is stopped. Exit code 1: nobody has the lock.`,
		Args:              oneName,
		ValidArgsFunction: a.completions(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return usage("unlock takes the lock from a holder that may be at work: say --force if that is what you want")
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				return a.forceUnlock(ctx, r, args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "yes, the holder may be at work")
	return cmd
}

func (a *app) askCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ask NAME",
		Short: "Ask the holder of a lock to give it back",
		Long: `Ask the holder of a lock to give it back, and all readers or permits. Nothing is taken away: a holder
that listens, by Lock.Wanted of the library, leaves where it can, and every other one goes on.
Exit code 1: nobody has the lock.`,
		Args:              oneName,
		ValidArgsFunction: a.completions(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				info, err := r.lock(ctx, args[0], kindMutex, false)
				if err != nil {
					return err
				}
				if err := r.ask(ctx, info.lock.Ask); err != nil {
					return notHeld(args[0], err)
				}
				if a.json {
					a.encode(a.stdout, struct {
						Name    string  `json:"name"`
						NameB64 string  `json:"name_base64,omitempty"`
						Asked   bool    `json:"asked"`
						Holder  string  `json:"holder"`
						Others  []other `json:"others,omitempty"`
					}{args[0], info.NameB64, true, info.Holder, info.Others})
					return nil
				}
				fmt.Fprintf(a.stdout, "%s: asked %s\n", printable(args[0]), printable(strings.Join(info.holders(), ", ")))
				return nil
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
				if err := r.client.Check(ctx); err != nil {
					return err
				}
				if a.json {
					a.encode(a.stdout, map[string]bool{"ok": true})
				} else {
					fmt.Fprintln(a.stdout, "ok")
				}
				return nil
			})
		},
	}
}

// notHeld gives an error of a command for a holder its exit code.
func notHeld(name string, err error) error {
	if errors.Is(err, relock.ErrNotHeld) {
		return &exitError{code: codeNotHeld, err: fmt.Errorf("%q: nobody has the lock", name)}
	}
	return err
}

// forceUnlock takes a lock of any kind from all of its holders.
func (a *app) forceUnlock(ctx context.Context, r *reader, name string) error {
	info, err := r.lock(ctx, name, kindMutex, false)
	if err != nil {
		return err
	}
	if err := r.ask(ctx, info.lock.ForceUnlock); err != nil {
		return notHeld(name, err)
	}
	if !a.json {
		fmt.Fprintf(a.stdout, "%s: taken from %s\n", printable(name), printable(strings.Join(info.holders(), ", ")))
		return nil
	}
	waiters := &info.Waiters
	if a.conn.redisson != "" { // not known there
		waiters = nil
	}
	a.encode(a.stdout, struct {
		Name     string      `json:"name"`
		NameB64  string      `json:"name_base64,omitempty"`
		Kind     kind        `json:"kind,omitempty"`
		Unlocked bool        `json:"unlocked"`
		Holder   string      `json:"holder,omitempty"`
		Mode     relock.Mode `json:"mode,omitempty"`
		Others   []other     `json:"others,omitempty"`
		Token    int64       `json:"token,omitempty"`
		Waiters  *int        `json:"waiters,omitempty"`
	}{name, info.NameB64, info.Kind, true, info.Holder, info.Mode, info.Others, info.Token, waiters})
	return nil
}

// printLock prints the text of show.
func printLock(w io.Writer, info lockInfo) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(what, value string) { fmt.Fprintf(tab, "%s\t%s\n", what, value) }
	line("name", printable(info.Name))
	if info.Kind != "" {
		line("kind", info.Kind.String())
	}
	if info.Held {
		line("holder", printable(info.Holder))
		line("mode", string(info.Mode))
		if info.Count > 0 {
			line("count", fmt.Sprint(info.Count))
		}
		line("lease", leaseText(info.LeaseMs))
	} else {
		line("holder", "nobody")
	}
	for i, o := range info.Others {
		what := ""
		if i == 0 {
			what = "others"
		}
		line(what, fmt.Sprintf("%s %s, lease %s", printable(o.Holder), o.Mode, leaseText(&o.LeaseMs)))
	}
	if info.Token != 0 {
		line("token", fmt.Sprint(info.Token))
	}
	line("waiters", fmt.Sprint(info.Waiters))
	for i, q := range info.Queue {
		line("", fmt.Sprintf("%d. %s", i+1, queueText(info.Kind, q)))
	}
	_ = tab.Flush()
}

// queueText returns the text of one place in a queue. Those of a mutex are all alike.
func queueText(k kind, w waiter) string {
	text := printable(w.Holder)
	if k != kindMutex {
		text += " " + string(w.Mode)
	}
	if w.WaitMs == nil {
		return text + ", before all others"
	}
	return text + " for " + span(w.WaitMs)
}

func leaseText(ms *int64) string {
	if ms == nil {
		return "without end"
	}
	return "ends in " + span(ms)
}

// printTable prints the text of ls and watch: a line for each holder, and the waiters in the first
// line of a lock. The widest column is the last, as a terminal of 80 columns cuts it off.
func printTable(w io.Writer, infos []lockInfo) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "NAME\tMODE\tCOUNT\tLEASE\tWAITERS\tLONGEST WAIT\tHOLDER")
	for _, info := range infos {
		name, holder, mode, count, lease := printable(info.Name), "-", "-", "-", "-"
		if info.Held {
			holder, mode, lease = printable(info.Holder), string(info.Mode), span(info.LeaseMs)
		}
		if info.Count > 0 {
			count = fmt.Sprint(info.Count)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", name, mode, count, lease, info.Waiters, span(info.WaitMs), holder)
		for _, o := range info.Others {
			fmt.Fprintf(tab, "%s\t%s\t-\t%s\t-\t-\t%s\n", name, o.Mode, span(&o.LeaseMs), printable(o.Holder))
		}
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
