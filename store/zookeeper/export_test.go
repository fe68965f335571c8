package relockzk

import "github.com/go-relock/relock/store"

// Crash ends the session of the Store, as the end of the process does.
func (s *Store) Crash() {
	s.mu.Lock()
	x := s.session
	s.mu.Unlock()
	if x != nil {
		x.end()
	}
	s.group.Close()
	s.group.Wait()
}

// EndSession ends the session of the Store, as a server that is silent for too long does.
func (s *Store) EndSession() {
	s.mu.Lock()
	x := s.session
	s.mu.Unlock()
	x.end()
}

// Users returns the number of commands that run, and of holds.
func (s *Store) Users() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users
}

// NameOf returns the name of a node of a hold, with a mark and the name of the lock.
func NameOf(id store.ID, mark, lockName, number string) string {
	return prefixOf(id) + mark + lockName + number
}

// UpgradeMark returns the mark of an upgrade that waits for a reader.
func UpgradeMark(reader store.ID) string { return upgradeMark + uuidOf(reader) + "-" }

// Obstacle returns the name of the child that keeps the claim out; empty: none. The claim is that of a
// new hold if no child is of the claim. Readers with a number above queued are kept out already.
func Obstacle(children []string, a store.Claim, queued string) (string, error) {
	nodes := inOrder(children)
	own := wanted(nodes, a)
	if i := indexOf(nodes, a.ID); i >= 0 {
		own = nodes[i]
	}
	i, err := obstacle(nodes, own, a, queued)
	if i < 0 {
		return "", err
	}
	return nodes[i].name, err
}

// Reason returns the error of a request, as a Store returns it.
func Reason(err error, write bool) error { return new(session).reason(err, effect(write)) }

// FoundAlone says whether an event finds the hold of its node. A nil hold panics whoever looks at it.
func FoundAlone() bool {
	x := &session{store: &Store{}, holds: map[store.ID]*hold{"other": nil}, nodes: map[string]*hold{}}
	defer x.store.watchers.Add("c", func(store.ID) {})()
	h := &hold{session: x, claim: store.Claim{ID: "c:1:1"}, held: true}
	x.holds[h.claim.ID] = h
	x.placeLocked(h, "/a/1")
	found := x.store.heldAt(x, "/a/1") == h
	x.store.dropLocked(h)
	return found && len(x.nodes) == 0
}
