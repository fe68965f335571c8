package relockzk

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// busy returns the refusal of a lock with a holder, or the reason why the holder is not known. A
// holder that is gone meanwhile is not named.
func (x *session) busy(ctx context.Context, lock string, a store.Claim, p place) error {
	holder := p.holder(a)
	r, err := x.get(ctx, lock+"/"+holder.name)
	if errors.Is(err, zk.ErrNoNode) {
		return &store.Busy{TTL: time.Millisecond}
	}
	if err != nil {
		return err
	}
	return x.refusal(holder, r.data)
}

// holder returns the node of a hold with the lock that keeps the claim out.
func (p place) holder(a store.Claim) node {
	if _, inside := around(p.nodes, a); inside {
		return p.nodes[p.behind]
	}
	return p.nodes[0]
}

// refusal returns the refusal by a holder with data in its node.
func (x *session) refusal(holder node, data []byte) *store.Busy {
	n := decode(holder, data, time.Duration(x.timeout.Load()))
	return &store.Busy{Owner: n.ID, TTL: time.Duration(n.Kept) * time.Millisecond}
}

// grant gives the lock to a hold whose node is the first. The lease counts from the last moment at
// which the session surely had not ended.
func (s *Store) grant(h *hold, woken store.Wake) (store.Lease, error) {
	s.mu.Lock()
	proven, watched := h.session.proven, len(s.watchers.Of(h.claim.ID)) > 0
	s.mu.Unlock()
	l, err := s.keep(h, proven, h.claim.TTL)
	if err != nil {
		return l, store.Unavailable(err)
	}
	l.Woken = woken
	if watched {
		s.group.Go(func() { s.observe(h) })
	}
	return l, nil
}

// Wait implements [store.Store]. Wait makes a node at once, and waits for the end of the node that
// keeps it out.
func (s *Store) Wait(ctx context.Context, a store.Claim, progress func(store.Progress)) (l store.Lease, err error) {
	w := waiting{store: s, progress: progress}
	call := attempts.Call{Report: a.Report, Command: "acquire"}
	for in := false; !in && err == nil; {
		err = s.patiently(ctx, call, func(x *session) error {
			if w.hold != nil && w.hold.session != x { // a server may know the last session for some time
				if err := x.takeBack(ctx, a); err != nil {
					return err
				}
				w.isNext = false
			}
			w.hold = x.hold(a)
			if l, in, err = w.look(ctx); err != nil {
				w.woken, w.unsure = store.WakeRecheck, w.unsure || errors.Is(err, store.ErrUnsure)
			}
			return err
		})
		if !in && err == nil { // in the queue: nothing has failed, however long the wait is
			err = w.sleep(ctx)
		}
	}
	if err != nil && w.hold != nil {
		err = s.giveUp(ctx, w.hold, err)
	}
	if w.unsure {
		err = store.Unsure(err)
	}
	return l, err
}

// waiting is one call of Wait.
type waiting struct {
	store    *Store
	progress func(store.Progress)
	hold     *hold // in the session of now
	woken    store.Wake
	unsure   bool // a command of an earlier look may run yet

	place   place           // in the queue, at the last look
	changed <-chan zk.Event // the watch of the node that keeps the hold out
	isNext  bool            // that node is gone, and no other one was before the hold
}

// look makes requests until the hold has the lock, or has a watch of the node that keeps it out. in
// says whether the hold has the lock.
func (w *waiting) look(ctx context.Context) (l store.Lease, in bool, err error) {
	x, h := w.hold.session, w.hold
	var p place
	if w.isNext {
		w.isNext = false
		p, err = x.affirm(ctx, h, place{nodes: w.place.nodes[1:], behind: -1}) // new nodes come behind the hold
	} else {
		p, err = x.join(ctx, h)
	}
	for pause := (attempts.Pause{}); ; {
		for err == nil && p.behind >= 0 {
			w.place = p
			if w.changed, err = w.watch(ctx, p); !errors.Is(err, zk.ErrNoNode) {
				return l, false, err
			}
			p, err = x.join(ctx, h)
		}
		if err == nil && p.isIn() && !x.ready(h) {
			p, err = x.affirm(ctx, h, p)
		}
		if err == nil {
			err = x.fits(h.claim.Kept(h.claim.TTL))
		}
		switch {
		case err != nil:
			return l, false, err
		case p.isIn():
			l, err = w.store.grant(h, w.woken)
			return l, err == nil, err
		}
		x.lost(h) // an operator has deleted the node, or a command that ran late: the hold queues again
		if !pause.Wait(ctx.Done()) {
			return l, false, lifetime.Ended(ctx)
		}
		p, err = x.join(ctx, h)
	}
}

// watch sets a watch of the node that keeps the hold out, and reports the progress. A node that is
// gone is zk.ErrNoNode.
func (w *waiting) watch(ctx context.Context, p place) (changed <-chan zk.Event, err error) {
	x, h := w.hold.session, w.hold
	behind, holder := p.nodes[p.behind], p.holder(h.claim)
	before, err := x.watch(ctx, h.lock+"/"+behind.name)
	if err != nil {
		return nil, err
	}
	busy := x.refusal(holder, before.data)
	if holder != behind {
		if err := x.busy(ctx, h.lock, h.claim, p); !errors.As(err, &busy) {
			return nil, err
		}
	}
	w.progress(store.Progress{Busy: busy, Queued: true, Position: p.waiters()})
	return before.changed, nil
}

// sleep waits until the hold has to look again.
func (w *waiting) sleep(ctx context.Context) error {
	recheck := time.NewTimer(w.hold.claim.TTL)
	defer recheck.Stop()
	w.woken = store.WakeRecheck
	select {
	case e := <-w.changed:
		w.woken = store.WakeGrant
		w.isNext = e.Type == zk.EventNodeDeleted && w.hold.claim.Kind == store.Mutex && w.place.index == 1
	case <-recheck.C:
	case <-w.hold.session.dead:
	case <-ctx.Done():
		return lifetime.Ended(ctx)
	}
	return nil
}

// waiters returns the number of waiters before the hold. An upgrade is before all of them.
func (p place) waiters() (n int) {
	if p.nodes[p.index].upgrade != "" {
		return 0
	}
	for i := range p.index {
		if !isIn(p.nodes, i) {
			n++
		}
	}
	return n
}

// giveUpLimit bounds the time for which a call whose context is done takes back its node.
const giveUpLimit = 500 * time.Millisecond

// giveUp deletes the node of a claim that ends with err. giveUp returns err, marked with ErrUnsure
// if a node may be left. Such a node goes at the end of the lease that was asked for.
func (s *Store) giveUp(ctx context.Context, h *hold, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
	defer cancel()
	x := h.session
	open := x.settled(ctx, h) != nil
	node, unsure := x.known(h)
	switch unsure = unsure || open; {
	case node == "" && !unsure:
		s.drop(x, h.claim.ID)
		return err
	case !unsure:
		if failed := x.remove(ctx, node); failed == nil || errors.Is(failed, zk.ErrNoNode) {
			s.drop(x, h.claim.ID)
			return err
		}
	default:
		_ = x.forget(ctx, h.claim) // a command that creates a node may run later still
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.over { // the server may know the session for some time
		return store.Unsure(err)
	}
	h.unsure = true
	s.deleteAtLocked(h, time.Now().Add(h.claim.Kept(h.claim.TTL)))
	return store.Unsure(err)
}
