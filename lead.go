package relock

import (
	"context"
	"errors"
)

// Lead runs fn in the process that leads: of all processes that call Lead of one lock, one runs fn.
// Another one takes over when that process ends, crashes, or loses the lock.
//
// Lead campaigns, as [Lock.Lock] waits for the lock, and runs fn with the section's context. If the
// lock is lost, that context ends. When fn has returned then, Lead drops the result of fn, and
// campaigns again, behind those that wait already. If the lock cannot be had for a passing reason
// ([ErrUnavailable], [ErrNotReplicated]), Lead campaigns again after a third of the TTL.
//
// Lead returns:
//   - when fn has returned, and its context was not ended by a loss. The error is that of
//     [Lock.Do]: of fn, of the Unlock, or nil. So an error of fn ends the candidacy of this
//     process; a leader that shall go on logs errors, and returns when its context is done.
//   - when ctx is done. A running fn is waited for. The error is that of Lock or Do.
//   - when the lock cannot be had for another reason, with the error of Lock: [ErrInvalid],
//     [ErrClosed], [ErrKind], [ErrDeadlock], [ErrQueueFull], the stop of [WithStop], an error of
//     the store that a retry would not change, or the loss of a section of this lock around ctx.
//
// A loss that only Unlock finds is an error, too: fn had come to its end by itself. The error
// matches [NotEntered] if fn has not run since the last campaign began; fn may have run before. A
// panic of fn unlocks, and goes on. [WithMaxHold] makes the leadership change hands after a time.
// The events of a hold of Lead have Leader set, as a long hold is no fault there.
func (l *Lock) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case ctx == nil:
		return notEntered(errNilContext)
	case fn == nil:
		return notEntered(invalid("Lead: the function is nil"))
	}
	for {
		a := acquiring{lock: l, ctx: ctx, wait: forever, event: AcquireFinished{Leader: true}}
		section, err := a.run()
		switch {
		case err == nil:
			err = within(section, l, fn)
			if ctx.Err() != nil || !isLost(context.Cause(section)) {
				return err
			}
		case ctx.Err() != nil || isStop(err) || !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrNotReplicated):
			return notEntered(err)
		default:
			pause, end := l.client.boundCall(ctx, ctx, l.settings.ttl/3)
			<-pause.Done()
			end.Stop()
		}
	}
}
