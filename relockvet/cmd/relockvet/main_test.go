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
	for name, command := range map[string][]string{
		"by itself":          {tool},
		"as a tool of vet":   {"go", "vet", "-vettool=" + tool},
		"by itself, no test": {tool, "-test=false"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(pkg string) (string, error) {
				cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], pkg)...)
				cmd.Dir = filepath.Join("..", "..")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := run("./testdata/wrong")
			require.Error(t, err)
			require.Contains(t, out, "wrong.go:13:18: section is not unlocked on the path to the return on line 18")
			out, err = run("./testdata/right")
			require.NoError(t, err, out)
			require.Empty(t, out)
		})
	}
}
