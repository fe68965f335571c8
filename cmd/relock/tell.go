package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/go-relock/relock"
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

// lockName is a lock in an event.
type lockName struct {
	Name    string `json:"name,omitempty"`
	NameB64 string `json:"name_base64,omitempty"`
	Token   int64  `json:"token,omitempty"`
}

// event is a line of JSON on stderr about a run, or a line of text.
type event struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	lockName
	Locks    []lockName  `json:"locks,omitempty"` // of a run with several locks, if the event is about all
	Holder   string      `json:"holder,omitempty"`
	Mode     relock.Mode `json:"mode,omitempty"`
	Position *int        `json:"position,omitempty"` // how many wait before this run
	WaitedMs *int64      `json:"waited_ms,omitempty"`
	HeldMs   *int64      `json:"held_ms,omitempty"`
	Pid      int         `json:"pid,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	ExitCode *int        `json:"exit_code,omitempty"`
	Signal   string      `json:"signal,omitempty"`
	Error    string      `json:"error,omitempty"`
	Message  string      `json:"message,omitempty"`

	text  string // for people
	quiet bool   // printed with --verbose only
}

// nameLocks says which locks an event is about: the one that it names, or all. Events about what
// has become of a lock have its token.
func (r *runner) nameLocks(e *event) {
	withToken := e.Event == "acquired" || e.Event == "released"
	locks := make([]lockName, len(r.names))
	for i, name := range r.names {
		locks[i] = lockName{Name: name, NameB64: base64Of(name)}
		if withToken {
			locks[i].Token = r.token(i)
		}
	}
	switch {
	case e.Name != "":
		e.NameB64 = base64Of(e.Name)
	case len(locks) == 1:
		e.lockName = locks[0]
	default:
		e.Locks = locks
	}
}

// complete returns an event with its time and its locks.
func (r *runner) complete(e event) event {
	e.Time = time.Now()
	r.nameLocks(&e)
	return e
}

// tell prints an event.
func (r *runner) tell(e event) {
	e.Message = r.conn.redact(e.Message)
	switch {
	case r.json:
		r.encode(r.stderr, r.complete(e))
	case !e.quiet || r.verbose:
		fmt.Fprintln(r.stderr, "relock:", printable(r.conn.redact(e.text)))
	}
}
