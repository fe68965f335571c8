package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func (a *app) watchCommand() *cobra.Command {
	var every time.Duration
	var count int
	cmd := &cobra.Command{
		Use:   "watch [PATTERN]",
		Short: "Show all locks that are held or waited for, again and again",
		Long: `Show all locks that are held or waited for, again and again, until Ctrl-C: the longest wait first, with
a + behind a lock that is new since the last look, and a * behind one with other holders or waiters.

At a terminal it is one table that changes; otherwise one table after another, and with --json one line
for each. Each round searches the whole database, as ls does: on a large one use a longer --interval.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			const shortest = 100 * time.Millisecond
			switch {
			case every < shortest:
				return usage("--interval %s: must be at least %s", every, shortest)
			case count < 0:
				return usage("--count %d: must be 0 (no end) or more", count)
			}
			return a.reading(cmd.Context(), func(ctx context.Context, r *reader) error {
				return a.watch(ctx, r, args, every, count)
			})
		},
	}
	f := cmd.Flags()
	f.DurationVarP(&every, "interval", "n", 2*time.Second, "time between two looks")
	f.IntVarP(&count, "count", "c", 0, "end after this many looks (default: no end)")
	return cmd
}

// watch looks again and again. A signal ends the program at once, as watch leaves nothing.
func (a *app) watch(ctx context.Context, r *reader, pattern []string, every time.Duration, count int) error {
	ending := make(chan os.Signal, 1)
	heed(ending, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ending
		os.Exit(0)
	}()
	isScreen := !a.json && term.IsTerminal(int(os.Stdout.Fd()))
	tick := time.NewTicker(every)
	defer tick.Stop()
	seen := new(history)
	var infos []lockInfo
	for looks := 1; ; looks++ {
		now, err := r.list(ctx, pattern...)
		trouble := ""
		if err == nil {
			infos = now
		} else {
			err = a.failure(err)
			if looks == 1 {
				return err // most likely a wrong address; a later failure may pass
			}
			trouble = "! " + printable(a.conn.redact(strings.TrimPrefix(err.Error(), "relock: ")))
		}
		held, waiting := 0, 0
		for _, info := range infos {
			held, waiting = held+min(1, len(info.Holders)), waiting+info.Waiters
		}
		head := fmt.Sprintf("%s  %d held, %d waiting", time.Now().Format(time.DateTime), held, waiting)
		var exit *exitError
		switch {
		case isScreen:
			a.draw(fmt.Sprintf("%s  every %s  %s\n%s\n%s", head, every, a.conn.where, trouble, seen.table(infos)))
		case errors.As(err, &exit):
			a.report(exit)
		case a.json:
			a.encode(a.stdout, struct {
				Time  time.Time  `json:"time"`
				Locks []lockInfo `json:"locks"`
			}{time.Now(), infos})
		default:
			fmt.Fprintf(a.stdout, "%s\n%s\n", head, seen.table(infos))
		}
		if err := a.stdout.Flush(); err != nil {
			return &exitError{code: codeInternal, err: err}
		} else if looks == count {
			return nil
		}
		<-tick.C
	}
}

// draw writes lines over those of the last time. A single write keeps the display from flickering,
// and leaves the terminal as it was, so that any signal may end or stop relock.
func (a *app) draw(text string) {
	const (
		home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
		noWrap, wrap                = "\x1b[?7l", "\x1b[?7h" // for characters of two columns
	)
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width <= 0 || height <= 1 {
		width, height = 80, 24
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := height - 1; len(lines) > most { // the last line is for the cursor
		lines = append(lines[:most-1], fmt.Sprintf("… %d more", len(lines)-most+1))
	}
	var out bytes.Buffer
	out.WriteString(noWrap + home)
	for _, line := range lines {
		if utf8.RuneCountInString(line) > width {
			line = string([]rune(line)[:width])
		}
		out.WriteString(clearLine + line + "\n") // behind a full line the sequence would clear the last character
	}
	out.WriteString(clearBelow + wrap)
	_, _ = a.stdout.Write(out.Bytes())
}

// history is what watch has seen at the last look.
type history struct {
	before  map[string]string // the holders and waiters of each lock; nil: there was no look
	longest map[string]int64  // the longest lease of each holder
}

// table returns the text of a look, the longest wait first.
func (h *history) table(infos []lockInfo) string {
	infos = slices.Clone(infos)
	slices.SortStableFunc(infos, func(a, b lockInfo) int { return cmp.Compare(b.wait(), a.wait()) })
	now, longest := map[string]string{}, map[string]int64{}
	var b strings.Builder
	printTable(&b, infos, func(info lockInfo, o holding, cells []string) {
		before, isOld := h.before[info.Name]
		now[info.Name] = fmt.Sprint(info.holders(), info.Waiters)
		switch {
		case h.before == nil:
		case !isOld:
			cells[0] += " +"
		case before != now[info.Name]:
			cells[0] += " *"
		}
		if o.LeaseMs != nil {
			const width = 8
			key := info.Name + o.Holder
			longest[key] = max(h.longest[key], *o.LeaseMs, 1)
			full := int(width * *o.LeaseMs / longest[key])
			cells[3] = strings.Repeat("█", full) + strings.Repeat("░", width-full) + " " + cells[3]
		}
		cells[6] = clientID.ReplaceAllString(cells[6], "$1")
	})
	h.before, h.longest = now, longest
	return b.String()
}

// wait returns the longest wait for a lock, -1 if nobody waits.
func (i lockInfo) wait() int64 {
	if i.WaitMs == nil {
		return -1
	}
	return *i.WaitMs
}

// clientID matches the random part of a holder, of which 8 digits are enough for people.
var clientID = regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
