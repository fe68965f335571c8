package redistest

import (
	"testing"
	"time"
)

// SetLeakLimit keeps the test of NoGoroutineLeft from waiting for seconds.
func SetLeakLimit(t *testing.T, limit time.Duration) {
	t.Helper()
	was := leakLimit
	leakLimit = limit
	t.Cleanup(func() { leakLimit = was })
}
