package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// killWithParent has the kernel kill the program when the thread that starts it ends; see Start.
func killWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// stopped reports whether every thread of the process is stopped.
func stopped(pid int) bool {
	stats, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			return false
		}
		// "pid (name) state ...", and the name may contain anything.
		_, rest, ok := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
		if !ok || len(rest) == 0 || rest[0] != 'T' {
			return false
		}
	}
	return len(stats) > 0
}
