// Command relock runs commands under a lock of package relock, and shows operators what the locks
// are doing.
//
//	relock run NAME… -- command…    hold the lock, or several, while the command runs
//	relock ls [PATTERN]             all locks that are held or waited for
//	relock watch [PATTERN]          the same, again and again
//	relock show NAME                who holds it, who waits
//	relock ask NAME                 ask its holder to give it back
//	relock unlock --force NAME      take it from its holder
//	relock check                    whether the server can keep locks
//	relock ui                       a page for the browser: who has what, who waits for whom
//
// README.md beside this file describes flags, exit codes and output. The build tag redis leaves out
// all stores but Redis.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/go-relock/relock"
)

// The exit codes of relock itself. `run` passes on the code of its command, so these are codes that
// commands rarely use: those of sysexits.h, and the first number behind them.
const (
	codeNotHeld     = 1   // unlock: nobody has the lock
	codeUsage       = 64  // EX_USAGE: a wrong flag, name or URL. Trying again does not help
	codeUnavailable = 69  // EX_UNAVAILABLE: the server cannot be reached, or answered with an error
	codeInternal    = 70  // EX_SOFTWARE: the operating system refused something
	codeBusy        = 75  // EX_TEMPFAIL: another holder has the lock, or a deadlock; schedulers try later
	codeNoPerm      = 77  // EX_NOPERM: the server wants another user or password
	codeLost        = 79  // the lock was lost while the command ran, or before; sysexits.h ends at 78
	codeCannotRun   = 126 // the command cannot be run; as in a shell
	codeNotFound    = 127 // the command does not exist; as in a shell
	codeSignal      = 128 // plus the number of the signal that ended the command; as in a shell
)

func main() {
	exit := execute(os.Args[1:])
	if exit == nil {
		return
	}
	if exit.by == syscall.SIGINT { // a shell that has had SIGINT too goes on after a program that has not died of it
		dieOfInterrupt(exit.group)
	}
	os.Exit(exit.code)
}

// app has the flags and files of all subcommands.
type app struct {
	conn   connection
	json   bool
	busy   int           // the exit code of a lock that another holder has
	quiet  bool          // a lock that another holder has is not reported
	stdout *bufio.Writer // keeps the first error of a write
	stderr io.Writer
}

// execute runs a subcommand, and returns how relock should exit; nil is code 0.
func execute(args []string) *exitError {
	redis.SetLogger(silent{}) // go-redis prints to stderr, between the lines of the command
	stderr := newTeller(os.Stderr)
	defer stderr.finish()
	a := &app{stdout: bufio.NewWriter(os.Stdout), stderr: stderr}
	root := a.root()
	root.SetOut(a.stdout)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if flushed := a.stdout.Flush(); err == nil && flushed != nil {
		err = &exitError{code: codeInternal, err: flushed}
	}
	if err == nil {
		return nil
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		// The error of the parser: an unknown command or flag, a wrong number of arguments.
		exit = &exitError{code: codeUsage, err: err}
	}
	a.report(exit)
	return exit
}

// heed sends signals to c, but for signals that relock was started to ignore, as with nohup.
func heed(c chan<- os.Signal, signals ...syscall.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// silent is a logger for go-redis, which returns all that matters as errors.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func (a *app) root() *cobra.Command {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	root := &cobra.Command{
		Use:           "relock",
		Short:         "Run commands under a lock in Redis or another store, and see what the locks are doing",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableFlagsInUseLine: true, SuggestionsMinimumDistance: 2, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Long: `relock runs commands under a lock that is kept in Redis, or in another store, and shows what the
locks are doing.

Exit codes of relock itself: 64 wrong usage, 69 the server cannot be reached or refuses, 70 the system
refuses, 75 the lock is busy, or in a deadlock, 77 the server wants another user or password, 79 the lock was lost.`,
		Args: cobra.ArbitraryArgs, // so that RunE judges them: cobra prints a page, and for some succeeds
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 && args[0] != "" {
				return usage("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return usage("unknown command %q; relock --help lists all", args[0])
		},
	}
	a.conn.flags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(a.runCommand(), a.lsCommand(), a.watchCommand(), a.showCommand(), a.askCommand(), a.unlockCommand(), a.checkCommand(), a.uiCommand())
	return root
}

// exitError is an error with an exit code of relock. A nil err is not reported.
type exitError struct {
	code  int
	word  string // for the code in JSON, if kinds has another
	err   error
	by    syscall.Signal // that has ended the command or the wait
	group bool           // the process group of relock has not had the signal
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage returns the error of a wrong call of relock.
func usage(format string, args ...any) error {
	return &exitError{code: codeUsage, err: fmt.Errorf(format, args...)}
}

// failure gives an error of the library or of its store an exit code, and names the store.
func (a *app) failure(err error) error {
	var exit *exitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, relock.ErrInvalid), errors.Is(err, errors.ErrUnsupported):
		return usage("%s", inFlags.Replace(err.Error()))
	case errors.Is(err, relock.ErrDeadlock):
		return &exitError{code: a.busy, word: "deadlock", err: fmt.Errorf("%w; all locks were given back. Run it again, and take the "+
			"locks in the same order everywhere: all of them in one relock run, or in one call of relock.All", err)}
	case errors.Is(err, relock.ErrKind):
		return usage("%w; --shared and --write are for a read-write lock, --permits is for a semaphore, and without them it is a mutex", err)
	case errors.Is(err, relock.ErrLocked) && a.quiet:
		return &exitError{code: a.busy}
	case errors.Is(err, relock.ErrLocked):
		return &exitError{code: a.busy, word: kinds[codeBusy], err: err}
	case errors.Is(err, relock.ErrLockLost):
		return &exitError{code: codeLost, err: err}
	case errors.Is(err, relock.ErrNotHeld):
		return &exitError{code: codeNotHeld, err: err}
	}
	err = fmt.Errorf("%s: %w", a.conn.where, err)
	if a.conn.kind.refuses(err) {
		return &exitError{code: codeNoPerm, err: err}
	}
	return &exitError{code: codeUnavailable, err: err}
}

// inFlags turns the options in a message of the library into flags.
var inFlags = strings.NewReplacer("WithTTL", "--ttl", "WithMaxHold", "--max-hold", "WithPrefix", "--prefix", "WithOwner", "--owner",
	"WithRestartDelay", "--restart-delay", "WithSessionTimeout", "--ttl") // which sets the session

// kinds has the words for exit codes in JSON.
var kinds = map[int]string{
	codeNotHeld:     "not_held",
	codeUsage:       "usage",
	codeUnavailable: "unavailable",
	codeInternal:    "internal",
	codeBusy:        "busy",
	codeNoPerm:      "no_permission",
	codeLost:        "lost",
	codeCannotRun:   "cannot_run",
	codeNotFound:    "not_found",
}

// report writes to stderr why relock fails. Standard output has results only.
func (a *app) report(e *exitError) {
	if e.err == nil {
		return
	}
	// The library's errors begin with the name of the library, and every line with that of the
	// command.
	message := strings.ReplaceAll(strings.TrimPrefix(e.err.Error(), "relock: "), ": relock: ", ": ")
	message = strings.ReplaceAll(a.conn.redact(message), "\n\t", " ") // pgx has a line for each address
	if !a.json {
		fmt.Fprintln(a.stderr, "relock:", printable(message))
		return
	}
	out := record{Time: time.Now(), Event: "error", Error: cmp.Or(e.word, kinds[e.code]), ExitCode: &e.code, Message: message}
	var locked *relock.LockedError
	if errors.As(e.err, &locked) {
		out.Name, out.Holder, out.LeaseMs = locked.Name, locked.Holder.String(), max(0, locked.TTL.Milliseconds())
	}
	a.encode(a.stderr, out)
}

// encode writes v as one line of JSON.
func (a *app) encode(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the reader may be gone
}
