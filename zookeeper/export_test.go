package relockzk

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
