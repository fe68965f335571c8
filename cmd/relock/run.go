package main

import (
	"cmp"
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

// runOptions are the flags of run and hold.
type runOptions struct {
	wait    time.Duration
	waitSet bool
	noWait  bool
	ttl     time.Duration
	maxHold time.Duration
	grace   time.Duration // of run
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
		ValidArgsFunction: a.completions(true),
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
	a.holdFlags(cmd.Flags(), &o)
	cmd.Flags().DurationVar(&o.grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL when the lock is lost")
	return cmd
}

// holdFlags adds the flags that run and hold have in common.
func (a *app) holdFlags(f *pflag.FlagSet, o *runOptions) {
	f.DurationVar(&o.wait, "wait", 0, "give up with exit code 75 after this time (default: wait without limit)")
	f.IntVarP(&a.busy, "conflict-exit-code", "E", codeBusy, "exit with this `code` in place of 75")
	f.BoolVar(&o.noWait, "no-wait", false, "give up at once if another holder has the lock")
	f.DurationVar(&o.ttl, "ttl", relock.DefaultTTL, "lease: how long the lock stays taken if this machine dies")
	f.DurationVar(&o.maxHold, "max-hold", 0, "lose the lock after this time (default: no limit)")
	f.StringVar(&o.owner, "owner", "", "`name` of this run for show, ls and those who find the lock busy (default relock@ and the host)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say on stderr when the lock is taken and given back")
	f.BoolVar(&o.shared, "shared", false, "take a read-write lock for reading, beside other readers")
	f.BoolVar(&o.write, "write", false, "take a read-write lock for writing, alone")
	f.IntVar(&o.permits, "permits", 0, "take one of `n` permits of a semaphore")
}

// check refuses wrong values of these flags.
func (a *app) check(f *pflag.FlagSet, o *runOptions) error {
	o.waitSet, o.permitsSet = f.Changed("wait"), f.Changed("permits")
	a.conn.lease = o.ttl
	kinds := 0
	for _, is := range []bool{o.shared, o.write, o.permitsSet} {
		if is {
			kinds++
		}
	}
	mutexesOnly := a.conn.mutexesOnly()
	switch {
	case o.noWait && o.waitSet:
		return usage("--no-wait and --wait: only one of them")
	case o.wait < 0:
		return usage("--wait %s: must be 0 (do not wait) or longer; leave it out to wait without limit", o.wait)
	case o.grace < 0:
		return usage("--grace %s: must be 0 (SIGKILL at once) or longer", o.grace)
	case a.busy < 0 || a.busy > 255:
		return usage("--conflict-exit-code %d: must be from 0 to 255", a.busy)
	case kinds > 1:
		return usage("--shared, --write and --permits: only one of them")
	case kinds > 0 && mutexesOnly != "":
		return usage("%s: has mutexes only, and neither --shared, --write nor --permits", mutexesOnly)
	case o.permitsSet && o.permits < 1:
		return usage("--permits %d: must be 1 or more", o.permits)
	}
	o.noWait = o.noWait || o.waitSet && o.wait == 0
	return nil
}

// runner is one run of a command, or one hold.
type runner struct {
	*app
	runOptions
	names   []string       // of the locks, as given
	path    string         // of the program
	command []string       // the given name, and the arguments
	input   chan struct{}  // of hold: closed at the end of standard input
	waits   chan struct{}  // of hold: a wait for a lock has begun
	locks   []*relock.Lock // in the order of names
	all     entrance       // of all locks
	signals chan os.Signal
	conts   chan os.Signal     // SIGCONT
	told    chan struct{}      // after the hooks of each call that asks for the lock
	quit    context.CancelFunc // ends the context of the section, at the end of the run

	section context.Context // nil before the locks are taken
	began   time.Time
	tokens  []int64 // in the order of names; nil: none were drawn
	child   *child
	tty     *terminal      // nil: there is none
	stopped bool           // the terminal has stopped the child
	pressed syscall.Signal // the signal of the keyboard that has ended the child, or 0
	relayed syscall.Signal // the last signal that relock has forwarded
	lost    bool
	silent  bool // the server was silent at the end of the run
}

// run is the subcommand.
func (a *app) run(names, command []string, o runOptions) error {
	path, err := lookUp(command[0])
	if err != nil { // before anybody waits for this run
		return err
	}
	r := newRunner(a, names, o)
	r.path, r.command = path, command
	return r.under(r.work)
}

func newRunner(a *app, names []string, o runOptions) *runner {
	return &runner{app: a, runOptions: o, names: names, told: make(chan struct{}, 1)}
}

// under takes the locks, works, and gives the locks back.
func (r *runner) under(work func() (code int, err error)) error {
	options := []relock.Option{relock.WithTTL(r.ttl), relock.WithHooks(r.hooks()), relock.WithOwner(cmp.Or(r.owner, defaultOwner()))}
	if r.maxHold != 0 {
		options = append(options, relock.WithMaxHold(r.maxHold))
	}
	_, client, closeAll, err := r.client(options...)
	if err != nil {
		return r.failure(err)
	}
	if err := r.open(client); err != nil {
		return r.failure(err)
	}
	r.catch()
	err = r.hold(work)
	if !r.lost && !r.silent {
		// Close takes back the place in the queue of a wait that was given up. If Redis is silent,
		// the place stays: a grant to a client that is gone goes to the next one.
		closeAll(3 * time.Second)
	}
	return r.failure(err)
}

// defaultOwner returns relock@ and the name of this machine, with the characters that
// [relock.WithOwner] allows.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "relock"
	}
	owner := "relock@" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-", r):
			return r
		default:
			return '-'
		}
	}, host)
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

// endedBy is the exit for a signal that has ended the wait or the command. Relock dies of SIGINT,
// as a shell that has had SIGINT too goes on after a program that has not died of it.
func endedBy(s syscall.Signal) *exitError {
	e := &exitError{code: codeSignal + int(s)}
	if s == syscall.SIGINT && hasKeyboard() {
		e.by, e.alone = s, true
	}
	return e
}

// hold is under with an open client. The result has the code of the command.
func (r *runner) hold(work func() (code int, err error)) error {
	err := r.take()
	defer r.quit()
	if err != nil {
		return err
	}
	code, err := work()
	if unlockErr := r.release(code); unlockErr != nil && err == nil {
		err = unlockErr
	}
	switch {
	case err != nil || code == 0:
		return err
	case r.child != nil && r.child.diedOf != 0 && r.child.diedOf == r.relayed:
		return endedBy(r.child.diedOf)
	default:
		return &exitError{code: code, by: r.pressed}
	}
}

// take takes the lock, and draws the token. A signal ends the wait, and so does the end of hold's
// standard input.
func (r *runner) take() error {
	// A signal must not end the context of the section: the lock would not be renewed any more, and
	// the command may take its time to end.
	ctx, cancel := context.WithCancel(context.Background())
	r.quit = cancel
	type result struct {
		section context.Context // nil: not entered
		tokens  []int64
		err     error
	}
	done := make(chan result, 1)
	asked := time.Now()
	go func() {
		section, err := r.acquire(ctx)
		if err != nil {
			done <- result{err: err}
			return
		}
		tokens, err := r.draw(section)
		done <- result{section, tokens, err}
	}()
	var by syscall.Signal
	var got result
	var input <-chan struct{} // nil: a lock that is free is taken all the same
	for waiting := true; waiting; {
		select {
		case <-r.waits:
			input = r.input
		case <-input:
			input = nil
			cancel()
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && by == 0 && ends(sig) {
				by = sig
				cancel()
			}
		case got = <-done:
			waiting = false
		}
	}
	r.section, r.began, r.tokens = got.section, time.Now(), got.tokens
	if r.section != nil && (ctx.Err() != nil || got.err != nil) {
		_ = r.unlock()
	}
	switch {
	case by != 0:
		return endedBy(by)
	case ctx.Err() != nil:
		return &exitError{code: r.busy, word: kinds[codeBusy], err: fmt.Errorf("standard input has ended, and so has the wait for %s", quoted(r.names))}
	case got.err != nil:
		return got.err
	}
	r.tellTaken(asked)
	return nil
}

// tellTaken tells that the locks are taken.
func (r *runner) tellTaken(asked time.Time) {
	text := quoted(r.names) + " taken"
	switch len(r.tokens) {
	case 0:
	case 1:
		text += fmt.Sprintf(", token %d", r.tokens[0])
	default:
		text += ", tokens " + strings.Trim(fmt.Sprint(r.tokens), "[]")
	}
	r.tell(event{
		Event: "acquired", Holder: r.holder(), Mode: r.mode(), WaitedMs: new(r.began.Sub(asked).Milliseconds()),
		text: text, quiet: true,
	})
}

// draw draws the tokens for the command; none if the locks have no tokens.
func (r *runner) draw(section context.Context) ([]int64, error) {
	if r.conn.redisson == redissonPlain {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(section, r.conn.timeout)
	defer cancel()
	tokens := make([]int64, len(r.locks))
	for i, lock := range r.locks {
		var err error
		if tokens[i], err = lock.Token(ctx); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// acquire waits as the flags ask for. A wait with a limit goes on while Redis cannot be reached.
// Without a limit the first answer must come, as a wrong address would look like a busy lock for
// ever.
func (r *runner) acquire(ctx context.Context) (context.Context, error) {
	if r.waitSet && !r.noWait {
		defer r.afterHooks()
		return r.all.TryLockFor(ctx, r.wait)
	}
	section, err := r.tryOnce(ctx)
	if err == nil || r.noWait || !errors.Is(err, relock.ErrLocked) || ctx.Err() != nil {
		return section, err
	}
	if around := r.heldAround(ctx); around != nil {
		return section, heldAroundError{around}
	}
	defer r.afterHooks()
	return r.all.Lock(ctx)
}

// heldAround returns the refusal of a lock that can never become free: a run around this one has
// it. Of a semaphore all permits must be those of such runs.
func (r *runner) heldAround(ctx context.Context) *relock.LockedError {
	runs := holdersAround()
	if len(runs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.conn.timeout)
	defer cancel()
	for i, lock := range r.locks {
		state, err := lock.State(ctx)
		if err != nil || !state.Locked() {
			continue // the next question finds the error too
		}
		holds := append([]relock.Held{{Holder: state.Holder, TTL: state.TTL}}, state.Others...)
		isStranger := func(h relock.Held) bool { return !slices.Contains(runs, h.Holder.String()) }
		at := slices.IndexFunc(holds, func(h relock.Held) bool { return !isStranger(h) })
		if at < 0 || r.permitsSet && (len(holds) < r.permits || slices.ContainsFunc(holds, isStranger)) {
			continue
		}
		return &relock.LockedError{Name: r.names[i], Holder: holds[at].Holder, TTL: holds[at].TTL}
	}
	return nil
}

// heldAroundError is the refusal by a run around this one.
type heldAroundError struct{ *relock.LockedError }

func (e heldAroundError) Error() string {
	return fmt.Sprintf("%q is held by the relock run around this one, so without --wait it would wait for its own end", e.Name)
}

func (e heldAroundError) Unwrap() error { return e.LockedError }

// tryOnce is TryLock with a limit for the answer. The section has no limit.
func (r *runner) tryOnce(ctx context.Context) (context.Context, error) {
	asking, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(r.conn.timeout, func() { cancel(context.DeadlineExceeded) })
	defer r.afterHooks()
	section, err := r.all.TryLock(asking)
	if !limit.Stop() && err == nil {
		// The limit came at the same moment, and has ended the context of the section.
		_ = r.all.Unlock(section)
		return ctx, context.DeadlineExceeded
	}
	return section, err
}

func (r *runner) hooks() relock.Hooks {
	entered := 0
	return relock.Hooks{Queued: r.queued, AcquireFinished: func(e relock.AcquireFinished) {
		if e.Outcome == relock.OutcomeAcquired {
			if entered++; entered < len(r.locks) {
				return // the call goes on with the next lock
			}
		}
		entered = 0
		r.told <- struct{}{}
	}}
}

// afterHooks waits until the hooks of a call that asked for the locks were called, so that the
// events are printed in order.
func (r *runner) afterHooks() { <-r.told }

// queued is the hook for the beginning of the wait for a lock. At a terminal the event is printed
// without --verbose.
func (r *runner) queued(q relock.Queued) {
	select {
	case r.waits <- struct{}{}:
	default:
	}
	e := event{
		Event: "waiting", lockName: lockName{Name: q.Name}, Holder: q.Holder.String(), Mode: q.Mode,
		text: fmt.Sprintf("%q is locked, waiting", q.Name), quiet: !term.IsTerminal(int(os.Stderr.Fd())),
	}
	if r.conn.redisson == "" { // Redisson's locks have no queue
		e.Position = new(q.Position)
		e.text += fmt.Sprintf("; %d before this", q.Position)
	}
	r.tell(e)
}

// holder returns the holder of the lock.
func (r *runner) holder() string {
	h, _ := relock.HolderFrom(r.section)
	return h.String()
}

// holdersAround returns the holders of the runs around this one.
func holdersAround() []string { return strings.Fields(os.Getenv(envHolders)) }

// environment returns the environment of relock, with variables about the lock.
func (r *runner) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case envToken, envTokens, envName, envHolder, envHolders, envSentinelUser, envSentinelPassword: // not for the command
		default:
			env = append(env, v)
		}
	}
	holders := strings.Join(append(holdersAround(), r.holder()), " ")
	tokens := r.tokenTexts()
	env = append(env, envTokens+"="+strings.Join(tokens, " "), envHolder+"="+r.holder(), envHolders+"="+holders)
	if len(r.names) == 1 { // a command that knows one lock only must not take one of several for all
		env = append(env, envToken+"="+tokens[0], envName+"="+r.names[0])
	}
	return env
}

// work runs the command to its end, and returns its exit code.
func (r *runner) work() (code int, err error) {
	select {
	case s := <-r.signals: // since the lock was taken
		if sig, ok := s.(syscall.Signal); ok && ends(sig) {
			return 0, endedBy(sig)
		}
	default:
	}
	if r.section.Err() != nil { // as after a long stop of this machine, or of relock
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
			r.child.diedOf = e.by
			if r.lost {
				r.clear(kill)
				return e.code, &exitError{code: codeLost} // reported at the loss
			}
			return e.code, nil
		case <-lost:
			lost = nil
			adopt() // before any process of the command ends
			kill = r.stop()
		case <-kill:
			kill = nil
			r.killGroup()
		}
	}
}

// stop sends the command SIGTERM, as the lock is lost, and returns the clock of the grace.
func (r *runner) stop() <-chan time.Time {
	r.lost = true
	timer := time.After(r.grace)
	var err error
	if r.grace > 0 {
		err = r.child.signal(syscall.SIGTERM)
		r.wake() // a stopped command handles no signal
	}
	r.tellLost("; stopping the command")
	if err != nil {
		r.tellUnstopped(err.Error())
	}
	return timer
}

// tellLost tells why a lock is lost, and what comes next.
func (r *runner) tellLost(next string) {
	cause := context.Cause(r.section)
	e := event{
		Event: "lost", Error: kinds[codeLost], HeldMs: r.held(), text: strings.TrimPrefix(cause.Error(), "relock: ") + next,
	}
	if r.child != nil {
		e.Pid = r.child.pid
	}
	var loss *relock.LostError
	if errors.As(cause, &loss) {
		e.Name, e.Reason, e.Token = loss.Name, string(loss.Reason), loss.Token
	}
	r.tell(e)
}

// killGroup sends the command SIGKILL.
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

// tellUnstopped reports that the command, or a part of it, works on without the lock.
func (r *runner) tellUnstopped(why string) {
	r.tell(event{
		Event: "unstopped", Pid: r.child.pid, Message: why,
		text: fmt.Sprintf("%s cannot be stopped: %s", r.command[0], why),
	})
}

// clear waits for the rest of the command's process group, whose first process has ended, and kills
// the rest at the end of the grace. kill is nil if SIGKILL was sent.
func (r *runner) clear(kill <-chan time.Time) {
	const (
		look  = 10 * time.Millisecond // the system reports no end of a group
		dying = 2 * time.Second       // the system may need time to end a process
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

// release gives the locks back, also those that are left of several after a loss. The exit code of
// the command is for the message.
func (r *runner) release(code int) error {
	if r.lost {
		if len(r.names) > 1 { // the other locks are ours
			_ = r.unlock()
		}
		return nil
	}
	unlockErr := r.unlock()
	if errors.Is(unlockErr, relock.ErrLockLost) {
		// The release has found the loss. The command may have done its last work without the lock.
		if r.input == nil {
			unlockErr = fmt.Errorf("%w (the command had ended with %d)", unlockErr, code)
		}
		return &exitError{code: codeLost, err: unlockErr}
	}
	e := event{Event: "released", HeldMs: r.held(), text: quoted(r.names) + " given back", quiet: true}
	if unlockErr != nil {
		// The work was done under the lock. A longer wait of others is no failure of the command.
		message := strings.TrimPrefix(unlockErr.Error(), "relock: ")
		e = event{Event: "unconfirmed", Error: kinds[codeUnavailable], Message: message, text: message}
	}
	r.tell(e)
	return nil
}

// unlock is Unlock within --timeout. A signal leaves it a moment, as the command has ended and the
// signal is for relock.
func (r *runner) unlock() error {
	const moment = time.Second
	done := make(chan error, 1)
	go func() { done <- r.all.Unlock(r.section) }()
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
		return fmt.Errorf("unlock %s: not confirmed by the server in time: it is free within its TTL", quoted(r.names))
	}
}

func (r *runner) held() *int64 { return new(time.Since(r.began).Milliseconds()) }
