//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that relock forwards to the command.
var forwarded = []syscall.Signal{
	unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
}

// child is the command: a process, and a process group with the same number.
type child struct {
	pid    int
	events chan childEvent
	ready  chan struct{} // closed: send events; an earlier stop that a SIGCONT has undone is none
}

// childEvent reports that the first process of the command was stopped, or has ended.
type childEvent struct {
	stop syscall.Signal // 0: it has ended
	code int            // as in a shell
	by   syscall.Signal // that has ended it, or 0
}

func (e childEvent) signalName() string {
	if e.by == 0 {
		return ""
	}
	return unix.SignalName(e.by)
}

// startChild starts the command in a new process group, with the files and the directory of relock.
func startChild(path string, command, env []string) (*child, error) {
	c := &child{events: make(chan childEvent, 16), ready: make(chan struct{})}
	started := make(chan error, 1)
	go c.tend(path, command, env, started)
	return c, <-started
}

// tend starts the command and waits for its events with wait4, as package os does not report a
// stop.
func (c *child) tend(path string, command, env []string, started chan<- error) {
	// Linux sends the parent-death signal at the end of the thread that forked. This thread lasts
	// as long as relock.
	runtime.LockOSThread()
	p, err := os.StartProcess(path, command, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: inOwnGroup()})
	if err != nil {
		started <- err
		return
	}
	c.pid = p.Pid
	_ = p.Release() // package os must not wait for the process
	started <- nil
	<-c.ready
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(c.pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // another part of relock has waited for the process; there is none
			c.events <- childEvent{code: codeInternal}
			return
		case status.Stopped():
			c.events <- childEvent{stop: status.StopSignal()}
		case status.Signaled():
			c.events <- childEvent{code: codeSignal + int(status.Signal()), by: status.Signal()}
			return
		case status.Exited():
			c.events <- childEvent{code: status.ExitStatus()}
			return
		}
	}
}

// signal sends a signal to every process of the group. An empty group is no failure.
func (c *child) signal(s syscall.Signal) error {
	if err := unix.Kill(-c.pid, s); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// groupLives says whether any process of the group is left after the end of the first one.
func (c *child) groupLives() bool {
	// Relock may be the parent of orphans: see adopt, or relock is the first process of a
	// container.
	for pid := 1; pid > 0; {
		pid, _ = unix.Wait4(-c.pid, nil, unix.WNOHANG, nil)
	}
	return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH)
}
