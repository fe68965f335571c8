package event

import (
	"context"
	"time"
)

// LossReason is the reason for the loss of a hold.
type LossReason string

// The reasons for a loss are a bounded set, fit for a metric label.
const (
	LossExpired   LossReason = "expired"   // the lease ran out before a renewal was confirmed (or the lease was fixed)
	LossTaken     LossReason = "taken"     // the store has lost the hold: expired there, deleted, force-unlocked, or data was lost
	LossMaxHold   LossReason = "max_hold"  // the limit of WithMaxHold was reached
	LossAbandoned LossReason = "abandoned" // the section's context was done, so nothing renewed the lease, and the lease ran out without Unlock
	LossLeaked    LossReason = "leaked"    // the section's context was garbage collected without Unlock, and the lease ran out
)

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
	// WakePass is for a call to which the section before has handed the lock inside the process.
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

// AcquireStarted is the event of [Hooks.AcquireStarted].
type AcquireStarted struct {
	Context context.Context // the caller's, for Trace: when another hook runs, the call may be over
	Name    string
	Mode    Mode
	Start   time.Time
	Client  string // the Client.ID
	Key     string // the Lock.Key: two names with one key are one lock
	// Waits says that the call waits if another holder has the lock. TryLock, TryLockIf, a wait of
	// 0, Borrow and Accept do not. A call inside a section of its lock does not wait all the same.
	Waits bool
}

// Section is an open section, see relock.Around.
type Section struct {
	Name   string
	Mode   Mode
	Client string // the Client.ID
	Key    string // the Lock.Key
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
	Depth     int           // the hold count after the entry
	Owner     Holder        // of the lock when the store last refused the call; zero: no refusal
	Wake      Wake          // how a queued call got the lock
	Reentrant bool          // inside a section of the lock; an upgrade or downgrade too, which begins a hold of its own
	Waited    bool          // another holder had the lock, and the call could wait for it
	Queued    bool          // the call had a place in the queue, or in a line, and a Queued event
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
	// of the same client.
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
