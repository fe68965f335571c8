package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/go-relock/relock"
)

// What the command finds in its environment.
const (
	envToken   = "RELOCK_TOKEN"
	envName    = "RELOCK_NAME"
	envHolder  = "RELOCK_HOLDER"
	envHolders = "RELOCK_HOLDERS" // of the runs around it too, the outermost first
)

// runOptions are the flags of run.
type runOptions struct {
	wait    time.Duration
	waitSet bool
	noWait  bool
	ttl     time.Duration
	maxHold time.Duration
	grace   time.Duration
	verbose bool
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "Hold a lock while a command runs",

		DisableFlagsInUseLine: true,
		Long: `Hold a lock while a command runs, and exit with its code (128+n if signal n ended it).

The command runs in a process group of its own, which gets the signals that relock gets, and the
terminal. It finds ` + envToken + ` (the fencing token), ` + envName + ` and ` + envHolder + ` in its environment.
If the lock is lost, it gets SIGTERM, after --grace SIGKILL, and relock exits with 79.
If another holder has the lock and the wait (if any) is over, relock exits with 75.`,
		Example: `  relock run nightly-report --no-wait -- ./report.sh
  relock run deploy:web --wait 5m --ttl 20s -- make deploy
  relock run 'orders:42' -- sh -c 'ship --token "$RELOCK_TOKEN" 42'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case dash < 0:
				return usage("run: the command stands behind --, as in: relock run NAME -- COMMAND")
			case dash != 1:
				return usage("run: there must be one lock name before --, not %d", dash)
			case len(args) == 1:
				return usage("run: there is no command behind --")
			case o.noWait && cmd.Flags().Changed("wait"):
				return usage("--no-wait and --wait: only one of them")
			case o.wait < 0:
				return usage("--wait %s: must be 0 (do not wait) or longer; leave it out to wait without limit", o.wait)
			case o.grace < 0:
				return usage("--grace %s: must be 0 (SIGKILL at once) or longer", o.grace)
			}
			o.waitSet = cmd.Flags().Changed("wait")
			o.noWait = o.noWait || o.waitSet && o.wait == 0
			return a.run(args[0], args[1:], o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage("%w (flags of the command stand behind --)", err)
	})
	f := cmd.Flags()
	f.DurationVar(&o.wait, "wait", 0, "give up with exit code 75 after this time (default: wait without limit)")
	f.BoolVar(&o.noWait, "no-wait", false, "give up at once if another holder has the lock")
	f.DurationVar(&o.ttl, "ttl", relock.DefaultTTL, "lease: how long the lock stays taken if this machine dies")
	f.DurationVar(&o.maxHold, "max-hold", 0, "stop the command after this time (default: no limit)")
	f.DurationVar(&o.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL when the lock is lost")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say on stderr when the lock is taken and given back")
	return cmd
}

// runner is one run.
type runner struct {
	*app
	runOptions
	name    string
	path    string   // of the program
	command []string // its name, as it was given, and arguments
	lock    *relock.Lock
	signals chan os.Signal
	conts   chan os.Signal     // SIGCONT
	told    chan struct{}      // for each call that has asked for the lock: its hooks were called
	quit    context.CancelFunc // ends the section's context, when all is over

	section context.Context // once the lock is ours
	began   time.Time
	token   int64
	child   *child
	tty     *terminal      // nil: none, or not ours
	stopped bool           // the child is, by the terminal
	diedOf  syscall.Signal // the child has, or 0
	pressed syscall.Signal // the child has died of that key, or 0
	relayed syscall.Signal // the last that we have handed on
	lost    bool
	silent  bool // Redis is, now that the command has ended
}

// run is the subcommand.
func (a *app) run(name string, command []string, o runOptions) error {
	r := &runner{app: a, runOptions: o, name: name, command: command, told: make(chan struct{}, 1)}
	var err error
	if r.path, err = lookUp(command[0]); err != nil { // before anybody has to wait for us
		return err
	}
	options := []relock.Option{relock.WithTTL(o.ttl), relock.WithHooks(r.hooks())}
	if o.maxHold != 0 {
		options = append(options, relock.WithMaxHold(o.maxHold))
	}
	_, client, closeAll, err := a.client(options...)
	if err != nil {
		return a.failure(err)
	}
	r.lock = client.NewLock(name)
	if err := r.lock.Err(); err != nil {
		return a.failure(err)
	}
	r.catch()
	err = r.hold()
	if !r.lost && !r.silent {
		// A wait that was given up has a place in the queue, which Close takes back. If Redis is silent it is left: grants
		// to a client that is gone go to the next.
		closeAll(3 * time.Second)
	}
	return a.failure(err)
}

// catch begins to listen to signals. One that was ignored when relock began stays so, for the command too.
func (r *runner) catch() {
	r.signals, r.conts = make(chan os.Signal, 64), make(chan os.Signal, 1)
	heed(r.signals, forwarded...)
	// A write to stderr whose reader is gone would end this process, and leave the command alone. Caught and not ignored,
	// for what is ignored is ignored by the command too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// endedBy is the exit for a signal that we have had, and that has ended the wait, or the command. A shell around us that has had
// SIGINT too goes on after a program that has not died of it.
func endedBy(s syscall.Signal) *exitError {
	e := &exitError{code: codeSignal + int(s)}
	if s == syscall.SIGINT && hasKeyboard() {
		e.by, e.alone = s, true
	}
	return e
}

// hold takes the lock, runs the command, and gives the lock back.
func (r *runner) hold() error {
	err := r.take()
	defer r.quit()
	if err != nil {
		return err
	}
	code, err := r.work()
	if unlockErr := r.release(code); unlockErr != nil && err == nil {
		err = unlockErr
	}
	switch {
	case err != nil || code == 0:
		return err
	case r.diedOf != 0 && r.diedOf == r.relayed:
		return endedBy(r.diedOf)
	default:
		return &exitError{code: code, by: r.pressed}
	}
}

// take acquires the lock. A signal ends the wait.
func (r *runner) take() error {
	// The section's context must not end with a signal: a lock whose context is done is not renewed, and the command may
	// take its time to end.
	ctx, cancel := context.WithCancel(context.Background())
	r.quit = cancel
	type result struct {
		section context.Context
		err     error
	}
	done := make(chan result, 1)
	asked := time.Now()
	go func() {
		section, err := r.acquire(ctx)
		done <- result{section, err}
	}()
	var by syscall.Signal
	var got result
	for waiting := true; waiting; {
		select {
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && by == 0 && ends(sig) {
				by = sig
				cancel()
			}
		case got = <-done:
			waiting = false
		}
	}
	if by != 0 {
		if got.err == nil { // it came at the same time
			_ = r.lock.Unlock(got.section)
		}
		return endedBy(by)
	}
	if got.err != nil {
		return got.err
	}
	r.section, r.began, r.token = got.section, time.Now(), r.lock.Token(got.section)
	r.tell(event{
		Event: "acquired", Holder: r.holder(), Token: r.token, WaitedMs: new(r.began.Sub(asked).Milliseconds()),
		text: fmt.Sprintf("%q taken, token %d", r.name, r.token), quiet: true,
	})
	return nil
}

// acquire is the wait that the flags ask for. Only a limited one goes on while Redis cannot be reached; without a limit,
// a wrong address would look like a busy lock for ever, so there the first answer must come.
func (r *runner) acquire(ctx context.Context) (context.Context, error) {
	if r.waitSet && !r.noWait {
		defer r.afterHooks()
		return r.lock.TryLockFor(ctx, r.wait)
	}
	section, err := r.tryOnce(ctx)
	var locked *relock.LockedError
	if err == nil || r.noWait || !errors.As(err, &locked) || ctx.Err() != nil {
		return section, err
	}
	if holder := locked.Holder.String(); holder != "" && slices.Contains(holdersAround(), holder) {
		return section, heldAroundError{locked}
	}
	defer r.afterHooks()
	return r.lock.Lock(ctx)
}

// heldAroundError is the refusal of a lock that a run around this one has.
type heldAroundError struct{ *relock.LockedError }

func (e heldAroundError) Error() string {
	return fmt.Sprintf("%q is held by the relock run around this one, so without --wait it would wait for its own end", e.Name)
}

func (e heldAroundError) Unwrap() error { return e.LockedError }

// tryOnce is TryLock with a limit for the answer, which is no limit for the section that it returns.
func (r *runner) tryOnce(ctx context.Context) (context.Context, error) {
	asking, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(r.conn.timeout, func() { cancel(context.DeadlineExceeded) })
	defer r.afterHooks()
	section, err := r.lock.TryLock(asking)
	if !limit.Stop() && err == nil {
		// The limit came at the same moment, and has ended the section's context.
		_ = r.lock.Unlock(section)
		return ctx, context.DeadlineExceeded
	}
	return section, err
}

func (r *runner) hooks() relock.Hooks {
	return relock.Hooks{Queued: r.queued, AcquireFinished: func(relock.AcquireFinished) { r.told <- struct{}{} }}
}

// afterHooks waits until the hooks of a call that asked for the lock were called: what we say of its end comes after what they say.
func (r *runner) afterHooks() { <-r.told }

// queued is told when the wait begins. The first to know is a person at a terminal.
func (r *runner) queued(q relock.Queued) {
	e := event{
		Event: "waiting", Holder: q.Holder.String(),
		text: fmt.Sprintf("%q is locked, waiting", r.name), quiet: !term.IsTerminal(int(os.Stderr.Fd())),
	}
	if r.conn.redisson == "" { // Redisson's locks have no queue: nobody knows who else waits
		e.Position = new(q.Position)
		e.text += fmt.Sprintf("; %d before this", q.Position)
	}
	r.tell(e)
}

// holder is who we are to Redis.
func (r *runner) holder() string {
	h, _ := relock.HolderFrom(r.section)
	return h.String()
}

// holdersAround are those of the runs that this one is inside of.
func holdersAround() []string { return strings.Fields(os.Getenv(envHolders)) }

// environment is ours, with what the command should know of its lock.
func (r *runner) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case envToken, envName, envHolder, envHolders, envSentinelUser, envSentinelPassword: // of an outer run; not for the command
		default:
			env = append(env, v)
		}
	}
	holders := strings.Join(append(holdersAround(), r.holder()), " ")
	return append(env, fmt.Sprintf("%s=%d", envToken, r.token), envName+"="+r.name, envHolder+"="+r.holder(), envHolders+"="+holders)
}

// work runs the command to its end, and returns its exit code.
func (r *runner) work() (code int, err error) {
	select {
	case s := <-r.signals: // while the answer was on its way
		if sig, ok := s.(syscall.Signal); ok && ends(sig) {
			return 0, endedBy(sig)
		}
	default:
	}
	if r.section.Err() != nil { // as after a long time in which this machine or we were stopped
		r.lost = true
		return 0, &exitError{code: codeLost, err: fmt.Errorf("%w; the command was not started", context.Cause(r.section))}
	}
	r.tty = openTerminal()
	r.hearStops(false)
	if r.child, err = startChild(r.path, r.command, r.environment()); err != nil {
		return 0, cannotStart(r.command[0], err)
	}
	r.hearStops(true)
	r.tty.begin(r)
	r.child.listen()
	defer r.tty.end(r)
	r.tell(event{Event: "started", Pid: r.child.pid, text: fmt.Sprintf("%s has pid %d", r.command[0], r.child.pid), quiet: true})

	lost := r.section.Done()
	var kill <-chan time.Time
	for {
		select {
		case s := <-r.signals:
			r.forward(s)
		case <-r.conts:
			r.resume()
		case e := <-r.child.events:
			if !e.ended {
				r.childStopped(e.stop)
				continue
			}
			r.tell(event{
				Event: "exited", Pid: r.child.pid, ExitCode: new(e.code), Signal: e.signalName(),
				text: fmt.Sprintf("%s has ended with %d", r.command[0], e.code), quiet: !r.lost,
			})
			r.diedOf = e.by
			if r.lost {
				r.clear(kill)
				return e.code, &exitError{code: codeLost} // told when it happened
			}
			return e.code, nil
		case <-lost:
			lost = nil
			adopt() // before anything of it ends
			kill = r.stop()
		case <-kill:
			kill = nil
			r.killGroup()
		}
	}
}

// stop tells the command to end, because the lock is lost. It returns the clock of the grace.
func (r *runner) stop() <-chan time.Time {
	r.lost = true
	timer := time.After(r.grace)
	var err error
	if r.grace > 0 {
		err = r.child.signal(syscall.SIGTERM)
		r.wake() // one that is stopped must run to hear of it
	}
	cause := context.Cause(r.section)
	var loss *relock.LostError
	reason := ""
	if errors.As(cause, &loss) {
		reason = string(loss.Reason)
	}
	r.tell(event{
		Event: "lost", Token: r.token, Reason: reason, Error: kinds[codeLost], HeldMs: r.held(), Pid: r.child.pid,
		text: fmt.Sprintf("%s; stopping the command", strings.TrimPrefix(cause.Error(), "relock: ")),
	})
	if err != nil {
		r.tellUnstopped(err.Error())
	}
	return timer
}

// killGroup ends the command for good.
func (r *runner) killGroup() {
	if err := r.child.signal(syscall.SIGKILL); err != nil {
		r.tellUnstopped(err.Error())
		return
	}
	r.tell(event{
		Event: "killed", Pid: r.child.pid,
		text: fmt.Sprintf("%s has not ended within %s; killing it", r.command[0], r.grace), quiet: r.grace == 0,
	})
}

// tellUnstopped says that the command, or some of it, works on without the lock and that we cannot help it.
func (r *runner) tellUnstopped(why string) {
	r.tell(event{
		Event: "unstopped", Pid: r.child.pid, Message: why,
		text: fmt.Sprintf("%s cannot be stopped: %s", r.command[0], why),
	})
}

// clear sees to it that nothing of the command's process group works on without the lock: its first process has ended,
// others have until the end of the grace. kill is nil if that is over and SIGKILL was sent.
func (r *runner) clear(kill <-chan time.Time) {
	const (
		look  = 10 * time.Millisecond // there is no event for the end of a group
		dying = 2 * time.Second       // the system may have much to tidy up behind a process
	)
	tick := time.NewTicker(look)
	defer tick.Stop()
	var over <-chan time.Time
	if kill == nil {
		over = time.After(dying)
	}
	for r.child.groupLives() {
		select {
		case <-kill:
			kill = nil
			r.killGroup()
			over = time.After(dying)
		case <-over:
			r.tellUnstopped(fmt.Sprintf("some of it is still there %s after SIGKILL", dying))
			return
		case s := <-r.signals:
			r.forward(s)
		case <-tick.C:
		}
	}
}

// release gives the lock back. The command's exit code is only for the message.
func (r *runner) release(code int) error {
	if r.lost {
		return nil // there is nothing to give back
	}
	unlockErr := r.unlock()
	if errors.Is(unlockErr, relock.ErrLockLost) {
		// It was lost so shortly before the command ended that nothing had noticed. What it did last may have been without.
		return &exitError{code: codeLost, err: fmt.Errorf("%w (the command had ended with %d)", unlockErr, code)}
	}
	e := event{Event: "released", Token: r.token, HeldMs: r.held(), text: fmt.Sprintf("%q given back", r.name), quiet: true}
	if unlockErr != nil {
		// The work is done, under the lock. That others wait a little longer is no failure of the command.
		message := strings.TrimPrefix(unlockErr.Error(), "relock: ")
		e = event{Event: "unconfirmed", Error: kinds[codeUnavailable], Message: message, text: message}
	}
	r.tell(e)
	return nil
}

// unlock is Unlock within the time that Redis has for an answer. A signal can only mean us now, and leaves it a moment.
func (r *runner) unlock() error {
	const moment = time.Second
	done := make(chan error, 1)
	go func() { done <- r.lock.Unlock(r.section) }()
	limit := time.After(r.conn.timeout)
	var hurry <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && ends(sig) && hurry == nil {
				hurry = time.After(moment)
			}
			continue
		case <-hurry:
		case <-limit:
		}
		r.silent = true
		return fmt.Errorf("unlock %q: not confirmed by Redis in time: it is free within its TTL", r.name)
	}
}

func (r *runner) held() *int64 { return new(time.Since(r.began).Milliseconds()) }
