package relockzk

import (
	"context"
	"errors"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/go-relock/relock/store"
)

// Watch implements [store.Watcher]. The Store watches the node of each hold of the client, and
// tells of the end of the session.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stop = s.watchers.Add(client, doubt)
	if s.session != nil {
		for id, h := range s.session.holds {
			if h.held && strings.HasPrefix(string(id), client+":") {
				s.group.Go(func() { s.observe(h) })
			}
		}
	}
	return stop
}

// observe sets a watch on the node of a hold. The event comes to session.event.
func (s *Store) observe(h *hold) {
	node, _ := h.session.known(h)
	ctx, cancel := context.WithTimeout(context.Background(), giveUpLimit)
	defer cancel()
	if _, err := h.session.watch(ctx, node); errors.Is(err, zk.ErrNoNode) {
		s.watchers.Tell(h.claim.ID)
	}
}

// heldAt returns the hold whose node has a path, if anybody watches its client.
func (s *Store) heldAt(x *session, node string) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := x.nodes[node]; h != nil && h.held && len(s.watchers.Of(h.claim.ID)) > 0 {
		return h
	}
	return nil
}
