package main

import "syscall"

// inOwnGroup has the command begin a process group. If relock is killed with SIGKILL, nobody renews the lock any more, so
// the system then tells the command to end, which has most of a lease for it.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
