package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// inOwnGroup makes the command begin a process group. If relock is killed with SIGKILL, nobody
// renews the lock any more, so the system sends the command SIGTERM. The command has most of a
// lease to end.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// adopt makes relock the parent of processes of the command whose parents end. The first process of
// a container often waits for nobody, and a process that nobody waits for looks alive.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
