//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/go-relock/relock"
)

// The environment of the command has these variables.
const (
	envToken   = "RELOCK_TOKEN"  // of one lock
	envName    = "RELOCK_NAME"   // of one lock
	envTokens  = "RELOCK_TOKENS" // of all locks, in the order of the command line
	envHolder  = "RELOCK_HOLDER"
	envHolders = "RELOCK_HOLDERS" // also of the runs around this one, outermost first
)

// runOptions are the flags of run.
type runOptions struct {
	wait    time.Duration
	waitSet bool
	noWait  bool
	ttl     time.Duration
	maxHold time.Duration
	grace   time.Duration
	owner   string
	verbose bool

	// Which kind of lock: without any of these, a mutex.
	shared     bool
	write      bool
	permits    int
	permitsSet bool
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run NAME [NAME…] [flags] -- COMMAND [ARGUMENT…]",
		Short: "Hold a lock, or several, while a command runs",

		DisableFlagsInUseLine: true,
		Long: `Hold a lock while a command runs, and exit with its code (128+n if signal n ended it).

A lock is a mutex; with --shared or --write it is a read-write lock, with --permits a semaphore. With
several names the command runs under all of these locks, or not at all.

The command runs in a process group of its own, which gets the signals that relock gets, and the
terminal. It finds ` + envToken + ` (the fencing token), ` + envName + ` and ` + envHolder + ` in its environment.
If a lock is lost, it gets SIGTERM, after --grace SIGKILL, and relock exits with 79.
If another holder has a lock and the wait (if any) is over, relock exits with 75.`,
		Example: `  relock run nightly-report --no-wait -- ./report.sh
  relock run deploy:web --wait 5m --ttl 20s -- make deploy
  relock run 'orders:42' -- sh -c 'ship --token "$RELOCK_TOKEN" 42'
  relock run --shared catalog -- ./export.sh
  relock run --permits 3 uploads -- ./upload.sh
  relock run account:1 account:2 -- ./transfer.sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch cmd.ArgsLenAtDash() {
			case -1:
				return usage("run: the command stands behind --, as in: relock run NAME -- COMMAND")
			case 0:
				return usage("run: there must be a lock name before --")
			case len(args):
				return usage("run: there is no command behind --")
			}
			return a.check(cmd.Flags(), &o)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			return a.run(args[:dash], args[dash:], o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage("%w (flags of the command stand behind --)", err)
	})
	f := cmd.Flags()
	f.DurationVar(&o.wait, "wait", 0, "give up with exit code 75 after this time (default: wait without limit)")
	f.BoolVar(&o.noWait, "no-wait", false, "give up at once if another holder has the lock")
	f.IntVarP(&a.busy, "conflict-exit-code", "E", codeBusy, "exit with this `code` in place of 75")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing about a lock that another holder has")
	f.DurationVar(&o.ttl, "ttl", relock.DefaultTTL, "lease: how long the lock stays taken if this machine dies")
	f.DurationVar(&o.maxHold, "max-hold", 0, "lose the lock after this time (default: no limit)")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL when the lock is lost")
	f.StringVar(&o.owner, "owner", "", "`name` of this run for show, ls and those who find the lock busy (default relock@ and the host)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say on stderr when the lock is taken and given back")
	f.BoolVar(&o.shared, "shared", false, "take a read-write lock for reading, beside other readers")
	f.BoolVar(&o.write, "write", false, "take a read-write lock for writing, alone")
	f.IntVar(&o.permits, "permits", 0, "take one of `n` permits of a semaphore")
	cmd.MarkFlagsMutuallyExclusive("no-wait", "wait")
	cmd.MarkFlagsMutuallyExclusive("shared", "write", "permits")
	return cmd
}

// check refuses wrong values of these flags.
func (a *app) check(f *pflag.FlagSet, o *runOptions) error {
	o.waitSet, o.permitsSet = f.Changed("wait"), f.Changed("permits")
	a.conn.lease = o.ttl
	switch {
	case o.wait < 0:
		return usage("--wait %s: must be 0 (do not wait) or longer; leave it out to wait without limit", o.wait)
	case o.grace < 0:
		return usage("--grace %s: must be 0 (SIGKILL at once) or longer", o.grace)
	case a.busy < 0 || a.busy > 255:
		return usage("--conflict-exit-code %d: must be from 0 to 255", a.busy)
	case o.permitsSet && o.permits < 1:
		return usage("--permits %d: must be 1 or more", o.permits)
	}
	o.noWait = o.noWait || o.waitSet && o.wait == 0
	return nil
}

// runner is one run of a command.
type runner struct {
	*app
	runOptions
	names   []string       // of the locks, as given
	path    string         // of the program
	command []string       // the given name, and the arguments
	locks   []*relock.Lock // in the order of names
	all     *relock.Locks
	signals chan os.Signal
	conts   chan os.Signal // SIGCONT

	section context.Context // nil before the locks are taken
	began   time.Time
	tokens  []int64 // in the order of names; nil: the locks have no tokens
	child   *child
	tty     *terminal      // nil: there is none
	stopped bool           // the terminal has stopped the child
	relayed syscall.Signal // the last signal that relock has forwarded
	lost    bool

	hadKeyboard bool // the command, at its end
}

// run is the subcommand.
func (a *app) run(names, command []string, o runOptions) error {
	path, err := lookUp(command[0])
	if err != nil { // before anybody waits for this run
		return err
	}
	options := []relock.Option{relock.WithTTL(o.ttl), relock.WithOwner(cmp.Or(o.owner, defaultOwner()))}
	if o.maxHold != 0 {
		options = append(options, relock.WithMaxHold(o.maxHold))
	}
	client, closeAll, err := a.open(options...)
	if err != nil {
		return a.failure(err)
	}
	// Close takes back the place in the queue of a wait that was given up. If the server is silent,
	// the place stays: a grant to a client that is gone goes to the next one.
	defer closeAll(min(3*time.Second, a.conn.timeout))
	r := &runner{app: a, runOptions: o, names: names, path: path, command: command}
	if err := r.open(client); err != nil {
		return a.failure(err)
	}
	r.catch()
	return a.failure(r.hold())
}

// lookUp finds the program as a shell does.
func lookUp(program string) (path string, err error) {
	path, err = exec.LookPath(program)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, nil // PATH may name the current directory, as for a shell
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return "", &exitError{code: codeNotFound, err: fmt.Errorf("%s: command not found", program)}
	}
	return "", &exitError{code: codeCannotRun, err: err}
}

// open makes the locks of the run, of the kind that the flags ask for.
func (r *runner) open(client *relock.Client) error {
	lockers := make([]relock.Locker, len(r.names))
	for i, name := range r.names {
		lock := client.NewLock(name)
		switch {
		case r.shared:
			lock = client.NewRWLock(name).RLocker()
		case r.write:
			lock = client.NewRWLock(name).Writer()
		case r.permitsSet:
			lock = client.NewSemaphore(name, r.permits)
		}
		r.locks = append(r.locks, lock)
		lockers[i] = lock
	}
	r.all = relock.All(lockers...)
	if r.all.Err() == nil && len(r.all.Names()) != len(r.names) {
		return usage("run: two names before -- are the same lock")
	}
	return r.all.Err()
}

// defaultOwner returns relock@ and the name of this machine, with the characters that
// [relock.WithOwner] allows.
func defaultOwner() string {
	host, _ := os.Hostname()
	owner := "relock@" + regexp.MustCompile("[^A-Za-z0-9._-]").ReplaceAllString(cmp.Or(host, "unknown"), "-")
	return owner[:min(len(owner), 64)]
}

// catch begins to listen to signals. A signal that relock was started to ignore stays ignored, for
// the command too.
func (r *runner) catch() {
	r.signals, r.conts = make(chan os.Signal, 64), make(chan os.Signal, 1)
	heed(r.signals, forwarded...)
	// SIGPIPE of a stderr whose reader is gone would end relock, and leave the command alone.
	// Relock catches SIGPIPE and does not ignore it, as the command would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// hold takes the locks, runs the command, and gives the locks back. The result has the code of the
// command.
func (r *runner) hold() error {
	// A signal must not end the context of the section: the lock would not be renewed any more, and
	// the command may take its time to end.
	ctx, quit := context.WithCancel(context.Background())
	defer quit()
	if err := r.take(ctx, quit); err != nil {
		return err
	}
	end, err := r.work()
	if unlockErr := r.release(end.code); unlockErr != nil && err == nil {
		err = unlockErr
	}
	if err != nil || end.code == 0 {
		return err
	}
	return &exitError{code: end.code, by: end.by, group: r.hadKeyboard && r.relayed != end.by}
}

// take takes the locks, and draws the tokens. A signal ends the wait.
func (r *runner) take(ctx context.Context, quit context.CancelFunc) error {
	done := make(chan error, 1)
	asked := time.Now()
	go func() { done <- r.acquire(ctx) }()
	var by syscall.Signal
	var err error
	for waiting := true; waiting; {
		select {
		case s := <-r.signals:
			if by == 0 && s != syscall.SIGWINCH {
				by, _ = s.(syscall.Signal)
				quit()
			}
		case err = <-done:
			waiting = false
		}
	}
	switch {
	case by != 0:
		if err == nil {
			_ = r.all.Unlock(r.section)
		}
		return &exitError{code: codeSignal + int(by), by: by}
	case err != nil:
		return err
	}
	r.began = time.Now()
	r.tell(record{
		Event: "acquired", Tokens: r.tokens, Holder: r.holder(), WaitedMs: new(r.began.Sub(asked).Milliseconds()),
		text: fmt.Sprintf("%s taken, token %s", r.quoted(), r.tokenText()), quiet: true,
	})
	return nil
}

// acquire waits as the flags ask for, and draws the tokens. A wait with a limit goes on while the
// server cannot be reached. Without a limit the first answer must come, as a wrong address would
// look like a busy lock for ever.
func (r *runner) acquire(ctx context.Context) (err error) {
	began := time.Now()
	r.section, err = r.all.TryLock(ctx)
	isBusy := errors.Is(err, relock.ErrLocked)
	rest := r.wait - time.Since(began)
	switch {
	case err == nil:
		return r.draw()
	case r.noWait || ctx.Err() != nil || r.waitSet && rest <= 0 || !isBusy && !r.waitSet:
		return err
	case isBusy:
		var locked *relock.LockedError
		if errors.As(err, &locked) && slices.Contains(holdersAround(), locked.Holder.String()) && r.permits < 2 {
			return fmt.Errorf("the relock run around this one has the lock, so this one would wait for its own end: %w", err)
		}
		r.tellWaiting(locked)
	}
	if r.waitSet {
		r.section, err = r.all.TryLockFor(ctx, rest)
	} else {
		r.section, err = r.all.Lock(ctx)
	}
	if err != nil {
		return err
	}
	return r.draw()
}

// tellWaiting tells that the wait begins, at a terminal without --verbose too.
func (r *runner) tellWaiting(locked *relock.LockedError) {
	e := record{Event: "waiting", quiet: r.app.quiet || !term.IsTerminal(int(os.Stderr.Fd())), text: r.quoted() + " is locked, waiting"}
	if locked != nil {
		e.Name, e.Holder = locked.Name, locked.Holder.String()
		e.text = fmt.Sprintf("%q is locked by %s, waiting", locked.Name, locked.Holder)
	}
	r.tell(e)
}

// draw draws the tokens of all locks, if the locks have tokens, and gives the locks back if it
// fails.
func (r *runner) draw() error {
	ctx, cancel := context.WithTimeout(r.section, r.conn.timeout)
	defer cancel()
	for _, lock := range r.locks {
		token, err := lock.Token(ctx)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			_ = r.all.Unlock(r.section)
			return err
		}
		r.tokens = append(r.tokens, token)
	}
	return nil
}

// quoted returns the names of all locks for people, and tokenText their tokens.
func (r *runner) quoted() string    { return strings.Trim(fmt.Sprintf("%q", r.names), "[]") }
func (r *runner) tokenText() string { return strings.Trim(fmt.Sprint(r.tokens), "[]") }

// holder returns the holder of the lock.
func (r *runner) holder() string {
	h, _ := relock.HolderFrom(r.section)
	return h.String()
}

// holdersAround returns the holders of the runs around this one.
func holdersAround() []string { return strings.Fields(os.Getenv(envHolders)) }

// environment returns the environment of relock, with variables about the lock.
func (r *runner) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { // those of a run around this one
		return strings.HasPrefix(v, envToken) || strings.HasPrefix(v, envName+"=") || strings.HasPrefix(v, envHolder)
	})
	env = append(env, envTokens+"="+r.tokenText(), envHolder+"="+r.holder(),
		envHolders+"="+strings.Join(append(holdersAround(), r.holder()), " "))
	if len(r.names) == 1 { // a command that knows one lock only must not take one of several for all
		env = append(env, envToken+"="+r.tokenText(), envName+"="+r.names[0])
	}
	return env
}

// work runs the command, and returns its end. After a loss the whole process group of the command
// gets SIGTERM and, at the end of the grace, SIGKILL; then work waits for the whole group.
func (r *runner) work() (end childEvent, err error) {
	if r.section.Err() != nil { // as after a long stop of this machine, or of relock
		r.lost = true
		return end, &exitError{code: codeLost, err: fmt.Errorf("%w; the command was not started", context.Cause(r.section))}
	}
	r.tty = openTerminal()
	signal.Notify(r.signals, syscall.SIGTSTP) // a Ctrl-Z during the start stops the command too
	signal.Notify(r.conts, syscall.SIGCONT)
	if r.child, err = startChild(r.path, r.command, r.environment()); err != nil {
		return end, &exitError{code: codeCannotRun, err: fmt.Errorf("%s: %w", r.command[0], err)}
	}
	r.tty.begin(r.child)
	close(r.child.ready)
	defer func() {
		r.hadKeyboard = r.tty != nil && r.tty.given
		r.tty.take()
	}()
	r.tell(record{Event: "started", Pid: r.child.pid, text: fmt.Sprintf("%s has pid %d", r.command[0], r.child.pid), quiet: true})

	const (
		look  = 10 * time.Millisecond // the system reports no end of a group
		dying = 2 * time.Second       // the system may need time to end a process
	)
	lost := r.section.Done()
	var kill, dead, tick <-chan time.Time
	for {
		select {
		case s := <-r.signals:
			r.relayed, _ = s.(syscall.Signal)
			_ = r.child.signal(r.relayed) // processes of other users get no signals
		case <-r.conts:
			r.resume()
		case e := <-r.child.events:
			if e.stop != 0 {
				r.childStopped(e.stop)
				continue
			}
			r.tell(record{
				Event: "exited", Pid: r.child.pid, ExitCode: new(e.code), Signal: e.signalName(),
				text: fmt.Sprintf("%s has ended with %d", r.command[0], e.code), quiet: !r.lost,
			})
			if !r.lost {
				return e, nil
			}
			end, tick = e, time.Tick(look)
			if dead != nil { // it may have fired before
				dead = time.After(dying)
			}
		case <-lost:
			r.lost, lost = true, nil
			adopt() // before any process of the command ends
			kill = time.After(r.grace)
			if r.grace > 0 {
				_ = r.child.signal(syscall.SIGTERM)
				r.wake() // a stopped command handles no signal
			}
			r.tellLost()
		case <-kill:
			dead = time.After(dying)
			r.tell(record{
				Event: "killed", Pid: r.child.pid,
				text: fmt.Sprintf("%s has not ended within %s; killing it", r.command[0], r.grace), quiet: r.grace == 0,
			})
			_ = r.child.signal(syscall.SIGKILL)
		case <-dead:
			message := fmt.Sprintf("some of it is still there %s after SIGKILL", dying)
			r.tell(record{Event: "unstopped", Pid: r.child.pid, Message: message, text: r.command[0] + " cannot be stopped: " + message})
			if tick != nil {
				return end, &exitError{code: codeLost}
			}
		case <-tick:
			if !r.child.groupLives() {
				return end, &exitError{code: codeLost} // reported at the loss
			}
		}
	}
}

// tellLost tells why a lock is lost.
func (r *runner) tellLost() {
	cause := context.Cause(r.section)
	e := record{
		Event: "lost", Error: kinds[codeLost], HeldMs: r.held(), Pid: r.child.pid,
		text: strings.TrimPrefix(cause.Error(), "relock: ") + "; stopping the command",
	}
	var loss *relock.LostError
	if errors.As(cause, &loss) {
		e.Name, e.Reason, e.Tokens = loss.Name, string(loss.Reason), []int64{loss.Token}
	}
	r.tell(e)
}

// release gives the locks back, also those that are left of several after a loss. The exit code of
// the command is for the message.
func (r *runner) release(code int) error {
	err := r.all.Unlock(r.section)
	switch {
	case r.lost: // and told
		return nil
	case errors.Is(err, relock.ErrLockLost):
		// The release has found the loss. The command may have done its last work without the lock.
		return &exitError{code: codeLost, err: fmt.Errorf("%w (the command had ended with %d)", err, code)}
	case err != nil:
		// The work was done under the lock. A longer wait of others is no failure of the command.
		message := strings.TrimPrefix(err.Error(), "relock: ")
		r.tell(record{Event: "unconfirmed", Error: kinds[codeUnavailable], Message: message, text: message})
	default:
		r.tell(record{Event: "released", Tokens: r.tokens, HeldMs: r.held(), text: r.quoted() + " given back", quiet: true})
	}
	return nil
}

func (r *runner) held() *int64 { return new(time.Since(r.began).Milliseconds()) }

// tell prints an event about the lock that it names, or about all locks of the run.
func (r *runner) tell(e record) {
	e.Time, e.Message = time.Now(), r.conn.redact(e.Message)
	if e.Name == "" && len(r.names) == 1 {
		e.Name = r.names[0]
	}
	switch {
	case r.json:
		r.encode(r.stderr, e)
	case !e.quiet || r.verbose:
		fmt.Fprintln(r.stderr, "relock:", printable(r.conn.redact(e.text)))
	}
}
