package relockzk

import (
	"fmt"
	"slices"

	"github.com/go-relock/relock/store"
)

// This file has the rules of the queue: which of the nodes of a lock are in, and which node keeps a
// hold out. A mutex, and a writer, are in when no node has a lower number. A reader is in when no
// writer has a lower number. So each number must be given once: a node whose number is spent is
// deleted, and is never in.
//
// A hold inside a hold in the other mode does not wait for that hold:
//
//   - A reader inside a writer takes the number of the writer, as with Curator. So it is in, and
//     when the writer is released, the reader has the place of the writer in the queue.
//   - An upgrade, a writer inside a reader, waits with a node of its own at the end of the queue,
//     which keeps new readers out. When the other readers are gone, one transaction replaces this
//     node with a node that has the number of the reader, and so comes before the queue. A reader
//     that saw neither node may have entered in between. Nothing shows that, so the upgrade looks
//     again. If there is such a reader, the upgrade goes back to the end of the queue: otherwise
//     the upgrade and that reader could wait for each other.

// last is a number behind all nodes, for a node that is not made yet.
const last = "~"

// ofKind returns the nodes of one kind of lock. The first node of all decides which kind of lock a
// name is: a hold of another kind goes away again.
func ofKind(nodes []node, kind store.Kind) ([]node, error) {
	if len(nodes) > 0 && nodes[0].kind != kind {
		return nil, fmt.Errorf("%w: %s, and this claim is for %s", store.ErrKind, nodes[0].kind, kind)
	}
	return slices.DeleteFunc(nodes, func(n node) bool { return n.kind != kind }), nil
}

// wanted returns the node to make for a claim, as far as its name goes.
func wanted(nodes []node, a store.Claim) node {
	n := node{number: last, kind: a.Kind, reads: a.Kind == store.ReadWrite && a.Limit == store.Unlimited}
	if with, ok := around(nodes, a); ok {
		if n.reads {
			n.number, n.inside = with.number, true
		} else {
			n.upgrade = uuidOf(a.With)
		}
	}
	return n
}

// around returns the node of the hold in the other mode around a claim.
func around(nodes []node, a store.Claim) (with node, ok bool) {
	i := -1
	if a.With != "" {
		i = indexOf(nodes, a.With)
	}
	if i < 0 || nodes[i].reads == (a.Limit == store.Unlimited) {
		return with, false
	}
	return nodes[i], true
}

// isIn says whether the node at an index has the lock. An upgrade may have to look again first.
func isIn(nodes []node, i int) bool {
	if nodes[i].reads {
		return before(nodes[:i], nodes[i], true) < 0
	}
	return nodes[i].upgrade == "" && i == 0
}

// isSpent says whether the number of the node at an index orders nothing: the number is the last one
// of the counter, or another node has that number. A node inside another hold has the number of that
// hold.
func isSpent(nodes []node, i int) bool {
	own := nodes[i]
	return own.number == overflow || !own.inside && slices.ContainsFunc(nodes, func(n node) bool {
		return n.number == own.number && n.name != own.name && !n.inside
	})
}

// before returns the index of the last node with a lower number than n, or of the last such writer;
// -1: none.
func before(nodes []node, n node, writer bool) int {
	for i := len(nodes) - 1; i >= 0; i-- {
		if nodes[i].number < n.number && !(writer && nodes[i].reads) {
			return i
		}
	}
	return -1
}

// obstacle returns the index of the node that keeps the node of a claim out; -1: none. Readers with
// a number above queued are known to be kept out by an upgrade. If two upgrades of different
// readers wait, obstacle returns ErrDeadlock to the second one.
//
// For a reader the obstacle is the last writer before its node, and for a writer the last node
// before its own. A writer inside a reader goes through all nodes in order. The state is open until
// a writer keeps the readers out that follow, and then barred. The obstacle is the last node that
// is in the way:
//
//	state   node                                                       in the way    next state
//	each    the node itself, or the reader around the claim              no            the same
//	open    a reader with a number below queued                        yes           the same
//	open    a reader with another number                               no            the same
//	barred  a reader                                                   no            the same
//	each    a writer inside the same reader, or inside an older one    yes           the same
//	each    a writer inside a newer reader                             no            the same
//	each    a writer with a number up to that of the reader            yes           barred
//	each    a writer behind the reader, which is no upgrade            no            barred
//	each    an upgrade with a number above queued                      no            barred
//	each    an upgrade of the same reader                              yes           barred
//	each    an upgrade of another reader, whose node is there          ErrDeadlock
//	each    an upgrade of a reader that is gone                        no            barred
func obstacle(nodes []node, own node, a store.Claim, queued string) (int, error) {
	with, ok := around(nodes, a)
	switch {
	case own.reads:
		return before(nodes, own, true), nil
	case !ok:
		return before(nodes, own, false), nil
	}
	found, barred := -1, false // barred: a writer keeps the readers out that follow
	for i, n := range nodes {
		switch {
		case n.name == own.name, n.name == with.name:
			continue
		case n.reads:
			if !barred && n.number < queued {
				found = i
			}
			continue
		case n.number <= with.number: // of the same reader, or the writer around the reader
			found = i
		case n.upgrade == "" || n.number > queued:
		case n.upgrade == uuidOf(a.With):
			found = i
		case slices.ContainsFunc(nodes, func(r node) bool { return r.isOf(n.upgrade) }):
			return i, store.ErrDeadlock
		}
		barred = barred || !n.inside
	}
	return found, nil
}
