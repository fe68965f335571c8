//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import "syscall"

// inOwnGroup makes the command begin a process group. Only Linux can signal the command when relock
// is killed.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// adopt does nothing: the first process of the system waits for orphans.
func adopt() {}
