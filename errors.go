package relock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/store"
)

// Kinds of failures, for [errors.Is]. An error of this package matches at most one kind by itself,
// and its cause in addition: a wait cut off by the caller's deadline is both ErrLocked and
// [context.DeadlineExceeded], and a wait inside a lost section of another lock is both ErrLocked
// and ErrLockLost. ErrUnavailable goes together with the other kinds. An error without a kind comes
// from the store, from the network, or from the caller's context, or is a [*DeclinedError].
var (
	// ErrLocked reports a lock of another hold: the caller would not wait for the lock, or could
	// not wait any longer. The error is a [*LockedError]. The caller holds nothing. Cleanup takes
	// the caller's place in the queue back in the background.
	ErrLocked = errors.New("relock: locked by another holder")

	// ErrNotEntered reports a Do or DoFor that did not get the lock, and so has not run its
	// function. ErrNotEntered goes together with the reason. The error of another Do does not
	// count, if the function called the other Do and returned its error. Lock and TryLock need no
	// such mark: each of their errors says so.
	ErrNotEntered = errors.New("relock: not entered")

	// ErrNotHeld reports a context inside no open entry of this lock: the lock was never locked
	// with the context, or the entry was unlocked already. For [Lock.ForceUnlock], nobody has the
	// lock. Nothing was changed.
	ErrNotHeld = errors.New("relock: not held by this context (use the one that Lock returned, before its Unlock)")

	// ErrLockLost reports the end of a hold without an Unlock: its lease ran out, or somebody
	// removed the lock. The error is a [*LostError], and is also the cause of the section's
	// context.
	ErrLockLost = errors.New("relock: lock lost")

	// ErrReleased is the cause of a section's context after its Unlock. ErrReleased is also the
	// error of a nested Lock in flight at the Unlock.
	ErrReleased = errors.New("relock: lock released")

	// ErrClosed reports a closed Client. ErrClosed ends waits, and is the cause of the contexts of
	// sections open at the time of Close.
	ErrClosed = errors.New("relock: client closed")

	// ErrInvalid reports an argument, an option or a lock name that cannot be used; the message
	// names what is allowed. Nothing was sent to the store.
	ErrInvalid = errors.New("relock: invalid")

	// ErrNotReplicated reports a new hold with too few confirmations, see [WithReplicaAcks] and
	// [WithAOFAcks]. The entry was undone, or is undone in the background if Redis is silent at the
	// time. As an error of Extend, and of a renewal, it leaves the deadline as it was.
	ErrNotReplicated = store.ErrNotReplicated

	// ErrUnavailable reports a store out of reach, or not serving now. A call given up for this
	// reason matches ErrUnavailable in addition to its own error, also if a context or the wait has
	// ended the call. A wait that was over before the store had said a word is such a call.
	ErrUnavailable = store.ErrUnavailable

	// ErrUnsure reports a command that may have run, or may run yet: its answer was lost. ErrUnsure
	// goes together with other kinds, and counts where a repeat would do harm, as in [Lock.Eval].
	ErrUnsure = store.ErrUnsure

	// ErrKind reports a name in use for another kind of lock: a mutex, a read-write lock or a
	// semaphore, or a read-write lock of Redisson. Nothing was changed.
	ErrKind = store.ErrKind

	// ErrDeadlock reports a wait that would never end: two readers that both wait to write, see
	// [RWLock], or a circle of calls that wait for locks of each other ([*DeadlockError]). The
	// caller holds nothing new, and should leave the sections around the call, if there are any.
	ErrDeadlock = store.ErrDeadlock

	// ErrTicket reports a ticket that cannot be used: it was used before, has expired, is for
	// another lock or another use, or its lender has too many open loans. Nothing was changed.
	ErrTicket = store.ErrTicket

	// ErrRecalled is the cause of the context of a borrowed section whose lender has unlocked the
	// lock. The borrower still has the lock until its Unlock, or the end of the lease.
	ErrRecalled = store.ErrRecalled

	// ErrHandedOff is the cause of a section's context after ticket.HandOff, and the error of its
	// Unlock.
	ErrHandedOff = errors.New("relock: lock handed off")

	// ErrQueueFull reports a queue with as many waiters as [WithMaxWaiters] allows. ErrQueueFull
	// goes together with ErrLocked.
	ErrQueueFull = errors.New("relock: the queue is full")
)

// LockedError is the refusal of a lock of another holder. LockedError matches [ErrLocked], and Err
// if Err is set.
type LockedError struct {
	Name   string // the lock
	Holder Holder // the holder of the lock, as far as is known
	// Local says that the client of the call has the lock. Either another goroutine works there, or
	// the call is nested, and did not get the context of the section around it: then it waits for
	// itself.
	Local bool
	// TTL is the rest of the holder's lease as of the store's last answer; negative: no lease is
	// set. The lease may be renewed.
	TTL time.Duration
	// Err is the end of the caller's context, which ended the wait, or [ErrQueueFull]. Err is nil
	// if the call did not wait, or the wait of [Lock.TryLockFor] was over. If the store could not
	// be reached at the end, Err matches [ErrUnavailable].
	Err error
}

func (e *LockedError) Error() string {
	msg := fmt.Sprintf("relock: %q is locked by another holder", e.Name)
	if e.Holder != "" {
		msg = fmt.Sprintf("relock: %q is locked by %s; its lease has %s left and may be renewed",
			e.Name, e.Holder, e.TTL.Round(time.Millisecond))
		if e.TTL < 0 {
			msg = fmt.Sprintf("relock: %q is locked by %s without a lease", e.Name, e.Holder)
		}
	}
	if e.Local {
		msg += " (held by this process)"
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Is makes the error match [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Unwrap returns Err.
func (e *LockedError) Unwrap() error { return e.Err }

var lossReasons = map[event.LossReason]string{
	event.LossExpired:   "the lease ran out",
	event.LossTaken:     "the store does not have this hold any more",
	event.LossMaxHold:   "the longest allowed hold was reached",
	event.LossAbandoned: "its context was done and the lease ran out without Unlock",
	event.LossLeaked:    "its context was dropped without Unlock and the lease ran out",
}

// LostError is the loss of a hold. LostError matches [ErrLockLost].
type LostError struct {
	Name   string // the lock
	Holder Holder // the holder of the lost hold
	Token  int64  // its fencing token, 0 if none was drawn
	Reason event.LossReason
}

func (e *LostError) Error() string {
	return fmt.Sprintf("relock: %q lost by %s: %s", e.Name, e.Holder, cmp.Or(lossReasons[e.Reason], string(e.Reason)))
}

// Is makes the error match [ErrLockLost].
func (e *LostError) Is(target error) bool { return target == ErrLockLost }

// DeadlockError is the end of a wait that was part of a circle of waits. DeadlockError matches
// [ErrDeadlock]. The caller holds nothing new; the sections around the call go on, and should be
// left so that the others can go on. A section counts as waiting while any call inside of it waits,
// also the call of a goroutine that nobody waits for: put such a goroutine outside, see
// [WithoutHolder].
type DeadlockError struct {
	// Cycle is the circle, from this call on: each holder waits for a lock of the next one, and the
	// last for a lock of the first.
	Cycle []CycleStep
}

// CycleStep is one wait in a [DeadlockError].
type CycleStep struct {
	Holder Holder
	Lock   string // for which it waits
}

func (e *DeadlockError) Error() string {
	var steps []string
	for i, step := range e.Cycle {
		next := e.Cycle[(i+1)%len(e.Cycle)]
		steps = append(steps, fmt.Sprintf("%s waits for %q of %s", step.Holder, step.Lock, next.Holder))
	}
	return "relock: deadlock: " + strings.Join(steps, ", ")
}

// Is makes the error match [ErrDeadlock].
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }

// DeclinedError is the end of a [Lock.TryLockIf] whose script declined the lock. The caller has not
// entered.
type DeclinedError struct {
	Name  string // the lock
	Reply any    // of the script
}

func (e *DeclinedError) Error() string {
	return fmt.Sprintf("relock: the script of TryLockIf declined %q", e.Name) // Reply is data, and no text for logs
}

// OpError is any other failure of an operation on a lock: no [*LockedError], no [*LostError] and
// not [ErrInvalid]. OpError adds the lock's name and the holder to the failure. Op is "lock",
// "unlock", "extend", "token", "eval", "run a script of", "state", "ask", "force unlock", "lend",
// "borrow", "hand off", "accept" or "make a ticket for".
type OpError struct {
	Op     string // the operation
	Name   string // the lock
	Holder Holder // zero where the operation has none
	Err    error  // the failure
}

func (e *OpError) Error() string {
	failure := strings.TrimPrefix(fmt.Sprint(e.Err), "relock: ")
	if e.Holder == "" {
		return fmt.Sprintf("relock: %s %q: %s", e.Op, e.Name, failure)
	}
	return fmt.Sprintf("relock: %s %q as %s: %s", e.Op, e.Name, e.Holder, failure)
}

// Unwrap returns the failure.
func (e *OpError) Unwrap() error { return e.Err }

// invalid makes an ErrInvalid. The text names the mistake and the limits.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// freeError is the ErrNotHeld of ForceUnlock, which looks for any holder.
type freeError struct{}

func (freeError) Error() string        { return "nobody has the lock" }
func (freeError) Is(target error) bool { return target == ErrNotHeld }

func isLost(err error) bool {
	var lost *LostError
	return errors.As(err, &lost)
}

var (
	errNilContext = invalid("the context is nil; use context.Background if there is no other")
	errZeroClient = invalid("this Client was not made by New or Open")
	errZeroLock   = invalid("this Lock was not made by Client.NewLock")
	errZeroLocks  = invalid("this Locks was not made by All or Client.NewLocks")

	errScriptInside = invalid("TryLockIf inside a section of the same lock")
	errTicketInside = invalid("a ticket inside a section of the same lock")
)

func asInvalid(err error) error {
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}

// isNil says whether an interface is empty, or has a nil pointer.
func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}

// waitOverError is the cause of a wait's own end: a context.DeadlineExceeded, as each end by time.
type waitOverError struct{}

func (waitOverError) Error() string        { return "the wait is over" }
func (waitOverError) Is(target error) bool { return target == context.DeadlineExceeded }

var errWaitOver error = waitOverError{}

// silentError is the cause of the end of a call that does not wait, as the store does not answer.
// It matches the ends of contexts for the code that looks at the end of a context. The caller,
// whose context goes on, gets the error of silent.
type silentError struct{}

func (silentError) Error() string {
	return fmt.Sprintf("no answer from the store within %s", answerLimit)
}
func (silentError) Is(target error) bool {
	return target == context.Canceled || target == context.DeadlineExceeded
}

var errSilent error = silentError{}

// silent is the error of a call that errSilent has ended. err is the error of the store.
func silent(err error) error {
	text := errSilent.Error()
	if errors.Is(err, ErrUnavailable) { // otherwise it says only that the context has ended
		text = because(errSilent, err).Error()
	}
	ended := store.Unavailable(errors.New(text))
	if errors.Is(err, store.ErrUnsure) {
		return store.Unsure(ended)
	}
	return ended
}

// because puts the cause of an end in front of an error that does not know the cause.
func because(cause, err error) error {
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}
