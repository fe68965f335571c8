package relock

import (
	"container/list"
	"context"
	"time"
)

// This file is WithLocalPass: calls of one client that want the same lock stand in a line, and a section that ends passes the
// lock to the first of them.
//
// One of them leads: it has the lock, or asks Redis for it, in the name of all. To Redis the lock is that of the hold that it
// was given to, its lease goes over from hold to hold, and whatever is sent names that one: so a command that runs late is as
// harmless as ever. Only a note beside the count says who has it now. Tokens for the holds to come were set aside when Redis
// gave the lock. When the lead has come to its end without passing the lock on, whatever the reason, the next one leads, and
// asks Redis; also when it has had no answer for long.

// line is the calls of a client that want one lock. It is there while somebody leads, and guarded by the table's mutex.
type line struct {
	lead    *hold
	waiting list.List    // of *hold
	refusal *LockedError // what Redis last said to one that led; nil: nothing yet
}

// showEvery is the time between two notes to Redis of who has a lock that is passed on. Redis hears only of the hold that has
// it then.
const showEvery = time.Millisecond

// showLimit is how long such a note may take.
const showLimit = time.Second

// stand puts a first entry into the line, and returns when it leads, or has been passed the lock. A call that does not wait
// leads if nobody else does, and otherwise asks for itself. A call that ends with an error just when it was called leads all the
// same, until the end of its hold.
//
// A call that finds nobody there sets no tokens aside, so that a lock which one call at a time wants costs nothing more; its lock goes
// back to Redis.
func (a *acquiring) stand(h *hold) (passed bool, err error) {
	t, closed := h.client.table, h.client.closed
	t.mu.Lock()
	l := t.lines[h.keys.base]
	if l == nil || !a.mayWait {
		if l == nil {
			t.leadLocked(&line{}, h)
		}
		t.mu.Unlock()
		return false, nil
	}
	h.called = make(chan struct{})
	position := l.waiting.Len()
	h.place = l.waiting.PushBack(h)
	a.refusal = l.refusalLocked(a.lock.name)
	t.mu.Unlock()
	a.joined(h, position)

	select {
	case <-h.called:
	case <-closed:
		err = ErrClosed
	case <-a.waiting.Done():
		err = ended(a.waiting)
	}
	return a.stood(l, h, err)
}

// stood is what a call's time in the line has come to. err is what has ended its wait, if it was not called.
func (a *acquiring) stood(l *line, h *hold, err error) (passed bool, _ error) {
	t := h.client.table
	t.mu.Lock()
	if refusal := l.refusalLocked(a.lock.name); refusal != nil { // it may be more than was known then
		a.refusal = refusal
	}
	if h.place != nil { // nobody has called
		l.waiting.Remove(h.place)
		h.place = nil
		t.mu.Unlock()
		return false, err
	}
	given := h.tenure
	passed = given != &h.own
	if err == nil || passed {
		a.wake = WakePass
	}
	if passed && time.Now().Before(h.deadline) {
		t.mu.Unlock()
		a.traces = true
		return true, nil // also if the call should have ended: it has the lock now
	}
	h.tenure, h.own.aside = &h.own, h.passes // it leads, in its own name
	t.mu.Unlock()
	if passed { // what it was passed is over already
		h.client.orphans.add(&hold{client: h.client, keys: h.keys, holder: h.holder, settings: h.settings, tenure: given}, false)
	}
	return false, err
}

// askForLine is ask of native, and of the lead of a line. Where the answer takes its time, the next one leads, and asks too, perhaps
// over a connection that is better; and h asks on for itself.
func (a *acquiring) askForLine(h *hold) (acquisition, answer, error) {
	if h.passes > 0 {
		t := h.client.table
		slow := time.AfterFunc(min(h.ttl, DefaultTTL)/3, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if h.leads && h.state == entering {
				t.stepDownLocked(h)
			}
		})
		defer slow.Stop()
	}
	return a.ask(h, a.waiter != nil)
}

// leadLocked makes h the lead of a line.
func (t *table) leadLocked(l *line, h *hold) {
	if t.lines == nil {
		t.lines = make(map[string]*line)
	}
	t.lines[h.keys.base] = l
	l.lead, h.leads = h, true
}

// callLocked takes the first one out of the line, and calls it: it leads now.
func (t *table) callLocked(l *line, next *hold) {
	l.waiting.Remove(next.place)
	next.place = nil
	t.leadLocked(l, next)
	close(next.called)
}

// stepDownLocked is the end of a lead.
func (t *table) stepDownLocked(h *hold) {
	h.leads = false
	l := t.lines[h.keys.base]
	if front := l.waiting.Front(); front != nil {
		t.callLocked(l, front.Value.(*hold))
		return
	}
	delete(t.lines, h.keys.base)
}

// passLocked passes the lock on from h, which has just been left, if there is somebody to pass it to and that is allowed. It is
// h's turn.
func (t *table) passLocked(h *hold, now time.Time) bool {
	given := h.tenure
	if !h.leads || given.usedToken == given.lastToken || given.doubt || given.told > 1 || h.client.isClosed() ||
		now.Sub(given.began) >= h.passLimit || given.deadline.Sub(now) < h.ttl/2 {
		return false
	}
	l := t.lines[h.keys.base]
	front := l.waiting.Front()
	if front == nil {
		return false
	}
	next := front.Value.(*hold)
	if next.ttl != h.ttl || next.acks > h.acks {
		return false
	}
	h.leads = false
	t.finishLocked(h, ErrReleased)
	given.hold = next
	given.usedToken++
	given.passed++
	next.tenure, next.token, next.since = given, given.usedToken, now
	t.callLocked(l, next)
	if !given.showing {
		given.showing = true
		h.client.workers.start(func() { h.client.show(given) })
	}
	return true
}

// show tells Redis who has a lock that is passed on, until the last pass is told, or nobody has the lock. What Redis does not
// answer is told with the next pass. If Redis answers that it is not ours at all, it is lost.
func (c *Client) show(given *tenure) {
	t, ctx := c.table, context.Background()
	for {
		err := sleep(ctx, c.closed, showEvery)
		t.mu.Lock()
		h := given.hold
		if err != nil || h.tenure != given || h.state != held && h.state != entering || given.shown == given.passed {
			given.showing = false
			t.mu.Unlock()
			return
		}
		if h.state == entering { // it is about to be held
			t.mu.Unlock()
			continue
		}
		number := given.passed
		given.shown = number
		t.mu.Unlock()
		there, err := c.wire.pass(ctx, h.keys, given.id, number, h.own.id, effort{stop: c.closed, tries: 2, until: time.Now().Add(showLimit)})
		if err != nil || there {
			continue
		}
		var lost *loss
		t.mu.Lock()
		if h = given.hold; h.tenure == given && h.state == held {
			lost = t.loseLocked(h, LossTaken)
		}
		t.mu.Unlock()
		if lost != nil {
			lost.tell()
		}
	}
}

// refusalLocked is what a call that stands in the line is told if it does not get the lock. nil: not known yet. name is what the
// call knows the lock by: it may have more than one.
func (l *line) refusalLocked(name string) *LockedError {
	if l.lead.state == held {
		return &LockedError{Name: name, Holder: l.lead.holder, TTL: max(0, time.Until(l.lead.deadline))}
	}
	refusal := sameRefusal(l.refusal)
	if refusal != nil {
		refusal.Name = name
	}
	return refusal
}

// refuse notes for those in the line what Redis has said to their lead.
func (t *table) refuse(h *hold, refusal *LockedError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.leads {
		t.lines[h.keys.base].refusal = sameRefusal(refusal)
	}
}

// gotLocked notes that a lead has the lock: whom Redis has told of before has it no more.
func (t *table) gotLocked(h *hold) {
	if h.leads {
		t.lines[h.keys.base].refusal = nil
	}
}

// isGivenLocked says whether a lock that is passed on is this hold's, as Redis sees it.
func (t *table) isGivenLocked(base, id string) bool {
	l := t.lines[base]
	return l != nil && l.lead.tenure.id == id
}
