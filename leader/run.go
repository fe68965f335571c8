package leader

import (
	"context"
	"errors"
	"time"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/inside"
	"github.com/go-relock/relock/store"
)

// Run runs fn in one of the processes that call Run, or [Campaign], for this lock: the leader.
// Another process takes over when the leader ends, crashes, or loses the lock.
//
// Run campaigns, as [relock.Lock.Lock] waits for the lock, and runs fn with the section's context.
// If the lock is lost, that context ends. When fn has returned then, Run drops the result of fn,
// and campaigns again, behind those that wait already. If the lock cannot be had for a passing
// reason ([relock.ErrUnavailable], [relock.ErrNotReplicated]), Run says so to the logger and the
// hooks of the client, and campaigns again after a third of the TTL.
//
// Run returns:
//   - when fn has returned, and its context was not ended by a loss. The error is that of
//     [relock.Do]: of fn, of the Unlock, or nil. So an error of fn ends the candidacy of this
//     process; a leader that shall go on logs errors, and returns when its context is done.
//   - when ctx is done. A running fn is waited for. The error is that of Lock or Do.
//   - when the lock cannot be had for another reason, with the error of Lock: [relock.ErrInvalid],
//     [relock.ErrClosed], [relock.ErrKind], [relock.ErrDeadlock], [relock.ErrQueueFull], the stop
//     of [relock.WithStop], an error of the store that a retry would not change, or the loss of a
//     section of this lock around ctx.
//
// When Run has returned, this process has left the lock, or its lease runs out as after an Unlock
// that the store has not confirmed.
//
// A loss that only Unlock finds is an error, too: fn had come to its end by itself. The error
// matches [relock.ErrNotEntered] if fn has not run since the last campaign began; fn may have run
// before. A panic of fn unlocks, and goes on. [relock.WithMaxHold] makes the leadership change
// hands after a time. The events of a hold of Run have Leader set, as a long hold is no fault
// there.
func Run(ctx context.Context, lock *relock.Lock, fn func(ctx context.Context) error) error {
	c := newCandidate(lock)
	since := time.Now()
	for n := 1; ; n++ {
		section, err := c.campaign(ctx, fn)
		switch {
		case section != nil && (ctx.Err() != nil || !isLost(section)):
			return err
		case section != nil:
			n, since = 0, time.Now()
		case !attempts.Passes(err), ctx.Err() != nil, !c.pause(ctx, n, since, err):
			return err
		}
	}
}

// candidate is a lock whose holds are those of leaders. It is a [relock.Locker].
type candidate struct {
	lock   *relock.Lock
	inside inside.Lock
}

func newCandidate(lock *relock.Lock) candidate { return candidate{lock, lock.Internal()} }

func (c candidate) Lock(ctx context.Context) (context.Context, error)    { return c.inside.Lead(ctx) }
func (c candidate) TryLock(ctx context.Context) (context.Context, error) { return c.lock.TryLock(ctx) }
func (c candidate) Unlock(ctx context.Context) error                     { return c.lock.Unlock(ctx) }

// campaign waits for the lock, and runs fn in the section that it returns; nil: fn has not run.
func (c candidate) campaign(ctx context.Context, fn func(ctx context.Context) error) (section context.Context, err error) {
	if fn == nil {
		return nil, relock.Do(ctx, c, nil) // which says so
	}
	err = relock.Do(ctx, c, func(ctx context.Context) error {
		section = ctx
		c.announce()
		return fn(ctx)
	})
	if section != nil {
		c.announce()
	}
	return section, err
}

func isLost(section context.Context) bool {
	var lost *relock.LostError
	return errors.As(context.Cause(section), &lost)
}

// pause waits for a third of the TTL after a campaign that has failed, or until the client is
// closed. pause returns false at a stop.
func (c candidate) pause(ctx context.Context, failures int, since time.Time, err error) bool {
	stoppable, cancel := c.inside.Stoppable(ctx)
	defer cancel()
	if stoppable.Err() != nil {
		return false
	}
	c.inside.Claim.Report.Retrying("campaign", failures, since, err)
	c.wait(stoppable, nil)
	return true // the next campaign says how it has ended
}

// wait waits for a third of the TTL, until ctx ends, until news, or until the client is closed.
func (c candidate) wait(ctx context.Context, news <-chan struct{}) {
	timer := time.NewTimer(c.inside.Claim.TTL / 3)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-news:
	case <-ctx.Done():
	case <-c.inside.Life.Done():
	}
}

// announceLimit bounds the time in which a message to the followers is sent.
const announceLimit = 2 * time.Second

// announce tells the followers of the lock that its leader has begun or ended, in the background.
func (c candidate) announce() {
	announcing, is := c.inside.Store.(store.Announcing)
	if !is {
		return
	}
	c.inside.Go(func() {
		ctx, cancel := context.WithTimeout(c.inside.Life, announceLimit)
		defer cancel()
		// Followers look by themselves, too.
		_ = announcing.Announce(ctx, c.inside.Claim)
	})
}
