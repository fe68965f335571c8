package history

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// breaking turns a history without a broken promise into a history with a broken promise. Broken
// histories, recorded ones, show that Check works.
type breaking struct {
	name string
	do   func(b *breaker) bool // false: the history has no place for the break
}

// breaker is a history that is being broken.
type breaker struct {
	*rand.Rand
	ops   []Op
	plain []*stay
}

// Breaks are the names of all ways to break a history.
func Breaks() []string {
	names := make([]string, len(breaks))
	for i, b := range breaks {
		names[i] = b.name
	}
	return names
}

// Break returns a copy of a whole history, broken by the breaking with that name in a place of
// random's choice. ok is false if the history has no place for the break.
func Break(random *rand.Rand, ops []Op, name string) (broken []Op, ok bool) {
	i := slices.IndexFunc(breaks, func(b breaking) bool { return b.name == name })
	if i < 0 {
		panic("history: no break is called " + name)
	}
	b := &breaker{Rand: random, ops: slices.Clone(ops), plain: plain(ops)}
	return b.ops, len(b.plain) > 0 && breaks[i].do(b) && b.ops != nil
}

// plain returns the holds without secrets, by the time of their ends: each call was made after the
// one before and was answered, the last entry was left before any word of a loss, and nobody took
// the lock away meanwhile.
func plain(ops []Op) []*stay {
	var all []*stay
	for _, h := range stays(ops) {
		if !h.exact || h.entered == 0 || h.entered != h.left || h.told != never {
			continue
		}
		if last := h.last(); last.Kind != Unlock || last.Call <= h.inside() {
			continue
		}
		if !slices.ContainsFunc(ops, func(op Op) bool {
			return (op.Outcome == Failed && op.Hold == h.hold || takesAway(op)) && meets(op, h.lock, h.ops[0].Call, h.last().Return)
		}) {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *stay) int {
		return cmp.Or(cmp.Compare(a.last().Return, b.last().Return), cmp.Compare(a.hold, b.hold))
	})
	return all
}

func takesAway(op Op) bool { return op.Kind == Force || op.Kind == Wipe || op.Kind == Forget }

// meets says whether a call on that lock was under way at any time between two moments.
func meets(op Op, lock string, from, to time.Duration) bool {
	return op.Lock == lock && op.Call <= to && op.Return >= from
}

func (h *stay) last() *Op { return h.ops[len(h.ops)-1] }

// inside is a moment at which the holder surely believed: when all but its last Unlock were over.
func (h *stay) inside() time.Duration { return h.ops[len(h.ops)-2].Return + 1 }

// any is one of the plain holds of a kind, nil if there is none.
func (b *breaker) any(kind func(h *stay) bool) *stay {
	fit := slices.DeleteFunc(slices.Clone(b.plain), func(h *stay) bool { return !kind(h) })
	if len(fit) == 0 {
		return nil
	}
	return fit[b.IntN(len(fit))]
}

func anyStay(*stay) bool { return true }

// named is a hold with a holder that Redis names.
func named(h *stay) bool { return kept(h) && !h.ops[0].Mode.Passing && !h.ops[0].Mode.Redisson }

// kept is a hold in a store of its own: no part of the hold is lost.
func kept(h *stay) bool { return !h.ops[0].Mode.Quorum }

// granted is a hold that Redis has granted.
func granted(h *stay) bool { return !h.ops[0].Mode.Passing }

// drew is a hold that has drawn a token before its last call.
func drew(h *stay) bool { return h.token() != 0 }

// token returns the token of a hold, 0 if it has drawn none.
func (h *stay) token() int64 {
	for _, op := range h.ops {
		if op.Kind == Draw && op.Outcome == OK {
			return op.Token
		}
	}
	return 0
}

// add adds a call that nobody made.
func (b *breaker) add(op Op, lock string, at time.Duration) bool {
	op.Lock, op.Call, op.Return = lock, at, at
	b.ops = append(b.ops, op)
	return true
}

// edit changes every call of a hold.
func (b *breaker) edit(h *stay, f func(op *Op)) {
	for i := range b.ops {
		if key, ok := b.ops[i].key(); ok && key == h.stayKey {
			f(&b.ops[i])
		}
	}
}

func (b *breaker) index(op *Op) int {
	return slices.IndexFunc(b.ops, func(o Op) bool { return o == *op })
}

const nobody = "nobody"

var breaks = []breaking{
	{"two at once", func(b *breaker) bool {
		first, second := b.any(anyStay), b.any(granted)
		if second == nil || first == second || first.lock != second.lock {
			return false
		}
		b.edit(second, func(op *Op) { op.Call, op.Return = first.inside(), first.inside() })
		return true
	}},
	{"believes after its Unlock", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Look, Holder: h.holder, Hold: h.hold, Count: 1}, h.lock, h.last().Return+1)
	}},
	{"a token that went back", func(b *breaker) bool { return b.retoken(-1) }},
	{"a token drawn twice", func(b *breaker) bool { return b.retoken(0) }},
	{"a count that is one too high", func(b *breaker) bool { return b.recount(1) }},
	{"a count that is one too low", func(b *breaker) bool { return b.recount(-1) }},
	{"a nested entry by another holder", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Lock, Holder: nobody, Hold: h.hold, Nested: true}, h.lock, h.inside())
	}},
	{"a nested entry after the end", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Lock, Holder: h.holder, Hold: h.hold, Nested: true}, h.lock, h.last().Return+1)
	}},
	{"an Unlock by another holder", func(b *breaker) bool {
		h := b.any(anyStay)
		b.ops[b.index(h.last())].Holder = nobody
		return true
	}},
	{"an Unlock of another hold", func(b *breaker) bool {
		h := b.any(anyStay)
		b.ops[b.index(h.last())].Hold += 1 << 30 // a hold that never was
		return true
	}},
	{"an Unlock that works twice", func(b *breaker) bool {
		h := b.any(anyStay)
		again := *h.last()
		return b.add(again, h.lock, again.Return+1)
	}},
	{"an entry that is left twice", func(b *breaker) bool {
		h := b.any(anyStay)
		again := *h.last()
		again.Again = true
		return b.add(again, h.lock, again.Return+1)
	}},
	{"an open entry that is not held", func(b *breaker) bool {
		h := b.any(anyStay)
		b.ops[b.index(h.last())].Outcome = NotHeld
		return true
	}},
	{"an entry without a Lock", func(b *breaker) bool {
		h := b.any(anyStay)
		i := b.index(h.ops[0])
		b.ops = slices.Delete(b.ops, i, i+1)
		return true
	}},
	{"a crash whose lease others do not wait for", func(b *breaker) bool {
		next := map[*stay]bool{}
		for i, h := range b.plain {
			for _, later := range b.plain[i+1:] {
				in := later.ops[0].Return
				next[h] = next[h] || later.lock == h.lock && granted(later) && in < h.lease &&
					!slices.ContainsFunc(b.ops, func(op Op) bool { return takesAway(op) && meets(op, h.lock, h.last().Call, in) })
			}
		}
		h := b.any(func(h *stay) bool { return next[h] })
		if h == nil {
			return false
		}
		i := b.index(h.last())
		b.ops = slices.Delete(b.ops, i, i+1)
		return true
	}},
	{"a loss before the end of the lease", func(b *breaker) bool {
		h := b.any(func(h *stay) bool { return kept(h) && h.last().Return < h.lease })
		if h == nil {
			return false
		}
		b.ops[b.index(h.last())].Outcome = Lost
		return true
	}},
	{"believes after its loss was told", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Told, Outcome: Lost, Holder: h.holder, Hold: h.hold}, h.lock, h.inside())
	}},
	{"a refusal inside a section", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Lock, Outcome: Refused, Holder: h.holder, Hold: h.hold, Nested: true, Owner: h.holder}, h.lock, h.inside())
	}},
	{"a refusal that names another holder", func(b *breaker) bool {
		h := b.any(named)
		if h == nil {
			return false
		}
		return b.add(Op{Kind: Lock, Outcome: Refused, Holder: nobody, Owner: "somebody"}, h.lock, h.inside())
	}},
	{"another owner in Redis", func(b *breaker) bool {
		h := b.any(named)
		if h == nil {
			return false
		}
		return b.add(Op{Kind: State, Owner: nobody, Count: 1}, h.lock, h.inside())
	}},
	{"nobody in Redis", func(b *breaker) bool {
		h := b.any(kept)
		if h == nil {
			return false
		}
		return b.add(Op{Kind: State}, h.lock, h.inside())
	}},
	{"another count in Redis", func(b *breaker) bool {
		h := b.any(anyStay)
		op := Op{Kind: State, Lock: h.lock, Owner: h.holder, Count: 1000, Call: h.inside(), Return: h.inside()}
		return !slices.ContainsFunc(b.ops, op.unsettledBy) && b.add(op, h.lock, h.inside())
	}},
	{"an older token in Redis", func(b *breaker) bool {
		h := b.any(func(h *stay) bool { return h.token() > 1 })
		if h == nil {
			return false
		}
		return b.add(Op{Kind: State, Owner: h.holder, Late: time.Hour, Token: h.token() - 1}, h.lock, h.inside())
	}},
	{"a second token in a hold", func(b *breaker) bool {
		h := b.any(drew)
		if h == nil {
			return false
		}
		return b.add(Op{Kind: Draw, Holder: h.holder, Hold: h.hold, Token: h.token() + 1}, h.lock, h.inside())
	}},
	{"a token for nobody", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Draw, Holder: h.holder, Hold: h.hold, Token: 1 << 60}, h.lock, h.last().Return+1)
	}},
	{"nothing to force where somebody is", func(b *breaker) bool {
		h := b.any(anyStay)
		return b.add(Op{Kind: Force, Outcome: NotHeld}, h.lock, h.inside())
	}},
}

// retoken gives a hold the token of a hold that ended earlier, or a smaller token.
func (b *breaker) retoken(by int64) bool {
	second := b.any(drew)
	if second == nil {
		return false
	}
	first := b.any(func(h *stay) bool { return drew(h) && h.lock == second.lock && h.last().Return < second.ops[0].Call })
	if first == nil {
		return false
	}
	token := first.token() + by
	b.edit(second, func(op *Op) {
		if op.Kind == Draw {
			op.Token = token
		}
	})
	return true
}

// recount changes a count seen by a holder.
func (b *breaker) recount(by int) bool {
	var seen []*Op
	for _, h := range b.plain {
		for _, op := range h.ops {
			if op.Kind == Look && op.Count+by > 0 && op.Count > 0 {
				seen = append(seen, op)
			}
		}
	}
	if len(seen) == 0 {
		return false
	}
	b.ops[b.index(seen[b.IntN(len(seen))])].Count += by
	return true
}
