//go:build !linux

package main

import "time"

// ownThread does nothing, as the runtime's timers are fine enough here.
func ownThread() (release func()) { return func() {} }

func sleepExactly(d time.Duration) { pause(d) }
