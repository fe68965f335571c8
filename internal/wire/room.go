package wire

import "sync"

// slot is the right to use a connection of the pool, which the end of the send gives back.
type slot interface{ leave() }

// rooms limits the calls that are sent each by itself, and the renewals that wait for
// confirmations, as the batcher limits the batches: a pool has a connection left for other
// renewals. Each node of a cluster has a pool, and so a room.
type rooms struct {
	limit int      // of calls in a room
	of    sync.Map // a *room, by node
}

// room has places for calls. Calls that yield first take one of the fewer places of their own, so
// other calls never wait behind many of them.
type room struct{ all, yielding chan struct{} }

func newRoom(limit int) *room {
	return &room{make(chan struct{}, limit), make(chan struct{}, max(limit-1, 1))}
}

func (r *room) leave() { <-r.all }

// yielded is the slot of a call that yields.
type yielded struct{ *room }

func (y yielded) leave() { y.room.leave(); <-y.yielding }

// enterRoom waits for a slot at the node of f; nil: f.ctx is done. Until a server has answered, the
// nodes are not known, and share a room.
func (w *Wire) enterRoom(f *flight) slot {
	node := ""
	if w.reached.Load() {
		node, _, _ = w.Node(f.ctx, f.unit.Keys[0], false) // empty with an error, which the send will meet, too
	}
	r := w.rooms.at(node)
	var own slot = r
	if f.yields {
		own = yielded{r}
		select {
		case r.yielding <- struct{}{}:
		case <-f.ctx.Done():
			return nil
		}
	}
	select {
	case r.all <- struct{}{}:
		return own
	case <-f.ctx.Done():
		if f.yields {
			<-r.yielding
		}
		return nil
	}
}

// mostRooms is the number of rooms beyond which the empty ones are dropped: the address of a node
// is new with each restart of its pod.
const mostRooms = 64

// at returns the room of a node. A call that has a room which is dropped just now goes on with it.
func (r *rooms) at(node string) *room {
	if known, ok := r.of.Load(node); ok {
		return known.(*room)
	}
	rooms := 0
	r.of.Range(func(any, any) bool { rooms++; return true })
	if rooms >= mostRooms {
		r.of.Range(func(other, empty any) bool {
			if e := empty.(*room); len(e.all) == 0 && len(e.yielding) == 0 {
				r.of.Delete(other)
			}
			return true
		})
	}
	made, _ := r.of.LoadOrStore(node, newRoom(r.limit))
	return made.(*room)
}
