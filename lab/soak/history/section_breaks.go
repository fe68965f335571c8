package history

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// sectionBreaking turns a recording without a broken promise into a recording with a broken
// promise.
type sectionBreaking struct {
	name string
	do   func(b *sectionBreaker) bool // false: the recording has no place for the break
}

// sectionBreaker is a recording that is being broken.
type sectionBreaker struct {
	*rand.Rand
	*Kinds
}

// KindBreaks are the names of all ways to break a recording of [Kinds].
func KindBreaks() []string {
	names := make([]string, len(sectionBreaks))
	for i, b := range sectionBreaks {
		names[i] = b.name
	}
	return names
}

// Break returns a copy of a whole recording, broken by the sectionBreaking with that name in a
// place of random's choice. ok is false if the recording has no place for the break.
func (k *Kinds) Break(random *rand.Rand, name string) (broken *Kinds, ok bool) {
	i := slices.IndexFunc(sectionBreaks, func(b sectionBreaking) bool { return b.name == name })
	if i < 0 {
		panic("history: no break is called " + name)
	}
	broken = &Kinds{slices.Clone(k.Sections), slices.Clone(k.Seen), k.Ops, k.Quorum, k.Calm, k.Longest}
	return broken, sectionBreaks[i].do(&sectionBreaker{random, broken})
}

// any returns a fitting section; nil: there is none.
func (b *sectionBreaker) any(fits func(s *Section) bool) *Section {
	var fit []*Section
	for i := range b.Sections {
		if s := &b.Sections[i]; fits(s) {
			fit = append(fit, s)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	return fit[b.IntN(len(fit))]
}

// solid is a section that was valid for a while.
func (b *sectionBreaker) solid(s *Section) bool {
	return s.Holder != "" && b.of(s.Lock).until(s) > s.In+2
}

// sequel is three sections of one lock, in succession, without a cloud between. after has read the
// version that writer has written.
type sequel struct{ before, writer, after *Section }

// sequel finds a fitting sequel; nil: there is none.
func (b *sectionBreaker) sequel(fits func(sequel) bool) *sequel {
	var fit []sequel
	for _, lock := range b.locks() {
		all := b.of(lock).visits()
		slices.SortFunc(all, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		for i := 2; i < len(all); i++ {
			q, ok := sequelOf(all[i-2 : i+1])
			if ok && fits(q) {
				fit = append(fit, q)
			}
		}
	}
	if len(fit) == 0 {
		return nil
	}
	q := fit[b.IntN(len(fit))]
	q.after = b.any(func(s *Section) bool { return s.In == q.after.In && s.Group == q.after.Group }) // not a copy
	return &q
}

func sequelOf(three []porcupine.Operation) (q sequel, ok bool) {
	for i, to := range []**Section{&q.before, &q.writer, &q.after} {
		s := three[i].Input.(visit).Section
		if s == nil || len(s.Reads) == 0 || i > 0 && three[i-1].Return >= three[i].Call {
			return q, false
		}
		*to = s
	}
	return q, q.writer.Wrote != 0
}

var sectionBreaks = []sectionBreaking{
	{"one too many", func(b *sectionBreaker) bool {
		s := b.any(b.solid)
		if s == nil {
			return false
		}
		more := Section{Lock: s.Lock, Limit: s.Limit, Ask: s.Ask, In: s.In + 1, Sure: s.In + 2, Out: s.Out}
		if s.isReader() {
			more.Limit = 1
		}
		for n := range more.Limit {
			more.Group = -1 - n
			b.Sections = append(b.Sections, more)
		}
		return true
	}},
	{"a hold that the store does not name", func(b *sectionBreaker) bool {
		s := b.any(b.solid)
		if s == nil {
			return false
		}
		b.Seen = append(b.Seen, Seen{Lock: s.Lock, Call: s.In + 1, Return: s.In + 1, Holders: []string{nobody}})
		return true
	}},
	{"a hold that does not come back", func(b *sectionBreaker) bool {
		s := b.any(b.solid)
		if s == nil {
			return false
		}
		at := b.Calm + b.Longest + 1
		for _, other := range b.Sections {
			at = max(at, other.Out+b.Longest+1)
		}
		b.Seen = append(b.Seen, Seen{Lock: s.Lock, Call: at, Return: at, Holders: []string{s.Holder}})
		return true
	}},
	{"a hold that is lost for no reason", func(b *sectionBreaker) bool {
		s := b.any(func(s *Section) bool { return !b.Quorum && b.solid(s) && !b.of(s.Lock).isTaken(s.Ask, s.Out) })
		if s == nil {
			return false
		}
		s.Lost, s.Lease = s.Out, s.Out+time.Second
		return true
	}},
	{"a section that sees two versions", func(b *sectionBreaker) bool {
		q := b.sequel(func(sequel) bool { return true })
		if q == nil {
			return false
		}
		q.after.Reads = []int64{q.writer.Wrote, q.writer.Reads[0]}
		return true
	}},
	{"a version that is over", func(b *sectionBreaker) bool {
		q := b.sequel(func(q sequel) bool { return q.after.isReader() })
		if q == nil {
			return false
		}
		q.after.Reads = q.writer.Reads[:1]
		return true
	}},
	{"an update that is lost", func(b *sectionBreaker) bool {
		q := b.sequel(func(q sequel) bool { return q.after.Wrote != 0 })
		if q == nil {
			return false
		}
		q.after.Reads = q.writer.Reads[:1]
		return true
	}},
	{"one token for two versions", func(b *sectionBreaker) bool {
		q := b.sequel(func(q sequel) bool {
			isKnown := q.before.Reads[len(q.before.Reads)-1] != 0 // the first version of all is 0
			return isKnown && q.before.isReader() && q.before.Token != 0 && q.after.isReader()
		})
		if q == nil {
			return false
		}
		q.after.Token = q.before.Token
		return true
	}},
	{"a token of a writer that went back", func(b *sectionBreaker) bool {
		q := b.sequel(func(q sequel) bool { return q.writer.Token != 0 && q.after.Wrote != 0 })
		if q == nil {
			return false
		}
		q.after.Token = q.writer.Token
		return true
	}},
}
