//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import (
	"errors"
	"os"
	"syscall"
)

// Without process groups and their signals run cannot keep its promises, so run is missing here.
// All other subcommands work.

// forwarded are the signals that end a hold.
var forwarded = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

func ends(syscall.Signal) bool { return true }

type child struct {
	pid    int
	events chan childEvent
	diedOf syscall.Signal
}

type childEvent struct {
	stop  syscall.Signal
	ended bool
	code  int
	by    syscall.Signal
}

func (childEvent) signalName() string { return "" }

func startChild(string, []string, []string) (*child, error) {
	return nil, errors.New("relock run needs a Unix system")
}

func (*child) listen()                     {}
func (*child) signal(syscall.Signal) error { return nil }
func (*child) groupLives() bool            { return false }

func adopt() {}

type terminal struct{}

func openTerminal() *terminal { return nil }

func (*terminal) begin(*runner) {}
func (*terminal) end(*runner)   {}

func (*runner) hearStops(bool)              {}
func (*runner) forward(os.Signal)           {}
func (*runner) childStopped(syscall.Signal) {}
func (*runner) resume()                     {}
func (*runner) wake()                       {}

func interrupt(syscall.Signal, bool) {}

func hasKeyboard() bool { return false }

func stopSelf(<-chan os.Signal) {}

// listenScreen does nothing; the next look finds the new size.
func listenScreen(_, _, _ chan os.Signal) {}
