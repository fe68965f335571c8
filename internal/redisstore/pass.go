package redisstore

import (
	"errors"
	"slices"
	"strings"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file passes a lease on to the waits of its run, without a command. A run is what the message
// of a grant names: the holds of this client that stand directly behind the granted one in the
// queue. For Redis it is one hold, and their places stay in the queue until its release takes out
// those that were served. So a run may end anywhere, and nothing has to be put back: whoever was not
// served is in the queue as ever.

// run begins the run of a grant; nil: there is none. A note of several messages has none.
func (w *waited) run(a store.Claim, payload string) *store.Run {
	_, behind, is := strings.Cut(payload, "\n+")
	if !is || strings.Contains(behind, "\n") {
		return nil
	}
	r := &store.Run{Kept: a.Kept(a.TTL)}
	for id := range strings.SplitSeq(behind, " ") {
		r.Behind = append(r.Behind, store.ID(id))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	over := false
	for _, id := range r.Behind {
		if s, has := w.holds[id]; has {
			s.of = r
			w.holds[id] = s
			over = over || s.granted // its message was read before this one
		}
	}
	if over {
		r.Behind = nil
	}
	return r
}

// returns notes the end of a Wait.
func (w *waited) returns(a store.Claim, err error) {
	switch {
	case err != nil && !errors.Is(err, store.ErrUnsure): // the client calls no Forget
		w.end(a.ID)
		return
	case err == nil:
		w.granted(a.ID)
	}
	w.lasts(a.ID, a.Kept(a.TTL))
}

// granted ends the run of a wait that has got the lock from Redis: the lease of the run is over.
func (w *waited) granted(id store.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, has := w.holds[id]
	if !has { // the wait was passed a lease
		return
	}
	if s.of != nil {
		s.of.Behind = nil
	}
	s.granted = true
	w.holds[id] = s
}

// hasServed says whether a lease was passed on since its grant.
func hasServed(l store.Lease) bool { return l.Run != nil && len(l.Run.Passed) > 0 }

// served returns the unit of the script that releases the lock behind a run.
func (s *nativeStore) served(l store.Lease) wire.Unit {
	var passed strings.Builder
	for _, id := range l.Run.Passed {
		passed.WriteString(string(id) + " ")
	}
	return s.unit(l.Name, string(l.ID), lifetime.Millis(l.Run.Kept), passed.String())
}

// sleeper is a sleep in which a wait may be passed a lease.
type sleeper struct {
	claim store.Claim
	wake  chan subs.Note // has room for one

	lease *store.Lease // that the wait was passed; nil: none. Guarded by waited.mu
}

// woken returns the channel with a note of the pass; nil: there will be none.
func (p *sleeper) woken() <-chan subs.Note {
	if p == nil {
		return nil
	}
	return p.wake
}

// Pass implements [store.Passing]. A wait that is over is passed by. Behind a wait that asks just
// now, or wants another lease, the run ends.
func (s *nativeStore) Pass(l store.Lease) bool {
	s.waited.mu.Lock()
	defer s.waited.mu.Unlock()
	return l.Run != nil && s.waited.passLocked(l)
}

func (w *waited) passLocked(l store.Lease) bool {
	r := l.Run
	for i, id := range r.Behind {
		next, has := w.holds[id]
		if !has || !next.end.IsZero() {
			continue
		}
		p := next.asleep
		if p == nil || p.claim.Delay != l.Delay || p.claim.Acks != l.Acks {
			return false
		}
		r.Behind, r.Passed = r.Behind[i+1:], append(r.Passed, id)
		delete(w.holds, id) // a grant to its place is given back
		l.Report, l.Woken, l.Token = p.claim.Report, store.WakePass, 0
		p.lease = &l
		p.wake <- subs.Note{Message: true}
		return true
	}
	return false
}

// sleep lets a wait be passed a lease until wake.
func (w *waited) sleep(a store.Claim) *sleeper {
	p := &sleeper{claim: a, wake: make(chan subs.Note, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleepLocked(a.ID, p)
	return p
}

// wake says whether a wait was passed a lease in its sleep. From now on it is not.
func (w *waited) wake(p *sleeper) bool {
	if p == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.lease == nil {
		w.asleepLocked(p.claim.ID, nil)
	}
	return p.lease != nil
}

func (w *waited) asleepLocked(id store.ID, p *sleeper) {
	s := w.holds[id]
	s.asleep = p
	w.holds[id] = s
}

// giveBack ends a listener, and gives back a lock that a message has granted to a wait that was passed
// a lease at the same time. The wait has read the message as its last note, or has not read it. giveBack
// says whether there was one: then the lease that was passed is over in Redis.
func (s *nativeStore) giveBack(l *subs.Listener, t subs.Topic, id store.ID, read subs.Note) bool {
	l.Close()
	lines := strings.Split(read.Payload, "\n")
	select {
	case n := <-l.C():
		lines = append(lines, strings.Split(n.Payload, "\n")...)
	default:
	}
	granted := slices.Contains(lines, string(id))
	if granted {
		s.unheard(t.Channel, string(id))
	}
	return granted
}
