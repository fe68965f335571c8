//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the command gets when relock gets them.
var forwarded = []syscall.Signal{
	unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
}

// ends says whether a signal would end a program that does not care about it, as relock is while it waits.
func ends(s syscall.Signal) bool { return s != unix.SIGWINCH && s != unix.SIGTSTP }

// child is the command: a process, and its process group, which has the same number.
type child struct {
	pid    int
	events chan childEvent
	ready  chan struct{}                         // closed: we want to hear of its stops and its end
	kill   func(pid int, s syscall.Signal) error // the system's, but for tests
}

// childEvent says that the first process of the command was stopped, or has ended.
type childEvent struct {
	stop  syscall.Signal
	ended bool
	code  int // as a shell says it
	by    syscall.Signal
}

func (e childEvent) signalName() string {
	if e.by == 0 {
		return ""
	}
	return unix.SignalName(e.by)
}

// startChild starts the command in a process group of its own, with our files and directory.
func startChild(path string, command, env []string) (*child, error) {
	c := &child{events: make(chan childEvent, 16), ready: make(chan struct{}), kill: unix.Kill}
	started := make(chan error, 1)
	go c.tend(path, command, env, started)
	return c, <-started
}

// tend starts the command and waits for it. It is the wait of the system itself, because that of package os does not tell
// when a process is stopped.
func (c *child) tend(path string, command, env []string, started chan<- error) {
	// Linux sends the parent-death signal when the thread that forked ends, so this one stays for as long as we do.
	runtime.LockOSThread()
	p, err := spawn(path, command, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: inOwnGroup()})
	if err != nil {
		started <- err
		return
	}
	c.pid = p.Pid
	_ = p.Release() // package os has no more to do with it
	started <- nil
	<-c.ready
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(c.pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // somebody else has waited for it; there is nobody else
			c.events <- childEvent{ended: true, code: codeInternal}
			return
		case status.Stopped():
			c.events <- childEvent{stop: status.StopSignal()}
		case status.Signaled():
			c.events <- childEvent{ended: true, code: codeSignal + int(status.Signal()), by: status.Signal()}
			return
		case status.Exited():
			c.events <- childEvent{ended: true, code: status.ExitStatus()}
			return
		}
	}
}

// spawn starts a program as a shell would: what the system does not know and is text is a script.
func spawn(path string, command []string, attr *os.ProcAttr) (*os.Process, error) {
	p, err := os.StartProcess(path, command, attr)
	if errors.Is(err, unix.ENOEXEC) && isText(path) {
		return os.StartProcess(shell, append([]string{shell, path}, command[1:]...), attr)
	}
	return p, err
}

const shell = "/bin/sh"

// isText says whether a file begins as text does.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.Read(head)
	return bytes.IndexByte(head[:n], 0) < 0
}

// listen begins to tell events. What has stopped the command before, and was undone by a SIGCONT, is none.
func (c *child) listen() { close(c.ready) }

// signal reaches every process of the command that has not left its group. That nobody is left is no failure.
func (c *child) signal(s syscall.Signal) error {
	if err := c.kill(-c.pid, s); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// groupLives says whether any process of the group is left, after the first has ended.
func (c *child) groupLives() bool {
	// Those whose parent has ended may be ours to wait for: see adopt, or we are the first process of a container.
	for pid := 1; pid > 0; {
		pid, _ = unix.Wait4(-c.pid, nil, unix.WNOHANG, nil)
	}
	return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH)
}
