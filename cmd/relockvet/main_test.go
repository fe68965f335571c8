package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheCommandWorksByItselfAndAsAToolOfGoVet(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "relockvet")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tool, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	const inCode, inTest = "wrong.go:13:18: section is not unlocked on the path to the return on line 18", "wrong_test.go:11:15: the section's context is dropped"
	for name, c := range map[string]struct {
		command []string
		tests   bool
	}{
		"by itself":                {[]string{tool}, true},
		"by itself, without tests": {[]string{tool, "-test=false"}, false},
		"as a tool of go vet":      {[]string{"go", "vet", "-vettool=" + tool}, true},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(pkg string) (string, error) {
				cmd := exec.CommandContext(t.Context(), c.command[0], append(c.command[1:], pkg)...)
				cmd.Dir = "analyzer"
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := run("./testdata/wrong")
			require.Error(t, err)
			require.Contains(t, out, inCode)
			if c.tests {
				require.Contains(t, out, inTest)
			} else {
				require.NotContains(t, out, inTest)
			}
			out, err = run("./testdata/right")
			require.NoError(t, err, out)
			require.Empty(t, out)
		})
	}
}
