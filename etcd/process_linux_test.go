package relocketcd_test

import (
	"os/exec"
	"syscall"
)

// killWithParent has the kernel kill the program when the thread that starts it ends.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
