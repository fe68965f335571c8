//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Job control. The command has a process group of its own, so relock is between the command and the
// shell. Relock does for the command what a shell does for a job:
//
//   - At a terminal (standard input and output are one, and relock is in the foreground) the group
//     of the command becomes the foreground: the command reads the keyboard, and Ctrl-C goes to the
//     command and not to relock. At the end relock takes the terminal back. If Ctrl-C has ended the
//     command, relock signals its own group too, as Ctrl-C would have done without relock.
//   - In a pipeline other processes of the group may want the terminal. The command gets the
//     terminal only on demand, that is, when the system stops the command for lack of it.
//   - When the command is stopped by Ctrl-Z, or in another way while the command has the terminal,
//     relock stops with its whole group, so that the shell notices. Nothing is renewed meanwhile.
//     When the shell continues relock, the command goes on if the lock is still held, and is ended
//     if not.

// terminal is the controlling terminal.
type terminal struct {
	fd    int
	modes *term.State // at the beginning, nil if not known
	given bool        // to the command
}

// openTerminal returns nil if there is no controlling terminal.
func openTerminal() *terminal {
	// Not os.OpenFile, which would make it non-blocking.
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	modes, _ := term.GetState(fd)
	return &terminal{fd: fd, modes: modes}
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
	if t.foreground() == unix.Getpgrp() && unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, c.pid) == nil {
		t.given = true
	}
}

// take makes relock the foreground again after give. The foreground may be a job of the command by
// now, if the command is a shell.
func (t *terminal) take() {
	if t.given {
		t.given = false
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// check is called after a SIGCONT: if relock was stopped, a shell has taken the terminal from the
// command.
func (t *terminal) check(c *child) {
	if t != nil && t.foreground() != c.pid {
		t.given = false
	}
}

// hearStops is called before and after the start of the command. A Ctrl-Z during the start must
// stop the command too, so relock listens from before. If relock ignores Ctrl-Z, the command must
// inherit that, so relock listens from after the start.
func (r *runner) hearStops(started bool) {
	if started == ignores(unix.SIGTSTP) {
		signal.Notify(r.signals, unix.SIGTSTP)
		signal.Notify(r.conts, unix.SIGCONT)
	}
}

// begin is called when the command has started.
func (t *terminal) begin(r *runner) {
	if t == nil {
		return
	}
	// SIGTTOU would stop relock when relock takes the terminal back from the background. Relock
	// does not ignore it before the start, as the command would inherit that.
	signal.Ignore(unix.SIGTTOU)
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		t.give(r.child)
		if t.given {
			_ = r.child.signal(unix.SIGCONT) // the command may have been stopped for reading before
		}
	}
}

// end is called when the command has ended.
func (t *terminal) end(r *runner) {
	if t == nil {
		return
	}
	select {
	case <-r.conts:
		t.check(r.child)
	default:
	}
	was := t.given
	t.take()
	if was && r.child.diedOf != 0 {
		if t.modes != nil {
			_ = term.Restore(t.fd, t.modes) // the command had no time to restore them
		}
		if (r.child.diedOf == unix.SIGINT || r.child.diedOf == unix.SIGQUIT) && r.child.diedOf != r.relayed {
			r.pressed = r.child.diedOf
		}
	}
	_ = unix.Close(t.fd)
}

// hasKeyboard says whether a signal of the keyboard reaches the group of relock.
func hasKeyboard() bool {
	t := openTerminal()
	if t == nil {
		return false
	}
	defer unix.Close(t.fd)
	return t.foreground() == unix.Getpgrp()
}

// interrupt sends a signal of the keyboard to the process group of relock, or to relock alone if
// the rest of the group has had the signal. The signal ends relock.
func interrupt(by syscall.Signal, alone bool) {
	if by == unix.SIGINT { // after SIGQUIT the Go runtime would print its goroutines
		signal.Reset(by)
	}
	whom := 0
	if alone {
		whom = unix.Getpid()
	}
	_ = unix.Kill(whom, by)
	if by == unix.SIGINT {
		const delivered = time.Second
		<-time.After(delivered)
	}
}

// forward sends a signal to the command.
func (r *runner) forward(s os.Signal) {
	if sig, ok := s.(syscall.Signal); ok {
		r.relayed = sig
		_ = r.child.signal(sig) // processes of other users get no signals
	}
}

// childStopped is called when the command's first process was stopped.
func (r *runner) childStopped(by syscall.Signal) {
	switch {
	case r.lost:
		r.stopped = by == unix.SIGTTIN || by == unix.SIGTTOU // the command wants to tidy up
		r.wake()
	case r.tty == nil:
		// Whoever has stopped the command continues it. The lock is kept.
	case by == unix.SIGTTIN || by == unix.SIGTTOU:
		r.stopped = true
		if r.tty.foreground() == unix.Getpgrp() {
			r.wake() // with the terminal
		} else { // another group has it, or a run inside of the command has stopped all, see stopSelf
			r.suspend()
		}
	case by == unix.SIGTSTP || r.tty.foreground() == r.child.pid: // nobody else could continue it
		r.stopped = true
		r.suspend()
	}
}

// suspend stops relock, and returns after a SIGCONT.
func (r *runner) suspend() {
	r.tty.take()
	stopSelf(r.conts)
	r.resume()
}

// stopSelf stops the process group of relock, and returns when a shell continues the group. conts
// gets SIGCONT.
func stopSelf(conts <-chan os.Signal) {
	// SIGTSTP is caught, and the Go runtime never gives a caught signal back to the system. SIGTTIN
	// stops a process in the same way. Neither stops a process of an orphaned group, which no shell
	// could continue.
	_ = unix.Kill(0, unix.SIGTTIN)
	// The stop comes with some delay. SIGCONT proves that the stop has happened.
	const orphaned = 250 * time.Millisecond
	timer := time.NewTimer(orphaned)
	defer timer.Stop()
	select {
	case <-conts:
	case <-timer.C:
	}
}

// resume is called after a SIGCONT.
func (r *runner) resume() {
	r.tty.check(r.child)
	if !r.lost && !r.isHeld() {
		return // the loss is reported, and the command ended, at once
	}
	r.wake()
}

// wake continues the command. If the command had the terminal, or was stopped for lack of it, the
// command gets it again.
func (r *runner) wake() {
	if r.tty != nil && r.stopped {
		r.tty.give(r.child)
	}
	r.stopped = false
	_ = r.child.signal(unix.SIGCONT)
}

// listenScreen reports a new size of the screen, a stop by the shell, and the end of that stop.
func listenScreen(resized, stop, conts chan os.Signal) {
	signal.Notify(resized, unix.SIGWINCH)
	signal.Notify(stop, unix.SIGTSTP)
	signal.Notify(conts, unix.SIGCONT)
}
