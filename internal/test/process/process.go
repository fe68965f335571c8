// Package process runs the servers and other programs that tests need.
//
// On Linux a program is killed when the process that started it dies. Elsewhere the program stays.
package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// limit bounds the waits for the end of a program, and for its stop.
const limit = 10 * time.Second

// Process is a program that was started. Its methods may be called by several goroutines.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // readable when done is closed
	log  string
}

// Start starts a program. The caller sees to it that the program ends, by [Process.Kill] or
// [Process.Stop].
func Start(cmd *exec.Cmd) (*Process, error) {
	killWithParent(cmd)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux sends the signal of killWithParent when the thread that started the program ends.
		// So this goroutine keeps its thread for as long as the program runs, and ends with the
		// thread.
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

// StartLogged is [Start] of a program whose output goes to the end of a file.
func StartLogged(cmd *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the program has its own
	cmd.Stdout, cmd.Stderr = file, file
	p, err := Start(cmd)
	if err == nil {
		p.log = log
	}
	return p, err
}

// ErrEnded says that a program has ended before it was ready.
var ErrEnded = errors.New("the server has ended")

// Ready asks a server until ready returns nil. The error of a server that has ended, or is not
// ready in time, has the end of its log.
func (p *Process) Ready(within time.Duration, ready func() error) error {
	for late := time.After(within); ; {
		err := ready()
		if err == nil {
			return nil
		}
		text, _ := os.ReadFile(p.log)
		text = text[max(0, len(text)-3000):]
		select {
		case <-p.done:
			return fmt.Errorf("%w: %w\n%s", ErrEnded, p.err, text)
		case <-late:
			return fmt.Errorf("the server does not answer in %v: %w\n%s", within, err, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the program has ended, as [exec.Cmd.Wait] does. It is for calls after Done.
func (p *Process) Err() error { return p.err }

// Alive says whether the program runs, or is stopped by [Process.Pause].
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill sends SIGKILL and waits for the end. A stopped program ends too. The end of a program that
// has ended is no error.
func (p *Process) Kill() error { return p.Stop(syscall.SIGKILL) }

// Stop sends a signal, SIGKILL if the program has not ended after 10 s, and waits for the end.
func (p *Process) Stop(signal os.Signal) error {
	for _, signal := range []os.Signal{signal, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(limit):
		}
	}
	return fmt.Errorf("process %d is still there %v after SIGKILL", p.Pid(), limit)
}

// Pause sends SIGSTOP and returns when all threads of the program have stopped.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for late := time.After(limit); !stopped(p.Pid()); {
		select {
		case <-p.done:
			return fmt.Errorf("process %d ended instead of stopping: %w", p.Pid(), p.err)
		case <-late:
			return fmt.Errorf("process %d has not stopped %v after SIGSTOP", p.Pid(), limit)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// Resume lets a stopped program go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// FreePorts returns n ports of the loopback device on which nobody listens now. Another process can
// take one before the program that it is for.
func FreePorts(n int) (ports []int, err error) {
	for range n {
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
