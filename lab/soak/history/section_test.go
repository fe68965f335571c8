package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The recordings below are written by hand. All times are in milliseconds, and a lease lasts for
// 100.

// permit is a section of group n of the lock "a".
func permit(n, limit int, times ...int) Section {
	at := func(i int) time.Duration { return time.Duration(times[i]) * ms }
	return Section{Lock: "a", Client: n, Group: n, Holder: string(rune('A' + n)), Limit: limit, Ask: at(0), In: at(1), Sure: at(2), Out: at(2) + 1}
}

func writes(n int, times ...int) Section { return permit(n, 1, times...) }
func reads(n int, times ...int) Section  { return permit(n, manyHolds, times...) }

// saw is a section that has read version, and written wrote.
func (s Section) saw(version, wrote, token int64) Section {
	s.Reads, s.Wrote, s.Token = []int64{version}, wrote, token
	return s
}

func (s Section) inside(group int) Section {
	s.Group = group
	return s
}

func (s Section) lost(at, lease int) Section {
	s.Lost, s.Lease, s.Out = time.Duration(at)*ms, time.Duration(lease)*ms, time.Duration(at)*ms
	return s
}

func (s Section) left(at int) Section {
	s.Left = time.Duration(at) * ms
	return s
}

func seen(at int, holders ...string) Seen {
	return Seen{Lock: "a", Call: time.Duration(at) * ms, Return: time.Duration(at+1) * ms, Holders: holders}
}

func kindsOf(sections ...Section) Kinds { return Kinds{Sections: sections, Longest: 100 * ms} }

func (k Kinds) with(ops ...Op) Kinds {
	k.Ops = ops
	return k
}

func (k Kinds) saw(seen ...Seen) Kinds {
	k.Seen = seen
	return k
}

func TestRecordingsOfKindsThatKeepThePromises(t *testing.T) {
	late := writes(1, 0, 1, 5).saw(0, 0, 1)
	late.Late = true
	slow := writes(2, 0, 3, 4).saw(5, 7, 0).left(4)
	slow.Out = 12 * ms
	for name, k := range map[string]Kinds{
		"nothing":                     {},
		"one writer after another":    kindsOf(writes(1, 0, 1, 5).saw(0, 7, 1), writes(2, 2, 6, 9).saw(7, 8, 2)),
		"readers together":            kindsOf(reads(1, 0, 1, 9).saw(0, 0, 1), reads(2, 2, 3, 9).saw(0, 0, 1), reads(3, 2, 4, 8)),
		"a writer between readers":    kindsOf(reads(1, 0, 1, 4).saw(0, 0, 1), writes(2, 0, 5, 8).saw(0, 7, 2), reads(3, 2, 9, 12).saw(7, 0, 2)),
		"an upgrade":                  kindsOf(reads(1, 0, 1, 4).saw(0, 0, 1), writes(2, 2, 5, 8).inside(1).saw(0, 7, 2), reads(3, 0, 4, 9).inside(1).saw(7, 0, 0)),
		"a loan beside its lender":    kindsOf(writes(1, 0, 1, 4), writes(2, 2, 3, 8).inside(1), writes(3, 0, 9, 12)),
		"a downgrade":                 kindsOf(writes(1, 0, 1, 4).saw(0, 7, 2), reads(2, 2, 3, 8).inside(1).saw(7, 0, 2), reads(3, 0, 5, 9).saw(7, 0, 2)),
		"a reader of a writer's turn": kindsOf(reads(1, 0, 1, 4).saw(0, 0, 1), reads(2, 0, 5, 6).saw(0, 0, 3)), // whose writer has failed
		"two permits":                 kindsOf(permit(1, 2, 0, 1, 9), permit(2, 2, 0, 2, 5), permit(3, 2, 0, 6, 9)),
		"more permits for others":     kindsOf(permit(1, 3, 0, 1, 9), permit(2, 3, 0, 2, 9), permit(3, 3, 0, 3, 9)),
		"a permit that was lost":      kindsOf(permit(1, 1, 0, 1, 9).lost(50, 50), permit(2, 1, 0, 51, 60)),
		"a lock that was forced": kindsOf(writes(1, 0, 1, 9).saw(0, 7, 1), writes(2, 3, 6, 12).saw(5, 8, 2), reads(3, 0, 14, 15).saw(3, 0, 2)).
			with(at(4, 5, force)),
		"asked while a lost section went on": kindsOf(writes(1, 0, 1, 9).saw(0, 7, 1), reads(2, 10, 11, 12).saw(5, 0, 0), writes(3, 7, 13, 15).saw(5, 8, 0), reads(4, 10, 16, 17).saw(8, 0, 0)).
			with(at(4, 5, force)),
		"forced before the answer of Unlock": kindsOf(reads(1, 0, 1, 2).saw(5, 0, 0), slow, reads(3, 0, 6, 7).saw(7, 0, 0)).with(at(9, 10, force)),
		"freed, and said to be lost":         kindsOf(writes(1, 0, 1, 9).lost(50, 50).left(10)).saw(seen(20, "C")),
		"forced, and said so":                kindsOf(writes(1, 0, 1, 3).lost(6, 90)).with(at(4, 5, force)),
		"forced, and not in Redis":           kindsOf(writes(1, 0, 1, 9)).with(at(4, 5, force)).saw(seen(6)),
		"older data, and an old read":        kindsOf(reads(1, 0, 1, 3).saw(4, 0, 9), reads(2, 10, 11, 12).saw(5, 0, 2)).with(at(4, 5, wipeOld)),
		"a write that may be late":           kindsOf(late, reads(2, 10, 11, 12).saw(4, 0, 1)),
		"named by the store":                 kindsOf(permit(1, 2, 0, 1, 9), permit(2, 2, 0, 5, 9)).saw(seen(2, "B"), seen(4, "B"), seen(6, "C", "B"), seen(50, "C")),
		"a holder of a failed call":          kindsOf(permit(1, 2, 0, 1, 9)).saw(seen(500, "X")),
	} {
		t.Run(name, func(t *testing.T) { require.Empty(t, k.Check(limit)) })
	}
}

func TestRecordingsOfKindsThatBreakAPromise(t *testing.T) {
	twice := reads(1, 0, 1, 5)
	twice.Reads = []int64{3, 4}
	for name, c := range map[string]struct {
		says string
		Kinds
	}{
		"two writers":                   {"2 holds are in at 5ms, and the limit is 1", kindsOf(writes(1, 0, 1, 6), writes(2, 0, 5, 8))},
		"a reader beside a writer":      {"the limit is 1", kindsOf(writes(1, 0, 1, 6), reads(2, 0, 5, 8))},
		"a writer beside a reader":      {"the limit is 1", kindsOf(reads(1, 0, 1, 6), writes(2, 0, 5, 8))},
		"in before a loan is returned":  {"the limit is 1", kindsOf(writes(1, 0, 1, 4), writes(2, 2, 3, 8).inside(1), writes(3, 0, 6, 12))},
		"an upgrade beside a reader":    {"the limit is 1", kindsOf(reads(1, 0, 1, 9), reads(2, 0, 2, 9), writes(3, 4, 5, 8).inside(1))},
		"in before a lease is over":     {"the limit is 1", kindsOf(writes(1, 0, 1, 6).lost(50, 50), writes(2, 0, 40, 60))},
		"in before the lock was forced": {"the limit is 1", kindsOf(writes(1, 0, 1, 9), writes(2, 0, 3, 12)).with(at(4, 5, force))},
		"nothing was forced":            {"the limit is 1", kindsOf(writes(1, 0, 1, 9), writes(2, 0, 6, 12)).with(at(4, 5, Op{Kind: Force, Outcome: NotHeld}))},
		"three permits":                 {"3 holds are in at 3ms, and the limit is 2", kindsOf(permit(1, 2, 0, 1, 9), permit(2, 2, 0, 2, 9), permit(3, 2, 0, 3, 9))},
		"a permit for fewer":            {"3 holds are in at 3ms, and the limit is 2", kindsOf(permit(1, 3, 0, 1, 9), permit(2, 3, 0, 2, 9), permit(3, 2, 0, 3, 9))},
		"a permit that does not count":  {"3 holds are in at 3ms, and the limit is 2", kindsOf(permit(1, 2, 0, 1, 9), permit(2, 3, 0, 2, 9), permit(3, 3, 0, 3, 9))},

		"not named by the store":  {`the store names ["B"], and not C`, kindsOf(permit(1, 2, 0, 1, 9), permit(2, 2, 0, 2, 9)).saw(seen(5, "B"))},
		"not named before Unlock": {`the store names ["C"], and not B`, kindsOf(writes(1, 0, 1, 9).lost(50, 50).left(30)).saw(seen(20, "C"))},
		"a hold that stays":       {"the store names B", kindsOf(permit(1, 2, 0, 1, 9)).saw(seen(120, "B"))},
		"lost for no reason":      {"nobody took it away", kindsOf(writes(1, 0, 1, 3).lost(6, 90))},
		"lost before the force":   {"nobody took it away", kindsOf(writes(1, 0, 1, 3).lost(6, 90)).with(at(7, 8, force))},

		"two versions in one section": {"reads version 4, and the last one is 3", kindsOf(twice)},
		"a version that is over":      {"reads version 3, and the last one is 7", kindsOf(writes(1, 0, 1, 3).saw(3, 7, 0), reads(2, 3, 4, 5).saw(3, 0, 0))},
		"an update that is lost":      {"reads version 3, and the last one is 7", kindsOf(writes(1, 0, 1, 3).saw(3, 7, 0), writes(2, 3, 4, 5).saw(3, 8, 0))},
		"one token, two versions": {"token 5 is of version 3, and of version 7", kindsOf(
			reads(1, 0, 1, 2).saw(3, 0, 5), writes(2, 0, 3, 4).saw(3, 7, 0), reads(3, 0, 5, 6).saw(7, 0, 5))},
		"a token of a reader that goes back": {"a reader has token 4 after token 5", kindsOf(reads(1, 0, 1, 2).saw(3, 0, 5), reads(2, 2, 3, 4).saw(3, 0, 4))},
		"a token of a writer that is not new": {"a writer draws token 5 after token 5", kindsOf(
			writes(1, 0, 1, 2).saw(3, 7, 5), writes(2, 0, 3, 4).saw(7, 8, 5))},
		"a token of a writer that goes back with the data": {"a writer draws token 4 after token 5", kindsOf(
			writes(1, 0, 1, 2).saw(3, 7, 5), writes(2, 9, 10, 11).saw(7, 8, 4)).with(at(5, 6, wipeOld))},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := c.Check(limit)
			require.NotEmpty(t, wrong)
			require.Contains(t, wrong[0], c.says)
		})
	}
}
