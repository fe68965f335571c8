package relockzk

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// hold is what the Store knows of a hold or a waiter of its own.
type hold struct {
	session *session
	lock    string // the path of the lock

	// Guarded by the mutex of the Store.
	ask      store.Ask
	node     string        // the path of the node; empty: not known
	token    int64         // of the hold, see Store.Token
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
func (h *hold) endLocked() time.Time { return h.sent.Add(h.ask.Kept(h.ttl)) }

// hold returns the record of an ask in a session. The record stays until the node is deleted.
func (x *session) hold(a store.Ask) *hold {
	s := x.store
	s.mu.Lock()
	defer s.mu.Unlock()
	h := x.holds[a.ID]
	if h == nil {
		h = &hold{session: x, lock: s.path(a), ask: a}
		if !x.over {
			x.holds[a.ID] = h
			s.users++
		}
	}
	if !h.held {
		h.ask = a
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
	if h.session.holds[h.ask.ID] == h {
		delete(h.session.holds, h.ask.ID)
		s.users--
	}
}

// deleteAtLocked makes the Store delete the node of a hold at a time, unless the hold lasts longer
// by then.
func (s *Store) deleteAtLocked(h *hold, when time.Time) {
	h.ends = when
	h.stopLocked()
	h.timer = time.AfterFunc(time.Until(when), func() { s.group.Go(func() { s.expire(h) }) })
}

// expire deletes the node of a hold whose lease is over, until ZooKeeper confirms or the session is
// over. A session that the leader is not known to have had for its whole timeout is over: all its
// leases are.
func (s *Store) expire(h *hold) {
	s.mu.Lock()
	if now := time.Now(); h.session.holds[h.ask.ID] != h || now.Before(h.ends) {
		s.mu.Unlock()
		return
	}
	h.held, h.unsure = false, true
	s.users++
	s.mu.Unlock()
	defer s.leave()
	x, begun := h.session, time.Now()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		if s.deleted(h) {
			return
		}
		if x.silentSince(begun) > s.timeout {
			x.end()
		}
		select {
		case <-x.dead:
			return
		case <-time.After(pause):
		}
	}
}

// deleted makes one attempt to delete the node of a hold.
func (s *Store) deleted(h *hold) bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return h.session.sync(ctx) == nil && h.session.forget(ctx, h.ask) == nil
}

// keep gives the hold its lock for a time from sent on. keep never shortens the lease. If the
// session is over, keep returns false.
func (s *Store) keep(h *hold, sent time.Time, ttl time.Duration) (l store.Lease, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := h.session
	if x.over {
		return l, false
	}
	if ttl > 0 && sent.Add(h.ask.Kept(ttl)).After(h.endLocked()) {
		h.sent, h.ttl = sent, ttl
	}
	if x.holds[h.ask.ID] == nil {
		x.holds[h.ask.ID] = h
		s.users++
	}
	h.held = true
	s.deleteAtLocked(h, h.endLocked())
	l = store.Lease{Ask: h.ask, Sent: h.sent, Token: h.token, Unsure: h.unsure}
	l.TTL = h.ttl
	return l, true
}

// create makes the node of a hold, and the path of the lock. If ctx ends first, the command goes on:
// settled waits for its answer.
func (x *session) create(ctx context.Context, h *hold) (string, error) {
	n := note{ID: h.ask.ID, Count: 1, Kept: h.ask.Kept(h.ask.TTL).Milliseconds()}
	for {
		answered := make(chan struct{})
		x.store.mu.Lock()
		h.note, h.creating = n, answered
		x.store.mu.Unlock()
		node, err := do(ctx, x, writes, func() (string, error) {
			address, _ := x.address.Load().(string)
			node, err := x.conn.Create(h.lock+"/"+prefixOf(n.ID), n.encode(address), zk.FlagEphemeralSequential, x.store.acl)
			unsure := errors.Is(x.reason(err, writes), store.ErrUnsure)
			x.store.mu.Lock()
			defer x.store.mu.Unlock()
			if err == nil {
				h.node = node
			}
			h.unsure = h.unsure || unsure
			close(answered)
			return node, err
		})
		if !errors.Is(err, store.ErrUnsure) { // answered, or not sent
			x.store.mu.Lock()
			h.creating = nil
			x.store.mu.Unlock()
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return node, err
		}
		if err := x.makePath(ctx, h.lock); err != nil {
			return "", err
		}
	}
}

// settled waits for the answer of a command that creates the node of the hold.
func (x *session) settled(ctx context.Context, h *hold) error {
	x.store.mu.Lock()
	creating := h.creating
	x.store.mu.Unlock()
	if creating == nil {
		return nil
	}
	select {
	case <-creating:
		return nil
	case <-ctx.Done():
		return lifetime.Ended(ctx)
	case <-x.dead:
		return store.Unavailable(errOver)
	}
}

// makePath makes a container node, and those above it. ZooKeeper deletes a container node when its
// last child is gone. A server without containers gets a persistent node.
func (x *session) makePath(ctx context.Context, node string) error {
	err := x.makeNode(ctx, node, x.conn.CreateContainer, zk.FlagContainer)
	if errors.Is(err, zk.ErrNoNode) {
		if err := x.makePath(ctx, path.Dir(node)); err != nil {
			return err
		}
		err = x.makeNode(ctx, node, x.conn.CreateContainer, zk.FlagContainer)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, zk.ErrNoNode) {
		return x.makeNode(ctx, node, x.conn.Create, zk.FlagPersistent)
	}
	return err
}

func (x *session) makeNode(
	ctx context.Context, node string, create func(string, []byte, int32, []zk.ACL) (string, error), flag int32,
) error {
	err := run(ctx, x, reads, func() error { _, err := create(node, nil, flag, x.store.acl); return err })
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// place is the place of a hold among the nodes of its lock.
type place struct {
	nodes []string
	index int // of the hold; -1: the hold has no node
}

// locate lists the nodes of a lock, and finds the node of the hold among them. If a command that
// was given up has made a second node, the first node counts.
//
// If the node is the last one, the number of the last change is a token for the hold. This number is
// not smaller than the czxid of the node, and smaller than the czxid of each later node.
func (x *session) locate(ctx context.Context, h *hold) (place, error) {
	nodes, changed, err := x.children(ctx, h.lock)
	p := place{nodes: nodes, index: indexOf(nodes, h.ask.ID)}
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	if err == nil && p.index >= 0 {
		if h.node = p.path(h); h.token == 0 && p.index == len(nodes)-1 {
			h.token = changed
		}
	}
	return p, err
}

// join makes the node of the hold, unless there is one, and returns its place.
func (x *session) join(ctx context.Context, h *hold) (place, error) {
	if err := x.settled(ctx, h); err != nil {
		return place{}, err
	}
	if node, unsure := x.known(h); node != "" || unsure {
		p, err := x.locate(ctx, h)
		if err != nil || p.index >= 0 {
			return p, err
		}
		x.lost(h)
	}
	if _, err := x.create(ctx, h); err != nil {
		return place{}, err
	}
	return x.locate(ctx, h)
}

// path returns the path of the node of the hold; empty: the hold has no node.
func (p place) path(h *hold) string {
	if p.index < 0 {
		return ""
	}
	return h.lock + "/" + p.nodes[p.index]
}

// known returns the node of a hold, and whether there may be a node that is not known.
func (x *session) known(h *hold) (node string, unsure bool) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	return h.node, h.unsure
}

// lost notes that the node of a hold does not exist.
func (x *session) lost(h *hold) {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	h.node, h.token, h.held = "", 0, false
}

// ready says whether a hold whose node was just seen as the first can have its lock: its token is
// known, and the leader had the session a short time ago.
func (x *session) ready(h *hold) bool {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	return h.token != 0 && !x.oldLocked(h)
}

// oldLocked says whether a lease from the last proof on would be near its end.
func (x *session) oldLocked(h *hold) bool { return time.Since(x.proven) > h.ask.TTL/3 }

// affirm returns the place of a hold whose node is the first of the lock, unless the node itself is
// gone. After an old proof a sync goes first. The cost does not depend on the number of waiters.
func (x *session) affirm(ctx context.Context, h *hold, p place) (place, error) {
	begun := time.Now()
	x.store.mu.Lock()
	old := x.oldLocked(h)
	x.store.mu.Unlock()
	if old {
		if err := x.sync(ctx); err != nil {
			return p, err
		}
	}
	stat, err := x.stat(ctx, p.path(h))
	if errors.Is(err, zk.ErrNoNode) {
		x.lost(h)
		return place{index: -1}, nil
	}
	if err != nil {
		return p, err
	}
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	if old {
		x.proveLocked(begun)
	}
	if h.token == 0 {
		h.token = stat.Czxid
	}
	return p, nil
}

// forget deletes all nodes of an ask. A command of this session that creates a node is answered
// before.
func (x *session) forget(ctx context.Context, a store.Ask) error {
	lock := x.store.path(a)
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
	prefix := prefixOf(a.ID)
	for _, node := range nodes {
		if !strings.HasPrefix(node, prefix) {
			continue
		}
		if err := x.remove(ctx, lock+"/"+node); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	x.store.drop(x, a.ID)
	return nil
}
