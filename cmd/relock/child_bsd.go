//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import "syscall"

// inOwnGroup has the command begin a process group. Only Linux can tell it when relock is killed.
func inOwnGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// ignores cannot tell, so the command is the first to know.
func ignores(syscall.Signal) bool { return true }

// adopt has nothing to do: the first process asks how all others have ended.
func adopt() {}
