package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// believer is a hold that its holder believes in.
type believer struct {
	holder string
	token  int64
	count  int
	local  bool // nested entries are not told to Redis
	// passing: it may have been passed the lock, or have tokens set aside. Then Redis may name a holder of its process that had
	// the lock before, and a later token.
	passing bool
	exact   bool // its calls were made one after the other, so what Redis counts is what the holder counts
	// exposed: somebody has taken the lock away, or may have, and Redis has not confirmed the hold since.
	exposed bool
	// until: the lock was forced and nothing else went wrong, so the holder is told, and does not believe after that; 0: who knows.
	until time.Duration
	// dirty: the count in Redis may be another one, after a call whose end is not known.
	dirty bool
	// astray: the last token in Redis may be another one. It was deleted; or the hold was exposed once, and a late command
	// has made it anew, with a newer token.
	astray bool
}

func newBeliever(op *Op) believer {
	return believer{holder: op.Holder, token: op.Token, count: 1, local: op.Local, passing: op.Passing, exact: op.exact}
}

func (b *believer) expose() { b.exposed, b.dirty, b.astray = true, true, true }

// state is what is true between two operations on one lock. It is never written to.
type state struct {
	last      int64      // the largest token so far
	old       bool       // the last token in Redis may be an older one
	believers []believer // oldest first; at most one of them is not exposed
	// handed is the tokens of exposed holds that were left, and may have been passed on inside their process, which had not heard
	// of it: whoever has the next token is exposed from the beginning.
	handed []int64
}

func (s state) equal(o state) bool {
	return s.last == o.last && s.old == o.old && slices.Equal(s.believers, o.believers) && slices.Equal(s.handed, o.handed)
}

func (s state) hash() uint64 {
	h := uint64(s.last)
	for _, b := range s.believers {
		h = h*1099511628211 + uint64(b.token)*31 + uint64(b.count)
	}
	return h
}

func (s state) String() string {
	if len(s.believers) == 0 {
		return fmt.Sprintf("free, last token %d", s.last)
	}
	var parts []string
	for _, b := range s.believers {
		part := fmt.Sprintf("%s holds %d times with token %d", b.holder, b.count, b.token)
		if b.exposed {
			part += ", exposed"
		}
		if b.until != 0 {
			part += fmt.Sprintf(", told by %s", b.until)
		}
		if b.dirty {
			part += ", count in Redis not known"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// find is the index of a hold, -1 if its holder does not believe in it.
func (s state) find(holder string, token int64) int {
	return slices.IndexFunc(s.believers, func(b believer) bool { return b.holder == holder && b.token == token })
}

// owner is the believer whom nobody else may enter beside.
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

// confirmed is the hold i after Redis has said that it is the owner; wrong, if another one surely is.
func (s state) confirmed(i int, counts bool) (b believer, wrong string) {
	b = s.believers[i]
	if owner, ok := s.owner(); ok && b.exposed {
		return b, fmt.Sprintf("Redis confirms the hold with token %d, while %s has the lock with token %d", b.token, owner.holder, owner.token)
	}
	b.exposed, b.until = false, 0
	b.dirty = b.dirty && !counts
	return b, ""
}

// exposed is the state after somebody has taken the lock away.
func (s state) exposed(op *Op) state {
	s.believers = slices.Clone(s.believers)
	for i := range s.believers {
		b := &s.believers[i]
		b.expose()
		if op.Within != 0 && op.Outcome == OK && !b.passing && b.until == 0 {
			b.until = op.Return + op.Within
		}
	}
	return s
}

// forgotten is the state after the last token was deleted.
func (s state) forgotten() state {
	s.believers = slices.Clone(s.believers)
	for i := range s.believers {
		s.believers[i].astray = true
	}
	return s
}

// step is what one operation does to a lock. wrong says which promise it breaks, if it does.
func step(s state, op *Op) (next state, wrong string) {
	switch op.Kind {
	case Lock:
		return s.lock(op)
	case Unlock:
		return s.unlock(op)
	case Extend:
		return s.extend(op)
	case Look, Told:
		return s.look(op)
	case State, Force:
		return s.asked(op)
	case Wipe:
		next = s.exposed(op)
		next.old = s.old || op.Old
		return next, ""
	case Forget:
		return s.forgotten(), ""
	case Before:
		s.last, s.old = max(s.last, op.Token), op.Old
		return s, ""
	case loss:
		return s.lose(op)
	case attempt, exit:
		return s.tried(op), ""
	default:
		return s, fmt.Sprintf("there is no kind %d", op.Kind)
	}
}

func (s state) lock(op *Op) (state, string) {
	switch op.Outcome {
	case OK:
		if i := s.find(op.Holder, op.Token); i >= 0 {
			return s.enterAgain(i)
		}
		return s.enter(op)
	case Refused:
		owner, ok := s.owner()
		if ok && owner.holder == op.Holder {
			return s, "refused, while the caller itself has the lock"
		}
		return s, s.names(op.Owner, op.Owner != "")
	case Lost:
		return s, s.mustNotHave(op)
	case Failed:
		return s.tried(op), ""
	default:
		return s, "a Lock has no such outcome"
	}
}

// tried is the state after an entry that failed, and that Redis may count; or after an exit that is counted, unless the hold
// was over before.
func (s state) tried(op *Op) state {
	i := slices.IndexFunc(s.believers, func(b believer) bool { return b.holder == op.Holder && (op.Section == 0 || b.token == op.Section) })
	if i < 0 {
		return s
	}
	b := s.believers[i]
	b.dirty = true
	if op.Kind == exit && b.count > 1 {
		b.count--
	}
	return s.with(i, b)
}

// enter is the first entry of a new hold.
func (s state) enter(op *Op) (state, string) {
	if i := slices.Index(s.handed, op.Token-1); i >= 0 && op.Passing {
		s.handed = slices.Delete(slices.Clone(s.handed), i, i+1)
		s.believers = append(slices.Clone(s.believers), newBeliever(op))
		s.believers[len(s.believers)-1].expose()
		return s, ""
	}
	if owner, ok := s.owner(); ok {
		return s, fmt.Sprintf("%s enters with token %d while %s has the lock with token %d", op.Holder, op.Token, owner.holder, owner.token)
	}
	// In a section that is lost, but whose context lives on, a Lock may begin a new hold. Its token says so.
	if op.Section == op.Token {
		return s, fmt.Sprintf("entered the hold with token %d again, after its end", op.Section)
	}
	if op.Section != 0 && s.find(op.Holder, op.Section) >= 0 {
		return s, fmt.Sprintf("a Lock in the section with token %d has entered another hold, with token %d", op.Section, op.Token)
	}
	if op.Token <= s.last {
		return s, fmt.Sprintf("token %d comes after token %d", op.Token, s.last)
	}
	s.last, s.old = op.Token, false
	s.believers = append(slices.Clone(s.believers), newBeliever(op))
	return s, ""
}

func (s state) enterAgain(i int) (state, string) {
	b := s.believers[i]
	if !b.local {
		var wrong string
		if b, wrong = s.confirmed(i, true); wrong != "" {
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
	i := s.find(op.Holder, op.Section)
	switch {
	case i < 0:
		return s, "left a hold that is over, or another's"
	case op.Outcome != OK && op.Outcome != Failed:
		return s, "an Unlock has no such outcome"
	case s.believers[i].count == 1 && op.Outcome == OK && s.believers[i].until != 0:
		return s, fmt.Sprintf("the lock was forced, and the last Unlock of the hold with token %d does not say so", op.Section)
	case s.believers[i].count == 1:
		// Else also where the hold is exposed: a release that was sent twice cannot tell that it was not the first that found
		// nothing.
		b := s.believers[i]
		s = s.without(i)
		if b.exposed && b.passing {
			s.handed = append(slices.Clone(s.handed), b.token)
		}
		return s, ""
	}
	b := s.believers[i]
	switch {
	case op.Outcome == Failed:
		b.dirty = true
	case !b.local:
		var wrong string
		if b, wrong = s.confirmed(i, true); wrong != "" {
			return s, wrong
		}
	}
	b.count--
	return s.with(i, b), ""
}

func (s state) extend(op *Op) (state, string) {
	switch op.Outcome {
	case OK:
		i := s.find(op.Holder, op.Section)
		if i < 0 {
			return s, "extended a hold that is over, or another's"
		}
		b, wrong := s.confirmed(i, false)
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

func (s state) look(op *Op) (state, string) {
	if op.Outcome != OK || op.Kind == Told {
		return s, s.mustNotHave(op)
	}
	i := s.find(op.Holder, op.Section)
	if i < 0 {
		return s, "believes in a hold that is over, or another's"
	}
	if op.Count != 0 && op.Count != s.believers[i].count {
		return s, fmt.Sprintf("counts %d entries, and %d are open", op.Count, s.believers[i].count)
	}
	if until := s.believers[i].until; until != 0 && op.Call > until {
		return s, fmt.Sprintf("the lock was forced, and the holder with token %d still believes, %s after its last lease", op.Section, op.Call-until)
	}
	return s, ""
}

// asked is what Redis, or somebody who asks it, says of a lock.
func (s state) asked(op *Op) (state, string) {
	owner, owned := s.owner()
	switch {
	case op.Outcome == Failed && op.Kind == State:
		return s, ""
	case op.Outcome == NotHeld && owned:
		return s, fmt.Sprintf("nobody holds it in Redis, while %s has it with token %d", owner.holder, owner.token)
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
	if wrong := s.names(op.Owner, true); wrong != "" || !owned {
		return s, wrong
	}
	count := owner.count
	if owner.local {
		count = 1
	}
	if op.Count != count && owner.exact && !owner.dirty {
		return s, fmt.Sprintf("Redis counts %d entries of %s, and it is %d", op.Count, owner.holder, count)
	}
	if op.Token != owner.token && !owner.astray && !(owner.passing && op.Token > owner.token) {
		return s, fmt.Sprintf("the last token in Redis is %d, while %s has the lock with token %d", op.Token, owner.holder, owner.token)
	}
	return s, ""
}

// names says what is wrong with an owner that Redis has named.
func (s state) names(holder string, named bool) string {
	owner, ok := s.owner()
	if !ok || !named || holder == owner.holder || owner.passing && holder != "" {
		return ""
	}
	return fmt.Sprintf("Redis says that the owner is %q, while %s has the lock with token %d", holder, owner.holder, owner.token)
}

// mustNotHave says what is wrong where a hold is said to be over.
func (s state) mustNotHave(op *Op) string {
	if s.find(op.Holder, op.Section) < 0 {
		return ""
	}
	return fmt.Sprintf("the hold with token %d is said to be lost, and is not", op.Section)
}

func (s state) lose(op *Op) (state, string) {
	i := s.find(op.Holder, op.Section)
	switch {
	case i < 0:
		return s, "lost a hold that is over"
	case op.early && !s.believers[i].exposed:
		return s, fmt.Sprintf("the hold with token %d is lost before the end of its lease, and nobody took it away", op.Section)
	}
	return s.without(i), ""
}
