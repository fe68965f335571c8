package redistest

import (
	"testing"
	"time"
)

// Ended says whether the server's process is known to have ended.
func (s *Server) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.Alive()
}

// Ended says whether the child is known to have ended.
func (p *Process) Ended() bool { return !p.proc.Alive() }

// SetLeakLimit keeps the test of NoGoroutineLeft from waiting for seconds.
func SetLeakLimit(t *testing.T, limit time.Duration) {
	t.Helper()
	was := leakLimit
	leakLimit = limit
	t.Cleanup(func() { leakLimit = was })
}
