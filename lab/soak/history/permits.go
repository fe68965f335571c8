package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// crowds finds holds of one lock that were valid beside too many others. Sections of one group
// count once.
func (k *Kinds) crowds() (wrong []string) {
	var in []*Section
	for i := range k.Sections {
		s := &k.Sections[i]
		if k.until(s) <= s.In {
			continue
		}
		in = slices.DeleteFunc(in, func(other *Section) bool { return k.until(other) <= s.In })
		in = append(in, s)
		groups, least := map[int]bool{}, s.Limit
		for _, other := range in {
			groups[other.Group] = true
			least = min(least, other.Limit)
		}
		if len(groups) > least {
			text := fmt.Sprintf("%d holds are in at %s, and the limit is %d:", len(groups), s.In, least)
			for _, other := range in {
				text += "\n  " + other.String()
			}
			wrong = append(wrong, text)
		}
	}
	return wrong
}

// unnamed finds valid holds that the store does not name.
func (k *Kinds) unnamed() (wrong []string) {
	for i := range k.Sections {
		s := &k.Sections[i]
		until := k.until(s)
		for _, seen := range k.Seen {
			if s.Holder != "" && s.In < seen.Call && seen.Return < until && !slices.Contains(seen.Holders, s.Holder) {
				wrong = append(wrong, fmt.Sprintf("from %s to %s the store names %q, and not %s of\n  %s", seen.Call, seen.Return, seen.Holders, s.Holder, s))
			}
		}
	}
	return wrong
}

// leftovers finds holds that the store names for too long after their sections. The holder of a
// failed call is unknown, so leftovers cannot find its hold.
func (k *Kinds) leftovers() (wrong []string) {
	out := map[string]time.Duration{}
	for _, s := range k.Sections {
		out[s.Holder] = max(out[s.Holder], s.Out)
	}
	for _, seen := range k.Seen {
		for _, holder := range seen.Holders {
			over, known := out[holder]
			if late := seen.Call - max(over, k.Calm); known && late > k.Longest {
				wrong = append(wrong, fmt.Sprintf("at %s the store names %s of %q, whose section was over at %s", seen.Call, holder, seen.Lock, over))
			}
		}
	}
	return wrong
}

// early finds holds that were lost before the end of their lease for no reason.
func (k *Kinds) early() (wrong []string) {
	for i := range k.Sections {
		if k.Quorum {
			break
		}
		s := &k.Sections[i]
		if s.Lost != 0 && s.Lost < s.Lease-ahead && !k.isTaken(s.Ask, s.Lost) {
			wrong = append(wrong, fmt.Sprintf("lost before the end of its lease at %s, and nobody took it away:\n  %s", s.Lease, s))
		}
	}
	return wrong
}

// cloud is a time after which the version of the register is unknown: a lock was taken away, and
// sections went on that may have lost the lock.
type cloud struct {
	from, to time.Duration
	old      bool // older data came back
}

// clouds finds the clouds of one lock. A cloud lasts until the end of the last section that was
// open at its beginning.
func (k *Kinds) clouds() (all []cloud) {
	for _, op := range k.Ops {
		c := cloud{op.Call, op.Return, op.Old}
		for _, s := range k.Sections {
			if s.Ask < op.Return && s.Out > op.Call {
				c.to = max(c.to, s.Out)
			}
		}
		all = append(all, c)
	}
	for _, s := range k.Sections {
		if s.Late {
			all = append(all, cloud{from: s.Ask, to: s.Out})
		}
	}
	slices.SortFunc(all, func(a, b cloud) int { return cmp.Compare(a.from, b.from) })
	return all
}
