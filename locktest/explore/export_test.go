package explore

import "testing"

// Findings explores a program, and returns in how many of its runs there is a finding with which
// cure, and the texts of the findings.
func Findings(t *testing.T, program func(t *testing.T, w *World)) (cures map[string]int, texts []string) {
	t.Helper()
	cures = make(map[string]int)
	for _, f := range explore(t, program) {
		cures[f.first.cure] += f.count
		texts = append(texts, f.String())
	}
	return cures, texts
}

// The cures, for tests.
const (
	Stop     = stop
	Fence    = fence
	BadFence = badFence
	Taken    = taken
	Outside  = outside
	Unlock   = unlock

	Unmarked   = unmarked
	Unexplored = unexplored
)
