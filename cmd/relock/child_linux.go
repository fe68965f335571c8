package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// inOwnGroup makes the command begin a process group. If relock is killed with SIGKILL, nobody
// renews the lock any more, so the system sends the command SIGTERM. The command has most of a
// lease to end.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// ignores says whether relock ignores a signal. Package signal knows that only for some signals.
func ignores(s syscall.Signal) bool {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(status, []byte("\nSigIgn:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	ignored, _ := strconv.ParseUint(string(line), 16, 64)
	return ignored>>(s-1)&1 == 1
}

// adopt makes relock the parent of processes of the command whose parents end. The first process of
// a container often waits for nobody, and a process that nobody waits for looks alive.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
