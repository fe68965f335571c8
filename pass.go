package relock

import (
	"context"
	"strings"
	"time"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/timers"
	"github.com/go-relock/relock/store"
)

// This file passes a lease on within the process, without a command. The store sees one hold, with
// the ID of the first call, until the hold of the last call releases the lock. There are two ways:
//
//   - A run. A grant of the store may serve several waits of this client, which stand directly
//     behind each other in the queue (store.Passing). The last Unlock of a hold gives its lease to
//     the next wait.
//   - A lock that the client keeps, see [WithKeep].

// passing is the part of a hold that decides whether its lease is passed on.
type passing struct {
	scripts   int32 // of Eval, that may run yet
	named     bool  // a ticket names the ID
	done      bool  // the lease was passed on
	inherited bool  // the lease is that of the head before h
}

// mayPassLocked says whether the next hold may have the lease and the ID of h.
func (h *hold) mayPassLocked(now time.Time) bool {
	switch {
	case h.renewal.soon: // the store may have another count, or not have the hold any more
	case h.passing.scripts > 0: // a script would run in the next section
	case h.passing.named: // the ticket would let somebody into the next section
	case h.leader: // each leader has a hold of its own, as followers tell them apart by it
	case h.maxWaiters > 0: // the places of the holds that were served would count as waiters
	case h.leftLocked(now) < h.ttl/2: // the next hold would begin with a short rest
	case !h.renewal.longest.IsZero(): // the next hold would have the lease of an Extend
	default:
		return true
	}
	return false
}

// pass passes the lease of h on, after its last exit. The caller ends h.
func (h *hold) pass() bool {
	s, is := h.client.store.(store.Passing)
	if !is || h.lease.Run == nil { // nothing changes the lease at this time
		return false
	}
	t := &h.client.table
	t.mu.Lock()
	may := h.mayPassLocked(time.Now())
	h.passing.done = may // before the next hold begins
	t.mu.Unlock()
	if !may {
		return false
	}
	passed := false
	defer func() {
		if !passed { // also if the store panics
			t.mu.Lock()
			h.passing.done = false
			t.mu.Unlock()
		}
	}()
	passed = s.Pass(h.lease)
	return passed
}

// unpass gives the lease up that was passed on to h, as h asks for another one, with an ID that is
// not that of a head.
func (t *table) unpass(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unpassLocked(h)
	t.yieldLocked(h)
}

// unpassLocked removes the hold that has passed its lease on to h from the table. h does not begin.
func (t *table) unpassLocked(h *hold) {
	number := numberOf(h.lease.ID)
	if before := t.holds[number]; before != nil && before.passing.done {
		before.passing.done = false
		if before.state == over {
			t.dropLocked(number)
		}
	}
}

// The calls for a lock that is kept stand in the client's line (line.go). Its head asks the store,
// and works in the lock. At the end of the head the lease goes to the next call in the line. If
// nobody is there, a hold without an entry becomes the head, and the watchdog renews its lease,
// until a call comes or the time is over.
//
// The ID of a head says that the lock may be kept (headID). Whoever is refused by such an ID sends
// a request to its client (store.Asking), and the head yields: its lock is freed, at once or at the
// end of the section, and the calls behind it ask the store. A head yields, too, when the store
// refuses it, or has served it out of the queue. So the queue is empty as a head begins. Whoever
// comes to the queue later is refused by the ID of the head, and sends a request.

// headID returns the ID of a head: with a 0 before the last number, as no other ID has.
func headID(id store.ID) store.ID {
	at := strings.LastIndexByte(string(id), ':') + 1
	return id[:at] + "0" + id[at:]
}

// isHeadID says whether an ID is that of a head, of whichever client. Somebody may be in its
// section.
func isHeadID(id store.ID) bool {
	number := id[strings.LastIndexByte(string(id), ':')+1:]
	return len(number) > 1+randomDigits && number[0] == '0'
}

// headLocked returns the head with an ID; nil: this client has none.
func (c *Client) headLocked(id store.ID) *hold {
	if !c.hasMade(Holder(id)) {
		return nil
	}
	return c.table.heads[numberOf(id)]
}

// keeps says whether an ID is that of a lock that the client keeps, and nobody is in.
func (c *Client) keeps(id store.ID) bool {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	h := c.headLocked(id)
	return h != nil && h.kept
}

// beginKeepingLocked notes until when the client may keep the lock of h, which begins. A head that
// somebody may wait behind yields.
func (t *table) beginKeepingLocked(h *hold) {
	switch {
	case h.passing.inherited: // with the time of the head before h
	case h.lease.Woken != store.WakeNone || h.lease.Unsure: // h was in the queue, or may have been
		t.yieldLocked(h)
	case h.turn.until == 0:
		h.turn.until = t.at(h.since.Add(h.keep))
	}
}

// keepNoLongerLocked lets the end of a head free the lock, as a request may have been lost. The
// line stays: its next call asks the store, behind whoever waits there.
func (t *table) keepNoLongerLocked(h *hold) {
	if h.turn.until = -1; h.kept {
		t.yieldLocked(h)
	}
}

// keepOn passes the lease of h on after its last exit, if h is the head: to the next call in the
// line, or to a hold without an entry.
func (h *hold) keepOn() bool {
	t := &h.client.table
	t.mu.Lock()
	defer t.mu.Unlock()
	ln, now := h.turn.line, time.Now()
	if ln == nil || ln.head != h || t.at(now) >= h.turn.until || t.closed || !h.mayPassLocked(now) {
		return false
	}
	if front := ln.waiting.Front(); front != nil {
		next := front.Value.(*hold)
		if !h.suits(next) {
			return false
		}
		t.handOverLocked(h, next, store.WakePass)
		return true
	}
	k := &hold{client: h.client, name: h.name, holder: h.holder, settings: h.settings, kept: true, state: held, since: now, count: 1}
	k.renewal.item.Value, k.lease = k, h.lease
	t.joinLocked(k)
	t.handOverLocked(h, k, store.WakeNone)
	t.addLocked(k)
	t.scheduleLocked(k, now)
	return true
}

// suits says whether another hold would have asked for the same lease.
func (h *hold) suits(other *hold) bool {
	return h.ttl == other.ttl && h.delay == other.delay && h.acks == other.acks
}

// takeKeptLocked gives the lease that the client has kept to h. If h cannot have it, it is freed.
func (t *table) takeKeptLocked(h *hold) bool {
	k := h.turn.line.head
	if k == nil || !k.kept {
		return false
	}
	if !k.suits(h) || !k.mayPassLocked(time.Now()) {
		t.yieldLocked(k)
		return false
	}
	t.handOverLocked(k, h, store.WakeNone)
	return true
}

// handOverLocked ends the head of a line, and makes another hold the head, with the same lease.
func (t *table) handOverLocked(from, to *hold, woken store.Wake) {
	report := to.lease.Report
	to.lease = from.lease
	to.lease.Report, to.lease.Woken, to.lease.Token = report, woken, 0
	to.passing.inherited, to.turn.until, from.passing.done = true, from.turn.until, true
	to.turn.line.head, t.heads[numberOf(to.lease.ID)] = to, to
	to.callLocked()
	t.releaseLocked(from, ErrReleased, nil)
}

// yieldLocked ends the line behind h, if h is the head of a line WithKeep, as somebody else may
// want the lock: all who wait ask the store by themselves. The end of h frees the lock. If h has no
// section, the lock is freed in the background, and freed is closed then.
func (t *table) yieldLocked(h *hold) (freed chan struct{}) {
	ln := h.turn.line
	if h.keep == 0 || ln == nil || ln.head != h {
		return nil
	}
	ln.head = nil
	delete(t.heads, numberOf(h.lease.ID))
	for front := ln.waiting.Front(); front != nil; front = ln.waiting.Front() {
		front.Value.(*hold).callLocked()
	}
	if !h.kept {
		return nil
	}
	h.state, freed = leaving, make(chan struct{})
	t.leases.Set(&h.renewal.item, timers.Never)
	h.client.group.Go(func() {
		defer close(freed)
		_ = h.free(context.Background()) // cleanup has what is not confirmed
	})
	return freed
}

func (t *table) yield(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.yieldLocked(h)
}

// freeKept frees the lock of a claim, if the client keeps it, before a script of its user looks at
// the lock.
func (t *table) freeKept(ctx context.Context, claim store.Claim) {
	t.mu.Lock()
	var freed <-chan struct{}
	if ln := t.lines[claim.Name]; ln != nil && ln.head != nil && ln.head.kept {
		freed = t.yieldLocked(ln.head)
	}
	t.mu.Unlock()
	if freed != nil {
		lifetime.Await(ctx, freed, nil)
	}
}

// slowRelease is how long the calls in a line wait for the answer to the release of their head.
// Then the calls ask the store, as the lock may be free.
const slowRelease = 100 * time.Millisecond

// request asks for the lock of a claim that the head id may keep. It says whether the lock may be
// free soon: a section of this client goes on.
func (c *Client) request(ctx context.Context, claim store.Claim, id store.ID, limit time.Duration) bool {
	if c.hasMade(Holder(id)) {
		c.table.mu.Lock()
		defer c.table.mu.Unlock()
		h := c.findLocked(id)
		if h != nil && h.kept {
			c.table.yieldLocked(h)
		}
		return h == nil || h.state != held
	}
	asking, is := c.store.(store.Asking)
	claim.ID = id
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return is && asking.Want(ctx, claim) == nil
}

// requestLimit is how long a call that has something else to do waits for its request.
const requestLimit = 500 * time.Millisecond

// askers is how many calls at the front of the queue send a request each time that a head refuses
// them. One request frees the lock for the whole queue; four are sent in case some callers give up.
const askers = 4

// requestSoon asks for the lock for a call that waits, if a head has refused the call. It asks
// another client in the background.
func (l *Lock) requestSoon(p store.Progress) {
	c, head := l.client, headIn(p.Busy)
	switch {
	case head == "" || p.Queued && p.Position >= askers:
	case c.hasMade(Holder(head)):
		c.asked(head)
	default:
		c.group.GoOpen(func() { c.request(c.life, l.claim, head, answerLimit) })
	}
}

// headIn returns the head that has refused a call with err; empty: err is no such refusal. An error
// around a refusal says that an earlier attempt may run yet.
func headIn(err error) (owner store.ID) {
	switch err := err.(type) {
	case *store.Busy:
		if err != nil {
			owner = err.Owner
		}
	case *store.Declined: // as the lock was not free
		owner = err.Owner
	}
	if !isHeadID(owner) {
		return ""
	}
	return owner
}

// keptPause is how long a call that does not wait lets a client free the lock that it keeps.
const keptPause = 10 * time.Millisecond

// insist makes a call that does not wait. If a head refuses the call, insist asks for the lock, and
// makes the call once more. It does not wait for the end of a section.
func (h *hold) insist(ctx context.Context, claim store.Claim, try func(context.Context, store.Claim) (store.Lease, error)) (store.Lease, error) {
	c := h.client
	lease, err := try(ctx, claim)
	if busy, is := err.(*store.Busy); is {
		c.table.noteRefusal(h, busy)
	}
	if head := headIn(err); head != "" && c.request(ctx, claim, head, requestLimit) && lifetime.Sleep(ctx.Done(), keptPause) {
		return try(ctx, claim)
	}
	return lease, err
}
