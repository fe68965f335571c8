package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-relock/relock/store"
)

// acquiring is one call on its way into the lock.
type acquiring struct {
	lock     *Lock
	ctx      context.Context // the caller's
	caller   context.Context // of a call for several locks, where ctx is inside the first ones; nil: ctx
	traced   context.Context // ctx, or what Hooks.Trace made of it: for commands and events
	wait     time.Duration   // forever; 0: do not wait
	script   *store.Script   // of TryLockIf
	byTicket func() error    // Borrow or Accept, in place of the ask for a free lock
	reply    any             // of the script
	leader   bool            // a call of Lead
	holder   Holder

	refusal *LockedError // the store's last refusal

	around *entry // the open entry of this lock that ctx is inside, in either mode

	// For the hooks.
	traces []TraceFinished // of Hooks.Trace
	nested bool            // the holder has the lock already
	waited bool            // another hold had the lock, and the call may wait
	queued bool            // the call has waited in a queue or line
	wake   Wake
	depth  int

	section *section
}

// outermost returns the context of the user's call.
func (a *acquiring) outermost() context.Context {
	if a.caller != nil {
		return a.caller
	}
	return a.ctx
}

// queueLimit ends a wait with ErrQueueFull if its first place is behind too many; nil: no limit.
type queueLimit struct {
	most   int
	placed bool
	end    context.CancelCauseFunc
}

// limitQueue returns the limit of a wait with context ctx, and the context for the wait.
func (a *acquiring) limitQueue(ctx context.Context) (*queueLimit, context.Context) {
	most := a.lock.settings.maxWaiters
	if most == 0 {
		return nil, ctx
	}
	ctx, end := context.WithCancelCause(ctx)
	return &queueLimit{most: most, end: end}, ctx
}

// place looks at the progress of the wait.
func (q *queueLimit) place(p store.Progress) {
	if q == nil || q.placed || !p.Queued {
		return
	}
	if q.placed = true; p.Position >= q.most {
		q.end(ErrQueueFull)
	}
}

// over returns the error of a wait that was over with err.
func (q *queueLimit) over(ctx context.Context, err error) error {
	if q == nil {
		return err
	}
	if err != nil && context.Cause(ctx) == ErrQueueFull && !errors.Is(err, ErrQueueFull) { //nolint:errorlint // as place has set it
		err = fmt.Errorf("%w: %w", ErrQueueFull, err)
	}
	q.end(nil)
	return err
}

// progress notes the answers of the store while the call waits.
func (a *acquiring) progress(p store.Progress) {
	a.waited = true
	if p.Busy != nil {
		a.refusedBy(p.Busy)
	}
	if p.Queued {
		a.joined(p.Position)
	}
}

// refusedBy notes the owner of the lock, if err is a refusal.
func (a *acquiring) refusedBy(err error) {
	var busy *store.Busy
	if !errors.As(err, &busy) {
		return
	}
	l, owner := a.lock, holderOf(busy.Owner)
	isOwner := func(e *entry) bool { return holderOf(e.hold.lease.ID) == owner }
	if a.wait != 0 && (a.refusal == nil || a.refusal.Holder != owner) && openEntry(a.ctx, isOwner) != nil {
		l.client.log(l.settings.logger, slog.LevelWarn, "relock: waiting for another hold of the same holder",
			slog.String("lock", l.name), slog.String("holder", owner.String()))
	}
	a.refusal = &LockedError{Name: l.name, Holder: owner, TTL: busy.TTL}
}

// owner returns the owner of the lock at the last refusal; zero: none.
func (a *acquiring) owner() Holder {
	if a.refusal == nil {
		return Holder{}
	}
	return a.refusal.Holder
}

// joined tells the hooks that the call has a place in the queue, the first time.
func (a *acquiring) joined(position int) {
	if a.queued {
		return
	}
	a.waited, a.queued = true, true
	if hook := a.lock.settings.hooks.Queued; hook != nil {
		event := Queued{Name: a.lock.name, Mode: a.lock.mode(), Holder: a.holder, Owner: a.owner(), Position: position}
		a.lock.client.events.Emit(func() { hook(event) })
	}
}

// reason returns the reason for the end of a call with context ctx. err is the error of the store.
func (a *acquiring) reason(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case (errors.Is(cause, ErrClosed) || errors.Is(err, ErrClosed)) && a.lock.client.isClosed():
		return ErrClosed
	case a.ctx.Err() == nil && isDeadlock(cause):
		return cause
	case a.ctx.Err() == nil && isStop(cause) && !errors.Is(err, ErrUnavailable):
		return cause
	case a.ctx.Err() == nil && isStop(cause) && !isStop(err):
		return fmt.Errorf("%w: %w", cause, err)
	case cause == errWaitOver && !errors.Is(err, errWaitOver): //nolint:errorlint // the cause of ctx may come from another call
		return fmt.Errorf("%w: %w", errWaitOver, err)
	case a.ctx.Err() != nil && !errors.Is(err, context.Cause(a.ctx)): // a store need not know the cause
		return fmt.Errorf("%w: %w", err, context.Cause(a.ctx))
	default:
		return err
	}
}

// failed returns the error of a call without an entry.
func (a *acquiring) failed(err error) error {
	var busy *store.Busy
	var declined *store.Declined
	switch refusal := a.refusal; {
	case errors.As(err, &declined):
		return &DeclinedError{Name: a.lock.name, Reply: declined.Reply}
	case isDeadlock(err):
		return err
	case errors.Is(err, ErrQueueFull) && a.ctx.Err() == nil:
		full := LockedError{Name: a.lock.name}
		if refusal != nil {
			full = *refusal
		}
		full.Err = ErrQueueFull
		return &full
	case refusal != nil && (errors.As(err, &busy) || errors.Is(err, errWaitOver)):
		if errors.Is(err, ErrUnavailable) {
			refusal.Err = err
		}
		return refusal
	case refusal != nil && (a.ctx.Err() != nil || isStop(err)) && !(errors.Is(err, ErrClosed) && a.lock.client.isClosed()):
		refusal.Err = err
		return refusal
	default:
		return a.lock.failed("lock", a.holder, err)
	}
}

// started reports the begin of a call to the hook, and returns the time of the begin.
func (a *acquiring) started() time.Time {
	hooks := &a.lock.settings.hooks
	a.traced = a.ctx
	if hooks.AcquireStarted == nil && hooks.AcquireFinished == nil && len(hooks.traces) == 0 {
		return time.Time{}
	}
	start := time.Now()
	a.reportStart(start)
	return start
}

// reportStart reports a begin at start to the hooks.
func (a *acquiring) reportStart(start time.Time) {
	hooks := &a.lock.settings.hooks
	event := AcquireStarted{Context: a.ctx, Name: a.lock.name, Mode: a.lock.mode(), Start: start}
	if hook := hooks.AcquireStarted; hook != nil {
		a.lock.client.events.Emit(func() { hook(event) })
	}
	a.traced = a.ctx
	for _, trace := range hooks.traces {
		a.survive(func() {
			inner := event
			inner.Context = a.traced
			ctx, finished := trace(inner)
			a.traced = heir(ctx, a.traced)
			if finished != nil {
				a.traces = append(a.traces, finished)
			}
		})
	}
}

// survive calls a hook in the goroutine of the call, and logs its panic.
func (a *acquiring) survive(hook func()) {
	defer func() {
		if r := recover(); r != nil {
			a.lock.client.log(a.lock.settings.logger, slog.LevelError, "relock: a hook panicked", slog.Any("panic", r))
		}
	}()
	hook()
}

// finished reports the end of the call to the hooks.
func (a *acquiring) finished(start time.Time, err error) {
	hook := a.lock.settings.hooks.AcquireFinished
	if hook == nil && len(a.traces) == 0 {
		return
	}
	event := AcquireFinished{
		Context: a.traced, Name: a.lock.name, Mode: a.lock.mode(), Holder: a.holder,
		Start: start, Duration: time.Since(start), Outcome: a.outcome(err),
		Reentrant: a.nested, Depth: a.depth, Owner: a.owner(), Waited: a.waited, Queued: a.queued, Leader: a.leader,
		TTL: a.lock.settings.ttl, Err: err,
	}
	if err == nil { // perhaps by another Lock of the same name, with options of its own
		h := a.section.entry.hold
		event.TTL, event.Wake, event.Leader = h.ttl, a.wake, h.leader
	}
	a.endTraces(event)
	if hook != nil {
		a.lock.client.events.Emit(func() { hook(event) })
	}
}

// endTraces reports the end of the call to the traces, which may give the section another context.
func (a *acquiring) endTraces(event AcquireFinished) {
	var ends []func(TraceEnded)
	for _, finished := range a.traces {
		a.survive(func() {
			if event.Err != nil {
				finished(a.ctx, event)
				return
			}
			ctx := a.section.Context // not the section itself, whose last reference is Unlock's
			inner, ended := finished(ctx, event)
			a.section.Context = heir(inner, ctx)
			if ended != nil && event.Depth == 1 {
				ends = append(ends, ended)
			}
		})
	}
	if len(ends) > 0 {
		a.section.entry.hold.trace(ends)
	}
}

// outcome returns the outcome of the call. The error may carry the cause of the caller's context
// too, and the cause can be any error: the loss or the refusal of another lock, or the end of
// another client, is no outcome of this call.
func (a *acquiring) outcome(err error) Outcome {
	switch err.(type) { //nolint:errorlint // as it is: a cause may be the refusal, or the loss, of another lock
	case nil:
		return OutcomeAcquired
	case *LockedError:
		return OutcomeLocked
	case *LostError:
		return OutcomeLost
	case *DeadlockError:
		return OutcomeDeadlock
	case *DeclinedError:
		return OutcomeDeclined
	}
	switch {
	case errors.Is(err, ErrClosed) && a.lock.client.isClosed():
		return OutcomeClosed
	case errors.Is(err, ErrDeadlock) && a.ctx.Err() == nil:
		return OutcomeDeadlock
	case errors.Is(err, ErrNotReplicated) && a.ctx.Err() == nil:
		return OutcomeError
	case isStop(err) && a.ctx.Err() == nil:
		return OutcomeCanceled
	case errors.Is(err, ErrUnavailable) && a.ctx.Err() == nil && !errors.Is(err, errWaitOver):
		return OutcomeError // the deadline of a dial is a context.DeadlineExceeded too
	case errors.Is(err, store.ErrUnsure) && a.ctx.Err() == nil && !errors.Is(err, errWaitOver):
		return OutcomeError
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return OutcomeCanceled
	default:
		return OutcomeError
	}
}
