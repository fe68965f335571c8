package wire

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

// Result is the end of one unit of All.
type Result struct {
	Reply any
	Acked int // servers that have confirmed, up to Acks.Wanted
	Err   error
}

// All runs a script once for many units, in one round trip, and again for units that ask again. In
// a cluster each node has a round trip of its own, and a script call has units of one slot. All
// returns as soon as ctx is done, with a result for each unit, in order. A unit with an error may
// have run, unless the error is a refusal.
func (w *Wire) All(ctx context.Context, s *Script, common []any, units []Unit) []Result {
	return w.AllAcked(ctx, s, common, units, attempts.Acks{})
}

// AllAcked is All, and waits once in each round trip for the confirmations of acks.
func (w *Wire) AllAcked(ctx context.Context, s *Script, common []any, units []Unit, acks attempts.Acks) []Result {
	results, spec := make([]Result, len(units)), &spec{script: s, common: common, acks: acks}
	places, fewest := make([]int, len(units)), math.MaxInt // places of units to send
	for i := range places {
		places[i] = i
	}
	for len(places) > 0 {
		flights, since := make([]flight, len(places)), time.Now()
		for i, at := range places {
			flights[i] = flight{ctx: ctx, spec: spec, unit: units[at], since: since}
		}
		w.sendAll(ctx, flights)
		var lost, again []int // places of units whose connection has ended, or whose reply asks again
		var last error
		for i := range flights {
			o := w.await(ctx, &flights[i])
			switch {
			case hasEnded(o.err):
				lost, last = append(lost, places[i]), o.err
			case o.err == nil && s.asksAgain(o.reply):
				again = append(again, places[i])
			}
			w.reportTrouble(o.err)
			results[places[i]].Reply, results[places[i]].Acked = o.reply, o.acked
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
			places = slices.Concat(again, lost)
		}
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Err != nil && !Refused(r.Err) }) {
		w.doubtMap(ctx)
	}
	return results
}

// sendAll sends the flights of All. go-redis ends a pipeline with its slowest node, so each node of
// a cluster has a pipeline of its own. Until a server has answered, the nodes are not known.
func (w *Wire) sendAll(ctx context.Context, flights []flight) {
	all := make([]*flight, len(flights))
	for i := range flights {
		all[i] = &flights[i]
	}
	if w.cluster == nil {
		w.sendTogether(ctx, all)
		return
	}
	for _, f := range all {
		f.slot = SlotOf(f.unit.Keys[0])
	}
	slices.SortStableFunc(all, func(a, b *flight) int { return cmp.Compare(a.slot, b.slot) })
	if !w.reached.Load() {
		w.sendTogether(ctx, all)
		return
	}
	nodes := make(map[*redis.Client][]*flight)
	for _, f := range all {
		node, _ := w.cluster.MasterForKey(ctx, f.unit.Keys[0]) // nil with an error, which the send will meet, too
		nodes[node] = append(nodes[node], f)
	}
	for _, ofNode := range nodes {
		w.sendTogether(ctx, ofNode)
	}
}

// sendTogether sends flights that end at the same time. WAIT takes long, so those that wait for
// confirmations are in a room, and leave a connection to those that do not.
func (w *Wire) sendTogether(ctx context.Context, flights []*flight) {
	end := make(together)
	for _, f := range flights {
		f.done, f.together = end, true
	}
	if flights[0].spec.acks.Wanted() == 0 {
		w.sendAsync(ctx, flights, end)
		return
	}
	w.group.Go(func() {
		if room := w.enterRoom(flights[0]); room != nil {
			w.sendAsync(ctx, flights, inBoth{room, end})
		}
	})
}

// together is no slot of a pool: its flights are awaited until the end of their send.
type together chan struct{}

func (t together) leave() { close(t) }

// inBoth is the slot of flights that have a place in a room, and end together.
type inBoth struct{ room, together slot }

func (b inBoth) leave() { b.room.leave(); b.together.leave() }
