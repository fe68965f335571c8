package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// inOwnGroup has the command begin a process group. If relock is killed with SIGKILL, nobody renews the lock any more, so
// the system then tells the command to end, which has most of a lease for it.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// ignores says whether we ignore a signal, of which package signal knows only for some.
func ignores(s syscall.Signal) bool {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(status, []byte("\nSigIgn:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	ignored, _ := strconv.ParseUint(string(line), 16, 64)
	return ignored>>(s-1)&1 == 1
}

// adopt makes the processes of the command ours when their parents end. The first process of a container often does not
// ask how others have ended, and until somebody does they look as if they were still there.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
