package relock

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Hooks are functions that a client calls when something happens, for metrics and traces. Each may be nil. They are
// called one after another, in order, by one goroutine of the client that does nothing else: a hook that is slow, blocks
// or panics changes nothing for the lock. (But a leak may go unnoticed while a hook blocks, as the events that wait refer to the
// contexts of their calls.) Events that pile up, behind a slow hook or where thousands of holds end at once, are dropped beyond
// [EventBacklog], and the number dropped is logged. [Client.Close] waits for the events before it, at most 5 s for a hook that does
// not return; so a hook that calls Close itself waits that long.
//
// Nothing is told of a call that returns [ErrInvalid], or [ErrClosed] as the client was closed before.
//
// The lock name is in every event of a lock. It is rarely fit for a metric label: map it to a bounded set first.
type Hooks struct {
	// AcquireStarted is called when Lock, TryLock or TryLockFor begins.
	AcquireStarted func(AcquireStarted)
	// AcquireFinished is called when it returns, whatever the outcome.
	AcquireFinished func(AcquireFinished)
	// Queued is called when a waiter has joined the queue of the lock, or, with [WithLocalPass], the line of its
	// client; with [WithRedissonLayout], when it begins to wait.
	Queued func(Queued)
	// Released is called when the last entry of a hold was left with Unlock.
	Released func(Released)
	// Renewed is called after each batch of renewals, successful or not. Like Reconnected, Retried and Dropped it is the client's
	// hook, whichever locks it tells of.
	Renewed func(Renewed)
	// Lost is called when a hold ended without Unlock.
	Lost func(Lost)
	// Leaked is called when the context of an open entry was garbage collected: a Lock without Unlock. It is noticed from the first
	// renewal after the entry on; where nothing is renewed, as with [WithFixedLease], at the end of the lease.
	Leaked func(Leaked)
	// Closed is called for each hold that is open when its Client is closed, also while its last Unlock is on the way: nothing
	// else tells of its end then.
	Closed func(Closed)
	// Reconnected is called when the pub/sub connection was lost and is back.
	Reconnected func(Reconnected)
	// Retried is called when a script is about to be sent again for a call that has had no answer, or a passing error.
	Retried func(Retried)
	// Dropped is called when events could not be told because too many waited, after all events from before that: what is
	// counted from events is too low. While that lasts, it is called about once for each EventBacklog events that are told.
	Dropped func(Dropped)
}

// JoinHooks makes one Hooks out of several, for [WithHooks]: each event is told to all of them, in order, whatever panics.
func JoinHooks(all ...Hooks) Hooks {
	return Hooks{
		AcquireStarted:  join(all, func(h Hooks) func(AcquireStarted) { return h.AcquireStarted }),
		AcquireFinished: join(all, func(h Hooks) func(AcquireFinished) { return h.AcquireFinished }),
		Queued:          join(all, func(h Hooks) func(Queued) { return h.Queued }),
		Released:        join(all, func(h Hooks) func(Released) { return h.Released }),
		Renewed:         join(all, func(h Hooks) func(Renewed) { return h.Renewed }),
		Lost:            join(all, func(h Hooks) func(Lost) { return h.Lost }),
		Leaked:          join(all, func(h Hooks) func(Leaked) { return h.Leaked }),
		Reconnected:     join(all, func(h Hooks) func(Reconnected) { return h.Reconnected }),
		Closed:          join(all, func(h Hooks) func(Closed) { return h.Closed }),
		Retried:         join(all, func(h Hooks) func(Retried) { return h.Retried }),
		Dropped:         join(all, func(h Hooks) func(Dropped) { return h.Dropped }),
	}
}

// join is one hook for those that are there, nil if none is: then nothing is made ready for it.
func join[E any](all []Hooks, pick func(Hooks) func(E)) func(E) {
	var hooks []func(E)
	for _, h := range all {
		if f := pick(h); f != nil {
			hooks = append(hooks, f)
		}
	}
	if len(hooks) == 0 {
		return nil
	}
	return func(event E) { tellAll(hooks, event) }
}

// tellAll calls all hooks in order, also those behind one that panics or calls runtime.Goexit.
func tellAll[E any](hooks []func(E), event E) {
	if len(hooks) > 1 {
		defer tellAll(hooks[1:], event)
	}
	hooks[0](event)
}

// EventBacklog is how many events may wait for the hooks of a client.
const EventBacklog = 4096

// Outcome is how an attempt to acquire ended. The set is bounded, fit for a metric label.
type Outcome string

// The outcomes of an acquire.
const (
	OutcomeAcquired Outcome = "acquired"
	OutcomeLocked   Outcome = "locked"   // another holder has it, and the wait (if any) was over
	OutcomeCanceled Outcome = "canceled" // the context was done, or the wait over, before Redis had said who has it
	OutcomeClosed   Outcome = "closed"   // this client was
	OutcomeLost     Outcome = "lost"     // a nested entry found that the outer section had lost the lock
	OutcomeError    Outcome = "error"
)

// Wake is what told a waiter that the lock is its own. The set is bounded.
type Wake string

// The ways to get a lock.
const (
	WakeNone    Wake = ""        // it was free when asked for, or ours: no wait for it in a queue. Or the call did not get it
	WakeGrant   Wake = "grant"   // the grant arrived on the pub/sub connection
	WakeRecheck Wake = "recheck" // asked again, because the owner's lease should have ended, or the connection was new
	// WakeReleased is WithRedissonLayout's: a message said that the lock had become free, and this one asked first.
	WakeReleased Wake = "released"
	// WakePass is WithLocalPass's: the section before passed the lock on inside the process, or left it to this call to ask
	// Redis, and there it was free.
	WakePass Wake = "pass"
)

// AcquireStarted is the event of [Hooks.AcquireStarted].
type AcquireStarted struct {
	Context context.Context // the caller's, for traces
	Name    string
	Start   time.Time
}

// AcquireFinished is the event of [Hooks.AcquireFinished].
type AcquireFinished struct {
	Context   context.Context // the caller's, for traces
	Name      string
	Holder    Holder
	Start     time.Time
	Duration  time.Duration // from call to return
	Outcome   Outcome
	Reentrant bool          // a nested entry, or an attempt at one
	Depth     int           // the hold count after the entry
	Waited    bool          // another holder had the lock, and the call could wait for it
	Queued    bool          // it had a place in the queue, or in a line: a Queued event has told of it
	Wake      Wake          // what told that the lock is its own, where it was queued
	Token     int64         // fencing token, 0 without the lock
	TTL       time.Duration // of the hold; without the lock, what it would have been
	Err       error         // what the call returned
}

// Queued is the event of [Hooks.Queued].
type Queued struct {
	Name   string
	Holder Holder
	// Position is how many wait before this one. WithRedissonLayout: of the same client. WithLocalPass: in the same line, or in
	// Redis's queue for one that found no line.
	Position int
}

// Released is the event of [Hooks.Released].
type Released struct {
	Name     string
	Holder   Holder
	Token    int64
	TTL      time.Duration
	Held     time.Duration // from the first entry to the last exit
	MaxDepth int           // the highest hold count
	Err      error         // why the release was not confirmed, nil if it was
}

// Renewed is the event of [Hooks.Renewed].
type Renewed struct {
	Locks    int           // holds in the batch, without those that were unlocked before Redis came to them
	Lost     int           // holds that Redis did not have any more
	Failed   int           // holds whose renewal was not confirmed; they are tried again until their deadline, or their Unlock
	Duration time.Duration // until the answer, or until it was not waited for any more
	Err      error         // the first failure, nil if there was none
}

// Lost is the event of [Hooks.Lost].
type Lost struct {
	Name     string
	Holder   Holder
	Token    int64
	TTL      time.Duration
	Reason   LossReason
	Held     time.Duration // from the first entry until the loss was noticed
	MaxDepth int           // the highest hold count
}

// Leaked is the event of [Hooks.Leaked].
type Leaked struct {
	Name   string
	Holder Holder
	Token  int64
	Held   time.Duration // from the first entry until the leak was reported
}

// Closed is the event of [Hooks.Closed].
type Closed struct {
	Name     string
	Holder   Holder
	Token    int64
	TTL      time.Duration
	Held     time.Duration // from the first entry until Close
	MaxDepth int           // the highest hold count
}

// Dropped is the event of [Hooks.Dropped].
type Dropped struct {
	Events int // how many were dropped since the last such event
}

// Reconnected is the event of [Hooks.Reconnected].
type Reconnected struct {
	Node string        // empty unless Redis is a cluster
	Down time.Duration // from when the loss was noticed until a subscription was confirmed again
}

// Retried is the event of [Hooks.Retried].
type Retried struct {
	Name    string // of the lock
	Script  string // its name: "acquire", "release", ...
	Attempt int    // the number of the attempt that failed, from 1
	Err     error  // of that attempt
}

// events runs hooks and log calls away from the code that locks. Its worker starts with the first event.
type events struct {
	queue  chan func()
	logger *slog.Logger
	onDrop func(Dropped)

	// The worker's: events that were dropped and not told of yet, and how many to run before that: those from before the drop.
	missed, before int

	mu      sync.Mutex
	dropped int // since the worker last looked
	started bool
	closed  bool
	done    chan struct{}
}

func newEvents(c *Client) *events {
	return &events{queue: make(chan func(), EventBacklog), logger: c.settings.logger, onDrop: c.settings.hooks.Dropped, done: make(chan struct{})}
}

// emit hands one call to the worker and never blocks.
func (e *events) emit(call func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if !e.started {
		e.started = true
		go e.run()
	}
	select {
	case e.queue <- call:
	default:
		e.dropped++
	}
}

// log is emit for a log record. It does not ask the logger whether it wants that level: the handler's Enabled is code that is not
// ours either, so the worker calls it, as a part of LogAttrs.
func (e *events) log(l *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	if l != silent {
		e.emit(func() { l.LogAttrs(context.Background(), level, msg, attrs...) })
	}
}

// run is the worker. It ends when close was called and everything before it has run.
func (e *events) run() {
	ended := false
	defer func() {
		if !ended { // a hook has called runtime.Goexit, as the FailNow of a test does
			go e.run()
			return
		}
		close(e.done)
	}()
	for {
		e.tellDropped()
		call, more := <-e.queue
		if !more {
			break
		}
		e.before--
		e.call(call)
	}
	ended = true
}

// tellDropped tells of events that were dropped, when all from before the drop have run. It does so while an overload lasts, too,
// about once for each EventBacklog events that run.
func (e *events) tellDropped() {
	for {
		if e.missed == 0 {
			e.mu.Lock()
			e.missed, e.before, e.dropped = e.dropped, len(e.queue), 0
			e.mu.Unlock()
		}
		if e.missed == 0 || e.before > 0 {
			return
		}
		event := Dropped{Events: e.missed}
		e.missed = 0
		e.call(func() {
			e.logger.Warn("relock: events dropped, as too many waited for the hooks", "events", event.Events)
		})
		if e.onDrop != nil {
			e.call(func() { e.onDrop(event) })
		}
	}
}

// call survives a panic of code that is not ours.
func (e *events) call(call func()) {
	defer func() {
		if r := recover(); r != nil {
			defer func() { _ = recover() }() // the logger may be what panics
			e.logger.Error("relock: a hook panicked", "panic", r)
		}
	}()
	call()
}

// hookLimit is how long Close waits for hooks that do not return.
const hookLimit = 5 * time.Second

// close drops later events and waits for the worker.
func (e *events) close() {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.queue)
		if !e.started {
			close(e.done)
		}
	}
	e.mu.Unlock()
	select {
	case <-e.done:
	case <-time.After(hookLimit):
	}
}
