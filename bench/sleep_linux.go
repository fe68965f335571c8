package main

import (
	"runtime"
	"syscall"
	"time"
)

const prSetTimerSlack = 29

// ownThread binds the goroutine to a thread whose sleeps are not rounded up to be joined with others.
func ownThread() (release func()) {
	runtime.LockOSThread()
	// Where it is refused, sleeps are some 50 µs longer.
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0)
	return func() {} // the thread ends with the goroutine, and its slack with it
}

func sleepExactly(d time.Duration) {
	if d <= 0 {
		return
	}
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, by the little that is left
}
