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

// Job control. The command has a process group of its own, so relock stands between it and the shell, and does for it what
// a shell does for a job:
//
//   - At a terminal (standard input and output are one, and we are in its foreground) the command's group becomes the
//     foreground: it reads the keyboard, and Ctrl-C goes to it, not to us. At the end the terminal is taken back. If it was
//     Ctrl-C that ended the command, our own group is told too: without us it would have heard of it.
//   - In a pipeline or the like others of our group may want the terminal, so the command gets it only if it asks, that
//     is, if the system stops it for that.
//   - When the command is stopped by Ctrl-Z, or in another way while it has the terminal, we stop too, with our whole group, so
//     that the shell notices. A lock is not renewed meanwhile. When the shell lets us go on, the command goes on if the lock is
//     still ours, and is ended if not.

// terminal is the controlling terminal.
type terminal struct {
	fd    int
	modes *term.State // as they were, nil if not known
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

// foreground is the process group that has the keyboard.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

// give makes the command the foreground, if that is ours to give.
func (t *terminal) give(c *child) {
	if t.foreground() == unix.Getpgrp() && unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, c.pid) == nil {
		t.given = true
	}
}

// take makes us the foreground again, if we gave that away. By now it may be a job of a shell that the command is.
func (t *terminal) take() {
	if t.given {
		t.given = false
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// check is called when somebody lets us go on: if we were stopped, a shell has taken the terminal from the command.
func (t *terminal) check(c *child) {
	if t != nil && t.foreground() != c.pid {
		t.given = false
	}
}

// hearStops is called when the command is about to start, and when it has: a Ctrl-Z that comes at its first moment must stop it too,
// and not us alone. But where we ignore Ctrl-Z the command is to do so too, which it would not if we had begun to hear it before.
func (r *runner) hearStops(started bool) {
	if started == ignores(unix.SIGTSTP) {
		signal.Notify(r.signals, unix.SIGTSTP)
		signal.Notify(r.conts, unix.SIGCONT)
	}
}

// begin is called when the command has just started.
func (t *terminal) begin(r *runner) {
	if t == nil {
		return
	}
	// Who takes the terminal back from the background would be stopped for it. Not before the start: what is ignored is
	// ignored by the command too.
	signal.Ignore(unix.SIGTTOU)
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		t.give(r.child)
		if t.given {
			_ = r.child.signal(unix.SIGCONT) // it may have been stopped for reading before
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
	if was && r.diedOf != 0 {
		if t.modes != nil {
			_ = term.Restore(t.fd, t.modes) // it had no time to do so
		}
		if (r.diedOf == unix.SIGINT || r.diedOf == unix.SIGQUIT) && r.diedOf != r.relayed {
			r.pressed = r.diedOf
		}
	}
	_ = unix.Close(t.fd)
}

// hasKeyboard says whether a signal of the keyboard would come to us, and to all of our group.
func hasKeyboard() bool {
	t := openTerminal()
	if t == nil {
		return false
	}
	defer unix.Close(t.fd)
	return t.foreground() == unix.Getpgrp()
}

// interrupt does to our process group what the keyboard did to the command's, or to us alone what it has done to the rest of the
// group. For us it is the end.
func interrupt(by syscall.Signal, alone bool) {
	if by == unix.SIGINT { // after SIGQUIT the Go runtime would say what it was doing; the exit code has to do
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

// forward hands a signal on.
func (r *runner) forward(s os.Signal) {
	if sig, ok := s.(syscall.Signal); ok {
		r.relayed = sig
		_ = r.child.signal(sig) // whom it must not reach it does not concern
	}
}

// childStopped is called when the command's first process was stopped.
func (r *runner) childStopped(by syscall.Signal) {
	switch {
	case r.lost:
		r.stopped = by == unix.SIGTTIN || by == unix.SIGTTOU // it wants to tidy up
		r.wake()
	case r.tty == nil:
		// Nobody but the one who stopped it can want it to go on. The lock is kept.
	case by == unix.SIGTTIN || by == unix.SIGTTOU:
		r.stopped = true
		if r.tty.foreground() == unix.Getpgrp() {
			r.wake() // with the terminal
		} else { // it is another's; or the command's, and then it is a run inside this one that has stopped all, see stopSelf
			r.suspend()
		}
	case by == unix.SIGTSTP || r.tty.foreground() == r.child.pid: // with the terminal nobody else could let it go on, nor end it
		r.stopped = true
		r.suspend()
	}
}

// suspend stops us, and returns when we may go on.
func (r *runner) suspend() {
	r.tty.take()
	stopSelf(r.conts)
	r.resume()
}

// stopSelf stops our process group, and returns when a shell lets it go on, which conts tells.
func stopSelf(conts <-chan os.Signal) {
	// Not SIGTSTP: we catch it, and once caught the Go runtime never gives it back to the system. Both stop a process by
	// default, unless no shell could ever let it go on (its group is orphaned): then nothing happens, and all goes on at
	// once.
	_ = unix.Kill(0, unix.SIGTTIN)
	// The stop comes with some delay; SIGCONT is the proof that it was there.
	const orphaned = 250 * time.Millisecond
	timer := time.NewTimer(orphaned)
	defer timer.Stop()
	select {
	case <-conts:
	case <-timer.C:
	}
}

// resume is called when somebody lets us go on.
func (r *runner) resume() {
	r.tty.check(r.child)
	if !r.lost && !r.lock.Held(r.section) {
		return // while we were stopped; that is told, and the command ended, at once
	}
	r.wake()
}

// wake lets the command go on, with the terminal if that is ours and it had it before, or has asked for it.
func (r *runner) wake() {
	if r.tty != nil && r.stopped {
		r.tty.give(r.child)
	}
	r.stopped = false
	_ = r.child.signal(unix.SIGCONT)
}

// listenScreen tells when a screen is not what it was any more, when it should be left for the shell, and when it is back.
func listenScreen(resized, stop, conts chan os.Signal) {
	signal.Notify(resized, unix.SIGWINCH)
	signal.Notify(stop, unix.SIGTSTP)
	signal.Notify(conts, unix.SIGCONT)
}
