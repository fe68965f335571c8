//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/go-relock/relock"
)

// Job control. The command has a process group of its own, so relock is between the command and the
// shell. Relock does for the command what a shell does for a job:
//
//   - At a terminal (standard input and output are one, and relock is in the foreground) the group
//     of the command becomes the foreground: the command reads the keyboard, and Ctrl-C goes to the
//     command and not to relock. At the end relock takes the terminal back. If Ctrl-C has ended the
//     command, relock sends its own group SIGINT, as Ctrl-C would have done without relock.
//   - In a pipeline other processes of the group may want the terminal. The command gets the
//     terminal only on demand, that is, when the system stops the command for lack of it.
//   - When the command is stopped by Ctrl-Z, or in another way while the command has the terminal,
//     relock stops with its whole group, so that the shell notices. Nothing is renewed meanwhile.
//     When the shell continues relock, the command goes on if the lock is still held, and is ended
//     if not.

// terminal is the controlling terminal. Its methods do nothing for nil.
type terminal struct {
	fd    int
	given bool // to the command
}

// openTerminal returns nil if there is no controlling terminal.
func openTerminal() *terminal {
	// Not os.OpenFile, which would make it non-blocking.
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &terminal{fd: fd}
}

// foreground returns the process group that has the keyboard, -1 if unknown.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

// give makes the command the foreground if relock is the foreground.
func (t *terminal) give(c *child) {
	if t != nil && t.foreground() == unix.Getpgrp() {
		t.given = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, c.pid) == nil
	}
}

// take makes relock the foreground again after give. The foreground may be a job of the command by
// now, if the command is a shell.
func (t *terminal) take() {
	if t != nil && t.given {
		t.given = false
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// begin is called when the command has started.
func (t *terminal) begin(c *child) {
	if t == nil {
		return
	}
	// SIGTTOU would stop relock when relock takes the terminal back from the background. Relock
	// does not ignore it before the start, as the command would inherit that.
	signal.Ignore(unix.SIGTTOU)
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		t.give(c)
		_ = c.signal(unix.SIGCONT) // the command may have been stopped for reading before
	}
}

// dieOfInterrupt ends relock by SIGINT, with its process group if that has not had the signal.
func dieOfInterrupt(group bool) {
	const delivered = time.Second // the signal may be ignored
	signal.Reset(unix.SIGINT)
	whom := unix.Getpid()
	if group {
		whom = 0
	}
	_ = unix.Kill(whom, unix.SIGINT)
	<-time.After(delivered)
}

// childStopped is called when the command's first process was stopped.
func (r *runner) childStopped(by syscall.Signal) {
	wantsTerminal := by == unix.SIGTTIN || by == unix.SIGTTOU
	switch {
	case r.lost:
		r.stopped = wantsTerminal // to tidy up
		r.wake()
	case r.tty == nil:
		// Whoever has stopped the command continues it. The lock is kept.
	case wantsTerminal && r.tty.foreground() == unix.Getpgrp():
		r.stopped = true
		r.wake()
	case wantsTerminal, by == unix.SIGTSTP, r.tty.foreground() == r.child.pid:
		// A shell has to continue the command: another group has the terminal, a run inside of the
		// command has stopped all (see suspend), or nobody else could.
		r.stopped = true
		r.suspend()
	}
}

// suspend stops the process group of relock, and returns when a shell has continued the group.
func (r *runner) suspend() {
	const orphaned = 250 * time.Millisecond
	r.tty.take()
	// SIGTSTP is caught, and the Go runtime never gives a caught signal back to the system. SIGTTIN
	// stops a process in the same way. Neither stops a process of an orphaned group, which no shell
	// could continue.
	_ = unix.Kill(0, unix.SIGTTIN)
	select { // the stop comes with some delay, and SIGCONT proves it
	case <-r.conts:
	case <-time.After(orphaned):
	}
	r.resume()
}

// resume is called after a SIGCONT. If relock was stopped, a shell has taken the terminal from the
// command.
func (r *runner) resume() {
	if r.tty != nil && r.tty.foreground() != r.child.pid {
		r.tty.given = false
	}
	isLost := slices.ContainsFunc(r.locks, func(l *relock.Lock) bool { return !l.Held(r.section) })
	if r.lost || !isLost { // otherwise the loss is reported, and the command ended, at once
		r.wake()
	}
}

// wake continues the command. If the command had the terminal, or was stopped for lack of it, the
// command gets it again.
func (r *runner) wake() {
	if r.stopped {
		r.tty.give(r.child)
	}
	r.stopped = false
	_ = r.child.signal(unix.SIGCONT)
}
