package zktest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// launch starts a process that ends with this one. The returned channel is closed when the process
// has ended. Linux watches the thread that starts the process, so a goroutine keeps that thread.
func launch(cmd *exec.Cmd) (done chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	return done, <-started
}
