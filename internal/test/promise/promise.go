// Package promise is the harness under the suites storetest and locktest: subtests with names, and
// the promises that each of them needs.
package promise

import (
	"cmp"
	"testing"
)

// wholes has the whole of each promise that is a part of another promise, in both suites.
var wholes = map[string]string{"Semaphores": "Kinds", "ReaderTokens": "Kinds"}

// Suite tells which subtests of a suite can run over a store. P is the type of the suite's
// promises.
type Suite[P ~string] struct {
	// Without has the promises that the store does not make, and the reasons.
	Without map[P]string
	// Hooks has each hook that a subtest may need, and whether the server has the hook.
	Hooks map[P]bool
}

// Reason returns why the store does not make a promise; empty: the store makes the promise.
func (s Suite[P]) Reason(p P) string {
	for p != "" {
		if reason, without := s.Without[p]; without {
			return cmp.Or(reason, "no reason is given")
		}
		p = P(wholes[string(p)])
	}
	return ""
}

// Log logs every promise that a store does not make.
func Log[P ~string](t *testing.T, without map[P]string) {
	t.Helper()
	for promise, reason := range without {
		t.Logf("NOT PROMISED: %s: %s", promise, reason)
	}
}

// Has returns true if a subtest with these needs can run. Otherwise Has logs the need that is not
// met. An empty need is met.
func (s Suite[P]) Has(t *testing.T, needs ...P) bool {
	t.Helper()
	for _, need := range needs {
		if there, hook := s.Hooks[need]; hook && !there {
			t.Logf("NOT TESTED: the harness has no %s", need)
			return false
		}
		if reason := s.Reason(need); reason != "" {
			t.Logf("NOT TESTED: the store does not promise %s: %s", need, reason)
			return false
		}
	}
	return true
}

// Run runs a subtest, with its body inside of around. If around is nil, Run calls the body. With
// beside, the subtest runs beside others.
func Run(t *testing.T, name string, beside bool, around func(*testing.T, func(*testing.T)), body func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		if beside {
			t.Parallel()
		}
		if around == nil {
			body(t)
			return
		}
		around(t, func(t *testing.T) { t.Helper(); body(t) })
	})
}
