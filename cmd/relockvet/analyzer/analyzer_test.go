package relockvet_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/go-relock/relock/cmd/relockvet/analyzer"
)

// The packages of testdata say in comments which lines are reported, and with which words.
func TestTheAnalyzerReportsWrongLinesAndNoOthers(t *testing.T) {
	t.Setenv("GOFLAGS", "") // testdata is outside of every module
	analysistest.Run(t, analysistest.TestData(), relockvet.Analyzer,
		"dropped", "paths", "ended", "unlock", "stored", "functions", "idioms", "again")
}
