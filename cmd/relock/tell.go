package main

import (
	"bytes"
	"io"
	"time"
)

// teller is a standard error that never blocks its writers. The real one may be full, after Ctrl-S
// or before a pager that nobody scrolls, and a run that is blocked could neither stop a command
// whose lock is lost nor give a lock back. So a goroutine writes, and a full queue drops lines.
type teller struct {
	lines chan []byte // nil ends the goroutine
	done  chan struct{}
}

func newTeller(w io.Writer) *teller {
	const queue = 128 // a run writes about ten
	t := &teller{lines: make(chan []byte, queue), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		for line := <-t.lines; line != nil; line = <-t.lines {
			_, _ = w.Write(line) // the reader may be gone
		}
	}()
	return t
}

func (t *teller) Write(line []byte) (int, error) {
	select {
	case t.lines <- bytes.Clone(line):
	default:
	}
	return len(line), nil
}

// finish waits until all lines are written, for 1 s at most.
func (t *teller) finish() {
	const patience = time.Second
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case t.lines <- nil:
	case <-timer.C:
		return
	}
	select {
	case <-t.done:
	case <-timer.C:
	}
}

// record is a line of JSON on stderr about a run or an error, or a line of text.
type record struct {
	Time     time.Time `json:"time"`
	Event    string    `json:"event"`
	Name     string    `json:"name,omitempty"`   // of a lock; empty: the event is about several ones
	Tokens   []int64   `json:"tokens,omitempty"` // of the locks, in the order of the command line
	Holder   string    `json:"holder,omitempty"` // of this run, but for "waiting"
	WaitedMs *int64    `json:"waited_ms,omitempty"`
	HeldMs   *int64    `json:"held_ms,omitempty"`
	LeaseMs  int64     `json:"lease_ms,omitempty"`
	Pid      int       `json:"pid,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Signal   string    `json:"signal,omitempty"`
	Error    string    `json:"error,omitempty"`
	Message  string    `json:"message,omitempty"`

	text  string // for people
	quiet bool   // printed with --verbose only
}
