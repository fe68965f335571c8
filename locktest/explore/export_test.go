package explore

import "testing"

// Findings explores a program, and returns how many of its runs end with which cure.
func Findings(t *testing.T, program func(t *testing.T, w *World)) (cures map[string]int, texts []string) {
	t.Helper()
	cures = make(map[string]int)
	explore(t, program, func(_ *testing.T, f *finding) {
		cures[f.cure]++
		texts = append(texts, f.String())
	})
	return cures, texts
}

// The cures, for tests.
const (
	Stop     = stop
	Fence    = fence
	BadFence = badFence
	Outside  = outside
)
