package main

import (
	"os"
	"strconv"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestEveryCommandFlagAndExitCodeIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/CLI.md")
	require.NoError(t, err)
	text := string(page)
	root := (&app{}).root()
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		check := func(f *pflag.Flag) { require.Contains(t, text, "`--"+f.Name+"`", "of %s", cmd.Name()) }
		cmd.LocalFlags().VisitAll(check)
		for _, sub := range cmd.Commands() {
			require.Contains(t, text, "relock "+sub.Name())
			visit(sub)
		}
	}
	visit(root)
	for code, word := range kinds {
		require.Contains(t, text, "`"+word+"` ("+strconv.Itoa(code)+")")
		require.Regexp(t, `(?m)^\| [0-9, ]*\b`+strconv.Itoa(code)+`\b.* \|`, text)
	}
}
