package redistest

import (
	"testing"
	"time"
)

// Ended says whether it is known that the server's process has ended.
func (s *Server) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.Alive()
}

// Ended says whether it is known that the child has ended.
func (p *Process) Ended() bool { return !p.proc.Alive() }

// SetLeakLimit keeps the test of NoGoroutineLeft from waiting for seconds.
func SetLeakLimit(t *testing.T, limit time.Duration) {
	t.Helper()
	was := leakLimit
	leakLimit = limit
	t.Cleanup(func() { leakLimit = was })
}
