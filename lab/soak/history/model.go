package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// believer is a hold that its holder believes in.
type believer struct {
	Mode
	hold   int
	holder string
	count  int
	token  int64 // the first token drawn, 0 if none was
	before int64 // the largest token when the hold began

	// exposed says that somebody has taken the lock away, or may have, and that Redis has not
	// confirmed the hold since.
	exposed bool
	// until is when the holder must have learnt that the lock was forced; 0: nobody can tell.
	until time.Duration
}

func newBeliever(op *Op, last int64) believer {
	return believer{Mode: op.Mode, hold: op.Hold, holder: op.Holder, count: 1, before: last}
}

// client is the client of a holder.
func client(holder string) string {
	return holder[:max(strings.LastIndexByte(holder, ':'), 0)]
}

// pass is an exposed hold that was left. Its client may have passed the hold on to a waiting call, or
// has kept the lock for a call to come.
type pass struct {
	client string
	at     time.Duration // the call had begun by at
}

// state is true between two operations on one lock. Nobody writes to a state.
type state struct {
	last      int64      // the largest token so far
	old       bool       // Redis may have an older token
	believers []believer // oldest first; at most one is not exposed
	passes    []pass
	kept      []pass // of holds that are not exposed: they are, if somebody takes the lock away
}

func (s state) equal(o state) bool {
	return s.last == o.last && s.old == o.old && slices.Equal(s.believers, o.believers) && slices.Equal(s.passes, o.passes) &&
		slices.Equal(s.kept, o.kept)
}

func (s state) hash() uint64 {
	h := uint64(s.last)
	for _, b := range s.believers {
		h = h*1099511628211 + uint64(b.hold)*31 + uint64(b.count)
	}
	return h
}

func (s state) String() string {
	if len(s.believers) == 0 {
		return fmt.Sprintf("free, last token %d", s.last)
	}
	var parts []string
	for _, b := range s.believers {
		part := fmt.Sprintf("%s has hold %d with %d entries", b.holder, b.hold, b.count)
		if b.token != 0 {
			part += fmt.Sprintf(" and token %d", b.token)
		}
		if b.exposed {
			part += ", exposed"
		}
		if b.until != 0 {
			part += fmt.Sprintf(", told by %s", b.until)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// find returns the index of a hold, -1 if its holder does not believe in it.
func (s state) find(op *Op) int {
	return slices.IndexFunc(s.believers, func(b believer) bool { return b.hold == op.Hold && b.holder == op.Holder })
}

// owner returns the believer that excludes all others.
func (s state) owner() (b believer, ok bool) {
	i := slices.IndexFunc(s.believers, func(b believer) bool { return !b.exposed })
	if i < 0 {
		return believer{}, false
	}
	return s.believers[i], true
}

func (s state) with(i int, b believer) state {
	s.believers = slices.Clone(s.believers)
	s.believers[i] = b
	return s
}

func (s state) without(i int) state {
	s.believers = slices.Delete(slices.Clone(s.believers), i, i+1)
	return s
}

// confirmed returns the hold i after Redis has named the hold as the owner; wrong, if another hold
// is surely the owner.
func (s state) confirmed(i int) (b believer, wrong string) {
	b = s.believers[i]
	if owner, ok := s.owner(); ok && b.exposed {
		return b, fmt.Sprintf("Redis confirms hold %d, while %s has hold %d", b.hold, owner.holder, owner.hold)
	}
	b.exposed, b.until = false, 0
	return b, ""
}

// exposed returns the state after somebody has taken the lock away.
func (s state) exposed(op *Op) state {
	s.believers, s.passes, s.kept = slices.Clone(s.believers), slices.Concat(s.passes, s.kept), nil
	for i := range s.believers {
		b := &s.believers[i]
		b.exposed = true
		if op.Within != 0 && op.Outcome == OK && !b.Passing && b.until == 0 {
			b.until = op.Return + op.Within
		}
	}
	return s
}

// step returns the state after an operation. wrong names the promise broken by the operation, if
// any.
func step(s state, op *Op) (next state, wrong string) {
	switch op.Kind {
	case Lock:
		return s.lock(op)
	case Unlock:
		return s.unlock(op)
	case Extend:
		return s.extend(op)
	case Draw:
		return s.draw(op)
	case Look, Told:
		return s.look(op)
	case State, Force:
		return s.asked(op)
	case Wipe:
		next = s.exposed(op)
		next.old = s.old || op.Old
		return next, ""
	case Forget: // the clock of Redis keeps tokens growing
		return s, ""
	case Before:
		s.last, s.old = max(s.last, op.Token), op.Old
		return s, ""
	case loss:
		return s.lose(op)
	case exit:
		return s.exit(op), ""
	case confirm:
		i := s.find(op)
		if i < 0 { // the last exit
			return s, ""
		}
		b, wrong := s.confirmed(i)
		if wrong != "" {
			return s, wrong
		}
		return s.with(i, b), ""
	}
	return s, "no kind of operation"
}

func (s state) lock(op *Op) (state, string) {
	switch op.Outcome {
	case OK:
		if op.Nested {
			return s.enterAgain(op)
		}
		return s.enter(op)
	case Lost:
		return s, s.mustNotHave(op)
	case Refused:
		if op.Nested {
			return s, "a Lock in a section of the lock is refused"
		}
		return s, s.names(op.Owner, op.Owner != "")
	case Failed:
		return s, ""
	default:
		return s, "a Lock has no such outcome"
	}
}

// exit returns the state after an exit that was counted before the loss was returned.
func (s state) exit(op *Op) state {
	i := s.find(op)
	if i < 0 || s.believers[i].count == 1 {
		return s
	}
	b := s.believers[i]
	b.count--
	return s.with(i, b)
}

// enter is the first entry of a new hold.
func (s state) enter(op *Op) (state, string) {
	b := newBeliever(op, s.last)
	owner, owned := s.owner()
	i := slices.IndexFunc(s.passes, func(p pass) bool { return p.client == client(op.Holder) && op.Call <= p.at })
	switch {
	case i >= 0 && op.Mode.Passing: // perhaps from a hold whose lock was taken away
		b.exposed = true
		if owned {
			s.passes = slices.Delete(slices.Clone(s.passes), i, i+1)
		}
	case owned:
		return s, fmt.Sprintf("%s begins hold %d, while %s has hold %d", op.Holder, op.Hold, owner.holder, owner.hold)
	}
	s.believers, s.kept = append(slices.Clone(s.believers), b), nil
	return s, ""
}

func (s state) enterAgain(op *Op) (state, string) {
	i := s.find(op)
	if i < 0 {
		return s, fmt.Sprintf("enters hold %d again, which is over, or another's", op.Hold)
	}
	b := s.believers[i]
	if !b.Local && !op.derived.split {
		var wrong string
		if b, wrong = s.confirmed(i); wrong != "" {
			return s, wrong
		}
	}
	b.count++
	return s.with(i, b), ""
}

func (s state) unlock(op *Op) (state, string) {
	if op.Again != (op.Outcome == NotHeld) {
		if op.Again {
			return s, "an entry was left twice"
		}
		return s, "an open entry is said not to be held"
	}
	if op.Again {
		return s, ""
	}
	if op.Outcome == Lost {
		return s, s.mustNotHave(op)
	}
	i := s.find(op)
	switch {
	case i < 0:
		return s, "left a hold that is over, or another's"
	case op.Outcome != OK && op.Outcome != Failed:
		return s, "an Unlock has no such outcome"
	case s.believers[i].count == 1:
		return s.leave(op, i)
	}
	b := s.believers[i]
	if op.Outcome == OK && !b.Local && !op.derived.split {
		var wrong string
		if b, wrong = s.confirmed(i); wrong != "" {
			return s, wrong
		}
	}
	b.count--
	return s.with(i, b), ""
}

// leave is the last exit of a hold. An exposed hold may end with OK too: a repeated release cannot
// tell whether another command found nothing first.
func (s state) leave(op *Op, i int) (state, string) {
	b := s.believers[i]
	if op.Outcome == OK && b.until != 0 {
		return s, fmt.Sprintf("the lock was forced, and the last Unlock of hold %d does not say so", op.Hold)
	}
	s = s.without(i)
	switch left := (pass{client(b.holder), op.Return + b.Kept}); {
	case b.exposed && b.Passing:
		s.passes = append(slices.Clone(s.passes), left)
	case b.Kept > 0:
		s.kept = []pass{left}
	}
	return s, ""
}

func (s state) extend(op *Op) (state, string) {
	switch op.Outcome {
	case OK:
		i := s.find(op)
		if i < 0 {
			return s, "extended a hold that is over, or another's"
		}
		b, wrong := s.confirmed(i)
		if wrong != "" {
			return s, wrong
		}
		return s.with(i, b), ""
	case Lost:
		return s, s.mustNotHave(op)
	case Failed:
		return s, ""
	default:
		return s, "an Extend has no such outcome"
	}
}

// draw asks Redis the first time, and returns the same token later. In Redisson's layout, and in
// stores that draw a token with each hold, the token was drawn when the hold began.
func (s state) draw(op *Op) (state, string) {
	switch op.Outcome {
	case Lost:
		return s, s.mustNotHave(op)
	case Failed:
		return s, ""
	case OK:
	default:
		return s, "a Token has no such outcome"
	}
	i := s.find(op)
	switch {
	case i < 0:
		return s, "drew a token in a hold that is over, or another's"
	case op.Token <= 0:
		return s, fmt.Sprintf("%d is no token", op.Token)
	}
	b, smallest := s.believers[i], s.last+1
	switch {
	case b.token == op.Token:
		return s, ""
	case b.token != 0:
		return s, fmt.Sprintf("hold %d has token %d, and had token %d before", op.Hold, op.Token, b.token)
	case b.Redisson || b.Drawn:
		smallest = b.before + 1
	default:
		var wrong string
		if b, wrong = s.confirmed(i); wrong != "" {
			return s, wrong
		}
	}
	if op.Token < smallest {
		return s, fmt.Sprintf("token %d comes after token %d", op.Token, smallest-1)
	}
	b.token = op.Token
	s.last, s.old = max(s.last, op.Token), false
	return s.with(i, b), ""
}

func (s state) look(op *Op) (state, string) {
	if op.Outcome != OK || op.Kind == Told {
		return s, s.mustNotHave(op)
	}
	i := s.find(op)
	if i < 0 {
		return s, "believes in a hold that is over, or another's"
	}
	if op.Count != 0 && op.Count != s.believers[i].count {
		return s, fmt.Sprintf("counts %d entries, and %d are open", op.Count, s.believers[i].count)
	}
	if until := s.believers[i].until; until != 0 && op.Call > until {
		return s, fmt.Sprintf("the lock was forced, and hold %d is believed in %s after its last lease", op.Hold, op.Call-until)
	}
	return s, ""
}

// asked is an answer of Redis about the lock.
func (s state) asked(op *Op) (state, string) {
	owner, owned := s.owner()
	switch {
	case op.Outcome == Failed && op.Kind == State:
		return s, ""
	case op.Outcome == NotHeld && owned:
		return s, fmt.Sprintf("nobody has the lock in Redis, while %s has hold %d", owner.holder, owner.hold)
	case op.Outcome == NotHeld:
		return s, ""
	case op.Outcome != OK && op.Outcome != Failed:
		return s, "no such outcome"
	case op.Kind == Force:
		return s.exposed(op), ""
	}
	if op.Token != 0 && op.Token < s.last && !s.old {
		return s, fmt.Sprintf("the last token in Redis is %d, after token %d", op.Token, s.last)
	}
	s.last = max(s.last, op.Token) // a failed call may have drawn the token
	if wrong := s.names(op.Owner, true); wrong != "" || !owned {
		return s, wrong
	}
	count := owner.count
	if owner.Local {
		count = 1
	}
	if op.Count != count && op.derived.settled {
		return s, fmt.Sprintf("Redis counts %d entries of %s, and there are %d", op.Count, owner.holder, count)
	}
	return s, ""
}

// names says whether an owner named by Redis is wrong, and why.
func (s state) names(holder string, named bool) string {
	owner, ok := s.owner()
	switch {
	case !ok, !named, holder == owner.holder, owner.Quorum, owner.Passing && holder != "":
		return ""
	case owner.Redisson && clientOf(holder) == clientOf(owner.holder): // Redis has the number of the hold
		return ""
	}
	return fmt.Sprintf("Redis names %q as the owner, while %s has hold %d", holder, owner.holder, owner.hold)
}

// clientOf returns the client of a holder.
func clientOf(holder string) string { return holder[:max(strings.LastIndexByte(holder, ':'), 0)] }

// mustNotHave says why the report of a loss is wrong.
func (s state) mustNotHave(op *Op) string {
	if s.find(op) < 0 {
		return ""
	}
	return fmt.Sprintf("hold %d is said to be lost, and is not", op.Hold)
}

func (s state) lose(op *Op) (state, string) {
	i := s.find(op)
	switch {
	case i < 0:
		return s, "lost a hold that is over"
	case op.derived.early && !s.believers[i].exposed && !s.believers[i].Quorum:
		return s, fmt.Sprintf("hold %d is lost before the end of its lease, and nobody took it away", op.Hold)
	}
	return s.without(i), ""
}
