package main

import (
	"runtime"
	"syscall"
	"time"
)

const prSetTimerSlack = 29

// ownThread binds the goroutine to a thread without timer slack.
func ownThread() (release func()) {
	runtime.LockOSThread()
	// Without the permission, sleeps are some 50 µs longer.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0)
	return func() {} // the thread ends with the goroutine
}

func sleepExactly(d time.Duration) {
	if d <= 0 {
		return
	}
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal may end the sleep a little early
}
