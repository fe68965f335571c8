//go:build !linux

package zktest

import "os/exec"

// launch starts a process. The returned channel is closed when the process has ended.
func launch(cmd *exec.Cmd) (done chan struct{}, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	return done, nil
}
