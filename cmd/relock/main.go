// Command relock runs commands under a lock of package relock, and shows operators what the locks
// are doing.
//
//	relock run NAME… -- command…    hold the lock, or several, while the command runs
//	relock hold NAME…               hold the lock, or several, until standard input ends
//	relock show NAME                who holds it, who waits
//	relock ls [PATTERN]             all locks that are held or waited for
//	relock watch [PATTERN]          the same, again and again
//	relock unlock --force NAME      take the lock from its holder
//	relock create-tables            create the tables of a SQL store
//
// docs/CLI.md in the repository describes flags, exit codes and output.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
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
	if exit.by != 0 {
		interrupt(exit.by, exit.alone)
	}
	os.Exit(exit.code)
}

// app has the flags and files of all subcommands.
type app struct {
	conn   connection
	json   bool
	busy   int // the exit code of a lock that another holder has
	stdout *sink
	stderr io.Writer
}

// sink is a standard output that keeps the first error of a write.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// failure returns the first error of a write, nil if there was none.
func (s *sink) failure() error {
	if s.err == nil {
		return nil
	}
	return &exitError{code: codeInternal, err: s.err}
}

// execute runs a subcommand, and returns how relock should exit; nil is code 0.
func execute(args []string) *exitError {
	redis.SetLogger(silent{}) // go-redis prints to stderr, between the lines of the command
	stderr := newTeller(os.Stderr)
	defer stderr.finish()
	a := &app{stdout: &sink{w: os.Stdout}, stderr: stderr}
	root := a.root()
	strict(root)
	root.SetOut(a.stdout)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		err = a.stdout.failure()
	}
	if err == nil {
		return nil
	}
	a.json = a.json || asksForJSON(args) // the parser may have stopped before --json
	var exit *exitError
	if !errors.As(err, &exit) {
		// The error of the parser: an unknown command or flag, a wrong number of arguments.
		exit = &exitError{code: codeUsage, err: err}
	}
	a.report(exit)
	return exit
}

// strict makes cobra's own commands, and a call without a subcommand, refuse unknown arguments. By
// themselves they succeed.
func strict(root *cobra.Command) {
	root.DisableFlagsInUseLine = true
	root.DisableSuggestions = true // a suggestion has several lines
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 { // cobra accepts "" and arguments behind --
			return usage("unknown command %q for %q", args[0], cmd.Name())
		}
		return cmd.Help()
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				if _, _, err := root.Find(args); err != nil {
					return usage("help: there is no command %q", strings.Join(args, " "))
				}
				return nil
			}
		case "completion":
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// asksForJSON says whether --json is an argument of relock itself.
func asksForJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--json", "--json=true":
			return true
		case "--": // the rest is the command
			return false
		}
	}
	return false
}

// oneName checks the arguments of a subcommand about one lock.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("%s: there must be one lock name, not %d", cmd.Name(), len(args))
	}
	return nil
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
	root := &cobra.Command{
		Use:           "relock",
		Short:         "Run commands under a lock in Redis or another store, and see what the locks are doing",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Long: `relock runs commands under a lock that is kept in Redis, or in the store of --store, and shows what the
locks are doing.

Exit codes of relock itself: 64 wrong usage, 69 the server cannot be reached or refuses, 70 the system
refuses, 75 the lock is busy, or in a deadlock, 77 the server wants another user or password, 79 the lock was lost.`,
	}
	a.conn.flags(root.PersistentFlags())
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(a.runCommand(), a.holdCommand(), a.showCommand(), a.lsCommand(), a.watchCommand(), a.graphCommand(), a.unlockCommand(), a.askCommand(), a.checkCommand(), a.createTablesCommand())
	return root
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

// exitError is an error with an exit code of relock. A nil err was reported before.
type exitError struct {
	code  int
	word  string // for the code in JSON, if kinds has another
	err   error
	by    syscall.Signal // of the keyboard: relock should die of it; 0: none
	alone bool           // the rest of the process group has had the signal
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

// failure gives an error of the library or of Redis its exit code, and names the server if the
// error does not.
func (a *app) failure(err error) error {
	var exit *exitError
	var reply redis.Error
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, relock.ErrInvalid):
		return usage("%s", inFlags(err.Error()))
	case errors.Is(err, relock.ErrDeadlock):
		return &exitError{code: a.busy, word: "deadlock", err: fmt.Errorf("%w; all locks were given back. Run it again, and take the "+
			"locks in the same order everywhere: all of them in one relock run, or in one call of relock.All", err)}
	case errors.Is(err, relock.ErrKind) && a.conn.mutexesOnly() != "":
		return usage("%w", err)
	case errors.Is(err, relock.ErrKind):
		return usage("%w; --shared and --write are for a read-write lock, --permits is for a semaphore, and without them it is a mutex", err)
	case errors.Is(err, relock.ErrLocked):
		return &exitError{code: a.busy, word: kinds[codeBusy], err: err}
	case errors.Is(err, relock.ErrLockLost):
		return &exitError{code: codeLost, err: err}
	case errors.Is(err, relock.ErrNotHeld):
		return &exitError{code: codeNotHeld, err: err}
	}
	if a.conn.hasStore() {
		return a.conn.storeFailure(err)
	}
	code := codeUnavailable
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || scriptLacksRight(err) || a.conn.hasQuorum() && memberRefuses(err) {
		code = codeNoPerm
	}
	if a.conn.hasQuorum() {
		return &exitError{code: code, err: fmt.Errorf("%s: %w", a.conn.where(), err)}
	}
	if errors.As(err, &reply) && !errors.Is(err, redis.Nil) {
		return &exitError{code: code, err: fmt.Errorf("the server at %s says: %w", a.conn.where(), err)}
	}
	return &exitError{code: code, err: fmt.Errorf("no answer from Redis at %s: %w", a.conn.where(), err)}
}

// libraryOption matches an option in the library's messages that a flag sets.
var libraryOption = regexp.MustCompile(`(WithTTL|WithMaxHold|WithPrefix|WithOwner|WithRestartDelay|WithSessionTimeout)(\([^()]*\))?`)

// inFlags turns the options in a message of the library into flags.
func inFlags(message string) string {
	flags := map[string]string{
		"WithTTL": "--ttl", "WithMaxHold": "--max-hold", "WithPrefix": "--prefix", "WithOwner": "--owner", "WithRestartDelay": "--restart-delay",
		"WithSessionTimeout": "--ttl", // which sets the session
	}
	return libraryOption.ReplaceAllStringFunc(message, func(call string) string {
		option, value, _ := strings.Cut(strings.TrimSuffix(call, ")"), "(")
		return strings.TrimSpace(flags[option] + " " + value)
	})
}

// scriptLacksRight says whether the user may run scripts, but not the commands in them. The error
// has no prefix of its own in Redis.
func scriptLacksRight(err error) bool {
	return strings.Contains(err.Error(), "The user executing the script can't") || // Redis 7.0
		strings.Contains(err.Error(), "ACL failure in script") // later
}

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
	out := struct {
		Time    time.Time `json:"time"`
		Event   string    `json:"event"`
		Error   string    `json:"error"`
		Code    int       `json:"exit_code"`
		Message string    `json:"message"`
		Name    string    `json:"name,omitempty"`
		NameB64 string    `json:"name_base64,omitempty"`
		Holder  string    `json:"holder,omitempty"`
		LeaseMs int64     `json:"lease_ms,omitempty"`
	}{Time: time.Now(), Event: "error", Error: cmp.Or(e.word, kinds[e.code]), Code: e.code, Message: message}
	var locked *relock.LockedError
	if errors.As(e.err, &locked) {
		out.Name, out.NameB64 = locked.Name, base64Of(locked.Name)
		out.Holder, out.LeaseMs = locked.Holder.String(), max(0, locked.TTL.Milliseconds())
	}
	a.encode(a.stderr, out)
}

// encode writes v as one line of JSON.
func (a *app) encode(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the reader may be gone
}
