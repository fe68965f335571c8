package relockzk

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// hold is what the Store knows of a hold or a waiter of its own.
type hold struct {
	session *session
	lock    string // the path of the lock

	// Guarded by the mutex of the Store.
	claim    store.Claim
	node     string        // the path of the node; empty: not known
	token    int64         // of the hold, see Store.Token
	queued   string        // the number of the node with which an upgrade has waited
	unsure   bool          // a node that is not known may exist, as the connection ended before an answer
	creating chan struct{} // closed when the last command that creates a node is answered; nil: no command
	held     bool
	sent     time.Time // the lease
	ttl      time.Duration
	note     note        // in the node
	writes   int         // how many writes of the note have begun
	writing  int         // how many have not ended
	timer    *time.Timer // deletes the node when nobody wants it any more
	ends     time.Time   // when
}

// endLocked is when the Store deletes the node.
func (h *hold) endLocked() time.Time { return h.sent.Add(h.claim.Kept(h.ttl)) }

// hold returns the record of a claim in a session. The record stays until the node is deleted.
func (x *session) hold(a store.Claim) *hold {
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	h := x.holds[a.ID]
	if h == nil {
		h = &hold{session: x, lock: s.path(a), claim: a}
		if !x.over {
			x.holds[a.ID] = h
			s.users++
		}
	}
	if !h.held {
		h.claim = a
		h.stopLocked()
	}
	return h
}

func (h *hold) stopLocked() {
	if h.timer != nil {
		h.timer.Stop()
	}
}

// find returns the hold with an ID that has its lock, or ErrGone.
func (x *session) find(id store.ID) (*hold, error) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	if h := x.holds[id]; h != nil && h.held {
		return h, nil
	}
	return nil, store.ErrGone
}

// drop forgets the record of a hold whose node is deleted.
func (s *Store) drop(x *session, id store.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := x.holds[id]; h != nil {
		s.dropLocked(h)
	}
}

func (s *Store) dropLocked(h *hold) {
	h.stopLocked()
	if h.session.holds[h.claim.ID] == h {
		delete(h.session.holds, h.claim.ID)
		delete(h.session.nodes, h.node)
		s.users--
	}
}

// placeLocked notes the path of the node of a hold; empty: it has none, or none that is known.
func (x *session) placeLocked(h *hold, node string) {
	if h.node == node {
		return
	}
	if x.holds[h.claim.ID] == h {
		delete(x.nodes, h.node)
		if node != "" {
			x.nodes[node] = h
		}
	}
	h.node = node
}

// deleteAtLocked makes the Store delete the node of a hold at a time, unless the hold lasts longer
// by then.
func (s *Store) deleteAtLocked(h *hold, when time.Time) {
	h.ends = when
	h.stopLocked()
	h.timer = time.AfterFunc(time.Until(when), func() { s.group.Go(func() { s.expire(h) }) })
}

// expire deletes the node of a hold whose lease is over, until ZooKeeper confirms or the session is
// over. A session without a proof for its whole timeout is over: all its leases are.
func (s *Store) expire(h *hold) {
	s.mu.Lock()
	if now := time.Now(); h.session.holds[h.claim.ID] != h || now.Before(h.ends) {
		s.mu.Unlock()
		return
	}
	h.held, h.unsure = false, true
	s.users++
	s.mu.Unlock()
	defer s.leave()
	x, begun := h.session, time.Now()
	for pause := (attempts.Pause{}); !s.deleted(h); {
		if x.silentSince(begun) > s.timeout {
			x.end()
		}
		if !pause.Wait(x.dead) {
			return
		}
	}
}

// deleted makes one attempt to delete the node of a hold.
func (s *Store) deleted(h *hold) bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return h.session.takeBack(ctx, h.claim) == nil
}

// keep gives the hold its lock for a time from sent on. keep never shortens the lease. Errors: the
// session is over, or the node was deleted meanwhile.
func (s *Store) keep(h *hold, sent time.Time, ttl time.Duration) (l store.Lease, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch x := h.session; {
	case x.over:
		return l, errOver
	case x.holds[h.claim.ID] != h:
		return l, errDeleted
	}
	if ttl > 0 && sent.Add(h.claim.Kept(ttl)).After(h.endLocked()) {
		h.sent, h.ttl = sent, ttl
	}
	h.held = true
	s.deleteAtLocked(h, h.endLocked())
	l = store.Lease{Claim: h.claim, Sent: h.sent, Token: h.token, Unsure: h.unsure}
	l.TTL = h.ttl
	return l, nil
}

// takeBack is forget behind a sync, and so deletes the nodes of other sessions, too.
func (x *session) takeBack(ctx context.Context, a store.Claim) error {
	if err := x.sync(ctx); err != nil {
		return err
	}
	return x.forget(ctx, a)
}

// forget deletes all nodes of a claim. A command of this session that creates a node is answered
// before.
func (x *session) forget(ctx context.Context, a store.Claim) error {
	lock, theirs := x.store.path(a), uuidOf(a.ID)
	x.store.mu.Lock()
	h := x.holds[a.ID]
	x.store.mu.Unlock()
	if h != nil {
		if err := x.settled(ctx, h); err != nil {
			return err
		}
	}
	nodes, _, err := x.children(ctx, lock)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if !node.isOf(theirs) {
			continue
		}
		if err := x.remove(ctx, lock+"/"+node.name); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	x.store.drop(x, a.ID)
	return nil
}
