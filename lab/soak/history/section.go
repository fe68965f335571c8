package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Section is one section of a lock of any kind: of a read-write lock, of a semaphore, or of one of
// several locks taken at once. All times are of [Recorder.Now].
type Section struct {
	Lock   string
	Client int    // the goroutine
	Holder string // in the store, of a loan the lender; empty: the hold was lost before anybody could ask
	Group  int    // one of nested sections (an upgrade or downgrade), and of a lender with its loans
	Limit  int    // as in store.Claim: 1 a writer or a mutex, n a permit, store.Unlimited a reader

	Ask, In time.Duration // the call and the return of Lock
	Sure    time.Duration // the end of the time for which the holder surely believed
	Lease   time.Duration // the end of the last lease known to the holder
	Left    time.Duration // the call of Unlock; 0: no call
	Lost    time.Duration // the first word of a loss; 0: the hold was not lost
	Out     time.Duration // nobody works in the section after Out

	Token int64   // 0: none was drawn
	Reads []int64 // the versions of the register read before Wrote
	Wrote int64   // the version written; 0: none
	Late  bool    // a version was written, perhaps after the hold was lost
}

func (s *Section) String() string {
	who := "permit"
	switch {
	case s.Limit == 1:
		who = "writer"
	case s.isReader():
		who = "reader"
	}
	text := fmt.Sprintf("%s of %q, client %d, group %d, asked at %s, in from %s to %s", who, s.Lock, s.Client, s.Group, s.Ask, s.In, s.Sure)
	if s.Lost != 0 {
		text += fmt.Sprintf(", lost by %s", s.Lost)
	}
	if s.Token != 0 {
		text += fmt.Sprintf(", token %d", s.Token)
	}
	if len(s.Reads) > 0 {
		text += fmt.Sprintf(", read %d", s.Reads)
	}
	if s.Wrote != 0 {
		text += fmt.Sprintf(", wrote %d", s.Wrote)
	}
	return text
}

// over returns a time after the last read and write of the section.
func (s *Section) over() time.Duration {
	if s.Left != 0 && s.Lost == 0 {
		return s.Left // the Unlock may have waited for its answer
	}
	return s.Out
}

// manyHolds is a limit that no permit has.
const manyHolds = 1 << 20

func (s *Section) isReader() bool { return s.Limit >= manyHolds }

// Seen is one answer of the store about a lock.
type Seen struct {
	Lock         string
	Call, Return time.Duration
	Holders      []string
}

// Kinds is a recording of locks of other kinds than the mutex. [Kinds.Check] finds broken promises:
//
//   - A hold is valid beside at most as many holds as its limit says (permits.go): a writer
//     excludes everybody, readers exclude writers, and a semaphore lets n in. A loan is valid
//     beside its lender, and excludes everybody else until the loan is returned.
//   - The store names each valid hold, also each lock of several taken at once. The store names
//     nobody for longer than a lease after the section is over, be it by a crash.
//   - No hold is lost before the end of its lease, unless somebody takes the lock away.
//   - The sections of a read-write lock are linearizable operations on a register (register.go).
//
// A section may lose its lock in a [Force] or a [Wipe] without a word. Afterwards, its hold does
// not count as valid.
type Kinds struct {
	Sections []Section
	Seen     []Seen
	Ops      []Op // only operations that take locks away matter
	Quorum   bool // holds may be lost early, see [Mode]
	// Calm is the end of the trouble. A hold without a section may stay for Longest after Calm.
	Calm, Longest time.Duration
}

// Check returns one text for each broken promise. The check of a register takes at most limit.
func (k *Kinds) Check(limit time.Duration) (wrong []string) {
	for _, lock := range k.locks() {
		part := k.of(lock)
		wrong = slices.Concat(wrong, part.crowds(), part.unnamed(), part.leftovers(), part.early(), part.register(limit))
	}
	return wrong
}

func (k *Kinds) locks() (names []string) {
	for i := range k.Sections {
		names = append(names, k.Sections[i].Lock)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the part of one lock. The sections are sorted by their beginnings.
func (k *Kinds) of(lock string) *Kinds {
	part := &Kinds{Quorum: k.Quorum, Calm: k.Calm, Longest: k.Longest}
	for _, s := range k.Sections {
		if s.Lock == lock {
			part.Sections = append(part.Sections, s)
		}
	}
	for _, seen := range k.Seen {
		if seen.Lock == lock {
			part.Seen = append(part.Seen, seen)
		}
	}
	for _, op := range k.Ops {
		if op.Lock == lock && (op.Kind == Wipe || op.Kind == Force && op.Outcome != NotHeld) {
			part.Ops = append(part.Ops, op)
		}
	}
	slices.SortFunc(part.Sections, func(a, b Section) int { return cmp.Compare(a.In, b.In) })
	return part
}

// until returns the end of the time for which a hold was surely valid.
func (k *Kinds) until(s *Section) time.Duration {
	until := s.Sure
	if s.Lost != 0 {
		lost := min(s.Lost, s.Lease-ahead)
		if s.Left != 0 { // an Unlock without an answer frees the lock, and reports the loss at its end
			lost = min(lost, s.Left)
		}
		until = max(until, lost)
	}
	for _, op := range k.Ops {
		if meets(op, s.Lock, s.Ask, until) {
			until = min(until, op.Call)
		}
	}
	return until
}

// isTaken says whether somebody has taken the lock away between two moments, or may have.
func (k *Kinds) isTaken(from, to time.Duration) bool {
	return slices.ContainsFunc(k.Ops, func(op Op) bool { return op.Call <= to && op.Return >= from })
}
