package wire

import "sync"

// slot is the right to use a connection of the pool, which the end of the send gives back.
type slot interface{ leave() }

// rooms limits the calls that are sent each by itself, as the batcher limits the batches: a pool
// has a connection left for renewals. Each node of a cluster has a pool, and so a room.
type rooms struct {
	limit int      // of calls in a room
	of    sync.Map // a room, by node
}

type room chan struct{}

func (r room) leave() { <-r }

// enterRoom waits for a slot at the node of f; nil: f.ctx is done. Until a server has answered, the
// nodes are not known, and share a room.
func (w *Wire) enterRoom(f *flight) slot {
	node := ""
	if w.reached.Load() {
		node, _, _ = w.Node(f.ctx, f.unit.Keys[0], false) // empty with an error, which the send will meet, too
	}
	r, ok := w.rooms.of.Load(node)
	if !ok {
		r, _ = w.rooms.of.LoadOrStore(node, make(room, w.rooms.limit))
	}
	select {
	case r.(room) <- struct{}{}:
		return r.(room)
	case <-f.ctx.Done():
		return nil
	}
}
