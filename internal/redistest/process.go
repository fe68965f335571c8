package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a program started by this package. One goroutine starts it, waits
// for it and ends with it; whoever called startProcess must see to it that the
// program ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended

	err error // how it ended; readable once done is closed
}

// startProcess starts cmd so that it is killed when the test binary dies, where
// the system can do that.
func startProcess(cmd *exec.Cmd) (*process, error) {
	killWithParent(cmd)
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux sends the parent-death signal when the *thread* that forked
		// ends. So the goroutine keeps its thread for as long as the program
		// runs, and never gives it back: the thread then ends with it.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill sends SIGKILL and waits for the end. It works on a stopped program too.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("process %d is still there 10s after SIGKILL", p.pid())
	}
}

// pause sends SIGSTOP and returns when the program has stopped: the signal alone
// only asks for it, and a test must not race with the last moments.
func (p *process) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return poll(10*time.Second, func() error {
		if !p.alive() {
			return permanent(fmt.Errorf("process %d ended instead of stopping: %v", p.pid(), p.err))
		}
		if !stopped(p.pid()) {
			return fmt.Errorf("process %d has not stopped after SIGSTOP", p.pid())
		}
		return nil
	})
}

// Stopped reports whether every thread of a process is stopped, as after SIGSTOP.
func Stopped(pid int) bool { return stopped(pid) }

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// permanentError ends a poll at once.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

// poll calls try every few milliseconds until it returns nil, and returns the
// last error when the time is up.
func poll(within time.Duration, try func() error) error {
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := try()
		var stop permanentError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &stop):
			return stop.error
		case time.Now().After(deadline):
			return fmt.Errorf("after %v: %w", within, err)
		}
		time.Sleep(pause)
	}
}

// tail returns the last lines of a log, for failure messages.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
