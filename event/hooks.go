package event

import (
	"context"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/events"
)

// Hooks are the functions that a client calls for its events, for metrics and traces. Each may be
// nil. One goroutine of the client calls the hooks one after another, in order, and does nothing
// else: a hook that is slow, blocks or panics changes nothing for the lock. But a leak may go
// unnoticed while a hook blocks, as waiting events refer to the contexts of their calls. Events
// that pile up, behind a slow hook or where thousands of holds end at once, are dropped beyond
// [Backlog], and the number of dropped events is logged. Client.Close waits for all earlier
// events, but at most 5 s for a hook that hangs, so a hook that calls Close itself waits 5 s.
//
// No hook is called for a call that returns ErrInvalid, or ErrClosed as the client was closed
// before.
//
// The goroutine of a call calls Trace. The other hooks may run when the call has returned, and its
// caller may use the Context of the events again, as handlers of gin do: ask a Context for values
// in Trace only.
//
// The lock name is in every event of a lock. The name is rarely fit for a metric label: map the
// name to a bounded set first.
type Hooks struct {
	// AcquireStarted is called when Lock, TryLock or TryLockFor begins.
	AcquireStarted func(AcquireStarted)
	// AcquireFinished is called when Lock, TryLock or TryLockFor returns, whatever the outcome.
	AcquireFinished func(AcquireFinished)
	// Queued is called when a waiter has joined the queue of the lock; with WithRedissonLayout,
	// when the waiter begins to wait.
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
	// lease if nothing is renewed, as with WithFixedLease.
	Leaked func(Leaked)
	// Wanted is called when somebody asks for the lock of a hold, see Lock.Ask, and the hold has a
	// channel of Lock.Wanted: once for each hold.
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
	// to be dropped, Dropped is called about once for each Backlog delivered events.
	Dropped func(Dropped)

	// Trace gives contexts to the commands and to the section of a call, for the spans of a trace.
	// The goroutine of the call calls Trace before the store is asked, and finished before the call
	// returns. For the locks of a Locks that the store gives in one step, Trace is called after
	// that step. A slow Trace makes the call slow. A Trace that hangs holds up the call and
	// Client.Close. A Trace must not use the lock. A panic is logged, and the call goes on
	// without the Trace.
	//
	// The store's commands for the call have the values of acquire, and the events of the call
	// carry acquire. (A command that several calls share does not have the values.)
	//
	// Make each context from the one that is given, and with the same Done channel, as
	// context.WithValue does. A nil context, and a context with another Done channel, is ignored.
	// finished may be nil.
	Trace func(AcquireStarted) (acquire context.Context, finished TraceFinished)

	traces []func(AcquireStarted) (context.Context, TraceFinished) // joined
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

// Backlog is the largest number of events that may wait for the hooks of a client.
const Backlog = events.Backlog

// Join makes one Hooks out of several, for WithHooks: each event goes to all of them, in
// order, also after a panic. Each Trace gets the context of the Trace before.
func Join(all ...Hooks) Hooks {
	var traces []func(AcquireStarted) (context.Context, TraceFinished)
	for _, h := range all {
		traces = append(traces, h.Traces()...)
	}
	return Hooks{
		AcquireStarted:  join(all, func(h Hooks) func(AcquireStarted) { return h.AcquireStarted }),
		AcquireFinished: join(all, func(h Hooks) func(AcquireFinished) { return h.AcquireFinished }),
		Queued:          join(all, func(h Hooks) func(Queued) { return h.Queued }),
		Released:        join(all, func(h Hooks) func(Released) { return h.Released }),
		Renewed:         join(all, func(h Hooks) func(Renewed) { return h.Renewed }),
		Lost:            join(all, func(h Hooks) func(Lost) { return h.Lost }),
		Leaked:          join(all, func(h Hooks) func(Leaked) { return h.Leaked }),
		Reconnected:     join(all, func(h Hooks) func(Reconnected) { return h.Reconnected }),
		Wanted:          join(all, func(h Hooks) func(Wanted) { return h.Wanted }),
		Closed:          join(all, func(h Hooks) func(Closed) { return h.Closed }),
		Retried:         join(all, func(h Hooks) func(Retried) { return h.Retried }),
		Dropped:         join(all, func(h Hooks) func(Dropped) { return h.Dropped }),
		traces:          traces,
	}
}

// Traces returns the Trace of h behind those that Join has put into h.
func (h Hooks) Traces() []func(AcquireStarted) (context.Context, TraceFinished) {
	if h.Trace == nil {
		return h.traces
	}
	return append(slices.Clip(h.traces), h.Trace)
}

// join returns one hook for all hooks that are set, nil for none: then no event is made.
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
	return func(e E) { tellAll(hooks, e) }
}

// tellAll calls all hooks in order, also behind a hook that panics or calls runtime.Goexit.
func tellAll[E any](hooks []func(E), e E) {
	if len(hooks) > 1 {
		defer tellAll(hooks[1:], e)
	}
	hooks[0](e)
}
