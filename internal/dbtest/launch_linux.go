package dbtest

import (
	"os/exec"
	"syscall"
)

// killWithParent has the kernel kill the program when the thread that starts it ends; see launch.
func killWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }
