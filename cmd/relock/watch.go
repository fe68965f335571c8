package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
		Long: `Show all locks that are held or waited for, again and again, until Ctrl-C.

At a terminal it is one table that changes; otherwise one table after another, and with --json one line
for each. Each round searches the whole database, as ls does: on a large one use a longer --interval.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			const shortest = 100 * time.Millisecond
			if err := a.conn.own("watch"); err != nil {
				return err
			}
			switch {
			case every < shortest:
				return usage("--interval %s: must be at least %s", every, shortest)
			case count < 0:
				return usage("--count %d: must be 0 (no end) or more", count)
			}
			return a.watch(cmd.Context(), patternOf(args), every, count)
		},
	}
	f := cmd.Flags()
	f.DurationVarP(&every, "interval", "n", 2*time.Second, "time between two looks")
	f.IntVarP(&count, "count", "c", 0, "end after this many looks (default: no end)")
	return cmd
}

// watch looks until a signal comes.
func (a *app) watch(ctx context.Context, pattern string, every time.Duration, count int) error {
	rdb, client, closeAll, err := a.client()
	if err != nil {
		return a.failure(err)
	}
	defer closeAll(closeLimit)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ending := make(chan os.Signal, 1)
	heed(ending, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case <-ending:
			stop()
		case <-ctx.Done():
		}
	}()

	defer func() {
		if ctx.Err() != nil { // a terminal that has hung up takes nothing any more, and the usual end is no failure for that
			a.stdout.err = nil
		}
	}()

	r := &reader{rdb: rdb, client: client, prefix: a.conn.prefix, limit: a.conn.timeout}
	var screen *display
	resized, stopping, conts := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	if !a.json && term.IsTerminal(int(os.Stdout.Fd())) {
		listenScreen(resized, stopping, conts)
		heed(ending, syscall.SIGQUIT) // the Go runtime would leave the screen as it is, without a cursor, and write its own state there
		screen = &display{w: a.stdout}
		screen.open()
		defer screen.close()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := view{every: every, where: a.conn.where()}
	for looks := 1; ; looks++ {
		infos, err := r.look(ctx, pattern)
		if ctx.Err() != nil {
			return nil
		}
		err = a.failure(err)
		if err != nil && looks == 1 {
			return err // a wrong address, most likely; what comes later may pass
		}
		if screen != nil {
			last.update(infos, err, a.conn.redact)
			screen.show(last)
		} else {
			a.printLook(infos, err)
		}
		if err := a.stdout.failure(); err != nil || looks == count {
			return err
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-resized:
				screen.show(last)
			case <-stopping:
				screen.close()
				stopSelf(conts)
				screen.open()
				screen.show(last)
			case <-tick.C:
				waiting = false
			}
		}
	}
}

// look is list that returns as soon as ctx is done. go-redis itself goes on until an answer comes, or its time is over.
func (r *reader) look(ctx context.Context, pattern string) (infos []lockInfo, err error) {
	type result struct {
		infos []lockInfo
		err   error
	}
	done := make(chan result, 1)
	go func() {
		infos, err := r.list(ctx, pattern)
		done <- result{infos, err}
	}()
	select {
	case got := <-done:
		return got.infos, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// printLook is one look where there is no screen.
func (a *app) printLook(infos []lockInfo, err error) {
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		a.report(exit)
	case a.json:
		a.encode(a.stdout, struct {
			Time  time.Time  `json:"time"`
			Locks []lockInfo `json:"locks"`
		}{time.Now(), infos})
	default:
		fmt.Fprintf(a.stdout, "%s  %s\n", time.Now().Format(time.DateTime), counted(infos))
		printTable(a.stdout, infos)
		fmt.Fprintln(a.stdout)
	}
}

func counted(infos []lockInfo) string {
	held, waiters := 0, 0
	for _, info := range infos {
		if info.Held {
			held++
		}
		waiters += info.Waiters
	}
	return fmt.Sprintf("%d held, %d waiting", held, waiters)
}

// view is what stands on a display.
type view struct {
	every   time.Duration
	where   string
	infos   []lockInfo
	at      time.Time
	trouble string // why it is an old one
}

// update is the view after another look.
func (v *view) update(infos []lockInfo, err error, redact func(string) string) {
	if err != nil {
		v.trouble = redact(strings.TrimPrefix(err.Error(), "relock: "))
		return
	}
	v.infos, v.at, v.trouble = infos, time.Now(), ""
}

// display is a terminal that shows one view at a time, beside what was on it before.
type display struct{ w io.Writer }

const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the other buffer, no cursor, no wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func (d *display) open()  { fmt.Fprint(d.w, enterScreen) }
func (d *display) close() { fmt.Fprint(d.w, leaveScreen) }

// show draws over what is there, in one write, so that nothing flickers.
func (d *display) show(v view) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	var table bytes.Buffer
	fmt.Fprintf(&table, "%s  %s  every %s  %s\n", v.at.Format(time.DateTime), counted(v.infos), v.every, v.where)
	if v.trouble != "" {
		fmt.Fprintf(&table, "! %s\n", printable(v.trouble))
	} else {
		fmt.Fprintln(&table)
	}
	printTable(&table, v.infos)
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	if len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… %d more", more))
	}
	var out bytes.Buffer
	out.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(clearLine) // before the text: behind a full line it would take the last character
		out.WriteString(cut(line, width))
	}
	if len(lines) < height {
		out.WriteString("\n" + clearBelow)
	}
	_, _ = d.w.Write(out.Bytes())
}

// cut is the first width characters of a line. Some may be two columns wide: what is too much the terminal cuts, as it does
// not wrap.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}
