package wire

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
)

// Result is the end of one unit of All.
type Result struct {
	Reply any
	Err   error
}

// All runs a script once for many units, in one round trip, and again for units that ask again. In
// a cluster a script call has units of one slot. All returns as soon as ctx is done, with a result
// for each unit, in order. A unit with an error may have run, unless the error is a refusal.
func (w *Wire) All(ctx context.Context, s *Script, common []any, units []Unit) []Result {
	results, call := make([]Result, len(units)), &Call{Script: s, Common: common}
	places, fewest := make([]int, len(units)), math.MaxInt // places of units to send
	for i := range places {
		places[i] = i
	}
	for attempt := 1; len(places) > 0; attempt++ {
		flights := make([]*flight, len(places))
		for i, at := range places {
			flights[i] = &flight{ctx: ctx, call: call, unit: units[at], since: time.Now(), done: make(chan struct{})}
			if w.cluster != nil {
				flights[i].slot = slotOf(units[at].Keys[0])
			}
		}
		w.sendAsync(ctx, slices.SortedStableFunc(slices.Values(flights), bySlot), false)
		var lost, again []int // places of units whose connection has ended, or whose reply asks again
		var last error
		for i, f := range flights {
			o := w.await(ctx, f)
			switch {
			case hasEnded(o.err):
				lost, last = append(lost, places[i]), o.err
			case o.err == nil && s.asksAgain(o.reply):
				again = append(again, places[i])
			}
			w.reportTrouble(o.err)
			results[places[i]].Reply = o.reply
			if o.err != nil && ctx.Err() != nil {
				results[places[i]].Err = endedAfter(ctx, o.err)
			} else {
				results[places[i]].Err = unavailable(o.err)
			}
		}
		if ctx.Err() != nil {
			for _, at := range again {
				results[at].Err = lifetime.Ended(ctx)
			}
			break
		}
		if places = again; w.wasStale(last, &fewest) {
			w.options.Retried(units[lost[0]].Keys[0], s.Name, attempt, attempt, last)
			places = slices.Concat(again, lost)
		}
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Err != nil && !Refused(r.Err) }) {
		w.doubtMap(ctx)
	}
	return results
}

func bySlot(a, b *flight) int { return cmp.Compare(a.slot, b.slot) }
