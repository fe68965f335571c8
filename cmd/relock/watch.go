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

// watch looks again and again, until a signal comes.
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
		if ctx.Err() != nil { // after the usual end a terminal that has hung up is no failure
			a.stdout.err = nil
		}
	}()

	w := &watcher{
		app: a, pattern: pattern, count: count, last: view{every: every, where: a.conn.where()},
		reader:  a.reader(rdb, client),
		tick:    time.NewTicker(every),
		resized: make(chan os.Signal, 1), stopping: make(chan os.Signal, 1), conts: make(chan os.Signal, 1),
	}
	defer w.tick.Stop()
	if !a.json && term.IsTerminal(int(os.Stdout.Fd())) {
		listenScreen(w.resized, w.stopping, w.conts)
		heed(ending, syscall.SIGQUIT) // the Go runtime would leave the screen without a cursor
		w.screen = &display{w: a.stdout}
		w.screen.open()
		defer w.screen.close()
	}
	return w.run(ctx)
}

// watcher is one run of watch.
type watcher struct {
	*app
	reader  *reader
	pattern string
	count   int // of looks; 0: no end
	tick    *time.Ticker
	screen  *display // nil: not at a terminal
	last    view

	resized, stopping, conts chan os.Signal // see listenScreen
}

func (w *watcher) run(ctx context.Context) error {
	for looks := 1; ; looks++ {
		infos, err := w.reader.look(ctx, w.pattern)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // whoever ends watch sees no failure in that
		}
		err = w.failure(err)
		if err != nil && looks == 1 {
			return err // most likely a wrong address; a later failure may pass
		}
		if w.screen != nil {
			w.last.update(infos, err, w.conn.redact)
			w.screen.show(w.last)
		} else {
			w.printLook(infos, err)
		}
		if err := w.stdout.failure(); err != nil || looks == w.count {
			return err
		}
		if !w.wait(ctx) {
			return nil
		}
	}
}

// wait waits for the time of the next look, and returns false at the end of ctx.
func (w *watcher) wait(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.resized:
			w.screen.show(w.last)
		case <-w.stopping:
			w.screen.close()
			stopSelf(w.conts)
			w.screen.open()
			w.screen.show(w.last)
		case <-w.tick.C:
			return true
		}
	}
}

// look is list that returns as soon as ctx is done. go-redis goes on until an answer comes, or
// until the timeout.
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

// printLook prints one look without a screen.
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

// view is the content of a display.
type view struct {
	every   time.Duration
	where   string
	infos   []lockInfo
	at      time.Time
	trouble string // why the last look failed
}

// update takes over the result of another look.
func (v *view) update(infos []lockInfo, err error, redact func(string) string) {
	if err != nil {
		v.trouble = redact(strings.TrimPrefix(err.Error(), "relock: "))
		return
	}
	v.infos, v.at, v.trouble = infos, time.Now(), ""
}

// display is a terminal that shows one view at a time, in the other buffer of the terminal.
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

// show draws a view over the last one. A single write keeps the display from flickering.
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
		out.WriteString(clearLine) // behind a full line the sequence would clear the last character
		out.WriteString(cut(line, width))
	}
	if len(lines) < height {
		out.WriteString("\n" + clearBelow)
	}
	_, _ = d.w.Write(out.Bytes())
}

// cut returns the first width characters of a line. The terminal, which does not wrap, cuts what is
// too long with characters of two columns.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}
