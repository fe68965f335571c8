// Package bound bounds how long a test waits in real time.
package bound

import (
	"os"
	"time"
)

// hang is longer than a busy machine takes for anything.
const hang = time.Minute

// Of returns the limit of a wait in real time. A busy machine would break most limits, so they hold
// only where RELOCK_CLOCKS is set, as make clocks does on a quiet machine. Elsewhere a wait has a
// minute at least: the limit finds a hang.
func Of(limit time.Duration) time.Duration {
	if os.Getenv("RELOCK_CLOCKS") != "" {
		return limit
	}
	return max(limit, hang)
}
