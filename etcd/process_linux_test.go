package relocketcd_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// killWithParent has the kernel kill the program when the thread that starts it ends.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped says whether every thread of a process is stopped.
func stopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, stat := range stats {
		line, err := os.ReadFile(stat)
		_, state, found := bytes.Cut(line, []byte(") ")) // behind the name of the program
		if err != nil || !found || state[0] != 'T' {
			return false
		}
	}
	return len(stats) > 0
}
