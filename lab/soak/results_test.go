package soak

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of the results into its page")

// result is one run in one world, as it is kept in results.
type result struct {
	Date       string `json:"date"`
	Commit     string `json:"commit"`
	Seed       uint64 `json:"seed"`
	Seconds    int    `json:"seconds"`
	Calls      int    `json:"calls"`
	Faults     int    `json:"faults"`
	Violations int    `json:"violations"`
}

// keep adds the result of a run to the results, if RELOCK_COMMIT names the commit that runs.
func (s *soak) keep(world string) {
	commit := os.Getenv("RELOCK_COMMIT")
	if commit == "" {
		return
	}
	r := result{
		Date: s.began.UTC().Format(time.DateOnly), Commit: commit, Seed: s.seed, Seconds: int(time.Since(s.began).Seconds()),
		Calls: s.all.calls, Faults: sum(s.count),
	}
	if s.t.Failed() {
		r.Violations = 1
	}
	line, err := json.Marshal(r)
	require.NoError(s.t, err)
	file, err := os.OpenFile(filepath.Join("results", world+".jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, file.Close()) }()
	_, err = fmt.Fprintf(file, "%s\n", line)
	require.NoError(s.t, err)
}

// Marks around the table in its page.
const (
	page       = "../../docs/GUARANTEES.md"
	tableBegin = "<!-- soak: begin -->\n"
	tableEnd   = "<!-- soak: end -->\n"
)

func TestThePageHasTheResults(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), tableBegin)
	require.True(t, ok)
	table, after, ok := strings.Cut(rest, tableEnd)
	require.True(t, ok)
	want := resultsTable(t)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, want, table, "make soak-table writes the table")
}

// resultsTable returns a row for each world with results.
func resultsTable(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| world | runs, minutes | calls | faults | violations | last run, commit, seed |\n|---|---|---|---|---|---|\n")
	files, err := filepath.Glob("results/*.jsonl")
	require.NoError(t, err)
	for _, name := range files {
		var all, last result
		runs := 0
		file, err := os.Open(name)
		require.NoError(t, err)
		for lines := bufio.NewScanner(file); lines.Scan(); runs++ {
			last = result{}
			require.NoError(t, json.Unmarshal(lines.Bytes(), &last))
			all.Seconds += last.Seconds
			all.Calls += last.Calls
			all.Faults += last.Faults
			all.Violations += last.Violations
		}
		require.NoError(t, file.Close())
		fmt.Fprintf(&b, "| %s | %d, %d | %d | %d | %d | %s, %s, %d |\n", strings.TrimSuffix(filepath.Base(name), ".jsonl"),
			runs, all.Seconds/60, all.Calls, all.Faults, all.Violations, last.Date, last.Commit, last.Seed)
	}
	return b.String()
}
