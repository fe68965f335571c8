package relock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// What can go wrong, for [errors.Is]. An error of this package matches at most one of these by itself, and in addition the
// cause it was made from: a wait that ran into the caller's deadline is both ErrLocked and [context.DeadlineExceeded], and one
// inside a section of another lock that was lost is both ErrLocked and ErrLockLost. An error that matches none of them comes
// from Redis, from the network, or from the caller's context.
var (
	// ErrLocked says that another holder has the lock, and the caller would not, or could no longer, wait for it.
	// The error is a [*LockedError]. The caller holds nothing; its place in the queue is taken back in the background.
	ErrLocked = errors.New("relock: locked by another holder")

	// ErrNotHeld says that the context carries no open entry of this lock: it was never locked with this context,
	// or that entry was unlocked already. Of [Lock.ForceUnlock]: nobody has the lock. Nothing was changed.
	ErrNotHeld = errors.New("relock: not held by this context")

	// ErrLockLost says that the lock was held and is not any more, without an Unlock: its lease ran out, or somebody
	// removed it. The error is a [*LostError]. It is also the cause of the section's context.
	ErrLockLost = errors.New("relock: lock lost")

	// ErrReleased is the cause of a section's context after its Unlock. It is also the error of a nested Lock that was on its way then.
	ErrReleased = errors.New("relock: lock released")

	// ErrClosed says that the Client was closed. It ends waits, and is the cause of the contexts of sections that
	// were open at that time.
	ErrClosed = errors.New("relock: client closed")

	// ErrInvalid says that an argument, an option or a lock name cannot be used; the message says what is allowed.
	// Nothing was sent to Redis.
	ErrInvalid = errors.New("relock: invalid")

	// ErrNotReplicated says that too few replicas confirmed a new hold, see [WithReplicaAcks]. The entry was undone; where Redis is
	// silent by then, that goes on in the background.
	ErrNotReplicated = errors.New("relock: not confirmed by enough replicas")
)

// LockedError is the refusal of a lock that another holder has. It matches [ErrLocked], and Err if there is one.
type LockedError struct {
	Name   string // the lock
	Holder Holder // who has it, as far as is known
	// TTL is what was left of that holder's lease when Redis was last asked (with [WithLocalPass], if the holder is one of
	// this client, as this process reckons); negative: no lease is set.
	TTL time.Duration
	// Err is what ended the caller's context, and with it the wait; nil if that has not ended: there was no wait, or that of
	// [Lock.TryLockFor] was over.
	Err error
}

func (e *LockedError) Error() string {
	msg := fmt.Sprintf("relock: %q is locked by another holder", e.Name)
	if e.Holder != (Holder{}) {
		msg = fmt.Sprintf("relock: %q is locked by %s for another %s", e.Name, e.Holder, e.TTL.Round(time.Millisecond))
		if e.TTL < 0 {
			msg = fmt.Sprintf("relock: %q is locked by %s without a lease", e.Name, e.Holder)
		}
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Is makes the error match [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Unwrap returns what ended the wait.
func (e *LockedError) Unwrap() error { return e.Err }

// LossReason says why a hold was lost.
type LossReason string

// The reasons for a loss. They are a bounded set, fit for a metric label.
const (
	LossExpired   LossReason = "expired"   // the lease ran out before a renewal was confirmed (or it was a fixed one)
	LossTaken     LossReason = "taken"     // Redis says that the hold is gone: expired there, deleted, force-unlocked, or data was lost
	LossMaxHold   LossReason = "max_hold"  // the limit of WithMaxHold was reached
	LossAbandoned LossReason = "abandoned" // the section's context was done, so nothing renewed the lease, and it ran out without Unlock
	LossLeaked    LossReason = "leaked"    // the section's context was garbage collected without Unlock, and the lease ran out
)

// explain is the reason in words.
func (r LossReason) explain() string {
	switch r {
	case LossExpired:
		return "the lease ran out"
	case LossTaken:
		return "Redis does not have this hold any more"
	case LossMaxHold:
		return "the longest allowed hold was reached"
	case LossAbandoned:
		return "its context was done and the lease ran out without Unlock"
	case LossLeaked:
		return "its context was dropped without Unlock and the lease ran out"
	default:
		return string(r)
	}
}

// LostError says which hold was lost, and why. It matches [ErrLockLost].
type LostError struct {
	Name   string // the lock
	Holder Holder // who had it
	Token  int64  // its fencing token, 0 if it had none
	Reason LossReason
}

func (e *LostError) Error() string {
	return fmt.Sprintf("relock: %q lost by %s: %s", e.Name, e.Holder, e.Reason.explain())
}

// Is makes the error match [ErrLockLost].
func (e *LostError) Is(target error) bool { return target == ErrLockLost }

// OpError is the failure of an operation on a lock that is no [*LockedError], no [*LostError] and not [ErrInvalid]. It adds the
// lock's name and the holder to what went wrong.
type OpError struct {
	Op     string // "lock", "unlock", "extend", "state", "force unlock"
	Name   string // the lock
	Holder Holder // zero where the operation has none
	Err    error  // the failure
}

func (e *OpError) Error() string {
	if e.Holder == (Holder{}) {
		return fmt.Sprintf("relock: %s %q: %v", e.Op, e.Name, e.Err)
	}
	return fmt.Sprintf("relock: %s %q as %s: %v", e.Op, e.Name, e.Holder, e.Err)
}

// Unwrap returns the failure.
func (e *OpError) Unwrap() error { return e.Err }

// invalid is an ErrInvalid with what is wrong and what is allowed.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// freeError is the ErrNotHeld of ForceUnlock, to which no context has said who should hold the lock.
type freeError struct{}

func (freeError) Error() string        { return "nobody has the lock" }
func (freeError) Is(target error) bool { return target == ErrNotHeld }

// ended is why a done context is done. It matches both ctx.Err and the cause, which differ when somebody cancelled with
// a cause of their own (a deadline, a lost outer lock).
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
