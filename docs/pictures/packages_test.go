package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// summed are folders that have one word in the picture for all that is in them, or none.
var summed = []string{"docs", "examples", "internal/test", "lab", "store/sql", "telemetry", "cmd/relockvet", "tools", "ui/browser"}

func TestTheArchitectureHasAllPackages(t *testing.T) {
	text, err := os.ReadFile("architecture.diagram")
	require.NoError(t, err)
	words := regexp.MustCompile(`[a-z]+`).FindAllString(string(text), -1)
	for _, name := range summed[:len(summed)-2] {
		if name != "internal/test" {
			require.Contains(t, words, path.Base(name))
		}
	}
	root, packages := os.DirFS("../.."), 0
	require.NoError(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir() || name == ".":
			return err
		case strings.HasPrefix(d.Name(), "."), d.Name() == "testdata", slices.Contains(summed, name):
			return fs.SkipDir
		}
		files, err := fs.Glob(root, name+"/*.go")
		if len(files) > 0 {
			packages++
			require.Contains(t, words, d.Name(), name)
		}
		return err
	}))
	require.Greater(t, packages, 25)
}
