// Package history checks what a lock has told its users: whether there is an order of all calls, each at one moment between
// its beginning and its end, in which the lock does what it promises. It is a model of the reentrant, fenced lock for
// the linearizability checker porcupine.
//
// # What is modelled
//
// What clients may believe, not what is in Redis. A holder believes that it has the lock from its [Lock] on until its
// last [Unlock], or until the moment at which its lease is over by its own clock: from then on [Look] says no. The lock may be
// in Redis for longer than that, and never for less. The rules are those of step, in model.go:
//
//   - Nobody enters a lock while another holder believes that it has it.
//   - A new hold has a larger token than all before it.
//   - A Lock with the token of a hold is by the holder of that hold, while it lasts, and makes it one deeper.
//   - An Unlock leaves one entry of its own hold. A hold ends with the last of them, and not before.
//   - A hold that is lost ends when the last lease is over that its holder knew of, not earlier, and never comes back.
//   - Who is refused is not the one who has it; and whoever Redis names is.
//   - While a holder believes, Redis says that it is the owner, with its count and token.
//
// # What is lost, and when
//
// No call is the moment of a loss. [Check] makes that moment up from what the calls have said: a hold ends somewhere
// between the last lease that is known of (what [Lock.Remaining] said, counted from before it was asked) and the first
// word of the loss. A hold that nobody heard of any more (its process crashed) ends at any time after its last known lease.
//
// # When somebody takes the lock away
//
// After a [Force] or a [Wipe] (the key deleted, all data lost, a server restarted empty or with older data) exclusion is not
// promised: whoever has the lock then is exposed. It may go on believing until it is told, and others may enter meanwhile. To whom it passes
// the lock on inside its process before it is told, is exposed too. That tokens grow is promised all the same, also after a [Forget], but
// for those of such passes. A hold that Redis confirms after that is its owner (again), and not exposed any more.
//
// Whether it is told at all is not asked, as a rule: a release that was sent twice cannot tell that it was not the first that found
// nothing, and a late command can make a forced hold anew. A Force with [Op.Within] says that there was no such trouble. Then the
// last Unlock of a hold that it exposes is not OK, and its holder does not believe for longer than that. A hold that may be passed
// on inside its process is left out: its last Unlock need not ask Redis.
//
// # Calls whose end is not known
//
// A call that returned an error may have done its work in Redis, or do it later. That does not make anybody believe anything:
// a Lock that failed has not entered, and the entry of an Unlock that failed is left. So such calls are over, in the
// model, when they have returned. What they leave open is the count in Redis, which is not compared until a later call of
// the hold is confirmed. A ForceUnlock that failed may expose the hold until the end of the recording.
package history

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Kind is which call an operation was.
type Kind int

// The calls, and what may happen beside them.
const (
	Lock   Kind = iota // Lock, TryLock or TryLockFor
	Unlock             // Unlock
	Extend             // Extend
	Look               // Token, Remaining or Count: what the holder believes
	Told               // the section's context has ended because the lock was lost
	State              // somebody asks Redis
	Force              // ForceUnlock
	Wipe               // the lock was deleted from Redis, or older data took the place of what was there
	Forget             // the last token was deleted from Redis
	Before             // the first of a history: tokens up to Token were given before it

	// Made up by Check.

	loss    // the end of a hold that was lost
	attempt // a nested entry that Redis may have counted before the loss that it returned
	exit    // an exit that was counted before the loss that it returned
)

var kinds = [...]string{
	"Lock", "Unlock", "Extend", "Look", "Told", "State", "ForceUnlock", "Wipe", "Forget", "Before", "loss", "attempt to enter", "exit before the loss",
}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return kinds[k]
}

// Outcome is what a call came to.
type Outcome int

// The outcomes.
const (
	OK      Outcome = iota // it did, or it is so
	Lost                   // the hold was lost; for Look: not held any more
	Refused                // Lock: another holder has the lock
	NotHeld                // Unlock: the entry was left before; ForceUnlock: nobody has the lock
	Failed                 // anything else: cancelled, closed, not confirmed
)

var outcomes = [...]string{"ok", "lost", "refused", "not held", "failed"}

func (o Outcome) String() string { return outcomes[o] }

// Op is one call on one lock, and what came of it.
type Op struct {
	Lock         string        // the lock's name
	Client       int           // the goroutine, for the picture; it makes one call at a time
	Call, Return time.Duration // since the recording began, on one monotonic clock

	Kind    Kind
	Outcome Outcome

	Holder string // who calls; empty for State, Force, Wipe and Forget
	// Section is the token of the section that the call was made in: whose entry is left, extended, looked at. For Lock it
	// is 0 unless the caller is in a section of this lock, or has learnt with Lost of one.
	Section int64
	Again   bool          // Unlock: of an entry that was left before
	Local   bool          // Lock: WithLocalReentry
	Passing bool          // Lock: WithLocalPass
	Lease   time.Duration // Extend: the lease asked for
	Within  time.Duration // Force: the longest lease there is, where no other trouble was made, see the package; else 0
	Old     bool          // Wipe: what came back is older data, so the last token in Redis may be an older one until the next hold; Before: so it is

	Token     int64         // Lock: that of the section it returned; State: the last token
	Count     int           // Look, State: the count, 0 if it was not asked for or is not held
	Remaining time.Duration // Look: what is left of the lease, 0 if it was not asked for
	Owner     string        // Refused, State: the holder that Redis named, empty if it did not

	early bool // loss: before the end of the last known lease
	exact bool // Lock: no two calls of this hold were made at the same time
}

func (o *Op) String() string {
	text := o.Kind.String()
	if o.Again {
		text += " again"
	}
	if o.Holder != "" {
		text += " by " + o.Holder
	}
	if o.Section != 0 {
		text += fmt.Sprintf(" in %d", o.Section)
	}
	if o.Lease != 0 {
		text += " for " + o.Lease.String()
	}
	if o.Within != 0 {
		text += ", and nothing else"
	}
	if o.Old {
		text += ", and older data is back"
	}
	if o.early {
		text += " before the end of its lease"
	}
	text += ": " + o.Outcome.String()
	for _, result := range []struct {
		name  string
		value any
		known bool
	}{
		{"token", o.Token, o.Token != 0},
		{"count", o.Count, o.Count != 0},
		{"remaining", o.Remaining, o.Remaining != 0},
		{"owner", o.Owner, o.Owner != ""},
	} {
		if result.known {
			text += fmt.Sprintf(", %s %v", result.name, result.value)
		}
	}
	return text
}

// Recorder collects operations. It is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu   sync.Mutex
	last time.Duration
	ops  []Op
}

// NewRecorder begins a recording.
func NewRecorder() *Recorder { return &Recorder{start: time.Now()} }

// Now is the time since the recording began: the Call of what is about to begin, the Return of what has just ended. No two times are
// the same: where the clock stands still, as fake time does, the later one is a nanosecond more.
func (r *Recorder) Now() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(time.Since(r.start), r.last+1)
	return r.last
}

// Add records an operation that has ended.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

// Len is how many operations were added since the last Take.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

// Take returns the operations added since the last Take. Nobody must believe that it has a lock when a part of a
// recording is checked by itself; then [Tokens] is all that the next part has to know of it.
func (r *Recorder) Take() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	ops := r.ops
	r.ops = nil
	return ops
}

// Tokens is what the next part of a history has to know of this one, as the Before operations that it begins with: the largest token of
// each lock, and whether Redis may still have an older one.
func Tokens(ops []Op) []Op {
	locks := map[string]Op{}
	for _, op := range ops {
		before := locks[op.Lock]
		if op.Kind == Before || op.Kind == Lock && op.Outcome == OK {
			before.Token = max(before.Token, op.Token)
		}
		locks[op.Lock] = before
	}
	var all []Op
	for name, before := range locks {
		drawn := func(old Op) bool { // a token since
			return slices.ContainsFunc(ops, func(op Op) bool {
				return op.Lock == name && op.Kind == Lock && op.Outcome == OK && op.Call >= old.Return
			})
		}
		before.Kind, before.Lock = Before, name
		before.Old = slices.ContainsFunc(ops, func(op Op) bool { return op.Lock == name && op.Old && !drawn(op) })
		if before.Token != 0 {
			all = append(all, before)
		}
	}
	return all
}
