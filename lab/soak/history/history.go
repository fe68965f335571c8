// Package history checks the answers of a lock. A check looks for an order of all calls, each at
// one moment between the call and the return, in which the lock keeps its promises. The package is
// a model of the reentrant, fenced lock for the linearizability checker porcupine.
//
// # Beliefs
//
// The model is about the beliefs of clients, and not about the data in Redis. A holder believes in
// a hold from its first [Lock] to its last [Unlock], or to the end of its lease by the holder's
// clock. After the lease [Look] says no. The hold may stay in Redis for longer, and never for less.
// The rules are those of step, in model.go:
//
//   - Nobody begins a hold while another hold is believed in.
//   - A Lock in an open section of the lock enters the hold of the section, and every other Lock
//     begins a hold. Holds of one holder exclude each other like all others.
//   - An Unlock leaves one entry of its own hold. A hold ends with the last of its Unlocks, not
//     earlier.
//   - A lost hold ends with the last lease known to its holder, not earlier, and never comes back.
//   - A token is larger than all tokens drawn before, and a hold keeps its first token.
//   - A nested Lock is never refused, and a refusal names the owner.
//   - While a hold is believed in, Redis names its holder as the owner, and soon counts right.
//
// # Losses
//
// No call is the moment of a loss. [Check] makes up the moment: a hold ends between the last known
// lease (the answer of [Lock.Remaining], counted from before the call) and the first word of the
// loss. The hold of a crashed process ends at any time after the last known lease.
//
// # Holds that somebody takes away
//
// After a [Force] or a [Wipe] (the key deleted, all data lost, a server restarted empty or with
// older data) exclusion is not promised: the holder of the lock is exposed. The holder may go on to
// believe until the loss is reported, and others may enter meanwhile. If the holder passes the lock
// on inside its process before the report, the next hold is exposed too. Tokens grow all the same,
// also after a [Forget]. If Redis confirms an exposed hold, the hold is the owner again, and no
// longer exposed.
//
// As a rule the model does not ask whether the holder learns of the loss: a repeated release cannot
// tell whether another command found nothing first, and a late command can make a forced hold anew.
// A Force with [Op.Within] says that there was no such trouble. After such a Force, the last Unlock
// of an exposed hold is not OK, and the holder believes for at most Within. Holds that may be
// passed on inside their process are left out: their last Unlock need not ask Redis.
//
// # Calls with an unknown end
//
// A failed call may have done its work in Redis, or may do so later. Nobody believes more for that:
// a failed Lock has not entered, and the entry of a failed Unlock is left. In the model such a call
// ends with its return. Redis may count wrong for a while. A failed ForceUnlock may expose a hold
// until the end of the recording.
package history

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Kind is the kind of an operation.
type Kind int

// The calls, and other events.
const (
	Lock   Kind = iota // Lock, TryLock or TryLockFor
	Unlock             // Unlock
	Extend             // Extend
	Draw               // Token
	Look               // Held, Remaining or Count: the belief of the holder
	Told               // the context of a section has ended because the lock was lost
	State              // somebody asks Redis
	Force              // ForceUnlock
	Wipe               // the lock was deleted from Redis, or older data came back
	Forget             // the last token was deleted from Redis
	Before             // the first of a history: tokens up to Token were drawn earlier

	// Made up by Check.

	loss    // the end of a lost hold
	exit    // an exit that was counted before the loss returned by the call
	confirm // the answer of Redis to an entry or exit; the holder counts at another moment
)

var kinds = [...]string{
	"Lock", "Unlock", "Extend", "Token", "Look", "Told", "State", "ForceUnlock", "Wipe", "Forget", "Before",
	"loss", "exit before the loss", "answer",
}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return kinds[k]
}

// Outcome says how a call ended.
type Outcome int

// The outcomes.
const (
	OK      Outcome = iota // done, or true
	Lost                   // the hold was lost; of Look: the lock is not held any more
	Refused                // Lock: another hold has the lock
	NotHeld                // Unlock: the entry was left before; ForceUnlock: nobody has the lock
	Failed                 // anything else: cancelled, closed, not confirmed
)

var outcomes = [...]string{"ok", "lost", "refused", "not held", "failed"}

func (o Outcome) String() string { return outcomes[o] }

// Op is one call on one lock, and its outcome.
type Op struct {
	Lock         string        // the name of the lock
	Client       int           // the goroutine, for the picture; a goroutine makes one call at a time
	Call, Return time.Duration // since the beginning of the recording, on one monotonic clock

	Kind    Kind
	Outcome Outcome

	Holder string // the caller's holder, empty if there is none
	// Hold is the number of the hold that a Lock has begun, or of the hold of the call's section; 0
	// if there is none.
	Hold   int
	Again  bool          // Unlock: of an entry already left
	Mode   Mode          // Lock: the first Lock of a hold
	Nested bool          // Lock: in an open section of Hold
	Lease  time.Duration // Extend: the lease asked for
	// Within is the longest lease, if a Force was the only trouble; see the package. Else 0.
	Within time.Duration
	// Old says of a Wipe that older data came back. Redis may have an older token until the next
	// draw. A Before takes Old over from a Wipe.
	Old bool
	// Late is how long Redis may count wrong after a call that has changed the count: two commands
	// may have run in the other order, or a command may have run late. For State.
	Late time.Duration

	Token     int64         // Draw: the token; State: the last token, 0 if there is none
	Count     int           // Look, State: the count, 0 if not asked for or not held
	Remaining time.Duration // Look: the rest of the lease, 0 if not asked for
	Owner     string        // Refused, State: the holder that Redis named, empty if none

	derived derived
}

// derived is the part of an Op that Check finds out from the other operations.
type derived struct {
	early   bool // loss: before the end of the last known lease
	settled bool // State: Redis must count right
	split   bool // Lock, Unlock: the answer of Redis is an operation of its own
}

// Mode is the lock's options that change the answers of Redis.
type Mode struct {
	Local    bool          // WithLocalReentry: Redis counts one entry
	Passing  bool          // the store passes leases on: it may name an earlier holder of the same process
	Kept     time.Duration // of WithKeep
	Redisson bool          // WithRedissonLayout: Redis names a hold, and counts a token when a hold begins
	Drawn    bool          // the store draws a token with each hold: an etcd revision, a zxid of ZooKeeper
	Quorum   bool          // members may lose a hold, down to less than a majority; a refusal may name a minority
}

func (o *Op) String() string {
	text := o.Kind.String()
	if o.Nested {
		text = "nested " + text
	}
	if o.Again {
		text += " again"
	}
	if o.Holder != "" {
		text += " by " + o.Holder
	}
	if o.Hold != 0 {
		text += fmt.Sprintf(" in hold %d", o.Hold)
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
	if o.derived.early {
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

// Recorder collects operations. A Recorder is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu    sync.Mutex
	last  time.Duration
	holds int
	ops   []Op
}

// NewRecorder begins a recording.
func NewRecorder() *Recorder { return &Recorder{start: time.Now()} }

// Now returns the time since the beginning of the recording: the Call of an operation at its begin,
// the Return of an operation at its end. No two times are the same. If the clock stands still, as
// in fake time, each time is a nanosecond more than the last.
func (r *Recorder) Now() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(time.Since(r.start), r.last+1)
	return r.last
}

// Hold returns a number for a new hold, from 1.
func (r *Recorder) Hold() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds++
	return r.holds
}

// Add records a finished operation.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

// Len is the number of operations since the last Take.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ops)
}

// Take returns the operations since the last Take. A part of a recording can be checked alone if no
// hold is believed in at its end. Begin the check of the next part with [Tokens] of the last part.
func (r *Recorder) Take() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	ops := r.ops
	r.ops = nil
	return ops
}

// Tokens returns the Before operations for the next part of a history: the largest token of each
// lock, and whether Redis may still have an older one.
func Tokens(ops []Op) []Op {
	locks := map[string]Op{}
	for _, op := range ops {
		before := locks[op.Lock]
		if op.Outcome == OK {
			before.Token = max(before.Token, op.Token)
		}
		locks[op.Lock] = before
	}
	var all []Op
	for name, before := range locks {
		before.Kind, before.Lock = Before, name
		before.Old = slices.ContainsFunc(ops, func(op Op) bool { return op.Lock == name && op.Old && !drawnSince(ops, op) })
		if before.Token != 0 {
			all = append(all, before)
		}
	}
	return all
}

// drawnSince says whether Redis has drawn a token after an operation on the same lock. Only the
// first draw of a hold asks Redis.
func drawnSince(ops []Op, old Op) bool {
	first := map[int]time.Duration{}
	for _, op := range ops {
		if op.Lock != old.Lock || op.Kind != Draw || op.Outcome != OK {
			continue
		}
		if call, ok := first[op.Hold]; !ok || op.Call < call {
			first[op.Hold] = op.Call
		}
	}
	for _, call := range first {
		if call >= old.Return {
			return true
		}
	}
	return false
}
