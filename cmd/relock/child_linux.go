package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// inOwnGroup has the command begin a process group. If relock is killed with SIGKILL, nobody renews the lock any more, so
// the system then tells the command to end, which has most of a lease for it.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// adopt makes the processes of the command ours when their parents end. The first process of a container often does not
// ask how others have ended, and until somebody does they look as if they were still there.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
