package relockzk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// place is the place of a hold among the nodes of its lock.
type place struct {
	nodes  []node // of the kind of the lock
	index  int    // of the hold; -1: the hold has no node
	behind int    // of the node that keeps the hold out; -1: none
}

// isIn says whether the hold has the lock.
func (p place) isIn() bool { return p.index >= 0 && p.behind < 0 }

// join makes the node of the hold, unless there is one, and returns its place.
func (x *session) join(ctx context.Context, h *hold) (place, error) {
	if err := x.settled(ctx, h); err != nil {
		return place{}, err
	}
	p, err := x.arrive(ctx, h)
	if h.claim.With == "" {
		return p, err
	}
	for err == nil && p.index >= 0 && !x.isHeld(h) {
		own := p.nodes[p.index]
		with, ok := around(p.nodes, h.claim)
		switch {
		case !ok && (own.inside || own.upgrade != ""): // the hold around this one is gone
			if err = x.remove(ctx, p.path(h)); err == nil || errors.Is(err, zk.ErrNoNode) {
				x.lost(h)
				p, err = x.arrive(ctx, h)
			}
		case own.upgrade != "" && p.behind < 0:
			p, err = x.replace(ctx, h, p, node{number: with.number, kind: own.kind, inside: true})
		case own.inside && !own.reads && p.behind >= 0:
			p, err = x.replace(ctx, h, p, node{number: last, kind: own.kind, upgrade: uuidOf(h.claim.With)})
		default:
			return p, nil
		}
	}
	return p, err
}

func (x *session) isHeld(h *hold) bool {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	return h.held
}

// arrive makes the node of the hold, unless there is one, and lists the nodes of the lock.
func (x *session) arrive(ctx context.Context, h *hold) (place, error) {
	if node, unsure := x.known(h); node != "" || unsure {
		p, err := x.locate(ctx, h)
		if err != nil || p.index >= 0 {
			return p, err
		}
		x.lost(h)
	}
	n, err := x.plan(ctx, h)
	if err != nil {
		return place{}, err
	}
	if err := x.create(ctx, h, n); err != nil {
		return place{}, err
	}
	return x.locate(ctx, h)
}

// plan returns the node to make for a hold. A follower may not know the hold around it yet.
func (x *session) plan(ctx context.Context, h *hold) (node, error) {
	if h.claim.With == "" {
		return wanted(nil, h.claim), nil
	}
	nodes, _, err := x.children(ctx, h.lock)
	if err == nil && indexOf(nodes, h.claim.With) < 0 {
		nodes, err = x.fresh(ctx, h.lock)
	}
	return wanted(nodes, h.claim), err
}

// locate returns the place of a hold. If another node of the hold keeps it out, made by a command
// without an answer, locate deletes that node. A node whose number is spent is deleted, too, and is
// an error that stays.
func (x *session) locate(ctx context.Context, h *hold) (place, error) {
	for {
		p, err := x.list(ctx, h)
		if err != nil || p.index < 0 {
			return p, err
		}
		useless, spent := p.index, !x.isHeld(h) && isSpent(p.nodes, p.index)
		if !spent {
			if useless = p.behind; useless < 0 || !p.nodes[useless].isOf(uuidOf(h.claim.ID)) {
				return p, nil
			}
		}
		err = x.remove(ctx, h.lock+"/"+p.nodes[useless].name)
		switch {
		case err != nil && !errors.Is(err, zk.ErrNoNode):
			return p, err
		case spent:
			return p, spentAt(h.lock)
		}
	}
}

// list lists the nodes of a lock, and finds the node of the hold among them. If no node is known,
// and an answer was lost, the first node of the hold is its node. Otherwise only the node that is
// known counts: another one may be of a session that has ended.
//
// If the node of a mutex is the last one, or the node of a writer the only one, the number of the
// last change is a token for the hold. This number is not smaller than the czxid of the node, and
// smaller than the czxid of each later node.
func (x *session) list(ctx context.Context, h *hold) (place, error) {
	all, changed, err := x.children(ctx, h.lock)
	if err != nil {
		return place{}, err
	}
	nodes, err := ofKind(all, h.claim.Kind)
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	p := place{nodes: nodes, behind: -1}
	p.index = slices.IndexFunc(nodes, func(n node) bool { return h.lock+"/"+n.name == h.node })
	if p.index < 0 && h.unsure {
		p.index = indexOf(nodes, h.claim.ID)
	}
	if p.index < 0 || err != nil {
		return p, err
	}
	x.placeLocked(h, p.path(h))
	if isLast := p.index == len(nodes)-1; h.token == 0 && h.claim.Limit == 1 && isLast && (h.claim.Kind == store.Mutex || len(nodes) == 1) {
		h.token = changed
	}
	own := nodes[p.index]
	if own.upgrade != "" {
		h.queued = own.number
	}
	if !h.held {
		p.behind, err = obstacle(nodes, own, h.claim, cmp.Or(h.queued, last))
	}
	return p, err
}

// path returns the path of the node of the hold; empty: the hold has no node.
func (p place) path(h *hold) string {
	if p.index < 0 {
		return ""
	}
	return h.lock + "/" + p.nodes[p.index].name
}

// target returns the path and the flags for the creation of a node of the hold. The server adds the
// number, unless the node is inside another hold.
func (h *hold) target(n node) (node string, flags int32) {
	node = h.lock + "/" + n.newName(h.claim.ID)
	if n.inside {
		return node + n.number, zk.FlagEphemeral
	}
	return node, zk.FlagEphemeralSequential
}

// mostPaths is how often create makes the path of a lock, which ends with its last child, before
// the caller pauses.
const mostPaths = 10

// create makes the node of a hold, and the path of the lock.
func (x *session) create(ctx context.Context, h *hold, n node) error {
	node, flags := h.target(n)
	for range mostPaths {
		err := x.make(ctx, h, func(data []byte) (string, error) { return x.conn.Create(node, data, flags, x.store.acl) })
		switch _, unsure := x.known(h); {
		case n.inside && errors.Is(err, zk.ErrNodeExists) && unsure: // made by a command without an answer
			return nil
		case n.inside && errors.Is(err, zk.ErrNodeExists): // of a session that has ended
			err = x.remove(ctx, node)
		case errors.Is(err, zk.ErrNodeExists): // an earlier node of the hold has the same number
			return spentAt(h.lock)
		case errors.Is(err, zk.ErrNoNode):
			err = x.makePath(ctx, h.lock)
		default:
			return err
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return store.Unavailable(fmt.Errorf("the server has no node %s, and makes none", h.lock))
}

// replace makes another node for a hold in place of its node, in one transaction, and returns the
// new place. If an earlier command without an answer has done so, replace changes nothing.
func (x *session) replace(ctx context.Context, h *hold, p place, n node) (place, error) {
	create := &zk.CreateRequest{Acl: x.store.acl}
	create.Path, create.Flags = h.target(n)
	err := x.make(ctx, h, func(data []byte) (string, error) {
		create.Data = data
		answers, err := x.conn.Multi(create, &zk.DeleteRequest{Path: p.path(h), Version: -1})
		if err != nil {
			return "", err
		}
		return answers[0].String, nil
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists) {
		return p, err
	}
	return x.arrive(ctx, h)
}

// make runs a command that makes a node of the hold. If ctx ends first, the command goes on:
// settled waits for its answer.
func (x *session) make(ctx context.Context, h *hold, command func(data []byte) (string, error)) error {
	n := note{ID: h.claim.ID, Count: 1, Kept: h.claim.Kept(h.claim.TTL).Milliseconds()}
	answered := make(chan struct{})
	x.store.mu.Lock()
	h.note, h.creating = n, answered
	x.store.mu.Unlock()
	err := run(ctx, x, writes, func() error {
		address, _ := x.address.Load().(string)
		node, err := command(n.encode(address))
		unsure := errors.Is(x.reason(err, writes), store.ErrUnsure)
		x.store.mu.Lock()
		defer x.store.mu.Unlock()
		if err == nil {
			x.placeLocked(h, node)
			h.token = 0
		}
		h.unsure = h.unsure || unsure
		close(answered)
		return err
	})
	if !errors.Is(err, store.ErrUnsure) { // answered, or not sent
		x.store.mu.Lock()
		h.creating = nil
		x.store.mu.Unlock()
	}
	return err
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
	x.placeLocked(h, "")
	h.token, h.held = 0, false
}

// ready says whether a hold can have its lock now. The node of the hold was in at the last look.
// The token must be known; a reader may draw it later. And the last proof of the session must be
// new.
func (x *session) ready(h *hold) bool {
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	return (h.token != 0 || h.claim.Limit == store.Unlimited) && !x.oldLocked(h)
}

// oldLocked says whether a lease from the last proof on would be near its end.
func (x *session) oldLocked(h *hold) bool { return time.Since(x.proven) > h.claim.TTL/3 }

// affirm returns the place of a hold whose node is in, unless the node itself is gone. After an old
// proof affirm makes a new one. The cost does not depend on the number of waiters. A writer draws
// its token now, as an upgrade that came before it has a younger node; a reader draws it later.
func (x *session) affirm(ctx context.Context, h *hold, p place) (place, error) {
	x.store.mu.Lock()
	old, token, isReader := x.oldLocked(h), h.token, h.claim.Limit == store.Unlimited
	x.store.mu.Unlock()
	var err error
	switch {
	case token == 0 && h.claim.Kind == store.ReadWrite && !isReader:
		token, err = x.draw(ctx, h.lock, p.path(h))
		old = true
	case old:
		_, err = x.transact(ctx, reads, check(p.path(h)))
	}
	if err == nil && (token == 0 && !isReader || !old) {
		var stat *zk.Stat
		if stat, err = x.stat(ctx, p.path(h)); err == nil {
			token = stat.Czxid
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		x.lost(h)
		return place{index: -1, behind: -1}, nil
	}
	if err != nil {
		return p, err
	}
	x.store.mu.Lock()
	defer x.store.mu.Unlock()
	if h.token == 0 && !isReader {
		h.token = token
	}
	return p, nil
}
