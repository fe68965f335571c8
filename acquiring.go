package relock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// acquiring is one call on its way into the lock.
type acquiring struct {
	lock       *Lock
	ctx        context.Context                                         // the caller's
	caller     context.Context                                         // of a call for several locks, where ctx is inside the first ones; nil: ctx
	wait       time.Duration                                           // forever; 0: do not wait
	userScript func(context.Context, store.Claim) (store.Lease, error) // TryLockIf's claim for a free lock
	ticket     *ticketCall                                             // in place of the claim for a free lock; nil: none

	full    context.CancelCauseFunc // ends the wait; nil: the queue has no limit
	placed  bool                    // the wait in progress has had its first place in the queue
	refusal *LockedError            // the store's last refusal
	hint    *time.Timer             // of waitsForItself; nil: there was none
	event   event.AcquireFinished   // as far as is known; Context is for commands, too
	traces  []event.TraceFinished   // of Hooks.Trace
	hold    *hold                   // that the call makes; nil: none
	section *section                // that the call has entered; nil: not yet
}

// errAborted ends a call in which code of others has panicked or has ended the goroutine.
var errAborted = errors.New("a context or hook has panicked, or has ended the goroutine")

// unanswered marks the error of a call whose time was over before the store had said a word. err is
// the error of the store, and ctx is the context of the command.
func (a *acquiring) unanswered(ctx context.Context, err error) error {
	if a.refusal == nil && (context.Cause(ctx) == errWaitOver || ctx.Err() != nil && errors.Is(a.ctx.Err(), context.DeadlineExceeded)) {
		return store.Unavailable(err)
	}
	return err
}

// failed notes the outcome of a call that has not entered, and returns its error.
func (a *acquiring) failed(ctx context.Context, err error) error {
	a.event.Outcome, err = a.judge(ctx, err)
	return err
}

// judge returns the outcome and the error of a call that has not entered. err is the error of the
// store. The cause of ctx, the context of the call's commands, is what has ended the call: it comes
// from this package while the caller's context goes on. The cause of the caller's context may be
// any error, such as the refusal or the loss of another lock, and decides nothing.
func (a *acquiring) judge(ctx context.Context, err error) (event.Outcome, error) {
	cause, goesOn := context.Cause(ctx), a.ctx.Err() == nil
	if outcome, stopped := a.stopped(cause, err); stopped != nil {
		return outcome, stopped
	}
	var declined *store.Declined
	isRefused := a.isRefused(cause, err)
	switch {
	case errors.As(err, &declined):
		return event.OutcomeDeclined, &DeclinedError{Name: a.lock.name, Reply: declined.Reply}
	case isRefused && !errors.Is(err, ErrUnavailable):
		return event.OutcomeLocked, a.refusal
	case goesOn && errors.Is(err, ErrNotReplicated): // also at the end of the wait
		return event.OutcomeError, a.opError(because(cmp.Or(cause, err), err))
	case !goesOn || ctx.Err() != nil:
		return a.cut(cause, err)
	case isRefused:
		return a.interrupted(err)
	case errors.Is(err, ErrDeadlock): // a second upgrade
		return event.OutcomeDeadlock, a.opError(err)
	default:
		return event.OutcomeError, a.opError(err)
	}
}

// stopped is the outcome of a call that this package has stopped for good; a nil error: it has not.
func (a *acquiring) stopped(cause, err error) (event.Outcome, error) {
	deadlock, isDeadlock := cause.(*DeadlockError) // a cause may wrap the deadlock of another lock
	switch {
	case a.lock.client.isClosed() && (errors.Is(cause, ErrClosed) || errors.Is(err, ErrClosed)):
		return event.OutcomeClosed, a.opError(ErrClosed)
	case a.ctx.Err() != nil:
		return "", nil
	case isDeadlock:
		return event.OutcomeDeadlock, deadlock
	case isStop(cause):
		if errors.Is(err, ErrUnavailable) {
			cause = because(cause, err)
		}
		return a.interrupted(cause)
	case cause == ErrQueueFull: // as progress has set it
		if a.refusal == nil {
			a.refusal = &LockedError{Name: a.lock.name}
		}
		return a.interrupted(ErrQueueFull)
	default:
		return "", nil
	}
}

// cut is the outcome of a call whose time was over before the store had given it the lock.
func (a *acquiring) cut(cause, err error) (event.Outcome, error) {
	goesOn := a.ctx.Err() == nil
	switch {
	case cause == errWaitOver:
		return a.interrupted(because(cause, err))
	case goesOn && cause == errSilent:
		return event.OutcomeError, a.opError(silent(err))
	case !goesOn:
		if end := context.Cause(a.ctx); !errors.Is(err, end) { // a store need not know the cause
			err = fmt.Errorf("%w: %w", err, end)
		}
		return a.interrupted(err)
	case a.isRefused(cause, err):
		return a.interrupted(err)
	default: // the section around the call has ended
		return event.OutcomeCanceled, a.opError(err)
	}
}

// isRefused reports whether another hold had the lock when the store answered last, or when the
// wait was over. The cause may wrap the refusal of another call.
func (a *acquiring) isRefused(cause, err error) bool {
	return a.refusal != nil && (cause == errWaitOver || errors.As(err, new(*store.Busy)))
}

// interrupted is the end of a call that could not go on to ask: a refusal, if another had the lock.
func (a *acquiring) interrupted(err error) (event.Outcome, error) {
	if a.refusal == nil {
		return event.OutcomeCanceled, a.opError(err)
	}
	a.refusal.Err = err
	return event.OutcomeLocked, a.refusal
}

func (a *acquiring) opError(err error) error {
	op := "lock"
	if a.ticket != nil {
		op = a.ticket.op
	}
	return a.lock.opError(op, a.event.Holder, err)
}

// started reports the begin of the call to the hooks. Without a start the call begins now.
func (a *acquiring) started(start time.Time) {
	l, hooks := a.lock, &a.lock.settings.hooks
	a.event.Context = a.ctx
	if hooks.AcquireStarted == nil && hooks.AcquireFinished == nil && len(l.settings.traces) == 0 {
		return
	}
	if start.IsZero() {
		start = time.Now()
	}
	e := event.AcquireStarted{
		Context: a.ctx, Name: l.name, Mode: modeOf(l.claim.Kind, l.claim.Limit), Start: start,
		Client: l.client.id, Key: l.claim.Name, Waits: a.wait != 0,
	}
	a.event.Name, a.event.Mode, a.event.Start, a.event.TTL = e.Name, e.Mode, start, l.settings.ttl
	if hook := hooks.AcquireStarted; hook != nil {
		l.client.events.Emit(func() { hook(e) })
	}
	for _, trace := range l.settings.traces {
		l.client.events.Survive(l.settings.logger, func() {
			inner := e
			inner.Context = a.event.Context
			ctx, finished := trace(inner)
			a.event.Context = heir(ctx, inner.Context)
			if finished != nil {
				a.traces = append(a.traces, finished)
			}
		})
	}
}

func (a *acquiring) finished(err error) {
	if a.hint != nil {
		a.hint.Stop()
	}
	hook := a.lock.settings.hooks.AcquireFinished
	if hook == nil && len(a.traces) == 0 {
		return
	}
	a.event.Duration, a.event.Err = time.Since(a.event.Start), err
	if err == nil { // perhaps by another Lock of the same name, with options of its own
		h := a.section.entry.hold
		a.event.Outcome, a.event.TTL, a.event.Leader = event.OutcomeAcquired, h.ttl, h.leader
	} else {
		a.event.Wake = event.WakeNone
	}
	a.endTraces()
	if e := a.event; hook != nil {
		a.lock.client.events.Emit(func() { hook(e) })
	}
}

// endTraces reports the end of the call to the traces, which may give the section another context.
func (a *acquiring) endTraces() {
	var ends []func(event.TraceEnded)
	for _, finished := range a.traces {
		a.lock.client.events.Survive(a.lock.settings.logger, func() {
			if a.event.Err != nil {
				finished(a.ctx, a.event)
				return
			}
			ctx := a.section.Context // not the section itself, whose last reference is Unlock's
			inner, ended := finished(ctx, a.event)
			a.section.Context = heir(inner, ctx)
			if ended != nil && a.event.Depth == 1 {
				ends = append(ends, ended)
			}
		})
	}
	if len(ends) > 0 {
		a.section.entry.hold.trace(ends)
	}
}

// heir returns ctx, which a Trace has made, or parent if ctx is nil or has another end.
func heir(ctx, parent context.Context) context.Context {
	if ctx == nil || ctx.Done() != parent.Done() {
		return parent
	}
	return ctx
}
