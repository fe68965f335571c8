package relock

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/events"
	"github.com/go-relock/relock/store"
)

// Hooks are the functions that a client calls for its events, for metrics and traces. Each may be
// nil. One goroutine of the client calls the hooks one after another, in order, and does nothing
// else: a hook that is slow, blocks or panics changes nothing for the lock. But a leak may go
// unnoticed while a hook blocks, as waiting events refer to the contexts of their calls. Events
// that pile up, behind a slow hook or where thousands of holds end at once, are dropped beyond
// [EventBacklog], and the number of dropped events is logged. [Client.Close] waits for all earlier
// events, but at most 5 s for a hook that hangs, so a hook that calls Close itself waits 5 s.
//
// No hook is called for a call that returns [ErrInvalid], or [ErrClosed] as the client was closed
// before.
//
// The goroutine of a call calls Trace. The other hooks may run when the call has returned, and its
// caller may use the Context of the events again, as handlers of gin do: ask a Context for values in
// Trace only.
//
// The lock name is in every event of a lock. The name is rarely fit for a metric label: map the
// name to a bounded set first.
type Hooks struct {
	// AcquireStarted is called when Lock, TryLock or TryLockFor begins.
	AcquireStarted func(AcquireStarted)
	// AcquireFinished is called when Lock, TryLock or TryLockFor returns, whatever the outcome.
	AcquireFinished func(AcquireFinished)
	// Queued is called when a waiter has joined the queue of the lock, or, with [WithLocalPass],
	// the line of its client; with [WithRedissonLayout], when the waiter begins to wait.
	Queued func(Queued)
	// Released is called when the last entry of a hold was left with Unlock.
	Released func(Released)
	// Renewed is called after each batch of renewals, successful or not. Like Reconnected, Retried
	// and Dropped, Renewed is the hook of the client, for all of its locks.
	Renewed func(Renewed)
	// Lost is called when a hold ended without Unlock.
	Lost func(Lost)
	// Leaked is called when the context of an open entry was garbage collected: a Lock without
	// Unlock. A leak is noticed from the first renewal after the entry on, or at the end of the
	// lease if nothing is renewed, as with [WithFixedLease].
	Leaked func(Leaked)
	// Wanted is called when somebody asks for the lock of a hold, see [Lock.Ask], and the hold has a
	// channel of [Lock.Wanted]: once for each hold.
	Wanted func(Wanted)
	// Closed is called for each hold that is open when its Client is closed, also while its last
	// Unlock is in flight. No other event reports the end of such a hold.
	Closed func(Closed)
	// Reconnected is called when a lost pub/sub connection is back.
	Reconnected func(Reconnected)
	// Retried is called when a command is about to be sent again for a call without an answer, or
	// with a passing error, and when an attempt has had no answer for a second. In Redis the first
	// attempt behind a quick answer within the last second is no such attempt if its context cannot
	// end: it lasts as long as go-redis waits, and its failure is reported.
	Retried func(Retried)
	// Dropped is called after events were dropped because too many waited: figures counted from
	// events are too low. Dropped comes after all events from before the drop. While events go on
	// to be dropped, Dropped is called about once for each EventBacklog delivered events.
	Dropped func(Dropped)

	// Trace gives contexts to the commands and to the section of a call, for the spans of a trace.
	// The goroutine of the call calls Trace before the store is asked, and finished before the call
	// returns. For the locks of a [Locks] that the store gives in one step, Trace is called after
	// that step. A slow Trace makes the call slow. A Trace that hangs holds up the call and
	// [Client.Close]. A Trace must not use the lock. A panic is logged, and the call goes on
	// without the Trace.
	//
	// The store's commands for the call have the values of acquire, and the events of the call
	// carry acquire. (A command that several calls share does not have the values.)
	//
	// Make each context from the one that is given, and with the same Done channel, as
	// context.WithValue does. A nil context, and a context with another Done channel, is ignored.
	// finished may be nil.
	Trace func(AcquireStarted) (acquire context.Context, finished TraceFinished)

	traces []func(AcquireStarted) (context.Context, TraceFinished) // joined; in settings, with Trace
}

// TraceFinished is the second half of [Hooks.Trace]. TraceFinished gets the context that the call
// is about to return, and returns the context to return in its place. After an error the call
// returns the caller's context all the same. If the call has begun a hold, the goroutine of the
// other hooks calls ended once, at the end of the hold, unless events are dropped. ended may be
// nil.
type TraceFinished func(section context.Context, e AcquireFinished) (inner context.Context, ended func(TraceEnded))

// TraceEnded is the end of a hold.
type TraceEnded struct {
	Reason   LossReason    // empty: the lock was not lost
	Closed   bool          // the client was closed
	Held     time.Duration // from the first entry
	MaxDepth int           // the highest hold count
	Err      error         // why a release was not confirmed
}

// JoinHooks makes one Hooks out of several, for [WithHooks]: each event goes to all of them, in
// order, also after a panic. Each Trace gets the context of the Trace before.
func JoinHooks(all ...Hooks) Hooks {
	var traces []func(AcquireStarted) (context.Context, TraceFinished)
	for _, h := range all {
		traces = append(traces, h.allTraces()...)
	}
	return Hooks{
		AcquireStarted:  joinHook(all, func(h Hooks) func(AcquireStarted) { return h.AcquireStarted }),
		AcquireFinished: joinHook(all, func(h Hooks) func(AcquireFinished) { return h.AcquireFinished }),
		Queued:          joinHook(all, func(h Hooks) func(Queued) { return h.Queued }),
		Released:        joinHook(all, func(h Hooks) func(Released) { return h.Released }),
		Renewed:         joinHook(all, func(h Hooks) func(Renewed) { return h.Renewed }),
		Lost:            joinHook(all, func(h Hooks) func(Lost) { return h.Lost }),
		Leaked:          joinHook(all, func(h Hooks) func(Leaked) { return h.Leaked }),
		Reconnected:     joinHook(all, func(h Hooks) func(Reconnected) { return h.Reconnected }),
		Wanted:          joinHook(all, func(h Hooks) func(Wanted) { return h.Wanted }),
		Closed:          joinHook(all, func(h Hooks) func(Closed) { return h.Closed }),
		Retried:         joinHook(all, func(h Hooks) func(Retried) { return h.Retried }),
		Dropped:         joinHook(all, func(h Hooks) func(Dropped) { return h.Dropped }),
		traces:          traces,
	}
}

// allTraces returns the Trace of h, and those of the Hooks that h was made of.
func (h Hooks) allTraces() []func(AcquireStarted) (context.Context, TraceFinished) {
	if h.Trace == nil {
		return h.traces
	}
	return append(slices.Clip(h.traces), h.Trace)
}

// heir returns ctx, which a Trace has made, or parent if ctx is nil or has another end.
func heir(ctx, parent context.Context) context.Context {
	if ctx == nil || ctx.Done() != parent.Done() {
		return parent
	}
	return ctx
}

// joinHook returns one hook for all hooks that are set, nil for none: then no event is made.
func joinHook[E any](all []Hooks, pick func(Hooks) func(E)) func(E) {
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

// tellAll calls all hooks in order, also behind a hook that panics or calls runtime.Goexit.
func tellAll[E any](hooks []func(E), event E) {
	if len(hooks) > 1 {
		defer tellAll(hooks[1:], event)
	}
	hooks[0](event)
}

// EventBacklog is the largest number of events that may wait for the hooks of a client.
const EventBacklog = events.Backlog

// Outcome is the end of an attempt to acquire. The set is bounded, fit for a metric label.
type Outcome string

// The outcomes of an acquire.
const (
	OutcomeAcquired Outcome = "acquired"
	OutcomeLocked   Outcome = "locked"   // another holder has the lock, and the wait (if any) was over
	OutcomeCanceled Outcome = "canceled" // the context was done, or the wait over, before the store had named the holder
	OutcomeClosed   Outcome = "closed"   // this client was closed
	OutcomeLost     Outcome = "lost"     // a nested entry found the lock of the outer section lost
	OutcomeDeadlock Outcome = "deadlock" // the wait would never have ended, see ErrDeadlock
	OutcomeDeclined Outcome = "declined" // the script of TryLockIf declined the lock
	OutcomeError    Outcome = "error"
)

// Wake is the way in which a waiter got the lock. The set is bounded.
type Wake string

// The ways to get a lock.
const (
	WakeNone    Wake = ""        // the call got the lock without a wait in a queue, or did not get the lock
	WakeGrant   Wake = "grant"   // the grant arrived on the pub/sub connection
	WakeRecheck Wake = "recheck" // asked again, because the owner's lease should have ended, or the connection was new
	// WakeReleased is for WithRedissonLayout: a message reported a free lock, and this call asked
	// first.
	WakeReleased Wake = "released"
	// WakePass is for a call that waited in the line of its client: the section before passed the
	// lock on inside the process (see WithLocalPass), or the call became the head of the line
	// and asked Redis.
	WakePass Wake = "pass"
)

// Mode is the way in which a hold has its lock. The set is bounded, fit for a metric label.
type Mode string

// The modes of holds.
const (
	ModeExclusive Mode = "exclusive" // a mutex, or a read-write lock for writing
	ModeShared    Mode = "shared"    // a read-write lock for reading
	ModePermit    Mode = "permit"    // a semaphore
)

func modeOf(kind store.Kind, limit int) Mode {
	switch {
	case kind == store.Semaphore:
		return ModePermit
	case limit == store.Unlimited:
		return ModeShared
	default:
		return ModeExclusive
	}
}

// AcquireStarted is the event of [Hooks.AcquireStarted].
type AcquireStarted struct {
	Context context.Context // the caller's, for Trace: when another hook runs, the call may be over
	Name    string
	Mode    Mode
	Start   time.Time
	Client  string // the [Client.ID]
	Key     string // the [Lock.Key]: two names with one key are one lock
	// Waits says that the call waits if another holder has the lock. TryLock, TryLockIf, a wait of
	// 0, Borrow and Accept do not. A call inside a section of its lock does not wait all the same.
	Waits bool
}

// Section is a section as [AcquireStarted.Around] shows it.
type Section struct {
	Name   string
	Mode   Mode
	Client string // the [Client.ID]
	Key    string // the [Lock.Key]
}

// Around returns the open sections around the call, innermost first. Sections under [WithoutHolder]
// are around no call. Around asks the Context: call Around in Trace.
func (e AcquireStarted) Around() iter.Seq[Section] {
	inner := e.Context
	return func(yield func(Section) bool) {
		for at := entryOf(inner); at != nil; at = at.outer {
			if at.isOpen() && !yield(at.hold.section()) {
				return
			}
		}
	}
}

func (h *hold) section() Section {
	ask := &h.lease.Ask // a part that stays as it is
	return Section{Name: h.name, Mode: modeOf(ask.Kind, ask.Limit), Client: h.client.id, Key: ask.Name}
}

// AcquireFinished is the event of [Hooks.AcquireFinished].
type AcquireFinished struct {
	Context   context.Context // the caller's, or as Hooks.Trace made it; the call may be over, as above
	Name      string
	Mode      Mode
	Holder    Holder
	Start     time.Time
	Duration  time.Duration // from call to return
	Outcome   Outcome
	Reentrant bool          // inside a section of the lock; an upgrade or downgrade too, which begins a hold of its own
	Depth     int           // the hold count after the entry
	Owner     Holder        // of the lock when the store last refused the call; zero: no refusal
	Waited    bool          // another holder had the lock, and the call could wait for it
	Queued    bool          // the call had a place in the queue, or in a line, and a Queued event
	Wake      Wake          // how a queued call got the lock
	Leader    bool          // of package leader; of a nested entry, whether a leader has begun the hold
	TTL       time.Duration // of the hold; without the lock, the TTL of the attempt
	Err       error         // the error of the call
}

// Queued is the event of [Hooks.Queued].
type Queued struct {
	Name   string
	Mode   Mode
	Holder Holder
	Owner  Holder // has the lock; zero if the store has not named it
	// Position is the number of earlier waiters. With WithRedissonLayout, Position counts waiters
	// of the same client. With WithLocalPass, Position counts waiters in the same line, or in
	// Redis's queue if the call found no line.
	Position int
}

// Released is the event of [Hooks.Released].
type Released struct {
	Name     string
	Mode     Mode
	Holder   Holder
	Token    int64 // 0 if none was drawn
	TTL      time.Duration
	Held     time.Duration // from the first entry to the last exit
	MaxDepth int           // the highest hold count
	Leader   bool          // begun by package leader
	Err      error         // why the release was not confirmed, nil if the store confirmed
}

// Renewed is the event of [Hooks.Renewed].
type Renewed struct {
	Locks    int           // holds in the batch, without holds that were unlocked before their renewal in Redis
	Lost     int           // holds that Redis did not have any more
	Failed   int           // holds whose renewal was not confirmed; retried until their deadline, or their Unlock
	Duration time.Duration // until the answer, or until the time limit of the batch
	Err      error         // the first failure, or nil
}

// Lost is the event of [Hooks.Lost].
type Lost struct {
	Name     string
	Mode     Mode
	Holder   Holder
	Token    int64
	TTL      time.Duration
	Reason   LossReason
	Held     time.Duration // from the first entry until the loss was noticed
	MaxDepth int           // the highest hold count
	Leader   bool          // begun by package leader
}

// Leaked is the event of [Hooks.Leaked].
type Leaked struct {
	Name   string
	Mode   Mode
	Holder Holder
	Held   time.Duration // from the first entry until the leak was reported
}

// Wanted is the event of [Hooks.Wanted].
type Wanted struct {
	Name   string
	Mode   Mode
	Holder Holder        // who has the lock
	Held   time.Duration // from the first entry until the ask
}

// Closed is the event of [Hooks.Closed].
type Closed struct {
	Name     string
	Mode     Mode
	Holder   Holder
	Token    int64 // 0 if none was drawn
	TTL      time.Duration
	Held     time.Duration // from the first entry until Close
	MaxDepth int           // the highest hold count
	Leader   bool          // begun by package leader
}

// Dropped is the event of [Hooks.Dropped].
type Dropped struct {
	Events int // events dropped since the last such event
}

// Reconnected is the event of [Hooks.Reconnected].
type Reconnected struct {
	Node string        // empty unless Redis is a cluster
	Down time.Duration // from the notice of the loss until a subscription was confirmed again
}

// Retried is the event of [Hooks.Retried].
type Retried struct {
	Name    string // of the lock
	Script  string // the name of the script, or in other stores of the command: "acquire", "release", ...
	Attempt int    // the number of attempts that failed; 0: the first one goes on
	Err     error  // of the last attempt that failed
}
