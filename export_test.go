package relock

import (
	"context"
	"fmt"
)

// Leftovers is what a client that is closed still has in its tables, and nobody can need any more. (Sections that were not unlocked
// may be there: Unlock works after Close.)
func Leftovers(c *Client) (left []string) {
	note := func(there bool, format string, args ...any) {
		if there {
			left = append(left, fmt.Sprintf(format, args...))
		}
	}

	c.hub.mu.Lock()
	note(len(c.hub.links) > 0, "pub/sub connections: %d", len(c.hub.links))
	note(len(c.hub.subs) > 0, "subscriptions: %d", len(c.hub.subs))
	c.hub.mu.Unlock()

	if r, is := c.layout.(*redisson); is {
		r.mu.Lock()
		note(len(r.races) > 0, "races: %d", len(r.races))
		r.mu.Unlock()
	}

	c.orphans.mu.Lock()
	note(len(c.orphans.pending) > 0, "orphans: %d", len(c.orphans.pending))
	note(c.orphans.running, "the goroutine that takes orphans back")
	c.orphans.mu.Unlock()

	l := &c.wire.lanes
	l.mu.Lock()
	note(l.aloft.Load() != 0, "lanes taken: %d", l.aloft.Load())
	note(l.carried != 0, "commands on lanes: %d", l.carried)
	note(len(l.queue) > 0, "commands that wait for a lane: %d", len(l.queue))
	note(len(l.unlanded) > 0, "commands that have not landed: %d", len(l.unlanded))
	l.mu.Unlock()

	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.holds {
		note(h.state != held || h.count == 0, "the hold %s in state %d with %d entries", h.id, h.state, h.count)
	}
	for base, line := range t.lines {
		note(line.lead.state == over || line.waiting.Len() > 0, "the line of %s, where %d wait", base, line.waiting.Len())
	}
	for i, v := range t.leases {
		note(v.tenure.index != i || v.tenure.hold.state != held, "the lease of %s in state %d", v.tenure.id, v.tenure.hold.state)
	}
	return left
}

// LoseHold ends the hold of a section as one that Redis does not have any more.
func LoseHold(section context.Context) { _ = carriedBy(section).frame.hold.lose(LossTaken) }
